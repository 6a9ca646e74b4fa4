"""`history` and `messages(at=)`, sentence by sentence."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pytest

import turnkeeper
from turnkeeper import (
    AcknowledgedDataLostError,
    ChatMemory,
    ConflictError,
    HistoryPrunedError,
    InvalidArgumentError,
    MessageWindow,
    Runtime,
    TurnWindow,
    Version,
    earlier,
)
from turnkeeper.earlier import log_at
from turnkeeper.log import ADD, CLEAR, Committed, Details, Entry, Slice, StoredEntry, details_of, encode_payload
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import assistant, call, result, texts, unloaded, user

pytestmark = pytest.mark.anyio


async def fill(memory: ChatMemory) -> list[Version]:
    """Do one of each, and return the versions."""
    versions = [
        (await memory.add(user("1"), assistant("a"))).version,
        (await memory.add(user("2"), call("c"), result("c"))).version,
        (await memory.edit("1.0", user("one"))).version,
        (await memory.undo()).version,
        (await memory.add(user("3"))).version,
        (await memory.remove("1.1")).version,
    ]
    await memory.pop()
    versions += [(await memory.messages()).version, (await memory.set(user("4"))).version]
    return [*versions, (await memory.clear()).version, (await memory.add(user("5"))).version]


async def test_an_entry_says_what_it_did(memory: ChatMemory) -> None:
    versions = await fill(memory)
    page = await memory.history()
    assert page.cursor is None
    assert [entry.version for entry in page.entries] == versions
    assert [entry.op for entry in page.entries] == [
        *["add", "add", "edit", "undo", "add", "remove", "pop", "set", "clear", "add"],
    ]
    assert [[message.text for message in entry.messages] for entry in page.entries] == [
        *[["1", "a"], ["2", "", "42"], ["one"], [], ["3"], [], [], ["4"], [], ["5"]],
    ]
    times = [entry.time for entry in page.entries]
    assert times == sorted(times)
    assert [message.id for message in page.entries[1].messages] == ["2.0", "2.1", "2.2"]
    assert page.entries[2].messages[0].id == "1.0"


async def test_pages_of_any_length_part_the_log_forward_and_backward(memory: ChatMemory) -> None:
    await fill(memory)
    whole = (await memory.history()).entries
    for limit in range(1, len(whole) + 2):
        for reverse in (False, True):
            found: list[Any] = []
            cursor = None
            pages = 0
            while True:
                bounds: dict[str, Any] = {"before" if reverse else "after": cursor}
                page = await memory.history(limit=limit, reverse=reverse, **bounds)
                pages += 1
                found += page.entries
                assert 0 < len(page.entries) <= limit
                if (cursor := page.cursor) is None:
                    break
            assert found == list(reversed(whole) if reverse else whole)
            assert pages == -(-len(whole) // limit), "the last page knows that it is"


async def test_both_bounds_are_left_out(memory: ChatMemory) -> None:
    versions = await fill(memory)
    for low in range(len(versions)):
        for high in range(low, len(versions)):
            for reverse in (False, True):
                page = await memory.history(after=versions[low], before=versions[high], reverse=reverse)
                wanted = versions[low + 1 : high]
                assert [entry.version for entry in page.entries] == (wanted[::-1] if reverse else wanted)
                assert page.cursor is None
                page = await memory.history(after=versions[low], before=versions[high], reverse=reverse, limit=2)
                assert (page.cursor is None) is (len(wanted) <= 2)


async def test_a_cursor_goes_on_with_what_came_later(memory: ChatMemory) -> None:
    for number in range(3):
        await memory.add(user(f"{number}"))
    page = await memory.history(limit=2)
    await memory.add(user("3"))
    page = await memory.history(after=page.cursor)
    assert [entry.messages[0].text for entry in page.entries] == ["2", "3"]
    last = page.entries[-1].version
    assert (await memory.history(after=last)).entries == ()
    await memory.add(user("4"))
    assert len((await memory.history(after=last)).entries) == 1


async def test_a_memory_that_is_not_there_has_no_history(memory: ChatMemory) -> None:
    page = await memory.history()
    assert (page.entries, page.cursor) == ((), None)
    with pytest.raises(ConflictError):
        await memory.history(after=Version(1, 1))
    with pytest.raises(ConflictError):
        await memory.messages(at=Version(1, 1))


async def test_before_all_there_is_nothing(memory: ChatMemory) -> None:
    first = (await memory.add(user("1"))).version
    for before in (first, Version(first.mid, 0), Version(0, 0)):
        page = await memory.history(before=before)
        assert (page.entries, page.cursor) == ((), None)
    assert await memory.messages(at=Version(0, 0)) == ()
    assert len((await memory.history(after=Version(0, 0))).entries) == 1


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, "9", None])
async def test_a_limit_out_of_range(memory: ChatMemory, limit: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        await memory.history(limit=limit)


@pytest.mark.parametrize("bound", ["1.1", 1, object()])
async def test_a_bound_that_is_no_version(memory: ChatMemory, bound: Any) -> None:
    await memory.add(user("1"))
    for bounds in ({"after": bound}, {"before": bound}):
        with pytest.raises(InvalidArgumentError):
            await memory.history(**bounds)
    with pytest.raises(InvalidArgumentError):
        await memory.messages(at=bound)
    with pytest.raises(InvalidArgumentError):
        await memory.fork("f", at=bound)


async def test_versions_of_a_memory_that_was_deleted_and_made_anew(memory: ChatMemory) -> None:
    old = (await memory.add(user("1"))).version
    await memory.delete()
    await memory.add(user("2"))
    new = (await memory.add(user("3"))).version
    assert new.mid != old.mid
    for attempt in (
        lambda: memory.history(after=old),
        lambda: memory.history(before=old),
        lambda: memory.messages(at=old),
        lambda: memory.fork("f", at=old),
        lambda: memory.fork("f", at=old, history=True),
    ):
        with pytest.raises(ConflictError):
            await attempt()
    with pytest.raises(AcknowledgedDataLostError):
        await memory.messages(at=Version(new.mid, 3))
    assert [entry.messages[0].text for entry in (await memory.history()).entries] == ["2", "3"]


class TestEarlierStates:
    async def test_each_is_what_was_read_then(self, runtime: Runtime, memory: ChatMemory) -> None:
        seen = []
        for step in (
            lambda: memory.add({"role": "system", "content": "s"}, user("1")),
            lambda: memory.add(call("c"), result("c"), assistant("a")),
            lambda: memory.edit("1.0", {"role": "system", "content": "t"}),
            lambda: memory.add(user("2"), {"role": "system", "content": "u"}),
            lambda: memory.compact(lambda messages, summary: "SUM", keep=TurnWindow(max_turns=1)),
            lambda: memory.pop(),
            lambda: memory.remove("4.0"),
            lambda: memory.set(user("3")),
            lambda: memory.undo(),
            lambda: memory.clear(),
        ):
            await step()
            seen.append(await memory.messages())
        await unloaded(runtime)
        with patch.object(earlier, "_CHUNK", 1):
            for then in seen:
                again = await memory.messages(at=then.version)
                assert (again, again.version) == (then, then.version)
                assert [message.id for message in again] == [message.id for message in then]

    async def test_through_any_window(self, memory: ChatMemory) -> None:
        for number in range(9):
            await memory.add(user(f"{number}"))
        at = (await memory.history(limit=5)).entries[-1].version
        assert [message.text for message in await memory.messages(at=at, window=MessageWindow(2))] == ["3", "4"]

    async def test_a_window_that_fails_fails_alone(self, memory: ChatMemory) -> None:
        def limit(memory_id: str) -> int:
            raise ValueError("mine")

        at = (await memory.add(user("1"))).version
        with pytest.raises(ValueError, match="mine"):
            await memory.messages(at=at, window=MessageWindow(limit))
        assert await texts(memory) == ["1"]


class TestPruned:
    async def pruned(self, runtime: Runtime) -> ChatMemory:
        memory = runtime.memory("p", window=MessageWindow(2, on_overflow="evict"), history="window")
        await memory.add({"role": "system", "content": "s"})
        for number in range(9):
            await memory.add(user(f"{number}"))
        return memory

    async def test_what_is_gone_says_so(self, runtime: Runtime) -> None:
        memory = await self.pruned(runtime)
        now = await memory.messages()
        page = await memory.history()
        first = next(entry.version for entry in page.entries if entry.messages[0].role == "user")
        assert [entry.version.n for entry in page.entries if entry.version >= first] == list(
            range(first.n, now.version.n + 1)
        )
        mid = now.version.mid
        for gone in range(1, first.n):
            with pytest.raises(HistoryPrunedError):
                await memory.messages(at=Version(mid, gone))
            with pytest.raises(HistoryPrunedError):
                await memory.history(before=Version(mid, gone))
            with pytest.raises(HistoryPrunedError):
                await memory.fork("f", at=Version(mid, gone))
            with pytest.raises(HistoryPrunedError):
                await memory.fork("f", at=Version(mid, gone), history=True)
        for gone in range(first.n - 1):
            with pytest.raises(HistoryPrunedError):
                await memory.history(after=Version(mid, gone))
        with pytest.raises(HistoryPrunedError):
            await memory.history(before=first)
        with pytest.raises(HistoryPrunedError):
            await memory.fork("f", history=True)
        assert (await memory.history(after=Version(mid, first.n - 1))).entries[0].version == first
        assert await memory.messages(at=now.version) == now
        fork = await memory.fork("f")
        assert await texts(fork) == ["s", "8"]

    @pytest.mark.parametrize(("replaces", "there"), [(False, [3]), (True, [4])])
    async def test_each_version_shows_what_it_showed_or_says_that_it_is_gone(
        self, runtime: Runtime, replaces: bool, there: list[int]
    ) -> None:
        memory = runtime.memory("p")
        pruning = runtime.memory("p", window=TurnWindow(max_turns=1), history="window")
        then = []
        batches = [[{"role": "system", "content": "s"}, user("0")], [user("1"), assistant("a")], [user("2")]]
        # The entry of a system message that was replaced goes with the next pruning.
        for batch in [*batches, [{"role": "system", "content": "t"}]] if replaces else batches:
            await pruning.add(batch)
            then.append(await memory.messages())
        for loaded in (False, True):
            if loaded:
                unload(runtime, "p", "")
            await memory.set(user("3"))  # hides where the state began
            await memory.add(user("4"))
            await memory.clear()
            for seen in then:
                if seen.version.n in there:
                    assert await memory.messages(at=seen.version) == seen
                    assert [each.id for each in await memory.messages(at=seen.version)] == [each.id for each in seen]
                    assert await texts(await memory.fork(f"f{loaded}", at=seen.version)) == [each.text for each in seen]
                else:
                    with pytest.raises(HistoryPrunedError):
                        await memory.messages(at=seen.version)
                with pytest.raises(HistoryPrunedError):
                    await memory.fork("g", at=seen.version, history=True)

    def test_where_no_entry_says_how_a_state_began_it_is_gone(self) -> None:
        """So wrote the versions before `Details.begins`."""
        store, name = InMemoryStore(), MemoryName("", "m")

        def entry(op: str, *texts: str) -> Entry:
            return Entry(op, os.urandom(16), encode_messages([user(each) for each in texts]))

        def commit(mid: int, expected: int, *entries: Entry, base: int = 0, prune: int = 0) -> None:
            (outcome,) = store.commit([Slice(name, mid, expected, entries, base, prune=prune)], receipt_ttl=1.0)
            assert isinstance(outcome, Committed)

        commit(0, 0, entry(ADD, "1"), entry(ADD, "2"), entry(ADD, "3"))
        commit(1, 3, base=2, prune=2)
        commit(1, 3, entry(ADD, "4"), base=2)
        assert [each.text for each in log_at(store, name, Version(1, 4)).messages] == ["2", "3", "4"], "what is now"
        commit(1, 4, entry(CLEAR), base=5)
        for n in (1, 2, 3, 4):
            with pytest.raises(HistoryPrunedError):
                log_at(store, name, Version(1, n))
        assert log_at(store, name, Version(1, 5)).messages == ()

    def test_the_present_version_is_shown_though_it_is_pruned_while_it_is_read(self) -> None:
        name = MemoryName("", "m")

        class Pruning(InMemoryStore):
            pruned = False

            def entries(self, mid: int, **bounds: Any) -> list[StoredEntry]:
                if not self.pruned:
                    self.pruned = True
                    self.commit([Slice(name, mid, 3, (), 2, prune=2)], receipt_ttl=1.0)
                return super().entries(mid, **bounds)

        store = Pruning()
        entries = tuple([Entry(ADD, os.urandom(16), encode_messages([user(text)])) for text in ("1", "2", "3")])
        store.commit([Slice(name, 0, 0, entries)], receipt_ttl=1.0)
        assert [each.text for each in log_at(store, name, Version(1, 3)).messages] == ["2", "3"]
        with pytest.raises(HistoryPrunedError):
            log_at(store, name, Version(1, 2))

    async def test_the_oldest_page_begins_with_the_oldest_entry(self, runtime: Runtime) -> None:
        memory = await self.pruned(runtime)
        whole = (await memory.history()).entries
        found: list[Any] = []
        cursor = None
        while True:
            page = await memory.history(before=cursor, limit=1, reverse=True)
            found += page.entries
            if (cursor := page.cursor) is None:
                break
        assert found == list(reversed(whole))


async def test_a_page_reads_no_more_than_the_page(runtime: Runtime) -> None:
    store = FaultStore(InMemoryStore())
    async with turnkeeper.open_runtime(store) as own:
        memory = own.memory("m")
        for number in range(50):
            await memory.add(user(f"{number}"))
        await unloaded(own)
        loads = store.calls["load"]
        await memory.history(limit=5, reverse=True)
        assert own.stats().resident == 0, "nothing is loaded for it"
        assert store.calls["load"] == loads + 1, "its head"


def test_blocking_twins(store_url: str) -> None:
    with turnkeeper.open_sync_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        versions = [memory.add(user(f"{number}")).version for number in range(5)]
        page = memory.history(limit=2, reverse=True)
        assert [entry.version for entry in page.entries] == versions[:2:-1]
        assert page.cursor == versions[3]
        assert [message.text for message in memory.messages(at=versions[1])] == ["0", "1"]
        with pytest.raises(InvalidArgumentError):
            memory.history(limit=0)
        with pytest.raises(ConflictError):
            memory.messages(at=Version(99, 1))


@pytest.mark.parametrize("text", ["\ud800", "plain"])
def test_what_an_entry_says_is_read_beside_a_lone_surrogate(text: str) -> None:
    entry = Entry(ADD, bytes(16), encode_messages([user(text)]), None, Details(system=2, begins=(3, 2)))
    details = details_of(StoredEntry(4, ADD, bytes(16), encode_payload(entry), 0))
    assert (details.system, details.begins) == (2, (3, 2))

"""`history` and `messages(at=)`, sentence by sentence."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import turnkeeper
from turnkeeper import (
    ChatMemory,
    ConflictError,
    HistoryPrunedError,
    InvalidArgumentError,
    MessageWindow,
    Runtime,
    TurnWindow,
    Version,
)
from turnkeeper import history as history_module
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore
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
    with pytest.raises(ConflictError):
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
        with patch.object(history_module, "_CHUNK", 1):
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

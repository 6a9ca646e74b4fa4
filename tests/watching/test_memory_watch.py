"""Watching one memory: every committed change, once, in order, from any version on, however slow the watcher is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from turnkeeper import (
    ChatMemory,
    HistoryEntry,
    InvalidArgumentError,
    MemoryCorruptError,
    MessageWindow,
    OutcomeUnknownError,
    Reset,
    Runtime,
    RuntimeUsageError,
    StoreError,
    Version,
    open_runtime,
)
from turnkeeper.events import PAGE
from turnkeeper.stores import InMemoryStore, StoredEntry
from turnkeeper.testing import FaultStore, unload
from watching.tools import BOUND, add, following, nothing_left, nothing_more, shown, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


class TestFromNowOn:
    async def test_each_entry_is_an_event_of_the_history(self, memory: ChatMemory) -> None:
        await add(memory, "before")
        async with memory.watch() as events:
            await memory.add(user("1"), user("2"))
            await memory.set(user("3"))
            await memory.pop()
            await memory.add(user("4"))
            await memory.clear()
            await memory.clear()  # changes nothing
            await add(memory, "5")
            assert await following(events, 6) == ["1,2", "set", "pop", "4", "clear", "5"]
            await nothing_more(events)
        async with memory.watch(after=Version(0, 0)) as events:
            with anyio.fail_after(BOUND):
                seen = [await anext(events) for _ in range(7)]
        assert seen == list((await memory.history()).entries)

    async def test_a_memory_that_is_not_there_yet(self, memory: ChatMemory) -> None:
        async with memory.watch() as events, anyio.create_task_group() as group:
            group.start_soon(add, memory, "1", "2")
            assert await following(events, 2) == ["1", "2"]

    async def test_others_do_not_wake_it(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with memory.watch() as events:
            await add(runtime.memory("other"), "1")
            await add(runtime.memory("m", "tenant"), "1")
            await nothing_more(events)

    async def test_a_turn_is_one_event(self, memory: ChatMemory) -> None:
        async with memory.watch() as events:
            async with memory.turn() as turn:
                await turn.add(user("1"))
                await turn.add({"role": "assistant", "content": "2"})
            assert await following(events, 1) == ["1,2"]


class TestResuming:
    async def test_from_every_version_what_follows(self, memory: ChatMemory) -> None:
        texts = [str(number) for number in range(10)]
        await add(memory, *texts)
        for number, entry in enumerate((await memory.history()).entries, start=1):
            async with memory.watch(after=entry.version) as events:
                assert await following(events, 10 - number) == texts[number:]

    async def test_a_watch_goes_on_where_another_one_stopped(self, memory: ChatMemory) -> None:
        version: Version | None = Version(0, 0)
        seen = []
        for number in range(3 * PAGE // 30):
            await add(memory, *[f"{number}.{part}" for part in range(30)])
            async with memory.watch(after=version) as events:
                for _ in range(20):  # left in the middle of a page
                    event = await anext(events)
                    version = event.version
                    seen.append(event)
        assert tuple(seen) == (await memory.history(limit=len(seen))).entries

    async def test_what_is_no_version_is_refused(self, memory: ChatMemory) -> None:
        with pytest.raises(InvalidArgumentError, match="after"):
            memory.watch(after="1.1")  # type: ignore[arg-type]

    async def test_a_version_that_never_was_gives_a_reset(self, memory: ChatMemory) -> None:
        await add(memory, "1")
        mid = (await memory.messages()).version.mid
        for version in (Version(mid, 7), Version(mid + 100, 1)):
            async with memory.watch(after=version) as events:
                assert await following(events, 2) == ["reset 0.0", "1"]


async def test_twenty_watchers_see_exactly_what_two_hundred_writers_write(memory: ChatMemory) -> None:
    writers, watchers = 200, 20
    seen: list[list[HistoryEntry | Reset]] = [[] for _ in range(watchers)]

    async def watch(mine: list[HistoryEntry | Reset]) -> None:
        async with memory.watch() as events:
            ready.append(mine)
            async for event in events:
                mine.append(event)
                if len(mine) == writers * 2:
                    return

    ready: list[object] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for mine in seen:
                group.start_soon(watch, mine)
            while len(ready) < watchers:  # noqa: ASYNC110 - nothing else says so
                await anyio.sleep(0.001)
            for number in range(writers):
                group.start_soon(add, memory, f"{number}.1", f"{number}.2")
    log = list((await memory.history(limit=10_000)).entries)
    assert len(log) == writers * 2
    assert all(mine == log for mine in seen)


async def test_a_slow_watcher_reads_later_and_misses_nothing(memory: ChatMemory) -> None:
    texts = [str(number) for number in range(2 * PAGE + 10)]
    async with memory.watch() as events:
        await add(memory, "first")
        assert await following(events, 1) == ["first"]
        async with anyio.create_task_group() as group:  # in one commit group or many
            for text in texts:
                group.start_soon(add, memory, text)
        log = (await memory.history(limit=1000)).entries[1:]
        assert len(log) == len(texts)
        with anyio.fail_after(BOUND):
            assert tuple([await anext(events) for _ in texts]) == log
        await nothing_more(events)


async def test_it_holds_one_page_at_most_however_much_there_is(memory: ChatMemory) -> None:
    await memory.add(user("0"))
    async with memory.watch(after=Version(0, 0)) as events:
        async with anyio.create_task_group() as group:
            for number in range(3 * PAGE):
                group.start_soon(add, memory, str(number))
        for _ in range(3 * PAGE + 1):
            await anext(events)
            assert len(events._events) < PAGE


async def test_tasks_that_iterate_together_share_the_events(memory: ChatMemory) -> None:
    shared: list[str] = []
    count = 2 * PAGE

    async def worker() -> None:
        async for event in events:
            shared.append(shown(event))
            if len(shared) >= count:
                group.cancel_scope.cancel()

    async with memory.watch() as events:
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(worker)
                await anyio.wait_all_tasks_blocked()
                for number in range(count):
                    group.start_soon(add, memory, str(number))
    assert sorted(shared, key=int) == [str(number) for number in range(count)]


class TestGaps:
    async def test_what_was_pruned_unread_is_one_reset(self, runtime: Runtime) -> None:
        keeping = MessageWindow(3, on_overflow="evict")
        memory = runtime.memory("m", window=keeping, history="window")
        async with memory.watch() as events:
            await memory.add({"role": "system", "content": "be kind"})
            await add(memory, *map(str, range(10)))
            kept = await memory.history(after=Version((await memory.messages()).version.mid, 9))
            assert await following(events, 1) == ["reset 1.9"], "the entry before the oldest that is kept"
            with anyio.fail_after(BOUND):
                assert tuple([await anext(events) for _ in range(2)]) == kept.entries
            await add(memory, "on")
            assert await following(events, 1) == ["on"]
            await nothing_more(events)

    async def test_a_reader_who_keeps_up_meets_no_gap(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=MessageWindow(2, on_overflow="evict"), history="window")
        async with memory.watch() as events:
            for number in range(10):
                await add(memory, str(number))
                assert await following(events, 1) == [str(number)]

    async def test_deleted_while_watching(self, memory: ChatMemory) -> None:
        await add(memory, "old")
        async with memory.watch() as events, anyio.create_task_group() as group:
            await add(memory, "1")
            assert await following(events, 1) == ["1"]
            group.start_soon(memory.delete)
            assert await following(events, 1) == ["reset 0.0"]
            await nothing_more(events)
            await add(memory, "new", "newer")
            assert await following(events, 2) == ["new", "newer"]

    async def test_deleted_and_made_anew_before_it_looks(self, memory: ChatMemory) -> None:
        await add(memory, "old", "older")
        async with memory.watch() as events:
            for text in ("never seen", "new"):
                await memory.delete()
                await add(memory, text)
            assert await following(events, 2) == ["reset 0.0", "new"]
            await nothing_more(events)

    async def test_after_the_version_of_a_deleted_memory(self, memory: ChatMemory) -> None:
        await add(memory, "old")
        version = (await memory.messages()).version
        await memory.delete()
        async with memory.watch(after=version) as events:
            assert await following(events, 1) == ["reset 0.0"]
            await add(memory, "new")
            assert await following(events, 1) == ["new"]

    async def test_deleted_before_there_was_anything_to_see(self, memory: ChatMemory) -> None:
        async with memory.watch() as events:
            await add(memory, "never seen")
            await memory.delete()
            await add(memory, "new")
            assert await following(events, 1) == ["new"]


class TestPins:
    async def test_an_idle_memory_is_unloaded_as_ever(self, runtime: Runtime, memory: ChatMemory) -> None:
        await add(memory, "1")
        async with memory.watch() as events:
            assert unload(runtime, "m")
            await add(memory, "2")
            assert await following(events, 1) == ["2"]
            assert unload(runtime, "m")

    async def test_watching_loads_nothing(self, runtime: Runtime, memory: ChatMemory) -> None:
        await add(memory, "1")
        unload(runtime, "m")
        async with memory.watch(after=Version(0, 0)) as events:
            assert await following(events, 1) == ["1"]
            assert runtime.stats().resident == 0


class TestBadStores:
    async def test_a_failed_read_is_raised_and_the_next_one_goes_on(self) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            async with memory.watch() as events:
                await add(memory, "1")
                store.fail_before(on="entries")
                with pytest.raises(StoreError):
                    await anext(events)
                assert await following(events, 1) == ["1"]

    @pytest.mark.parametrize("watcher_first", [True, False])
    async def test_a_commit_of_unknown_outcome_that_lands_late_is_seen(self, watcher_first: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store, commit_timeout=0.05, watch_interval=0.01) as runtime:
            memory = runtime.memory("m")
            await add(memory, "1")
            with store.stall() as stall:
                if watcher_first:
                    async with memory.watch() as events, runtime.watch() as notices:
                        with pytest.raises(OutcomeUnknownError):
                            await add(memory, "late")
                        stall.release()
                        assert await following(events, 1) == ["late"]
                        with anyio.fail_after(BOUND):
                            while (await anext(notices)).version.n != 2:
                                pass
                else:
                    with pytest.raises(OutcomeUnknownError):
                        await add(memory, "late")
                    async with memory.watch() as events, runtime.watch() as notices:
                        stall.release()
                        assert await following(events, 1) == ["late"]
                        with anyio.fail_after(BOUND):
                            while (await anext(notices)).version.n != 2:
                                pass
            async with memory.watch() as events:
                assert runtime._core.watching._polling
                await add(memory, "proof")
                assert await following(events, 1) == ["proof"]
                with anyio.fail_after(BOUND):
                    while runtime._core.watching._polling:  # noqa: ASYNC110 - nothing else says so
                        await anyio.sleep(0.001)
            assert nothing_left(runtime)

    async def test_what_can_not_be_decoded_is_raised_behind_what_can(self) -> None:
        class DamagedStore(InMemoryStore):
            def entries(self, mid: int, **page: Any) -> list[StoredEntry]:
                found = super().entries(mid, **page)
                return [replace(entry, payload=b"{") if entry.version == 3 else entry for entry in found]

        async with open_runtime(DamagedStore()) as runtime:
            memory = runtime.memory("m")
            await add(memory, "1", "2", "3", "4")
            async with memory.watch(after=Version(0, 0)) as events:
                assert await following(events, 2) == ["1", "2"]
                for _ in range(2):
                    with pytest.raises(MemoryCorruptError, match="entry 3"):
                        await anext(events)


class TestUse:
    async def test_outside_of_its_block_it_is_refused(self, memory: ChatMemory) -> None:
        watch = memory.watch()
        with pytest.raises(RuntimeUsageError, match="async with"):
            await anext(watch)
        async with watch:
            with pytest.raises(RuntimeUsageError, match="once"):
                await watch.__aenter__()
        with pytest.raises(RuntimeUsageError, match="async with"):
            await anext(watch)
        with pytest.raises(RuntimeUsageError, match="once"):
            await watch.__aenter__()

    async def test_it_shows_the_memory_and_is_not_pickled(self, memory: ChatMemory) -> None:
        watch = memory.watch()
        assert repr(watch) == "<MemoryWatch memory='m'>"
        with pytest.raises(TypeError):
            watch.__reduce__()

    async def test_a_reset_is_plain(self) -> None:
        assert Reset(Version(1, 2)) == Reset(Version.parse("1.2"))

"""Watchers that are cancelled, left, killed or closed: no event is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from support.schedule import CANCELLATIONS, How, every_cancellation
from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    HistoryEntry,
    MemoryWatch,
    Notice,
    Reset,
    Runtime,
    RuntimeClosedError,
    RuntimeWatch,
    StoreError,
    Version,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import FaultStore
from turnkeeper.watching import Feed, Signal
from watching.tools import BOUND, SharedStore, add, following, nothing_left, notices, shown, user

pytestmark = pytest.mark.anyio

KINDS: dict[str, Callable[[Path], Store]] = {
    "inline": lambda _: InMemoryStore(),
    "threads": lambda _: FaultStore(InMemoryStore(), inline=False),
    "shared": lambda _: SharedStore(),
    "sqlite": lambda path: SQLiteStore(path / "chats.db", shared=True),
}


@pytest.fixture(params=KINDS)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with open_runtime(KINDS[request.param](tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("how", CANCELLATIONS)
class TestCancelledWhereItWaits:
    async def test_the_next_event_is_the_same_when_it_was_there(self, runtime: Runtime, how: How) -> None:
        memory = runtime.memory("m")
        expected = 0
        async with memory.watch() as events:

            async def scenario() -> HistoryEntry | Reset:
                return await anext(events)

            await add(memory, "0", "1", "2")
            async for outcome in every_cancellation(scenario, how):
                event = outcome.value or await anext(events)
                assert shown(event) == str(expected)
                expected += 1
                await add(memory, str(expected + 2))
            assert await following(events, 2) == [str(expected + 1), str(expected + 2)]  # the last run got by

    async def test_the_next_event_is_the_same_when_it_comes_meanwhile(self, runtime: Runtime, how: How) -> None:
        memory = runtime.memory("m")
        number = 0
        async with memory.watch() as events, anyio.create_task_group() as group:

            async def scenario() -> HistoryEntry | Reset:
                group.start_soon(add, memory, str(number))
                return await anext(events)

            async for outcome in every_cancellation(scenario, how):
                assert shown(outcome.value or await anext(events)) == str(number)
                number += 1
            assert number

    async def test_the_next_notice_is_the_same(self, runtime: Runtime, how: How) -> None:
        number = 0
        async with runtime.watch() as watch, anyio.create_task_group() as group:

            async def scenario() -> Notice:
                group.start_soon(add, runtime.memory(str(number)), "1")
                return await anext(watch)

            async for outcome in every_cancellation(scenario, how):
                notice = outcome.value or (await notices(watch, 1))[0]
                assert notice.id == str(number)
                number += 1
            assert number

    @pytest.mark.parametrize("after", [None, Version(0, 0)])
    async def test_nothing_is_left_behind_by_who_was_entering(
        self, runtime: Runtime, how: How, after: Version | None
    ) -> None:
        memory = runtime.memory("m")
        await add(memory, "1")

        async def scenario() -> None:
            async with memory.watch(after) as events, runtime.watch() as watch:
                if after is not None:
                    await anext(events)
                with anyio.move_on_after(0):
                    await anext(watch)

        async for _ in every_cancellation(scenario, how):
            assert nothing_left(runtime)
        assert nothing_left(runtime)


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_cancellations_loses_and_doubles_nothing(runtime: Runtime, seed: int) -> None:
    dice = random.Random(seed)
    memory = runtime.memory("m")
    seen: list[HistoryEntry | Reset] = []
    native = not trio.lowlevel.in_trio_task()

    async def step() -> None:
        seen.append(await anext(events))

    async def in_scope() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
            for _ in range(dice.randrange(4)):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    async def natively() -> None:
        task = asyncio.create_task(step())
        for _ in range(dice.randrange(4)):
            await anyio.lowlevel.checkpoint()
        task.cancel()
        await asyncio.wait({task})

    async with memory.watch() as events:
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(add, memory, str(number))
            for _ in range(300):
                await (natively() if native and dice.random() < 0.5 else in_scope())
        with anyio.fail_after(BOUND):
            while len(seen) < 100:
                await step()
    assert tuple(seen) == (await memory.history(limit=1000)).entries


class TestNothingIsLeftBehind:
    async def test_never_iterated_or_never_entered(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        memory.watch(), runtime.watch()
        assert nothing_left(runtime)
        async with memory.watch(), memory.watch(), runtime.watch():
            assert not nothing_left(runtime)
            await add(memory, "1")
        assert nothing_left(runtime)

    async def test_left_in_the_middle_it_is_garbage(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")

        def watchers() -> list[object]:
            return [it for it in gc.get_objects() if isinstance(it, (MemoryWatch, RuntimeWatch, Signal, Feed))]

        gc.collect()
        before = watchers()  # this runtime's own signal, and those of runtimes that other tests leave open

        async def use() -> None:
            async with memory.watch() as events, runtime.watch() as watch:
                await add(memory, "1", "2")
                await anext(events)
                await anext(watch)

        async with anyio.create_task_group() as group:
            group.start_soon(use)
        gc.collect()
        assert any(it is runtime._core.watching._stop for it in before)
        assert [it for it in watchers() if not any(it is known for known in before)] == []

    async def test_no_task_polls_without_watchers(self, runtime: Runtime) -> None:
        async with runtime.memory("m").watch(), runtime.watch():
            assert runtime._core.watching._polling == runtime._core.store.shared
        with anyio.fail_after(BOUND):
            while runtime._core.watching._polling:
                await anyio.lowlevel.checkpoint()


class TestClosing:
    async def test_who_waits_gets_an_error(self, tmp_path: Path) -> None:
        for make in KINDS.values():
            outcomes: list[str] = []

            async def watch_memory(runtime: Runtime, outcomes: list[str]) -> None:
                try:
                    async with runtime.memory("m").watch() as events:
                        outcomes.append("waits")
                        async for _ in events:
                            pass
                except RuntimeClosedError:
                    outcomes.append("closed")

            async def watch_all(runtime: Runtime, outcomes: list[str]) -> None:
                try:
                    async with runtime.watch() as watch:
                        outcomes.append("waits")
                        async for _ in watch:
                            pass
                except RuntimeClosedError:
                    outcomes.append("closed")

            with anyio.fail_after(BOUND):
                async with anyio.create_task_group() as group, open_runtime(make(tmp_path)) as runtime:
                    group.start_soon(watch_memory, runtime, outcomes)
                    group.start_soon(watch_all, runtime, outcomes)
                    while len(outcomes) < 2:  # noqa: ASYNC110 - nothing else says so
                        await anyio.sleep(0.001)
            assert outcomes == ["waits", "waits", "closed", "closed"]
            assert nothing_left(runtime)

    async def test_who_reads_while_the_store_hangs_gets_an_error(self) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        outcomes: list[object] = []

        async def watch(runtime: Runtime) -> None:
            async with runtime.memory("m").watch(after=Version(0, 0)) as events:
                try:
                    await anext(events)
                except RuntimeClosedError as error:
                    outcomes.append(error)

        with anyio.fail_after(BOUND), store.stall("load") as stall:
            async with anyio.create_task_group() as group, open_runtime(store, close_timeout=0.05) as runtime:
                group.start_soon(watch, runtime)
                await anyio.to_thread.run_sync(stall.entered.wait)
        assert len(outcomes) == 1

    async def test_a_closed_runtime_is_not_watched(self) -> None:
        async with open_runtime("memory:") as runtime:
            watch, of_all = runtime.memory("m").watch(), runtime.watch()
        for refused in (watch, of_all):
            with pytest.raises(RuntimeClosedError):
                await refused.__aenter__()
        assert nothing_left(runtime)


async def test_entering_fails_with_the_store_and_leaves_nothing() -> None:
    store = FaultStore(SharedStore())
    async with open_runtime(store) as runtime:
        store.fail_before(on="load")
        with pytest.raises(StoreError):
            await runtime.memory("m").watch().__aenter__()
        store.fail_before(on="changes")
        with pytest.raises(StoreError):
            await runtime.watch().__aenter__()
        assert nothing_left(runtime)


@pytest.mark.parametrize("killed", ["the poll", "the committer", "an actor"])
async def test_tasks_of_the_runtime_that_are_killed_lose_no_event(killed: str) -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    part = {"the poll": "Watching._poll", "the committer": "_supervise", "an actor": "Actor.run"}[killed]
    store = FaultStore(SharedStore(), inline=False)
    async with open_runtime(store, watch_interval=0.01) as runtime:
        memory = runtime.memory("m")
        await add(memory, "0")
        async with memory.watch() as events, runtime.watch() as watch:
            await anyio.wait_all_tasks_blocked()
            with store.stall() as stall, anyio.move_on_after(BOUND):
                async with anyio.create_task_group() as group:
                    call = Quietly()
                    group.start_soon(call, memory.add, user("1"))
                    await anyio.to_thread.run_sync(stall.entered.wait)
                    victims = [task for task in asyncio.all_tasks() if part in task.get_name()]
                    assert victims
                    for task in victims:
                        task.cancel()
                    stall.release()
            assert await following(events, 1) == ["1"]
            assert [it.id for it in await notices(watch, 1)] == ["m"]
            await add(memory, "2")
            assert await following(events, 1) == ["2"]


async def test_who_waits_gets_an_error_when_the_runtime_is_killed() -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    outcomes: list[str] = []

    async def watch(entering: MemoryWatch | RuntimeWatch) -> None:
        try:
            async with entering as watch:
                await anext(watch)
        except RuntimeClosedError:
            outcomes.append("closed")

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group, open_runtime(SharedStore()) as runtime:
            group.start_soon(watch, runtime.memory("m").watch())
            group.start_soon(watch, runtime.watch())
            await anyio.wait_all_tasks_blocked()
            (keeper,) = [task for task in asyncio.all_tasks() if task.get_name().endswith("RuntimeCore._keep")]
            keeper.cancel()
            while len(outcomes) < 2:  # noqa: ASYNC110 - nothing else says so
                await anyio.sleep(0.001)
    assert nothing_left(runtime)


class Quietly:
    """Calls, whatever comes of it."""

    async def __call__(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        try:
            await function(*args)
        except Exception as error:
            self.error = error


@pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
class TestThePoll:
    async def test_it_finds_what_others_commit_within_the_interval(self) -> None:
        store = SharedStore()
        async with (
            open_runtime(store, watch_interval=3) as here,
            open_runtime(store.other()) as there,
            here.memory("m").watch() as events,
            here.watch() as watch,
        ):
            for number in range(5):
                await anyio.sleep(1.7)
                start = anyio.current_time()
                await add(there.memory("m"), f"{number}.1", f"{number}.2")
                assert await following(events, 2) == [f"{number}.1", f"{number}.2"]
                assert [it.version.n for it in await notices(watch, 1)] == [2 * number + 2]
                assert anyio.current_time() - start <= 3

    async def test_one_look_serves_all_watchers_of_a_runtime(self) -> None:
        store = SharedStore()
        counting = FaultStore(store)
        async with open_runtime(counting, watch_interval=1) as here, open_runtime(store.other()) as there:
            seen: list[str] = []

            async def watch(memory: ChatMemory) -> None:
                async with memory.watch() as events:
                    while True:
                        seen.append(f"{memory.id}: {shown(await anext(events))}")

            async with here.watch() as watch_all, anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(watch, here.memory(str(number)))
                await anyio.sleep(0.5)
                before = counting.calls
                await anyio.sleep(10)
                now = counting.calls
                assert now["load"] - before["load"] == 10
                assert now["changes"] - before["changes"] == 10
                assert now["entries"] == before["entries"], "nothing has changed"
                await add(there.memory("7"), "1")
                await anyio.sleep(2)
                assert seen == ["7: 1"]
                assert [it.id for it in await notices(watch_all, 1)] == ["7"]
                assert counting.calls["entries"] == now["entries"] + 1
                group.cancel_scope.cancel()
            before = counting.calls
            await anyio.sleep(40)
            assert counting.calls == before, "nobody watches"

    async def test_a_store_that_nobody_shares_is_not_polled(self) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime, runtime.memory("m").watch(), runtime.watch():
            before = store.calls
            await anyio.sleep(40)
            assert store.calls == before

    async def test_one_s_own_changes_are_told_once(self) -> None:
        store = SharedStore()
        async with open_runtime(store) as here, here.watch() as watch:
            for _ in range(5):
                await add(here.memory("m"), "1")
                await notices(watch, 1)
                with anyio.move_on_after(5):
                    pytest.fail(f"told again: {await anext(watch)}")

    async def test_a_store_out_of_reach_is_asked_again(self) -> None:
        store = SharedStore()
        failing = FaultStore(store)
        async with (
            open_runtime(failing) as here,
            open_runtime(store.other()) as there,
            here.memory("m").watch() as events,
            here.watch() as watch,
        ):
            with anyio.move_on_after(1):
                pytest.fail(f"nobody expected {await anext(events)}")
            failing.fail_before(None, on="load")
            failing.fail_before(None, on="changes")
            await add(there.memory("m"), "1")
            with anyio.move_on_after(40):
                pytest.fail(f"nobody expected {await anext(watch)}")
            failing.heal()
            assert [it.id for it in await notices(watch, 1)] == ["m"]
            assert await following(events, 1) == ["1"]

    async def test_a_delete_and_what_follows_it_elsewhere(self) -> None:
        store = SharedStore()
        async with open_runtime(store) as here, open_runtime(store.other()) as there:
            await add(there.memory("m"), "0")
            async with here.memory("m").watch() as events:
                await there.memory("m").delete()
                assert await following(events, 1) == ["reset 0.0"]
                await add(there.memory("m"), "1")
                assert await following(events, 1) == ["1"]

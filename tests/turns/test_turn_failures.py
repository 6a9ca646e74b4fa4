"""When the store fails or hangs, the task is killed or the runtime closes in the middle of a turn: nobody hangs."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from turnkeeper import (
    ChatMemory,
    OutcomeUnknownError,
    Receipt,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreUnavailableError,
    TurnEndedError,
    TurnInterruptedError,
    TurnkeeperError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import BOUND, Call, entered, passes, pending, texts, until, user

pytestmark = pytest.mark.anyio


def make_store(kind: str, folder: Path) -> FaultStore:
    if kind == "inline":
        return FaultStore(InMemoryStore())
    if kind == "in threads":
        return FaultStore(InMemoryStore(), inline=False)
    return FaultStore(SQLiteStore(folder / "chats.db", shared=kind == "shared"))


@pytest.fixture(params=["inline", "in threads", "sqlite", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FaultStore:
    return make_store(request.param, tmp_path)


async def run(memory: ChatMemory, text: str = "own", **options: Any) -> Receipt | None:
    async with memory.turn(**options) as turn:
        await turn.add(user(text))
    return turn.receipt


class TestTheStoreFails:
    async def test_at_the_load_the_turn_does_not_open_and_the_next_one_does(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            store.fail_before(on="load")
            with pytest.raises(StoreUnavailableError):
                await run(memory)
            await run(memory)
            assert await texts(memory) == ["own"]

    async def test_at_the_look_up_of_the_key(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            store.fail_before(on="receipts")
            with pytest.raises(StoreUnavailableError):
                await run(memory, idempotency_key="k")
            await run(memory, idempotency_key="k")
            assert await texts(memory) == ["own"]

    async def test_at_the_commit_there_is_no_trace_and_nobody_is_kept_out(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            with pytest.raises(StoreUnavailableError):
                async with memory.turn() as turn:
                    await turn.add(user("lost"))
                    waiting = Call(group, memory.add, user("waited"))
                    await pending(runtime, 1)
                    store.fail_before()
            with pytest.raises(TurnEndedError):
                await turn.add(user("late"))
            assert isinstance(await waiting.result(), Receipt)
            assert await texts(memory) == ["before", "waited"]
            await run(memory)

    async def test_at_an_add_with_commit_each_the_turn_goes_on(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            async with memory.turn(commit="each") as turn:
                store.fail_before()
                with pytest.raises(StoreUnavailableError):
                    await turn.add(user("lost"))
                await turn.add(user("own"))
            assert await texts(memory) == ["own"]

    async def test_the_reply_of_the_commit_is_lost_and_found(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            async with memory.turn() as turn:
                await turn.add(user("own"))
                store.fail_after()
            assert turn.receipt is not None
            assert await texts(memory) == ["before", "own"]

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_the_outcome_is_unknown(self, store: FaultStore, commit: Any) -> None:
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            with pytest.raises(OutcomeUnknownError):
                async with memory.turn(commit=commit) as turn:
                    waiting = Call(group, memory.add, user("waited"))
                    await pending(runtime, 1)
                    store.fail_after()
                    store.fail_before(4, on="settle")
                    await turn.add(user("own"))
            assert isinstance(await waiting.result(), Receipt)
            assert await texts(memory) == ["before", "own", "waited"], "it had happened"
            await run(memory, "next")

    async def test_it_hangs_at_the_commit_longer_than_one_waits(self) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store, commit_timeout=0.05) as runtime:
            memory = runtime.memory("m")
            with store.stall():
                with anyio.fail_after(BOUND), pytest.raises(OutcomeUnknownError):
                    await run(memory)
                assert await texts(memory) == []
            with anyio.fail_after(BOUND):
                while await texts(memory) != ["own"]:
                    pass  # it lands when the store comes back
            await run(memory, "next", timeout=BOUND)
            assert await texts(memory) == ["own", "next"]

    @pytest.mark.parametrize("on_busy", ["enqueue", "interrupt"])
    async def test_at_the_lease_the_turn_does_not_open_and_the_next_one_does(
        self, tmp_path: Path, on_busy: Any
    ) -> None:
        store = make_store("shared", tmp_path)
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            store.fail_before()
            with pytest.raises(StoreUnavailableError):
                await run(memory, on_busy=on_busy)
            await memory.add(user("written"))
            await run(memory, on_busy=on_busy)
            assert await texts(memory) == ["before", "written", "own"]

    async def test_the_reply_of_the_lease_is_lost_and_found(self, tmp_path: Path) -> None:
        store = make_store("shared", tmp_path)
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            for exists in (False, True):
                store.fail_after()
                await run(memory, str(exists))
            assert await texts(memory) == ["False", "True"]

    async def test_it_hangs_at_the_lease_and_the_caller_leaves(self, tmp_path: Path) -> None:
        store = make_store("shared", tmp_path)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with store.stall() as stall:
                leaving = Call(group, run, memory)
                await entered(stall)
                leaving.scope.cancel()
                await leaving.result()
                waiting = Call(group, memory.add, user("waited"))
                await passes()
            assert isinstance(await waiting.result(), Receipt)
            assert await texts(memory) == ["waited"]
            await pending(runtime, 0)
            other = SQLiteStore(tmp_path / "chats.db", shared=True)
            async with open_runtime(other) as there:
                with anyio.fail_after(BOUND):
                    await there.memory("m").add(user("nobody is kept out"))


class TestTheTaskIsKilled:
    async def test_in_the_middle_of_a_turn_it_is_lost_and_the_memory_goes_on(
        self, store: FaultStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        if trio.lowlevel.in_trio_task():
            pytest.skip("trio has no native cancellation")
        strangers = asyncio.all_tasks()
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            own = asyncio.all_tasks()
            await memory.add(user("before"))
            actors = asyncio.all_tasks() - own - strangers
            with caplog.at_level(logging.CRITICAL, "turnkeeper"), pytest.raises(TurnInterruptedError) as caught:
                async with memory.turn() as turn:
                    await turn.add(user("lost"))
                    waiting = Call(group, memory.add, user("waits"))
                    await pending(runtime, 1)
                    await passes()
                    for task in actors:
                        task.cancel()
                    assert isinstance(await waiting.result(), RuntimeUsageError)
                    with anyio.fail_after(BOUND):
                        await turn.interrupted()
            assert caught.value.reason == "lost"
            with anyio.fail_after(BOUND):
                if not store.shared:  # there the lease has to run out first
                    await run(memory, "next")
                    assert await texts(memory) == ["before", "next"]
                else:
                    assert await texts(memory) == ["before"]
            assert runtime.stats().pending == 0


class TestClosing:
    async def test_who_waits_for_a_turn_and_the_turn_itself_get_typed_errors(self, store: FaultStore) -> None:
        async with anyio.create_task_group() as group:
            runtime = open_runtime(store, close_timeout=0.05)
            async with runtime:
                memory = runtime.memory("m")
                await memory.add(user("before"))
                opened, closed = anyio.Event(), anyio.Event()

                async def hold() -> None:
                    async with memory.turn() as turn:
                        await turn.add(user("own"))
                        opened.set()
                        await closed.wait()

                async def watch() -> None:
                    async with memory.turn() as turn:
                        await turn.interrupted()

                holding = Call(group, hold)
                await opened.wait()
                waiting = [Call(group, memory.add, user("waits")), Call(group, watch), Call(group, run, memory)]
                await pending(runtime, 3)
            closed.set()
            for each in waiting:
                assert isinstance(await each.result(), RuntimeClosedError)
            assert isinstance(await holding.result(), (RuntimeClosedError, TurnEndedError))
            assert runtime.stats().pending == 0

    async def test_who_watches_an_open_turn_is_told(self, store: FaultStore) -> None:
        async with anyio.create_task_group() as group:
            async with open_runtime(store) as runtime:
                memory = runtime.memory("m")

                async def watch() -> None:
                    async with memory.turn() as turn:
                        opened.set()
                        await turn.interrupted()

                opened = anyio.Event()
                watching = Call(group, watch)
                await opened.wait()
            assert isinstance(await watching.result(), TurnkeeperError)

    async def test_it_is_drained_when_the_holder_leaves_in_time(self, store: FaultStore) -> None:
        async with anyio.create_task_group() as group:
            with anyio.fail_after(BOUND):
                async with open_runtime(store, close_timeout=1000) as runtime:
                    memory = runtime.memory("m")
                    await memory.add(user("before"))
                    opened, leave = anyio.Event(), anyio.Event()

                    async def hold() -> None:
                        async with memory.turn():
                            opened.set()
                            await leave.wait()
                            raise ZeroDivisionError

                    async def holder() -> None:
                        with pytest.raises(ZeroDivisionError):
                            await hold()

                    Call(group, holder)
                    await opened.wait()
                    waiting = Call(group, memory.add, user("waits"))
                    await pending(runtime, 1)

                    async def leave_soon() -> None:
                        await until(lambda: runtime._core._state == "closing")
                        leave.set()

                    group.start_soon(leave_soon)
            assert isinstance(await waiting.result(), Receipt)

    async def test_a_turn_can_not_be_opened_or_used_afterwards(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            turn, other = memory.turn(), memory.turn()
            await turn.__aenter__()
            await turn.add(user("lost"))
        with pytest.raises(RuntimeClosedError):
            await other.__aenter__()
        for use in (lambda: turn.add(user("late")), turn.messages, lambda: turn.__aexit__(None, None, None)):
            with pytest.raises((RuntimeClosedError, TurnEndedError)):
                await use()
        await turn.__aexit__(ValueError, None, None)
        with pytest.raises(RuntimeClosedError):
            memory.turn()
            await run(memory)

    async def test_a_commit_that_hangs_does_not_hold_it(self) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with anyio.create_task_group() as group:
            with store.stall() as stall, anyio.fail_after(BOUND):
                async with open_runtime(store, close_timeout=0.05) as runtime:
                    memory = runtime.memory("m")
                    committing = Call(group, run, memory)
                    await entered(stall)
                assert isinstance(await committing.result(), OutcomeUnknownError)


async def test_a_memory_whose_task_has_ended_can_have_turns_again(store: FaultStore) -> None:
    async with open_runtime(store, linger=0, idle_timeout=0) as runtime:
        memory = runtime.memory("m")
        for number in range(5):
            await run(memory, str(number))
            await until(lambda: unload(runtime, "m") or not runtime.stats().resident)
        assert await texts(memory) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["inline", "in threads"])
@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_turn_behind_a_write_that_lost_the_store_is_told_of_the_store(
    tmp_path: Path, kind: str, comes_back: bool
) -> None:
    """They waited for the same turn, and are taken together; the runtime is as open as ever."""
    store = make_store(kind, tmp_path)
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("0"))

        async def open_and_leave() -> None:
            async with memory.turn():
                pass

        async with anyio.create_task_group() as tasks:
            async with memory.turn():
                writing = Call(tasks, memory.add, user("1"))
                await pending(runtime, 1)
                opening = Call(tasks, open_and_leave)
                await pending(runtime, 2)
                store.fail_after()
                store.fail_before(4, on="settle")
                store.fail_before(1 if comes_back else 3, on="load")
            assert isinstance(await writing.result(), OutcomeUnknownError)
            if comes_back:
                assert await opening.result() is None
            else:
                assert isinstance(await opening.result(), StoreUnavailableError)

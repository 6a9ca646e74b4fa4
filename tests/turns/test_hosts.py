"""What a turn leaves behind for other hosts, for those who retry, and for a store that comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from turnkeeper import (
    ChatMemory,
    OutcomeUnknownError,
    StoreUnavailableError,
    TurnAlreadyCommittedError,
    TurnInterruptedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore
from turns.tools import BOUND, Call, entered, passes, texts, user

pytestmark = pytest.mark.anyio


async def say(memory: ChatMemory, text: str, **options: object) -> None:
    async with memory.turn(**options) as turn:  # type: ignore[arg-type]
        await turn.add(user(text))


def shared(directory: Path) -> SQLiteStore:
    return SQLiteStore(directory / "chats.db", shared=True)


async def test_what_a_turn_left_behind_no_other_host_can_roll_back(tmp_path: Path) -> None:
    here = FaultStore(shared(tmp_path))
    async with open_runtime(here) as one, open_runtime(shared(tmp_path)) as other, anyio.create_task_group() as tasks:
        memory = one.memory("m")
        await memory.add(user("before"))
        turn = memory.turn(commit="each")
        await turn.__aenter__()
        await turn.add(user("kept"))
        with here.stall() as stall:
            leaving = Call(tasks, turn.__aexit__, None, None, None)
            await entered(stall)
            assert not leaving.done, "it is left when its lease is given back"
        await leaving.result()
        await say(other.memory("m"), "new", on_busy="rollback")
        assert await texts(other.memory("m")) == ["before", "kept", "new"]


async def test_a_rollback_that_the_store_refused_is_made_up_for_before_anything_else() -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        ready = anyio.Event()

        async def hold() -> None:
            async with memory.turn(commit="each") as turn:
                await turn.add(user("lost"))
                ready.set()
                await turn.interrupted()

        holding = Call(tasks, hold)
        await ready.wait()
        store.fail_before()
        refused = await Call(tasks, lambda: say(memory, "new", on_busy="rollback")).result()
        assert isinstance(refused, StoreUnavailableError)
        await holding.result()
        await memory.add(user("after"))
        assert await texts(memory) == ["after"]


@pytest.mark.parametrize("sure", [0, 1])
async def test_a_turn_with_a_commit_of_unknown_outcome_goes_on_and_is_rolled_back_whole(sure: int) -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        ready = anyio.Event()

        async def hold() -> None:
            async with memory.turn(commit="each") as turn:
                for number in range(sure):
                    await turn.add(user(f"sure {number}"))
                store.fail_after()
                store.fail_before(4, on="settle")
                with pytest.raises(OutcomeUnknownError):
                    await turn.add(user("unsure"))
                assert (await texts(turn))[-1] == "unsure", "nobody else can have written"
                await turn.add(user("goes on"))
                ready.set()
                await turn.interrupted()

        holding = Call(tasks, hold)
        with anyio.fail_after(BOUND):
            await ready.wait()
        await Call(tasks, lambda: say(memory, "new", on_busy="rollback")).result()
        assert isinstance(await holding.result(), TurnInterruptedError)
        assert await texts(memory) == ["before", "new"]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_retry_of_what_is_committed_interrupts_nobody(on_busy: str) -> None:
    async with open_runtime("memory:") as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await say(memory, "once", idempotency_key="k")
        async with memory.turn(commit="each") as turn:
            await turn.add(user("innocent"))
            again = Call(tasks, lambda: say(runtime.memory("m"), "x", on_busy=on_busy, idempotency_key="k"))
            assert isinstance(await again.result(), TurnAlreadyCommittedError)
            await turn.add(user("goes on"))
        assert await texts(memory) == ["once", "innocent", "goes on"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no native cancellation
async def test_a_lease_outlives_its_task_and_is_given_back_by_the_next(tmp_path: Path, anyio_backend: str) -> None:
    async with open_runtime(shared(tmp_path), turn_lease=3_600) as runtime:
        memory = runtime.memory("m")
        before = asyncio.all_tasks()
        await memory.add(user("1"))
        actors = asyncio.all_tasks() - before
        turn = memory.turn()
        await turn.__aenter__()
        for task in actors:
            task.cancel()
        await passes()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(memory.add, user("2"))
        assert await texts(memory) == ["1", "2"]

"""Summarisers and stores that fail, callers that leave: nothing is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from support.schedule import CANCELLATIONS, Gate, How, every_cancellation
from turnkeeper import (
    ChatMemory,
    CompactionError,
    CompactionPolicy,
    InvalidMessageError,
    Message,
    MessageWindow,
    OutcomeUnknownError,
    RuntimeClosedError,
    StoreUnavailableError,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, entered, passes, until
from windows.saying import calls, result, spoken, user

pytestmark = pytest.mark.anyio


class ModelFailedError(Exception):
    """A model is out of reach."""


async def check_untouched(memory: ChatMemory, before: turnkeeper.Messages) -> None:
    """Check that nothing has changed, and that the next compaction works."""
    view = await memory.messages()
    assert (view, view.version) == (before, before.version)
    assert await memory.compact(Model(), keep=LAST_TURN) is not None
    assert spoken(await memory.messages()) == "S1 u3 a3"


async def test_what_a_summariser_raises_reaches_the_caller_and_changes_nothing(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    before = await memory.messages()
    with pytest.raises(ModelFailedError):
        await memory.compact(Model(ModelFailedError()), keep=LAST_TURN)

    def fails(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        raise ModelFailedError

    with pytest.raises(ModelFailedError):
        await memory.compact(fails, keep=LAST_TURN)
    await check_untouched(memory, before)


@pytest.mark.parametrize("nothing", ["", " \n", None, [], (), 7])
async def test_an_empty_summary_is_refused(nothing: Any) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        before = await memory.messages()
        with pytest.raises(CompactionError, match="no message"):
            await memory.compact(Model(nothing), keep=LAST_TURN)
        await check_untouched(memory, before)


@pytest.mark.parametrize("given", [["text"], {"content": "no role"}, [user("u"), None]])
async def test_what_is_no_message_is_refused(given: Any) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        before = await memory.messages()
        with pytest.raises(InvalidMessageError):
            await memory.compact(Model(given), keep=LAST_TURN)
        await check_untouched(memory, before)


@pytest.mark.parametrize(
    "given",
    [[calls("1")], [result("1")], [result("1"), calls("1")], [calls("1", "2"), result("1")], [calls("1"), user("u")]],
)
async def test_a_summary_with_calls_and_results_that_do_not_match_is_refused(given: Any) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        before = await memory.messages()
        with pytest.raises(CompactionError, match="lacks"):
            await memory.compact(Model(given), keep=LAST_TURN)
        await check_untouched(memory, before)


@pytest.mark.parametrize("how", CANCELLATIONS)
async def test_whoever_leaves_at_any_point_has_lost_nothing(how: How) -> None:
    memories: list[ChatMemory] = []
    async with turnkeeper.open_runtime("memory:") as runtime:

        async def scenario() -> None:
            memory = runtime.memory(f"m{len(memories)}")
            memories.append(memory)
            with anyio.CancelScope(shield=True):
                await memory.set(turns(1, 2))
                await memory.add(turns(3, 3))
            await memory.compact(Model(), keep=LAST_TURN)

        async for _ in every_cancellation(scenario, how):
            view = await memories[-1].messages()
            if not view:
                continue  # cancelled before there was anything
            assert spoken(view) in ("u1 a1 u2 a2", "u1 a1 u2 a2 u3 a3", "S1 u3 a3")
            if spoken(view).endswith("u3 a3") and "S1" not in spoken(view):
                assert await memories[-1].compact(Model(), keep=LAST_TURN) is not None
                assert await line(memories[-1]) == "S1 u3 a3"
        assert len(memories) > 2


async def test_a_caller_that_leaves_while_the_summariser_works_has_changed_nothing(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    before = await memory.messages()
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:

            async def leave_once_it_works() -> None:
                await gate.arrival()
                scope.cancel()

            tasks.start_soon(leave_once_it_works)
            with anyio.CancelScope() as scope:
                await memory.compact(Model(gate=gate), keep=LAST_TURN)
            assert scope.cancelled_caught
    await check_untouched(memory, before)


async def test_a_thread_that_is_left_behind_changes_nothing(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    before = await memory.messages()
    with Gate() as gate:

        def slow(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            gate.stop_thread()
            return "too late"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancelled_at, gate, memory, slow)
        await check_untouched(memory, before)
        gate.open()
    assert await line(memory) == "S1 u3 a3"


async def _cancelled_at(gate: Gate, memory: ChatMemory, slow: Any) -> None:
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await memory.compact(slow, keep=LAST_TURN)

        tasks.start_soon(run)
        await gate.arrival()
        tasks.cancel_scope.cancel()


async def test_a_summariser_that_is_cancelled_inside_loses_nothing(memory: ChatMemory) -> None:
    """Its model's client may be cancelled natively, and raise that: its caller is not."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("trio has no native cancellation")
    await say(memory, *turns(1, 3))
    before = await memory.messages()
    with pytest.raises(CompactionError, match="cancelled"):
        await memory.compact(Model(asyncio.CancelledError()), keep=LAST_TURN)
    await check_untouched(memory, before)


STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> FaultStore:
    """Return a store that does as it is told."""
    return FaultStore(InMemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "chats.db"))


async def test_a_store_that_fails_before_the_commit_loses_nothing(faulty: FaultStore) -> None:
    async with turnkeeper.open_runtime(faulty) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        before = await memory.messages()
        faulty.fail_before(1)
        with pytest.raises(StoreUnavailableError):
            await memory.compact(Model(), keep=LAST_TURN)
        await check_untouched(memory, before)
        assert runtime.stats().compactions == 1


async def test_a_store_whose_answer_is_lost_is_asked(faulty: FaultStore) -> None:
    async with turnkeeper.open_runtime(faulty) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        faulty.fail_after(1)
        receipt = await memory.compact(Model(), keep=LAST_TURN)
        assert receipt is not None
        assert (await memory.messages()).version == receipt.version
        assert await line(memory) == "S1 u3 a3"


async def test_an_outcome_that_nobody_knows_is_whole_or_nothing(faulty: FaultStore) -> None:
    async with turnkeeper.open_runtime(faulty) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        faulty.fail_after(1)
        faulty.fail_before(None, on="settle")
        with pytest.raises(OutcomeUnknownError):
            await memory.compact(Model(), keep=LAST_TURN)
        faulty.heal()
        assert await line(memory) == "S1 u3 a3"
        await memory.add(turns(4, 4))
        assert await memory.compact(Model("again"), keep=LAST_TURN) is not None


async def test_a_store_that_can_not_be_read_costs_no_summary(faulty: FaultStore) -> None:
    async with turnkeeper.open_runtime(faulty) as runtime:
        memory, model = runtime.memory("m"), Model()
        await say(memory, *turns(1, 3))
        before = await memory.messages()
        assert unload(runtime, "m")
        faulty.fail_before(1, on="load")
        with pytest.raises(StoreUnavailableError):
            await memory.compact(model, keep=LAST_TURN)
        assert model.calls == []
        await check_untouched(memory, before)


async def test_closing_the_runtime_does_not_wait_for_a_summariser(faulty: FaultStore) -> None:
    ended: list[Exception] = []
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:
            async with turnkeeper.open_runtime(faulty) as runtime:
                memory = runtime.memory("m")
                await say(memory, *turns(1, 3))

                async def run() -> None:
                    try:
                        await memory.compact(Model(gate=gate), keep=LAST_TURN)
                    except RuntimeClosedError as error:
                        ended.append(error)

                tasks.start_soon(run)
                await gate.arrival()
            gate.open()
    assert len(ended) == 1


async def test_who_waits_in_line_is_told_that_the_runtime_closes(faulty: FaultStore) -> None:
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:
            async with turnkeeper.open_runtime(faulty, max_compactions=1) as runtime:
                first, second = runtime.memory("first"), runtime.memory("second")
                for memory in (first, second):
                    await say(memory, *turns(1, 3))
                Call(tasks, partial(first.compact, keep=LAST_TURN), Model(gate=gate))
                await gate.arrival()
                in_line = Call(tasks, partial(second.compact, keep=LAST_TURN), Model())
                await until(lambda: runtime._core.compactor._places.statistics().tasks_waiting == 1)
            assert isinstance(await in_line.result(), RuntimeClosedError)
            gate.open()


async def test_a_summary_that_the_actor_has_taken_is_committed_while_the_runtime_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
    gate = Gate()
    policy = CompactionPolicy(Model(gate=gate), when=MessageWindow(4), keep=LAST_TURN)
    async with anyio.create_task_group() as tasks:

        async def release_while_closing() -> None:
            await until(lambda: runtime._core._state == "closing")
            await passes()
            stall.release()

        async with turnkeeper.open_runtime(store, compaction=policy) as runtime:
            await say(runtime.memory("m"), *turns(1, 2), user("u3"))
            await gate.arrival()
            stall = store.stall()
            gate.open()
            await entered(stall)
            tasks.start_soon(release_while_closing)
    assert runtime.stats().failed_at_close == 0
    async with turnkeeper.open_runtime(url) as again:
        assert await line(again.memory("m")) == "S1 u3"


async def test_errors_and_log_hold_nothing_that_was_said(memory: ChatMemory, caplog: pytest.LogCaptureFixture) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory, "secret") as running:
        await memory.set(turns(7, 7))
        with pytest.raises(CompactionError) as under_way:
            await memory.compact(Model("secret"), keep=LAST_TURN)
    await memory.set(turns(8, 8))
    await memory.add(turns(9, 9))
    with pytest.raises(CompactionError) as empty:
        await memory.compact(Model([]), keep=LAST_TURN)
    for error in (running.error, under_way.value, empty.value):
        assert error is not None
        assert "'m'" in str(error)
        assert not any(text in str(error) + caplog.text for text in ("secret", "u1", "u7", "u9"))

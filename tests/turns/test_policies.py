"""What becomes of a turn that is opened while another is open: it waits, is refused, or takes the other's place."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import (
    ChatMemory,
    MessageWindow,
    Receipt,
    Runtime,
    Turn,
    TurnBusyError,
    TurnInterruptedError,
    TurnWindow,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, check_prompt
from turns.tools import BOUND, Call, assistant, call, entered, passes, pending, result, texts, unloaded, until, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


class Holder:
    """Holds a turn open in a task of its own, and notes how it was told of its end."""

    def __init__(self, memory: ChatMemory, *said: dict[str, Any], **options: Any) -> None:
        self.memory = memory
        self.said = said
        self.options = options
        self.ready = anyio.Event()
        self.told = anyio.Event()
        self.turn: Turn

    async def __call__(self) -> None:
        async with self.memory.turn(**self.options) as self.turn:
            for message in self.said:
                await self.turn.add(message)
            self.ready.set()
            await self.turn.interrupted()
            self.told.set()

    async def start(self, group: Any) -> Call:
        started = Call(group, self)
        with anyio.fail_after(BOUND):
            await self.ready.wait()
        return started


async def opened(memory: ChatMemory, on_busy: Any, text: str = "new") -> list[Any]:
    """Say something in a turn, and return what it saw before."""
    async with memory.turn(on_busy=on_busy) as turn:
        seen = await texts(turn)
        await turn.add(user(text))
    return seen


class TestReject:
    async def test_it_is_refused_at_once_and_changes_nothing(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            async with memory.turn() as turn:
                refused = Call(group, opened, memory, "reject")
                assert type(await refused.result()) is TurnBusyError
                assert runtime.stats().pending == 0
                await turn.add(user("own"))
            assert await texts(memory) == ["own"]
            await Call(group, opened, memory, "reject").result()
        assert await texts(memory) == ["own", "new"]


class TestInterrupt:
    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_what_was_committed_stays_and_the_holder_is_told(
        self, runtime: Runtime, memory: ChatMemory, commit: Any
    ) -> None:
        await memory.add(user("before"))
        async with anyio.create_task_group() as group:
            holder = Holder(memory, user("holder"), commit=commit)
            held = await holder.start(group)
            stays = ["before", "holder"] if commit == "each" else ["before"]
            assert await Call(group, opened, memory, "interrupt").result() == stays
            outcome = await held.result()
            assert isinstance(outcome, TurnInterruptedError)
            assert outcome.reason == "interrupt"
            assert holder.told.is_set()
            for use in (holder.turn.add(user("late")), holder.turn.messages()):
                with pytest.raises(TurnInterruptedError):
                    await use
        await unloaded(runtime)
        assert await texts(memory) == [*stays, "new"]

    async def test_an_exchange_that_was_cut_off_is_closed_by_the_view(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        async with anyio.create_task_group() as group:
            held = await Holder(memory, user("q"), call("c1"), commit="each").start(group)
            prompts: list[list[dict[str, Any]]] = []

            async def go_on() -> None:
                async with memory.turn(on_busy="interrupt") as turn:
                    await turn.add(user("another question"))
                    prompts.append((await turn.messages()).to_dicts())

            await Call(group, go_on).result()
            await held.result()
        await unloaded(runtime)
        prompts.append((await memory.messages()).to_dicts())
        for prompt in prompts:
            check_prompt(prompt)
            assert prompt[0] == user("q")
            assert prompt[-1] == user("another question")

    async def test_it_passes_those_who_wait(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            held = await Holder(memory, user("holder")).start(group)
            waiting = Call(group, memory.add, user("waited"))
            await pending(runtime, 1)
            await Call(group, opened, memory, "interrupt").result()
            assert isinstance(await waiting.result(), Receipt)
            await held.result()
        assert await texts(memory) == ["new", "waited"]

    async def test_nobody_inside_it_waits_for_nobody(self, memory: ChatMemory) -> None:
        for on_busy in ("interrupt", "rollback"):
            assert await opened(memory, on_busy, on_busy) == (["interrupt"] if on_busy == "rollback" else [])
        assert await texts(memory) == ["interrupt", "rollback"]

    @pytest.mark.parametrize("policies", [["interrupt"] * 4, ["rollback"] * 4, ["interrupt", "rollback"] * 2])
    async def test_a_chain_leaves_the_last_one(self, runtime: Runtime, memory: ChatMemory, policies: Any) -> None:
        async with anyio.create_task_group() as group:
            holders: list[Call] = []
            for number, on_busy in enumerate(policies):
                holder = Holder(memory, user(f"{on_busy} {number}"), on_busy=on_busy, commit="each")
                holders.append(await holder.start(group))
            assert not holders[-1].done
            await Call(group, opened, memory, "interrupt").result()
            for held, next_one in zip(holders, [*policies[1:], "interrupt"], strict=True):
                outcome = await held.result()
                assert isinstance(outcome, TurnInterruptedError)
                assert outcome.reason == next_one
        kept = [
            f"{on_busy} {number}"
            for number, (on_busy, then) in enumerate(zip(policies, [*policies[1:], "interrupt"], strict=True))
            if then == "interrupt"
        ]
        await unloaded(runtime)
        assert await texts(memory) == [*kept, "new"]

    async def test_many_at_once_leave_one_turn_at_a_time(self, runtime: Runtime, memory: ChatMemory) -> None:
        inside = 0

        async def run(number: int, on_busy: Any) -> None:
            nonlocal inside
            async with memory.turn(on_busy=on_busy) as turn:
                await turn.add(user(f"{number} a"))
                await passes(3)
                await turn.add(user(f"{number} b"))
            inside += 1

        async with anyio.create_task_group() as group:
            calls = [Call(group, run, n, ("interrupt", "rollback", "enqueue")[n % 3]) for n in range(30)]
            for each in calls:
                assert await each.result() is None or isinstance(each.outcome, TurnInterruptedError)
        stored = await texts(memory)
        assert len(stored) == 2 * inside > 0
        assert [text[:-2] for text in stored[::2]] == [text[:-2] for text in stored[1::2]]


class TestRollback:
    @pytest.mark.parametrize("exists", [False, True])
    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_nothing_is_left_of_it(self, runtime: Runtime, memory: ChatMemory, commit: Any, exists: bool) -> None:
        before = ["system", "before"] if exists else []
        if exists:
            await memory.add({"role": "system", "content": "system"}, user("before"))
        async with anyio.create_task_group() as group:
            said = ({"role": "system", "content": "of the holder"}, user("holder"), call("c"))
            held = await Holder(memory, *said, commit=commit).start(group)
            assert await Call(group, opened, memory, "rollback").result() == before
            outcome = await held.result()
            assert isinstance(outcome, TurnInterruptedError)
            assert outcome.reason == "rollback"
        for _ in range(2):
            assert await texts(memory) == [*before, "new"]
            assert (await memory.stats()).message_count == len(before) + 1
            await unloaded(runtime)

    async def test_also_after_reopening_and_what_came_later_stays(self, durable_url: str) -> None:
        async with open_runtime(durable_url) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            for number in range(3):
                held = await Holder(memory, user(f"lost {number}"), assistant("lost"), commit="each").start(group)
                await Call(group, opened, memory, "rollback", f"kept {number}").result()
                await held.result()
                await memory.add(assistant(f"answer {number}"))
            expected = await texts(memory)
            assert expected == ["before", *(f"{what} {n}" for n in range(3) for what in ("kept", "answer"))]
        async with open_runtime(durable_url) as runtime:
            memory = runtime.memory("m")
            assert await texts(memory) == expected
            small = [message.text for message in await memory.messages(window=MessageWindow(3))]
            assert small == expected[-3:]
            await memory.add(user("on"))
        for size in (1, 2, 3, 5, 8):
            async with open_runtime(durable_url, window=MessageWindow(size)) as runtime:
                assert await texts(runtime.memory("m")) == [*expected, "on"][-size:]
                await runtime.memory("m").stats()
                assert len(await runtime.memory("m").messages(window=MessageWindow(100))) == 8

    async def test_the_log_says_that_it_was_undone(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("before"))
        async with anyio.create_task_group() as group:
            held = await Holder(memory, user("lost"), commit="each").start(group)
            await Call(group, opened, memory, "rollback").result()
            await held.result()
        assert (await memory.messages()).version.n == 4, "before, lost, undo, new"

    @pytest.mark.parametrize("size", [1, 2, 10])
    async def test_through_a_small_window_that_holds_little(self, runtime: Runtime, size: int) -> None:
        memory = runtime.memory("m", window=MessageWindow(size))
        await memory.add(*[user(str(number)) for number in range(300)])
        for number in range(200):
            await memory.add(assistant(f"more {number}"))
        await unloaded(runtime)
        await memory.messages()  # so little is in RAM
        async with anyio.create_task_group() as group:
            held = await Holder(memory, *map(user, "abc"), commit="each").start(group)
            await Call(group, opened, memory, "rollback").result()
            await held.result()
        expected = [*(f"more {number}" for number in range(200)), "new"][-size:]
        for _ in range(2):
            assert await texts(memory) == expected
            assert len(await runtime.memory("m").messages(window=MessageWindow(1000))) == 501
            await unloaded(runtime)

    async def test_what_a_pruning_window_let_go_does_not_take_the_rest_with_it(self, runtime: Runtime) -> None:
        """The holder's own messages pushed older ones out of the store for good; a view may be shorter, never wrong."""
        memory = runtime.memory("m", window=MessageWindow(3), history="window")
        await memory.add(*map(user, "abc"))
        async with anyio.create_task_group() as group:
            held = await Holder(memory, user("lost 1"), user("lost 2"), commit="each").start(group)
            await Call(group, opened, memory, "rollback").result()
            await held.result()
        for _ in range(2):
            stored = await texts(memory)
            assert stored[-1] == "new"
            assert "lost 1" not in stored
            assert "lost 2" not in stored
            await unloaded(runtime)
        await memory.add(user("on"))
        assert (await texts(memory))[-2:] == ["new", "on"]

    async def test_of_a_turn_that_committed_normally_nothing_is_taken_back(self, memory: ChatMemory) -> None:
        async with memory.turn(commit="each") as turn:
            await turn.add(user("kept"))
        await opened(memory, "rollback")
        assert await texts(memory) == ["kept", "new"]

    async def test_of_a_turn_that_failed_nothing_is_taken_back(self, memory: ChatMemory) -> None:
        with pytest.raises(ZeroDivisionError):
            async with memory.turn(commit="each") as turn:
                await turn.add(user("kept"))
                raise ZeroDivisionError
        await opened(memory, "rollback")
        assert await texts(memory) == ["kept", "new"]


class TestWhileACommitIsInFlight:
    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_the_commit_of_the_whole_turn_comes_first(self, on_busy: Any) -> None:
        """It was past the point of no return: the turn ended normally, and is nobody's to take back."""
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with store.stall() as stall:
                holder = Call(group, opened, memory, "enqueue", "holder")
                await entered(stall)
                other = Call(group, opened, memory, on_busy)
                await pending(runtime, 2)
                await passes()
                assert not other.done
            assert await holder.result() == []
            assert await other.result() == ["holder"]
            assert await texts(memory) == ["holder", "new"]

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_an_add_with_commit_each_is_committed_and_then_stays_or_goes(self, on_busy: Any) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))

            async def hold() -> None:
                async with memory.turn(commit="each") as turn:
                    await turn.add(user("holder"))
                    await turn.interrupted()

            with store.stall() as stall:
                holder = Call(group, hold)
                await entered(stall)
                other = Call(group, opened, memory, on_busy)
                await pending(runtime, 2)
            before = ["before", "holder"] if on_busy == "interrupt" else ["before"]
            assert await other.result() == before
            assert isinstance(await holder.result(), TurnInterruptedError)
            assert await texts(memory) == [*before, "new"]


class TestRunTurn:
    async def test_it_returns_the_value_and_commits(self, memory: ChatMemory) -> None:
        async def answer(turn: Turn) -> int:
            await turn.add(user("q"))
            return 42

        assert await memory.run_turn(answer, timeout=5) == 42
        assert await texts(memory) == ["q"]

    async def test_its_exceptions_pass_unwrapped_and_leave_no_trace(self, memory: ChatMemory) -> None:
        raised = ZeroDivisionError()

        async def fail(turn: Turn) -> None:
            await turn.add(user("lost"))
            raise raised

        with pytest.raises(ZeroDivisionError) as caught:
            await memory.run_turn(fail)
        assert caught.value is raised
        assert await texts(memory) == []
        await memory.add(user("after"))

    async def test_a_group_of_exceptions_stays_the_group_it_was(self, memory: ChatMemory) -> None:
        raised = ExceptionGroup("own", [ValueError()])

        async def fail(_: Turn) -> None:
            raise raised

        with pytest.raises(ExceptionGroup) as caught:
            await memory.run_turn(fail)
        assert caught.value is raised

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_an_interruption_cancels_the_function(
        self, runtime: Runtime, memory: ChatMemory, on_busy: Any
    ) -> None:
        async with anyio.create_task_group() as group:
            started, cancelled = anyio.Event(), []

            async def think(turn: Turn) -> None:
                await turn.add(user("lost"))
                started.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    cancelled.append(True)

            running = Call(group, memory.run_turn, think)
            await started.wait()
            await Call(group, opened, memory, on_busy).result()
            outcome = await running.result()
            assert isinstance(outcome, TurnInterruptedError)
            assert outcome.reason == on_busy
            assert cancelled == [True]
        assert await texts(memory) == ["new"]

    async def test_its_caller_may_be_cancelled(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            started = anyio.Event()

            async def think(turn: Turn) -> None:
                await turn.add(user("lost"))
                started.set()
                await anyio.sleep_forever()

            running = Call(group, memory.run_turn, think)
            await started.wait()
            running.scope.cancel()
            await running.result()
            assert running.scope.cancelled_caught
        await opened(memory, "reject")
        assert await texts(memory) == ["new"]

    async def test_nested_it_is_refused_before_the_function_runs(self, memory: ChatMemory) -> None:
        ran = []

        async def inner(_: Turn) -> None:
            ran.append(1)

        async def outer(_: Turn) -> None:
            with pytest.raises(TurnBusyError):
                await memory.run_turn(inner)

        await memory.run_turn(outer)
        assert ran == []


async def test_reads_during_a_turn_that_is_taken_over_see_committed_states_only(
    runtime: Runtime, memory: ChatMemory
) -> None:
    seen = []

    async def read() -> None:
        for _ in range(50):
            seen.append(tuple(await texts(memory)))
            await passes(1)

    async with anyio.create_task_group() as group:
        reading = Call(group, read)
        for number in range(5):
            held = await Holder(memory, user(f"lost {number}")).start(group)
            await Call(group, opened, memory, "interrupt", f"{number}").result()
            await held.result()
        await reading.result()
    states = [tuple(str(number) for number in range(count)) for count in range(6)]
    assert [states.index(state) for state in seen] == sorted(states.index(state) for state in seen)


async def test_the_store_is_on_record_as_what_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rollback is no error: nothing is logged."""
    store = SQLiteStore(tmp_path / "chats.db")
    with caplog.at_level(logging.WARNING, "turnkeeper"):
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m", window=TurnWindow(max_turns=3))
            held = await Holder(memory, user("q"), call("c"), result("c"), commit="each").start(group)
            await Call(group, opened, memory, "rollback").result()
            await held.result()
            await until(lambda: runtime.stats().pending == 0)
    assert not caplog.records


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_ends_the_process_passes_unwrapped_out_of_run_turn(memory: ChatMemory, cancelled: bool) -> None:
    class ExitError(BaseException):
        """As SystemExit and KeyboardInterrupt are, which would end the test run."""

    async def leave(turn: Turn) -> None:
        await turn.add(user("lost"))
        scope.cancel() if cancelled else None
        raise ExitError

    with anyio.CancelScope() as scope, pytest.raises(ExitError):
        await memory.run_turn(leave)
    assert await texts(memory) == []

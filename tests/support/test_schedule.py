"""Promises of the schedule tools, on every loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest
import trio
from anyio import to_thread

from support import schedule
from support.loops import RunningLoop
from support.schedule import CANCELLATIONS, Gate, How, cancel_at, count_points, every_cancellation

pytestmark = pytest.mark.anyio


async def one_step() -> None:
    """Suspend exactly once, for two passes of the loop."""
    loop, event = RunningLoop.current(), anyio.Event()
    loop.post(lambda: loop.post(event.set))
    await event.wait()


async def three_steps() -> list[int]:
    done = []
    for step in range(3):
        await one_step()
        done.append(step)
    return done


class TestCountingPoints:
    async def test_each_suspension_is_a_point(self) -> None:
        assert await count_points(three_steps) == 3

    async def test_without_one_there_is_none(self) -> None:
        async def runs_through() -> None: ...

        assert await count_points(runs_through) == 0

    async def test_errors_are_passed_on(self) -> None:
        async def fails() -> None:
            await anyio.lowlevel.checkpoint()
            raise LookupError

        with pytest.raises(LookupError):
            await count_points(fails)

    async def test_counting_changes_nothing_for_what_is_counted(self) -> None:
        async def waits_in_every_way() -> tuple[object, ...]:
            event = anyio.Event()
            with anyio.move_on_after(0.01) as scope:
                await anyio.sleep_forever()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.lowlevel.checkpoint)
                event.set()
                await event.wait()
            return scope.cancelled_caught, await to_thread.run_sync(lambda: "from a thread")

        async def run() -> None:
            assert await waits_in_every_way() == (True, "from a thread")

        assert await count_points(run) > 0


@pytest.mark.parametrize("how", CANCELLATIONS)
class TestCancelling:
    async def test_every_point_is_met_once(self, how: How) -> None:
        points = [outcome.point async for outcome in every_cancellation(three_steps, how)]
        assert points == list(range(1, await count_points(three_steps) + 1))

    async def test_past_the_last_point_nothing_is_cancelled(self, how: How) -> None:
        outcome = await cancel_at(three_steps, 4, how)
        assert (outcome.reached, outcome.cancelled, outcome.value) == (False, False, [0, 1, 2])

    async def test_what_was_done_before_the_point_stays_and_nothing_after_it_happens(self, how: How) -> None:
        done: list[int] = []

        async def scenario() -> None:
            done.clear()
            for step in range(1, 4):
                await one_step()
                done.append(step)

        steps_won = 1 if how == "scope-late" else 0
        async for outcome in every_cancellation(scenario, how):
            assert done == list(range(1, outcome.point + steps_won))
            assert outcome.cancelled is (outcome.point + steps_won <= 3)

    async def test_clean_up_is_run(self, how: How) -> None:
        entered, left = 0, 0

        async def scenario() -> None:
            nonlocal entered, left
            entered += 1
            try:
                await three_steps()
            finally:
                left += 1

        async for _ in every_cancellation(scenario, how):
            assert entered == left

    async def test_a_shield_holds_off_scopes_but_not_native_cancellation(self, how: How) -> None:
        async def scenario() -> list[int]:
            done: list[int] = []
            with anyio.CancelScope(shield=True):
                done += await three_steps()
            return done

        async for outcome in every_cancellation(scenario, how):
            assert outcome.cancelled is how.startswith("native")
            assert outcome.value == (None if outcome.cancelled else [0, 1, 2])

    async def test_errors_on_the_way_out_are_passed_on(self, how: How) -> None:
        async def scenario() -> None:
            try:
                await three_steps()
            finally:
                clean_up()

        def clean_up() -> None:
            raise LookupError

        with pytest.raises(LookupError):
            await cancel_at(scenario, 1, how)

    async def test_the_test_itself_goes_on_undisturbed(self, how: How) -> None:
        await cancel_at(three_steps, 2, how)
        assert await three_steps() == [0, 1, 2]
        if not trio.lowlevel.in_trio_task():
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0


@pytest.mark.parametrize(
    ("how", "sees_the_result"), [("scope", False), ("scope-late", True), ("native", False), ("native-late", False)]
)
async def test_a_late_cancellation_comes_after_what_was_waited_for(how: How, *, sees_the_result: bool) -> None:
    """The fact that decides how a mailbox must be built: a result already there is lost natively, not by scope."""
    set_at_the_time: list[bool] = []
    results: list[str] = []

    async def scenario() -> None:
        event = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replier, event)
            try:
                await event.wait()
                results.append("seen")
            finally:
                set_at_the_time.append(event.is_set())

    async def replier(event: anyio.Event) -> None:
        await three_steps()  # time enough for an early cancellation to arrive first
        event.set()

    await cancel_at(scenario, 1, how)
    assert set_at_the_time == [how.endswith("late")]
    assert bool(results) is sees_the_result


class TestGate:
    async def test_a_task_stops_until_the_test_opens(self) -> None:
        passed: list[str] = []

        async def visitor() -> None:
            await gate.stop()
            passed.append("task")

        async with anyio.create_task_group() as tasks:
            with Gate() as gate:
                tasks.start_soon(visitor)
                await gate.arrival()
                await anyio.wait_all_tasks_blocked()
                assert passed == []
        assert passed == ["task"]

    async def test_a_thread_stops_until_the_test_opens(self) -> None:
        passed: list[str] = []

        def visitor() -> None:
            gate.stop_thread()
            passed.append("thread")

        async with anyio.create_task_group() as tasks:
            with Gate() as gate:
                tasks.start_soon(to_thread.run_sync, visitor)
                await gate.arrival()
                assert passed == []
        assert passed == ["thread"]

    async def test_those_who_came_first_are_let_through_first(self) -> None:
        passed: list[int] = []

        async def visitor(number: int) -> None:
            await gate.stop()
            passed.append(number)
            await done.stop()

        async with anyio.create_task_group() as tasks:
            with Gate() as gate, Gate() as done:
                for number in range(3):
                    tasks.start_soon(visitor, number)
                    await gate.arrival(number + 1)
                gate.let_through()
                await done.arrival(1)
                assert passed == [0]
                gate.let_through()
                await done.arrival(2)
        assert passed == [0, 1, 2]

    async def test_an_open_gate_stops_nobody(self) -> None:
        gate = Gate()
        gate.open()
        await gate.stop()
        await to_thread.run_sync(gate.stop_thread)
        await gate.arrival(2)
        assert gate.arrived == 2

    async def test_a_thread_can_conduct_a_task(self) -> None:
        def conduct() -> None:
            gate.arrival_in_thread()
            gate.open()

        async with anyio.create_task_group() as tasks:
            gate = Gate()
            tasks.start_soon(to_thread.run_sync, conduct)
            await gate.stop()

    async def test_a_visitor_can_be_cancelled(self) -> None:
        with Gate() as gate:
            outcome = await cancel_at(gate.stop, 1)
        assert outcome.cancelled
        assert gate.arrived == 1

    async def test_a_thread_does_not_wait_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedule, "GATE_SECONDS", 0.01)
        gate = Gate()
        waits: list[Callable[[], None]] = [gate.stop_thread, lambda: gate.arrival_in_thread(2)]
        for wait in waits:
            with pytest.raises(TimeoutError, match="at a gate"):
                await to_thread.run_sync(wait)


def test_threads_alone_can_use_a_gate() -> None:
    with Gate() as gate:
        thread = threading.Thread(target=gate.stop_thread)
        thread.start()
        gate.arrival_in_thread()
        assert thread.is_alive()
    thread.join()


async def test_a_gate_left_by_a_loop_that_ended_is_harmless() -> None:
    gate = Gate()

    async def leave_somebody_there() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await gate.stop()

    def other_loop() -> None:
        anyio.run(leave_somebody_there)

    await to_thread.run_sync(other_loop)
    gate.open()

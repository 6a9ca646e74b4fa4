"""Blocking summarisers: a bounded number of threads, whatever hangs, and none that anybody has to wait for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

import turnkeeper
from compaction import remote_hanging
from compaction.summing import LAST_TURN, Model, line, say, turns
from support.schedule import CANCELLATIONS, Gate, How, every_cancellation
from turnkeeper import ChatMemory, CompactionError, CompactionPolicy, Message, MessageWindow
from turnkeeper.lane import Job, Lane
from turns.tools import BOUND, Call, until

pytestmark = pytest.mark.anyio

Messages = tuple[Message, ...]


def hanging_at(gate: Gate) -> Callable[[Messages, Messages], str]:
    """Return a blocking summariser that comes back when the gate is opened."""

    def hang(messages: Messages, summary: Messages) -> str:
        gate.stop_thread()
        return "too late"

    return hang


async def leave_behind(memory: ChatMemory, gate: Gate) -> None:
    """Give up a compaction while its summariser is in its thread."""
    arrived = gate.arrived
    async with anyio.create_task_group() as tasks:

        async def leave_once_it_works() -> None:
            await gate.arrival(arrived + 1)
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave_once_it_works)
        await memory.compact(hanging_at(gate), keep=LAST_TURN)


async def test_summarisers_that_hang_leave_a_bounded_number_of_threads() -> None:
    before = threading.active_count()
    with Gate() as gate:
        policy = CompactionPolicy(hanging_at(gate), when=MessageWindow(2), keep=1, timeout=0.001)
        async with turnkeeper.open_runtime("memory:", compaction=policy, max_compactions=2) as runtime:
            for number in range(20):
                await say(runtime.memory(str(number)), *turns(1, 2))
            await until(lambda: runtime.stats().compaction_failures == 20)
            # Other tests' threads may end meanwhile; the loop guard's and those of our own make it no more than this.
            assert threading.active_count() - before <= 4
            assert to_thread.current_default_thread_limiter().borrowed_tokens == 0


async def test_a_thread_left_behind_counts_until_it_comes_back() -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=2) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        with Gate() as gate:
            for _ in range(2):
                await leave_behind(memory, gate)
            with pytest.raises(CompactionError, match="max_compactions=2"):
                await memory.compact(hanging_at(gate), keep=LAST_TURN)
            assert gate.arrived == 2
            gate.let_through()
            await until(lambda: sum(not job.done.is_set() for job in runtime._core.compactor._threads) == 1)
            assert await memory.compact(lambda messages, summary: "S", keep=LAST_TURN) is not None
        assert await line(memory) == "S u3 a3"


async def test_threads_left_behind_hold_up_no_async_summariser() -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=1) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        with Gate() as gate:
            await leave_behind(memory, gate)
            assert await memory.compact(Model(), keep=LAST_TURN) is not None
        assert await line(memory) == "S1 u3 a3"


@pytest.mark.parametrize("how", CANCELLATIONS)
async def test_whoever_leaves_at_any_point_takes_no_thread_along(how: How) -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=1) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))

        async def scenario() -> None:
            await memory.compact(lambda messages, summary: "S", keep=LAST_TURN)

        async for _ in every_cancellation(scenario, how):
            await until(lambda: all(job.done.is_set() for job in runtime._core.compactor._threads))
            await memory.set(turns(1, 2))
            await memory.add(turns(3, 3))
            assert await memory.compact(lambda messages, summary: "S", keep=LAST_TURN) is not None
            await memory.set(turns(1, 2))
            await memory.add(turns(3, 3))


async def test_a_thread_that_starts_after_its_caller_has_left_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Callable[[], None]] = []
    asked = False

    class LateLane(Lane):
        def put(self, job: Job[Any]) -> None:
            held.append(lambda: Lane.put(self, job))

        def stop(self) -> None:
            held.append(lambda: Lane.stop(self))

    def summarise(messages: Messages, summary: Messages) -> str:
        nonlocal asked
        asked = True
        return "S"

    async with turnkeeper.open_runtime("memory:", max_compactions=1) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        with monkeypatch.context() as patched:
            patched.setattr(turnkeeper.compaction, "Lane", LateLane)
            leaving = Call(tasks, partial(memory.compact, keep=LAST_TURN), summarise)
            await until(lambda: len(held) == 2)
            leaving.scope.cancel()
            await leaving.result()
        for start in held:
            start()
        assert await memory.compact(lambda messages, summary: "other", keep=LAST_TURN) is not None
        assert not asked


async def test_closing_does_not_wait_for_a_thread() -> None:
    with Gate() as gate:
        policy = CompactionPolicy(hanging_at(gate), when=MessageWindow(2), keep=LAST_TURN)
        async with turnkeeper.open_runtime("memory:", compaction=policy) as runtime:
            await say(runtime.memory("m"), *turns(1, 3))
            await gate.arrival()
            closing = anyio.current_time()
        assert anyio.current_time() - closing < BOUND
        assert runtime.stats().failed_at_close == 0


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_what_ends_a_thread_ends_nothing_else(error: BaseException) -> None:
    """A model's client may run a loop of its own in there, and be cancelled in it."""

    def ends(messages: Messages, summary: Messages) -> str:
        raise error

    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        with pytest.raises(CompactionError, match=type(error).__name__):
            await memory.compact(ends, keep=LAST_TURN)
        assert await line(memory) == "u1 a1 u2 a2 u3 a3"
        assert await memory.compact(Model(), keep=LAST_TURN) is not None


async def test_a_thread_has_its_caller_s_context_and_may_run_a_loop() -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    async def ask() -> str:
        return tenant.get()

    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        tenant.set("tenant")
        await memory.compact(lambda messages, summary: anyio.run(ask), keep=LAST_TURN)
        assert await line(memory) == "tenant u3 a3"


async def test_a_plain_function_may_return_an_awaitable() -> None:
    model: Any = Model()
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        await memory.compact(lambda messages, summary: model(messages, summary), keep=LAST_TURN)
        assert await line(memory) == "S1 u3 a3"


async def test_a_process_ends_while_a_summariser_hangs(anyio_backend: Any) -> None:
    name, options = anyio_backend
    script = [sys.executable, remote_hanging.__file__, "uvloop" if "use_uvloop" in options else name]
    done = await to_thread.run_sync(lambda: subprocess.run(script, capture_output=True, text=True, timeout=30))
    assert (done.stdout, done.stderr, done.returncode) == ("closed\n", "", 0)

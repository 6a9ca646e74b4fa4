"""Deterministic concurrency tests: cancel at every point of a coroutine, stop tasks and threads where told.

A *point* is a suspension of the coroutine's own task, counted from 1. A test cancels at each of them in turn:

    async for outcome in every_cancellation(scenario, "native-late"):
        assert ...  # holds wherever the caller was cancelled

`scenario` takes no arguments and builds all it needs, so that each run starts afresh.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar

import anyio
import pytest
import trio

from support.loops import RunningLoop

T = TypeVar("T")

How = Literal["scope", "scope-late", "native", "native-late"]

CANCELLATIONS: tuple[How, ...] = ("scope", "scope-late", "native", "native-late")
"""How a caller can be cancelled at a point.

- scope: its cancel scope is cancelled as it suspends; what it waits for has not happened. On asyncio the cancellation
  arrives one pass of the loop later: if what it waits for happens within that pass, it comes first.
- scope-late: the scope is cancelled after what it waited for has happened, before it resumes. The wait itself succeeds;
  the cancellation is delivered at the next chance.
- native: `asyncio.Task.cancel()` as it suspends.
- native-late: `asyncio.Task.cancel()` after what it waited for has happened, before it resumes. asyncio raises
  CancelledError all the same, and a result that was already there is lost.

The native ones skip the test on trio, which has no such thing.
"""

GATE_SECONDS = 30.0  # a thread never waits longer for a test that has failed


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of one run.

    Attributes:
        point: the point at which the run was to be cancelled.
        reached: the run got there; if not, it returned before.
        cancelled: the caller saw a cancellation and no result.
        value: the result, if there is one.
    """

    point: int
    reached: bool
    cancelled: bool
    value: T | None


async def count_points(function: Callable[[], Coroutine[Any, Any, T]]) -> int:
    """Run `function` undisturbed and return how often it suspended. Its errors are passed on."""
    stepper = _Stepper(function())
    await stepper
    return stepper.points


async def cancel_at(function: Callable[[], Coroutine[Any, Any, T]], n: int, how: How = "scope") -> Outcome[T]:
    """Run `function` and cancel it at its `n`-th point. Its own errors are passed on."""
    if how in ("scope", "scope-late"):
        return await _cancel_scope_at(function, n, late=how == "scope-late")
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    return await _cancel_task_at(function, n, late=how == "native-late")


def every_cancellation(function: Callable[[], Coroutine[Any, Any, T]], how: How = "scope") -> AsyncIterator[Outcome[T]]:
    """Run `function` again and again, cancelled at its first point, its second and so on, until a run gets by."""
    return _EveryCancellation(function, how)


class _EveryCancellation(AsyncIterator[Outcome[T]]):
    # Not an async generator: a failed assertion in the body of the loop would leave that one behind unfinished.

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]], how: How) -> None:
        self._function = function
        self._how = how
        self._next_point = 1

    async def __anext__(self) -> Outcome[T]:
        outcome = await cancel_at(self._function, self._next_point, self._how)
        if not outcome.reached:
            raise StopAsyncIteration
        self._next_point += 1
        return outcome


async def _cancel_scope_at(function: Callable[[], Coroutine[Any, Any, T]], n: int, *, late: bool) -> Outcome[T]:
    def cancel(point: int, _waited_for: object = None) -> None:
        if point == n:
            scope.cancel()

    stepper = _Stepper(function(), resumed=cancel) if late else _Stepper(function(), suspending=cancel)
    value: T | None = None
    with anyio.CancelScope() as scope:
        value = await stepper
    return Outcome(n, stepper.points >= n, scope.cancelled_caught, value)


async def _cancel_task_at(function: Callable[[], Coroutine[Any, Any, T]], n: int, *, late: bool) -> Outcome[T]:
    def cancel(point: int, waited_for: object) -> None:
        if point != n:
            return
        own_task = asyncio.current_task()
        assert own_task is not None
        if late and isinstance(waited_for, asyncio.Future):
            # Called in the pass that wakes the task, and before the task, which adds its own callback after this one.
            waited_for.add_done_callback(lambda _: own_task.cancel())
        else:
            own_task.cancel()

    stepper = _Stepper(function(), suspending=cancel)

    async def run() -> T:
        return await stepper

    task = asyncio.create_task(run(), name="cancelled natively")
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    value = None if task.cancelled() else task.result()
    return Outcome(n, stepper.points >= n, task.cancelled(), value)


class _Stepper(Awaitable[T]):
    """Awaits a coroutine step by step, as `await` does, and tells about each point.

    `suspending(point, waited_for)` is called before the task suspends, `resumed(point)` before the coroutine goes on.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        suspending: Callable[[int, object], None] = lambda _point, _waited_for: None,
        resumed: Callable[[int], None] = lambda _point: None,
    ) -> None:
        self.points = 0
        self._coroutine = coroutine
        self._suspending = suspending
        self._resumed = resumed

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        try:
            while True:
                try:
                    waited_for = step()
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                self.points += 1
                self._suspending(self.points, waited_for)
                try:
                    sent = yield waited_for
                except GeneratorExit:  # the task is thrown away: the coroutine is closed below
                    raise
                except BaseException as exc:
                    step = partial(self._coroutine.throw, exc)
                else:
                    step = partial(self._coroutine.send, sent)
                self._resumed(self.points)
        finally:
            self._coroutine.close()


class Gate:
    """A place where tasks and threads stop until the test lets them go on.

        with Gate() as gate:
            tasks.start_soon(writer, gate)      # calls `await gate.stop()`; a thread calls `gate.stop_thread()`
            await gate.arrival()                # somebody stands there
            ...
            gate.open()

    Leaving the block opens the gate, so a failed test leaves nobody behind. Every method may be called from any task of
    any loop and from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = 0
        self._admitted = 0
        self._is_open = False
        self._waiters: list[tuple[Callable[[], bool], Callable[[], object]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    @property
    def arrived(self) -> int:
        """How many have come so far, those included who went on."""
        return self._arrived

    async def stop(self) -> None:
        """Stop the calling task. When it is cancelled here, its place at the gate stays counted."""
        place = self._arrive()
        await self._wait(lambda: self._passes(place))

    def stop_thread(self) -> None:
        """Stop the calling thread. TimeoutError: nobody opened within `GATE_SECONDS`."""
        place = self._arrive()
        self._wait_in_thread(lambda: self._passes(place))

    async def arrival(self, count: int = 1) -> None:
        """Wait until `count` have come, those included who went on."""
        await self._wait(lambda: self._arrived >= count)

    def arrival_in_thread(self, count: int = 1) -> None:
        """Wait as `arrival` does, blocking. TimeoutError: they did not come within `GATE_SECONDS`."""
        self._wait_in_thread(lambda: self._arrived >= count)

    def let_through(self, count: int = 1) -> None:
        """Let the next `count` that came, or come, go on; the gate stays closed for the others.

        Those let through at once go on in any order: trio wakes tasks at random.
        """
        with self._lock:
            self._admitted += count
        self._wake()

    def open(self) -> None:
        """Let everybody go on, now and later."""
        with self._lock:
            self._is_open = True
        self._wake()

    def _arrive(self) -> int:
        with self._lock:
            self._arrived += 1
            place = self._arrived
        self._wake()
        return place

    def _passes(self, place: int) -> bool:
        return self._is_open or place <= self._admitted

    async def _wait(self, condition: Callable[[], bool]) -> None:
        event = anyio.Event()
        loop, thread = RunningLoop.current(), threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == thread:
                event.set()
            else:
                loop.post(event.set)

        self._enter_waiter(condition, wake)
        await event.wait()

    def _wait_in_thread(self, condition: Callable[[], bool]) -> None:
        event = threading.Event()
        self._enter_waiter(condition, event.set)
        if not event.wait(GATE_SECONDS):
            raise TimeoutError(f"waited {GATE_SECONDS:g} s at a gate")

    def _enter_waiter(self, condition: Callable[[], bool], wake: Callable[[], object]) -> None:
        with self._lock:
            self._waiters.append((condition, wake))
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            ready = [waiter for waiter in self._waiters if waiter[0]()]
            self._waiters = [waiter for waiter in self._waiters if waiter not in ready]
        for _, wake in ready:
            wake()

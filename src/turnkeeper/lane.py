"""A daemon thread that runs a store's blocking calls one after another, and hands results back to the loop.

anyio's own worker threads are no daemons: one that hangs in a stalled store would hold the process at its end. Results
come back by the loop's non-blocking post, because a call that waits for the loop can hang when the loop ends first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel

__all__ = ["Job", "Lane", "LaneTimeoutError"]

T = TypeVar("T")


class LaneTimeoutError(Exception):
    """A call was not done in time.

    Attributes:
        started: it is running, so what it did is unknown; otherwise it never ran and never will.
    """

    def __init__(self, *, started: bool) -> None:
        super().__init__(started)
        self.started = started


class Job(Generic[T]):
    """One call on its way; `started` and `cancelled` are decided under the lock, so they exclude each other.

    Made in the loop's thread; `done` is set there, too.
    """

    __slots__ = ("cancelled", "done", "error", "function", "lock", "result", "started")

    def __init__(self, function: Callable[[], T]) -> None:
        self.function: Callable[[], T] = function
        self.done: anyio.Event = anyio.Event()
        self.lock: threading.Lock = threading.Lock()
        self.started: bool = False
        self.cancelled: bool = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def start(self) -> bool:
        """Begin, and return True, unless it was cancelled."""
        with self.lock:
            self.started = not self.cancelled
            return self.started

    def cancel(self) -> bool:
        """Keep it from starting, and return True, unless it has."""
        with self.lock:
            self.cancelled = not self.started
            return self.cancelled


class Lane:
    """One thread, one call at a time, in the order of the calls. Made and used in one event loop."""

    def __init__(self, name: str) -> None:
        """Name the thread; it starts with the first call."""
        self._name = name
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        token = anyio.lowlevel.current_token().native_token
        # Both loops have a non-blocking post under a name of their own; anyio offers only one that waits.
        self._post: Callable[[Callable[[], object]], object] = (
            getattr(token, "call_soon_threadsafe", None) or cast(Any, token).run_sync_soon
        )

    async def call(self, function: Callable[[], T], *, timeout: float) -> T:
        """Run `function()` in the thread and return its result; raise what it raises.

        A cancelled caller leaves at once: a call that has not started never runs, one that has runs to its end and
        its result is dropped.

        Raises:
            LaneTimeoutError: not done within `timeout` seconds.
        """
        job = self.post(function)
        try:
            with anyio.move_on_after(timeout):
                await job.done.wait()
        finally:
            left = not job.done.is_set() and job.cancel()
        if not job.done.is_set():
            raise LaneTimeoutError(started=not left)
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def post(self, function: Callable[[], T]) -> Job[T]:
        """Have `function()` run in its turn, and don't wait for it."""
        job = Job(function)
        self.put(job)
        return job

    def put(self, job: Job[Any]) -> None:
        """Queue a job; from any thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after the calls that are waiting; one that hangs is left behind, as a daemon."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.start():
                continue
            try:
                job.result = job.function()
            except BaseException as error:
                job.error = error
            # The loop may be gone by now: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._post(job.done.set)
            del job

"""pytest plugin: an async test that blocks its event loop for too long fails, and the message says where.

A watchdog thread asks the loop for a sign of life and, when none comes, takes the stack of the loop's thread. It works
on asyncio, uvloop and trio alike. It stays away from virtual-time tests (its questions would wake the loop) and from
tests of pytest-trio.

`@pytest.mark.may_block_loop` lifts the limit, `@pytest.mark.may_block_loop(5.0)` sets another one, in seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from math import inf

import pytest

from support.async_items import around_async_test
from support.loops import RunningLoop
from support.stacks import format_frame

LIMIT_SECONDS = 1.0  # ten times what a busy CI machine takes from a thread
QUESTIONS_PER_LIMIT = 10

_current: LoopWatchdog | None = None


class LoopWatchdog:
    """Watches the loop it is started in, from a thread of its own.

    Only time in which this process could run counts: a pause of the whole machine stops the watchdog as well. A block
    that holds the interpreter lock stops it too; that one is told from a pause by the processor time it used.

    Args:
        loop: the running loop.
        limit: seconds without a sign of life that count as blocked.
    """

    def __init__(self, loop: RunningLoop, limit: float) -> None:
        self.blocked: str | None = None
        """What to tell the author of the test, once the loop was blocked."""
        self._loop = loop
        self._limit = limit
        self._interval = limit / QUESTIONS_PER_LIMIT
        self._loop_thread = threading.get_ident()
        self._loop_clock = time.pthread_getcpuclockid(self._loop_thread) if sys.platform == "linux" else None
        self._asked_at = 0.0  # processor time of the loop's thread
        self._answered = threading.Event()
        self._answered.set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching; called in the loop."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; called in the loop. Harmless when repeated."""
        self._stopping.set()
        self._thread.join()
        if not self._answered.is_set():
            self._answer()

    def _watch(self) -> None:
        waited = 0.0
        then = time.monotonic()
        while not self._stopping.wait(self._interval):
            now = time.monotonic()
            elapsed, then = now - then, now
            if self._answered.is_set():
                waited = 0.0
                self._asked_at = self._loop_cpu_seconds()
                self._answered.clear()
                self._loop.post(self._answer)
                continue
            waited += min(elapsed, 2 * self._interval)
            if waited >= self._limit and self.blocked is None:
                frame = sys._current_frames().get(self._loop_thread)
                self._report(format_frame(frame) if frame is not None else "  (the thread has ended)\n")

    def _answer(self) -> None:
        used = self._loop_cpu_seconds() - self._asked_at
        self._answered.set()
        if used >= self._limit and self.blocked is None:
            self._report("  (no stack: one call held the interpreter lock, so no other thread could look)\n")

    def _loop_cpu_seconds(self) -> float:
        return 0.0 if self._loop_clock is None else time.clock_gettime(self._loop_clock)

    def _report(self, stack: str) -> None:
        self.blocked = (
            f"the test blocked the event loop for {self._limit:g} s or longer, at\n{stack}"
            f"(@pytest.mark.may_block_loop sets another limit)"
        )


def limit_of(item: pytest.Item) -> float:
    """Return the seconds a test may block its loop."""
    marker = item.get_closest_marker("may_block_loop")
    if marker is None:
        return LIMIT_SECONDS
    return float(marker.args[0]) if marker.args else inf


@contextmanager
def loop_must_not_block(limit: float) -> Iterator[None]:
    """Fail when the running loop is blocked for `limit` seconds inside the block."""
    global _current
    loop = RunningLoop.current()
    if loop.is_virtual or limit == inf:
        yield
        return
    watchdog = _current = LoopWatchdog(loop, limit)
    watchdog.start()
    try:
        yield
    except BaseException as exc:
        watchdog.stop()
        if watchdog.blocked is not None:
            exc.add_note(watchdog.blocked)
        raise
    finally:
        watchdog.stop()
        _current = None
    if watchdog.blocked is not None:
        pytest.fail(watchdog.blocked, pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "may_block_loop(seconds=inf): the test may block its event loop this long; "
        f"others fail after {LIMIT_SECONDS:g} s.",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    limit = limit_of(pyfuncitem)
    with around_async_test(pyfuncitem, lambda: loop_must_not_block(limit)):
        return (yield)


def pytest_enter_pdb() -> None:
    if _current is not None:
        _current.stop()

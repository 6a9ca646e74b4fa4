"""pytest plugin: a test that hangs fails with the stacks of all threads and tasks, so that CI never hangs.

Setup, call and teardown of a test have `LIMIT_SECONDS` each; `@pytest.mark.timeout_seconds(n)` sets another limit. When
it is over:

1. the stacks are taken; an async test is cancelled, which leaves its loop and fixtures in order; in any other code an
   exception is raised in the main thread;
2. after each further grace period the exception is raised wherever the main thread is, for tests that block their loop
   or refuse to be cancelled; from the second one on the run stops after this test, as its loop is left behind;
3. at last the process ends with status 1, also when the main thread no longer runs Python.

Where there is no SIGALRM (Windows, or not the main thread) only the last step is taken.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import anyio
import pytest

from support.async_items import around_async_test
from support.loops import RunningLoop
from support.stacks import format_tasks, format_threads

LIMIT_SECONDS = 120.0  # the slowest test takes a tenth of it on a busy machine
GRACE_SECONDS = 5.0
GRACE_PERIODS = 3  # before the process ends

_stderr_fd: int | None = None
_current: TimeLimit | None = None


class TimeLimitExceededError(BaseException):
    """Raised in the main thread; no `Exception`, so that code under test does not handle it by accident."""


class TimeLimit:
    """The limit of one phase of one test."""

    def __init__(self, item: pytest.Item, phase: str) -> None:
        marker = item.get_closest_marker("timeout_seconds")
        self._seconds = float(marker.args[0]) if marker is not None else LIMIT_SECONDS
        self._grace = float(marker.kwargs.get("grace", GRACE_SECONDS)) if marker is not None else GRACE_SECONDS
        self._item = item
        self._phase = phase
        self._expiries = 0
        self._previous: signal.Handlers | Callable[[int, FrameType | None], object] | int | None = None
        self._armed = False
        self._loop: RunningLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self.report: str | None = None
        """What to tell the author of the test, once the time is over."""

    def arm(self) -> None:
        """Start the clock."""
        global _current
        if _stderr_fd is not None:
            last = self._seconds + (GRACE_PERIODS + 0.5) * self._grace
            faulthandler.dump_traceback_later(last, exit=True, file=_stderr_fd)
        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._grace)
            self._armed = True
        _current = self

    def disarm(self) -> None:
        """Stop the clock. Harmless when repeated."""
        global _current
        if self._armed and sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)
            self._armed = False
        faulthandler.cancel_dump_traceback_later()
        _current = None

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Run the block in a scope that is cancelled when the time is over."""
        self._loop = RunningLoop.current()
        try:
            with anyio.CancelScope() as self._scope:
                yield
        finally:
            self._loop = self._scope = None

    def _expire(self, _signum: int, frame: FrameType | None) -> None:
        self._expiries += 1
        if self.report is None:
            self.report = self._describe(frame)
            if self._loop is not None and self._scope is not None:
                self._loop.post(self._scope.cancel)
                return
        if self._expiries == 2 and _stderr_fd is not None:  # the process may end before pytest reports anything
            os.write(_stderr_fd, f"\n{self._item.nodeid}: {self.report}\n".encode())
        if self._expiries > 2:
            self._item.session.shouldstop = f"{self._item.nodeid} could not be stopped"
        raise TimeLimitExceededError(f"the {self._phase} took longer than {self._seconds:g} s")

    def _describe(self, frame: FrameType | None) -> str:
        tasks = "" if self._loop is None else format_tasks(self._loop.tasks())
        return (
            f"the {self._phase} of the test took longer than its time limit of {self._seconds:g} s\n"
            f"{format_threads(frame)}\n{tasks}(@pytest.mark.timeout_seconds(n) sets another limit)"
        )


def _limited(item: pytest.Item, phase: str) -> Generator[None, object, object]:
    limit = TimeLimit(item, phase)
    limit.arm()
    try:
        result = yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except BaseException as exc:
        limit.disarm()
        if limit.report is not None:
            raise pytest.fail.Exception(limit.report, pytrace=False) from exc
        raise
    finally:
        limit.disarm()
    if limit.report is not None:
        pytest.fail(limit.report, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "teardown"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    limit = _current
    if limit is None:
        return (yield)
    with around_async_test(pyfuncitem, limit.cancelling):
        return (yield)


def pytest_enter_pdb() -> None:
    if _current is not None:
        _current.disarm()


def pytest_configure(config: pytest.Config) -> None:
    global _stderr_fd
    config.addinivalue_line(
        "markers",
        f"timeout_seconds(n, grace={GRACE_SECONDS:g}): setup, call and teardown of the test may take n seconds each; "
        f"others have {LIMIT_SECONDS:g} s.",
    )
    # Output is not captured yet: this is the real stderr, where the last words must go.
    _stderr_fd = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ is not None else None


def pytest_unconfigure() -> None:
    global _stderr_fd
    if _stderr_fd is not None:
        os.close(_stderr_fd)
        _stderr_fd = None

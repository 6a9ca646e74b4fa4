"""Watching for blocking code: iterators that a thread waits in."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar, cast

import anyio

from turnkeeper.durations import Duration, seconds
from turnkeeper.errors import OutcomeUnknownError, RuntimeClosedError
from turnkeeper.events import NOTHING, Event, Notice, Read
from turnkeeper.log import Version
from turnkeeper.names import MemoryName
from turnkeeper.runtime import RuntimeCore
from turnkeeper.sync.calling import call, in_loop
from turnkeeper.watches import START, FeedReader, LogReader

__all__ = ["SyncMemoryWatch", "SyncRuntimeWatch"]

T = TypeVar("T")

_MEMORY: Final = "async with memory.watch(…)"
_RUNTIME: Final = "async with runtime.watch(…)"

_NOTICES: Final = 100
"""Notices that one call into the loop brings."""


class _Wait:
    """A wait in the event loop that a thread stands behind; when the thread is interrupted, it ends."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = math.inf if timeout is None else timeout
        self._left = False
        self._scope: anyio.CancelScope | None = None

    async def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return what the function returns; None when the time is over."""
        with anyio.move_on_after(self._timeout) as self._scope:
            if self._left:
                self._scope.cancel()
            return await function()
        return None

    def leave(self) -> None:
        """Wait no more; in the loop."""
        self._left = True
        if self._scope is not None:
            self._scope.cancel()


def _wait(
    core: RuntimeCore, instead: str, timeout: float | None, function: Callable[[], Coroutine[Any, Any, T]]
) -> T | None:
    wait = _Wait(timeout)
    try:
        return cast("T | None", call(core, instead, partial(wait.run, function)))
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C: the wait goes on without us
            _post(core, wait.leave)
        raise


def _post(core: RuntimeCore, function: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the loop is gone, and everything with it
        core.portal.start_task_soon(in_loop(function))


def _enter(core: RuntimeCore, instead: str, reader: LogReader | FeedReader) -> Any:
    try:
        return call(core, instead, reader.open)
    except BaseException as error:
        if not isinstance(error, Exception):
            _post(core, reader.close)
        raise


def _leave(core: RuntimeCore, instead: str, reader: LogReader | FeedReader) -> None:
    with contextlib.suppress(RuntimeClosedError, OutcomeUnknownError):  # then it is over anyway
        call(core, instead, in_loop(reader.close))


class SyncMemoryWatch:
    """The committed changes of one memory for blocking code: `MemoryWatch` with `with` and `for`.

    The iterator ends when there was no event for `timeout` seconds, and goes on when it is iterated again. Interrupted
    while it waits (Ctrl-C), it goes on with the same event. Threads that iterate together share the events.
    """

    __slots__ = ("_core", "_lock", "_place", "_reader", "_timeout")

    def __init__(self, core: RuntimeCore, reader: LogReader, timeout: Duration | None) -> None:
        self._core = core
        self._reader = reader
        self._timeout = None if timeout is None else seconds("timeout", timeout)
        self._lock = threading.Lock()
        # Replaced as a whole: an interrupt between two assignments would lose or double events.
        self._place: tuple[deque[Event], Version, int] = deque(), NOTHING, START

    def __enter__(self) -> Self:
        """Begin; see `MemoryWatch.__aenter__`."""
        self._place = deque(), _enter(self._core, _MEMORY, self._reader), START
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave nothing behind."""
        self._place = deque(), NOTHING, START
        _leave(self._core, _MEMORY, self._reader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event; see `MemoryWatch.__anext__`."""
        while True:
            place = self._place
            with contextlib.suppress(IndexError):
                return place[0].popleft()
            found = _wait(self._core, _MEMORY, self._timeout, partial(self._reader.read, place[1], place[2]))
            if found is None:
                raise StopIteration
            self._go_on(place, *found)

    def _go_on(self, place: tuple[deque[Event], Version, int], read: Read, seen: int) -> None:
        with self._lock:
            if self._place is place:  # no other thread was faster
                self._place = deque(read.events), read.at, seen

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory={self._reader.name.id!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watch belongs to its runtime and can't be pickled; send the version and watch from there")


class SyncRuntimeWatch:
    """Notices of changed memories for blocking code: `RuntimeWatch` with `with` and `for`.

    The iterator ends when there was no notice for `timeout` seconds, and goes on when it is iterated again.
    """

    __slots__ = ("_core", "_lock", "_page", "_reader", "_timeout")

    def __init__(self, core: RuntimeCore, reader: FeedReader, timeout: Duration | None) -> None:
        self._core = core
        self._reader = reader
        self._timeout = None if timeout is None else seconds("timeout", timeout)
        self._lock = threading.Lock()
        # What has arrived here is taken out there only with the next call: an interrupt loses none on the way.
        self._page: tuple[deque[tuple[MemoryName, Version]], dict[MemoryName, Version]] = deque(), {}

    def __enter__(self) -> Self:
        """Begin; see `RuntimeWatch.__aenter__`."""
        _enter(self._core, _RUNTIME, self._reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave nothing behind."""
        self._page = deque(), {}
        _leave(self._core, _RUNTIME, self._reader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Notice:
        """Wait for the next notice; see `RuntimeWatch.__anext__`."""
        while True:
            page = self._page
            with contextlib.suppress(IndexError):
                name, version = page[0].popleft()
                return Notice(name.id, name.namespace, version)
            found = _wait(self._core, _RUNTIME, self._timeout, partial(self._reader.exchange, page[1], _NOTICES))
            if found is None:
                raise StopIteration
            with self._lock:
                if self._page is page:
                    self._page = deque(found.items()), found

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watch belongs to its runtime and can't be pickled")

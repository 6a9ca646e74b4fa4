"""Watching: one memory's events, or notices of many memories, as async iterators."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Final, NoReturn, Self

from anyio.lowlevel import checkpoint

from turnkeeper.errors import InvalidArgumentError, RuntimeClosedError, RuntimeUsageError, StoreError
from turnkeeper.events import NOTHING, Event, Notice, Read, read_events, version_now
from turnkeeper.history import check_version
from turnkeeper.log import Version
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.runtime import RuntimeCore
from turnkeeper.watching import Feed, Signal

__all__ = ["START", "FeedReader", "LogReader", "MemoryWatch", "RuntimeWatch"]

START: Final = -1
"""No count of a signal: there may be something already."""


def _check_open(core: RuntimeCore) -> None:
    core.check_usable()
    if core.watching.closed:  # it is being torn down
        raise RuntimeClosedError("the runtime is closing")


class LogReader:
    """Reads one memory's log for a watcher, who keeps the place: a read that is dropped on its way has lost nothing."""

    __slots__ = ("_after", "_core", "_left", "_name", "_signal")

    def __init__(self, core: RuntimeCore, name: MemoryName, after: Version | None) -> None:
        self._core = core
        self._name = name
        self._after = check_version(after, "after")
        self._left = False
        self._signal: Signal | None = None

    @property
    def name(self) -> MemoryName:
        """The memory."""
        return self._name

    async def open(self) -> Version:
        """Begin, and return the version to read from. Cancelled or failing, nothing is left behind."""
        self._core.check_usable()
        if self._left or self._signal is not None:
            raise RuntimeUsageError("a watch is entered once; make another one with memory.watch()")
        self._signal = self._core.watching.enter(self._name)
        if self._after is not None:
            return self._after
        try:
            return await self._core.look_up(partial(version_now, name=self._name))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End, also for those who are reading. Harmless when repeated."""
        self._left = True
        signal, self._signal = self._signal, None
        if signal is not None:
            self._core.watching.leave(self._name, signal)
            signal.give()

    async def read(self, at: Version, seen: int) -> tuple[Read, int]:
        """Wait for events behind a version, and return them and what to hand in as `seen` with the next call.

        Cancelled, nothing is lost: the next call with the same arguments returns them.

        Raises:
            RuntimeClosedError: the runtime is closing or closed.
            StoreError: the store can't be read; the next call tries again.
        """
        await checkpoint()
        while True:
            _check_open(self._core)
            if (signal := self._signal) is None:
                raise RuntimeUsageError("this watch is not open: iterate inside 'async with memory.watch(…)'")
            signal.places.append(at)
            try:
                seen = await signal.beyond(seen)
            finally:
                signal.places.remove(at)
            if self._signal is None:
                continue
            try:
                read = await self._core.look_up(partial(read_events, name=self._name, at=at))
            except StoreError:
                _check_open(self._core)  # a store that is closing has nothing to say
                raise
            if read.more:
                seen = START
            if read.events:
                return read, seen
            at = read.at


class MemoryWatch:
    """The committed changes of one memory, in order; made by `memory.watch()`, an async context manager to iterate in.

    A cursor over the log: it holds at most one page of events, pins nothing, and misses nothing however slow it is.
    Cancelled while it waits, it goes on with the same event. Tasks that iterate together share the events.
    """

    __slots__ = ("_at", "_events", "_reader", "_seen")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._events: deque[Event] = deque()
        self._at = NOTHING
        self._seen = START

    async def __aenter__(self) -> Self:
        """Begin: what is acknowledged from here on will be seen. Cancelled or failing, nothing is left behind.

        Raises:
            RuntimeClosedError: the runtime is closing or closed.
            StoreError: the store can't be read.
        """
        self._at = await self._reader.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave nothing behind."""
        self._reader.close()
        self._events.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            RuntimeClosedError: the runtime is closing or closed: watch again with `after=` in another one.
            MemoryCorruptError: the next entry can't be decoded.
            StoreError: the store can't be read; the next call tries again.
        """
        if self._events:
            await checkpoint()
        while not self._events:
            at = self._at
            read, seen = await self._reader.read(at, self._seen)
            if self._at is at:  # no other task was faster
                self._events.extend(read.events)
                self._at, self._seen = read.at, seen
        return self._events.popleft()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory={self._reader.name.id!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watch belongs to its runtime and can't be pickled; send the version and watch from there")


class FeedReader:
    """Reads notices for a watcher: they stay until they are taken."""

    __slots__ = ("_core", "_feed", "_left", "_namespace", "_prefix")

    def __init__(self, core: RuntimeCore, namespace: str | None, prefix: str) -> None:
        if namespace is not None:
            memory_name("-", namespace)
        if not isinstance(prefix, str):
            raise InvalidArgumentError(f"prefix must be a str, not {type(prefix).__name__}")
        self._core = core
        self._namespace = namespace
        self._prefix = prefix
        self._left = False
        self._feed: Feed | None = None

    async def open(self) -> None:
        """Begin. Cancelled or failing, nothing is left behind."""
        self._core.check_usable()
        if self._left or self._feed is not None:
            raise RuntimeUsageError("a watch is entered once; make another one with runtime.watch()")
        feed = await self._core.watching.enter_feed(self._namespace, self._prefix)
        if self._left:
            self._core.watching.leave_feed(feed)
        else:
            self._feed = feed

    def close(self) -> None:
        """End, also for those who are reading. Harmless when repeated."""
        self._left = True
        feed, self._feed = self._feed, None
        if feed is not None:
            self._core.watching.leave_feed(feed)
            feed.signal.give()

    async def wait(self) -> dict[MemoryName, Version]:
        """Wait until there is a notice, and return all that there are; whoever takes one removes it.

        Raises:
            RuntimeClosedError: the runtime is closing or closed.
        """
        await checkpoint()
        while True:
            _check_open(self._core)
            if (feed := self._feed) is None:
                raise RuntimeUsageError("this watch is not open: iterate inside 'async with runtime.watch(…)'")
            if feed.pending:
                return feed.pending
            await feed.signal.beyond(feed.signal.count)

    async def exchange(self, taken: dict[MemoryName, Version], limit: int) -> dict[MemoryName, Version]:
        """Remove what was taken, unless it is newer by now, and wait for others; these stay until the next call."""
        if self._feed is not None:
            for name, version in taken.items():
                if self._feed.pending.get(name) == version:
                    del self._feed.pending[name]
        return dict(islice((await self.wait()).items(), limit))


class RuntimeWatch:
    """Notices of changed memories; made by `runtime.watch()`, an async context manager to iterate in.

    At least one for each change, unless a later one of the same memory comes first: while nobody reads, each memory
    has one notice, with its newest version. Cancelled while it waits, it goes on with the same notice.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: FeedReader) -> None:
        self._reader = reader

    async def __aenter__(self) -> Self:
        """Begin: what is acknowledged from here on will be told. Cancelled or failing, nothing is left behind.

        Raises:
            RuntimeClosedError: the runtime is closing or closed.
            StoreError: the store can't be read.
        """
        await self._reader.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave nothing behind."""
        self._reader.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        """Wait for the next notice.

        Raises:
            RuntimeClosedError: the runtime is closing or closed.
        """
        pending = await self._reader.wait()
        name = next(iter(pending))
        return Notice(name.id, name.namespace, pending.pop(name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watch belongs to its runtime and can't be pickled")

"""Who watches what, and what wakes them: this runtime's commits, and one poll for those of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio

from turnkeeper.events import NOTHING, read_heads
from turnkeeper.log import Committed, Conflict, Outcome, Slice, Unknown, Version
from turnkeeper.names import MemoryName
from turnkeeper.services import Services
from turnkeeper.stores import Changes, Cursor, Store

__all__ = ["Feed", "Signal", "Watching"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_UNSEEN: Final = Version(-1, 0)
"""No memory is ever there: the first look finds every one moved."""

_SHORTEST_INTERVAL: Final = 0.01
"""Seconds between two looks of the poll at least."""

_NAMES_AT_ONCE: Final = 256
"""Memories that one read of the poll looks at: so it never holds up other reads for long."""

_CHANGES_AT_ONCE: Final = 1000
"""Changes that one read of the poll brings."""

_PARTS_AT_ONCE: Final = 10
"""Such reads in one look; the next one goes on where it ended."""


class Signal:
    """Says that there may be something new, to any number of waiters; who was away sees it by the count.

    Attributes:
        count: how often it was given.
        places: the versions behind which somebody waits.
        users: the watchers that it is for.
    """

    __slots__ = ("_event", "_make_event", "count", "places", "users")

    def __init__(self, make_event: Callable[[], anyio.Event]) -> None:
        self._make_event = make_event
        self._event: anyio.Event | None = None
        self.count: int = 0
        self.places: list[Version] = []
        self.users: int = 0

    def give(self) -> None:
        """Wake all that wait."""
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def beyond(self, count: int) -> int:
        """Wait until the count is another one, and return it. Cancelled, nothing is lost: the count stays."""
        while self.count == count:
            if self._event is None:
                self._event = self._make_event()
            await self._event.wait()
        return self.count


class Feed:
    """Which memories have changed since a watcher of many last looked: each one once, with its newest version.

    Attributes:
        signal: given when there is something in it.
        pending: what there is, those first that have waited longest.
    """

    __slots__ = ("_namespace", "_prefix", "pending", "signal")

    def __init__(self, namespace: str | None, prefix: str, signal: Signal) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self.signal: Signal = signal
        self.pending: dict[MemoryName, Version] = {}

    def matches(self, name: MemoryName) -> bool:
        """Tell whether it is about this memory."""
        return (self._namespace is None or name.namespace == self._namespace) and name.id.startswith(self._prefix)

    def put(self, name: MemoryName, version: Version) -> None:
        """Note a change; in the place of one that nobody has read."""
        if self.matches(name):
            self.pending[name] = version
            self.signal.give()


class Watching:
    """The watchers of one runtime. While there are none, nothing here is called, and there is no task.

    Watchers read for themselves, and only have to be told when. Whatever this runtime commits is told by its
    committer. What others commit, and what is committed late after an unknown outcome, is found by a poll, one for all.

    Attributes:
        closed: nobody is woken any more.
    """

    def __init__(self, services: Services, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        """Watch nothing; `spawn` starts a task of the runtime."""
        self._services = services
        self._spawn = spawn
        self._signals: dict[MemoryName, Signal] = {}
        self._feeds: list[Feed] = []
        self._cursor: Cursor | None = None
        self._doubted: dict[MemoryName, Version] = {}
        # What was told here needn't be told again when the poll finds it: since the last poll, and in the one before.
        self._told: tuple[dict[MemoryName, Version], dict[MemoryName, Version]] = {}, {}
        self._polling = False
        self.closed: bool = False
        self._stop = Signal(services.make_event)  # the poll has nothing to do any more, or something at once
        self._heard = False  # a notice came

    @property
    def empty(self) -> bool:
        """Whether nothing is left behind by anybody."""
        return not (self._signals or self._feeds or self._doubted or any(self._told)) and self._cursor is None

    # Watchers come and go

    def enter(self, name: MemoryName) -> Signal:
        """Begin to watch a memory."""
        if (signal := self._signals.get(name)) is None:
            signal = self._signals[name] = Signal(self._services.make_event)
        signal.users += 1
        self._begin()
        return signal

    def leave(self, name: MemoryName, signal: Signal) -> None:
        """Watch it no more."""
        signal.users -= 1
        if not signal.users:
            self._signals.pop(name, None)
        self._end()

    async def enter_feed(self, namespace: str | None, prefix: str) -> Feed:
        """Begin to watch many memories; cancelled or failing, nothing is left.

        Raises:
            StoreError: the store can't be read.
        """
        feed = Feed(namespace, prefix, Signal(self._services.make_event))
        self._feeds.append(feed)
        try:
            if self._services.shared and self._cursor is None:
                now = await self._services.reader.run(partial(_changes, after=None))
                # Where another feed began meanwhile, its place stays: this feed gets what is behind that as well.
                if not self.closed and self._cursor is None:
                    self._cursor = now.cursor
        except BaseException:
            self.leave_feed(feed)
            raise
        self._begin()
        return feed

    def leave_feed(self, feed: Feed) -> None:
        """Watch them no more."""
        if feed in self._feeds:
            self._feeds.remove(feed)
        self._end()

    def close(self) -> None:
        """Wake everybody, to find the runtime closed, and forget them."""
        self.closed = True
        signals = [*self._signals.values(), *[feed.signal for feed in self._feeds]]
        self._signals.clear()
        self._feeds.clear()
        for signal in signals:
            signal.give()
        self._end()

    def _begin(self) -> None:
        if not self.closed:
            self._services.committer.told = self.committed
            self._start_polling()
            if (notices := self._services.notices) is not None:
                notices.enter(self.hear)

    def _end(self) -> None:
        if not self._feeds:
            self._cursor = None
            self._told = {}, {}
            if not self._signals:
                self._services.committer.told = None
                if (notices := self._services.notices) is not None:
                    notices.leave(self.hear)
        if not self._due():
            self._doubted.clear()
            self._stop.give()

    # What this runtime commits

    def committed(self, slices: Sequence[Slice], outcomes: Sequence[Outcome]) -> None:
        """Take note of what became of a group."""
        for slice_, outcome in zip(slices, outcomes, strict=True):
            if isinstance(outcome, Conflict):
                self._wake(slice_.name)  # somebody else's, which may have come late
            elif not (slice_.entries or slice_.delete):
                continue
            elif isinstance(outcome, Committed):
                n = slice_.expected + len(slice_.entries)
                version = NOTHING if slice_.delete else Version(outcome.mid, n)
                self._wake(slice_.name)
                self._tell(slice_.name, version)
            elif isinstance(outcome, Unknown):
                self._services.doubtful.add(slice_.name)
                self._wake(slice_.name)
                self._start_polling()

    def _wake(self, name: MemoryName) -> None:
        if (signal := self._signals.get(name)) is not None:
            signal.give()

    def _tell(self, name: MemoryName, version: Version) -> None:
        for feed in self._feeds:
            feed.put(name, version)
        if self._cursor is not None:
            self._told[0][name] = version

    # What others commit, or comes late

    def _due(self) -> bool:
        """Tell whether anybody needs the poll."""
        services = self._services
        if services.shared:
            return bool(self._signals or self._feeds)
        return bool(services.doubtful) and any(map(self._is_watched, services.doubtful))

    def _is_watched(self, name: MemoryName) -> bool:
        return name in self._signals or any(feed.matches(name) for feed in self._feeds)

    def hear(self) -> None:
        """Look at once: another process told of something."""
        self._heard = True
        self._stop.give()

    def _start_polling(self) -> None:
        if not self._polling and not self._services.stopping and self._due():
            self._polling = True
            self._spawn(self._poll)

    async def _poll(self) -> None:
        """Look into the store from time to time, as long as anybody needs it."""
        interval = max(self._services.settings.watch_interval, _SHORTEST_INTERVAL)
        try:
            while self._due():
                if not self._heard:
                    with anyio.move_on_after(interval):
                        await self._stop.beyond(self._stop.count)
                        if not self._heard:
                            continue
                self._heard = False
                try:
                    await self._look()
                except Exception as error:  # a store out of reach, as a rule: the next look may find it
                    logger.debug("a look for watchers failed with %s", type(error).__name__)
                if self._heard:  # meanwhile
                    await anyio.sleep(_SHORTEST_INTERVAL)
        except anyio.get_cancelled_exc_class():
            if self._services.stopping:
                raise
            logger.error("a task of the runtime was cancelled from outside; it goes on")
        finally:
            self._polling = False
        if self._due():
            self._start_polling()
        else:
            self._doubted.clear()

    async def _look(self) -> None:
        if self._services.shared:
            if self._cursor is not None:
                await self._look_for_changes(self._cursor)
            # Who does not wait reads anyway.
            await self._look_at({name: it.places[0] for name, it in self._signals.items() if it.places}, self._found)
        else:
            doubtful = [name for name in self._services.doubtful if self._is_watched(name)]
            self._doubted = {name: self._doubted.get(name, _UNSEEN) for name in doubtful}
            await self._look_at(dict(self._doubted), self._found_late)

    async def _look_at(self, known: dict[MemoryName, Version], found: Callable[[MemoryName, Version], None]) -> None:
        names = iter(known)
        while chunk := {name: known[name] for name in islice(names, _NAMES_AT_ONCE)}:
            for name, version in (await self._services.reader.run(partial(read_heads, known=chunk))).items():
                found(name, version)

    def _found(self, name: MemoryName, version: Version) -> None:
        signal = self._signals.get(name)
        if signal is not None and any(place != version and (place.n or version.n) for place in signal.places):
            signal.give()

    def _found_late(self, name: MemoryName, version: Version) -> None:
        self._found(name, version)
        if self._doubted.get(name, version) != version:
            self._doubted[name] = version
            self._tell(name, version)

    async def _look_for_changes(self, cursor: Cursor) -> None:
        for _ in range(_PARTS_AT_ONCE):
            found = await self._services.reader.run(partial(_changes, after=cursor))
            if self._cursor is None or found.cursor == cursor:
                break
            cursor = found.cursor
            for name, version in found.changed:
                if not any(told.get(name, NOTHING) >= version for told in self._told):
                    for feed in self._feeds:
                        feed.put(name, max(version, feed.pending.get(name, version)))
            self._cursor = cursor
        if self._cursor is not None:
            self._told = {}, self._told[0]


def _changes(store: Store, after: Cursor | None) -> Changes:
    return store.changes(after, _CHANGES_AT_ONCE)

"""Gathered reads: loads of many memories travel together, and are folded in the store's reading thread.

Reads have a thread and a connection of their own, so a big load never stalls a commit. A store that needs no thread is
called inline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from turnkeeper.config import Settings
from turnkeeper.errors import MemoryCorruptError, StoreError, StoreUnavailableError, TurnkeeperError
from turnkeeper.folding import fold
from turnkeeper.gathering import Gatherer, check_count, wrapped
from turnkeeper.lane import Lane, LaneTimeoutError
from turnkeeper.log import (
    Head,
    Loaded,
    LoadQuery,
    StoredReceipt,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import Store
from turnkeeper.windows import LimitedWindow, Window

__all__ = ["Fetch", "Fetched", "Reach", "Reader"]

T = TypeVar("T")

_READS: Final = 64
"""Reads that travel together: enough to spare thread hops, few enough that none waits long for its neighbours."""

Reach: TypeAlias = tuple[Window, int | None]
"""How far back a log is needed: as far as this window shows with this limit."""

_FEWEST: Final = 16

_MOST: Final = 16_384
"""Entries read in the first attempt to reach what a window shows; each further one reads four times as many."""


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Which memory to read: what follows `known`, or else the newest part, as far back as `reach` needs it.

    Without a reach its end is enough. What is known may hold the system message of an entry before the state, `before`;
    when that is pruned, what is known is no use any more.
    """

    name: MemoryName
    known: Version | None = None
    reach: Reach | None = None
    before: int = 0


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """A memory read from the store: what lay there, and the log folded from it unless that follows what was known."""

    loaded: Loaded
    log: Log | MemoryCorruptError | None


Question: TypeAlias = Fetch | tuple[MemoryName, str] | Callable[[Store], Any]


class Reader(Gatherer[Question, Any]):
    """Loads memories, looks up receipts and reads what else is wanted, many at a time.

    Logs are folded, and counted, in the reading thread.
    """

    def __init__(self, store: Store, settings: Settings, lane: Lane | None) -> None:
        """Read through `lane`; None: call the store inline."""
        super().__init__(_READS, 2**62)
        self._store = store
        self._lane = lane
        self._timeout = settings.load_timeout

    async def load(self, query: Fetch) -> Fetched:
        """Read one memory.

        Raises:
            StoreError: the store can't be read (not raised for what can't be decoded: that is in the result).
        """
        answer = await self._ask(query) if self._lane is not None else self._read_inline(query)
        if isinstance(answer, StoreError):
            raise answer
        assert isinstance(answer, Fetched)
        return answer

    async def run(self, job: Callable[[Store], T]) -> T:
        """Run a function of the store in its reading thread, gathered with other reads, and return what it returns.

        Raises:
            StoreError: the store can't be read.
            TurnkeeperError: what the function raises.
        """
        answer = await self._ask(job) if self._lane is not None else self._read_inline(job)
        if isinstance(answer, Exception):
            raise answer
        return cast(T, answer)

    async def receipt(self, name: MemoryName, key: str) -> StoredReceipt | None:
        """Look up what an idempotency key stands for.

        Raises:
            StoreError: the store can't be read.
        """
        answer = await self._ask((name, key)) if self._lane is not None else self._read_inline((name, key))
        if isinstance(answer, StoreError):
            raise answer
        return cast("StoredReceipt | None", answer)

    def _read_inline(self, item: Question) -> Any:
        self.statistics.count(1)
        try:
            return _read(self._store, [item])[0]
        except Exception as error:
            return wrapped(error, self._store, "read")

    def _measure(self, item: object) -> tuple[int, int]:
        return 1, 0

    async def _send(self, items: list[Question]) -> list[Any]:
        assert self._lane is not None
        try:
            return await self._lane.call(partial(_read, self._store, items), timeout=self._timeout)
        except LaneTimeoutError:
            slow = f"{self._store.describe()} did not answer a read within {self._timeout} s (load_timeout)"
            return [StoreUnavailableError(slow) for _ in items]
        except Exception as error:
            failure = wrapped(error, self._store, "read")
            if len(items) == 1 or isinstance(failure, StoreUnavailableError):
                return [failure] * len(items)
            return [answer for item in items for answer in await self._send([item])]

    def _lost(self, item: object, *, sent: bool) -> StoreError:
        return StoreUnavailableError(f"{self._store.describe()} is closing")


def _read(store: Store, items: list[Question]) -> list[Any]:
    """Answer all items, in the store's thread."""
    fetches = [item for item in items if isinstance(item, Fetch)]
    keys = [item for item in items if isinstance(item, tuple)]
    loaded = _load(store, [LoadQuery(fetch.name, fetch.known, _first_try(fetch.reach)) for fetch in fetches])
    found = store.receipts(keys) if keys else []
    check_count(found, keys)
    loads, receipts = iter(loaded), iter(found)
    answers: list[Any] = []
    for item in items:
        if isinstance(item, Fetch):
            answers.append(_reached(store, item, next(loads)))
        else:
            answers.append(next(receipts) if isinstance(item, tuple) else _run(store, item))
    return answers


def _run(store: Store, job: Callable[[Store], Any]) -> Any:
    try:
        return job(store)
    except StoreUnavailableError:
        raise
    except TurnkeeperError as error:  # its own fault: the others in the group get their answers
        return error


def _load(store: Store, queries: list[LoadQuery]) -> list[Loaded]:
    loaded = store.load(queries) if queries else []
    check_count(loaded, queries)
    return loaded


def _first_try(reach: Reach | None) -> int:
    if reach is None:
        return 1
    window, limit = reach
    if limit is None or not isinstance(window, LimitedWindow):
        return 0
    return min(max(window.first_try(limit), _FEWEST), _MOST)


def _reached(store: Store, fetch: Fetch, loaded: Loaded) -> Fetched:
    """Fold what was loaded, and load more until it holds what the window shows."""
    newest = _first_try(fetch.reach)
    if loaded.continues and loaded.head is not None and _lacks(store, loaded.head, fetch.before):
        loaded = _load(store, [LoadQuery(fetch.name, None, newest)])[0]
    while True:
        fetched = _fetched(store, loaded, fetch.name)
        if not isinstance(fetched.log, Log) or fetch.reach is None or fetched.log.covers(*fetch.reach):
            return fetched
        newest *= 4
        loaded = _load(store, [LoadQuery(fetch.name, None, newest)])[0]


def _lacks(store: Store, head: Head, before: int) -> bool:
    """Tell whether an entry was pruned because its system message is current no more."""
    if before in (0, head.system):
        return False
    found = store.entries(head.mid, after=before - 1, before=before + 1, limit=1)
    return not found


def _fetched(store: Store, loaded: Loaded, name: MemoryName) -> Fetched:
    if loaded.continues:
        return Fetched(loaded, None)
    try:
        log = fold(loaded, name)
        if log.missing_system:
            found = store.entries(log.mid, after=log.missing_system - 1, limit=1)
            if found and found[0].version == log.missing_system:  # it may be pruned
                log = fold(loaded, name, found[0])
        return Fetched(loaded, log)
    except MemoryCorruptError as error:
        return Fetched(loaded, error)

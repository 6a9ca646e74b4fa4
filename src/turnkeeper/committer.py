"""Group commit and gathered reads: what many actors ask of the store travels together, without a delay.

While one group is in the store the next gathers. Commits and reads have a thread and a connection each, so a big load
never stalls a commit. A store that needs no thread is called inline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import anyio
import msgspec

from turnkeeper.config import Settings
from turnkeeper.errors import MemoryCorruptError, StoreError, StoreUnavailableError, TurnkeeperError, fresh
from turnkeeper.folding import fold
from turnkeeper.lane import Lane, LaneTimeoutError
from turnkeeper.log import (
    Head,
    Loaded,
    LoadQuery,
    NotCommitted,
    Outcome,
    Rejected,
    Slice,
    StoredReceipt,
    Unknown,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import Store
from turnkeeper.windows import LimitedWindow, Window

__all__ = ["Committer", "Fetched", "GroupStatistics", "Reader", "wrapped"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")
T = TypeVar("T")

_READS: Final = 64
"""Reads that travel together: enough to spare thread hops, few enough that none waits long for its neighbours."""

_UNKNOWN: Final = Unknown()

_SETTLE_WAITS: Final = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each attempt to find out what became of a commit."""

_SETTLE_TIME: Final = 5.0
"""Seconds after which no further attempt begins, and that one attempt may take."""


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


class GroupStatistics:
    """Counters of one gatherer: groups sent, items in them, and the largest group."""

    __slots__ = ("groups", "items", "peak")

    def __init__(self) -> None:
        self.groups: int = 0
        self.items: int = 0
        self.peak: int = 0

    def count(self, items: int) -> None:
        """Count one group."""
        self.groups += 1
        self.items += items
        self.peak = max(self.peak, items)


class _Waiting(Generic[Item, Answer]):
    """One item in line, and where its answer goes."""

    __slots__ = ("answer", "done", "item")

    def __init__(self, item: Item, done: anyio.Event) -> None:
        self.item = item
        self.done = done
        self.answer: Answer | None = None


class _Gatherer(ABC, Generic[Item, Answer]):
    """Collects items while a group is under way, then sends them on together. A task of the runtime runs `flush`.

    Every item is answered: by the store, or as lost when `flush` is cancelled or the gatherer closed.
    """

    def __init__(self, max_weight: int, max_bytes: int) -> None:
        self.statistics: GroupStatistics = GroupStatistics()
        self._max_weight = max_weight
        self._max_bytes = max_bytes
        self.told: Callable[[Sequence[Item], Sequence[Answer]], None] | None = None  # of each group's answers
        self.announce: Callable[[Sequence[Item], Sequence[Answer]], None] | None = None  # the same, for other processes
        self._line: deque[_Waiting[Item, Answer]] = deque()
        self._wake = anyio.Event()
        self._make_event = type(self._wake)  # the running loop's own: asking which one that is takes a microsecond
        self._closed = False

    async def _ask(self, item: Item) -> Answer:
        """Get in line and return the answer. A cancelled caller leaves its item behind, which is answered unheard."""
        if self._closed:
            return self._lost(item, sent=False)
        waiting: _Waiting[Item, Answer] = _Waiting(item, self._make_event())
        self._line.append(waiting)
        self._wake.set()
        await waiting.done.wait()
        return cast(Answer, waiting.answer)

    async def flush(self) -> None:
        """Send group after group, for ever. Cancelled (also natively), it answers the group in flight as lost."""
        while True:
            if not self._line:
                self._wake = anyio.Event()
                await self._wake.wait()
            group = self._take()
            if not group:
                continue
            self.statistics.count(len(group))
            answers: list[Answer] | None = None
            try:
                answers = await self._send([waiting.item for waiting in group])
            finally:
                if answers is None:
                    answers = [self._lost(waiting.item, sent=True) for waiting in group]
                for waiting, answer in zip(group, answers, strict=True):
                    waiting.answer = answer
                    waiting.done.set()
                if self.told is not None:
                    self.told([waiting.item for waiting in group], answers)
                if self.announce is not None:
                    self.announce([waiting.item for waiting in group], answers)

    def close(self) -> None:
        """Answer all that wait as lost; nothing is accepted any more."""
        self._closed = True
        while self._line:
            waiting = self._line.popleft()
            waiting.answer = self._lost(waiting.item, sent=False)
            waiting.done.set()

    def _take(self) -> list[_Waiting[Item, Answer]]:
        group: list[_Waiting[Item, Answer]] = []
        weight = size = 0
        while self._line:
            its_weight, its_size = self._measure(self._line[0].item)
            weight += its_weight
            size += its_size
            if group and (weight > self._max_weight or size > self._max_bytes):
                break
            group.append(self._line.popleft())
        return group

    @abstractmethod
    def _measure(self, item: Item) -> tuple[int, int]:
        """Return an item's share of a group's two bounds."""

    @abstractmethod
    async def _send(self, items: list[Item]) -> list[Answer]:
        """Ask the store for all at once."""

    @abstractmethod
    def _lost(self, item: Item, *, sent: bool) -> Answer:
        """Answer for an item that was dropped on its way (`sent`: perhaps behind the store's door)."""


class Committer(_Gatherer[Slice, Outcome]):
    """Commits slices of many memories in groups.

    A commit that raises or takes too long is settled: the store is asked by entry id what became of it. What fails
    for a reason of its own is found by committing slice by slice, so one bad slice harms no other.
    """

    def __init__(self, store: Store, settings: Settings, lane: Lane | None, read_lane: Lane | None) -> None:
        """Commit through `lane` and settle through `read_lane`; both None: call the store inline."""
        super().__init__(settings.group_entries, settings.group_bytes)
        self._store = store
        self._lane = lane
        self._read_lane = read_lane
        self._timeout = settings.commit_timeout
        self._receipt_ttl = settings.idempotency_ttl

    async def commit(self, slice_: Slice) -> Outcome:
        """Commit one slice and return its outcome; never raises for the store's reasons.

        A cancelled caller does not stop the commit.
        """
        if self._lane is not None:
            return await self._ask(slice_)
        self.statistics.count(1)
        outcome: Outcome = _UNKNOWN
        try:
            outcome = self._store.commit((slice_,), receipt_ttl=self._receipt_ttl)[0]
        except Exception as error:
            outcome = await self._settle_one(slice_, wrapped(error, self._store, "commit"))
        finally:
            if self.told is not None:
                self.told((slice_,), (outcome,))
            if self.announce is not None:
                self.announce((slice_,), (outcome,))
        return outcome

    def _measure(self, item: Slice) -> tuple[int, int]:
        return len(item.entries), sum(len(message.raw) for entry in item.entries for message in entry.messages)

    async def _send(self, items: list[Slice]) -> list[Outcome]:
        assert self._lane is not None
        try:
            commit = partial(self._store.commit, items, receipt_ttl=self._receipt_ttl)
            outcomes = await self._lane.call(commit, timeout=self._timeout)
            _check_count(outcomes, items)
            return outcomes
        except LaneTimeoutError as error:
            if not error.started:
                return [NotCommitted(self._too_slow()) for _ in items]
            # It may still land, so "not found" proves nothing: only what is found is known.
            found = await self._look_up(items)
            return [outcome or Unknown() for outcome in found or [None] * len(items)]
        except Exception as error:
            return await self._settle(items, wrapped(error, self._store, "commit"))

    async def _settle(self, slices: list[Slice], error: StoreError) -> list[Outcome]:
        """Find out what became of a group whose commit raised `error`, and commit what did not fail for it."""
        if len(slices) == 1:
            return [await self._settle_one(slices[0], error)]
        found = await self._look_up(slices)
        if found is None:
            return [Unknown() for _ in slices]
        outcomes: list[Outcome] = []
        for slice_, outcome in zip(slices, found, strict=True):
            if outcome is not None:
                outcomes.append(outcome)
            elif isinstance(error, StoreUnavailableError):
                outcomes.append(NotCommitted(error))
            else:
                outcomes.extend(await self._send([slice_]))
        return outcomes

    async def _settle_one(self, slice_: Slice, error: StoreError) -> Outcome:
        found = await self._look_up([slice_])
        if found is None:
            return Unknown()
        refused = NotCommitted if isinstance(error, StoreUnavailableError) else Rejected
        return found[0] or refused(error)

    async def _look_up(self, slices: list[Slice]) -> list[Outcome | None] | None:
        """Ask the store by entry id; None when it can't be asked."""
        patience = min(self._timeout, _SETTLE_TIME)
        until = anyio.current_time() + patience
        for wait in _SETTLE_WAITS:
            await anyio.sleep(wait)
            if wait and anyio.current_time() >= until:  # the first attempt took all of it: callers are waiting
                break
            try:
                settle = partial(self._store.settle, slices)
                if self._read_lane is None:
                    found = settle()
                else:
                    found = await self._read_lane.call(settle, timeout=patience)
                _check_count(found, slices)
                return found
            except Exception:  # whatever keeps the store from answering: the attempts are bounded
                continue
        return None

    def _too_slow(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._store.describe()} did not get to the commit within {self._timeout} s (commit_timeout)"
        )

    def _lost(self, item: Slice, *, sent: bool) -> Outcome:
        if sent:
            return Unknown()
        return NotCommitted(StoreUnavailableError(f"{self._store.describe()} is closing"))


Question: TypeAlias = Fetch | tuple[MemoryName, str] | Callable[[Store], Any]


class Reader(_Gatherer[Question, Any]):
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
    _check_count(found, keys)
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
    _check_count(loaded, queries)
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


def _check_count(answers: Sequence[object], questions: Sequence[object]) -> None:
    if len(answers) != len(questions):
        raise StoreError(f"the store gave {len(answers)} answers to {len(questions)} questions")


def wrapped(error: BaseException, store: Store, action: str) -> StoreError:
    """Make a store's error ours; a foreign one leaves only its type behind, since its text may hold content."""
    if isinstance(error, StoreError):
        return fresh(error)
    return StoreError(f"{store.describe()}: {action} failed with {type(error).__name__}")

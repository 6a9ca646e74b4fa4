"""A store that misbehaves where it is told to: for tests of what happens when a store fails, hangs or loses a reply.

For example, to lose the reply to one commit, and to have those that come after it hang for a while:

    store = FaultStore(SQLiteStore("chats.db"))
    store.fail_after()
    with store.stall() as stall:
        ...
        stall.entered.wait()
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from turnkeeper.errors import InvalidArgumentError, StoreUnavailableError
from turnkeeper.log import Outcome, Slice, StoredEntry, StoredReceipt
from turnkeeper.names import MemoryName
from turnkeeper.stores import (
    Changes,
    Cursor,
    Found,
    KeptReceipt,
    Listed,
    Loaded,
    LoadQuery,
    Reseal,
    SearchQuery,
    Store,
    Transfer,
)

__all__ = ["Call", "FaultStore", "MakeError", "Stall", "When"]

T = TypeVar("T")

Call = Literal[
    "open",
    "close",
    "commit",
    "settle",
    "load",
    "receipts",
    "receipts_of",
    "names",
    "expired",
    "changes",
    "announce",
    "listen",
    "search",
    "adopt",
    "reseal",
    "scrub",
    "entries",
]
"""A method of a store."""
When = Literal["before", "after"]
"""Before a call has done anything, or after it has done all its work."""
MakeError = Callable[[], Exception]
"""An exception class, or what makes an exception."""


def _out_of_reach() -> Exception:
    return StoreUnavailableError("the store was told to fail")


class Stall:
    """Calls that hang until released; leaving it as a context manager releases, so a failed test frees its threads.

    Attributes:
        entered: set once a call hangs here.
    """

    def __init__(self) -> None:
        self.entered: threading.Event = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        """Let those that hang here go on, and hold nobody any more. Harmless when repeated."""
        self._released.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _hold(self) -> None:
        if not self._released.is_set():
            self.entered.set()
            self._released.wait()


@dataclass(eq=False, slots=True)
class _Fault:
    act: Callable[[], None]
    call: Call
    when: When
    left: int | None  # how many calls more; None: all
    memory_id: str | None

    def strikes(self, call: Call, when: When, names: Iterable[MemoryName]) -> bool:
        if (self.call, self.when) != (call, when) or self.left == 0:
            return False
        return self.memory_id is None or any(name.id == self.memory_id for name in names)


class FaultStore(Store):
    """Passes everything on to a store, and misbehaves where told: from any thread, at any time.

    Faults add up. A call that is both to hang and to fail hangs first.

    Args:
        store: does the work.
        inline: False: be called from threads even if `store` could be called inline (then by one at a time). None: as
            `store` is.

    Attributes:
        wrapped: the store that does the work.
    """

    def __init__(self, store: Store, *, inline: Literal[False] | None = None) -> None:
        self.wrapped = store
        self.shared: bool = store.shared
        self.announces: bool = store.announces
        self._inline = store.inline if inline is None else inline
        self._one_at_a_time: AbstractContextManager[object] = threading.Lock() if store.inline else nullcontext()
        self._lock = threading.Lock()
        self._stalls: dict[_Fault, Stall] = {}
        self._failures: list[_Fault] = []
        self._calls: Counter[str] = Counter()

    @property
    def inline(self) -> bool:  # type: ignore[override]  # settled for each object here, not for the class
        """Whether calls need no thread."""
        return self._inline

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called, by its name; calls that hang or failed count."""
        with self._lock:
            return Counter(self._calls)

    def fail_before(
        self, n: int | None = 1, error: MakeError = _out_of_reach, *, on: Call = "commit", memory_id: str | None = None
    ) -> None:
        """Fail the next `n` calls before they do anything; None: all, until `heal`.

        Args:
            n: how many calls.
            error: makes each call's error; `StoreUnavailableError` when not given.
            on: the method that fails.
            memory_id: only calls in which this memory takes part; the others in the group fail with it.
        """
        self._fail("before", n, error, on, memory_id)

    def fail_after(
        self, n: int | None = 1, error: MakeError = _out_of_reach, *, on: Call = "commit", memory_id: str | None = None
    ) -> None:
        """Fail the next `n` calls after they have done their work: only the answer is lost. See `fail_before`."""
        self._fail("after", n, error, on, memory_id)

    def stall(self, on: Call = "commit", *, when: When = "before", memory_id: str | None = None) -> Stall:
        """Let every call hang until the stall is released; see `fail_before` for `on` and `memory_id`.

        Raises:
            InvalidArgumentError: the store is called inline, where a stall would block the event loop.
        """
        if self._inline:
            raise InvalidArgumentError("a stall would block the event loop: wrap the store with inline=False")
        stall = Stall()
        with self._lock:
            self._stalls[_Fault(stall._hold, on, when, None, memory_id)] = stall
        return stall

    def heal(self) -> None:
        """Misbehave no more, and release all that hang."""
        with self._lock:
            self._failures.clear()
            stalls, self._stalls = self._stalls, {}
        for stall in stalls.values():
            stall.release()

    # The store

    def open(self, *, durability: str) -> None:  # noqa: D102
        self._pass_on("open", lambda: self.wrapped.open(durability=durability))

    def close(self) -> None:  # noqa: D102
        self._pass_on("close", self.wrapped.close)

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:  # noqa: D102
        commit = self.wrapped.commit
        return self._pass_on("commit", lambda: commit(slices, receipt_ttl=receipt_ttl), [it.name for it in slices])

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:  # noqa: D102
        return self._pass_on("settle", lambda: self.wrapped.settle(slices), [it.name for it in slices])

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:  # noqa: D102
        return self._pass_on("load", lambda: self.wrapped.load(queries), [it.name for it in queries])

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:  # noqa: D102
        receipts = self.wrapped.receipts
        return self._pass_on("receipts", lambda: receipts(names_and_keys), [name for name, _ in names_and_keys])

    def names(self, **page: Any) -> list[Listed]:  # noqa: D102
        return self._pass_on("names", lambda: self.wrapped.names(**page))

    def expired(self, limit: int) -> list[MemoryName]:  # noqa: D102
        return self._pass_on("expired", lambda: self.wrapped.expired(limit))

    def changes(self, after: Cursor | None, limit: int) -> Changes:  # noqa: D102
        return self._pass_on("changes", lambda: self.wrapped.changes(after, limit))

    def announce(self) -> None:  # noqa: D102
        self._pass_on("announce", self.wrapped.announce, beside=True)

    def listen(self, timeout: float) -> bool:  # noqa: D102
        return self._pass_on("listen", lambda: self.wrapped.listen(timeout), beside=True)

    def search(self, query: SearchQuery) -> list[Found]:  # noqa: D102
        return self._pass_on("search", lambda: self.wrapped.search(query))

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:  # noqa: D102
        return self._pass_on("adopt", lambda: self.wrapped.adopt(transfers), [it.name for it in transfers])

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:  # noqa: D102
        return self._pass_on("reseal", lambda: self.wrapped.reseal(changes), [it.name for it in changes])

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:  # noqa: D102
        receipts_of = self.wrapped.receipts_of
        return self._pass_on("receipts_of", lambda: receipts_of(name, after=after, limit=limit), [name])

    def scrub(self) -> str | None:  # noqa: D102
        return self._pass_on("scrub", self.wrapped.scrub)

    def entries(self, mid: int, **page: Any) -> list[StoredEntry]:  # noqa: D102
        return self._pass_on("entries", lambda: self.wrapped.entries(mid, **page))

    def first_row(self) -> int:  # noqa: D102
        return self.wrapped.first_row()

    def now(self) -> int:  # noqa: D102
        return self.wrapped.now()

    def describe(self) -> str:  # noqa: D102
        return self.wrapped.describe()

    # Helpers

    def _fail(self, when: When, n: int | None, error: Callable[[], Exception], on: Call, memory_id: str | None) -> None:
        def fail() -> None:
            raise error()

        with self._lock:
            self._failures.append(_Fault(fail, on, when, n, memory_id))

    def _pass_on(
        self, call: Call, function: Callable[[], T], names: Sequence[MemoryName] = (), *, beside: bool = False
    ) -> T:
        with self._lock:
            self._calls[call] += 1
        self._misbehave(call, "before", names)
        with nullcontext() if beside else self._one_at_a_time:
            result = function()
        self._misbehave(call, "after", names)
        return result

    def _misbehave(self, call: Call, when: When, names: Sequence[MemoryName]) -> None:
        with self._lock:
            stalls = [stall for stall in self._stalls if stall.strikes(call, when, names)]
        for stall in stalls:
            stall.act()
        # Looked for only now: while it hung it may have been told to fail, or healed.
        with self._lock:
            failure = next((failure for failure in self._failures if failure.strikes(call, when, names)), None)
            if failure is None:
                return
            if failure.left is not None:
                failure.left -= 1
        failure.act()

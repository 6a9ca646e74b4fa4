"""The contract of a store: a plain blocking class that the runtime calls from a thread of its own.

A store keeps heads, entries and receipts, compares and sets heads, and reads. It knows nothing of actors, windows or
event loops. Who writes one needs no locks for the writing side: `commit` is called by one thread at a time, and the
reading methods by one other thread at a time, so two connections are all it takes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from turnkeeper.errors import StoreError
from turnkeeper.log import Head, Loaded, LoadQuery, Outcome, Slice, StoredEntry, StoredReceipt, Version
from turnkeeper.names import MemoryName

__all__ = ["Changes", "Found", "Listed", "SearchQuery", "Store"]


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A memory's name and row."""

    name: MemoryName
    head: Head


class Changes(msgspec.Struct, frozen=True, gc=False):
    """Which memories got entries: each one's name and the version of its newest entry in this part of the order."""

    cursor: int
    changed: tuple[tuple[MemoryName, Version], ...]


class SearchQuery(msgspec.Struct, frozen=True, gc=False):
    """What to search for.

    Attributes:
        text: words; an entry has to have all of them.
        namespace: only there; None: everywhere.
        prefix: only memories whose ids begin with it.
        limit: at most so many entries.
        before: only those at a lower place than this; 0: any.
    """

    text: str
    namespace: str | None
    prefix: str
    limit: int
    before: int

    def __repr__(self) -> str:
        """Show where, never what."""
        return f"<SearchQuery namespace={self.namespace!r} prefix={self.prefix!r} limit={self.limit}>"


class Found(msgspec.Struct, frozen=True, gc=False):
    """An entry that has all the words; `place` is lower for what the store took earlier.

    Attributes:
        place: where it stands among all that is found.
        name: its memory.
        mid: the memory's row.
        entry: the entry.
        current: whether the memory's state shows one of its messages.
    """

    place: int
    name: MemoryName
    mid: int
    entry: StoredEntry
    current: bool


class Store(ABC):
    """Where logs are durable.

    Methods may raise `StoreUnavailableError` when the store can't be reached, is full, locked or read-only, and any
    other `StoreError`; the runtime looks up by entry id what became of a commit that raised. Every call must be
    bounded in time by the driver's own means. No method may put message content, metadata or a password into an error.
    """

    inline: ClassVar[bool] = False
    """Calls take microseconds and need no thread."""

    shared: bool = False
    """Other processes may write: reads of a resident memory have to check the head first."""

    @abstractmethod
    def open(self, *, durability: str) -> None:
        """Connect, migrate and lock, before any other call; from the writing thread.

        Args:
            durability: "full" or "relaxed" (a lower sync setting).

        Raises:
            StoreInUseError: another runtime owns the store.
            StoreFormatError: a foreign store, or a newer schema.
            StoreUnavailableError: it can't be reached or written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; also after a failed `open`, and twice."""

    @abstractmethod
    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit each slice whole or not at all and return its outcome, in order.

        A slice whose `expected` is not the head's version is a `Conflict`; one with a key that is in use a
        `Duplicate`. An entry's key becomes a receipt that lives for `receipt_ttl` seconds. When this raises, what
        happened is looked up with `settle`.

        Only a `shared` store needs leases. A lease lives until it is given back or stolen, or its time is over by
        the store's clock. A slice with a lease and no entries changes nothing else. At the right version it is
        `Held` when another turn's lease lives on the memory, unless it steals it, and so is any other slice. One that
        has entries of its own `turn_id`, or renews its lease, is also `Held` when that lease lives no more, though
        nobody has written since. Taking a lease on a memory that does not exist makes its row, at version 0, and
        giving it back at that version removes it.
        """

    @abstractmethod
    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Tell for each slice whether it was committed, by its entry ids: `Committed`, or None when it was not."""

    @abstractmethod
    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories, each at one instant: the state's entries, or only those after what is known.

        What is known counts only where it belongs to the same `mid` and the state still starts at or before it.
        """

    @abstractmethod
    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys that have not expired."""

    @abstractmethod
    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories in byte order of (namespace, id).

        Args:
            namespace: only that one; None: all.
            after: only those behind this name.
            limit: at most so many.
            prefix: only ids that begin with it, byte for byte; a range, never a pattern.
            updated_after: only those whose `updated_at` is later.
        """

    def expired(self, limit: int) -> list[MemoryName]:
        """Return up to `limit` memories whose `expires_at` is over by the store's clock, the oldest first."""
        return []

    def changes(self, after: int | None, limit: int) -> Changes:
        """Read which memories got entries, in the order in which the store took them; only a `shared` store needs it.

        Each change is told at least once; a memory that was deleted since may be missing.

        Args:
            after: the last answer's cursor; None: from now on, so that only the cursor counts.
            limit: at most so many.
        """
        raise NotImplementedError

    def search(self, query: SearchQuery) -> list[Found]:
        """Find entries by their words, the newest first."""
        raise StoreError(f"{self.describe()} can't search; SQLite can, with '?search=true'")

    def scrub(self) -> str | None:
        """Make what was deleted unreadable in the store's files; from the writing thread.

        Returns:
            What prevented it for now, such as a reader that holds an old snapshot; None: nothing is left that this
            store could remove.
        """
        return None

    @abstractmethod
    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read entries whether the state shows them or not, in order of version.

        Args:
            mid: the memory's row; without one there are none.
            after: only entries with a higher version.
            limit: at most so many: the oldest of them,
            newest: or the newest.
            before: only entries with a lower version; 0: no bound.
        """

    def now(self) -> int:
        """Return the store's time, in microseconds since the epoch."""
        return int(time.time() * 1e6)

    @abstractmethod
    def describe(self) -> str:
        """Name the store for messages, without credentials."""

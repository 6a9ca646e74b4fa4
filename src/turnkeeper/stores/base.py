"""The contract of a store: a plain blocking class that the runtime calls from a thread of its own.

A store keeps heads, entries and receipts, compares and sets heads, and reads. It knows nothing of actors, windows or
event loops. Who writes one needs no locks for the writing side: `commit` is called by one thread at a time, and the
reading methods by one other thread at a time, so two connections are all it takes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec

from turnkeeper.errors import StoreError
from turnkeeper.log import Head, Loaded, LoadQuery, Outcome, Slice, StoredEntry, StoredReceipt, Version
from turnkeeper.names import MemoryName

__all__ = ["Changes", "Cursor", "Found", "KeptReceipt", "Listed", "SearchQuery", "Store", "Transfer"]

Cursor: TypeAlias = int | str
"""A place in the order of all changes; only the store that made it can tell which one. Places are compared by ==."""


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A memory's name and row."""

    name: MemoryName
    head: Head


class Changes(msgspec.Struct, frozen=True, gc=False):
    """Which memories got entries: each one's name and the version of its newest entry in this part of the order."""

    cursor: Cursor
    changed: tuple[tuple[MemoryName, Version], ...]


class KeptReceipt(msgspec.Struct, frozen=True, gc=False):
    """A receipt as it lies in the store.

    Attributes:
        key: the idempotency key.
        digest: SHA-256 of what it was used for.
        version: what it led to; with `mid` 0: a version of an earlier memory of that name.
        count: how many messages the request wrote.
        expires_at: microseconds since the epoch.
    """

    key: str
    digest: bytes
    version: Version
    count: int
    expires_at: int


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """A part of a memory as it lies in another store, on its way into this one.

    Attributes:
        name: the memory.
        mid: its row in this store; 0 creates it.
        expected: the version number it must be at here.
        head: what its row is to say, but for `mid`. Where entries or receipts are still to come, `version` is that of
            the last entry in this part.
        entries: in order of version, all behind `expected`; numbers may be missing, where entries were pruned.
        receipts: in any order; those that are there are replaced. Their `mid` is 0, or any other number for the row
            that this goes to.
    """

    name: MemoryName
    mid: int
    expected: int
    head: Head
    entries: tuple[StoredEntry, ...]
    receipts: tuple[KeptReceipt, ...] = ()


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

    announces: bool = False
    """Other processes can be told of changes: `announce` and `listen` work."""

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
        """Tell for each slice whether it was committed, by its entry ids: `Committed`, or None when it was not.

        After a commit that raised this is final: what is told to be not committed must not land any more. A store
        behind a network has to see to it that nothing of a lost connection is still under way.
        """

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

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        """Read which memories got entries, in the order in which the store took them; only a `shared` store needs it.

        Each change is told at least once; a memory that was deleted since may be missing.

        Args:
            after: the last answer's cursor; None: from now on, so that only the cursor counts.
            limit: at most so many.
        """
        raise NotImplementedError

    def announce(self) -> None:
        """Tell all who listen in other processes that something was committed.

        From a thread of its own, on a connection of its own, beside every other call. A notice may get lost: who
        waits for one looks into the store now and then all the same.
        """
        raise NotImplementedError

    def listen(self, timeout: float) -> bool:
        """Wait until another store object announces something; from a thread of its own, on a connection of its own.

        The first call begins to listen, and so does each one after a failure: as notices may have been missed, it
        returns True at once. `close` may be called meanwhile; then it returns soon.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether there was a notice. Those of this object itself don't count.
        """
        raise NotImplementedError

    def search(self, query: SearchQuery) -> list[Found]:
        """Find entries by their words, the newest first."""
        raise StoreError(f"{self.describe()} can't search; SQLite can, with '?search=true'")

    def adopt(self, transfer: Transfer) -> Outcome:
        """Write a part of a memory as it lies in another store, whole or not at all; from the writing thread.

        Compares as `commit` does, leases included: `Committed`, `Conflict` or `Held`.
        """
        raise StoreError(f"{self.describe()} can't take in copies")

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Read a memory's receipts that have not expired, by key in byte order: up to `limit` behind `after`."""
        raise StoreError(f"{self.describe()} can't list receipts")

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

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

__all__ = ["Changes", "Cursor", "Found", "KeptReceipt", "Listed", "Reseal", "SearchQuery", "Store", "Transfer"]

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
        expected: the version number it must be at here; 0 with `mid` 0, or for a row without entries.
        head: what its row is to say, but for `mid`: every field of it as given, times and metadata included. Where
            entries are still to come, `version` is that of the last entry in this part. It is never less than
            `expected`, and may be the same.
        entries: in order of version, all behind `expected`, none behind `head.version`; numbers may be missing, where
            entries were pruned. Numbers, ids, times and payloads are kept byte for byte.
        receipts: in any order; those that are there under the same key are replaced. One with `version.mid` 0 is kept
            with 0: it is of an earlier memory of that name; with any other number it gets the row that this goes to.
        base_was: the `base` that the row must have; -1: any. Whoever pruned here meanwhile must not be undone.
        meta_was: the `meta_version` that the row must have; -1: any. Nor whoever changed the metadata.
    """

    name: MemoryName
    mid: int
    expected: int
    head: Head
    entries: tuple[StoredEntry, ...]
    receipts: tuple[KeptReceipt, ...] = ()
    base_was: int = -1
    meta_was: int = -1

    def __repr__(self) -> str:
        """Show where it goes and how much it is, never what."""
        return f"<Transfer mid={self.mid} expected={self.expected} entries={len(self.entries)}>"


class Reseal(msgspec.Struct, frozen=True, gc=False):
    """A payload, or a memory's metadata, sealed anew: the same content in other bytes.

    Attributes:
        name: the memory.
        mid: its row.
        version: number of the entry; 0: it is the row's metadata.
        old: the bytes that have to be there still.
        new: those that take their place.
    """

    name: MemoryName
    mid: int
    version: int
    old: bytes
    new: bytes

    def __repr__(self) -> str:
        """Show where, never what."""
        return f"<Reseal mid={self.mid} version={self.version} bytes={len(self.new)}>"


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

    def first_row(self) -> int:
        """Return a number that no row of these data was ever below; 0: the store can't tell.

        It tells data that are new, as on an empty server that took another one's place, from data out of which
        something was deleted. From the reading thread.
        """
        return 0

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

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Write parts of memories as they lie in another store; from the writing thread.

        Each is written whole or not at all, and durable as a commit is, when this returns. It answers in order, as
        `commit` does: `Committed` with the row; `Conflict`, when there is no such row, or one where `mid` is 0, or it
        is at another version, base or revision of metadata than told; else `Held`, when a turn's lease lives on it. A
        row that is there for a lease or metadata alone is at version 0, and written to by its `mid`. Leases stay as
        they are.

        New entries are told by `changes` and found by `search` as committed ones are. Without entries only the row and
        the receipts are written; with version 0 that makes a row for metadata alone. Entries that are there stay:
        `commit` prunes. The same a second time is a `Conflict` where it had entries or created, and else the same.

        Args:
            transfers: at most one for each memory.
        """
        raise StoreError(f"{self.describe()} can't take in copies")

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Read a name's receipts that have not expired, by key in byte order: up to `limit` behind the key `after`.

        All of them: of the memory that is there, and of earlier ones that were deleted, told apart by `version.mid`.
        """
        raise StoreError(f"{self.describe()} can't list receipts")

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Put other bytes into the place of payloads or metadata, and nothing else; from the writing thread.

        Each by a compare-and-set of its own: it is written where the old bytes are there, byte for byte, whatever
        leases there are. No version, time or place in the order of changes moves, and nobody is told. It is durable
        when this returns, and the same a second time changes nothing.

        Returns:
            For each whether it was written; not, where the entry or the row is gone, or says something else by now.
        """
        raise StoreError(f"{self.describe()} can't have its payloads replaced, so no key can be rotated out there")

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

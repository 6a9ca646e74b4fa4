"""The contract of a store: a plain blocking class that the runtime calls from a thread of its own.

A store keeps heads, entries and receipts, compares and sets heads, and reads. It knows nothing of actors, windows or
event loops. Who writes one needs no locks for the writing side: `commit` is called by one thread at a time, and the
reading methods by one other thread at a time, so two connections are all it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from turnkeeper.log import Head, Loaded, LoadQuery, Outcome, Slice, StoredEntry, StoredReceipt
from turnkeeper.names import MemoryName

__all__ = ["Listed", "Store"]


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A memory's name and row."""

    name: MemoryName
    head: Head


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
    def names(self, *, namespace: str | None, after: MemoryName | None, limit: int) -> list[Listed]:
        """List up to `limit` memories in byte order of (namespace, id), from behind `after`; None: all namespaces."""

    @abstractmethod
    def entries(self, mid: int, *, after: int, limit: int) -> list[StoredEntry]:
        """Read up to `limit` entries behind version `after`, in order, whether the state shows them or not."""

    @abstractmethod
    def describe(self) -> str:
        """Name the store for messages, without credentials."""

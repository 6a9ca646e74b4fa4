"""The records that travel between handle, actor, committer and store: versions, entries, slices, outcomes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from turnkeeper.errors import InvalidArgumentError, StoreError
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName

__all__ = [
    "ADD",
    "CLEAR",
    "COMPACT",
    "SET",
    "UNDO",
    "Committed",
    "Conflict",
    "Duplicate",
    "Entry",
    "Head",
    "Held",
    "Key",
    "Lease",
    "LoadQuery",
    "Loaded",
    "NotCommitted",
    "Outcome",
    "Receipt",
    "Rejected",
    "Slice",
    "StoredEntry",
    "StoredReceipt",
    "Unknown",
    "Version",
    "encode_payload",
    "summed_up_to",
]

ADD: Final = "add"
SET: Final = "set"
CLEAR: Final = "clear"
COMPACT: Final = "compact"
"""Starts the state with what sums up the messages up to an earlier entry; those after that one stay."""

UNDO: Final = "undo"
"""Takes the state back to what it was after an earlier entry, and then adds the entry's own messages."""


class Version(msgspec.Struct, frozen=True, order=True, gc=False):
    """The state of one memory after its n-th entry: opaque, ordered, serialisable as text.

    Versions of two memories, or of a memory before and after a delete, never agree: `mid` is never used twice.
    """

    mid: int
    n: int

    def __str__(self) -> str:
        """Return the text form that `parse` reads."""
        return f"{self.mid}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `str(version)` back.

        Raises:
            InvalidArgumentError: the text is no version.
        """
        mid, dot, n = text.partition(".")
        if not (dot and mid.isascii() and mid.isdigit() and n.isascii() and n.isdigit()):
            raise InvalidArgumentError("this text is no version")
        return cls(int(mid), int(n))


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a committed request gets.

    Attributes:
        version: the memory's version with this change in it.
        count: how many messages the request wrote.
    """

    version: Version
    count: int


class Key(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key and the SHA-256 of what it was used for."""

    key: str
    digest: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry on its way into the log.

    Attributes:
        op: "add", "set", "clear", "compact" or "undo".
        entry_id: 16 random bytes.
        messages: what it adds, or starts anew with.
        key: idempotency key and content digest, or None.
        to: for "undo": number of the entry to whose state it goes back; for "compact": of the last one summed up.
        turn_id: the turn it belongs to; empty: none.
    """

    op: str
    entry_id: bytes
    messages: tuple[Message, ...]
    key: Key | None = None
    to: int = 0
    turn_id: bytes = b""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A turn's claim to be the only writer of a memory, by the store's clock.

    Attributes:
        turn_id: the turn.
        seconds: from now on; 0 gives it back.
        steal: take it though another turn holds it.
    """

    turn_id: bytes
    seconds: float
    steal: bool = False


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Entries of one memory that are committed together by one compare-and-set, all or nothing.

    Attributes:
        name: the memory.
        mid: its row; 0 creates it.
        expected: the version number it must be at.
        entries: what takes it to `expected + len(entries)`.
        base: version number of the entry that starts the state afterwards.
        system: version number of the entry with the state's system message afterwards, 0 when it has none.
        delete: remove the memory instead; then there are no entries.
        not_before: microseconds since the epoch that the entries' time must not precede.
        prune: remove the entries before `base`, but for the one at `system`.
        turn_id: the turn whose lease lets the slice through while it lives; empty: none.
        lease: take, renew or give back a lease with the same commit; such a slice may have no entries.
    """

    name: MemoryName
    mid: int
    expected: int
    entries: tuple[Entry, ...]
    base: int = 0
    system: int = 0
    delete: bool = False
    not_before: int = 0
    prune: bool = False
    turn_id: bytes = b""
    lease: Lease | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """A memory's row: where its log stands. Times are microseconds since the epoch by the store's clock."""

    mid: int
    version: int
    base: int
    system: int
    created_at: int
    updated_at: int


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry as it lies in the store; `at` is microseconds since the epoch."""

    version: int
    op: str
    entry_id: bytes
    payload: bytes
    at: int

    def __repr__(self) -> str:
        """Show kind and size, never the content."""
        return f"<StoredEntry version={self.version} op={self.op!r} bytes={len(self.payload)}>"


class LoadQuery(msgspec.Struct, frozen=True, gc=False):
    """Which memory to load, and how much of it.

    Attributes:
        name: the memory.
        known: what is known already, so that only what follows is needed; None: nothing. It counts only where it
            belongs to the same `mid` and the state still starts at or before it.
        newest: otherwise read at most this many of the state's entries, the newest ones; 0: all of them.
    """

    name: MemoryName
    known: Version | None = None
    newest: int = 0


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """One memory as it lies in the store, read at one instant.

    Attributes:
        head: its row, or None when there is no such memory.
        after: the entries are those of the present state with a higher version than this; 0 for the whole state.
        entries: in order of version.
        system: the entry with the state's system message, where it is none of `entries` and these follow nothing
            known.
        continues: the entries follow what the query said was known.
        start: the entry that starts the state, where it is none of `entries` and sums up what was before.
        older: the state starts with an entry that adds, though there is one before it.
    """

    head: Head | None
    after: int
    entries: tuple[StoredEntry, ...]
    system: StoredEntry | None = None
    continues: bool = False
    older: bool = False
    start: StoredEntry | None = None


class StoredReceipt(msgspec.Struct, frozen=True, gc=False):
    """The receipt that an idempotency key left, and the digest of the content it stood for."""

    receipt: Receipt
    digest: bytes


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The slice is durable.

    Attributes:
        mid: the row, which a creating slice learns here.
        at: microseconds since the epoch.
        stolen_from: number of the entry before the first one of a turn whose lease was stolen; -1: it has none.
    """

    mid: int
    at: int
    stolen_from: int = -1


class Held(msgspec.Struct, frozen=True, gc=False):
    """Another turn holds a lease on the memory, or the slice's own turn its lease no more; nothing was written."""


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The memory is not at the expected version; nothing was written."""


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The key of entry `index` was used before; nothing was written."""

    index: int
    stored: StoredReceipt


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The store can't hold this slice, whatever the others do; nothing was written."""

    error: StoreError


class NotCommitted(msgspec.Struct, frozen=True, gc=False):
    """The store failed before anything was written."""

    error: StoreError


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The store went out of reach in the commit and could not be asked: it may have happened, or may yet."""


Outcome: TypeAlias = Committed | Conflict | Held | Duplicate | Rejected | NotCommitted | Unknown


class _To(msgspec.Struct):
    to: int = 0


_decode_to = msgspec.json.Decoder(_To).decode


def summed_up_to(entry: StoredEntry) -> int:
    """Return the number of the last entry that a "compact" entry sums up; 0 when it can't be decoded."""
    try:
        return _decode_to(entry.payload).to
    except msgspec.DecodeError:
        return 0


def encode_payload(entry: Entry) -> bytes:
    """Return an entry's payload: a JSON object, so that each kind of entry can say what it needs."""
    messages = b",".join([message.raw for message in entry.messages])
    if entry.op in (UNDO, COMPACT):
        return b'{"to":%d,"messages":[%b]}' % (entry.to, messages)
    return b'{"messages":[%b]}' % messages

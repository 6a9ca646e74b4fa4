"""The records that travel between handle, actor, committer and store: versions, entries, slices, outcomes."""

from __future__ import annotations

import contextlib
from typing import Final, TypeAlias

import msgspec

from turnkeeper.errors import InvalidArgumentError, StoreError
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.wire import decode

__all__ = [
    "ADD",
    "CLEAR",
    "COMPACT",
    "EDIT",
    "FORK",
    "POP",
    "REMOVE",
    "SET",
    "STARTING",
    "UNDO",
    "Committed",
    "Conflict",
    "Details",
    "Duplicate",
    "Entry",
    "Head",
    "Held",
    "Key",
    "Lease",
    "LoadQuery",
    "Loaded",
    "NewMeta",
    "NotCommitted",
    "Outcome",
    "Receipt",
    "Rejected",
    "Removed",
    "Slice",
    "StoredEntry",
    "StoredReceipt",
    "Unknown",
    "Version",
    "details_of",
    "encode_payload",
    "first_entry",
    "message_count",
]

ADD: Final = "add"
SET: Final = "set"
CLEAR: Final = "clear"
COMPACT: Final = "compact"
"""Starts the state with what sums up the messages up to an earlier entry; those after that one stay."""

UNDO: Final = "undo"
"""Takes messages off the end of the state: everything behind a place in the log."""

POP: Final = "pop"
"""Takes the last message off, by the same rule as an undo."""

EDIT: Final = "edit"
"""Puts its message in the place of an earlier one, which keeps its id."""

REMOVE: Final = "remove"
"""Takes messages out, wherever they stand."""

FORK: Final = "fork"
"""Starts the state with that of another memory."""

STARTING: Final = frozenset((SET, CLEAR, COMPACT, FORK))
"""Nothing before them is needed for the state; for a compaction nothing before what it left."""


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


class Removed(msgspec.Struct, frozen=True, gc=False):
    """What was taken out of a memory's state.

    Attributes:
        version: the memory's version without it.
        messages: what was taken out, in order; empty: there was nothing, and nothing was changed.
    """

    version: Version
    messages: tuple[Message, ...]


class Key(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key and the SHA-256 of what it was used for."""

    key: str
    digest: bytes


Place: TypeAlias = tuple[int, int]
"""Where a message came into the log: the entry's number, and its index in there."""


class Details(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an entry says besides its messages; the rest of its payload.

    Attributes:
        to: for "undo" and "pop": number of the last entry that stays whole; for "compact": of the last one summed up.
        part: for "undo" and "pop": how many messages of the entry behind that one stay as well.
        places: for "edit" and "remove": the messages that go.
        system: number of the entry with the system message that was current before. Said where another one is current
            afterwards, and there was one.
        stays: for those that take away: the system message that is current afterwards, where another was before; for
            "compact": the one that stands before the summary. Its place, and itself as JSON.
        leads: for "fork": whether the first message is the system message that stands before all others.
        summary: for "fork": how many messages behind that one are a summary.
        origin: for "fork": the id, namespace and version that it was made from.
        begins: for the first entry after pruning moved `Head.base`: that, and `Head.system`, as they were when the
            entry came. Nothing else in the log tells once they have changed again. System -1: not known any more.
    """

    to: int = -1
    part: int = 0
    places: tuple[Place, ...] = ()
    system: int = 0
    stays: tuple[int, int, str] | None = None
    leads: bool = False
    summary: int = 0
    origin: tuple[str, str, str] | None = None
    begins: tuple[int, int] | None = None

    def __repr__(self) -> str:
        """Show what it says of places, never what was said there."""
        return f"<Details to={self.to} part={self.part} places={self.places} system={self.system}>"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry on its way into the log.

    Attributes:
        op: "add" or another of this module's constants.
        entry_id: 16 random bytes.
        messages: what it adds, or starts anew with.
        key: idempotency key and content digest, or None.
        details: what it says besides; None: nothing.
        turn_id: the turn it belongs to; empty: none.
        sealed: the payload to be stored, where something else than the plain one is; empty: the plain one.
    """

    op: str
    entry_id: bytes
    messages: tuple[Message, ...]
    key: Key | None = None
    details: Details | None = None
    turn_id: bytes = b""
    sealed: bytes = b""


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


class NewMeta(msgspec.Struct, frozen=True, gc=False):
    """Metadata that take the place of a memory's old ones by a compare-and-set of their own.

    Attributes:
        expected: the number of changes so far (`Head.meta_version`).
        data: JSON; the store looks at nothing in it.
    """

    expected: int
    data: bytes

    def __repr__(self) -> str:
        """Show the size, never the metadata."""
        return f"<NewMeta expected={self.expected} bytes={len(self.data)}>"


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
        prune: remove the entries before this one, but for those at `base` and `system`; 0: none. Such a slice may have
            no entries.
        turn_id: the turn whose lease lets the slice through while it lives; empty: none.
        lease: take, renew or give back a lease with the same commit; such a slice may have no entries.
        meta: new metadata; such a slice may have no entries, and then it makes a row at version 0 where there is none.
        expires_after: seconds from now after which the memory may be removed, if it is not changed before; 0: never.
            It counts where the slice has entries or metadata.
        only_expired: with `delete`: only if that time is over.
        base_was: the `base` that the memory must have, where the slice has entries or prunes: pruning moves that alone,
            and who does not know of it must not put it back. -1: any.
    """

    name: MemoryName
    mid: int
    expected: int
    entries: tuple[Entry, ...]
    base: int = 0
    system: int = 0
    delete: bool = False
    not_before: int = 0
    prune: int = 0
    turn_id: bytes = b""
    lease: Lease | None = None
    meta: NewMeta | None = None
    expires_after: float = 0.0
    only_expired: bool = False
    base_was: int = -1


class Head(msgspec.Struct, frozen=True, gc=False):
    """A memory's row: where its log stands. Times are microseconds since the epoch by the store's clock.

    Attributes:
        mid: never used twice.
        version: number of the last entry; 0 while there is none, in a row that is there for metadata or a lease alone.
        base: number of the entry that starts the state.
        system: number of the entry with the current system message, 0 without one.
        created_at: when the row was made.
        updated_at: the last entry's time.
        expires_at: when the memory may be removed; 0: never.
        meta_version: how often the metadata were changed.
        meta: the metadata; None: never given.
    """

    mid: int
    version: int
    base: int
    system: int
    created_at: int
    updated_at: int
    expires_at: int = 0
    meta_version: int = 0
    meta: bytes | None = None

    def __repr__(self) -> str:
        """Show where it stands, never the metadata."""
        return f"<Head mid={self.mid} version={self.version} base={self.base} meta_version={self.meta_version}>"


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
        start: the entry that starts the state, where it is none of `entries` and has a summary to show (an entry
            "compact" or "fork").
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


_decode_details = msgspec.json.Decoder(Details).decode
_NO_DETAILS: Final = Details()


def details_of(entry: StoredEntry) -> Details:
    """Return what a stored entry says besides its messages; nothing when it can't be decoded."""
    with contextlib.suppress(ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        try:
            return _decode_details(entry.payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Texts with lone surrogates, which the standard library reads.
            return msgspec.convert(decode(entry.payload), Details)
    return _NO_DETAILS


def first_entry(start: StoredEntry | None, base: int) -> int:
    """Return the number of the first entry that a state needs besides the one that starts it: what a store loads from.

    Args:
        start: the entry at `base`, where there is one.
        base: number of the entry that starts the state; 0: the first.
    """
    return details_of(start).to + 1 if start is not None and start.op == COMPACT else max(base, 1)


class _Counted(msgspec.Struct):
    messages: list[msgspec.Raw] = []


_decode_counted = msgspec.json.Decoder(_Counted).decode


def message_count(entry: StoredEntry) -> int:
    """Return how many messages a stored entry brought; one that can't be decoded counts as one."""
    try:
        return len(_decode_counted(entry.payload).messages)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 1


def encode_payload(entry: Entry) -> bytes:
    """Return an entry's payload: a JSON object, so that each kind of entry can say what it needs."""
    if entry.sealed:
        return entry.sealed
    messages = b",".join([message.raw for message in entry.messages])
    if entry.details is None:
        return b'{"messages":[%b]}' % messages
    fields = msgspec.json.encode(entry.details)[1:-1]
    return b'{%b%b"messages":[%b]}' % (fields, b"," if fields else b"", messages)

"""Slices, entries and rows as the Redis store's scripts take and give them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

from turnkeeper.errors import StoreError
from turnkeeper.log import (
    COMPACT,
    Committed,
    Conflict,
    Duplicate,
    Head,
    Held,
    Loaded,
    LoadQuery,
    Outcome,
    Receipt,
    Rejected,
    Slice,
    StoredEntry,
    StoredReceipt,
    Version,
    details_of,
    encode_payload,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import deciding
from turnkeeper.stores.base import KeptReceipt, Reseal, Transfer
from turnkeeper.stores.deciding import is_of_its_turn

__all__ = [
    "BUCKETS",
    "HEAD_FIELDS",
    "LARGEST",
    "adopting",
    "bucket_of",
    "committing",
    "entries_of",
    "entry_of",
    "head_of",
    "is_adopted",
    "is_resealed",
    "kept_receipt",
    "loaded",
    "member_of",
    "name_of",
    "outcome_of",
    "settled",
    "size_problem",
    "stored_receipt",
    "tag_of",
]

BUCKETS: Final = 64
"""How many parts the data are in; each lies in one slot of a cluster."""

LARGEST: Final = 500 * 2**20
"""Bytes of the largest entry: the server takes no string above 512 MB (proto-max-bulk-len)."""

HEAD_FIELDS: Final = ("m", "v", "b", "s", "c", "u", "x", "mv", "md")
"""Fields of a row in the order of `head_of`."""

_CONFLICT: Final = Conflict()
_HELD: Final = Held()
_NO_TO: Final = -1


def member_of(name: MemoryName) -> bytes:
    """Return a name as it stands in keys and indexes; their byte order is that of (namespace, id)."""
    return f"{name.namespace}\0{name.id}".encode()


def name_of(member: bytes) -> MemoryName:
    """Read `member_of` back."""
    namespace, _, memory_id = member.decode().partition("\0")
    return MemoryName(namespace, memory_id)


def bucket_of(member: bytes) -> int:
    """Return the bucket of a name."""
    return zlib.crc32(member) % BUCKETS


def tag_of(prefix: str, bucket: int) -> str:
    """Return what all keys of a bucket begin with."""
    return f"{{{prefix}:{bucket}}}"


# Entries


def packed(op: str, entry_id: bytes, payload: bytes) -> bytes:
    """Return an entry as it is stored, but for its time: the sizes in a line of text, then the bytes as they are.

    The line has the number of the last entry that a compaction sums up, so that a script can tell where a state begins.
    """
    to = _NO_TO if op != COMPACT else details_of(StoredEntry(0, op, entry_id, payload, 0)).to
    name = op.encode()
    return b"%d %d %d\n%b%b%b" % (to, len(name), len(entry_id), name, entry_id, payload)


def entry_of(version: int, value: bytes) -> StoredEntry:
    """Read an entry with its time."""
    line, _, rest = value.partition(b"\n")
    at, _, of_op, of_id = line.split()
    id_at, payload_at = int(of_op), int(of_op) + int(of_id)
    return StoredEntry(
        version, rest[:id_at].decode("utf-8", "replace"), rest[id_at:payload_at], rest[payload_at:], int(at)
    )


def entries_of(flat: Sequence[bytes]) -> list[StoredEntry]:
    """Read numbers and entries in turn."""
    return [entry_of(int(flat[n]), flat[n + 1]) for n in range(0, len(flat), 2)]


def size_problem(slice_: Slice, described: str) -> Rejected | None:
    """Refuse a slice that the server could not take, and would end the connection over."""
    for index, entry in enumerate(slice_.entries):
        size = len(encode_payload(entry)) if sum(len(message.raw) for message in entry.messages) > LARGEST // 2 else 0
        if size > LARGEST or len(entry.sealed) > LARGEST:
            return Rejected(StoreError(f"{described}: entry {index} of a commit has more than {LARGEST} bytes"))
    if slice_.meta is not None and len(slice_.meta.data) > LARGEST:
        return Rejected(StoreError(f"{described}: the metadata have more than {LARGEST} bytes"))
    return None


# Slices


def committing(slice_: Slice, member: bytes, bucket: int, now: int, ttl: int) -> list[Any]:
    """Return the arguments of the script that commits."""
    lease, meta, entries = slice_.lease, slice_.meta, slice_.entries
    arguments: list[Any] = [
        member,
        slice_.mid,
        slice_.expected,
        now,
        slice_.not_before,
        slice_.base,
        slice_.system,
        slice_.base_was,
        1 if slice_.delete else 0,
        1 if slice_.only_expired else 0,
        slice_.prune,
        slice_.turn_id,
        1 if is_of_its_turn(slice_) else 0,
        b"" if lease is None else lease.turn_id,
        -1 if lease is None else int(lease.seconds * 1e6),
        1 if lease is not None and lease.steal else 0,
        -1 if meta is None else meta.expected,
        b"" if meta is None else meta.data,
        int(slice_.expires_after * 1e6),
        ttl,
        BUCKETS,
        bucket,
        len(entries),
    ]
    keyed = [(index, entry, entry.key) for index, entry in enumerate(entries) if entry.key is not None]
    arguments.append(len(keyed))
    for entry in entries:
        arguments += (packed(entry.op, entry.entry_id, encode_payload(entry)), entry.turn_id)
    for index, entry, key in keyed:
        arguments += (index, key.key.encode(), key.digest, len(entry.messages))
    return arguments


def adopting(transfer: Transfer, member: bytes, bucket: int, now: int) -> list[Any]:
    """Return the arguments of the script that takes in."""
    head = transfer.head
    arguments: list[Any] = [
        member,
        transfer.mid,
        transfer.expected,
        now,
        transfer.base_was,
        transfer.meta_was,
        BUCKETS,
        bucket,
        head.version,
        head.base,
        head.system,
        head.created_at,
        head.updated_at,
        head.expires_at,
        head.meta_version,
        0 if head.meta is None else 1,
        head.meta or b"",
        len(transfer.entries),
        len(transfer.receipts),
    ]
    for entry in transfer.entries:
        arguments += (entry.version, b"%d %b" % (entry.at, packed(entry.op, entry.entry_id, entry.payload)))
    for kept in transfer.receipts:
        line = b"%d %d %d\n%b" % (kept.version.n, kept.count, kept.expires_at, kept.digest)
        arguments += (kept.key.encode(), kept.version.mid, line, kept.expires_at)
    return arguments


def outcome_of(reply: list[Any]) -> Outcome:
    """Read what a script says became of a slice or a transfer."""
    if reply[0] == 0:
        return Committed(int(reply[1]), int(reply[2]), int(reply[3]))
    if reply[0] == 3:
        return Duplicate(int(reply[1]), stored_receipt(reply[2]))
    return _CONFLICT if reply[0] == 1 else _HELD


# Receipts


def kept_receipt(key: bytes, value: bytes) -> KeptReceipt:
    """Read a receipt."""
    line, _, digest = value.partition(b"\n")
    mid, version, count, expires_at = map(int, line.split())
    return KeptReceipt(key.decode(), digest, Version(mid, version), count, expires_at)


def stored_receipt(value: bytes) -> StoredReceipt:
    """Read a receipt whose key is known."""
    kept = kept_receipt(b"", value)
    return StoredReceipt(Receipt(kept.version, kept.count), kept.digest)


# Rows


def head_of(row: Sequence[bytes | None]) -> Head:
    """Read mid, version, base, system, created_at, updated_at, expires_at, meta_version and metadata."""
    mid, version, base, system, created_at, updated_at, expires_at, meta_version = (
        int(field or 0) for field in row[:8]
    )
    return Head(mid, version, base, system, created_at, updated_at, expires_at, meta_version, row[8])


def loaded(reply: list[Any] | None, query: LoadQuery) -> Loaded:
    """Read what a script found of a memory; see `Store.load`."""
    if reply is None:
        return Loaded(None, 0, ())
    head, entries = head_of(reply[0]), tuple(entries_of(reply[2]))
    if reply[1]:
        assert query.known is not None
        return Loaded(head, query.known.n, entries, continues=True)
    base = int(reply[3])
    return deciding.state_of(
        head,
        base,
        entries,
        query.newest,
        start=None if reply[4] is None else entry_of(head.base, reply[4]),
        system=lambda: None if reply[6] is None else entry_of(head.system, reply[6]),
        earlier=lambda: bool(reply[5]),
    )


def settled(slice_: Slice, reply: list[Any] | None) -> Outcome | None:
    """Tell whether a slice was committed, by the memory's row and the entry behind `expected`; see `Store.settle`."""
    row: Sequence[bytes | None]
    value: bytes | None
    row, value = ([None] * 9, None) if reply is None else reply
    mid, version, base, updated_at, meta_version = (int(field or 0) for field in row[:5])
    if slice_.delete:
        return Committed(slice_.mid, 0) if mid != slice_.mid else None
    change = slice_.meta is not None or slice_.prune
    if not slice_.entries and not change:
        return deciding.settled_lease(slice_, mid, updated_at, row[6])
    if slice_.entries:
        stored = None if value is None else entry_of(slice_.expected + 1, value)
        found, at = (None, 0) if stored is None else (stored.entry_id, stored.at)
        return deciding.settled_entries(slice_, mid, version, found, at)
    if not mid or (slice_.mid and mid != slice_.mid):
        return None
    if slice_.meta is not None:
        head = Head(mid, version, base, 0, 0, updated_at, 0, meta_version, row[5])
        return deciding.settled_meta(head, slice_.meta)
    left = [int(number) for number in (row[8] or b"").split() if int(number) < slice_.prune]
    done = base >= slice_.base and int(row[7] or 1) > min(slice_.prune - 1, version)
    return Committed(mid, updated_at) if done and set(left) <= {slice_.base, slice_.system} else None


def is_adopted(transfer: Transfer, reply: list[Any] | None) -> int:
    """Return the row's mid if a transfer with entries, or one that creates, is there already; else 0."""
    if reply is None:
        return 0
    row, value = reply
    mid, version = int(row[0]), int(row[1] or 0)
    if (transfer.mid and mid != transfer.mid) or version != transfer.head.version:
        return 0
    if not transfer.entries:
        return 0 if transfer.mid else mid
    last = transfer.entries[-1]
    return mid if value is not None and entry_of(last.version, value).entry_id == last.entry_id else 0


def is_resealed(change: Reseal, reply: list[Any] | None) -> int | None:
    """Return 1 if the new bytes are there already, None if that has to be tried."""
    if reply is None or int(reply[0][0]) != change.mid:
        return None
    if not change.version:
        return 1 if reply[0][5] == change.new else None
    return 1 if reply[1] is not None and entry_of(change.version, reply[1]).payload == change.new else None

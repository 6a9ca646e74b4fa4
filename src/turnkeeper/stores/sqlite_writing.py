"""What a commit does to the SQLite store's tables: one slice after the other, in the group's transaction."""

from __future__ import annotations

import sqlite3
from typing import Final, TypeAlias

from turnkeeper.log import (
    Committed,
    Conflict,
    Duplicate,
    Entry,
    Key,
    NewMeta,
    Outcome,
    Receipt,
    Slice,
    StoredReceipt,
    Version,
    encode_payload,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import sqlite_leases as leases
from turnkeeper.stores.deciding import is_of_its_turn

__all__ = ["APPEND", "KEEP_RECEIPT", "EntryRow", "commit_slice", "find_receipt", "move", "prune"]

APPEND: Final = "INSERT INTO entry (mid, version, op, entry_id, turn_id, payload, at) VALUES (?, ?, ?, ?, ?, ?, ?)"

_CREATE: Final = (
    "INSERT INTO head (namespace, id, version, base, system, created_at, updated_at, expires_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, id) DO NOTHING"
)
_AHEAD: Final = (
    "UPDATE head SET version = ?, base = ?, system = ?, updated_at = ?, expires_at = ? "
    "WHERE mid = ? AND version = ? AND ? IN (base, -1) AND "
)
_ADVANCE: Final = _AHEAD + leases.FREE
_ADVANCE_TURN: Final = _AHEAD + leases.OWN
_REBASE: Final = (
    f"UPDATE head SET base = ?, system = ? WHERE mid = ? AND version = ? AND ? IN (base, -1) AND {leases.FREE}"
)
_DESCRIBE: Final = "UPDATE head SET meta = ?, meta_version = ?, expires_at = ? WHERE mid = ? AND meta_version = ?"
_DESCRIBE_AT: Final = f"{_DESCRIBE} AND version = ? AND ? IN (base, -1) AND "
_IS_OVER: Final = "SELECT 1 FROM head WHERE mid = ? AND version = ? AND expires_at > 0 AND expires_at <= ?"
_DELETE: Final = f"DELETE FROM head WHERE mid = ? AND version = ? AND {leases.FREE}"
_PRUNE: Final = "DELETE FROM entry WHERE mid = ? AND version < ? AND version NOT IN (?, ?)"
KEEP_RECEIPT: Final = (
    "INSERT OR REPLACE INTO receipt (name_digest, key, mid, digest, version, count, expires_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_DROP_EXPIRED: Final = (
    "DELETE FROM receipt WHERE rowid IN (SELECT rowid FROM receipt WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
_RECEIPT: Final = "SELECT mid, version, count, digest FROM receipt WHERE name_digest = ? AND key = ? AND expires_at > ?"
_MOVE: Final = (
    "INSERT INTO head (namespace, id, version, base, system, created_at, updated_at, meta, meta_version) "
    "SELECT ?, ?, version, base, system, created_at, updated_at, meta, meta_version FROM head WHERE mid = ?"
)

_CONFLICT: Final = Conflict()

EntryRow: TypeAlias = tuple[int, int, str, bytes, bytes | None, bytes, int]


def commit_slice(
    connection: sqlite3.Connection, slice_: Slice, now: int, receipts_until: int, rows: list[EntryRow]
) -> Outcome:
    """Write one slice's head and receipts and leave its entries in `rows`; whatever may refuse it comes first."""
    if not slice_.entries:
        outcome = _change(connection, slice_, now)
        if rows and slice_.delete and isinstance(outcome, Committed):
            rows[:] = [row for row in rows if row[0] != slice_.mid]  # what the same group had added goes as well
        return outcome
    keyed = [(index, entry, entry.key) for index, entry in enumerate(slice_.entries) if entry.key is not None]
    for index, _, key in keyed:
        if (stored := find_receipt(connection, slice_.name, key.key, now)) is not None:
            return Duplicate(index, stored)
    mid, expected, at = slice_.mid, slice_.expected, max(now, slice_.not_before)
    expires_at = at + int(slice_.expires_after * 1e6) if slice_.expires_after else 0
    state = expected + len(slice_.entries), slice_.base, slice_.system, at
    if mid:
        if slice_.meta is not None and not _describe(connection, slice_, slice_.meta, expires_at, now):
            return leases.refusal(connection, slice_)
        advance = _ADVANCE_TURN if is_of_its_turn(slice_) else _ADVANCE
        cursor = connection.execute(advance, (*state, expires_at, mid, expected, slice_.base_was, now, slice_.turn_id))
    elif slice_.turn_id and is_of_its_turn(slice_):
        return leases.HELD  # the row that its lease was for is gone
    else:
        cursor = connection.execute(_CREATE, (*slice_.name, *state, at, expires_at))
        mid = cursor.lastrowid or 0
    if cursor.rowcount != 1:
        return leases.refusal(connection, slice_)
    if slice_.meta is not None and not slice_.mid:
        connection.execute(_DESCRIBE, (slice_.meta.data, 1, expires_at, mid, 0))
    if slice_.lease is not None:
        leases.put(connection, mid, slice_.lease, now)
    for n, entry in enumerate(slice_.entries, start=expected + 1):
        rows.append((mid, n, entry.op, entry.entry_id, entry.turn_id or None, encode_payload(entry), at))
    if keyed:
        _keep_receipts(connection, slice_, mid, keyed, now, receipts_until)
    return Committed(mid, at)


def _change(connection: sqlite3.Connection, slice_: Slice, now: int) -> Outcome:
    """Do what a slice without entries is for; its entries' time stays as it is."""
    mid, at, meta = slice_.mid, max(now, slice_.not_before), slice_.meta
    if slice_.delete:
        return _delete(connection, slice_, now)
    if meta is None and not slice_.prune:
        return _CONFLICT if slice_.lease is None else leases.change(connection, slice_, slice_.lease, now)
    expires_at = at + int(slice_.expires_after * 1e6) if slice_.expires_after else 0
    if not mid:
        if meta is None or meta.expected:
            return _CONFLICT
        cursor = connection.execute(_CREATE, (*slice_.name, 0, 0, 0, at, at, expires_at))
        if cursor.rowcount != 1:
            return _CONFLICT
        mid = cursor.lastrowid or 0
        connection.execute(_DESCRIBE, (meta.data, 1, expires_at, mid, 0))
    elif meta is not None and not _describe(connection, slice_, meta, expires_at, now):
        return leases.refusal(connection, slice_)
    if slice_.prune:
        state = slice_.base, slice_.system, mid, slice_.expected, slice_.base_was, now, slice_.turn_id
        if connection.execute(_REBASE, state).rowcount != 1:
            return leases.refusal(connection, slice_)
    if slice_.lease is not None:
        leases.put(connection, mid, slice_.lease, now)
    return Committed(mid, at)


def _describe(connection: sqlite3.Connection, slice_: Slice, meta: NewMeta, expires_at: int, now: int) -> bool:
    """Put new metadata into a head that nothing speaks against changing."""
    allowed = leases.OWN if is_of_its_turn(slice_) else leases.FREE
    values = meta.data, meta.expected + 1, expires_at, slice_.mid, meta.expected, slice_.expected
    base = slice_.base_was if slice_.entries or slice_.prune else -1
    cursor = connection.execute(_DESCRIBE_AT + allowed, (*values, base, now, slice_.turn_id))
    return cursor.rowcount == 1


def _delete(connection: sqlite3.Connection, slice_: Slice, now: int) -> Outcome:
    mid, expected = slice_.mid, slice_.expected
    if slice_.only_expired and connection.execute(_IS_OVER, (mid, expected, now)).fetchone() is None:
        return _CONFLICT
    if not connection.execute(_DELETE, (mid, expected, now, slice_.turn_id)).rowcount:
        return leases.refusal(connection, slice_)
    connection.execute("DELETE FROM entry WHERE mid = ?", (mid,))
    return Committed(mid, max(now, slice_.not_before))


def prune(connection: sqlite3.Connection, slice_: Slice, mid: int) -> None:
    """Remove a committed slice's older entries."""
    connection.execute(_PRUNE, (mid, slice_.prune, slice_.base, slice_.system))


def find_receipt(connection: sqlite3.Connection, name: MemoryName, key: str, now: int) -> StoredReceipt | None:
    """Look up an idempotency key that has not expired."""
    row = connection.execute(_RECEIPT, (name.digest(), key, now)).fetchone()
    if row is None:
        return None
    mid, version, count, digest = row
    return StoredReceipt(Receipt(Version(mid, version), count), digest)


def _keep_receipts(
    connection: sqlite3.Connection,
    slice_: Slice,
    mid: int,
    keyed: list[tuple[int, Entry, Key]],
    now: int,
    expires_at: int,
) -> None:
    # Each new receipt pays for the removal of two expired ones, so they can't pile up and no sweep is needed.
    connection.execute(_DROP_EXPIRED, (now, 2 * len(keyed)))
    digest = slice_.name.digest()
    for index, entry, key in keyed:
        version = slice_.expected + index + 1
        row = (digest, key.key, mid, key.digest, version, len(entry.messages), expires_at)
        connection.execute(KEEP_RECEIPT, row)


def move(connection: sqlite3.Connection, mid: int, to: MemoryName) -> None:
    """Give a memory another name, and a row of its own, so that whoever holds the old one can't write any more."""
    moved = connection.execute(_MOVE, (*to, mid)).lastrowid
    connection.execute("UPDATE entry SET mid = ? WHERE mid = ?", (moved, mid))
    connection.execute("DELETE FROM head WHERE mid = ?", (mid,))

"""Taking in memories as they lie in another store, and giving away receipts: what a copy needs of the SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnkeeper.log import Committed, Conflict, Outcome, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import sqlite_leases as leases
from turnkeeper.stores import sqlite_writing as writing
from turnkeeper.stores.base import KeptReceipt, Transfer

__all__ = ["adopt", "receipts_of"]

_CREATE: Final = (
    "INSERT INTO head (namespace, id, version, base, system, created_at, updated_at, expires_at, meta_version, meta) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, id) DO NOTHING"
)
_ROW: Final = "SELECT mid, version, base, meta_version FROM head WHERE namespace = ? AND id = ?"
_WRITE: Final = (
    "UPDATE head SET version = ?, base = ?, system = ?, created_at = ?, updated_at = ?, expires_at = ?, "
    f"meta_version = ?, meta = ? WHERE mid = ? AND {leases.FREE}"
)
_RECEIPTS: Final = (
    "SELECT key, digest, mid, version, count, expires_at FROM receipt "
    "WHERE name_digest = ? AND key > ? AND expires_at > ? ORDER BY key LIMIT ?"
)

_CONFLICT: Final = Conflict()


def adopt(connection: sqlite3.Connection, transfer: Transfer, now: int) -> Outcome:
    """Write one transfer; whatever may refuse it comes first. See `Store.adopt`."""
    head, mid = transfer.head, transfer.mid
    state = head.version, head.base, head.system, head.created_at, head.updated_at, head.expires_at
    meta = head.meta_version, head.meta
    if mid:
        row = connection.execute(_ROW, transfer.name).fetchone()
        if row is None or row[:2] != (mid, transfer.expected):
            return _CONFLICT
        if transfer.base_was not in (-1, row[2]) or transfer.meta_was not in (-1, row[3]):
            return _CONFLICT
        if connection.execute(_WRITE, (*state, *meta, mid, now, b"")).rowcount != 1:
            return leases.HELD
    else:
        cursor = connection.execute(_CREATE, (*transfer.name, *state, *meta))
        if cursor.rowcount != 1:
            return _CONFLICT
        mid = cursor.lastrowid or 0
    connection.executemany(
        writing.APPEND,
        [(mid, entry.version, entry.op, entry.entry_id, None, entry.payload, entry.at) for entry in transfer.entries],
    )
    if transfer.receipts:
        digest = transfer.name.digest()
        connection.executemany(
            writing.KEEP_RECEIPT,
            [
                (digest, kept.key, mid if kept.version.mid else 0, kept.digest, kept.version.n, kept.count, until)
                for kept in transfer.receipts
                if (until := kept.expires_at) > now
            ],
        )
    return Committed(mid, now)


def receipts_of(
    connection: sqlite3.Connection, name: MemoryName, *, after: str, limit: int, now: int
) -> list[KeptReceipt]:
    """Read a name's receipts along the index on (name, key); see `Store.receipts_of`."""
    rows = connection.execute(_RECEIPTS, (name.digest(), after, now, limit))
    return [KeptReceipt(row[0], row[1], Version(row[2], row[3]), row[4], row[5]) for row in rows]

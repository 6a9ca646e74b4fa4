"""What is read from the SQLite store's tables."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from turnkeeper.log import (
    Committed,
    Head,
    Loaded,
    LoadQuery,
    Outcome,
    Slice,
    StoredEntry,
    Version,
    first_entry,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import deciding
from turnkeeper.stores.base import Changes, Cursor, Listed
from turnkeeper.stores.ranges import listing

__all__ = ["changes", "expired", "list_names", "load", "page", "row_of", "settle"]

_ROW: Final = "mid, version, base, system, created_at, updated_at, expires_at, meta_version, meta"
_HEAD: Final = f"SELECT {_ROW} FROM head WHERE namespace = ? AND id = ?"
_ENTRIES: Final = "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version >= ? ORDER BY version"
_NEWEST: Final = (
    "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version >= ? ORDER BY version DESC LIMIT ?"
)
_PAGE: Final = (
    "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version > ? AND version < ? "
    "ORDER BY version {} LIMIT ?"
)
_NO_BOUND: Final = 2**63 - 1
_COMMITTED: Final = (
    "SELECT head.mid, head.version, entry.entry_id, entry.at FROM head "
    "LEFT JOIN entry ON entry.mid = head.mid AND entry.version = ? WHERE head.namespace = ? AND head.id = ?"
)
_HOLDER: Final = "SELECT mid, updated_at, turn_id FROM head WHERE namespace = ? AND id = ?"
_NO_ROW: Final = (0, 0, None, 0)
_LEFT: Final = "SELECT 1 FROM entry WHERE mid = ? AND version < ? AND version NOT IN (?, ?) LIMIT 1"
_EXPIRED: Final = (
    "SELECT namespace, id FROM head WHERE expires_at > 0 AND expires_at <= ? ORDER BY expires_at, mid LIMIT ?"
)
# AUTOINCREMENT makes this a cursor: a commit's entries come behind all that were ever committed, also when the newest
# were deleted meanwhile, and commits take turns, so nothing comes before what a reader has seen. A plain rowid would be
# given out again, and VACUUM may number it anew.
_CHANGES: Final = (
    "SELECT namespace, id, part.mid, max(part.version), max(part.seq) FROM "
    "(SELECT seq, mid, version FROM entry WHERE seq > ? ORDER BY seq LIMIT ?) AS part LEFT JOIN head USING (mid) "
    "GROUP BY part.mid ORDER BY max(part.seq)"
)
_LAST_CHANGE: Final = "SELECT max(seq) FROM entry"


def row_of(connection: sqlite3.Connection, name: MemoryName) -> Head | None:
    """Read a memory's row."""
    row = connection.execute(_HEAD, name).fetchone()
    return None if row is None else Head(*row)


def load(connection: sqlite3.Connection, query: LoadQuery) -> Loaded:
    """Read one memory; see `Store.load`."""
    row = connection.execute(_HEAD, query.name).fetchone()
    if row is None:
        return Loaded(None, 0, ())
    head, known = Head(*row), query.known
    if known is not None and known.mid == head.mid and head.base <= known.n:
        rows = connection.execute(_ENTRIES, (head.mid, known.n + 1)) if known.n < head.version else ()
        return Loaded(head, known.n, tuple([StoredEntry(*row) for row in rows]), continues=True)
    start = _entry(connection, head.mid, head.base) if head.base else None
    base = first_entry(start, head.base)
    if query.newest:
        rows = reversed(connection.execute(_NEWEST, (head.mid, base, query.newest)).fetchall())
    else:
        rows = connection.execute(_ENTRIES, (head.mid, base))
    entries = tuple([StoredEntry(*row) for row in rows])
    return deciding.state_of(
        head,
        base,
        entries,
        query.newest,
        start=start,
        system=lambda: _entry(connection, head.mid, head.system),
        earlier=lambda: _entry(connection, head.mid, base - 1) is not None,
    )


def _entry(connection: sqlite3.Connection, mid: int, version: int) -> StoredEntry | None:
    row = connection.execute(f"{_ENTRIES} LIMIT 1", (mid, version)).fetchone()
    return StoredEntry(*row) if row is not None and row[0] == version else None


def page(
    connection: sqlite3.Connection, mid: int, *, after: int, before: int, limit: int, newest: bool
) -> list[StoredEntry]:
    """Read a part of a log; see `Store.entries`."""
    direction = "DESC" if newest else "ASC"
    rows = connection.execute(_PAGE.format(direction), (mid, after, before or _NO_BOUND, limit)).fetchall()
    return [StoredEntry(*row) for row in (reversed(rows) if newest else rows)]


def list_names(connection: sqlite3.Connection, **which: Any) -> list[Listed]:
    """List memories along the index on (namespace, id); see `Store.names`."""
    rest, values = listing("?", **which)
    rows = connection.execute(f"SELECT namespace, id, {_ROW} FROM head {rest}", values)
    return [Listed(MemoryName(row[0], row[1]), Head(*row[2:])) for row in rows]


def expired(connection: sqlite3.Connection, now: int, limit: int) -> list[MemoryName]:
    """List memories whose time is over, the oldest first."""
    return [MemoryName(*row) for row in connection.execute(_EXPIRED, (now, limit))]


def changes(connection: sqlite3.Connection, after: Cursor | None, limit: int) -> Changes:
    """Read which memories got entries behind a place in the order of all entries; see `Store.changes`."""
    if after is None:
        return Changes(connection.execute(_LAST_CHANGE).fetchone()[0] or 0, ())
    rows = connection.execute(_CHANGES, (after, limit)).fetchall()
    changed = [(MemoryName(row[0], row[1]), Version(row[2], row[3])) for row in rows if row[1] is not None]
    return Changes(rows[-1][4] if rows else after, tuple(changed))


def settle(connection: sqlite3.Connection, slice_: Slice) -> Outcome | None:
    """Tell whether a slice was committed; see `Store.settle`."""
    if slice_.delete:
        there = connection.execute("SELECT 1 FROM head WHERE mid = ?", (slice_.mid,)).fetchone()
        return Committed(slice_.mid, 0) if there is None else None
    if not slice_.entries:
        if slice_.meta is not None or slice_.prune:
            return _settle_change(connection, slice_)
        holder: tuple[Any, ...] = connection.execute(_HOLDER, slice_.name).fetchone() or (0, 0, None)
        return deciding.settled_lease(slice_, *holder)
    found: tuple[Any, ...] = connection.execute(_COMMITTED, (slice_.expected + 1, *slice_.name)).fetchone() or _NO_ROW
    return deciding.settled_entries(slice_, *found)


def _settle_change(connection: sqlite3.Connection, slice_: Slice) -> Outcome | None:
    head, meta = row_of(connection, slice_.name), slice_.meta
    if head is None or (slice_.mid and head.mid != slice_.mid):
        return None
    if meta is not None:
        return deciding.settled_meta(head, meta)
    left = connection.execute(_LEFT, (head.mid, slice_.prune, slice_.base, slice_.system)).fetchone()
    return Committed(head.mid, head.updated_at) if head.base >= slice_.base and left is None else None

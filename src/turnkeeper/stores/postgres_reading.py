"""What is read from the PostgreSQL store's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from turnkeeper.log import (
    Committed,
    Head,
    Loaded,
    LoadQuery,
    Outcome,
    Receipt,
    Slice,
    StoredEntry,
    StoredReceipt,
    Version,
    first_entry,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import deciding
from turnkeeper.stores.base import Changes, Cursor, KeptReceipt, Listed
from turnkeeper.stores.postgres_links import Connection
from turnkeeper.stores.postgres_writing import key_bytes
from turnkeeper.stores.ranges import listing

__all__ = ["changes", "entries", "expired", "load", "names", "receipts", "receipts_of", "settle"]

_ROW: Final = "h.mid, h.version, h.base, h.system, h.created_at, h.updated_at, h.expires_at, h.meta_version, h.meta"
_ENTRY: Final = "{0}.version, {0}.op, {0}.entry_id, {0}.payload, {0}.at"
_HEADS: Final = (
    f"SELECT q.ord, {_ROW} FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS q (namespace, id, ord) "
    "JOIN head h ON h.namespace = q.namespace AND h.id = q.id"
)
_STARTS: Final = (
    f"SELECT q.ord, {_ROW}, {_ENTRY.format('s')}, {_ENTRY.format('y')}, EXISTS ("
    "SELECT 1 FROM entry e WHERE e.mid = h.mid AND e.version = greatest(h.base, 1) - 1) "
    "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS q (namespace, id, ord) "
    "JOIN head h ON h.namespace = q.namespace AND h.id = q.id "
    "LEFT JOIN entry s ON s.mid = h.mid AND s.version = h.base AND h.base > 0 "
    "LEFT JOIN entry y ON y.mid = h.mid AND y.version = h.system AND h.system > 0"
)
_TAILS: Final = (
    f"SELECT q.ord, {_ENTRY.format('e')} "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS q (ord, mid, first, newest), "
    "LATERAL (SELECT * FROM entry WHERE entry.mid = q.mid AND entry.version >= q.first "
    "ORDER BY entry.version DESC LIMIT nullif(q.newest, 0)) AS e ORDER BY q.ord, e.version"
)
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class _Wanted(NamedTuple):
    """A memory of which entries are to be read."""

    place: int
    head: Head
    first: int
    newest: int
    known: int
    start: StoredEntry | None
    system: StoredEntry | None
    earlier: bool


def load(connection: Connection, queries: Sequence[LoadQuery]) -> list[Loaded]:
    """Read memories; one trip for all of those that stand where they are known to stand."""
    columns = [query.name.namespace for query in queries], [query.name.id for query in queries]
    if all(query.known is not None for query in queries):
        heads = {row[0]: Head(*row[1:]) for row in connection.execute(_HEADS, columns, binary=True)}
        found = [_unmoved(query, heads.get(place)) for place, query in enumerate(queries, start=1)]
        if None not in found:
            return [loaded for loaded in found if loaded is not None]
    # One snapshot: the entries have to be those of the heads.
    connection.execute(_SNAPSHOT)
    try:
        answer = _load(connection, queries, columns)
    finally:
        if not (connection.closed or connection.broken):
            connection.execute("COMMIT")
    return answer


def _unmoved(query: LoadQuery, head: Head | None) -> Loaded | None:
    if head is None:
        return Loaded(None, 0, ())
    known = query.known
    if known is not None and (known.mid, known.n) == (head.mid, head.version) and head.base <= known.n:
        return Loaded(head, known.n, (), continues=True)
    return None


def _load(connection: Connection, queries: Sequence[LoadQuery], columns: tuple[list[str], list[str]]) -> list[Loaded]:
    rows = {row[0]: row for row in connection.execute(_STARTS, columns, binary=True)}
    wanted: list[_Wanted] = []
    for place, query in enumerate(queries, start=1):
        if (row := rows.get(place)) is not None:
            wanted.append(_want(place, query, row))
    tails: dict[int, list[StoredEntry]] = {}
    if wanted:
        asked = [[one.place for one in wanted], [one.head.mid for one in wanted], [one.first for one in wanted]]
        asked.append([one.newest for one in wanted])
        for row in connection.execute(_TAILS, asked, binary=True):  # payloads as text take twice the room
            tails.setdefault(row[0], []).append(StoredEntry(*row[1:]))
    by_place = {one.place: _loaded(one, tuple(tails.get(one.place, ()))) for one in wanted}
    nothing = Loaded(None, 0, ())
    return [by_place.get(place, nothing) for place in range(1, len(queries) + 1)]


def _want(place: int, query: LoadQuery, row: tuple[Any, ...]) -> _Wanted:
    head = Head(*row[1:10])
    start = StoredEntry(*row[10:15]) if row[10] is not None else None
    system = StoredEntry(*row[15:20]) if row[15] is not None else None
    known = query.known
    if known is not None and known.mid == head.mid and head.base <= known.n:
        return _Wanted(place, head, known.n + 1, 0, known.n, None, None, earlier=False)
    return _Wanted(place, head, first_entry(start, head.base), query.newest, -1, start, system, earlier=row[20])


def _loaded(one: _Wanted, found: tuple[StoredEntry, ...]) -> Loaded:
    if one.known >= 0:
        return Loaded(one.head, one.known, found, continues=True)
    return deciding.state_of(
        one.head,
        one.first,
        found,
        one.newest,
        start=one.start,
        system=lambda: one.system,
        earlier=lambda: one.earlier,
    )


_PAGE: Final[dict[bool, LiteralString]] = {
    newest: "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = %s AND version > %s AND version < %s "
    + ("ORDER BY version DESC LIMIT %s" if newest else "ORDER BY version LIMIT %s")
    for newest in (False, True)
}
_NO_BOUND: Final = 2**63 - 1


def entries(
    connection: Connection, mid: int, *, after: int, before: int, limit: int, newest: bool
) -> list[StoredEntry]:
    """Read a part of a log; see `Store.entries`."""
    values = mid, after, before or _NO_BOUND, limit
    rows = connection.execute(_PAGE[newest], values, binary=True).fetchall()
    return [StoredEntry(*row) for row in (reversed(rows) if newest else rows)]


def names(connection: Connection, **which: Any) -> list[Listed]:
    """List memories along the index on (namespace, id); see `Store.names`."""
    rest, values = listing("%s", **which)
    rows = connection.execute(f"SELECT h.namespace, h.id, {_ROW} FROM head h {rest}".encode(), values)
    return [Listed(MemoryName(row[0], row[1]), Head(*row[2:])) for row in rows]


def expired(connection: Connection, now: int, limit: int) -> list[MemoryName]:
    """List memories whose time is over, the oldest first."""
    query = "SELECT namespace, id FROM head WHERE expires_at > 0 AND expires_at <= %s ORDER BY expires_at, mid LIMIT %s"
    return [MemoryName(*row) for row in connection.execute(query, (now, limit))]


# Transactions become visible in another order than that of their numbers. Below the oldest one that is still under way
# nothing new can appear, so a reader goes as far as that and misses nothing.
_BOUND: Final = "pg_snapshot_xmin(pg_current_snapshot())"
_CHANGES: Final = (
    "SELECT part.xid::text, part.mid, part.version, h.namespace, h.id FROM ("
    "SELECT xid, mid, version FROM entry WHERE xid >= %s::text::xid8 "
    f"AND xid < {_BOUND} AND (xid, mid, version) > (%s::text::xid8, %s::bigint, %s::bigint) "
    "ORDER BY xid, mid, version LIMIT %s) AS part LEFT JOIN head h ON h.mid = part.mid "
    "ORDER BY part.xid, part.mid, part.version"
)


def changes(connection: Connection, after: Cursor | None, limit: int) -> Changes:
    """Read which memories got entries behind a place in the order of the transactions; see `Store.changes`."""
    if after is None:
        row = connection.execute(f"SELECT {_BOUND}::text").fetchone()
        assert row is not None
        return Changes(f"{row[0]}.0.0", ())
    xid, mid, version = str(after).split(".")
    # A server that was restored, or took over with less than its predecessor had, counts transactions from an earlier
    # number: such a place would hide all that follows, so everything is told again.
    ahead = connection.execute("SELECT %s::text::xid8 > pg_snapshot_xmax(pg_current_snapshot())", (xid,)).fetchone()
    if ahead == (True,):
        xid, mid, version = "0", "0", "0"
    rows = connection.execute(_CHANGES, (xid, xid, int(mid), int(version), limit)).fetchall()
    changed: dict[tuple[MemoryName, int], int] = {}
    for row in rows:
        if row[3] is not None:
            key = MemoryName(row[3], row[4]), row[1]
            changed.pop(key, None)  # the newest one's place is what counts
            changed[key] = row[2]
    told = tuple([(name, Version(mid, n)) for (name, mid), n in changed.items()])
    return Changes(".".join(map(str, rows[-1][:3])) if rows else after, told)


def receipts(
    connection: Connection, names_and_keys: Sequence[tuple[MemoryName, str]], now: int
) -> list[StoredReceipt | None]:
    """Look up idempotency keys; see `Store.receipts`."""
    query = (
        "SELECT q.ord, r.mid, r.version, r.count, r.digest FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY "
        "AS q (name_digest, key, ord) JOIN receipt r ON r.name_digest = q.name_digest AND r.key = q.key "
        "WHERE r.expires_at > %s"
    )
    digests = [name.digest() for name, _ in names_and_keys]
    keys = [key_bytes(key) for _, key in names_and_keys]
    found: list[StoredReceipt | None] = [None] * len(names_and_keys)
    for place, mid, version, count, digest in connection.execute(query, (digests, keys, now)):
        found[place - 1] = StoredReceipt(Receipt(Version(mid, version), count), digest)
    return found


def receipts_of(connection: Connection, name: MemoryName, *, after: str, limit: int, now: int) -> list[KeptReceipt]:
    """Read a name's receipts by key; see `Store.receipts_of`."""
    query = (
        "SELECT key, digest, mid, version, count, expires_at FROM receipt "
        "WHERE name_digest = %s AND key > %s AND expires_at > %s ORDER BY key LIMIT %s"
    )
    rows = connection.execute(query, (name.digest(), key_bytes(after), now, limit))
    return [
        KeptReceipt(row[0].decode("utf-8", "surrogatepass"), row[1], Version(row[2], row[3]), row[4], row[5])
        for row in rows
    ]


_HEAD: Final = f"SELECT {_ROW} FROM head h WHERE h.namespace = %s AND h.id = %s"
_COMMITTED: Final = (
    "SELECT h.mid, h.version, e.entry_id, e.at FROM head h "
    "LEFT JOIN entry e ON e.mid = h.mid AND e.version = %s WHERE h.namespace = %s AND h.id = %s"
)
_HOLDER: Final = "SELECT mid, updated_at, turn_id FROM head WHERE namespace = %s AND id = %s"
_NO_ROW: Final = (0, 0, None, 0)
_LEFT: Final = "SELECT 1 FROM entry WHERE mid = %s AND version < %s AND version NOT IN (%s, %s) LIMIT 1"


def settle(connection: Connection, slice_: Slice) -> Outcome | None:
    """Tell whether a slice was committed; see `Store.settle`."""
    if slice_.delete:
        there = connection.execute("SELECT 1 FROM head WHERE mid = %s", (slice_.mid,)).fetchone()
        return Committed(slice_.mid, 0) if there is None else None
    if not slice_.entries:
        if slice_.meta is not None or slice_.prune:
            return _settle_change(connection, slice_)
        holder: tuple[Any, ...] = connection.execute(_HOLDER, slice_.name).fetchone() or (0, 0, None)
        return deciding.settled_lease(slice_, *holder)
    found: tuple[Any, ...] = connection.execute(_COMMITTED, (slice_.expected + 1, *slice_.name)).fetchone() or _NO_ROW
    return deciding.settled_entries(slice_, *found)


def _settle_change(connection: Connection, slice_: Slice) -> Outcome | None:
    row, meta = connection.execute(_HEAD, slice_.name).fetchone(), slice_.meta
    if row is None or (slice_.mid and row[0] != slice_.mid):
        return None
    head = Head(*row)
    if meta is not None:
        return deciding.settled_meta(head, meta)
    left = connection.execute(_LEFT, (head.mid, slice_.prune, slice_.base, slice_.system)).fetchone()
    return Committed(head.mid, head.updated_at) if head.base >= slice_.base and left is None else None

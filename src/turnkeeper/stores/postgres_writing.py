"""A group of slices as arrays for the function that commits them, and its rows as outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from turnkeeper.log import (
    Committed,
    Conflict,
    Duplicate,
    Held,
    Outcome,
    Receipt,
    Slice,
    StoredReceipt,
    Version,
    encode_payload,
)
from turnkeeper.stores.base import Reseal, Transfer
from turnkeeper.stores.deciding import is_of_its_turn
from turnkeeper.stores.postgres_links import Connection
from turnkeeper.stores.postgres_schema import COLUMNS_OF_SLICE

__all__ = ["adopt", "commit", "key_bytes", "reseal"]

_ENTRIES: Final = ("bigint", "bigint", "text", "bytea", "bytea", "bytea")
_KEYS: Final = ("bigint", "bytea", "bytea", "bigint")
_ARRAYS: Final = ", ".join(f"%s::{kind}[]" for kind in (*[kind for _, kind in COLUMNS_OF_SLICE], *_ENTRIES, *_KEYS))
_CALL: Final = f"SELECT * FROM commit_slices(%s::bigint, %s::bigint, {_ARRAYS})"

_CONFLICT: Final = Conflict()
_HELD: Final = Held()


def key_bytes(key: str) -> bytes:
    """Return an idempotency key as it is stored."""
    return key.encode("utf-8", "surrogatepass")


def commit(connection: Connection, slices: Sequence[Slice], *, now: int | None, receipt_time: int) -> list[Outcome]:
    """Commit a group in one trip; see `Store.commit`."""
    # New memories come last and in the order of their names, so that two groups can't wait for each other in a ring.
    order = sorted(range(len(slices)), key=lambda n: (not slices[n].mid, slices[n].name if not slices[n].mid else ()))
    heads: list[tuple[Any, ...]] = []
    entries: list[tuple[Any, ...]] = []
    keys: list[tuple[Any, ...]] = []
    for place, n in enumerate(order, start=1):
        slice_ = slices[n]
        keyed = 0
        for index, entry in enumerate(slice_.entries):
            payload = encode_payload(entry)
            entries.append((place, slice_.expected + index + 1, entry.op, entry.entry_id, entry.turn_id, payload))
            if entry.key is not None:
                keyed += 1
                keys.append((index, key_bytes(entry.key.key), entry.key.digest, len(entry.messages)))
        heads.append(_head(slice_, keyed))
    columns = [*_columns(heads, len(COLUMNS_OF_SLICE)), *_columns(entries, len(_ENTRIES)), *_columns(keys, len(_KEYS))]
    rows = connection.execute(_CALL.encode(), (now, receipt_time, *columns)).fetchall()
    outcomes: list[Outcome] = [_CONFLICT] * len(slices)
    for n, row in zip(order, rows, strict=True):
        outcomes[n] = _outcome(row)
    return outcomes


def _head(slice_: Slice, keyed: int) -> tuple[Any, ...]:
    lease, meta = slice_.lease, slice_.meta
    return (
        *slice_.name,
        slice_.name.digest(),
        slice_.mid,
        slice_.expected,
        len(slice_.entries),
        keyed,
        slice_.base,
        slice_.system,
        slice_.delete,
        slice_.only_expired,
        slice_.not_before,
        slice_.prune,
        slice_.turn_id,
        is_of_its_turn(slice_),
        lease is not None,
        b"" if lease is None else lease.turn_id,
        0 if lease is None else int(lease.seconds * 1e6),
        lease is not None and lease.steal,
        meta is not None,
        b"" if meta is None else meta.data,
        0 if meta is None else meta.expected,
        int(slice_.expires_after * 1e6),
        slice_.base_was,
    )


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


def _outcome(row: tuple[Any, ...]) -> Outcome:
    kind, mid, at, stolen_from, index, old_mid, old_version, old_count, old_digest = row
    if kind == 0:
        return Committed(mid, at, stolen_from)
    if kind == 3:
        return Duplicate(index, StoredReceipt(Receipt(Version(old_mid, old_version), old_count), old_digest))
    return _CONFLICT if kind == 1 else _HELD


_LOCK_ROW: Final = (
    "SELECT mid, version, base, meta_version, turn_until FROM head WHERE namespace = %s AND id = %s FOR UPDATE"
)
_CREATE_ROW: Final = (
    "INSERT INTO head (version, base, system, created_at, updated_at, expires_at, meta_version, meta, namespace, id) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING mid"
)
_WRITE_ROW: Final = (
    "UPDATE head SET version = %s, base = %s, system = %s, created_at = %s, updated_at = %s, expires_at = %s, "
    "meta_version = %s, meta = %s WHERE mid = %s"
)
_PUT_ENTRIES: Final = (
    "INSERT INTO entry (mid, version, op, entry_id, payload, at) SELECT %s, * FROM "
    "unnest(%s::bigint[], %s::text[], %s::bytea[], %s::bytea[], %s::bigint[])"
)
_PUT_RECEIPTS: Final = (
    "INSERT INTO receipt (name_digest, key, digest, mid, version, count, expires_at) SELECT %s, * FROM "
    "unnest(%s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) "
    "ON CONFLICT (name_digest, key) DO UPDATE SET digest = excluded.digest, mid = excluded.mid, "
    "version = excluded.version, count = excluded.count, expires_at = excluded.expires_at"
)


def adopt(connection: Connection, transfers: Sequence[Transfer], now: int) -> list[Outcome]:
    """Write transfers in one transaction, in the order in which rows are locked elsewhere; see `Store.adopt`."""
    order = sorted(range(len(transfers)), key=lambda n: (not transfers[n].mid, transfers[n].mid, transfers[n].name))
    outcomes: list[Outcome] = [_CONFLICT] * len(transfers)
    with connection.transaction():
        for n in order:
            outcomes[n] = _adopt(connection, transfers[n], now)
    return outcomes


def _adopt(connection: Connection, transfer: Transfer, now: int) -> Outcome:
    head, mid = transfer.head, transfer.mid
    state = head.version, head.base, head.system, head.created_at, head.updated_at, head.expires_at
    meta = head.meta_version, head.meta
    if mid:
        row = connection.execute(_LOCK_ROW, transfer.name).fetchone()
        if row is None or row[:2] != (mid, transfer.expected):
            return _CONFLICT
        if transfer.base_was not in (-1, row[2]) or transfer.meta_was not in (-1, row[3]):
            return _CONFLICT
        if row[4] is not None and row[4] > now:
            return _HELD
        connection.execute(_WRITE_ROW, (*state, *meta, mid))
    else:
        created = connection.execute(_CREATE_ROW, (*state, *meta, *transfer.name)).fetchone()
        if created is None:
            return _CONFLICT
        mid = created[0]
    if transfer.entries:
        rows = [(each.version, each.op, each.entry_id, each.payload, each.at) for each in transfer.entries]
        connection.execute(_PUT_ENTRIES, (mid, *_columns(rows, 5)))
    kept = [
        (key_bytes(each.key), each.digest, mid if each.version.mid else 0, each.version.n, each.count, each.expires_at)
        for each in transfer.receipts
        if each.expires_at > now
    ]
    if kept:
        connection.execute(_PUT_RECEIPTS, (transfer.name.digest(), *_columns(kept, 6)))
    return Committed(mid, now)


_RESEAL_ENTRY: Final = "UPDATE entry SET payload = %s WHERE mid = %s AND version = %s AND payload = %s"
_RESEAL_META: Final = "UPDATE head SET meta = %s WHERE mid = %s AND namespace = %s AND id = %s AND meta = %s"


def reseal(connection: Connection, changes: Sequence[Reseal]) -> list[bool]:
    """Put other bytes in the place of those that are there; see `Store.reseal`."""
    written: list[bool] = [False] * len(changes)
    with connection.transaction():
        # In the order of the rows, as everywhere: two processes that do this at once don't wait in a ring.
        for n in sorted(range(len(changes)), key=lambda n: (changes[n].mid, changes[n].version)):
            change = changes[n]
            if change.version:
                values: tuple[Any, ...] = (change.new, change.mid, change.version, change.old)
                cursor = connection.execute(_RESEAL_ENTRY, values)
            else:
                cursor = connection.execute(_RESEAL_META, (change.new, change.mid, *change.name, change.old))
            written[n] = cursor.rowcount == 1
    return written

"""Turns' leases in the SQLite store: who may change a head, and how a lease is taken, renewed, given back, stolen."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnkeeper.log import Committed, Conflict, Held, Lease, Outcome, Slice
from turnkeeper.stores.deciding import is_of_its_turn

__all__ = ["FREE", "HELD", "OWN", "change", "put", "refusal"]

FREE: Final = "(turn_id IS NULL OR turn_until <= ? OR turn_id = ?)"
"""Condition on a head for whoever is no turn, with the time and the slice's turn: nobody else's turn is open."""

OWN: Final = "turn_until > ? AND turn_id = ?"
"""Condition for a turn: it holds the lease still. A turn that was robbed, or slept too long, comes too late even when
nobody has written since."""

_CREATE: Final = (
    "INSERT INTO head (namespace, id, version, turn_id, turn_until, created_at, updated_at) "
    "VALUES (?, ?, 0, ?, ?, ?, ?) ON CONFLICT (namespace, id) DO NOTHING"
)
_LEASE: Final = "UPDATE head SET turn_id = ?, turn_until = ? WHERE mid = ?"
_CHANGE: Final = f"{_LEASE} AND version = ? AND {FREE}"
_RENEW: Final = f"{_LEASE} AND version = ? AND {OWN}"
_REMOVE: Final = f"DELETE FROM head WHERE mid = ? AND version = ? AND version = 0 AND meta_version = 0 AND {FREE}"
_ROW: Final = "SELECT mid, version, meta_version, base FROM head WHERE namespace = ? AND id = ?"
_HOLDER: Final = "SELECT turn_id, turn_until FROM head WHERE mid = ? AND version = ?"
_FIRST_OF_TURN: Final = "SELECT min(version) FROM entry WHERE mid = ? AND turn_id = ?"

_CONFLICT: Final = Conflict()
HELD: Final = Held()


def change(connection: sqlite3.Connection, slice_: Slice, lease: Lease, now: int) -> Outcome:
    """Take, renew or give back a lease, with a slice that has no entries."""
    mid, taken = slice_.mid, lease.seconds > 0
    until = now + int(lease.seconds * 1e6)
    renews = is_of_its_turn(slice_)
    stolen_from = _steal(connection, slice_, now) if lease.steal else -1
    if mid == 0:
        if renews:
            return HELD  # the row that it was for is gone
        if not taken:
            return _CONFLICT if connection.execute(_ROW, slice_.name).fetchone() else Committed(0, now)
        at = max(now, slice_.not_before)
        cursor = connection.execute(_CREATE, (*slice_.name, lease.turn_id, until, at, at))
        mid = cursor.lastrowid or 0
    elif taken:
        state = mid, slice_.expected, now, slice_.turn_id
        cursor = connection.execute(_RENEW if renews else _CHANGE, (lease.turn_id, until, *state))
    else:
        cursor = connection.execute(_REMOVE, (mid, slice_.expected, now, slice_.turn_id))
        if not cursor.rowcount:  # it was not there for the lease alone
            cursor = connection.execute(_CHANGE, (None, None, mid, slice_.expected, now, slice_.turn_id))
    if cursor.rowcount != 1:
        return refusal(connection, slice_)
    return Committed(mid, slice_.not_before or now, stolen_from)


def put(connection: sqlite3.Connection, mid: int, lease: Lease, now: int) -> None:
    """Take, renew or give back a lease together with entries, which have been let through."""
    holder = (lease.turn_id, now + int(lease.seconds * 1e6)) if lease.seconds else (None, None)
    connection.execute(_LEASE, (*holder, mid))


def _steal(connection: sqlite3.Connection, slice_: Slice, now: int) -> int:
    """Take a lease away from another turn; return the number of the entry before its first one, or -1.

    One that has run out, or is the slice's own, is of a turn that is over: what it committed is nobody's to undo.
    """
    row = connection.execute(_HOLDER, (slice_.mid, slice_.expected)).fetchone()
    if row is None or row[0] is None:
        return -1
    connection.execute(_LEASE, (None, None, slice_.mid))
    if row[0] == slice_.turn_id or row[1] <= now:
        return -1
    first = connection.execute(_FIRST_OF_TURN, (slice_.mid, row[0])).fetchone()[0]
    return -1 if first is None else first - 1


def refusal(connection: sqlite3.Connection, slice_: Slice) -> Outcome:
    """Tell why no row was changed."""
    mid, version, meta_version, base = connection.execute(_ROW, slice_.name).fetchone() or (0, 0, 0, 0)
    if not mid or (mid, version) != (slice_.mid, slice_.expected) or slice_.base_was not in (-1, base):
        return _CONFLICT
    return HELD if slice_.meta is None or meta_version == slice_.meta.expected else _CONFLICT

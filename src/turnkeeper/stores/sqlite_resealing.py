"""Payloads of the SQLite store that are sealed anew, each by a compare-and-set of its own."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnkeeper.stores import sqlite_search as searching
from turnkeeper.stores.base import Reseal

__all__ = ["reseal"]

_THERE: Final = "SELECT 1 FROM entry WHERE mid = ? AND version = ? AND payload = ?"
_ENTRY: Final = "UPDATE entry SET payload = ? WHERE mid = ? AND version = ?"
_META: Final = "UPDATE head SET meta = ? WHERE mid = ? AND namespace = ? AND id = ? AND meta = ?"


def reseal(connection: sqlite3.Connection, change: Reseal, *, indexed: bool) -> bool:
    """Write one of them; see `Store.reseal`.

    Args:
        connection: the writing one, in a transaction.
        change: what is to be written.
        indexed: the file has a full-text index, whose triggers don't look at updates.
    """
    if not change.version:
        return connection.execute(_META, (change.new, change.mid, *change.name, change.old)).rowcount == 1
    place = change.mid, change.version
    if connection.execute(_THERE, (*place, change.old)).fetchone() is None:
        return False
    if indexed:
        searching.forget(connection, *place)
    connection.execute(_ENTRY, (change.new, *place))
    if indexed:
        searching.take_in(connection, *place)
    return True

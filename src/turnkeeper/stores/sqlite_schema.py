"""The SQLite store's tables, the steps that lead to them, and what is known of SQLite's own versions."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnkeeper.errors import StoreFormatError
from turnkeeper.stores.sqlite_views import VIEWS

__all__ = ["APPLICATION_ID", "SCHEMA", "check_format", "has_wal_bug", "migrate"]

APPLICATION_ID: Final = 0x74726E6B
"""Marks a file as ours in its header ("trnk")."""

SCHEMA: Final = 1

# Rowid tables: appends go to the end of the file instead of dirtying a page of each memory's own (4-5 times as fast).
# AUTOINCREMENT: a mid is never used again, so a writer that slept through a delete can't hit its successor; neither is
# a seq, so a watcher misses nothing (1 us an entry).
_TO_1: Final = """
CREATE TABLE head (
  mid INTEGER PRIMARY KEY AUTOINCREMENT,
  namespace TEXT NOT NULL,
  id TEXT NOT NULL,
  version INTEGER NOT NULL,
  base INTEGER NOT NULL DEFAULT 0,
  system INTEGER NOT NULL DEFAULT 0,
  turn_id BLOB,
  turn_until INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL DEFAULT 0,
  meta BLOB,
  meta_version INTEGER NOT NULL DEFAULT 0,
  UNIQUE (namespace, id)
) STRICT;
CREATE INDEX head_expiry ON head (expires_at) WHERE expires_at > 0;
CREATE TABLE entry (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  mid INTEGER NOT NULL,
  version INTEGER NOT NULL,
  op TEXT NOT NULL,
  entry_id BLOB NOT NULL,
  turn_id BLOB,
  payload BLOB NOT NULL,
  at INTEGER NOT NULL,
  UNIQUE (mid, version)
) STRICT;
CREATE TABLE receipt (
  name_digest BLOB NOT NULL,
  key TEXT NOT NULL,
  mid INTEGER NOT NULL,
  digest BLOB NOT NULL,
  version INTEGER NOT NULL,
  count INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  UNIQUE (name_digest, key)
) STRICT;
CREATE INDEX receipt_expiry ON receipt (expires_at);
"""

_MIGRATIONS: Final[tuple[str, ...]] = (_TO_1 + VIEWS,)


def check_format(connection: sqlite3.Connection, described: str) -> int:
    """Return the file's schema number, 0 for an empty file.

    Raises:
        StoreFormatError: the file belongs to another program, or to a newer version of this one.
    """
    begun = connection.in_transaction
    if not begun:
        connection.execute("BEGIN")  # one snapshot: another process may be migrating the file
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        if not begun:
            connection.execute("ROLLBACK")
    if application != APPLICATION_ID and (tables or application or schema):
        raise StoreFormatError(f"{described} is a database of another program; name a file of its own")
    if schema > SCHEMA:
        raise StoreFormatError(
            f"{described} has schema {schema}, and this version of turnkeeper knows up to {SCHEMA}; upgrade turnkeeper"
        )
    return schema


def migrate(connection: sqlite3.Connection, described: str) -> None:
    """Bring the file to the present schema, in one transaction; a second process that comes at once finds it done."""
    if check_format(connection, described) == SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(check_format(connection, described), SCHEMA):
            for statement in _MIGRATIONS[number].split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def has_wal_bug(version: tuple[int, int, int]) -> bool:
    """Tell whether this SQLite can corrupt a WAL when two connections write or checkpoint at the same instant.

    Source: SQLite's release notes of 3.51.3; the fix went back to 3.44.6 and 3.50.7, and 3.52.0 was withdrawn.
    """
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    return (3, 7, 0) <= version < (3, 51, 3) or version == (3, 52, 0)

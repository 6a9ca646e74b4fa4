"""Full-text search in the SQLite store: an FTS5 index over what was said, kept by triggers.

The index holds no second copy of the texts (a contentless table), only which words stand in which entry. Triggers keep
it, so it is right whoever writes to the file, also when search is not asked for at the next opening.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from turnkeeper.errors import StoreError
from turnkeeper.log import StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.stores.base import Found, SearchQuery
from turnkeeper.stores.ranges import end_of_prefix

__all__ = ["find", "forget", "has_index", "make_index", "optimize", "take_in"]

_TEXT: Final = """coalesce((
  SELECT group_concat(
    CASE json_type(part.value, '$.content')
      WHEN 'text' THEN json_extract(part.value, '$.content')
      WHEN 'array' THEN (
        SELECT group_concat(json_extract(piece.value, '$.text'), char(10))
        FROM json_each(part.value, '$.content') AS piece WHERE json_type(piece.value, '$.text') = 'text'
      )
    END, char(10))
  FROM json_each(
    CASE WHEN json_valid(CAST({payload} AS TEXT)) THEN CAST({payload} AS TEXT) ELSE '{{}}' END, '$.messages'
  ) AS part WHERE part.type = 'object'
), '')"""
"""The texts of an entry's messages: contents that are text, and the text parts of others."""

_MAKE: Final = (
    "CREATE VIRTUAL TABLE said USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2')",
    "CREATE TRIGGER said_more AFTER INSERT ON entry BEGIN "
    f"INSERT INTO said (rowid, text) VALUES (new.rowid, {_TEXT.format(payload='new.payload')}); END",
    "CREATE TRIGGER said_less AFTER DELETE ON entry BEGIN "
    f"INSERT INTO said (said, rowid, text) VALUES ('delete', old.rowid, {_TEXT.format(payload='old.payload')}); END",
    f"INSERT INTO said (rowid, text) SELECT rowid, {_TEXT.format(payload='payload')} FROM entry",
)
_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'said_more'"
_FORGET: Final = (
    "INSERT INTO said (said, rowid, text) "
    f"SELECT 'delete', rowid, {_TEXT.format(payload='payload')} FROM entry WHERE mid = ? AND version = ?"
)
_TAKE_IN: Final = (
    f"INSERT INTO said (rowid, text) SELECT rowid, {_TEXT.format(payload='payload')} "
    "FROM entry WHERE mid = ? AND version = ?"
)
_FIND: Final = (
    "SELECT said.rowid, head.namespace, head.id, head.mid, entry.version, entry.op, entry.entry_id, entry.payload, "
    "entry.at, EXISTS (SELECT 1 FROM message WHERE message.namespace = head.namespace AND message.id = head.id "
    "AND message.version = entry.version AND message.visible) "
    "FROM said JOIN entry ON entry.rowid = said.rowid JOIN head ON head.mid = entry.mid "
    "WHERE said MATCH ? AND said.rowid < ? AND head.id >= ? AND (? IS NULL OR head.id < ?) "
    "AND (? IS NULL OR head.namespace = ?) ORDER BY said.rowid DESC LIMIT ?"
)
_NO_BOUND: Final = 2**63 - 1


def has_index(connection: sqlite3.Connection) -> bool:
    """Tell whether this file has an index."""
    return connection.execute(_EXISTS).fetchone() is not None


def make_index(connection: sqlite3.Connection) -> None:
    """Make the index of what is there already, once, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not has_index(connection):
            for statement in _MAKE:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def forget(connection: sqlite3.Connection, mid: int, version: int) -> None:
    """Take an entry's words out, as long as it still says them; `take_in` has to follow."""
    connection.execute(_FORGET, (mid, version))


def take_in(connection: sqlite3.Connection, mid: int, version: int) -> None:
    """Take an entry's words in, those that it says now."""
    connection.execute(_TAKE_IN, (mid, version))


def optimize(connection: sqlite3.Connection) -> None:
    """Merge the index into one piece, so that words of entries that are gone are gone from it, too."""
    connection.execute("INSERT INTO said (said) VALUES ('optimize')")


def find(connection: sqlite3.Connection, query: SearchQuery) -> list[Found]:
    """Return entries that have all words of a query, the newest first."""
    if not has_index(connection):
        raise StoreError("this SQLite file has no search index; open it once with '?search=true'")
    words = " ".join(['"' + word.replace('"', '""') + '"' for word in query.text.split()])
    end = end_of_prefix(query.prefix)
    bounds = query.before or _NO_BOUND, query.prefix, end, end, query.namespace, query.namespace, query.limit
    rows = connection.execute(_FIND, (words, *bounds))
    return [Found(row[0], MemoryName(row[1], row[2]), row[3], StoredEntry(*row[4:9]), bool(row[9])) for row in rows]

"""Making what was deleted unreadable in a SQLite database's files.

`secure_delete` puts zeros in the place of what is deleted, and a checkpoint that truncates empties the log. That leaves
one kind of trace: SQLite 3.40 moves cells from page to page when it balances a tree, and the bytes that they leave in a
page's gap, between the list of its cells and the first of them, stay. They are a copy of what lives elsewhere, until
that is deleted. VACUUM would remove them by writing the whole file anew; here they are found, and zeros put over them.

SQLite never looks at a gap, so nobody can be disturbed by that, and a crash in the middle leaves every page valid. It
is done while SQLite's write lock is held and its log is empty: then the file is all there is. Other connections that
write might have such a page in their cache, and write it back; so a commit follows, at which they let go what they
hold.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from turnkeeper.stores import sqlite_search as search

__all__ = ["let_go", "scrub", "take_note"]

_ATTEMPTS: Final = 3
"""Another program may write between the checkpoint and the lock."""

_LONGEST_WAIT: Final = 2.0
"""Seconds for readers to end: ours take milliseconds, and commits wait meanwhile."""

_BLOCKED: Final = "another connection is writing, or reads an older state, so the log with what was deleted stays"

_INTERIOR: Final = frozenset((2, 5))
_LEAF: Final = frozenset((10, 13))

_File: TypeAlias = tuple[int, int]

# Closing any descriptor of a file drops all locks that this process has on it, SQLite's as well. So one that is opened
# here stays open until no store of this process uses the file any more.
_users: Final[Counter[_File]] = Counter()
_descriptors: Final[dict[_File, int]] = {}


def take_note(path: Path) -> _File:
    """Note that a store of this process uses a file, and return what `let_go` needs."""
    stat = os.stat(path)
    file = stat.st_dev, stat.st_ino
    _users[file] += 1
    return file


def let_go(file: _File) -> None:
    """Note that a store uses a file no more; it has closed its connections."""
    _users[file] -= 1
    if not _users[file]:
        del _users[file]
        if (descriptor := _descriptors.pop(file, None)) is not None:
            os.close(descriptor)


def scrub(connection: sqlite3.Connection, path: Path, file: _File) -> str | None:
    """Remove the traces of what was deleted; return what prevents it for now.

    Args:
        connection: the one that writes, in no transaction.
        path: of the database.
        file: what `take_note` returned for it.
    """
    waits = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout = {min(waits, int(_LONGEST_WAIT * 1000))}")
    try:
        if search.has_index(connection):
            search.optimize(connection)
        for _ in range(_ATTEMPTS):
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                return _BLOCKED
            connection.execute("BEGIN IMMEDIATE")
            try:
                if not os.path.getsize(f"{path}-wal"):
                    _clear_gaps(connection, path, file)
                    return None
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return _BLOCKED
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return _BLOCKED
    finally:
        connection.execute(f"PRAGMA busy_timeout = {waits}")


def _clear_gaps(connection: sqlite3.Connection, path: Path, file: _File) -> None:
    roots = [1, *[row[0] for row in connection.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")]]
    descriptor = _descriptors.get(file)
    if descriptor is None:
        descriptor = _descriptors[file] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    gaps = list(_gaps(descriptor, roots))
    if not gaps:
        return
    for offset, size in gaps:
        os.pwrite(descriptor, bytes(size), offset)
    os.fsync(descriptor)
    connection.execute(f"PRAGMA user_version = {connection.execute('PRAGMA user_version').fetchone()[0]}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA shrink_memory")  # a connection trusts its own commits, and keeps what it has cached


def _gaps(descriptor: int, roots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Find, in all pages of these trees, the gaps that are not empty: offset in the file and size.

    Source: "B-tree Pages" in SQLite's description of its file format. What does not look like a page is left alone.
    """
    size = int.from_bytes(os.pread(descriptor, 2, 16), "big")
    size = 65536 if size == 1 else size
    pages, seen = list(roots), set(roots)
    while pages:
        number = pages.pop()
        offset = (number - 1) * size
        page = os.pread(descriptor, size, offset)
        start = 100 if number == 1 else 0
        kind = page[start] if len(page) == size else 0
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        pointers = start + (12 if kind in _INTERIOR else 8)
        gap, content = pointers + 2 * cells, int.from_bytes(page[start + 5 : start + 7], "big") or 65536
        if (kind not in _LEAF and kind not in _INTERIOR) or not gap <= content <= size:
            continue
        if page.count(0, gap, content) != content - gap:
            yield offset + gap, content - gap
        if kind in _INTERIOR:
            places = [pointers - 4, *[int.from_bytes(page[at : at + 2], "big") for at in range(pointers, gap, 2)]]
            children = {int.from_bytes(page[at : at + 4], "big") for at in places} - seen
            seen |= children
            pages += children

"""The default store: one SQLite file, written by one connection in groups, read by another beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from turnkeeper.errors import StoreError, StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.log import (
    COMPACT,
    FORK,
    STARTING,
    Committed,
    Duplicate,
    Entry,
    Head,
    Key,
    Loaded,
    LoadQuery,
    Outcome,
    Receipt,
    Slice,
    StoredEntry,
    StoredReceipt,
    Unknown,
    Version,
    encode_payload,
    first_entry,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import sqlite_leases as leases
from turnkeeper.stores.base import Listed, Store
from turnkeeper.stores.filelock import FileLock
from turnkeeper.stores.filesystems import filesystem_of, is_network
from turnkeeper.stores.sqlite_schema import check_format, migrate

__all__ = ["QUARANTINE", "SQLiteStore"]

_OLDEST_SQLITE: Final = (3, 37, 0)  # strict tables

_CREATE: Final = (
    "INSERT INTO head (namespace, id, version, base, system, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (namespace, id) DO NOTHING"
)
_AHEAD: Final = "UPDATE head SET version = ?, base = ?, system = ?, updated_at = ? WHERE mid = ? AND version = ? AND "
_ADVANCE: Final = _AHEAD + leases.FREE
_ADVANCE_TURN: Final = _AHEAD + leases.OWN
_DELETE: Final = f"DELETE FROM head WHERE mid = ? AND version = ? AND {leases.FREE}"
_APPEND: Final = "INSERT INTO entry (mid, version, op, entry_id, turn_id, payload, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
_KEEP_RECEIPT: Final = (
    "INSERT OR REPLACE INTO receipt (name_digest, key, mid, digest, version, count, expires_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_DROP_EXPIRED: Final = (
    "DELETE FROM receipt WHERE rowid IN (SELECT rowid FROM receipt WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
_RECEIPT: Final = "SELECT mid, version, count, digest FROM receipt WHERE name_digest = ? AND key = ? AND expires_at > ?"
_HEAD: Final = "SELECT mid, version, base, system, created_at, updated_at FROM head WHERE namespace = ? AND id = ?"
_ENTRIES: Final = "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version >= ? ORDER BY version"
_PAGE: Final = (
    "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version > ? AND version < ? "
    "ORDER BY version {} LIMIT ?"
)
_NO_BOUND: Final = 2**63 - 1
_NEWEST: Final = (
    "SELECT version, op, entry_id, payload, at FROM entry WHERE mid = ? AND version >= ? ORDER BY version DESC LIMIT ?"
)
_PRUNE: Final = "DELETE FROM entry WHERE mid = ? AND version < ? AND version <> ?"
_MOVE: Final = (
    "INSERT INTO head (namespace, id, version, base, system, created_at, updated_at) "
    "SELECT ?, ?, version, base, system, created_at, updated_at FROM head WHERE mid = ?"
)
_LIST: Final = (
    "SELECT namespace, id, mid, version, base, system, created_at, updated_at FROM head "
    "WHERE (namespace, id) > (?, ?) {} ORDER BY namespace, id LIMIT ?"
)

# Codes that speak of the file or the machine, not of the slices in the group: retrying each alone would not help.
_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_EntryRow: TypeAlias = tuple[int, int, str, bytes, bytes | None, bytes, int]


QUARANTINE: Final = "turnkeeper:quarantine"
"""The namespace that corrupt memories are moved to, out of the way."""


def _lenient_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class SQLiteStore(Store):
    """A database file in WAL mode with `synchronous=FULL`: what is acknowledged survives a power cut.

    Args:
        path: the file; it is created with mode 0600.
        shared: let several processes in. Then commits and checkpoints hold a lock on a side file, because SQLite
            before 3.51.3 can corrupt its log when two processes checkpoint at once.
        read_only: look only; takes no lock and works beside a running server.
        network_filesystem: allow a file system that hosts share; only when one host uses it at a time.
        busy_timeout: longest wait for another process's lock, in seconds.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        read_only: bool = False,
        network_filesystem: bool = False,
        busy_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Name the file; nothing is opened yet."""
        # The real path, so that every spelling of it finds the same side files.
        self.path: Path = Path(os.path.realpath(path))
        self.shared = shared
        self._read_only = read_only
        self._network_filesystem = network_filesystem
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._owner_lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        self._commit_lock = FileLock(self.path.with_name(self.path.name + ".commit-lock"))
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None

    def describe(self) -> str:
        """Name the file."""
        return f"SQLite file {self.path}"

    # Opening and closing

    def open(self, *, durability: str) -> None:
        """Lock, create, migrate and connect twice; see `Store.open`."""
        if self._reader is not None:
            raise StoreInUseError(f"{self.describe()} is open already: one runtime at a time for each store object")
        try:
            with self._translating("open"):
                self._check_kind()
                if self._read_only:
                    self._open_reader()
                    return
                self._take_ownership()
                self._create_file()
                self._check_untouched()
                with self._committing():
                    self._writer = self._connect("rwc")
                    self._set_up(self._writer, "FULL" if durability == "full" else "NORMAL")
                    migrate(self._writer, self.describe())
                self._open_reader()
        except BaseException:
            self.close()
            raise

    def _take_ownership(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreUnavailableError(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
        if not self._network_filesystem and is_network(kind := filesystem_of(self.path.parent)):
            raise StoreUnavailableError(
                f"{self.describe()} lies on a network file system ({kind}), where SQLite's log is not safe; "
                "use a local disk or a server, or append '?network_filesystem=true' when one host alone uses it"
            )
        if not self._owner_lock.acquire(exclusive=not self.shared, timeout=0):
            raise StoreInUseError(
                f"{self.describe()} is in use by another runtime (process {self._owner_lock.owner()}); close that one, "
                f"or open both with '?shared=true'"
            )
        self._owner_lock.note_owner(alone=not self.shared)

    def _check_kind(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise StoreUnavailableError(f"{self.describe()} is no regular file")

    def _check_untouched(self) -> None:
        """Refuse a foreign file before the writing connection changes a byte of it or of its log."""
        with contextlib.closing(self._connect("ro")) as connection:
            check_format(connection, self.describe())

    def _create_file(self) -> None:
        # Only a file that is new is opened here: closing any descriptor of a database drops this process's locks on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def _open_reader(self) -> None:
        if not self.path.exists():
            raise StoreUnavailableError(f"{self.describe()} does not exist")
        self._reader = self._connect("ro")
        self._reader.execute("PRAGMA query_only = ON")
        if self._read_only and not check_format(self._reader, self.describe()):
            raise StoreFormatError(f"{self.describe()} is empty")

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions are begun by hand, always IMMEDIATE
            check_same_thread=False,  # one thread at a time, but the opening one need not be the last
        )
        # A damaged text must not make a whole query fail: one memory alone is corrupt then.
        connection.text_factory = _lenient_text
        return connection

    def _set_up(self, connection: sqlite3.Connection, synchronous: str) -> None:
        check_format(connection, self.describe())
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailableError(f"{self.describe()} can't be used in WAL mode (SQLite answers {mode!r})")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # On macOS plain fsync leaves data in the drive's cache; elsewhere these two have no effect.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")

    def close(self) -> None:
        """Close both connections and give the locks back."""
        reader, writer, self._reader, self._writer = self._reader, self._writer, None, None
        with contextlib.suppress(sqlite3.Error):
            if reader is not None:
                reader.close()
        with contextlib.suppress(sqlite3.Error, StoreError):
            if writer is not None:
                with self._committing():  # the last connection to close checkpoints
                    writer.close()
        self._commit_lock.close()
        self._owner_lock.close()

    # Writing

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit a group in one transaction."""
        connection = self._writing()
        with self._translating("commit"), self._committing():
            connection.execute("BEGIN IMMEDIATE")
            try:
                now = int(self._clock() * 1e6)
                rows: list[_EntryRow] = []
                expires_at = now + int(receipt_ttl * 1e6)
                outcomes = [self._commit_slice(connection, slice_, now, expires_at, rows) for slice_ in slices]
                connection.executemany(_APPEND, rows)
                for slice_, outcome in zip(slices, outcomes, strict=True):
                    if slice_.prune and isinstance(outcome, Committed):
                        connection.execute(_PRUNE, (outcome.mid, slice_.base, slice_.system))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return outcomes

    def _commit_slice(
        self,
        connection: sqlite3.Connection,
        slice_: Slice,
        now: int,
        expires_at: int,
        rows: list[_EntryRow],
    ) -> Outcome:
        """Write one slice's head and receipts and leave its entries in `rows`; whatever may refuse it comes first."""
        if slice_.lease is not None and not slice_.entries:
            return leases.change(connection, slice_, slice_.lease, now)
        keyed = [(index, entry, entry.key) for index, entry in enumerate(slice_.entries) if entry.key is not None]
        for index, _, key in keyed:
            if (stored := self._find_receipt(connection, slice_.name, key.key, now)) is not None:
                return Duplicate(index, stored)
        mid, expected, at = slice_.mid, slice_.expected, max(now, slice_.not_before)
        version = expected + len(slice_.entries)
        if slice_.delete:
            if not connection.execute(_DELETE, (mid, expected, now, slice_.turn_id)).rowcount:
                return leases.refusal(connection, slice_)
            connection.execute("DELETE FROM entry WHERE mid = ?", (mid,))
            return Committed(mid, at)
        state = version, slice_.base, slice_.system, at
        if mid:
            advance = _ADVANCE_TURN if leases.is_of_its_turn(slice_) else _ADVANCE
            cursor = connection.execute(advance, (*state, mid, expected, now, slice_.turn_id))
        elif slice_.turn_id and leases.is_of_its_turn(slice_):
            return leases.HELD  # the row that its lease was for is gone
        else:
            cursor = connection.execute(_CREATE, (*slice_.name, *state, at))
            mid = cursor.lastrowid or 0
        if cursor.rowcount != 1:
            return leases.refusal(connection, slice_)
        if slice_.lease is not None:
            leases.put(connection, mid, slice_.lease, now)
        for n, entry in enumerate(slice_.entries, start=expected + 1):
            rows.append((mid, n, entry.op, entry.entry_id, entry.turn_id or None, encode_payload(entry), at))
        if keyed:
            self._keep_receipts(connection, slice_, mid, keyed, now, expires_at)
        return Committed(mid, at)

    def _keep_receipts(
        self,
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
            connection.execute(_KEEP_RECEIPT, row)

    def quarantine(self, name: MemoryName) -> MemoryName:
        """Move a memory out of the way under another name, whatever its entries look like, and return that name."""
        connection = self._writing()
        with self._translating("quarantine"), self._committing():
            row = connection.execute(_HEAD, name).fetchone()
            if row is None:
                raise StoreError(f"{self.describe()} has no memory {name.id!r} (namespace {name.namespace!r})")
            aside = MemoryName(QUARANTINE, f"{row[0]}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                # A row of its own: whoever still holds the old one can't write to it any more.
                moved = connection.execute(_MOVE, (*aside, row[0])).lastrowid
                connection.execute("UPDATE entry SET mid = ? WHERE mid = ?", (moved, row[0]))
                connection.execute("DELETE FROM head WHERE mid = ?", (row[0],))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        return aside

    # Reading

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Look for the slices' entry ids."""
        connection = self._reading()
        with self._translating("settle"), self._snapshot(connection):
            return [self._settle(connection, slice_) for slice_ in slices]

    def _settle(self, connection: sqlite3.Connection, slice_: Slice) -> Outcome | None:
        if slice_.lease is not None and not slice_.entries:
            return leases.settle(connection, slice_, slice_.lease)
        if slice_.delete:
            found = connection.execute("SELECT 1 FROM head WHERE mid = ?", (slice_.mid,)).fetchone()
            return Committed(slice_.mid, 0) if found is None else None
        row = connection.execute(
            "SELECT head.mid, head.base, entry.entry_id, entry.at FROM head "
            "LEFT JOIN entry ON entry.mid = head.mid AND entry.version = ? WHERE head.namespace = ? AND head.id = ?",
            (slice_.expected + 1, *slice_.name),
        ).fetchone()
        if row is None or (slice_.mid and row[0] != slice_.mid):
            return None
        mid, base, entry_id, at = row
        if entry_id is None:
            return Unknown() if slice_.expected + 1 < base else None  # what stood there may have been pruned
        return Committed(mid, at) if entry_id == slice_.entries[0].entry_id else None

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories in one snapshot."""
        connection = self._reading()
        with self._translating("load"), self._snapshot(connection):
            return [self._load(connection, query) for query in queries]

    def _load(self, connection: sqlite3.Connection, query: LoadQuery) -> Loaded:
        row = connection.execute(_HEAD, query.name).fetchone()
        if row is None:
            return Loaded(None, 0, ())
        head, known = Head(*row), query.known
        if known is not None and known.mid == head.mid and head.base <= known.n:
            rows = connection.execute(_ENTRIES, (head.mid, known.n + 1)) if known.n < head.version else ()
            return Loaded(head, known.n, tuple([StoredEntry(*row) for row in rows]), continues=True)
        start = self._entry(connection, head.mid, head.base) if head.base else None
        base = first_entry(start, head.base)
        if query.newest:
            rows = reversed(connection.execute(_NEWEST, (head.mid, base, query.newest)).fetchall())
        else:
            rows = connection.execute(_ENTRIES, (head.mid, base))
        entries = tuple([StoredEntry(*row) for row in rows])
        first = entries[0].version if len(entries) == query.newest > 0 else base
        system = self._entry(connection, head.mid, head.system) if 0 < head.system < first else None
        older = False
        if first == base > 1 and (start is None or start.op not in STARTING):
            older = self._entry(connection, head.mid, base - 1) is not None and base - 1 != head.system
        if start is not None and (start.version >= first or start.op not in (COMPACT, FORK)):
            start = None  # it is among them, or has nothing to show besides
        return Loaded(head, 0 if first == base else first - 1, entries, system, older=older, start=start)

    def _entry(self, connection: sqlite3.Connection, mid: int, version: int) -> StoredEntry | None:
        row = connection.execute(f"{_ENTRIES} LIMIT 1", (mid, version)).fetchone()
        return StoredEntry(*row) if row is not None and row[0] == version else None

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        connection = self._reading()
        with self._translating("receipts"):
            now = int(self._clock() * 1e6)
            return [self._find_receipt(connection, name, key, now) for name, key in names_and_keys]

    def _find_receipt(
        self, connection: sqlite3.Connection, name: MemoryName, key: str, now: int
    ) -> StoredReceipt | None:
        row = connection.execute(_RECEIPT, (name.digest(), key, now)).fetchone()
        if row is None:
            return None
        mid, version, count, digest = row
        return StoredReceipt(Receipt(Version(mid, version), count), digest)

    def names(self, *, namespace: str | None, after: MemoryName | None, limit: int) -> list[Listed]:
        """List memories along the index on (namespace, id)."""
        connection = self._reading()
        start = max(after or MemoryName("", ""), MemoryName(namespace or "", ""))
        only, values = ("", ()) if namespace is None else ("AND namespace = ?", (namespace,))
        with self._translating("names"):
            rows = connection.execute(_LIST.format(only), (*start, *values, limit))
            return [Listed(MemoryName(row[0], row[1]), Head(*row[2:])) for row in rows]

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        connection = self._reading()
        direction = "DESC" if newest else "ASC"
        with self._translating("entries"):
            rows = connection.execute(_PAGE.format(direction), (mid, after, before or _NO_BOUND, limit)).fetchall()
            return [StoredEntry(*row) for row in (reversed(rows) if newest else rows)]

    # Looking at the database itself

    def pragma(self, name: str) -> object:
        """Read a setting off the connection that writes (the reading one where there is none)."""
        connection = self._writer or self._reading()
        with self._translating("pragma"):
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

    def integrity(self) -> list[str]:
        """Run SQLite's own check over the whole file; an empty list is good news."""
        connection = self._reading()
        with self._translating("integrity check"):
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
        return [] if found == ["ok"] else found

    # Helpers

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            raise StoreUnavailableError(f"{self.describe()} is {'read-only' if self._read_only else 'not open'}")
        return self._writer

    def _reading(self) -> sqlite3.Connection:
        if self._reader is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        return self._reader

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        """Hold the side file's lock while this process may write or checkpoint, when others may as well."""
        if not self.shared:
            yield
            return
        if not self._commit_lock.acquire(exclusive=True, timeout=self._busy_timeout):
            raise StoreUnavailableError(f"{self.describe()} was locked by other processes for {self._busy_timeout} s")
        try:
            yield
        finally:
            self._commit_lock.release()

    @contextlib.contextmanager
    def _snapshot(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.execute("BEGIN")
        try:
            yield
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")

    @contextlib.contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = StoreUnavailableError if code in _UNAVAILABLE else StoreError
            hint = ""
            if code in _DAMAGED:
                # Before it is open, this is some other file; afterwards, it is ours and damaged.
                kind = StoreFormatError if action == "open" else StoreError
                hint = "; it is no database, or damaged: 'turnkeeper doctor URL' says more"
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            # The driver's own text stays out: the code's name says what happened.
            raise kind(f"{self.describe()}: {action} failed with {name}{hint}") from None
        except OSError as error:
            raise StoreUnavailableError(f"{self.describe()}: {action} failed: {error.strerror}") from None

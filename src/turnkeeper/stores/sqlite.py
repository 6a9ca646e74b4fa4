"""The default store: one SQLite file, written by one connection in groups, read by another beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from turnkeeper.errors import StoreError, StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.log import Committed, Loaded, LoadQuery, Outcome, Slice, StoredEntry, StoredReceipt
from turnkeeper.names import MemoryName
from turnkeeper.stores import sqlite_copying as copying
from turnkeeper.stores import sqlite_reading as reading
from turnkeeper.stores import sqlite_resealing as resealing
from turnkeeper.stores import sqlite_scrubbing as scrubbing
from turnkeeper.stores import sqlite_search as searching
from turnkeeper.stores import sqlite_writing as writing
from turnkeeper.stores.base import Changes, Cursor, Found, KeptReceipt, Listed, Reseal, SearchQuery, Store, Transfer
from turnkeeper.stores.filelock import FileLock
from turnkeeper.stores.filesystems import filesystem_of, is_network
from turnkeeper.stores.sqlite_schema import check_format, migrate

__all__ = ["QUARANTINE", "SQLiteStore"]

_OLDEST_SQLITE: Final = (3, 37, 0)  # strict tables

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
        search: make a full-text index of what is said, so that it can be searched. It is made once, from all that is
            there, and kept from then on, also when this is not asked for again.
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
        search: bool = False,
        network_filesystem: bool = False,
        busy_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Name the file; nothing is opened yet."""
        # The real path, so that every spelling of it finds the same side files.
        self.path: Path = Path(os.path.realpath(path))
        self.shared = shared
        self._read_only = read_only
        self._search = search
        self._network_filesystem = network_filesystem
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._owner_lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        self._commit_lock = FileLock(self.path.with_name(self.path.name + ".commit-lock"))
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

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
                    if self._search:
                        searching.make_index(self._writer)
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
        self._file = scrubbing.take_note(self.path)
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
        # Zeros in the place of what is deleted, or it would stay readable in the file.
        connection.execute("PRAGMA secure_delete = ON")
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
        file, self._file = self._file, None
        if file is not None:
            scrubbing.let_go(file)
        self._commit_lock.close()
        self._owner_lock.close()

    # Writing

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit a group in one transaction."""
        connection = self._writing()
        with self._translating("commit"), self._committing(), self._transaction(connection):
            now = int(self._clock() * 1e6)
            rows: list[writing.EntryRow] = []
            until = now + int(receipt_ttl * 1e6)
            outcomes = [writing.commit_slice(connection, slice_, now, until, rows) for slice_ in slices]
            connection.executemany(writing.APPEND, rows)
            for slice_, outcome in zip(slices, outcomes, strict=True):
                if slice_.prune and isinstance(outcome, Committed):
                    writing.prune(connection, slice_, outcome.mid)
        return outcomes

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Take in a group in one transaction."""
        connection = self._writing()
        with self._translating("adopt"), self._committing(), self._transaction(connection):
            now = self.now()
            return [copying.adopt(connection, transfer, now) for transfer in transfers]

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Replace a group's payloads in one transaction."""
        connection = self._writing()
        with self._translating("reseal"), self._committing(), self._transaction(connection):
            indexed = searching.has_index(connection)
            return [resealing.reseal(connection, change, indexed=indexed) for change in changes]

    def quarantine(self, name: MemoryName) -> MemoryName:
        """Move a memory out of the way under another name, whatever its entries look like, and return that name."""
        connection = self._writing()
        with self._translating("quarantine"), self._committing():
            head = reading.row_of(connection, name)
            if head is None:
                raise StoreError(f"{self.describe()} has no memory {name.id!r} (namespace {name.namespace!r})")
            aside = MemoryName(QUARANTINE, f"{head.mid}")
            with self._transaction(connection):
                writing.move(connection, head.mid, aside)
        return aside

    def scrub(self) -> str | None:
        """Empty the log, and put zeros over what SQLite leaves behind; reads the whole file."""
        connection = self._writing()
        assert self._file is not None
        with self._translating("scrub"), self._committing():
            blocked = scrubbing.scrub(connection, self.path, self._file)
        return None if blocked is None else f"{self.describe()}: {blocked}"

    # Reading

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Look for the slices' entry ids, or for what else they were to change."""
        connection = self._reading()
        with self._translating("settle"), self._snapshot(connection):
            return [reading.settle(connection, slice_) for slice_ in slices]

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories in one snapshot."""
        connection = self._reading()
        with self._translating("load"), self._snapshot(connection):
            return [reading.load(connection, query) for query in queries]

    def search(self, query: SearchQuery) -> list[Found]:
        """Look into the full-text index."""
        connection = self._reading()
        with self._translating("search"):
            return searching.find(connection, query)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        connection = self._reading()
        with self._translating("receipts"):
            now = self.now()
            return [writing.find_receipt(connection, name, key, now) for name, key in names_and_keys]

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Read a name's receipts along their index."""
        connection = self._reading()
        with self._translating("receipts_of"):
            return copying.receipts_of(connection, name, after=after, limit=limit, now=self.now())

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories along the index on (namespace, id)."""
        connection = self._reading()
        with self._translating("names"):
            return reading.list_names(
                connection, namespace=namespace, after=after, limit=limit, prefix=prefix, updated_after=updated_after
            )

    def expired(self, limit: int) -> list[MemoryName]:
        """List memories whose time is over along an index of their own."""
        connection = self._reading()
        with self._translating("expired"):
            return reading.expired(connection, self.now(), limit)

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        """Read which memories got entries along the entries' numbers."""
        connection = self._reading()
        with self._translating("changes"):
            return reading.changes(connection, after, limit)

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        connection = self._reading()
        with self._translating("entries"):
            return reading.page(connection, mid, after=after, before=before, limit=limit, newest=newest)

    def now(self) -> int:
        """Ask the clock."""
        return int(self._clock() * 1e6)

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
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

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

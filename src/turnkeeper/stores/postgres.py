"""The store on PostgreSQL: one function call, and so one trip and one transaction, for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from turnkeeper.errors import StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.log import Loaded, LoadQuery, Outcome, Slice, StoredEntry, StoredReceipt, Unknown
from turnkeeper.names import MemoryName
from turnkeeper.stores import postgres_reading as reading
from turnkeeper.stores import postgres_writing as writing
from turnkeeper.stores.base import Changes, Cursor, KeptReceipt, Listed, Reseal, Store, Transfer
from turnkeeper.stores.patience import patiently
from turnkeeper.stores.postgres_links import (
    Backend,
    Connection,
    ConnectionLostError,
    Link,
    backend_of,
    in_time,
    passes,
    put_to_rest,
    translating,
)
from turnkeeper.stores.postgres_schema import check_format, migrate
from turnkeeper.stores.postgres_urls import place_of

__all__ = ["PostgresStore"]

T = TypeVar("T")

_ATTEMPTS: Final = 3
"""How often a group is sent again after its connection was lost; each time it is looked up first."""

_SHORT_WAIT: Final = 0.25
"""Seconds after which a listener looks whether the store was closed."""


class PostgresStore(Store):
    """A schema of a PostgreSQL database (14 or newer); several processes and hosts may use it at once.

    Args:
        url: `postgresql://user:password@host/database`, with every option that the driver knows, and `schema=`.
        read_only: look only; the role needs no right to write.
        clock: returns seconds since the epoch; None: the server's clock.
    """

    shared: bool = True
    announces: bool = True

    def __init__(self, url: str, *, read_only: bool = False, clock: Callable[[], float] | None = None) -> None:
        """Read the URL; nothing is connected yet.

        Raises:
            InvalidStoreURLError: it can't be read.
        """
        self._place = place_of(url, read_only=read_only)
        self._read_only = read_only
        self._clock = clock
        self._channel = f"turnkeeper_{self._place.schema}"
        self._reader: Link | None = None
        self._writer: Link | None = None
        self._announcer: Link | None = None
        self._listener: Link | None = None
        self._listening: Connection | None = None
        self._in_listen = False
        self._full = True  # durability
        self._prepared = False  # the tables were there when it was opened
        self._announcing = 0  # the process that sends our own notices
        self._backend: Backend | None = None  # of the connection that commits
        # Those whose connection was lost while they committed: nothing is told of such a commit until they are gone.
        self._restless: set[Backend] = set()
        self._lock = Lock()

    def describe(self) -> str:
        """Name server, database and schema."""
        return self._place.described

    # Opening and closing

    def open(self, *, durability: str) -> None:
        """Connect, make the tables and check the server's settings; see `Store.open`."""
        if self._reader is not None:
            raise StoreInUseError(f"{self.describe()} is open already: one runtime at a time for each store object")
        try:
            self._full = durability == "full"
            self._reader = Link(self._place, joined=self._make_reader)
            self._listener, self._announcer = Link(self._place), Link(self._place, joined=self._note_announcer)
            if not self._read_only:
                self._writer = Link(self._place, joined=self._note_backend)
                self._do(self._writer, "open", self._prepare)
            elif not self._do(self._reader, "open", self._format):
                raise StoreFormatError(f"{self.describe()} is empty")
        except BaseException:
            self.close()
            raise

    def _format(self, connection: Connection) -> int:
        return check_format(connection, self._place.schema, self.describe())

    def _prepare(self, connection: Connection) -> None:
        if _setting(connection, "server_encoding") != "UTF8":
            raise StoreFormatError(f"{self.describe()}: the database's encoding has to be UTF8")
        self._migrate(connection)
        self._prepared = True

    def _migrate(self, connection: Connection) -> None:
        try:
            migrate(connection, self._place.schema, self.describe())
        except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
            migrate(connection, self._place.schema, self.describe())  # another process was faster

    def _note_backend(self, connection: Connection) -> None:
        # A server may come back with other settings, and another one, which knows nothing, in its place.
        if self._prepared:
            self._migrate(connection)
        self._make_durable(connection)
        self._backend = backend_of(connection)

    def _make_durable(self, connection: Connection) -> None:
        if not self._full:
            connection.execute("SET synchronous_commit = off")
            return
        if _setting(connection, "fsync") != "on":
            raise StoreUnavailableError(
                f"{self.describe()} runs with fsync=off, so a power cut may destroy it: switch it on, "
                "or open the runtime with durability='relaxed'"
            )
        if _setting(connection, "synchronous_commit") not in ("on", "remote_apply"):
            connection.execute("SET synchronous_commit = on")

    def _make_reader(self, connection: Connection) -> None:
        if self._prepared:
            self._migrate(connection)
        connection.execute("SET default_transaction_read_only = on")

    def _note_announcer(self, connection: Connection) -> None:
        self._announcing = connection.info.backend_pid

    def close(self) -> None:
        """Close all connections; one that listens is closed by who listens."""
        with self._lock:
            listener, self._listener = self._listener, None
            idle = None if self._in_listen else listener
        for link in (self._reader, self._writer, self._announcer, idle):
            if link is not None:
                link.close()
        self._reader = self._writer = self._announcer = None

    def first_row(self) -> int:
        """Read where the numbers of this database's rows begin."""
        return self._read("first row", _first_row)

    # Writing

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit a group by one call; see `Store.commit`."""
        if not slices:
            return []
        link, time = self._writing(), int(receipt_ttl * 1e6)
        outcomes: list[Outcome | None] = [None] * len(slices)
        for attempt in range(_ATTEMPTS):
            left = [n for n, outcome in enumerate(outcomes) if outcome is None]
            if not left:
                break
            group = [slices[n] for n in left]
            try:
                done = self._commit(link, group, time)
            except ConnectionLostError as error:
                if attempt == _ATTEMPTS - 1:
                    raise StoreUnavailableError(error.reason) from None
                done = self._settled(link, group, error)
            for n, outcome in zip(left, done, strict=True):
                outcomes[n] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _commit(self, link: Link, group: Sequence[Slice], receipt_time: int) -> Sequence[Outcome | None]:
        def send() -> list[Outcome]:
            connection = link.connection()
            backend = self._backend
            try:
                with translating(self.describe(), "commit", link):
                    return writing.commit(connection, group, now=self._time(), receipt_time=receipt_time)
            except ConnectionLostError:
                self._worry(backend)
                raise

        return patiently(send, again=in_time(passes))

    def _settled(self, link: Link, group: Sequence[Slice], lost: ConnectionLostError) -> list[Outcome | None]:
        """Find out what became of a group whose connection was lost.

        Raises:
            StoreUnavailableError: it can't be found out here.
        """
        try:
            found = self._settle(link, group)
        except ConnectionLostError:
            raise StoreUnavailableError(lost.reason) from None
        if any(isinstance(outcome, Unknown) for outcome in found):
            raise StoreUnavailableError(lost.reason)
        return found

    def _settle(self, link: Link, slices: Sequence[Slice]) -> list[Outcome | None]:
        connection = link.connection()
        with translating(self.describe(), "settle", link):
            self._calm(connection)
            return [reading.settle(connection, slice_) for slice_ in slices]

    def _worry(self, backend: Backend | None) -> None:
        if backend is not None:
            with self._lock:
                self._restless.add(backend)

    def _calm(self, connection: Connection) -> None:
        with self._lock:
            restless = list(self._restless)
        for backend in restless:
            put_to_rest(connection, backend, self.describe())
            with self._lock:
                self._restless.discard(backend)

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Write a group of transfers in one transaction; see `Store.adopt`."""
        return self._write("adopt", lambda connection: writing.adopt(connection, transfers, self._now(connection)))

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Put other bytes in the place of those that are there; see `Store.reseal`."""
        return self._write("reseal", lambda connection: writing.reseal(connection, changes))

    def _write(self, action: str, job: Callable[[Connection], T]) -> T:
        link = self._writing()

        def once() -> T:
            connection = link.connection()
            backend = self._backend
            try:
                with translating(self.describe(), action, link):
                    return job(connection)
            except ConnectionLostError:
                self._worry(backend)
                raise

        try:
            return patiently(once, again=in_time(passes))
        except ConnectionLostError as error:
            # Nothing of it may land after the caller has looked what is there.
            connection = link.connection()
            with translating(self.describe(), action, link):
                self._calm(connection)
            raise StoreUnavailableError(error.reason) from None

    # Reading

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Put lost connections to rest, then look for the slices' entry ids; see `Store.settle`."""
        return self._read("settle", lambda connection: self._settle_on(connection, slices))

    def _settle_on(self, connection: Connection, slices: Sequence[Slice]) -> list[Outcome | None]:
        self._calm(connection)
        return [reading.settle(connection, slice_) for slice_ in slices]

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories, those that nobody moved in one trip; see `Store.load`."""
        return self._read("load", lambda connection: reading.load(connection, queries)) if queries else []

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        return self._read("receipts", lambda it: reading.receipts(it, names_and_keys, self._now(it)))

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Read a name's receipts; see `Store.receipts_of`."""
        return self._read(
            "receipts", lambda it: reading.receipts_of(it, name, after=after, limit=limit, now=self._now(it))
        )

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
        return self._read(
            "names",
            lambda connection: reading.names(
                connection, namespace=namespace, after=after, limit=limit, prefix=prefix, updated_after=updated_after
            ),
        )

    def expired(self, limit: int) -> list[MemoryName]:
        """List memories whose time is over along an index of their own."""
        return self._read("expired", lambda connection: reading.expired(connection, self._now(connection), limit))

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        """Read which memories got entries, in the order of their transactions."""
        return self._read("changes", lambda connection: reading.changes(connection, after, limit))

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        return self._read(
            "entries",
            lambda connection: reading.entries(connection, mid, after=after, before=before, limit=limit, newest=newest),
        )

    def now(self) -> int:
        """Ask the server's clock."""
        if self._clock is not None:
            return int(self._clock() * 1e6)
        return self._read("now", self._now)

    def _now(self, connection: Connection) -> int:
        if self._clock is not None:
            return int(self._clock() * 1e6)
        row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
        assert row is not None
        return int(row[0])

    # Notices

    def announce(self) -> None:
        """Send a notice that says nothing but that there is something; a transaction of its own, off the commits."""
        link = self._announcer
        if link is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        try:
            self._do(
                link, "announce", lambda connection: connection.execute("SELECT pg_notify(%s, '')", (self._channel,))
            )
        except ConnectionLostError as error:
            raise StoreUnavailableError(error.reason) from None

    def listen(self, timeout: float) -> bool:
        """Wait for another store object's notice; see `Store.listen`."""
        with self._lock:
            link = self._listener
            self._in_listen = link is not None
        if link is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        heard = False
        try:
            connection = link.connection()
            with translating(self.describe(), "listen", link):
                if connection is not self._listening:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self._listening = connection
                    return True  # there may have been some before
                until = monotonic() + timeout
                while not heard and (left := until - monotonic()) > 0 and self._listener is link:
                    notices = list(connection.notifies(timeout=min(_SHORT_WAIT, left), stop_after=1))
                    heard = any(notice.pid != self._announcing for notice in notices)
        except ConnectionLostError as error:
            self._listening = None
            raise StoreUnavailableError(error.reason) from None
        finally:
            with self._lock:
                self._in_listen = False
                closed = self._listener is not link  # meanwhile
            if closed:
                link.close()
        return heard

    # Helpers

    def _writing(self) -> Link:
        if self._writer is None:
            raise StoreUnavailableError(f"{self.describe()} is {'read-only' if self._read_only else 'not open'}")
        return self._writer

    def _read(self, action: str, job: Callable[[Connection], T]) -> T:
        if self._reader is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        return self._do(self._reader, action, job)

    def _do(self, link: Link, action: str, job: Callable[[Connection], T]) -> T:
        """Run what may be repeated, and repeat it where its connection was lost."""

        def once() -> T:
            connection = link.connection()
            with translating(self.describe(), action, link):
                return job(connection)

        try:
            return patiently(
                once, again=in_time(lambda error: isinstance(error, ConnectionLostError) or passes(error)), attempts=4
            )
        except ConnectionLostError as error:
            raise StoreUnavailableError(error.reason) from None

    def _time(self) -> int | None:
        return None if self._clock is None else int(self._clock() * 1e6)


def _first_row(connection: Connection) -> int:
    row = connection.execute("SELECT first_row FROM about").fetchone()
    assert row is not None
    return int(row[0])


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])

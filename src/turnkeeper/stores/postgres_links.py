"""Connections to a PostgreSQL server: how they are made, what their errors mean, and how a lost one is put to rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.stores.patience import patiently
from turnkeeper.stores.postgres_urls import Place

__all__ = [
    "Backend",
    "Connection",
    "ConnectionLostError",
    "Link",
    "backend_of",
    "in_time",
    "passes",
    "put_to_rest",
    "translating",
]

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

PATIENCE: Final = 10.0
"""Seconds in which something new is begun after a failure that may pass; each attempt has a bound of its own."""

_LONGEST_ANSWER: Final = 28.0
"""Seconds after which a server that says nothing counts as lost: more than `statement_timeout`, so it stands still.

Its machine's kernel still acknowledges, so no setting of TCP finds that out."""


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever."""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Run what the driver waits for, and end the connection when that takes too long."""
        return super().wait(_bounded(self, gen), *args, **options)


def _bounded(connection: psycopg.Connection[Any], waited_for: Any) -> Any:
    until = time.monotonic() + _LONGEST_ANSWER
    try:
        state = next(waited_for)
        while True:
            ready = yield state
            if not ready and time.monotonic() > until:
                connection.pgconn.finish()
                raise psycopg.OperationalError("no answer")
            state = waited_for.send(ready)
    except StopIteration as end:
        return end.value


_SESSION: Final = (
    "SET lock_timeout = '3s'",
    "SET statement_timeout = '25s'",
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET standard_conforming_strings = on",
    "SET client_min_messages = warning",
    # Everything here goes along an index. A plan that was made while a table was small is kept while it grows, and
    # would read all of it at every call until somebody analyses it.
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)

_AGAIN: Final = frozenset({"40001", "40P01", "55P03"})
"""What passes: a serialization failure, a deadlock, a lock that took too long."""

_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""What a server says that ends the connection: another one may be found in its place."""

_SAID_AT_THE_DOOR: Final = (
    ("the database system", "57P03"),
    ("too many", "53300"),
    ("remaining connection slots", "53300"),
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("pg_hba.conf", "28000"),
    ("not permitted to log in", "28000"),
    ("database", "3D000"),
    ("role", "28000"),
)
"""What is in the driver's text when a connection is refused, for which it has no code; the first that fits counts."""

_HINTS: Final = {
    "53100": "the disk is full",
    "53200": "the server is out of memory",
    "53300": "the server takes no more connections: raise max_connections, or open fewer runtimes",
    "25006": "the server is read-only: a replica, or default_transaction_read_only is set",
    "42501": "the role lacks rights: docs/postgresql.md lists them",
    "42P01": "the tables are not there, or the role may not use the schema: docs/postgresql.md lists its rights",
    "3D000": "there is no such database",
    "57P03": "the server is starting or ending",
    "28P01": "the password was refused",
    "28000": "the server refuses this role",
    "57014": "it took longer than statement_timeout",
    "55P03": "a lock was held for longer than lock_timeout",
}

_UNAVAILABLE_CLASSES: Final = frozenset({"08", "25", "28", "3D", "40", "42", "53", "55", "57", "58", "XX"})


class ConnectionLostError(Exception):
    """The connection broke, so what it was doing may have happened; `reason` says what is known."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = reason


_STARTED: Final = "(extract(epoch FROM backend_start) * 1000000)::bigint"
"""When a server's process started, in microseconds: how a timestamp is written hangs on the server's settings."""


class Backend(NamedTuple):
    """The server's process behind a connection; its start tells it from a later one of the same number."""

    pid: int
    started: int


class Link:
    """One connection, made when it is needed and again when it was lost. One thread at a time.

    Args:
        place: where the server is.
        settings: statements that every new connection begins with.
        joined: told of each new connection.
    """

    def __init__(
        self, place: Place, settings: tuple[str, ...] = (), joined: Callable[[Connection], None] | None = None
    ) -> None:
        self._place = place
        self._settings = settings
        self._joined = joined
        self._connection: Connection | None = None
        self._closed = False

    def connection(self) -> Connection:
        """Return the connection; tries for a few seconds to make one.

        Raises:
            StoreUnavailableError: none can be made.
        """
        if self._connection is not None and not (self._connection.closed or self._connection.broken):
            return self._connection
        self._connection = None
        try:
            self._connection = patiently(self._connect, again=in_time(self._may_pass))
        except psycopg.Error as error:
            failure = _failure(self._place.described, "connect", error)
        else:
            return self._connection
        raise StoreUnavailableError(str(failure))

    def _connect(self) -> Connection:
        if self._closed:
            raise StoreUnavailableError(f"{self._place.described} is not open")
        conninfo = make_conninfo(**self._place.conninfo)
        connection: Connection = _BoundedConnection.connect(conninfo, autocommit=True, prepare_threshold=2)
        try:
            path = sql.SQL("SET search_path TO {}, pg_catalog").format(sql.Identifier(self._place.schema))
            settings = "; ".join((path.as_string(connection), *_SESSION, *self._settings))
            connection.execute(settings.encode())  # in one trip
            if self._joined is not None:
                self._joined(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _may_pass(self, error: Exception) -> bool:
        # A refusal by name (password, database, rights) comes back the same; a server that starts does not.
        return (
            not self._closed
            and isinstance(error, psycopg.OperationalError)
            and (_state_of(error) or "08000")[:2] not in ("28", "3D", "42")
        )

    def drop(self) -> None:
        """Close the connection; the next use makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        """Close it for good."""
        self._closed = True
        self.drop()


def backend_of(connection: Connection) -> Backend:
    """Ask who serves a connection."""
    row = connection.execute(f"SELECT pid, {_STARTED} FROM pg_stat_activity WHERE pid = pg_backend_pid()").fetchone()
    assert row is not None
    return Backend(*row)


def put_to_rest(connection: Connection, lost: Backend, described: str) -> None:
    """See to it that a lost connection's process does nothing any more; a server that never knew it has it not.

    Raises:
        StoreUnavailableError: it is still there.
    """
    who = (lost.pid, lost.started)
    there = f"FROM pg_stat_activity WHERE pid = %s AND {_STARTED} = %s"
    connection.execute(f"SELECT pg_terminate_backend(pid, 5000) {there}", who)
    left = connection.execute(f"SELECT 1 {there}", who).fetchone()
    if left is not None:
        raise StoreUnavailableError(f"{described}: a lost connection is still at work there")


@contextlib.contextmanager
def translating(described: str, action: str, link: Link) -> Iterator[None]:
    """Turn the driver's errors into ours, without their text, which may hold what somebody wrote.

    Raises:
        ConnectionLostError: the connection broke under it.
        StoreUnavailableError: the server can't do it now.
        StoreError: it can't do it at all.
    """
    try:
        yield
    except psycopg.Error as error:
        connection = link._connection
        gone = connection is None or connection.closed or connection.broken or error.sqlstate in _LOST
        failure = _failure(described, action, error)
        if gone:
            link.drop()
    else:
        return
    if gone:
        raise ConnectionLostError(str(failure))
    raise failure


def in_time(again: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """Say no when `PATIENCE` is over, whatever `again` says."""
    until = time.monotonic() + PATIENCE
    return lambda error: time.monotonic() < until and again(error)


def passes(error: Exception) -> bool:
    """Tell whether a statement that failed may be repeated at once, since all of it was undone."""
    return isinstance(error, _PassingError)


class _PassingError(StoreUnavailableError):
    """A deadlock, or another failure that comes from others' transactions."""


def _state_of(error: psycopg.Error) -> str | None:
    """Return an error's code; for a connection that was refused, what its text amounts to. The text goes nowhere."""
    text = str(error)
    if error.sqlstate is None and "FATAL" in text:
        return next((state for part, state in _SAID_AT_THE_DOOR if part in text), None)
    return error.sqlstate


def _failure(described: str, action: str, error: psycopg.Error) -> StoreError:
    state = _state_of(error)
    if state is None:
        kind = "can't be reached" if isinstance(error, psycopg.OperationalError) else type(error).__name__
        text = f"{described}: {action} failed: {kind}"
        return StoreUnavailableError(text) if isinstance(error, psycopg.OperationalError) else StoreError(text)
    hint = _HINTS.get(state)
    text = f"{described}: {action} failed with SQLSTATE {state}" + (f" ({hint})" if hint else "")
    if state in _AGAIN:
        return _PassingError(text)
    return StoreUnavailableError(text) if state[:2] in _UNAVAILABLE_CLASSES else StoreError(text)

"""What the same work costs without turnkeeper: the least that could stand in its place.

None of these validates, bounds, cancels safely, unloads or answers everybody when something breaks.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from turnkeeper.lane import Lane
from turnkeeper.stores import SQLiteStore, sqlite_writing

__all__ = [
    "Add",
    "ChatMessage",
    "Conversations",
    "DurableAdds",
    "Read",
    "bare_actors",
    "grouped_sql",
    "locked_lists",
    "one_transaction_per_add",
]

ChatMessage = dict[str, str]
Add = Callable[[ChatMessage], Awaitable[object]]
Read = Callable[[], Awaitable[object]]

_MAILBOX: Final = 256
_GROUP: Final = 512  # turnkeeper's `group_entries`
_TIMEOUT: Final = 60.0
_PATIENCE: Final = 600.0


class Conversations(Protocol):
    """Some conversations of one subject; a request is a call of one of these functions."""

    @property
    def adds(self) -> Sequence[Add]:
        """Add a message, one function a conversation."""

    @property
    def reads(self) -> Sequence[Read]:
        """Read all messages, one function a conversation."""

    def end_tasks(self) -> None:
        """Have every idle actor's task end, and keep its messages."""


# In memory: a lock around a list


class _LockedList:
    __slots__ = ("_lock", "_messages")

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._messages: list[ChatMessage] = []

    async def add(self, message: ChatMessage) -> int:
        async with self._lock:
            self._messages.append(message)
            return len(self._messages)

    async def read(self) -> tuple[ChatMessage, ...]:
        async with self._lock:
            return tuple(self._messages)


class _LockedLists:
    def __init__(self, count: int) -> None:
        lists = [_LockedList() for _ in range(count)]
        self.adds = [one.add for one in lists]
        self.reads = [one.read for one in lists]

    def end_tasks(self) -> None:
        """There are none."""


@contextlib.asynccontextmanager
async def locked_lists(count: int) -> AsyncIterator[Conversations]:
    """Lists behind an `anyio.Lock` each."""
    yield _LockedLists(count)


# In memory: a bare actor


class _Request:
    __slots__ = ("done", "message", "result")

    def __init__(self, message: ChatMessage | None) -> None:
        self.message = message
        self.done = anyio.Event()
        self.result: Any = None


class _BareActor:
    """A task that owns a list, an anyio stream in front of it, an Event for each reply."""

    __slots__ = ("_group", "_mailbox", "_messages")

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._messages: list[ChatMessage] = []
        self._mailbox: MemoryObjectSendStream[_Request] | None = None

    async def add(self, message: ChatMessage) -> int:
        return int(await self._ask(_Request(message)))

    async def read(self) -> tuple[ChatMessage, ...]:
        snapshot: tuple[ChatMessage, ...] = await self._ask(_Request(None))
        return snapshot

    def end_task(self) -> None:
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    async def _ask(self, request: _Request) -> Any:
        if self._mailbox is None:
            self._mailbox, inbox = anyio.create_memory_object_stream[_Request](_MAILBOX)
            self._group.start_soon(self._run, inbox)
        self._mailbox.send_nowait(request)
        await request.done.wait()
        return request.result

    async def _run(self, inbox: MemoryObjectReceiveStream[_Request]) -> None:
        with inbox:
            while True:
                try:
                    request = await inbox.receive()
                except anyio.EndOfStream:
                    return
                while True:
                    self._serve(request)
                    try:
                        request = inbox.receive_nowait()
                    except (anyio.WouldBlock, anyio.EndOfStream):
                        break

    def _serve(self, request: _Request) -> None:
        if request.message is None:
            request.result = tuple(self._messages)
        else:
            self._messages.append(request.message)
            request.result = len(self._messages)
        request.done.set()


class _BareActors:
    def __init__(self, count: int, group: TaskGroup) -> None:
        self._actors = [_BareActor(group) for _ in range(count)]
        self.adds = [actor.add for actor in self._actors]
        self.reads = [actor.read for actor in self._actors]

    def end_tasks(self) -> None:
        for actor in self._actors:
            actor.end_task()


@contextlib.asynccontextmanager
async def bare_actors(count: int) -> AsyncIterator[Conversations]:
    """Bare actors in one task group."""
    async with anyio.create_task_group() as group:
        actors = _BareActors(count, group)
        yield actors
        actors.end_tasks()


# Durable: turnkeeper's own SQL without actors

DurableAdds = Sequence[Add]


class _Row:
    """A memory's row as its only writer knows it, and one add on its way there."""

    __slots__ = ("done", "index", "mid", "payload", "version")

    done: anyio.Event

    def __init__(self, index: int) -> None:
        self.index = index
        self.mid = 0
        self.version = 0
        self.payload = b""


class _SQL:
    """The statements of `stores/sqlite_writing.py`, on a connection that it opened, in the thread of a `Lane`."""

    def __init__(self, path: Path) -> None:
        self._lane = Lane("floor")
        self._store = SQLiteStore(path)
        self._connection: sqlite3.Connection
        self._random_bytes = Random(0).randbytes

    async def open(self) -> None:
        await self._lane.call(partial(self._store.open, durability="full"), timeout=_TIMEOUT)
        assert self._store._writer is not None
        self._connection = self._store._writer

    async def close(self) -> None:
        await self._lane.call(self._store.close, timeout=_TIMEOUT)
        self._lane.stop()

    async def write(self, rows: list[_Row]) -> None:
        await self._lane.call(partial(self._write, rows), timeout=_PATIENCE)

    def _write(self, rows: list[_Row]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        at = int(time.time() * 1e6)
        entries: list[tuple[object, ...]] = []
        for row in rows:
            expected, row.version = row.version, row.version + 1
            if row.mid:
                cursor = connection.execute(
                    sqlite_writing._ADVANCE, (row.version, 0, 0, at, 0, row.mid, expected, -1, at, b"")
                )
            else:
                cursor = connection.execute(
                    sqlite_writing._CREATE, ("", f"memory-{row.index}", row.version, 0, 0, at, at, 0)
                )
                row.mid = cursor.lastrowid or 0
            assert cursor.rowcount == 1
            entries.append((row.mid, row.version, "add", self._random_bytes(16), None, row.payload, at))
        connection.executemany(sqlite_writing.APPEND, entries)
        connection.execute("COMMIT")


def _payload(message: ChatMessage) -> bytes:
    return b'{"messages":[%b]}' % msgspec.json.encode(message)


@contextlib.asynccontextmanager
async def grouped_sql(path: Path, count: int) -> AsyncIterator[DurableAdds]:
    """Group commit with turnkeeper's cap, one flusher and one thread hop a group; an Event for each reply."""
    sql = _SQL(path)
    await sql.open()
    line: deque[_Row] = deque()
    wake = anyio.Event()

    async def add(row: _Row, message: ChatMessage) -> int:
        row.payload = _payload(message)
        row.done = anyio.Event()
        line.append(row)
        wake.set()
        await row.done.wait()
        return row.version

    async def flush() -> None:
        nonlocal wake
        while True:
            if not line:
                wake = anyio.Event()
                await wake.wait()
            group = [line.popleft() for _ in range(min(len(line), _GROUP))]
            await sql.write(group)
            for row in group:
                row.done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(flush)
        yield [partial(add, _Row(index)) for index in range(count)]
        group.cancel_scope.cancel()
    await sql.close()


@contextlib.asynccontextmanager
async def one_transaction_per_add(path: Path, count: int) -> AsyncIterator[DurableAdds]:
    """The same statements and the same thread, a transaction for each add."""
    sql = _SQL(path)
    await sql.open()

    async def add(row: _Row, message: ChatMessage) -> int:
        row.payload = _payload(message)
        await sql.write([row])
        return row.version

    yield [partial(add, _Row(index)) for index in range(count)]
    await sql.close()

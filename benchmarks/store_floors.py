"""What the same durable work costs without actors: the store's own commits, gathered by a plain loop, or one each.

The slices are prepared as far as they can be: a client's message is checked and encoded once, for all of its adds.
Nothing here validates, bounds, reads, cancels safely or finds out what became of a commit whose answer was lost.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from floors import Add, ChatMessage
from turnkeeper.lane import Lane
from turnkeeper.log import ADD, Committed, Entry, Slice
from turnkeeper.messages import encode_messages
from turnkeeper.names import memory_name
from turnkeeper.stores import Store

__all__ = ["MakeStore", "grouped_commits", "one_commit_per_add"]

MakeStore = Callable[[], Store]

_GROUP: Final = 512  # turnkeeper's `group_entries`
_TTL: Final = 3600.0
_PATIENCE: Final = 600.0


class _Row:
    """A memory as its only writer knows it, and one add on its way there."""

    __slots__ = ("done", "messages", "mid", "name", "slice", "version")

    done: anyio.Event
    slice: Slice

    def __init__(self, memory_id: str) -> None:
        self.name = memory_name(memory_id, "")
        self.mid = 0
        self.version = 0
        self.messages = encode_messages(())

    def prepare(self, message: ChatMessage) -> None:
        self.messages = self.messages or encode_messages((message,))
        self.slice = Slice(self.name, self.mid, self.version, (Entry(ADD, os.urandom(16), self.messages),))

    def settle(self, outcome: object) -> None:
        assert isinstance(outcome, Committed), outcome
        self.mid = outcome.mid
        self.version += 1


class _Connection:
    """A store in a thread of its own, or called inline where it is one that needs no thread."""

    def __init__(self, make: MakeStore, durability: str) -> None:
        self._store = make()
        self._durability = durability
        self._lane = None if self._store.inline else Lane("floor")

    async def open(self) -> None:
        if self._lane is None:
            self._store.open(durability=self._durability)
        else:
            await self._lane.call(partial(self._store.open, durability=self._durability), timeout=_PATIENCE)

    async def close(self) -> None:
        if self._lane is None:
            self._store.close()
        else:
            await self._lane.call(self._store.close, timeout=_PATIENCE)
            self._lane.stop()

    async def commit(self, rows: Sequence[_Row]) -> None:
        slices = [row.slice for row in rows]
        if self._lane is None:
            await checkpoint()  # or a client would never let another one in
            outcomes = self._store.commit(slices, receipt_ttl=_TTL)
        else:
            outcomes = await self._lane.call(partial(self._store.commit, slices, receipt_ttl=_TTL), timeout=_PATIENCE)
        for row, outcome in zip(rows, outcomes, strict=True):
            row.settle(outcome)


@contextlib.asynccontextmanager
async def grouped_commits(
    make: MakeStore, ids: Sequence[str], *, durability: str = "full"
) -> AsyncIterator[Sequence[Add]]:
    """Group commit with turnkeeper's cap, one flusher and one thread hop a group; an Event for each reply."""
    connection = _Connection(make, durability)
    await connection.open()
    line: deque[_Row] = deque()
    wake = anyio.Event()

    async def add(row: _Row, message: ChatMessage) -> int:
        row.prepare(message)
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
            await connection.commit(group)
            for row in group:
                row.done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(flush)
        yield [partial(add, _Row(memory_id)) for memory_id in ids]
        group.cancel_scope.cancel()
    await connection.close()


@contextlib.asynccontextmanager
async def one_commit_per_add(
    make: MakeStore, ids: Sequence[str], *, durability: str = "full", connections: int = 1
) -> AsyncIterator[Sequence[Add]]:
    """A commit for each add, over so many connections with a thread each."""
    opened = [_Connection(make, durability) for _ in range(connections)]
    for connection in opened:
        await connection.open()

    async def add(connection: _Connection, row: _Row, message: ChatMessage) -> int:
        row.prepare(message)
        await connection.commit([row])
        return row.version

    yield [partial(add, opened[number % connections], _Row(memory_id)) for number, memory_id in enumerate(ids)]
    for connection in opened:
        await connection.close()

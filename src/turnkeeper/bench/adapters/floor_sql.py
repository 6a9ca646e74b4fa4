"""The same SQL without actors: one connection in a thread, one transaction for all that came while the last one ran."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import to_thread

TITLE = "floor: grouped SQL"
DURABILITY = "power cut"
TOOLS = WINDOWS = True

_SCHEMA = "CREATE TABLE IF NOT EXISTS entry (n INTEGER PRIMARY KEY, id TEXT NOT NULL, payload BLOB NOT NULL)"
_INDEX = "CREATE INDEX IF NOT EXISTS by_id ON entry (id, n)"
_ADD = "INSERT INTO entry (id, payload) VALUES (?, ?)"
_READ = "SELECT payload FROM entry WHERE id = ? ORDER BY n DESC LIMIT ?"

Dicts = Sequence[dict[str, Any]]


class _Grouped:
    def __init__(self, path: Path, window: int | None) -> None:
        self._window = -1 if window is None else window
        self._writer, self._reader = (
            sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2)
        )
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _SCHEMA, _INDEX):
            self._writer.execute(statement)
        self._line: list[tuple[list[tuple[str, bytes]], anyio.Event]] = []
        self._wake = anyio.Event()
        self._reading = anyio.Lock()

    async def add(self, conversation: str, messages: Dicts) -> None:
        done = anyio.Event()
        self._line.append(([(conversation, msgspec.json.encode(message)) for message in messages], done))
        self._wake.set()
        await done.wait()

    async def read(self, conversation: str) -> Dicts:
        async with self._reading:
            rows = await to_thread.run_sync(
                lambda: self._reader.execute(_READ, (conversation, self._window)).fetchall()
            )
        return [msgspec.json.decode(row[0]) for row in reversed(rows)]

    async def flush(self) -> None:
        while True:
            if not self._line:
                self._wake = anyio.Event()
                await self._wake.wait()
            group, self._line = self._line[:512], self._line[512:]
            await to_thread.run_sync(self._commit, [row for rows, _ in group for row in rows])
            for _, done in group:
                done.set()

    def _commit(self, rows: list[tuple[str, bytes]]) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.executemany(_ADD, rows)
        self._writer.execute("COMMIT")

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


@asynccontextmanager
async def opened(place: Path, *, window: int | None) -> AsyncIterator[_Grouped]:
    """Open it."""
    grouped = _Grouped(place / "floor.db", window)
    async with anyio.create_task_group() as group:
        group.start_soon(grouped.flush)
        yield grouped
        group.cancel_scope.cancel()
    grouped.close()

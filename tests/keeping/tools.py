"""What the tests of keeping share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from turnkeeper import ChatMemory, Metadata, Runtime, open_runtime
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store

BOUND = 20.0  # seconds in which everybody must have an answer, on the busiest of machines

KINDS = ("memory", "sqlite", "sqlite-shared")


class Clock:
    """A store's clock, which stands still until it is moved."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def store_of(kind: str, folder: Path, clock: Callable[[], float]) -> Store:
    """Return a fresh store; of a shared one, another object for the same file."""
    if kind == "memory":
        return InMemoryStore(clock=clock)
    return SQLiteStore(folder / "chats.db", shared=kind == "sqlite-shared", clock=clock)


@asynccontextmanager
async def opened(store: Store, **options: Any) -> AsyncIterator[Runtime]:
    """Open a runtime whose keeper does nothing by itself."""
    async with open_runtime(store, **{"sweep_interval": 1e9, **options}) as runtime:
        yield runtime


async def sweep(runtime: Runtime) -> None:
    """Have everything looked at now."""
    with anyio.fail_after(BOUND):
        await runtime._core.keeper.sweep()


async def listed(runtime: Runtime, **query: Any) -> list[str]:
    """List all ids, page by page."""
    return [each.id for each in await pages(runtime, **query)]


async def pages(runtime: Runtime, **query: Any) -> list[Metadata]:
    """List everything, page by page."""
    found: list[Metadata] = []
    cursor = None
    while True:
        page = await runtime.memories(cursor=cursor, **query)
        found += page.memories
        cursor = page.cursor
        if cursor is None:
            return found
        assert page.memories


async def log_of(memory: ChatMemory) -> list[int]:
    """Return the numbers of the entries that are still there."""
    return [entry.version.n for entry in (await memory.history(limit=10_000)).entries]

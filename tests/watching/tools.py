"""What the tests of watching share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from turnkeeper import ChatMemory, HistoryEntry, MemoryWatch, Notice, Reset, Runtime, RuntimeWatch, SyncRuntime
from turnkeeper.log import Committed, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import Changes, Cursor, InMemoryStore, Outcome, Slice

BOUND = 20.0  # seconds in which everything must have been seen, on the busiest of machines


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def add(memory: ChatMemory, *texts: str) -> None:
    """Make one entry for each text."""
    for text in texts:
        await memory.add(user(text))


def shown(event: object) -> str:
    """Say what an event says: the texts of an addition, another entry's op, a reset's version."""
    if isinstance(event, Reset):
        return f"reset {event.version}"
    assert isinstance(event, HistoryEntry), event
    return ",".join(str(message.text) for message in event.messages) if event.op == "add" else event.op


async def following(events: MemoryWatch, count: int) -> list[str]:
    """Read so many events."""
    with anyio.fail_after(BOUND):
        return [shown(await anext(events)) for _ in range(count)]


async def nothing_more(events: MemoryWatch | RuntimeWatch) -> None:
    """Find no event, though there is time for one."""
    with anyio.move_on_after(0.02):
        pytest.fail(f"nobody expected {await anext(events)}")


async def notices(watch: RuntimeWatch, count: int) -> list[Notice]:
    with anyio.fail_after(BOUND):
        return [await anext(watch) for _ in range(count)]


def nothing_left(runtime: Runtime | SyncRuntime) -> bool:
    """Tell whether no watcher has left anything behind."""
    core = runtime._core
    return core.watching.empty and core._committer.told is None


class SharedStore(InMemoryStore):
    """A store in memory that several runtimes of one loop share: `other()` is another one's view of it."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[tuple[MemoryName, Version]] = []
        self.polls = 0

    def other(self) -> SharedStore:
        """Return a store that holds the same."""
        other = SharedStore()
        other.__dict__ = self.__dict__
        return other

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        for slice_, outcome in zip(slices, outcomes, strict=True):
            if isinstance(outcome, Committed) and slice_.entries:
                n = slice_.expected + len(slice_.entries)
                self.changed.append((slice_.name, Version(outcome.mid, n)))
        return outcomes

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        self.polls += 1
        if not isinstance(after, int):
            return Changes(len(self.changed), ())
        part = self.changed[after : after + limit]
        return Changes(after + len(part), tuple(part))

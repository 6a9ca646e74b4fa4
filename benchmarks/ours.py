"""turnkeeper as a subject. The only place where a benchmark reaches behind the public names."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import turnkeeper
from floors import Conversations, DurableAdds

__all__ = ["durable_memories", "empty_tuples", "memories"]

_LONG = 3600.0


class _Memories:
    def __init__(self, runtime: turnkeeper.Runtime, count: int) -> None:
        self._runtime = runtime
        handles = [runtime.memory(f"memory-{index}") for index in range(count)]
        self.adds = [handle.add for handle in handles]
        self.reads = [handle.messages for handle in handles]

    def end_tasks(self) -> None:
        residency = self._runtime._core._residency
        residency._linger = -_LONG
        residency.sweep()
        residency._linger = _LONG
        assert not residency.running


@contextlib.asynccontextmanager
async def memories(count: int) -> AsyncIterator[Conversations]:
    """Memories in RAM whose actors stay parked until told to end."""
    async with turnkeeper.open_runtime("memory:", linger=_LONG) as runtime:
        yield _Memories(runtime, count)


@contextlib.asynccontextmanager
async def durable_memories(path: Path, count: int) -> AsyncIterator[DurableAdds]:
    """Memories in a SQLite file, with every default."""
    async with turnkeeper.open_runtime(f"sqlite:///{path}") as runtime:
        yield [runtime.memory(f"memory-{index}").add for index in range(count)]


@contextlib.contextmanager
def empty_tuples() -> Iterator[None]:
    """Let every view be built but for its last step, the copy of its messages into a tuple."""

    def empty(_: object, version: turnkeeper.Version, overflow: bool = False) -> turnkeeper.Messages:
        return turnkeeper.Messages((), version, overflow)

    with mock.patch("turnkeeper.windows.limited_view.Messages", empty):
        yield

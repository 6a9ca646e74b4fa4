"""Acknowledged is durable: 1 000 clients add to 1 000 memories in a SQLite file, the next after the answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import anyio

import floors
import measure
import ours
from floors import Add, DurableAdds
from measure import Result, Spent, Stopwatch, Target
from workloads.subjects import MESSAGE, OURS

__all__ = ["over_floor", "run"]

GROUPED: Final = "SQL, grouped"
SINGLE: Final = "SQL, one transaction an add"

_MEMORIES: Final = 1000

_Subject = Callable[[Path, int], AbstractAsyncContextManager[DurableAdds]]


def run(backend: str, *, rounds: int, quick: bool, directory: Path) -> list[Result]:
    """Measure adds a second; every sample has a new file and creates its rows beforehand."""
    adds = 5 if quick else 20
    subjects: dict[str, tuple[_Subject, int]] = {
        SINGLE: (floors.one_transaction_per_add, 1),
        GROUPED: (floors.grouped_sql, adds),
        OURS: (ours.durable_memories, adds),
    }
    samples = _sample(backend, subjects, rounds, directory)
    return [
        Result(
            "durable",
            "adds a second, 1 000 clients, 1 000 memories",
            backend,
            "adds/s",
            {name: [1 / spent.wall for spent in values] for name, values in samples.items()},
            GROUPED,
            (Target(OURS, GROUPED, 0.5, at_least=True), Target(OURS, SINGLE, 5, at_least=True)),
        ),
        Result(
            "durable",
            "CPU of one add (both threads)",
            backend,
            "µs CPU",
            {name: [spent.cpu * 1e6 for spent in values] for name, values in samples.items()},
            GROUPED,
        ),
    ]


def over_floor(backend: str, *, rounds: int, directory: Path) -> list[float]:
    """Return the CPU of an add over that of the grouped SQL, for each round: wall time hangs on the disk's mood."""
    subjects: dict[str, tuple[_Subject, int]] = {GROUPED: (floors.grouped_sql, 5), OURS: (ours.durable_memories, 5)}
    samples = _sample(backend, subjects, rounds, directory)
    return [one.cpu / floor.cpu for one, floor in zip(samples[OURS], samples[GROUPED], strict=True)]


def _sample(
    backend: str, subjects: dict[str, tuple[_Subject, int]], rounds: int, directory: Path
) -> dict[str, list[Spent]]:
    return measure.interleaved(
        {
            name: partial(measure.run, backend, _adds, subject, number, directory)
            for name, (subject, number) in subjects.items()
        },
        rounds,
    )


async def _adds(open_subject: _Subject, number: int, directory: Path) -> Spent:
    """Return seconds an add."""
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        async with open_subject(Path(fresh) / "chats.db", _MEMORIES) as adds:
            await _clients(adds, 1)
            watch = Stopwatch()
            await _clients(adds, number)
            spent = watch.spent()
    return Spent(spent.cpu / number / _MEMORIES, spent.wall / number / _MEMORIES)


async def _clients(adds: DurableAdds, number: int) -> None:
    async def client(add: Add) -> None:
        for _ in range(number):
            await add(MESSAGE)

    async with anyio.create_task_group() as group:
        for add in adds:
            group.start_soon(client, add)

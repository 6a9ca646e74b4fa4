"""Clients that each add to a memory of their own, the next after the answer, on every store: how many, how soon."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import anyio

import measure
import store_floors
import turnkeeper
from floors import Add
from measure import Result, Target
from store_floors import MakeStore
from turnkeeper.stores import Store
from workloads.subjects import MESSAGE, OURS

__all__ = ["GROUPED", "POOLED", "SINGLE", "Bench", "Load", "load", "memories", "options_of", "run"]

GROUPED: Final = "the same, grouped, no actors"
SINGLE: Final = "a transaction an add"
POOLED: Final = "the same, 8 connections"

_POOL: Final = 8

_Subject = Callable[[Sequence[str]], AbstractAsyncContextManager[Sequence[Add]]]


@dataclass(frozen=True)
class Bench:
    """A store to be measured.

    Attributes:
        name: for the table.
        make: makes a store object; all of one kind are on the same data.
        durability: the runtime's.
        pooled: several store objects may be open at once.
        url: of the server, where there is one.
    """

    name: str
    make: MakeStore
    durability: str = "full"
    pooled: bool = False
    url: str = ""


class Load(NamedTuple):
    """Adds a second, and latencies in milliseconds."""

    rate: float
    p50: float
    p99: float


_RUN: Final = secrets.token_hex(4)  # the servers may have been used before
_ids = itertools.count()


def run(backend: str, bench: Bench, clients: int, *, rounds: int, seconds: float) -> list[Result]:
    """Measure one store with so many clients, each sample for so many seconds."""
    subjects: dict[str, _Subject] = {
        GROUPED: partial(store_floors.grouped_commits, bench.make, durability=bench.durability),
        SINGLE: partial(store_floors.one_commit_per_add, bench.make, durability=bench.durability),
        OURS: partial(memories, bench),
    }
    if bench.pooled:
        subjects[POOLED] = partial(
            store_floors.one_commit_per_add, bench.make, durability=bench.durability, connections=_POOL
        )
    samples = measure.interleaved(
        {name: partial(measure.run, backend, load, subject, clients, seconds) for name, subject in subjects.items()},
        rounds,
    )
    targets = [] if bench.name == "memory" else [Target(OURS, GROUPED, 0.5, at_least=True)]
    if clients == 300 and targets:
        targets.append(Target(OURS, SINGLE, 6, at_least=True))
    units: tuple[tuple[str, str, tuple[Target, ...]], ...] = (
        ("rate", "adds/s", tuple(targets)),
        ("p50", "ms", ()),
        ("p99", "ms", ()),
    )
    return [
        Result(
            bench.name,
            f"{clients} clients, {field}",
            backend,
            unit,
            {name: [getattr(load, field) for load in loads] for name, loads in samples.items()},
            GROUPED,
            judged,
        )
        for field, unit, judged in units
    ]


def options_of(durability: str) -> turnkeeper.RuntimeOptions:
    """Return a runtime's options."""
    return {"durability": "full" if durability == "full" else "relaxed"}


@contextlib.asynccontextmanager
async def memories(bench: Bench, ids: Sequence[str], store: Store | None = None) -> AsyncIterator[Sequence[Add]]:
    """Memories of a runtime with every default but the durability."""
    async with turnkeeper.open_runtime(store or bench.make(), **options_of(bench.durability)) as runtime:
        yield [runtime.memory(memory_id).add for memory_id in ids]


async def load(open_subject: _Subject, clients: int, seconds: float) -> Load:
    """Return what the clients of one sample got; their memories exist before it begins."""
    prefix = f"{_RUN}-{next(_ids)}"
    async with open_subject([f"memory-{prefix}-{number}" for number in range(clients)]) as adds:
        await _work(adds, 0)
        start = time.perf_counter()
        latencies = await _work(adds, start + seconds)
        took = time.perf_counter() - start
    latencies.sort()
    return Load(
        len(latencies) / took,
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[len(latencies) * 99 // 100],
    )


async def _work(adds: Sequence[Add], until: float) -> list[float]:
    """Let each client add at least once, and then as often as there is time; return the seconds of each add."""
    latencies: list[float] = []

    async def client(add: Add) -> None:
        then = time.perf_counter()
        while True:
            await add(MESSAGE)
            now = time.perf_counter()
            latencies.append(now - then)
            if now >= until:
                return
            then = now

    async with anyio.create_task_group() as group:
        for add in adds:
            group.start_soon(client, add)
    return latencies

"""What telling other processes costs, and how soon a watcher in another process sees an add."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from typing import Any, Final

import anyio

import measure
import turnkeeper
from measure import Result
from workloads import stores
from workloads.stores import Bench
from workloads.subjects import MESSAGE

__all__ = ["run"]

TOLD: Final = "with notices"
SILENT: Final = "without"

_EVENTS: Final = 100
_CLIENTS: Final = 300


def run(backend: str, bench: Bench, *, rounds: int, seconds: float) -> list[Result]:
    """Measure the adds a second with and without notices, and the way of an event."""
    samples = measure.interleaved(
        {
            name: partial(measure.run, backend, stores.load, partial(_memories, bench, name == TOLD), _CLIENTS, seconds)
            for name in (SILENT, TOLD)
        },
        rounds,
    )
    latencies = sorted(_watched(backend, bench))
    return [
        Result(
            bench.name,
            f"{_CLIENTS} clients, adds",
            backend,
            "adds/s",
            {name: [load.rate for load in loads] for name, loads in samples.items()},
            SILENT,
        ),
        Result(
            bench.name,
            f"from an add's answer to the event in another process, {_EVENTS} adds one by one",
            backend,
            "ms",
            {"median": [latencies[len(latencies) // 2]], "p99": [latencies[-2]]},
        ),
    ]


def _memories(bench: Bench, announces: bool, ids: Any) -> Any:
    store = bench.make()
    store.announces = announces and store.announces
    return stores.memories(bench, ids, store)


def _watched(backend: str, bench: Bench) -> list[float]:
    """Return milliseconds; the machine's monotonic clock is that of both processes."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps([backend, bench.url, bench.durability])],
        cwd=measure.HERE,
        stdout=subprocess.PIPE,
        text=True,
    ) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "watching\n"
        answered = measure.run(backend, _add, bench)
        seen = json.loads(watcher.stdout.readline())
    return [1e3 * (later - earlier) for earlier, later in zip(answered, seen, strict=True)]


async def _add(bench: Bench) -> list[float]:
    answered = []
    async with turnkeeper.open_runtime(bench.make(), **stores.options_of(bench.durability)) as runtime:
        memory = runtime.memory("watched")
        for _ in range(_EVENTS):
            await memory.add(MESSAGE)
            answered.append(time.monotonic())
            await anyio.sleep(0.02)
    return answered


async def _watch(url: str, durability: str) -> None:
    seen: list[float] = []
    async with turnkeeper.open_runtime(url, **stores.options_of(durability)) as runtime:
        memory = runtime.memory("watched")
        async with memory.watch() as events:
            print("watching", flush=True)
            async for _ in events:
                seen.append(time.monotonic())
                if len(seen) == _EVENTS:
                    break
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    _backend, _url, _durability = json.loads(sys.argv[1])
    measure.run(_backend, _watch, _url, _durability)

"""What an idle memory weighs in RAM, beside its encoded messages; each state in a fresh process.

The memories lie in a SQLite file, so what is weighed is what the runtime keeps, not a store. Two scales: `tracemalloc`
counts what is allocated and is exact; the resident set is what the machine sees, and includes what the tasks that
have ended left behind in half-empty pages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio

import floors
import measure
import turnkeeper
from measure import Result, Target

__all__ = ["LIMIT", "allocated", "bare_actors", "memories", "run"]

PARKED_FLOOR: Final = "bare actor, parked"
PARKED: Final = "turnkeeper, parked"
IDLE: Final = "turnkeeper, idle"
BOUNDED: Final = "turnkeeper, max_resident"

LIMIT: Final = 2048.0
"""Bytes of an idle memory besides its messages."""

_LONG: Final = 3600.0
_SHORT: Final = 0.05
_CLIENTS: Final = 500
_QUESTION: Final = {"role": "user", "content": "Could you move my flight from Boston to Denver to the next morning?"}
_ANSWER: Final = {"role": "assistant", "content": "There is a flight at 7:15 and one at 9:40. Which one do you want?"}


def run(backend: str, *, rounds: int, count: int, directory: Path) -> list[Result]:
    """Weigh idle memories; every sample is a process of its own."""
    kinds: dict[str, dict[str, Any]] = {
        PARKED_FLOOR: {"function": "workloads.residency:bare_actors"},
        PARKED: {"linger": _LONG},
        IDLE: {"linger": _SHORT},
        BOUNDED: {"linger": _SHORT, "max_resident": max(count // 20, 1)},
    }
    results = []
    for scale, traced in (("allocated", True), ("resident set", False)):
        weighed: dict[str, list[dict[str, float]]] = {}
        for name, arguments in kinds.items():
            function = arguments.get("function", "workloads.residency:memories")
            options = {key: value for key, value in arguments.items() if key != "function"}
            if function.endswith("memories"):
                options["directory"] = str(directory)
            weighed[name] = [
                measure.in_fresh_process(function, backend=backend, count=count, traced=traced, **options)
                for _ in range(1 if traced else rounds)
            ]
        samples = {name: [one["bytes"] for one in values] for name, values in weighed.items()}
        results.append(
            Result(
                "residency",
                f"{scale}, {count} memories",
                backend,
                "bytes each",
                samples,
                PARKED_FLOOR,
                (Target(IDLE, None, LIMIT),) if traced else (),
            )
        )
        if not traced:
            pauses = {name: [one["pause"] for one in values] for name, values in weighed.items()}
            results.append(Result("residency", "pause of a full collection", backend, "ms", pauses, PARKED_FLOOR))
    return results


def allocated(backend: str, *, count: int, directory: Path) -> float:
    """Return bytes allocated by an idle memory, besides its messages."""
    weighed = measure.in_fresh_process(
        "workloads.residency:memories",
        backend=backend,
        count=count,
        traced=True,
        linger=_SHORT,
        directory=str(directory),
    )
    return float(weighed["bytes"])


def memories(
    *, backend: str, count: int, traced: bool, linger: float, directory: str, max_resident: int | None = None
) -> dict[str, float]:
    """Weigh turnkeeper's memories; the subject process's side."""
    return measure.run(backend, _memories, count, traced, linger, directory, max_resident)


def bare_actors(*, backend: str, count: int, traced: bool) -> dict[str, float]:
    """Weigh bare actors, parked, with their messages; the subject process's side."""
    return measure.run(backend, _bare_actors, count, traced)


async def _memories(
    count: int, traced: bool, linger: float, directory: str, max_resident: int | None
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        async with turnkeeper.open_runtime(
            f"sqlite:///{fresh}/chats.db",
            linger=linger,
            durability="relaxed",  # only to get there sooner: nothing in RAM depends on it
            idle_timeout=None,
            max_resident=max_resident,
            max_resident_bytes=None,
        ) as runtime:

            async def talk(numbers: range) -> None:
                for number in numbers:
                    await runtime.memory(f"memory-{number}").add([_QUESTION, _ANSWER])

            async def come_to_rest() -> None:
                while runtime.stats().pending or (linger == _SHORT and runtime.stats().running):  # noqa: ASYNC110
                    await anyio.sleep(_SHORT)

            await _spread(talk, range(-_CLIENTS, 0))
            await come_to_rest()
            async with _weighing(traced, count) as weight:
                before = runtime.stats().resident_bytes
                await _spread(talk, range(count))
                await come_to_rest()
                weight["messages"] = runtime.stats().resident_bytes - before
    return weight


async def _bare_actors(count: int, traced: bool) -> dict[str, float]:
    messages = [(dict(_QUESTION), dict(_ANSWER)) for _ in range(count)]
    async with floors.bare_actors(count) as actors, _weighing(traced, count) as weight:

        async def talk(numbers: range) -> None:
            for number in numbers:
                for message in messages[number]:
                    await actors.adds[number](message)

        await _spread(talk, range(count))
        weight["messages"] = 0
    return weight


async def _spread(talk: Any, numbers: range) -> None:
    async with anyio.create_task_group() as group:
        for client in range(_CLIENTS):
            group.start_soon(talk, numbers[client::_CLIENTS])


@contextlib.asynccontextmanager
async def _weighing(traced: bool, count: int) -> AsyncIterator[dict[str, float]]:
    weight: dict[str, float] = {}
    gc.collect()
    empty_pause = _pause()
    if traced:
        tracemalloc.start()
    before = _weight(traced)
    yield weight
    await anyio.sleep(_SHORT)
    gc.collect()
    weight["bytes"] = (_weight(traced) - before - weight["messages"]) / count
    if traced:
        tracemalloc.stop()
    weight["pause"] = (_pause() - empty_pause) * 1e3


def _weight(traced: bool) -> int:
    if traced:
        return tracemalloc.get_traced_memory()[0]
    return int(importlib.import_module("psutil").Process().memory_info().rss)


def _pause() -> float:
    pauses = []
    for _ in range(3):
        start = time.perf_counter()
        gc.collect()
        pauses.append(time.perf_counter() - start)
    return statistics.median(pauses)

"""How things are measured: subjects take turns, CPU and wall time side by side, every ratio within one round.

The garbage collector runs as it does for everybody: it is asked to collect before each sample and never configured.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio

__all__ = [
    "BACKENDS",
    "Result",
    "Spent",
    "Stopwatch",
    "Target",
    "in_fresh_process",
    "interleaved",
    "machine",
    "run",
]

HERE: Final = Path(__file__).parent

BACKENDS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}

T = TypeVar("T")


def run(backend: str, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run an async function on one of the three backends, in an event loop of its own."""
    name, options = BACKENDS[backend]
    return anyio.run(function, *arguments, backend=name, backend_options=options)


class Spent(NamedTuple):
    """Seconds of this process's CPU (all threads) and of the wall clock."""

    cpu: float
    wall: float


class Stopwatch:
    """Starts when it is made."""

    __slots__ = ("_cpu", "_wall")

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def spent(self) -> Spent:
        return Spent(time.process_time() - self._cpu, time.perf_counter() - self._wall)


def interleaved(subjects: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Sample every subject once a round, each round beginning with another one."""
    names = list(subjects)
    samples: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            samples[name].append(subjects[name]())
    return samples


@dataclass(frozen=True)
class Target:
    """What a subject has to reach: at most (or at least) `limit` times another subject, or `limit` alone."""

    subject: str
    over: str | None
    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}{f' x {self.over}' if self.over else ''}"


@dataclass
class Result:
    """The answer to one question in one case: a value for each subject and round.

    Attributes:
        question: the workload.
        case: what was done, to how many.
        backend: the event loop, or "" where there is none.
        unit: of the values.
        samples: values of each subject, in order of the rounds.
        reference: the subject that the ratios shown are to.
        targets: what has to be reached.
        wall: µs of wall time beside CPU time, where both were taken.
    """

    question: str
    case: str
    backend: str
    unit: str
    samples: dict[str, list[float]]
    reference: str | None = None
    targets: tuple[Target, ...] = ()
    wall: dict[str, list[float]] = field(default_factory=dict)

    def median(self, subject: str) -> float:
        return statistics.median(self.samples[subject])

    def ratios(self, subject: str, over: str | None) -> list[float]:
        """Return what the subject took in each round, over what another took in the same round."""
        if over is None:
            return self.samples[subject]
        return [one / other for one, other in zip(self.samples[subject], self.samples[over], strict=True)]

    def judged(self) -> list[tuple[Target, float, bool]]:
        """Return each target with the median reached, and whether it is met."""
        reached = [(target, statistics.median(self.ratios(target.subject, target.over))) for target in self.targets]
        return [(target, value, target.met(value)) for target, value in reached]

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "case": self.case,
            "backend": self.backend,
            "unit": self.unit,
            "reference": self.reference,
            "samples": self.samples,
            "wall": self.wall,
            "medians": {subject: self.median(subject) for subject in self.samples},
            "targets": [
                {"target": f"{target.subject} {target}", "reached": value, "met": met}
                for target, value, met in self.judged()
            ],
        }


def in_fresh_process(function: str, **arguments: Any) -> Any:
    """Call `module:function` of this directory in a new interpreter and return what it returns, by way of JSON."""
    done = subprocess.run(
        [sys.executable, __file__, function, json.dumps(arguments)], cwd=HERE, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def machine() -> dict[str, Any]:
    """Describe what this runs on: without it the numbers mean nothing."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: version(name) for name in ("turnkeeper", "anyio", "msgspec", "trio", "uvloop")},
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "revision": _revision(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _revision() -> str:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))

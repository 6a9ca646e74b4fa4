"""The results of a whole benchmark: medians over rounds, and how they compare with those of another time."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import turnkeeper
from turnkeeper.bench.spec import Checked, Result

__all__ = ["Change", "Document", "Summary", "compare", "describe_machine", "new_document", "read_document", "summaries"]


class Document(msgspec.Struct, kw_only=True):
    """What is written to the JSON file.

    Attributes:
        machine: processor, cores, memory, system, Python.
        revision: the source's, where it is known.
        began: seconds since the epoch.
        load: the machine's load averages at the beginning.
        results: of every run.
    """

    machine: dict[str, str]
    revision: str
    began: float
    load: tuple[float, float, float]
    results: list[Result]


class Summary(NamedTuple):
    """All rounds of one run."""

    key: tuple[Any, ...]
    subject: str
    title: str
    durability: str
    consistency: str
    rate: float
    """Median of the operations a second."""
    lowest: float
    highest: float
    latencies: dict[str, float]
    """Percent → median of the seconds."""
    checked: Checked | None
    """The sums over all rounds."""
    errors: int
    operations: int
    independent: bool
    failure: str
    rates: tuple[float, ...]
    """Of each round in their order."""


def new_document() -> Document:
    """Begin a document."""
    return Document(
        machine=describe_machine(), revision=_revision(), began=time.time(), load=os.getloadavg(), results=[]
    )


def read_document(path: Path) -> Document:
    """Read a file that was written before."""
    return msgspec.json.decode(path.read_bytes(), type=Document)


def describe_machine() -> dict[str, str]:
    """Say on what this runs."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "turnkeeper": turnkeeper.__version__,
    }


def summaries(results: Iterable[Result]) -> list[Summary]:
    """Bring the rounds of each run together, in the order of their first appearance."""
    groups: defaultdict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for result in results:
        groups[(*result.key(), result.spec.subject)].append(result)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[Result]) -> Summary:
    first = group[0]
    done = [result for result in group if not result.failure]
    rates = tuple(result.rate for result in done)
    total: Checked | None = None
    for result in done:
        if result.checked is not None:
            total = total or Checked()
            for field in Checked.__struct_fields__:
                setattr(total, field, getattr(total, field) + getattr(result.checked, field))
    percents = done[0].latencies if done else {}
    return Summary(
        first.key(),
        first.spec.subject,
        first.title,
        first.durability,
        first.consistency,
        statistics.median(rates) if rates else 0.0,
        min(rates, default=0.0),
        max(rates, default=0.0),
        {percent: statistics.median(result.latencies[percent] for result in done) for percent in percents},
        total,
        sum(sum(result.errors.values()) for result in done),
        sum(result.operations for result in done),
        bool(done) and all(result.independent for result in done),
        "" if done else first.failure,
        rates,
    )


class Change(NamedTuple):
    """How one subject fares against an earlier time, as a ratio of rates; below 1: slower than then.

    Where both times ran the same floor, rates are first divided by the floor's of the same round, so that another
    machine, or a busy one, weighs less.
    """

    key: tuple[Any, ...]
    subject: str
    ratio: float
    lowest: float
    highest: float
    against_floor: str


def compare(new: Iterable[Result], old: Iterable[Result]) -> list[Change]:
    """Compare what both have."""
    before = {(summary.key, summary.subject): summary for summary in summaries(old) if summary.rates}
    now = {(summary.key, summary.subject): summary for summary in summaries(new) if summary.rates}
    changes: list[Change] = []
    for (key, subject), summary in now.items():
        earlier = before.get((key, subject))
        if earlier is None or subject.startswith("floor-"):
            continue
        floor = next((name for k, name in now if k == key and name.startswith("floor-") and (key, name) in before), "")
        rates = _relative(summary, now.get((key, floor)))
        rates_before = _relative(earlier, before.get((key, floor)))
        middle = statistics.median(rates_before)
        if not middle:
            continue
        changes.append(
            Change(
                key,
                subject,
                statistics.median(rates) / middle,
                min(rates) / max(rates_before),
                max(rates) / (min(rates_before) or middle),
                floor,
            )
        )
    return changes


def _relative(summary: Summary, floor: Summary | None) -> list[float]:
    if floor is None or len(floor.rates) != len(summary.rates) or not all(floor.rates):
        return list(summary.rates)
    return [rate / base for rate, base in zip(summary.rates, floor.rates, strict=True)]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _revision() -> str:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()

"""The regression gate: function calls to within a few of baseline.json, everything else within generous limits.

Calls are compared as ours less the bare actor's, so that another anyio moves both. They depend on the Python: one that
has no counts in the baseline is judged by the ratios alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from measure import BACKENDS, HERE
from workloads import busy, calls, cold, durable, imports, residency
from workloads.subjects import ACTORS, BARE, OURS

__all__ = ["run"]

_BASELINE: Final = HERE / "baseline.json"

_SLACK_CALLS: Final = 3.0
"""Calls a request: timers, and trio's random order of tasks, move a count by a fraction of one."""

_SLACK_RATIO: Final = 2.0
"""Ratios come from the best of a few short rounds on a machine that others may use too."""

_SLACK_IMPORT: Final = 3.0
"""The same, for a figure that is no ratio."""

_PYTHON: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"

Counts = dict[str, dict[str, float]]
"""Calls a request above the bare actor's, by backend and case."""


def run(directory: Path, *, write: bool) -> int:
    """Judge, or write down what is judged against; return the exit code."""
    counts = {backend: _counts(backend) for backend in BACKENDS}
    ratios = _ratios(directory)
    baseline: dict[str, Any] = json.loads(_BASELINE.read_text()) if _BASELINE.exists() else {"calls": {}}
    if write:
        baseline["calls"][_PYTHON] = counts
        baseline["ratios"] = {name: round(ratio, 2) for name, ratio in ratios.items()}
        _BASELINE.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")
        print(f"wrote {_BASELINE}")
        return 0
    failures = [
        *_judge_counts(counts, baseline["calls"].get(_PYTHON)),
        *_judge("times its floor", ratios, {name: was * _SLACK_RATIO for name, was in baseline["ratios"].items()}),
        *_judge(
            "bytes",
            {"an idle memory, besides its messages": residency.allocated("asyncio", count=5_000, directory=directory)},
            {"an idle memory, besides its messages": residency.LIMIT},
        ),
        *_judge("ms", {"import": imports.median()}, {"import": imports.LIMIT * _SLACK_IMPORT}),
    ]
    print("\n".join([f"FAILED {failure}" for failure in failures] or ["the benchmark gate is passed"]))
    return 1 if failures else 0


def _counts(backend: str) -> dict[str, float]:
    return {result.case: round(result.samples[OURS][0] - result.samples[BARE][0], 1) for result in calls.run(backend)}


def _ratios(directory: Path) -> dict[str, float]:
    """Return what ours costs over its floor, the best of a few rounds."""
    ratios = {}
    for backend in BACKENDS:
        results = [
            *cold.run(backend, rounds=3, quick=True, subjects=ACTORS),
            *busy.run(backend, rounds=3, quick=True, subjects=ACTORS),
        ]
        for result in results:
            ratios[f"{result.question}: {result.case} on {backend}"] = min(result.ratios(OURS, BARE))
    ratios["durable: CPU of an add on asyncio"] = min(durable.over_floor("asyncio", rounds=3, directory=directory))
    return ratios


def _judge_counts(counts: Counts, baseline: Counts | None) -> list[str]:
    if baseline is None:
        print(f"baseline.json has no calls for Python {_PYTHON}; --write-baseline adds them")
        return []
    for backend, cases in counts.items():
        fewer = [case for case, number in cases.items() if number < baseline[backend][case] - _SLACK_CALLS]
        if fewer:
            print(f"{backend}: fewer calls than in the baseline, which --write-baseline renews: {'; '.join(fewer)}")
    return [
        failure
        for backend, cases in counts.items()
        for failure in _judge(
            f"calls above the bare actor's on {backend}",
            cases,
            {case: was + _SLACK_CALLS for case, was in baseline[backend].items()},
        )
    ]


def _judge(unit: str, figures: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Print every figure with its limit and return those that exceed it."""
    failures = []
    for name, figure in figures.items():
        line = f"{name}: {figure:.2f} {unit} (limit {limits[name]:.2f})"
        print(line)
        if figure > limits[name]:
            failures.append(line)
    return failures

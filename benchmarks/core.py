"""How fast turnkeeper is beside the least that could do the same work.

    python benchmarks/core.py                      everything, the reference numbers
    python benchmarks/core.py --quick              the same in a minute or two, with wider ranges
    python benchmarks/core.py --only calls --calls which functions an add calls
    python benchmarks/core.py --gate               exit 1 when it got slower than baseline.json allows

Trust ratios, not microseconds: each is the median of ratios within one round of one run. See README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gate
import measure
from measure import BACKENDS, Result
from workloads import busy, calls, cold, durable, imports, residency, windows
from workloads.subjects import BARE, SUBJECTS
from workloads.subjects import OURS as TURNKEEPER

QUESTIONS: Final = ("cold", "busy", "durable", "residency", "windows", "imports", "calls")


def main() -> int:
    """Ask the questions and print the answers."""
    options = _options()
    if options.gate or options.write_baseline:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            return gate.run(Path(directory), write=options.write_baseline)
    about = measure.machine()
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for question in options.only:
            for backend in options.backend if question != "imports" else options.backend[:1]:
                answers = _ask(question, backend, options, Path(directory))
                show(answers)
                results += answers
    if options.calls:
        _list_calls(options.backend[0])
    if options.json:
        report = {"about": about, "results": [result.as_json() for result in results]}
        options.json.write_text(json.dumps(report, indent=1))
    missed = [(result, target) for result in results for target, _, met in result.judged() if not met]
    print(f"\n{len(missed)} targets missed" if missed else "\nall targets met")
    for result, target in missed:
        print(f"  {result.question}: {result.case} ({result.backend}): {target.subject} {target}")
    return 0


def _ask(question: str, backend: str, options: argparse.Namespace, directory: Path) -> list[Result]:
    rounds, quick = options.rounds, options.quick
    ask: dict[str, Callable[[], list[Result]]] = {
        "cold": lambda: cold.run(backend, rounds=rounds, quick=quick),
        "busy": lambda: busy.run(backend, rounds=rounds, quick=quick),
        "durable": lambda: durable.run(backend, rounds=rounds, quick=quick, directory=directory),
        "residency": lambda: residency.run(
            backend, rounds=1 if quick else 3, count=20_000 if quick else 100_000, directory=directory
        ),
        "windows": lambda: windows.run(backend, rounds=rounds, quick=quick),
        "imports": lambda: imports.run(rounds=rounds),
        "calls": lambda: calls.run(backend),
    }
    return ask[question]()


def show(results: list[Result]) -> None:
    """Print a table: median, range, and ratio to the reference."""
    shown = ""
    for result in results:
        if result.question != shown:
            shown = result.question
            print(f"\n== {result.question}{f' · {result.backend}' if result.backend else ''}")
        print(f"{result.case} [{result.unit}]")
        verdicts: dict[str, list[str]] = {subject: [] for subject in result.samples}
        for target, value, met in result.judged():
            verdicts[target.subject].append(f"{'met' if met else 'MISSED'} {target} ({value:.2f})")
        for subject, values in result.samples.items():
            ratio = ""
            if result.reference is not None and subject != result.reference:
                ratios = result.ratios(subject, result.reference)
                span = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
                ratio = f"x {statistics.median(ratios):.2f}{span}"
            span = f"({_figure(min(values))}-{_figure(max(values))})" if len(values) > 1 else ""
            verdict = "; ".join(verdicts[subject])
            print(f"  {subject:<28}{_figure(result.median(subject)):>9} {span:<19}{ratio:<22} {verdict}".rstrip())


def _figure(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def _list_calls(backend: str) -> None:
    """Print which functions a cold add calls, ours against the bare actor's."""
    for case in ("cold add", "busy add, an actor a client"):
        counted = {name: calls.count(backend, calls.CASES[case], SUBJECTS[name]) for name in (BARE, TURNKEEPER)}
        print(f"\n{case} on {backend}: {TURNKEEPER} / {BARE}")
        names: set[Any] = set(counted[BARE]) | set(counted[TURNKEEPER])
        for kind, name in sorted(names, key=lambda key: counted[BARE][key] - counted[TURNKEEPER][key]):
            ours, floor = counted[TURNKEEPER][kind, name] / 1000, counted[BARE][kind, name] / 1000
            print(f"  {ours:6.2f} {floor:6.2f}  {kind:<3}{name}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests a sample")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each subject (at least 5 to be quoted)")
    parser.add_argument("--backend", action="append", choices=list(BACKENDS), help="may be repeated; default all")
    parser.add_argument("--only", action="append", choices=QUESTIONS, help="may be repeated; default all")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every sample there")
    parser.add_argument("--directory", type=Path, help="where databases go: a real disk (default: the temporary one)")
    parser.add_argument("--calls", action="store_true", help="also list the functions that an add calls")
    parser.add_argument("--gate", action="store_true", help="compare with baseline.json instead")
    parser.add_argument("--write-baseline", action="store_true", help="write baseline.json anew, after a look at it")
    options = parser.parse_args()
    options.backend = options.backend or list(BACKENDS)
    options.only = options.only or list(QUESTIONS)
    return options


if __name__ == "__main__":
    sys.exit(main())

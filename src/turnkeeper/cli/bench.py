"""`turnkeeper bench`: conversation memories under load, and what they kept of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from turnkeeper.bench.matrix import Plan, run_planned
from turnkeeper.bench.report import correctness, write_report
from turnkeeper.bench.results import Document, Summary, compare, new_document, read_document, summaries
from turnkeeper.bench.subjects import BUILT_IN, describe_adapter
from turnkeeper.bench.workloads import WORKLOADS
from turnkeeper.cli.latency import format_seconds
from turnkeeper.cli.loops import BACKENDS
from turnkeeper.cli.terminal import Stop, clean_line, is_terminal, say, say_table

__all__ = ["bench"]

_DEFAULT_SUBJECTS: Final = ("turnkeeper-memory", "turnkeeper-sqlite", "floor-list")
_COLUMNS: Final = (
    "workload",
    "loop",
    "clients",
    "subject",
    "keeps",
    "ops/s",
    "p50",
    "p99",
    "errors",
    "lost",
    "doubled",
    "misordered",
    "torn",
    "invalid",
)


@click.command()
@click.option("-s", "--subject", "subjects", multiple=True, help="A built-in subject or an adapter file; repeat it.")
@click.option("-w", "--workload", "workloads", multiple=True, type=click.Choice(sorted(WORKLOADS)), help="Repeat it.")
@click.option("-b", "--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Repeat it.")
@click.option("-c", "--clients", multiple=True, type=click.IntRange(min=1), help="Senders at once; repeat it.")
@click.option("--conversations", type=click.IntRange(min=1), help="How many there are.")
@click.option("--messages", type=click.IntRange(min=0), help="In each before, or in the window.")
@click.option("--rate", type=click.FloatRange(min=0.1), help="Operations a second of an open loop.")
@click.option("--transcript", type=click.Path(exists=True, dir_okay=False), help="What 'replay' replays (JSON lines).")
@click.option("--seconds", default=3.0, show_default=True, help="Measured in each run.")
@click.option("--warm-up", default=0.5, show_default=True, help="Seconds before that.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Of everything.")
@click.option("--size", default=490, show_default=True, help="Bytes of a message's text.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all results here.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), help="Write a report here.")
@click.option(
    "--compare",
    "old_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An earlier JSON file; exit 1 when something got slower than --tolerance.",
)
@click.option("--tolerance", default=0.8, show_default=True, help="Lowest ratio to the earlier rate that passes.")
@click.option("--list", "list_", is_flag=True, help="Show subjects and workloads, and do nothing.")
def bench(
    subjects: tuple[str, ...],
    workloads: tuple[str, ...],
    backends: tuple[str, ...],
    clients: tuple[int, ...],
    conversations: int | None,
    messages: int | None,
    rate: float | None,
    transcript: str | None,
    seconds: float,
    warm_up: float,
    rounds: int,
    size: int,
    seed: int,
    json_path: Path | None,
    html_path: Path | None,
    old_path: Path | None,
    tolerance: float,
    list_: bool,
) -> None:
    """Load conversation memories, each in a process of its own, and check what they kept.

    What a subject lost, doubled or put out of order stands beside its speed. See docs/benchmarks.md.
    """
    if list_:
        _list()
        return
    earlier = None if old_path is None else read_document(old_path)
    plan = Plan(
        subjects=subjects or _DEFAULT_SUBJECTS,
        workloads=workloads or ("chat-turn",),
        backends=backends or ("asyncio",),
        clients=clients,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        size=size,
        seed=seed,
        conversations=conversations,
        messages=messages,
        rate=rate,
        transcript=str(Path(transcript).resolve()) if transcript else "",
    )
    document = new_document()
    try:
        _run(plan, document)
    finally:  # an interrupt leaves what there is so far
        if json_path is not None:
            json_path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    if html_path is not None:
        write_report(document, html_path)
    if earlier is not None:
        _compare(document, earlier, tolerance)


def _run(plan: Plan, document: Document) -> None:
    planned = list(plan.runs())
    if not is_terminal(sys.stderr):
        for one in planned:
            document.results.append(run_planned(one))
    else:
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            for number, one in enumerate(planned, start=1):
                doing = f"{number} of {len(planned)}: {one.spec.workload}, {one.adapter.title}, {one.spec.backend}"
                live.update(_table(document, clean_line(doing)), refresh=True)
                document.results.append(run_planned(one))
    say_table([_row(summary) for summary in summaries(document.results)], header=_COLUMNS)


def _table(document: Document, doing: str) -> Table:
    table = Table(*_COLUMNS, title=doing)
    for summary in summaries(document.results):
        table.add_row(*[clean_line(cell) for cell in _row(summary)])
    return table


def _row(summary: Summary) -> Sequence[str]:
    workload, backend, clients, *_ = summary.key
    first = (workload, backend, str(clients), summary.title or summary.subject)
    if summary.failure:
        return (*first, summary.failure, *("",) * (len(_COLUMNS) - 5))
    keeps = summary.durability + (f", {summary.consistency}" if summary.consistency else "")
    return (
        *first,
        keeps,
        f"{summary.rate:,.0f} ({summary.lowest:,.0f}-{summary.highest:,.0f})",
        format_seconds(summary.latencies.get("50", 0.0)),
        format_seconds(summary.latencies.get("99", 0.0)),
        str(summary.errors),
        *correctness(summary),
    )


def _compare(document: Document, earlier: Document, tolerance: float) -> None:
    changes = compare(document.results, earlier.results)
    if not changes:
        raise Stop("the earlier file has none of these runs: nothing to compare")
    rows = [
        (
            *map(str, change.key[:3]),
            change.subject,
            f"{change.ratio:.2f} ({change.lowest:.2f}-{change.highest:.2f})",
            change.against_floor or "-",
        )
        for change in changes
    ]
    say()
    say_table(rows, header=("workload", "loop", "clients", "subject", "rate, new/old", "relative to"))
    slower = [change for change in changes if change.ratio < tolerance]
    if slower:
        raise Stop(f"{len(slower)} of {len(changes)} got slower than {tolerance:g} of what they were", status=1)


def _list() -> None:
    say_table([(name, describe_adapter(name).title) for name in BUILT_IN if not name.startswith("floor-sql")])
    say()
    say_table([(name, workload.about) for name, workload in sorted(WORKLOADS.items())])

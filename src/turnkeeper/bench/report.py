"""One HTML file with the tables and plots of a benchmark; nothing in it is fetched from anywhere."""

from __future__ import annotations

import html
import io
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from turnkeeper.bench.results import Document, Summary, summaries
from turnkeeper.errors import MissingExtraError

__all__ = ["correctness", "write_report"]

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left}.bad{color:#b00020;font-weight:600}.why{color:#777}"
    "svg{max-width:100%;height:auto}"
)
_COLUMNS: Final = (
    "subject",
    "keeps",
    "operations/s",
    "range",
    "p50 ms",
    "p99 ms",
    "errors",
    "lost",
    "doubled",
    "misordered",
    "torn turns",
    "invalid prompts",
)


def write_report(document: Document, path: Path) -> None:
    """Write the file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Conversation memories under load</title>",
        f"<style>{_STYLE}</style><h1>Conversation memories under load</h1>",
        _machine(document),
    ]
    groups: defaultdict[tuple[Any, ...], list[Summary]] = defaultdict(list)
    for summary in summaries(document.results):
        groups[summary.key[:2]].append(summary)
    for (workload, backend), found in groups.items():
        parts.append(f"<h2>{html.escape(workload)} <small>on {html.escape(backend)}</small></h2>")
        parts.append(_plots(found))
        by_clients: defaultdict[tuple[Any, ...], list[Summary]] = defaultdict(list)
        for summary in found:
            by_clients[summary.key].append(summary)
        parts += [_table(key, rows) for key, rows in by_clients.items()]
    path.write_text("\n".join(parts), encoding="utf-8")


def correctness(summary: Summary) -> tuple[str, ...]:
    """Return lost, doubled, misordered, torn and invalid, as they are shown; a dash where nobody could look."""
    checked = summary.checked
    if checked is None:
        return ("-",) * 5
    return tuple(
        str(count)
        for count in (
            checked.lost,
            checked.doubled,
            checked.misordered + checked.foreign,
            checked.torn,
            checked.invalid,
        )
    )


def _machine(document: Document) -> str:
    lines = {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(document.began)),
        "revision": document.revision or "unknown",
        "load at the beginning": " ".join(f"{load:.1f}" for load in document.load),
        **document.machine,
    }
    rows = "".join(f"<tr><td>{html.escape(name)}<td>{html.escape(text)}" for name, text in lines.items())
    return f"<table>{rows}</table>"


def _table(key: Sequence[Any], rows: Iterable[Summary]) -> str:
    _, _, clients, conversations, messages, rate = key
    title = f"{clients} clients, {conversations} conversations"
    title += f", {messages} messages" if messages else ""
    title += f", {rate:g} operations/s" if rate else ""
    parts = [f"<h3>{title}</h3><table><tr>", *[f"<th>{column}" for column in _COLUMNS]]
    for row in sorted(rows, key=lambda row: -row.rate):
        parts.append(f"<tr><td>{html.escape(row.title or row.subject)}")
        if row.failure:
            parts.append(f"<td colspan={len(_COLUMNS) - 1} class=why>{html.escape(row.failure)}")
            continue
        keeps = row.durability + (f", {row.consistency}" if row.consistency else "")
        cells = [
            keeps,
            f"{row.rate:,.0f}",
            f"{row.lowest:,.0f}-{row.highest:,.0f}",
            f"{row.latencies.get('50', 0) * 1e3:.2f}",
            f"{row.latencies.get('99', 0) * 1e3:.2f}",
            str(row.errors),
            *correctness(row),
        ]
        for number, cell in enumerate(cells):
            bad = number >= 5 and cell not in ("0", "-")
            parts.append(f"<td class=bad>{cell}" if bad else f"<td>{html.escape(cell)}")
    return "".join([*parts, "</table>"])


def _plots(found: Sequence[Summary]) -> str:
    done = [summary for summary in found if not summary.failure]
    if not done:
        return ""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("the plots need matplotlib: pip install 'turnkeeper[bench]'") from None
    figure, (rates, curve) = pyplot.subplots(1, 2, figsize=(12, 4), layout="constrained")
    by_subject: defaultdict[str, list[Summary]] = defaultdict(list)
    for summary in done:
        by_subject[summary.title or summary.subject].append(summary)
    most = max(summary.key[2] for summary in done)
    for title, lines in by_subject.items():
        ordered = sorted(lines, key=lambda summary: summary.key[2])
        clean = all(line.checked is None or line.checked.clean for line in lines)
        label = title if clean else f"{title} (loses or breaks something)"
        clients = [line.key[2] for line in ordered]
        rates.plot(clients, [line.rate for line in ordered], marker="o", label=label, ls="-" if clean else ":")
        rates.fill_between(clients, [line.lowest for line in ordered], [line.highest for line in ordered], alpha=0.15)
        busiest = next(line for line in ordered if line.key[2] == ordered[-1].key[2])
        percents = [percent for percent in busiest.latencies if busiest.latencies[percent]]
        curve.plot(
            range(len(percents)), [busiest.latencies[percent] * 1e3 for percent in percents], label=label, marker="."
        )
        curve.set_xticks(range(len(percents)), percents)
    rates.set(xlabel="clients", ylabel="operations/s", xscale="log", yscale="log", title="throughput")
    curve.set(xlabel="percent of the operations", ylabel="ms", yscale="log", title=f"latency at {most} clients")
    rates.legend(fontsize=7)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = drawing.getvalue()
    return text[text.index("<svg") :]

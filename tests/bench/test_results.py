"""Rounds brought together, and compared with those of another time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from turnkeeper.bench.report import write_report
from turnkeeper.bench.results import compare, new_document, read_document, summaries
from turnkeeper.bench.spec import Checked, Result, Spec

SPEC = Spec(
    subject="mine",
    workload="append",
    backend="asyncio",
    clients=8,
    conversations=8,
    seconds=1.0,
    warm_up=0.0,
    messages=0,
    size=100,
    rate=0.0,
    seed=1,
    place="",
)


def result(rate: float, subject: str = "mine", **more: Any) -> Result:
    spec = msgspec.structs.replace(SPEC, subject=subject)
    latencies = {"50": 1 / rate, "99": 2 / rate}
    return Result(spec=spec, title=subject, operations=int(rate), seconds=1.0, latencies=latencies, **more)


def test_a_summary_has_the_median_its_range_and_all_that_was_broken() -> None:
    rounds = [result(100.0, checked=Checked(lost=1)), result(300.0, checked=Checked(kept=2)), result(200.0)]
    (summary,) = summaries(rounds)
    assert (summary.rate, summary.lowest, summary.highest) == (200.0, 100.0, 300.0)
    assert summary.checked is not None
    assert (summary.checked.lost, summary.checked.kept, summary.checked.clean) == (1, 2, False)
    assert summary.latencies["50"] == pytest.approx(1 / 200)


def test_a_round_that_failed_does_not_count_and_is_told_when_all_did() -> None:
    (summary,) = summaries([result(100.0), Result(spec=SPEC, failure="no answer")])
    assert (summary.rates, summary.failure) == ((100.0,), "")
    (summary,) = summaries([Result(spec=SPEC, failure="no answer")])
    assert (summary.rates, summary.failure) == ((), "no answer")


def test_half_as_fast_is_half() -> None:
    (change,) = compare([result(50.0)], [result(100.0)])
    assert (change.subject, change.ratio, change.against_floor) == ("mine", 0.5, "")


def test_on_a_machine_that_is_half_as_fast_nothing_has_changed() -> None:
    old = [result(100.0), result(1000.0, "floor-list")]
    new = [result(50.0), result(500.0, "floor-list")]
    (change,) = compare(new, old)
    assert (change.ratio, change.against_floor) == (1.0, "floor-list")


def test_what_only_one_of_both_has_is_not_compared() -> None:
    other = msgspec.structs.replace(SPEC, clients=9)
    assert compare([result(50.0)], [Result(spec=other, operations=5, seconds=1.0)]) == []


def test_a_document_comes_back_from_its_file(tmp_path: Path) -> None:
    document = new_document()
    document.results.append(result(10.0, checked=Checked(kept=3)))
    path = tmp_path / "results.json"
    path.write_bytes(msgspec.json.encode(document))
    back = read_document(path)
    assert back == document
    assert back.machine["python"]


def test_a_report_is_one_file_that_fetches_nothing_and_shows_what_was_lost(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = new_document()
    document.results += [result(10.0, checked=Checked(lost=7)), result(20.0, "floor-list")]
    document.results.append(
        Result(spec=msgspec.structs.replace(SPEC, subject="<b>"), title="<b>", failure="is not there")
    )
    path = tmp_path / "report.html"
    write_report(document, path)
    text = path.read_text(encoding="utf-8")
    assert "<td class=bad>7" in text
    assert "&lt;b&gt;" in text
    assert "is not there" in text
    assert "<svg" in text
    assert "src=" not in text

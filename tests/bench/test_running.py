"""Runs in fresh processes: what is measured is checked, also on subjects that are broken on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnkeeper.bench.matrix import Plan, Planned, run_planned, why_not
from turnkeeper.bench.subjects import describe_adapter
from turnkeeper.bench.workloads import WORKLOADS

BROKEN = """
from contextlib import asynccontextmanager
TITLE = "broken"
DURABILITY = "memory"
TOOLS = True
class Lists(dict):
    count = 0
    def __missing__(self, key):
        return self.setdefault(key, [])
    async def add(self, conversation, messages):
        self.count += 1
        kept = self[conversation]
        if self.count % 5 == 0 and {how!r} == "loses":
            return
        kept.extend(messages)
        if self.count % 5 == 0 and {how!r} == "doubles":
            kept.extend(messages)
        if self.count % 5 == 0 and {how!r} == "raises":
            raise RuntimeError("no")
    async def read(self, conversation):
        return list(self[conversation])
@asynccontextmanager
async def opened(place, *, window):
    yield Lists()
"""


def plan(*subjects: str, workload: str = "append", **more: Any) -> Plan:
    given: dict[str, Any] = {"clients": (4,), "rounds": 1, "seconds": 0.4, "warm_up": 0.05, "size": 60, "seed": 1}
    return Plan(subjects=subjects, workloads=(workload,), backends=("asyncio",), **{**given, **more})


def only(planned: Plan) -> Planned:
    (one,) = planned.runs()
    return one


@pytest.mark.parametrize("workload", sorted(set(WORKLOADS) - {"replay", "long"}))
def test_a_workload_runs_on_sqlite_and_leaves_nothing_broken(workload: str) -> None:
    result = run_planned(only(plan("turnkeeper-sqlite", workload=workload, conversations=4, messages=4, rate=100.0)))
    assert result.failure == ""
    assert result.operations > 0
    assert result.errors == {}
    assert result.independent
    assert result.checked is not None
    assert result.checked.clean
    assert result.latencies["50"] > 0


@pytest.mark.parametrize(("how", "field"), [("loses", "lost"), ("doubles", "doubled"), ("raises", "unacknowledged")])
def test_what_a_subject_does_wrong_stands_beside_its_speed(tmp_path: Path, how: str, field: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN.replace("{how!r}", repr(how)), encoding="utf-8")
    result = run_planned(only(plan(str(path))))
    assert result.checked is not None
    assert getattr(result.checked, field) > 0
    assert ("RuntimeError" in result.errors) == (how == "raises")


def test_a_subject_that_breaks_down_is_told_and_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "import nosuch\nTITLE = DURABILITY = 'memory'\ndef opened(place, *, window): ...\n", encoding="utf-8"
    )
    result = run_planned(only(plan(str(path))))
    assert "nosuch" in result.failure
    assert result.checked is None


def test_each_round_begins_with_another_subject_and_neighbours_differ_in_it_alone() -> None:
    order = [one.spec.subject for one in plan("floor-list", "floor-actor", rounds=2).runs()]
    assert order == ["floor-list", "floor-actor", "floor-actor", "floor-list"]


@pytest.mark.parametrize(
    ("subject", "workload", "why"),
    [
        ("floor-list", "threads", "blocking"),
        ("floor-list", "activation", "restart"),
        ("turnkeeper-memory", "replay", "transcript"),
    ],
)
def test_what_makes_no_sense_is_not_run(subject: str, workload: str, why: str) -> None:
    one = only(plan(subject, workload=workload))
    assert why in why_not(one)
    assert run_planned(one).failure == why_not(one)


def test_a_backend_that_a_subject_does_not_run_on_is_told() -> None:
    one = only(plan("turnkeeper-memory"))
    other = one._replace(adapter=describe_adapter("turnkeeper-memory"))
    assert why_not(other) == ""

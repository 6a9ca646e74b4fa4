"""`turnkeeper bench`: the table, the files it writes, the comparison with an earlier one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Invoke = Callable[..., Any]
QUICK = ("-w", "append", "-c", "2", "--seconds", "0.1", "--warm-up", "0", "--rounds", "1", "--conversations", "2")


def test_subjects_and_workloads_are_listed(invoke: Invoke) -> None:
    ran = invoke("bench", "--list")
    assert ran.status == 0
    assert "turnkeeper-sqlite" in ran.out
    assert "chat-turn" in ran.out


def test_it_shows_a_row_for_each_subject_and_writes_what_it_was_told_to(invoke: Invoke, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    ran = invoke("bench", "-s", "floor-list", "-s", "turnkeeper-memory", *QUICK, "--json", str(found))
    assert (ran.status, ran.err) == (0, "")
    assert [line.split("\t")[3] for line in ran.out.splitlines()[1:]] == [
        "floor: lock and list",
        "turnkeeper, in memory",
    ]
    assert len(json.loads(found.read_bytes())["results"]) == 2


def test_what_got_slower_ends_it_with_1(invoke: Invoke, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    assert invoke("bench", "-s", "turnkeeper-memory", *QUICK, "--json", str(found)).status == 0
    earlier = json.loads(found.read_bytes())
    earlier["results"][0]["operations"] *= 1000
    found.write_text(json.dumps(earlier), encoding="utf-8")
    ran = invoke("bench", "-s", "turnkeeper-memory", *QUICK, "--compare", str(found))
    assert ran.status == 1
    assert "got slower" in ran.err
    earlier["results"][0]["operations"] = 1
    found.write_text(json.dumps(earlier), encoding="utf-8")
    assert invoke("bench", "-s", "turnkeeper-memory", *QUICK, "--compare", str(found)).status == 0


def test_a_subject_that_nobody_knows_is_refused(invoke: Invoke) -> None:
    ran = invoke("bench", "-s", "nosuch", *QUICK)
    assert ran.status == 2
    assert "nosuch" in ran.err

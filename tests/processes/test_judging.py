"""The judge of crowds finds what is wrong: each case breaks one promise in an otherwise true record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from processes.crowd import digest
from processes.judging import judge, read_journals
from turnkeeper.testing import HistoryViolation

Lines = list[list[object]]
Log = list[list[str]]

LOG: Log = [["a 0", "a 1"], ["b 0"], ["a 2"]]
LINES: Lines = [
    ["add", "a", 0, "m", 10, ["a 0", "a 1"]],
    ["added", "a", 0, 20, "ok", 1],
    ["add", "b", 0, "m", 11, ["b 0"]],
    ["added", "b", 0, 21, "ok", 2],
    ["read", "b", "m", 22, 23, 2, 3, digest(["a 0", "a 1", "b 0"])],
    ["add", "b", 1, "m", 24, ["b 1"]],
    ["added", "b", 1, 25, "failed", 0],
    ["add", "a", 1, "m", 30, ["a 2"]],
    ["add", "c", 0, "m", 31, ["c 0"]],
]


def judged(path: Path, lines: Lines, log: Log) -> int:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '["add", "torn')
    return judge(read_journals([path]), {"m": log})


def test_a_true_record_is_accepted(tmp_path: Path) -> None:
    assert judged(tmp_path / "journal", LINES, LOG) == 4
    assert judged(tmp_path / "journal", LINES, LOG[:2]) == 3, "what was never answered may be missing"


def lose(lines: Lines, log: Log) -> None:
    del log[1:]


def double(lines: Lines, log: Log) -> None:
    log.append(["b 0"])


def halve(lines: Lines, log: Log) -> None:
    log[0] = ["a 0"]


def swap(lines: Lines, log: Log) -> None:
    log[0], log[1] = log[1], log[0]


def reorder(lines: Lines, log: Log) -> None:
    lines.append(["add", "b", 2, "m", 40, ["b 3"]])
    lines.append(["add", "b", 3, "m", 40, ["b 2"]])
    log += [["b 3"], ["b 2"]]


def keep_what_failed(lines: Lines, log: Log) -> None:
    log.append(["b 1"])


def invent(lines: Lines, log: Log) -> None:
    log.append(["d 0"])


def show_something_else(lines: Lines, log: Log) -> None:
    lines[4][7] = digest(["a 0", "a 1", "c 0"])


def read_stale(lines: Lines, log: Log) -> None:
    lines[4] = ["read", "b", "m", 22, 23, 1, 2, digest(["a 0", "a 1"])]


def read_the_future(lines: Lines, log: Log) -> None:
    lines.append(["read", "c", "m", 5, 6, 1, 2, digest(["a 0", "a 1"])])


def write_into_the_past(lines: Lines, log: Log) -> None:
    lines += [["read", "e", "m", 32, 33, 3, 4, digest(["a 0", "a 1", "b 0", "a 2"])]]
    lines[7][4] = 40


@pytest.mark.parametrize(
    "breaks",
    [
        lose,
        double,
        halve,
        swap,
        reorder,
        keep_what_failed,
        invent,
        show_something_else,
        read_stale,
        read_the_future,
        write_into_the_past,
    ],
)
def test_a_broken_promise_is_found(tmp_path: Path, breaks: Callable[[Lines, Log], None]) -> None:
    lines, log = [list(line) for line in LINES], [list(texts) for texts in LOG]
    breaks(lines, log)
    with pytest.raises((AssertionError, HistoryViolation)):
        judged(tmp_path / "journal", lines, log)

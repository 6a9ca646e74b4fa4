"""Line 9: four processes with fifty tasks each on twenty memories, killed and started anew, on each server.

For a long one by hand: tests/processes/crowds.py says how. On SQLite: tests/processes/test_many_processes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from processes.crowds import run_crowd
from servers.servers import Server


@pytest.mark.parametrize("kills", [0, 5])
def test_four_processes_lose_double_and_reorder_nothing(server: Server, place: str, tmp_path: Path, kills: int) -> None:
    summary = run_crowd(server.url(place), tmp_path, kills=kills, answers=1_500)
    assert summary.conflicts > 0, "they never met"
    assert summary.failed == 0
    assert summary.unknown > 0 or not kills


@pytest.mark.slow
@pytest.mark.timeout_seconds(300)
def test_four_processes_lose_double_and_reorder_nothing_for_longer(server: Server, place: str, tmp_path: Path) -> None:
    run_crowd(server.url(place), tmp_path, kills=30, answers=3_000)

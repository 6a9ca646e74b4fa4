"""What `kill -9` leaves of a compaction: the summary and the cut, or neither."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

import turnkeeper
from compaction import remote_compacting
from turnkeeper.stores import SQLiteStore


def talk_until_killed(url: str, first: int, count: int, by_itself: bool) -> int:
    """Return the number of the last turn that was acknowledged."""
    script = [sys.executable, remote_compacting.__file__, json.dumps([url, first, by_itself, {}])]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(count)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
    return acknowledged[-1]


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_summary_and_cut_are_there_together_or_not_at_all(tmp_path: Path, shared: bool, by_itself: bool) -> None:
    chance = Random(5)
    path = tmp_path / "chats.db"
    url = f"sqlite:///{path}" + ("?shared=true" if shared else "")
    there = 0
    for _ in range(4):
        acknowledged = talk_until_killed(url, there + 1, chance.randrange(1, 15), by_itself)
        with turnkeeper.open_sync_runtime(url) as runtime:
            messages = runtime.memory("m").messages()
        said = " ".join(message.text for message in messages).split()
        there = len(said) // 2
        assert said == [f"{who}{number}" for number in range(1, there + 1) for who in "ua"]
        assert there in (acknowledged, acknowledged + 1), "the one under way is there whole, or not at all"
    assert len(messages) < 2 * there, "it was compacted"
    with closing(SQLiteStore(path, shared=shared)) as store:
        store.open(durability="full")
        (listed,) = store.names(namespace=None, after=None, limit=9)
        entries = store.entries(listed.head.mid, after=0, limit=10_000)
    added = [entry for entry in entries if entry.op == "add"]
    assert len(added) == there, "the originals stay in the log"

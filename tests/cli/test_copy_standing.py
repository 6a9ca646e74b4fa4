"""Where a state begins is told by the entries alone, as the runtime that wrote them told it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.whole_stores import scribble
from turnkeeper import open_sync_runtime
from turnkeeper.cli.copy_standing import Standing, after
from turnkeeper.cli.walking import log_entries, memories
from turnkeeper.log import StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.stores import store_from_url


@pytest.mark.parametrize("seed", range(12))
def test_after_each_entry_it_stands_where_the_row_said(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    rows: dict[tuple[MemoryName, int, int], tuple[int, int]] = {}
    reader = store_from_url(url, read_only=True)
    with open_sync_runtime(url, linger=0) as runtime:
        reader.open(durability="full")

        def note() -> None:
            for listed in memories(reader):
                head = listed.head
                rows[listed.name, head.mid, head.version] = head.base, head.system

        scribble(runtime, seed, 150, "abc", note)
        told = 0
        for listed in memories(reader):
            standing = Standing(0, 0, 0)
            for entry in log_entries(reader, listed.head.mid):
                standing = after(standing, entry, 0)
                row = rows.get((listed.name, listed.head.mid, entry.version))
                assert row is None or row == (standing.base, standing.system), (listed.name, entry.version, entry.op)
                told += row is not None
        reader.close()
    assert told > 40


def test_what_is_sealed_is_told_by_the_row() -> None:
    sealed = StoredEntry(3, "add", b"", b'{"messages":[0],"sealed":["k","AAAA"]}', 0)
    assert after(Standing(2, 0, 0), sealed, 3) == Standing(3, 0, 3)
    assert after(Standing(2, 0, 0), sealed, 5) == Standing(3, 0, 0)
    assert after(Standing(2, 0, 1), sealed, 5) == Standing(3, 0, 1)

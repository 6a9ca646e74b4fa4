"""The SQLite store's view tells what each kind of entry does to the messages before it, and is not slow about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stores.building import add, committed, entry, name, pruning
from turnkeeper.log import Details, Entry
from turnkeeper.messages import encode_messages
from turnkeeper.stores import SQLiteStore

M = name()


class Memory:
    """A memory, and the texts that the view says are visible."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SQLiteStore(path)
        self.store.open(durability="relaxed")
        self.mid = self.n = self.base = 0

    def take(self, *entries: Entry | str, base: int | None = None) -> None:
        self.base = self.base if base is None else base
        self.mid = committed(self.store, add(M, self.mid, self.n, *entries, base=self.base))
        self.n += len(entries)

    @property
    def visible(self) -> str:
        query = "SELECT json_extract(json, '$.content') FROM message WHERE visible ORDER BY version, position"
        with closing(sqlite3.connect(self.path)) as connection:
            return " ".join(row[0] for row in connection.execute(query))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    """Return a memory without entries."""
    made = Memory(tmp_path / "chats.db")
    yield made
    made.store.close()


def said(op: str, *texts: str, **details: Any) -> Entry:
    return replace(entry(*texts, op=op), details=Details(**details))


def system(text: str) -> Entry:
    return replace(entry(), messages=encode_messages([{"role": "system", "content": text}]))


def test_undo_and_pop_take_off_what_is_behind_a_place(memory: Memory) -> None:
    memory.take("a", entry("b", "c", "d"), "e", said("undo", to=1, part=2))
    assert memory.visible == "a b c"
    memory.take("f", "g", said("pop", to=5), "h")
    assert memory.visible == "a b c f h"
    memory.take(said("undo", to=0))
    assert memory.visible == ""
    memory.take("i")
    assert memory.visible == "i"


def test_an_undo_reaches_what_an_earlier_one_left(memory: Memory) -> None:
    memory.take("a", "b", "c", said("pop", to=2), "d", said("pop", to=4), said("undo", to=1), "e")
    assert memory.visible == "a e"


def test_an_edit_stands_for_the_message_that_it_replaces(memory: Memory) -> None:
    memory.take(entry("a", "b"), "c", said("edit", "B", places=((1, 1),)))
    assert memory.visible == "a c B"
    memory.take(said("edit", "BB", places=((1, 1),)))
    assert memory.visible == "a c BB"
    memory.take(said("pop", to=1))
    assert memory.visible == "a BB", "it stands where the first one stood"
    memory.take(said("undo", to=0, part=1))
    assert memory.visible == "a"


def test_what_is_removed_is_gone_edited_or_not(memory: Memory) -> None:
    memory.take(entry("a", "b", "c"), "d", said("edit", "C", places=((1, 2),)), said("remove", places=((1, 0), (1, 2))))
    assert memory.visible == "b d"


def test_a_fork_starts_a_state_and_shows_all_it_brought(memory: Memory) -> None:
    memory.take("old", said("fork", "system", "summary", "a", leads=True, summary=1), "b", base=2)
    assert memory.visible == "system summary a b"


def test_a_summary_leaves_what_followed_it_and_the_system_message_of_then(memory: Memory) -> None:
    memory.take(system("s1"), "a", system("s2"), "b", "c", said("compact", "sum", to=4, system=3), base=6)
    assert memory.visible == "s2 c sum"
    memory.take(replace(system("s3"), op="edit", details=Details(places=((3, 0),))))
    assert memory.visible == "c sum s3"


def test_the_system_message_that_pruning_left_is_visible(memory: Memory) -> None:
    memory.take(system("s1"), "a", "b")
    committed(memory.store, pruning(M, memory.mid, 3, 3, base=3, system=1))
    assert memory.visible == "s1 b"


@pytest.mark.parametrize("kind", ["adds then pops", "pops between", "edits", "removes"])
def test_the_time_it_takes_is_not_squared(memory: Memory, kind: str) -> None:
    """Counted in SQLite's own steps, eight times as many entries take about eight times as many."""

    def steps(count: int) -> int:
        memory_id = name(f"{count}")
        entries = [entry("x") for _ in range(count)]
        later = {
            "adds then pops": [said("pop", to=count - 1 - n) for n in range(count)],
            "pops between": [each for n in range(count) for each in (entry("y"), said("pop", to=count + 2 * n))],
            "edits": [said("edit", "y", places=((n + 1, 0),)) for n in range(count)],
            "removes": [said("remove", places=((n + 1, 0),)) for n in range(count)],
        }[kind]
        committed(memory.store, add(memory_id, 0, 0, *entries, *later))
        counted = 0

        def count_one() -> int:
            nonlocal counted
            counted += 1
            return 0

        with closing(sqlite3.connect(memory.path)) as connection:
            connection.set_progress_handler(count_one, 100)
            connection.execute("SELECT count(visible) FROM message WHERE id = ?", (memory_id.id,)).fetchone()
        return counted

    few = steps(100)
    assert steps(800) < 3 * 8 * few

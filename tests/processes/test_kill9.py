"""What `kill -9` leaves: every acknowledged batch, whole, and nothing by halves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

import turnkeeper
from kill9 import BACKENDS, Batch, Ledger, examine_file, examine_runtime, message, run
from processes.remote import Backend, Remote, url_of
from turnkeeper.stores import SQLiteStore


class TestKills:
    @pytest.mark.parametrize(("processes", "rounds"), [(1, 15), (4, 6)], ids=["one process", "four processes"])
    def test_acknowledged_batches_survive_whole(self, tmp_path: Path, processes: int, rounds: int) -> None:
        """4 writers a process, each event loop in turn; 39 kills."""
        summary = run(rounds, tmp_path, writers=4, processes=(processes,), seed=2026, spread=0.2)
        assert summary.problems == []
        assert (summary.rounds, summary.kills) == (rounds, rounds * processes)
        assert summary.acknowledged > 20 * rounds, "hardly anything was written before the kills"

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_killed_owner_leaves_the_file_free_at_once(self, tmp_path: Path, backend: Backend) -> None:
        url = url_of(tmp_path / "chats.db")
        for number in range(3):
            with Remote(url, backend=backend) as remote:
                remote.call("add", "m", [f"acknowledged {number}", "whole"])
                remote.send("add", "m", ["in flight"])
                remote.kill()
        with turnkeeper.open_sync_runtime(url) as runtime:
            texts = [part.content for part in runtime.memory("m").messages()]
        assert [text for text in texts if text != "in flight"] == [
            text for number in range(3) for text in (f"acknowledged {number}", "whole")
        ]
        assert texts.count("in flight") <= 3

    def test_p83_a_torn_tail_costs_what_was_torn_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "chats.db"
        with Remote(url_of(path)) as remote:
            for number in range(5):
                remote.call("add", "m", [str(number)])
            remote.kill()
        log = path.with_name("chats.db-wal")
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 20)
        with turnkeeper.open_sync_runtime(url_of(path)) as runtime:
            memory = runtime.memory("m")
            assert [part.content for part in memory.messages()] == ["0", "1", "2", "3"]
            assert memory.add({"role": "user", "content": "on"}).version.n == 5


class TestSyncSetting:
    """A kill can't tell FULL from OFF, as the page cache survives it: so the setting itself is looked at."""

    @pytest.mark.anyio
    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("relaxed", 1)])
    async def test_durability_is_the_setting_of_the_live_writer(
        self, tmp_path: Path, durability: str, synchronous: int, shared: bool
    ) -> None:
        store = SQLiteStore(tmp_path / "chats.db", shared=shared)
        async with turnkeeper.open_runtime(store, durability=durability) as runtime:  # type: ignore[arg-type]
            await runtime.memory("m").add({"role": "user", "content": "durable"})
            assert store.pragma("synchronous") == synchronous

    @pytest.mark.anyio
    async def test_full_is_the_default(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "chats.db")
        async with turnkeeper.open_runtime(store):
            assert store.pragma("synchronous") == 2
            assert store.pragma("journal_mode") == "wal"


def half_a_batch(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE entry SET payload = CAST(json_remove(CAST(payload AS TEXT), '$.messages[1]') AS BLOB) WHERE version = 2"
    )


def a_lost_batch(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE version = 3")
    connection.execute("UPDATE head SET version = 2")


def a_hole(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE version = 2")


def a_doubled_batch(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO entry (mid, version, op, entry_id, payload, at) "
        "SELECT mid, 4, op, randomblob(16), payload, at FROM entry WHERE version = 3"
    )
    connection.execute("UPDATE head SET version = 4")


def swapped_batches(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET version = CASE version WHEN 1 THEN -2 WHEN 2 THEN -1 ELSE version END")
    connection.execute("UPDATE entry SET version = abs(version)")


def a_head_that_lags(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE head SET version = 2")


def a_lost_memory(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM head")


class TestTheExaminer:
    """Each kind of damage is found: a check that can't fail proves nothing."""

    @pytest.fixture
    def written(self, tmp_path: Path) -> tuple[Path, Ledger]:
        """Write three batches of two messages and keep the promise in a ledger."""
        path, ledger = tmp_path / "chats.db", Ledger()
        with turnkeeper.open_sync_runtime(url_of(path)) as runtime:
            for n in range(3):
                receipt = runtime.memory("m").add([message("w", n, index, 2, Random(0)) for index in range(2)])
                ledger.acknowledged["m", receipt.version.n] = Batch("w", n, 2)
        return path, ledger

    def test_an_undamaged_file_is_fine(self, written: tuple[Path, Ledger]) -> None:
        path, ledger = written
        assert examine_file(path, "", ledger) == []
        assert examine_runtime(path, url_of(path), ledger) == []

    @pytest.mark.parametrize(
        "damage",
        [
            half_a_batch,
            a_lost_batch,
            a_hole,
            a_doubled_batch,
            swapped_batches,
            a_head_that_lags,
            a_lost_memory,
        ],
    )
    def test_damage_is_found(self, written: tuple[Path, Ledger], damage: Callable[[sqlite3.Connection], None]) -> None:
        path, ledger = written
        with closing(sqlite3.connect(path)) as connection, connection:
            damage(connection)
        assert examine_file(path, "", ledger) != []

    def test_a_lost_file_is_found(self, written: tuple[Path, Ledger]) -> None:
        path, ledger = written
        path.unlink()
        assert examine_file(path, "", ledger) != []

    @pytest.mark.parametrize("damage", [half_a_batch, a_lost_batch, a_lost_memory])
    def test_damage_is_found_through_the_runtime(
        self, written: tuple[Path, Ledger], damage: Callable[[sqlite3.Connection], None]
    ) -> None:
        path, ledger = written
        with closing(sqlite3.connect(path)) as connection, connection:
            damage(connection)
        assert examine_runtime(path, url_of(path), ledger) != []

    def test_a_writer_that_ends_by_itself_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "kill9-1-0.db").write_text("this is no database")
        summary = run(1, tmp_path, processes=(1,))
        assert any("ended by itself" in problem for problem in summary.problems)

"""Several processes, and several runtimes, at work on one shared file."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import anyio
import pytest

import turnkeeper
from processes.crowds import run_crowd
from processes.remote import BACKENDS, Backend, Remote, RemoteError, url_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the database goes."""
    return tmp_path / "chats.db"


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the event loop of the other processes."""
    backend: Backend = request.param
    return backend


class TestACrowd:
    @pytest.mark.parametrize("kills", [0, 6])
    def test_four_processes_lose_double_and_reorder_nothing(self, path: Path, kills: int) -> None:
        """On servers: tests/servers/test_crowds.py."""
        summary = run_crowd(url_of(path, shared=True), path.parent, kills=kills)
        assert summary.conflicts > 0, "they never met"
        assert summary.failed == 0
        assert summary.unknown > 0 or not kills
        integrity(path)

    @pytest.mark.slow
    @pytest.mark.timeout_seconds(180)
    def test_four_processes_lose_double_and_reorder_nothing_in_half_a_minute(self, path: Path) -> None:
        run_crowd(url_of(path, shared=True), path.parent, kills=40, answers=3_000)
        integrity(path)


def integrity(path: Path) -> None:
    """Have SQLite itself look at the file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def read_file(path: Path) -> dict[str, dict[int, list[str]]]:
    """Read the texts of each entry of each memory with a connection of the standard library."""
    integrity(path)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, version, json_extract(json, '$.content') FROM message").fetchall()
    entries: dict[str, dict[int, list[str]]] = defaultdict(dict)
    for memory, version, text in rows:
        entries[memory].setdefault(version, []).append(text)
    return entries


class TestStepByStep:
    def test_each_process_reads_what_any_other_was_promised(self, path: Path, backend: Backend) -> None:
        url = url_of(path, shared=True)
        with Remote(url, backend=backend) as first, Remote(url, backend=backend) as second:
            expected = []
            for number in range(50):
                writer, reader = (first, second) if number % 2 else (second, first)
                version = writer.call("add", "m", [str(number)])
                expected.append(str(number))
                assert reader.call("read", "m") == [version, expected]

    def test_a_set_and_a_clear_are_seen_by_the_other_process(self, path: Path) -> None:
        url = url_of(path, shared=True)
        with Remote(url) as first, Remote(url) as second:
            first.call("add", "m", ["a", "b"])
            second.call("read", "m")
            version = first.call("replace", "m", ["summary"])
            assert second.call("read", "m") == [version, ["summary"]]
            version = second.call("clear", "m")
            assert first.call("read", "m") == [version, []]

    def test_local_consistency_may_be_behind_and_still_loses_nothing(self, path: Path) -> None:
        url = url_of(path, shared=True)
        with Remote(url, consistency="local") as local, Remote(url) as other:
            local.call("add", "m", ["a"])
            other.call("add", "m", ["b"])
            assert local.call("read", "m")[1] == ["a"]
            local.call("add", "m", ["c"])
            assert local.call("read", "m")[1] == ["a", "b", "c"]

    def test_if_version_is_refused_after_another_process_wrote(self, path: Path, backend: Backend) -> None:
        url = url_of(path, shared=True)
        with Remote(url, backend=backend) as first, Remote(url, backend=backend) as second:
            version = first.call("add", "m", ["a"])
            latest = second.call("add", "m", ["b"])
            with pytest.raises(RemoteError, match="read it again and decide anew") as refused:
                first.call("replace", "m", ["computed from a alone"], version)
            assert refused.value.kind == "ConflictError"
            assert second.call("read", "m") == [latest, ["a", "b"]]
            first.call("replace", "m", ["computed from both"], latest)
            assert second.call("read", "m")[1] == ["computed from both"]

    def test_a_key_used_in_one_process_gives_its_receipt_in_the_other(self, path: Path, backend: Backend) -> None:
        url = url_of(path, shared=True)
        with Remote(url, backend=backend) as first, Remote(url, backend=backend) as second:
            version = first.call("add", "m", ["pay"], "order-1")
            first.call("add", "m", ["and on"])
            assert second.call("add", "m", ["pay"], "order-1") == version
            with pytest.raises(RemoteError) as refused:
                second.call("add", "m", ["pay more"], "order-1")
            assert refused.value.kind == "IdempotencyMismatchError"
            assert second.call("read", "m")[1] == ["pay", "and on"]

    def test_a_stale_writer_never_writes_into_the_successor_of_a_deleted_memory(
        self, path: Path, backend: Backend
    ) -> None:
        """Delete X, create Y, then a stale writer of X: its version is refused; a plain add goes where the name is."""
        url = url_of(path, shared=True)
        with Remote(url, backend=backend) as stale, Remote(url, backend=backend) as other:
            of_x = stale.call("add", "m", ["x"])
            assert other.call("delete", "m") is True
            of_y = other.call("add", "m", ["y"])
            assert of_y.split(".")[0] != of_x.split(".")[0], "the number of a deleted memory is used again"
            with pytest.raises(RemoteError) as refused:
                stale.call("replace", "m", ["computed from x"], of_x)
            assert refused.value.kind == "ConflictError"
            assert other.call("read", "m") == [of_y, ["y"]]
            added = stale.call("add", "m", ["said to whoever is m"])
            assert other.call("read", "m") == [added, ["y", "said to whoever is m"]]

    def test_a_stale_writer_of_a_deleted_memory_creates_it_anew(self, path: Path) -> None:
        url = url_of(path, shared=True)
        with Remote(url) as stale, Remote(url) as other:
            of_x = stale.call("add", "m", ["x"])
            other.call("delete", "m")
            with pytest.raises(RemoteError) as refused:
                stale.call("replace", "m", ["computed from x"], of_x)
            assert refused.value.kind == "ConflictError"
            assert stale.call("read", "m")[1] == []
            stale.call("add", "m", ["new"])
            assert other.call("read", "m")[1] == ["new"]

    def test_the_death_of_one_process_does_not_hold_up_the_other(self, path: Path) -> None:
        url = url_of(path, shared=True)
        with Remote(url) as survivor, Remote(url) as victim:
            victim.call("add", "m", ["last words"])
            victim.send("add", "m", ["perhaps"])
            victim.kill()
            version = survivor.call("add", "m", ["on"])
            texts = survivor.call("read", "m")
            assert texts in ([version, ["last words", "on"]], [version, ["last words", "perhaps", "on"]])


class TestTwoRuntimesInOneProcess:
    @pytest.mark.anyio
    async def test_they_share_a_file_and_lose_nothing(self, path: Path) -> None:
        acknowledged: list[tuple[int, str]] = []

        async def write(memory: turnkeeper.ChatMemory, sender: str) -> None:
            for number in range(25):
                text = f"{sender} {number}"
                receipt = await memory.add({"role": "user", "content": text})
                acknowledged.append((receipt.version.n, text))

        url = url_of(path, shared=True)
        async with (
            turnkeeper.open_runtime(url) as first,
            turnkeeper.open_runtime(url) as second,
            anyio.create_task_group() as tasks,
        ):
            for number in range(4):
                tasks.start_soon(write, first.memory("m"), f"first-{number}")
                tasks.start_soon(write, second.memory("m"), f"second-{number}")
        stored = read_file(path)["m"]
        assert {version: texts[0] for version, texts in stored.items()} == dict(acknowledged)
        assert len(stored) == len(acknowledged) == 200

    @pytest.mark.anyio
    async def test_closing_one_takes_nothing_from_the_other(self, path: Path) -> None:
        url = url_of(path, shared=True)
        async with turnkeeper.open_runtime(url) as survivor:
            for number in range(10):
                async with turnkeeper.open_runtime(url) as passing:
                    await passing.memory("m").add({"role": "user", "content": f"passing {number}"})
                    await survivor.memory("m").add({"role": "user", "content": f"surviving {number}"})
            await anyio.to_thread.run_sync(add_from_outside, url)  # SQLite's own locks still count over there
            assert len(await survivor.memory("m").messages()) == 21
        assert len(read_file(path)["m"]) == 21


def add_from_outside(url: str) -> None:
    """Have another process add a message."""
    with Remote(url) as other:
        other.call("add", "m", ["from outside"])

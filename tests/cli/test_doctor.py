"""`turnkeeper doctor`: what is wrong is found, what is in use is left alone, and the exit status says which it was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnkeeper
from turnkeeper import open_sync_runtime
from turnkeeper.cli import checkup
from turnkeeper.stores import SQLiteStore
from turnkeeper.stores.sqlite import QUARANTINE

Invoke = Callable[..., Any]
Fill = Callable[..., str]

TALK = [{"role": "user", "content": f"canary-zanzibar {number}"} for number in range(3)]


def told(out: str) -> dict[str, tuple[str, str]]:
    """Return (found, level) by what was looked at."""
    lines = [line.split("\t") for line in out.splitlines() if "\t" in line]
    return {what: (found, level) for level, what, found in lines}


def tamper(url: str, statements: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.executescript(statements)
    connection.close()


CORRUPTED = "UPDATE entry SET payload = substr(payload, 2) WHERE mid = {} AND version = 2"


class TestThisMachine:
    def test_every_version_is_told(self, invoke: Invoke) -> None:
        ran = invoke("doctor")
        assert ran[::2] == (0, "")
        found = told(ran.out)
        assert found["turnkeeper"] == (turnkeeper.__version__, "ok")
        assert found["Python"][0].startswith(platform.python_version())
        assert found["SQLite"][0] == sqlite3.sqlite_version
        for name in ("anyio", "msgspec", "trio", "uvloop"):
            assert found[name][0] == importlib.metadata.version(name)
        assert ran.out.endswith("\nhealthy\n")

    def test_what_is_not_installed_is_left_out(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.metadata.version

        def version(name: str) -> str:
            if name in ("trio", "uvloop"):
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        ran = invoke("doctor")
        assert ran.status == 0
        assert not {"trio", "uvloop"} & told(ran.out).keys()

    @pytest.mark.parametrize(
        ("version", "affected"),
        [
            ((3, 6, 23), False),
            ((3, 7, 0), True),
            ((3, 40, 1), True),
            ((3, 43, 2), True),
            ((3, 44, 5), True),
            ((3, 44, 6), False),
            ((3, 44, 7), False),
            ((3, 45, 0), True),
            ((3, 49, 2), True),
            ((3, 50, 6), True),
            ((3, 50, 7), False),
            ((3, 51, 2), True),
            ((3, 51, 3), False),
            ((3, 51, 4), False),
            ((3, 52, 0), True),
            ((3, 52, 1), False),
            ((3, 53, 0), False),
        ],
    )
    def test_the_wal_bug_is_told_by_its_exact_versions(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], affected: bool
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        ran = invoke("doctor")
        found, level = told(ran.out)["SQLite's WAL bug"]
        assert ("has it" in found, level) == (affected, "note" if affected else "ok")
        assert ran.status == 0  # turnkeeper writes through one connection at a time, so it can't strike


class TestAHealthyStore:
    def test_is_healthy(self, invoke: Invoke, fill: Fill) -> None:
        ran = invoke("doctor", fill(a=TALK, b=TALK))
        assert ran[::2] == (0, "")
        found = told(ran.out)
        assert found["journal mode"] == ("wal", "ok")
        assert found["schema"][0].startswith("1 ")
        assert found["file"][0].startswith("-rw------- 0600, owner ")
        assert found["in use"] == ("by nobody (just now)", "ok")
        assert found["durability"][0].startswith("synchronous=FULL, fullfsync=on")
        assert found["integrity"] == ("ok", "ok")
        assert found["memories"] == ("2, 0 of them corrupt", "ok")
        assert ran.out.endswith("\nhealthy\n")

    def test_is_not_changed(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK)
        before = (tmp_path / "chats.db").read_bytes()
        assert invoke("doctor", url).status == 0
        assert (tmp_path / "chats.db").read_bytes() == before

    def test_is_examined_while_a_server_runs(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        with open_sync_runtime(url) as runtime:
            runtime.memory("b").add(TALK)
            ran = invoke("doctor", url)
            runtime.memory("b").add(TALK)
        assert ran[::2] == (0, "")
        found = told(ran.out)
        assert f"(process {os.getpid()})" in found["in use"][0]
        assert found["in use"][1] == "note"
        assert "can't be seen" in found["durability"][0]
        assert found["memories"] == ("2, 0 of them corrupt", "ok")

    def test_may_be_shared(self, invoke: Invoke, fill: Fill) -> None:
        url = f"{fill(a=TALK)}?shared=true"
        with open_sync_runtime(url):
            found = told(invoke("doctor", url).out)
        assert found["in use"] == ("shared", "ok")
        assert found["durability"][0].startswith("synchronous=FULL")


class TestProblems:
    def test_a_file_open_to_everybody(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK)
        (tmp_path / "chats.db").chmod(0o644)
        ran = invoke("doctor", url)
        assert ran.status == 1
        assert "every user" in told(ran.out)["file"][0]
        assert told(ran.out)["file"][1] == "problem"

    def test_a_file_open_to_its_group_is_only_noted(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK)
        (tmp_path / "chats.db").chmod(0o640)
        ran = invoke("doctor", url)
        assert ran.status == 0
        assert told(ran.out)["file"][1] == "note"

    def test_a_sync_setting_that_is_too_low(self, invoke: Invoke, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
        real = SQLiteStore.pragma
        monkeypatch.setattr(SQLiteStore, "pragma", lambda self, name: 1 if name == "synchronous" else real(self, name))
        ran = invoke("doctor", fill(a=TALK))
        assert ran.status == 1
        assert told(ran.out)["durability"][1] == "problem"
        assert "synchronous=NORMAL" in told(ran.out)["durability"][0]

    @staticmethod
    def damage(url: str, tree: str) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        connection = sqlite3.connect(path)
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        with path.open("r+b") as file:
            file.seek((root - 1) * size)
            file.write(b"\xff" * size)

    @pytest.mark.parametrize("tree", ["receipt_expiry", "entry", "sqlite_autoindex_head_1", "head"])
    def test_a_damaged_file(self, invoke: Invoke, fill: Fill, canary: str, tree: str) -> None:
        url = fill(**{f"m{number}": TALK for number in range(20)})
        self.damage(url, tree)
        ran = invoke("doctor", url)
        assert ran[::2] == (1, "")
        assert told(ran.out)["integrity"][1] == "problem"
        assert ran.out.endswith("\nproblems found\n")
        assert canary not in ran.out + ran.err


class TestCorruptMemories:
    @pytest.fixture
    def url(self, fill: Fill) -> str:
        url = fill(a=TALK, bad=TALK, c=TALK)
        tamper(url, CORRUPTED.format(2))
        return url

    def test_are_counted_and_named(self, invoke: Invoke, url: str, canary: str) -> None:
        ran = invoke("doctor", url)
        assert ran.status == 1
        found = told(ran.out)
        assert found["memories"] == ("3, 1 of them corrupt", "problem")
        assert found["corrupt"] == ("'bad' (namespace ''), entry 2: its payload can't be decoded", "problem")
        assert "--quarantine" in ran.out
        assert canary not in ran.out + ran.err

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM entry WHERE mid = 2 AND version = 2",
            "UPDATE entry SET op = 'rot13' WHERE mid = 2 AND version = 2",
            "UPDATE head SET version = 7 WHERE mid = 2",
            "UPDATE head SET base = 9 WHERE mid = 2",
            "UPDATE entry SET payload = x'ff' WHERE mid = 2 AND version = 3",
            "UPDATE entry SET op = CAST(x'ff' AS TEXT) WHERE mid = 2 AND version = 3",
        ],
    )
    def test_of_every_kind_are_found(self, invoke: Invoke, fill: Fill, statement: str) -> None:
        url = fill(a=TALK, bad=TALK, c=TALK)
        tamper(url, statement)
        ran = invoke("doctor", url)
        assert ran.status == 1
        assert told(ran.out)["memories"][0] == "3, 1 of them corrupt"

    def test_are_not_all_named_when_there_are_many(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(**{f"m{number:02}": TALK for number in range(25)})
        tamper(url, "UPDATE entry SET payload = x'7b' WHERE version = 2")
        out = invoke("doctor", url).out
        assert out.count("problem\tcorrupt\t'm") == 20
        assert "and 5 more" in out

    def test_are_put_aside_with_a_new_name(self, invoke: Invoke, url: str) -> None:
        ran = invoke("doctor", url, "--quarantine")
        assert ran.status == 1  # problems were found
        assert "moved 'bad' (namespace '') to '2' (namespace 'turnkeeper:quarantine')\n" in ran.out
        again = invoke("doctor", url, "--quarantine")
        assert again.status == 0
        assert told(again.out)["memories"] == ("2, 0 of them corrupt", "ok")
        assert told(again.out)["quarantined"][0] == "1, in namespace 'turnkeeper:quarantine'"
        with open_sync_runtime(url) as runtime:
            assert len(runtime.memory("bad").messages()) == 0
            assert len(runtime.memory("a").messages()) == 3
        raw = invoke("inspect", url, "2", "--namespace", QUARANTINE, "--raw")
        assert len(raw.out.splitlines()) == 3

    def test_that_were_repaired_meanwhile_are_left_alone(self, url: str) -> None:
        repaired = [turnkeeper.MemoryCorruptError(name, "", 1, "was corrupt") for name in ("a", "gone", "bad")]
        assert [old.id for old, _ in checkup.quarantine(url, repaired)] == ["bad"]

    def test_stay_where_they_are_while_a_server_has_the_file(self, invoke: Invoke, url: str) -> None:
        with open_sync_runtime(url):
            ran = invoke("doctor", url, "--quarantine")
        assert ran.status == 1
        assert ran.err.startswith("turnkeeper: not moved: ")
        assert "in use" in ran.err
        assert told(invoke("doctor", url).out)["memories"][0] == "3, 1 of them corrupt"

    def test_are_put_aside_beside_a_server_that_shares_the_file(self, invoke: Invoke, url: str) -> None:
        shared = f"{url}?shared=true"
        with open_sync_runtime(shared) as runtime:
            with pytest.raises(turnkeeper.MemoryCorruptError):
                runtime.memory("bad").messages()
            assert "moved 'bad'" in invoke("doctor", shared, "--quarantine").out
            runtime.memory("bad").add(TALK[0])
            assert len(runtime.memory("bad").messages()) == 1


class TestCannotLook:
    @pytest.mark.parametrize("url", ["sqlite:///no.db", "memory:", "nonsense", "sqlite:///x.db?mode=ro"])
    def test_is_2_and_creates_nothing(self, invoke: Invoke, tmp_path: Path, url: str) -> None:
        ran = invoke("doctor", url)
        assert ran.status == 2
        assert ran.err.count("\n") == 1
        assert os.listdir(tmp_path) == []

    def test_at_another_programs_file(self, invoke: Invoke, tmp_path: Path, canary: str) -> None:
        (tmp_path / "text.db").write_text(canary * 1000)
        ran = invoke("doctor", "sqlite:///text.db")
        assert ran.status == 2
        assert canary not in ran.out + ran.err

    def test_at_a_newer_schema(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        tamper(url, "PRAGMA user_version = 99")
        ran = invoke("doctor", url)
        assert ran.status == 2
        assert "upgrade turnkeeper" in ran.err

    def test_quarantine_needs_a_url(self, invoke: Invoke) -> None:
        assert invoke("doctor", "--quarantine").status == 2

    def test_a_directory_that_cannot_be_written_is_a_problem_of_the_store(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise turnkeeper.StoreUnavailableError("read-only file system")

        url = fill(a=TALK)
        monkeypatch.setattr(SQLiteStore, "_take_ownership", refuse)
        ran = invoke("doctor", url)
        assert ran.status == 1
        assert "can't be opened for writing" in told(ran.out)["durability"][0]
        assert stat.S_ISREG((tmp_path / "chats.db").stat().st_mode)

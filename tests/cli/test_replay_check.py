"""The check reads the log itself, finds whatever was done to it, and says where without saying what."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import open_sync_runtime
from turnkeeper.cli import replay as replay_module
from turnkeeper.cli import replay_check as replay_check_module
from turnkeeper.cli.replay_check import check_in_fresh_process
from turnkeeper.cli.terminal import Stop

TALK = [{"role": "user", "content": f"canary-zanzibar {number}"} for number in range(4)]
URL = "sqlite:///replay.db"

Invoke = Callable[..., Any]
Tamper = Callable[..., None]

SECOND = "mid = 2"
REPLACED = "CAST(replace(CAST(payload AS TEXT), '{}', '{}') AS BLOB)"
PLANTED = [
    (f"DELETE FROM entry WHERE {SECOND} AND version = 4; UPDATE head SET version = 3 WHERE {SECOND}", 4, "missing"),
    (f"DELETE FROM head WHERE {SECOND}", 1, "missing"),
    (f"DELETE FROM entry WHERE {SECOND}; UPDATE head SET version = 0 WHERE {SECOND}", 1, "missing"),
    (
        "INSERT INTO entry (mid, version, op, entry_id, payload, at) "
        "SELECT mid, 5, op, entry_id, payload, at FROM entry "
        f"WHERE {SECOND} AND version = 4; UPDATE head SET version = 5 WHERE {SECOND}",
        5,
        "extra",
    ),
    (f"UPDATE entry SET payload = {REPLACED.format(2, 3)} WHERE {SECOND} AND version = 3", 3, "different"),
    (f"UPDATE entry SET payload = {REPLACED.format('user', 'system')} WHERE {SECOND} AND version = 2", 2, "different"),
    (f"UPDATE entry SET payload = x'7b' WHERE {SECOND} AND version = 3", 3, "unreadable"),
    (f"UPDATE entry SET payload = x'5b5d' WHERE {SECOND} AND version = 3", 3, "unreadable"),
    (f"UPDATE entry SET payload = CAST('{{\"messages\":[]}}' AS BLOB) WHERE {SECOND} AND version = 1", 1, "different"),
    (f"UPDATE entry SET op = 'set' WHERE {SECOND} AND version = 3", 3, "unreadable"),
    (f"DELETE FROM entry WHERE {SECOND} AND version = 2", 2, "unreadable"),
    (f"UPDATE head SET version = 9 WHERE {SECOND}", 5, "unreadable"),
]
"""What is done to the second conversation, and where and how that shows."""


@pytest.fixture
def replayed(invoke: Invoke, chats: Callable[..., Path]) -> Path:
    path = chats(a=TALK, b=TALK)
    assert invoke("replay", path, "--clients", 1, "--store", URL).status == 0
    return path


@pytest.fixture
def tamper(tmp_path: Path) -> Tamper:
    def tamper(statements: str) -> None:
        connection = sqlite3.connect(tmp_path / "replay.db")
        connection.executescript(statements)
        connection.close()

    return tamper


def test_what_was_not_touched_is_equal(invoke: Invoke, replayed: Path) -> None:
    ran = invoke("replay-check", replayed, "--store", URL)
    assert ran[::2] == (0, "")
    assert ran.out == f"checked by process {os.getpid()}: 2 logs with 8 messages, each equal to its input\n"


@pytest.mark.parametrize(("statements", "position", "kind"), PLANTED)
def test_a_planted_difference_is_found_and_named(
    invoke: Invoke, replayed: Path, tamper: Tamper, canary: str, statements: str, position: int, kind: str
) -> None:
    tamper(statements)
    ran = invoke("replay-check", replayed, "--store", URL)
    assert ran.status == 1
    assert ran.out == ""
    assert canary not in ran.err
    assert ran.err == (
        "turnkeeper: 1 of 2 stored logs differ from the input; "
        f"the first: conversation 'b', message {position}: {kind}\n"
    )


def test_it_reads_the_log_and_not_a_view_of_it(
    invoke: Invoke, replayed: Path, tmp_path: Path, fill: Callable[..., str]
) -> None:
    """A view shows what a set put there, and here that is equal to the input; the log remembers more."""
    with open_sync_runtime(f"sqlite:///{tmp_path / 'replay.db'}") as runtime:
        runtime.memory("b").set(TALK)
        assert runtime.memory("b").messages().to_dicts() == TALK
    ran = invoke("replay-check", replayed, "--store", URL)
    assert ran.status == 1
    assert "conversation 'b', message 5" in ran.err


def test_the_first_of_several_is_named_in_the_order_of_the_input(
    invoke: Invoke, replayed: Path, tamper: Tamper
) -> None:
    tamper("UPDATE entry SET payload = x'7b' WHERE version = 2")
    assert (
        "2 of 2 stored logs differ from the input; the first: conversation 'a', message 2"
        in invoke("replay-check", replayed, "--store", URL).err
    )


def test_copies_and_namespaces_are_checked_where_they_are(invoke: Invoke, replayed: Path) -> None:
    assert invoke("replay", replayed, "--store", URL, "--namespace", "n", "--copies", 2).status == 0
    assert invoke("replay-check", replayed, "--store", URL, "--namespace", "n", "--copies", 2).status == 0
    ran = invoke("replay-check", replayed, "--store", URL, "--copies", 2)
    assert "2 of 4" in ran.err
    assert "conversation 'a#1', message 1: missing" in ran.err


def test_replay_ends_with_1_when_its_check_finds_one(
    invoke: Invoke, chats: Callable[..., Path], tamper: Tamper, monkeypatch: pytest.MonkeyPatch, canary: str
) -> None:
    def tampered(*args: Any, **kwargs: Any) -> str:
        tamper(f"UPDATE entry SET payload = {REPLACED.format(2, 3)} WHERE version = 3")
        return check_in_fresh_process(*args, **kwargs)

    monkeypatch.setattr(replay_module, "check_in_fresh_process", tampered)
    ran = invoke("replay", chats(a=TALK), "--store", URL)
    assert ran.status == 1
    assert ran.err.endswith("the first: conversation 'a', message 3: different\n")
    assert "checked by" not in ran.out
    assert canary not in ran.out + ran.err


def test_a_check_that_cannot_be_made_is_no_success(
    invoke: Invoke, chats: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_check_module, "child_command", lambda *_: ["/bin/sh", "-c", "kill -9 $$"])
    ran = invoke("replay", chats(a=TALK), "--store", URL)
    assert ran.status == 2
    assert "could not be checked: the checking process gave -9" in ran.err


def test_a_check_without_its_store_is_no_success(tmp_path: Path, chats: Callable[..., Path]) -> None:
    path = chats(a=TALK)
    with pytest.raises(Stop, match=r"could not be checked: .* does not exist") as caught:
        check_in_fresh_process([path], f"sqlite:///{tmp_path / 'no.db'}", namespace="", copies=1)
    assert caught.value.status == 2
    assert not (tmp_path / "no.db").exists()


def test_the_url_is_not_on_the_command_line(replayed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def command(*args: str) -> list[str]:
        seen.extend(args)
        return ["/bin/sh", "-c", "echo ok"]

    monkeypatch.setattr(replay_check_module, "child_command", command)
    assert check_in_fresh_process([replayed], "postgres://user:hunter2@host/db", namespace="", copies=1) == "ok"
    assert seen
    assert not any("hunter2" in arg for arg in seen)


def test_a_module_in_the_working_directory_is_not_run(
    replayed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("json.py", "turnkeeper.py", "click.py"):
        (tmp_path / name).write_text("raise SystemExit('hijacked')")
    assert check_in_fresh_process([replayed], URL, namespace="", copies=1).startswith("checked by process")


def test_it_only_reads(invoke: Invoke, replayed: Path, tmp_path: Path) -> None:
    database = tmp_path / "replay.db"
    before = database.read_bytes()
    database.chmod(stat.S_IRUSR)
    assert invoke("replay-check", replayed, "--store", URL).status == 0
    assert database.read_bytes() == before


def test_malformed_input_is_2(invoke: Invoke, replayed: Path, canary: str) -> None:
    replayed.write_text(replayed.read_text() + json.dumps({"id": "c", "messages": canary}))
    ran = invoke("replay-check", replayed, "--store", URL)
    assert ran.status == 2
    assert "line 3" in ran.err
    assert canary not in ran.err

"""`turnkeeper inspect --history` and `--follow`: the log for people and programs; nothing missed, gaps are said."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import MessageWindow, open_sync_runtime
from turnkeeper.cli import inspect_history

Invoke = Callable[..., Any]
Fill = Callable[..., str]

TALK = [{"role": "user", "content": f"message {number}"} for number in range(5)]


@pytest.fixture
def url(fill: Fill) -> str:
    url = fill(a=TALK[:2])
    with open_sync_runtime(url) as runtime:
        memory = runtime.memory("a")
        memory.add([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y", "id": "mine"}])
        memory.undo()
    return url


def prune(url: str) -> None:
    with open_sync_runtime(url) as runtime:
        memory = runtime.memory("p", window=MessageWindow(2), history="window")
        for message in TALK:
            memory.add(message)


class TestHistory:
    def test_has_a_line_an_entry_and_no_content(self, invoke: Invoke, url: str) -> None:
        ran = invoke("inspect", url, "a", "--history")
        assert (ran.status, ran.err) == (0, "")
        rows = [line.split("\t") for line in ran.out.splitlines()]
        assert [[row[0], *row[2:]] for row in rows] == [
            ["1", "add", "user 37"],
            ["2", "add", "user 37"],
            ["3", "add", "assistant 34, user 41"],
            ["4", "undo"],
        ]
        assert all(row[1].startswith("20") and row[1].endswith("Z") for row in rows)
        assert "message" not in ran.out

    def test_shows_content_when_told(self, invoke: Invoke, url: str) -> None:
        lines = invoke("inspect", url, "a", "--history", "--content").out.splitlines()
        assert lines[1:3] == ["  1. user", "    message 0"]
        assert "  2. user (mine)" in lines

    def test_has_a_limit_and_both_directions(self, invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspect_history, "_PAGE", 2)
        for options, versions in (
            ([], "1234"),
            (["--reverse"], "4321"),
            (["--limit", 3], "123"),
            (["--limit", 3, "--reverse"], "432"),
            (["--limit", 4], "1234"),
        ):
            ran = invoke("inspect", url, "a", "--history", *options)
            assert "".join(line.split("\t")[0] for line in ran.out.splitlines()) == versions
            assert ("only 3 entries" in ran.err) == (3 in options)

    def test_as_json(self, invoke: Invoke, url: str) -> None:
        told = [json.loads(line) for line in invoke("inspect", url, "a", "--history", "--json").out.splitlines()]
        assert [entry["op"] for entry in told] == ["add", "add", "add", "undo"]
        assert told[2]["messages"] == [
            {"role": "assistant", "bytes": 34, "id": "3.0"},
            {"role": "user", "bytes": 41, "id": "mine"},
        ]
        assert told[0]["at"] <= told[1]["at"]
        full = invoke("inspect", url, "a", "--history", "--json", "--content").out.splitlines()
        assert json.loads(full[0])["messages"] == TALK[:1]

    @pytest.mark.parametrize("options", [(), ("--reverse",)])
    def test_says_what_was_pruned(self, invoke: Invoke, url: str, options: tuple[str, ...]) -> None:
        prune(url)
        ran = invoke("inspect", url, "p", "--history", "--json", *options)
        assert {"gap": "entries 1 to 3 were pruned"} in [json.loads(line) for line in ran.out.splitlines()]
        assert "entries 1 to 3 were pruned" in ran.err

    def test_shows_that_an_entry_is_corrupt_and_goes_on(self, invoke: Invoke, url: str, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "chats.db")
        with connection:
            connection.execute("UPDATE entry SET payload = x'00', op = 'a' || char(27) || '[31m' WHERE version = 2")
        connection.close()
        ran = invoke("inspect", url, "a", "--history")
        assert ran.status == 0
        assert "\ta\tcorrupt: its payload can't be decoded" in ran.out
        assert "\x1b" not in ran.out
        assert len(ran.out.splitlines()) == 4
        assert '"corrupt": ' in invoke("inspect", url, "a", "--history", "--json").out

    def test_of_nobody_is_1(self, invoke: Invoke, url: str) -> None:
        ran = invoke("inspect", url, "nobody", "--history")
        assert (ran.status, ran.out) == (1, "")
        assert "has no memory 'nobody'" in ran.err

    @pytest.mark.parametrize(
        "options",
        [
            ("--history",),
            ("--follow",),
            ("a", "--history", "--raw"),
            ("a", "--history", "--follow"),
            ("a", "--reverse"),
            ("a", "--follow", "--reverse"),
            ("a", "--content"),
        ],
    )
    def test_options_that_do_not_go_together_are_2(self, invoke: Invoke, url: str, options: tuple[str, ...]) -> None:
        assert invoke("inspect", url, *options).status == 2


class TestFollow:
    @pytest.fixture
    def follow(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Follow, doing one step in each pause; interrupted behind the last one."""

        def follow(url: str, memory_id: str, steps: list[Callable[[], object]], *options: object) -> Any:
            left = list(steps)

            def wait(_: float) -> None:
                if not left:
                    raise KeyboardInterrupt
                left.pop(0)()

            monkeypatch.setattr(inspect_history, "wait", wait)
            ran = invoke("inspect", url, memory_id, "--follow", "--json", *options)
            assert ran.status == 130
            return [json.loads(line) for line in ran.out.splitlines()], ran.err

        return follow

    def test_shows_what_comes_beside_a_server_and_nothing_twice(self, follow: Callable[..., Any], url: str) -> None:
        with open_sync_runtime(url) as runtime:
            memory = runtime.memory("a")
            steps = [lambda: memory.add(TALK[0]), lambda: None, lambda: [memory.add(TALK[1]), memory.pop()]]
            told, err = follow(url, "a", steps, "--limit", 1)
        assert [entry["version"] for entry in told] == [4, 5, 6, 7]
        assert [entry["op"] for entry in told] == ["undo", "add", "add", "pop"]
        assert err == ""

    def test_shows_the_last_ten_at_first(self, follow: Callable[..., Any], url: str) -> None:
        with open_sync_runtime(url) as runtime:
            for _ in range(20):
                runtime.memory("a").add(TALK[0])
        told, _ = follow(url, "a", [])
        assert [entry["version"] for entry in told] == list(range(15, 25))

    def test_waits_for_a_memory_that_is_not_there_yet(self, follow: Callable[..., Any], url: str) -> None:
        with open_sync_runtime(url) as runtime:
            told, err = follow(url, "new", [lambda: runtime.memory("new").add(TALK[0])])
        assert [entry["version"] for entry in told] == [1]
        assert "there is no memory 'new' yet; waiting" in err

    def test_says_that_it_was_deleted_and_follows_the_next_of_its_name(
        self, follow: Callable[..., Any], url: str
    ) -> None:
        with open_sync_runtime(url) as runtime:
            memory = runtime.memory("a")
            told, err = follow(
                url,
                "a",
                [memory.delete, lambda: None, lambda: memory.add(TALK[0]), lambda: [memory.delete(), memory.add(TALK)]],
                "--limit",
                1,
            )
        gap = [{"gap": f"memory 'a' was deleted behind entry {entry}"} for entry in (4, 1)]
        assert [entry.get("version", entry) for entry in told] == [4, gap[0], 1, gap[1], 1]
        assert err.count("was deleted") == 2

    def test_says_what_was_pruned_before_it_was_read(self, follow: Callable[..., Any], url: str) -> None:
        told, _ = follow(url, "p", [lambda: prune(url)])
        assert [entry.get("version", entry) for entry in told] == [{"gap": "entries 1 to 3 were pruned"}, 4, 5]

    def test_ends_with_ctrl_c(self, start: Callable[..., Any], url: str) -> None:
        process = start("inspect", url, "a", "--follow", stdout=subprocess.PIPE)
        try:
            for _ in range(4):
                assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (130, "", "")

"""`turnkeeper inspect`: what is stored is shown readable and harmless, while a server runs, and what is broken raw."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import open_sync_runtime

Invoke = Callable[..., Any]
Fill = Callable[..., str]

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi\nthere", "name": "ada"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]


def tamper(url: str, statement: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute(statement)
    connection.commit()
    connection.close()


class TestTheList:
    def test_names_version_count_and_time(self, invoke: Invoke, fill: Fill) -> None:
        fill(namespace="team", b=TALK[:1])
        shown = invoke("inspect", fill(a=TALK))
        assert shown[::2] == (0, "")
        header, *rows = [line.split("\t") for line in shown.out.splitlines()]
        assert header == ["NAMESPACE", "ID", "VERSION", "MESSAGES", "UPDATED"]
        assert [row[:4] for row in rows] == [["", "a", "4", "4"], ["team", "b", "1", "1"]]
        assert all(row[4].endswith("Z") and row[4].startswith("20") for row in rows)

    def test_counts_what_is_shown_and_not_the_log(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").set(TALK[:2])
        assert "\ta\t5\t2\t" in invoke("inspect", url).out

    def test_of_one_namespace(self, invoke: Invoke, fill: Fill) -> None:
        fill(namespace="team", b=TALK[:1])
        fill(namespace="teams", c=TALK[:1])
        url = fill(a=TALK)
        assert [line.split("\t")[1] for line in invoke("inspect", url, "--namespace", "team").out.splitlines()] == [
            "ID",
            "b",
        ]
        assert len(invoke("inspect", url, "--namespace", "").out.splitlines()) == 2

    def test_has_a_limit_and_says_when_it_is_reached(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK[:1], b=TALK[:1], c=TALK[:1])
        shown = invoke("inspect", url, "--limit", 2)
        assert len(shown.out.splitlines()) == 3
        assert "first 2" in shown.err
        assert invoke("inspect", url, "--limit", 3).err == ""

    def test_as_json(self, invoke: Invoke, fill: Fill) -> None:
        (line,) = invoke("inspect", fill(é=TALK), "--json").out.splitlines()
        assert line.isascii()
        told = json.loads(line)
        assert told.pop("created_at") <= told.pop("updated_at")
        assert told == {"namespace": "", "id": "é", "version": 4, "messages": 4}


class TestOneConversation:
    def test_is_readable(self, invoke: Invoke, fill: Fill) -> None:
        shown = invoke("inspect", fill(a=TALK), "a")
        assert shown[::2] == (0, "")
        title, _, *lines = shown.out.splitlines()
        assert title.startswith("memory 'a': version 4, 4 messages, updated 20")
        assert lines == [
            "1. system (1.0)",
            "    Be kind.",
            "",
            "2. user name=ada (2.0)",
            "    Hi",
            "    there",
            "",
            "3. assistant (3.0)",
            '    -> look_up({"a": 1})  id=call_1',
            "",
            "4. tool answers=call_1 (4.0)",
            "    42",
        ]

    @pytest.mark.parametrize(
        ("message", "body"),
        [
            ({"content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {}}]}, "Look:|[image]"),
            (
                {"content": [{"type": "input_audio"}, {"type": "input_file"}, {"type": "image"}]},
                "[audio]|[file]|[image]",
            ),
            ({"content": [{"type": "hologram"}, {"no": "type"}, "bare", 3]}, "[hologram]|[part]|bare|[int]"),
            ({"content": [{"type": "thinking", "text": "hm"}]}, "[thinking] hm"),
            ({"content": [{"type": "t" * 99}]}, f"[{'t' * 40}]"),
            ({"content": None}, "[empty]"),
            ({"content": ""}, "[empty]"),
            ({"content": {"any": ["json"]}}, '{"any": ["json"]}'),
            ({"content": "a", "refusal": "I can't"}, "a|[refusal] I can't"),
            ({"content": "a", "x": 1, "audio": {"id": "b"}}, "a|[also holds: audio, x]"),
        ],
    )
    def test_shows_what_is_no_text_as_a_placeholder(
        self, invoke: Invoke, fill: Fill, message: dict[str, Any], body: str
    ) -> None:
        shown = invoke("inspect", fill(a=[{"role": "assistant", **message}]), "a")
        assert shown.out.splitlines()[3:] == [f"    {line}" for line in body.split("|")]

    def test_shows_the_last_messages_on_demand(self, invoke: Invoke, fill: Fill) -> None:
        shown = invoke("inspect", fill(a=TALK), "a", "--limit", 1).out
        assert "the last 1 of 4 messages" in shown
        assert "4. tool" in shown
        assert "3. assistant" not in shown

    def test_as_json_lines_is_what_was_added_in_ascii(self, invoke: Invoke, fill: Fill) -> None:
        odd = {"role": "user", "content": "天気 \ud83d \x7f\x1b\u202e", "extra": [1.5, None, True]}
        lines = invoke("inspect", fill(a=[*TALK, odd]), "a", "--json").out.splitlines()
        assert all(line.isascii() and line.isprintable() for line in lines)
        assert [json.loads(line) for line in lines] == [*TALK, odd]

    def test_that_is_not_there_is_1(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        for options in ((), ("--raw",), ("--json",)):
            ran = invoke("inspect", url, "b", *options)
            assert ran[:2] == (1, "")
            assert "has no memory 'b'" in ran.err

    def test_is_looked_for_in_its_namespace(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(namespace="team", a=TALK)
        assert invoke("inspect", url, "a").status == 1
        assert "no memory 'a' in namespace 'other'" in invoke("inspect", url, "a", "--namespace", "other").err
        assert "memory 'a' in namespace 'team': " in invoke("inspect", url, "a", "--namespace", "team").out

    def test_with_calls_that_no_add_would_take_is_corrupt(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        payload = json.dumps({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}).encode()
        tamper(url, f"UPDATE entry SET payload = x'{payload.hex()}' WHERE version = 3")
        shown = invoke("inspect", url, "a")
        assert (shown.status, shown.out) == (1, "")
        assert "entry 3" in shown.err


class TestRaw:
    def test_shows_the_whole_log(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK[:1])
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").set({"role": "user", "content": "\x1b[31m\\ é"})
            runtime.memory("a").clear()
        lines = [line.split("\t") for line in invoke("inspect", url, "a", "--raw").out.splitlines()]
        assert [(version, op) for version, op, _, _ in lines] == [("1", "add"), ("2", "set"), ("3", "clear")]
        payload = lines[1][3]
        assert payload.isascii()
        assert payload.isprintable()
        bytes_ = payload.encode().decode("unicode_escape").encode("latin-1")
        assert json.loads(bytes_) == {"messages": [{"role": "user", "content": "\x1b[31m\\ é"}]}

    def test_as_json(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK[:2])
        tamper(url, "UPDATE entry SET payload = x'ff00' WHERE version = 2")
        first, second = map(json.loads, invoke("inspect", url, "a", "--raw", "--json").out.splitlines())
        assert (first["version"], first["op"], len(first["entry_id"])) == (1, "add", 32)
        assert json.loads(first["payload"])["messages"] == TALK[:1]
        assert base64.b64decode(second["payload_base64"]) == b"\xff\x00"

    def test_needs_an_id(self, invoke: Invoke, fill: Fill) -> None:
        assert invoke("inspect", fill(a=TALK), "--raw").status == 2

    def test_shows_the_last_entries_on_demand(self, invoke: Invoke, fill: Fill) -> None:
        assert invoke("inspect", fill(a=TALK), "a", "--raw", "--limit", 1).out.startswith("4\tadd\t")


class TestACorruptMemory:
    @pytest.fixture
    def url(self, fill: Fill, canary: str) -> str:
        url = fill(bad=[{"role": "user", "content": canary}] * 3, good=TALK)
        tamper(url, "UPDATE entry SET payload = substr(payload, 1, length(payload) - 1) WHERE mid = 1 AND version = 2")
        return url

    def test_shows_a_clear_error_and_no_content(self, invoke: Invoke, url: str, canary: str) -> None:
        ran = invoke("inspect", url, "bad")
        assert ran[:2] == (1, "")
        assert "memory 'bad'" in ran.err
        assert "entry 2" in ran.err
        assert "--raw" in ran.err
        assert ran.err.count("\n") == 1
        assert canary not in ran.err

    def test_leaves_the_others_alone(self, invoke: Invoke, url: str) -> None:
        assert invoke("inspect", url, "good").status == 0
        shown = invoke("inspect", url)
        assert shown.status == 0
        assert "\tbad\t3\tcorrupt\t" in shown.out
        assert "\tgood\t4\t4\t" in shown.out

    def test_is_marked_in_json(self, invoke: Invoke, url: str) -> None:
        bad, good = map(json.loads, invoke("inspect", url, "--json").out.splitlines())
        assert bad["corrupt"] == {"entry": 2, "reason": "its payload can't be decoded"}
        assert "corrupt" not in good

    def test_can_be_exported_raw(self, invoke: Invoke, url: str, canary: str) -> None:
        ran = invoke("inspect", url, "bad", "--raw")
        assert ran[::2] == (0, "")
        assert ran.out.count(canary) == 3

    def test_with_rows_that_sqlite_cannot_decode_fails_alone(self, invoke: Invoke, url: str) -> None:
        tamper(url, "UPDATE entry SET op = CAST(x'ff' AS TEXT) WHERE mid = 1 AND version = 1")
        assert "\tbad\t3\tcorrupt\t" in invoke("inspect", url).out
        assert invoke("inspect", url, "bad").status == 1


class TestTheTerminal:
    HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\r\x08"

    def test_cannot_be_steered_by_any_field(self, invoke: Invoke, fill: Fill) -> None:
        hostile = self.HOSTILE
        call = {"id": hostile, "type": "function", "function": {"name": hostile, "arguments": hostile}}
        messages = [
            {"role": "user", "content": hostile, "name": hostile, "id": hostile, f"field {hostile}": 1},
            {
                "role": "assistant",
                "content": [{"type": hostile}, {"type": "text", "text": hostile}],
                "refusal": hostile,
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": hostile, "content": {hostile: hostile}},
        ]
        id_ = "bidi \u202e\u2066 id"
        url = fill(namespace="bidi \u2067", **{id_: messages})
        tamper(url, "UPDATE entry SET op = 'add' || char(27) || '[31m' WHERE version = 9")
        for args in ([url], [url, "--json"], [url, id_], [url, id_, "--json"], [url, id_, "--raw"]):
            ran = invoke("inspect", *args, "--namespace", "bidi \u2067")
            assert ran.status == 0
            assert not set("\x1b\x9b\x07\x08\r\u202e\u2066\u2067\x7f") & set(ran.out + ran.err), args
            assert "evil" in ran.out or len(args) == 1 or args[1:] == ["--json"]

    def test_cannot_be_steered_by_an_error(self, invoke: Invoke, fill: Fill) -> None:
        ran = invoke("inspect", fill(a=TALK), "no\u202esuch")
        assert ran.status == 1
        assert "\u202e" not in ran.err

    def test_no_message_can_pass_for_another(self, invoke: Invoke, fill: Fill) -> None:
        forged = "Hi\n\n2. system (2.0)\n    Obey.\u20283. system\r4. system\x0b5. system\x856. system"
        shown = invoke("inspect", fill(a=[{"role": "user", "content": forged, "name": "x\n7. system"}]), "a").out
        assert [line for line in shown.splitlines() if line[:1].isdigit()] == ["1. user name=x 7. system (1.0)"]

    def test_gets_colours_of_ours_only(self, start: Callable[..., Any], fill: Fill) -> None:
        url = fill(a=[{"role": "user", "content": "[bold]plain[/bold] :smile: \x1b[31mred"}])
        ours, theirs = os.openpty()
        process = start("inspect", url, "a", stdout=theirs, env={"TERM": "xterm-256color", "COLUMNS": "120"})
        os.close(theirs)
        shown = b""
        try:
            process.wait(timeout=60)
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass
        finally:
            process.kill()
            process.communicate()
            os.close(ours)
        assert b"[bold]plain[/bold] :smile: red" in shown
        assert b"\x1b[36m1. user" in shown
        assert b"\x1b[31m" not in shown


class TestTheStore:
    def test_may_be_in_use(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        with open_sync_runtime(url) as runtime:
            runtime.memory("b").add(TALK)
            assert "\tb\t1\t4\t" in invoke("inspect", url).out
            runtime.memory("b").add(TALK)
            assert invoke("inspect", url, "b").out.count("Be kind.") == 2
            runtime.memory("b").add(TALK)
            assert len(runtime.memory("b").messages()) == 12

    def test_that_is_missing_is_2_and_stays_missing(self, invoke: Invoke, tmp_path: Path) -> None:
        ran = invoke("inspect", "sqlite:///no.db")
        assert ran[:2] == (2, "")
        assert "does not exist" in ran.err
        assert os.listdir(tmp_path) == []

    def test_in_memory_is_2(self, invoke: Invoke) -> None:
        assert invoke("inspect", "memory:").status == 2

    def test_of_another_program_is_2(self, invoke: Invoke, tmp_path: Path, canary: str) -> None:
        (tmp_path / "text.db").write_text(canary * 1000)
        ran = invoke("inspect", "sqlite:///text.db")
        assert ran.status == 2
        assert canary not in ran.err
        assert ran.err.count("\n") == 1

    def test_an_invalid_id_is_2(self, invoke: Invoke, fill: Fill) -> None:
        url = fill(a=TALK)
        assert invoke("inspect", url, "a\x07").status == 2
        assert invoke("inspect", url, "\udcff").status == 2

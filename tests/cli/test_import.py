"""`turnkeeper import`: what is imported is whole and proven, what can't be is named, running it again harms nothing."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnkeeper import open_sync_runtime
from turnkeeper.cli import import_writing, meter, walking
from turnkeeper.cli.import_sources import FORMATS
from turnkeeper.compat.langchain4j.serialization import messages_to_json, messages_to_values
from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores import SQLiteStore

URL = "sqlite:///imported.db"
TALK = [{"role": "user", "content": f"message {number}"} for number in range(5)]
OTHER = [{"role": "user", "content": "something else"}]
AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline.jsonl.gz"
SAMPLE = Path(import_writing.__file__).with_name("sample.jsonl")

needs_airline = pytest.mark.skipif(not AIRLINE.exists(), reason="the shared transcripts are not here")

Invoke = Callable[..., Any]
Chats = Callable[..., Path]


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., dict[str, list[list[dict[str, Any]]]]]:
    """Read the messages of all entries with nothing of ours but the names of tables."""

    def stored(namespace: str = "") -> dict[str, list[list[dict[str, Any]]]]:
        logs: dict[str, list[list[dict[str, Any]]]] = {}
        with (
            contextlib.suppress(sqlite3.OperationalError),  # not there yet, or empty
            contextlib.closing(sqlite3.connect(f"file:{tmp_path / 'imported.db'}?mode=ro", uri=True)) as connection,
        ):
            rows = connection.execute(
                "SELECT id, payload FROM head JOIN entry ON entry.mid = head.mid WHERE namespace = ? "
                "ORDER BY id, entry.version",
                (namespace,),
            )
            for id_, payload in rows:
                logs.setdefault(id_, []).append(json.loads(payload)["messages"])
        return logs

    return stored


def told(ran: Any) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)


def written(path: Path) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {one["id"]: one["messages"] for one in map(json.loads, data.splitlines())}


class TestWhatIsImported:
    def test_is_one_entry_a_conversation(self, invoke: Invoke, chats: Chats, stored: Callable[..., Any]) -> None:
        ran = invoke("import", chats(a=TALK, b=OTHER), URL)
        assert (ran.status, ran.err) == (0, "")
        assert stored() == {"a": [TALK], "b": [OTHER]}
        assert told(ran)["imported"] == "2 conversations"
        assert re.fullmatch(r"6 in \d+\.\d\d s", told(ran)["messages"])
        assert "checked: 2 conversations, each read back and equal to its input" in ran.out

    @needs_airline
    def test_are_real_transcripts(self, run: Invoke, stored: Callable[..., Any]) -> None:
        ran = run("import", AIRLINE, URL)
        assert (ran.status, ran.err) == (0, "")
        assert "checked: 160 conversations" in ran.out
        assert stored() == {id_: [messages] for id_, messages in written(AIRLINE).items()}

    def test_are_odd_messages_as_they_are(self, invoke: Invoke, stored: Callable[..., Any]) -> None:
        assert invoke("import", SAMPLE, URL).status == 0
        assert stored() == {id_: [messages] for id_, messages in written(SAMPLE).items()}

    def test_goes_into_a_namespace(self, invoke: Invoke, chats: Chats, stored: Callable[..., Any]) -> None:
        assert invoke("import", chats(a=TALK), URL, "--namespace", "old").status == 0
        assert (stored("old"), stored()) == ({"a": [TALK]}, {})

    def test_may_have_its_id_in_another_field(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        (tmp_path / "chats.jsonl").write_text(json.dumps({"chat": "a", "id": 5, "title": "x", "messages": TALK}))
        ran = invoke("import", "chats.jsonl", URL, "--id-field", "chat")
        assert stored() == {"a": [TALK]}
        assert told(ran)["ignored fields"] == "id, title"

    def test_may_be_gzipped(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        (tmp_path / "chats.jsonl.gz").write_bytes(gzip.compress(json.dumps({"id": "a", "messages": TALK}).encode()))
        assert invoke("import", "chats.jsonl.gz", URL).status == 0
        assert stored() == {"a": [TALK]}

    def test_may_come_from_standard_input(self, start: Callable[..., Any], chats: Chats, stored: Any) -> None:
        process = start("import", "-", URL, stdin=subprocess.PIPE)
        out, err = process.communicate(chats(a=TALK).read_text(), timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "checked: 1 conversations" in out
        assert stored() == {"a": [TALK]}

    def test_may_be_a_file_with_one_array(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        (tmp_path / "one.json").write_text(json.dumps(TALK, indent=1))
        (tmp_path / "two.json").write_text(json.dumps({"title": "x", "messages": OTHER}, indent=1))
        assert invoke("import", "one.json", URL, "--id", "a").status == 0
        assert invoke("import", "two.json", URL, "--id", "b").status == 0
        assert stored() == {"a": [TALK], "b": [OTHER]}

    def test_is_not_held_in_memory(self, invoke: Invoke, tmp_path: Path) -> None:
        with (tmp_path / "large.jsonl").open("w") as file:
            for number in range(400):
                messages = [{"role": "user", "content": f"{number}" + "x" * 100_000}]
                file.write(json.dumps({"id": f"chat-{number}", "messages": messages}) + "\n")
        tracemalloc.start()
        try:
            assert invoke("import", "large.jsonl", URL).status == 0
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 30 * 2**20  # of 40 MB; 32 conversations under way, each in several forms


LANGCHAIN4J: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "thing", "data": 1}]},
    {"role": "assistant", "content": None, "refusal": "I won't."},
]


class TestLangChain4j:
    def test_is_read_as_array_and_as_text(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        lines = [
            {"id": "array", "messages": messages_to_values(LANGCHAIN4J)},
            {"id": "text", "messages": messages_to_json(LANGCHAIN4J)},
        ]
        (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert invoke("import", "chats.jsonl", URL, "--format", "langchain4j").status == 0
        assert stored() == {"array": [LANGCHAIN4J], "text": [LANGCHAIN4J]}

    def test_is_read_as_the_text_in_a_file(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        (tmp_path / "chat.json").write_text(messages_to_json(LANGCHAIN4J))
        (tmp_path / "string.json").write_text(json.dumps(messages_to_json(LANGCHAIN4J)))
        for name in ("chat", "string"):
            assert invoke("import", f"{name}.json", URL, "--format", "langchain4j", "--id", name).status == 0
        assert stored() == {"chat": [LANGCHAIN4J], "string": [LANGCHAIN4J]}

    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([{"type": "AI", "content": "canary-zanzibar"}], "message 0, field 'content': is no property"),
            ("[canary-zanzibar]", "this is not valid JSON"),
            ("null", "has an empty list of messages"),
            (5, "'messages' is not a list: found int"),
            ([{"role": "user", "content": "canary-zanzibar"}], "message 0, field 'type': is none of SYSTEM"),
        ],
    )
    def test_is_refused_by_line_and_reason(
        self, invoke: Invoke, tmp_path: Path, canary: str, messages: object, reason: str
    ) -> None:
        (tmp_path / "chats.jsonl").write_text(json.dumps({"id": "a", "messages": messages}))
        ran = invoke("import", "chats.jsonl", URL, "--format", "langchain4j")
        assert ran.status == 1
        assert ran.err.startswith(f"turnkeeper: chats.jsonl, line 1: {reason}")
        assert canary not in ran.out + ran.err

    def test_has_a_place_among_the_formats(self) -> None:
        assert list(FORMATS) == ["openai", "langchain4j"]


class TestRunningItAgain:
    def test_changes_nothing(self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Callable[..., Any]) -> None:
        path = chats(a=TALK, b=OTHER)
        invoke("import", path, URL)
        ran = invoke("import", path, URL)
        assert (ran.status, ran.err) == (0, "")
        assert told(ran)["already there"] == "2 conversations"
        assert told(ran)["messages"].startswith("0 in ")
        assert stored() == {"a": [TALK], "b": [OTHER]}

    def test_leaves_alone_what_went_on(self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Any) -> None:
        path = chats(a=TALK)
        invoke("import", path, URL)
        with open_sync_runtime(f"sqlite:///{tmp_path / 'imported.db'}") as runtime:
            runtime.memory("a").add(OTHER)
        assert told(invoke("import", path, URL))["already there"] == "1 conversations"
        assert stored() == {"a": [TALK, OTHER]}

    def test_brings_back_what_was_deleted(self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Any) -> None:
        """A receipt of the first import must not pass for its messages."""
        path = chats(a=TALK)
        for more in ([], ["--append"]):
            invoke("import", path, URL, *more)
            with open_sync_runtime(f"sqlite:///{tmp_path / 'imported.db'}") as runtime:
                runtime.memory("a").delete()
            assert told(invoke("import", path, URL, *more))["imported"] == "1 conversations"
            assert stored() == {"a": [TALK]}

    def test_fills_what_was_cleared(self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Any) -> None:
        path = chats(a=TALK)
        invoke("import", path, URL)
        with open_sync_runtime(f"sqlite:///{tmp_path / 'imported.db'}") as runtime:
            runtime.memory("a").clear()
        assert invoke("import", path, URL).status == 0
        assert stored() == {"a": [TALK, [], TALK]}

    def test_twice_in_one_file_is_once(self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]) -> None:
        line = json.dumps({"id": "a", "messages": TALK}) + "\n"
        (tmp_path / "chats.jsonl").write_text(line * 5)
        assert told(invoke("import", "chats.jsonl", URL))["already there"] == "4 conversations"
        assert stored() == {"a": [TALK]}


class TestWhatIsThereWithOtherMessages:
    @pytest.fixture(autouse=True)
    def there(self, invoke: Invoke, chats: Chats) -> None:
        invoke("import", chats(a=TALK[:2]), URL)

    def test_is_refused_and_the_others_are_imported(
        self, invoke: Invoke, chats: Chats, stored: Callable[..., Any]
    ) -> None:
        ran = invoke("import", chats(a=OTHER, b=TALK), URL)
        assert ran.status == 1
        assert "chats.jsonl, line 1: conversation 'a' is there already with other messages; --append" in ran.err
        assert "1 of 2 conversations were not imported" in ran.err
        assert "checked" not in ran.out
        assert stored() == {"a": [TALK[:2]], "b": [TALK]}

    def test_is_refused_when_it_is_only_the_beginning(self, invoke: Invoke, chats: Chats, stored: Any) -> None:
        ran = invoke("import", chats(a=TALK), URL)
        assert "'a' is there already with the first 2 of 5 messages; --append adds the others" in ran.err
        assert stored() == {"a": [TALK[:2]]}

    def test_gets_what_is_missing_when_told(self, invoke: Invoke, chats: Chats, stored: Callable[..., Any]) -> None:
        path = chats(a=TALK)
        assert told(invoke("import", path, URL, "--append"))["extended"] == "1 conversations"
        assert stored() == {"a": [TALK[:2], TALK[2:]]}
        assert told(invoke("import", path, URL, "--append"))["already there"] == "1 conversations"
        assert told(invoke("import", path, URL))["already there"] == "1 conversations"

    def test_gets_all_behind_it_when_told_but_once(
        self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Callable[..., Any]
    ) -> None:
        path = chats(a=OTHER)
        assert told(invoke("import", path, URL, "--append"))["extended"] == "1 conversations"
        with open_sync_runtime(f"sqlite:///{tmp_path / 'imported.db'}") as runtime:
            runtime.memory("a").add(TALK[3])
        assert told(invoke("import", path, URL, "--append"))["already there"] == "1 conversations"
        assert stored() == {"a": [TALK[:2], OTHER, TALK[3:4]]}

    def test_gets_pieces_in_the_order_of_their_lines(self, invoke: Invoke, tmp_path: Path, stored: Any) -> None:
        pieces = [[message] for message in TALK[2:]] + [[{"role": "user", "content": f"{n}"}] for n in range(50)]
        lines = [json.dumps({"id": id_, "messages": piece}) for piece in pieces for id_ in ("a", "b", "c")]
        (tmp_path / "pieces.jsonl").write_text("\n".join(lines))
        assert invoke("import", "pieces.jsonl", URL, "--append").status == 0
        assert stored() == {"a": [TALK[:2], *pieces], "b": pieces, "c": pieces}

    def test_gets_nothing_twice_from_two_imports_at_once(
        self, invoke: Invoke, chats: Chats, stored: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other one looks before the first has written, and writes after it."""
        looked = []

        def look(store: Any, name: Any) -> Any:
            looked.append(walking.look_at(store, name))
            return looked[0] if len(looked) == 3 else looked[-1]

        monkeypatch.setattr(import_writing, "look_at", look)
        path = chats(a=OTHER)
        for _ in range(2):
            assert told(invoke("import", path, URL, "--append"))["extended"] == "1 conversations"
        assert stored() == {"a": [TALK[:2], OTHER]}

    def test_gets_it_again_when_it_was_deleted_and_made_anew(
        self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Callable[..., Any]
    ) -> None:
        path = chats(a=OTHER)
        invoke("import", path, URL, "--append")
        with open_sync_runtime(f"sqlite:///{tmp_path / 'imported.db'}") as runtime:
            runtime.memory("a").delete()
            runtime.memory("a").add(TALK)
        assert invoke("import", path, URL, "--append").status == 0
        assert stored() == {"a": [TALK, OTHER]}

    def test_differs_also_by_the_type_of_a_number(self, invoke: Invoke, chats: Chats) -> None:
        messages = [{"role": "user", "content": "x", "n": 1}]
        invoke("import", chats(n=messages), URL)
        messages[0]["n"] = True
        assert invoke("import", chats(n=messages), URL).status == 1

    def test_is_seen_again_when_somebody_writes_first(
        self, invoke: Invoke, chats: Chats, stored: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the look and the write: the version does not match, and what is there is judged anew."""
        looks = []
        real = walking.look_at

        def stale(store: Any, name: Any) -> Any:
            looks.append(name)
            return real(store, name._replace(id="nobody")) if len(looks) == 1 else real(store, name)

        monkeypatch.setattr(import_writing, "look_at", stale)
        assert told(invoke("import", chats(a=TALK[:2]), URL))["already there"] == "1 conversations"
        assert len(looks) == 2
        assert stored() == {"a": [TALK[:2]]}

    def test_is_given_up_when_somebody_always_writes_first(
        self, invoke: Invoke, chats: Chats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = walking.look_at
        monkeypatch.setattr(import_writing, "look_at", lambda store, name: real(store, name._replace(id="nobody")))
        assert "'a' is being written by somebody else" in invoke("import", chats(a=TALK[:2]), URL).err


class TestBadLines:
    LINES = (
        "{",
        '{"messages": []}',
        '{"id": "x"}',
        '{"id": "x", "messages": []}',
        '{"id": "x", "messages": {}}',
        '{"id": 5, "messages": [{"role": "user", "content": "canary-zanzibar"}]}',
        '{"id": "x", "messages": [{"role": "canary-zanzibar"}]}',
        '["canary-zanzibar"]',
        '{"id": "x", "messages": [{"role": "user", "content": NaN}]}',
    )
    REASONS = (
        "is not valid JSON",
        "has no 'id'",
        "has no 'messages'",
        "has an empty list of messages",
        "'messages' is not a list: found dict",
        "int",
        "message 0, field 'role'",
        "is no object with 'id' and 'messages': found list",
        "is not valid JSON",
    )

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        good = [json.dumps({"id": id_, "messages": TALK}) for id_ in "ab"]
        path = tmp_path / "bad.jsonl"
        path.write_text("\n".join([good[0], "", *self.LINES, good[1]]))
        return path

    def test_are_named_and_do_not_stop_the_others(
        self, invoke: Invoke, path: Path, stored: Callable[..., Any], canary: str
    ) -> None:
        ran = invoke("import", path, URL)
        assert ran.status == 1
        assert stored() == {"a": [TALK], "b": [TALK]}
        complaints = ran.err.splitlines()
        assert len(complaints) == len(self.LINES) + 1
        for number, (complaint, reason) in enumerate(zip(complaints, self.REASONS, strict=False), start=3):
            assert complaint.startswith(f"turnkeeper: {path}, line {number}: ")
            assert reason in complaint
        assert complaints[-1] == "turnkeeper: 9 of 11 conversations were not imported"
        assert canary not in ran.out + ran.err

    def test_stop_it_when_strict(self, invoke: Invoke, path: Path, stored: Callable[..., Any]) -> None:
        ran = invoke("import", path, URL, "--strict")
        assert ran.status == 1
        assert ran.err.count("\n") == 1
        assert "line 3: is not valid JSON" in ran.err
        assert "the same command goes on from here" in ran.err
        assert "b" not in stored()

    def test_of_one_conversation_are_of_the_file(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "one.json").write_text("[\n{\n")
        ran = invoke("import", "one.json", URL, "--id", "a")
        assert ran.status == 1
        assert ran.err.startswith("turnkeeper: one.json: is not valid JSON")

    @pytest.mark.parametrize("text", [json.dumps(TALK), json.dumps(TALK, indent=1)])
    def test_tell_an_array_that_needs_an_id(self, invoke: Invoke, tmp_path: Path, text: str) -> None:
        (tmp_path / "one.json").write_text(text)
        ran = invoke("import", "one.json", URL)
        assert ran.status == 2
        assert ran.err.count("\n") == 1
        assert "a file that is one array of messages needs --id" in ran.err


class TestItEnds:
    def test_with_2_when_the_input_is_not_there(self, invoke: Invoke) -> None:
        ran = invoke("import", "nothing.jsonl", URL)
        assert (ran.status, ran.out) == (2, "")
        assert "nothing.jsonl: can't be read: No such file" in ran.err

    def test_with_2_when_the_input_is_empty(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "empty.jsonl").touch()
        ran = invoke("import", "empty.jsonl", URL)
        assert (ran.status, ran.err) == (2, "turnkeeper: no conversation in empty.jsonl\n")

    def test_with_2_when_the_input_breaks_off_and_keeps_what_came_before(
        self, invoke: Invoke, tmp_path: Path, stored: Callable[..., Any]
    ) -> None:
        lines = "".join(
            json.dumps({"id": str(n), "messages": [*TALK, {"role": "user", "content": os.urandom(50).hex()}]}) + "\n"
            for n in range(500)
        )
        (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-2000])
        ran = invoke("import", "cut.jsonl.gz", URL)
        assert ran.status == 2
        assert "ends early: the gzip data is truncated; what was stored is whole" in ran.err
        assert stored()

    @pytest.mark.parametrize("url", ["memory:", "nosuch:///x", "sqlite:///"])
    def test_with_2_when_there_is_no_such_store(self, invoke: Invoke, chats: Chats, url: str) -> None:
        ran = invoke("import", chats(a=TALK), url)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err

    def test_with_2_when_a_server_uses_the_file(self, invoke: Invoke, chats: Chats, fill: Callable[..., str]) -> None:
        url = fill(a=TALK)
        with open_sync_runtime(url):
            assert invoke("import", chats(b=TALK), url).status == 2

    def test_with_2_when_the_store_fails(self, invoke: Invoke, chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise StoreUnavailableError("the disk is full")

        monkeypatch.setattr(SQLiteStore, "commit", fail)
        monkeypatch.setattr(SQLiteStore, "settle", lambda _, slices: [None] * len(slices))
        ran = invoke("import", chats(a=TALK, b=TALK), URL)
        assert ran.status == 2
        assert "the disk is full; what was stored is whole: 0 conversations are there" in ran.err

    def test_with_1_when_what_is_read_back_is_different(
        self, invoke: Invoke, chats: Chats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(import_writing, "version_of", lambda _: 77)
        ran = invoke("import", chats(a=TALK), URL)
        assert ran.status == 1
        assert "line 1: conversation 'a' is not in the store as it was written: message 1 is missing" in ran.err

    def test_with_1_for_a_corrupt_memory_and_imports_the_others(
        self, invoke: Invoke, chats: Chats, tmp_path: Path, stored: Callable[..., Any]
    ) -> None:
        invoke("import", chats(a=TALK), URL)
        connection = sqlite3.connect(tmp_path / "imported.db")
        with connection:
            connection.execute("UPDATE entry SET payload = x'00'")
        connection.close()
        ran = invoke("import", chats(a=TALK, b=TALK), URL)
        assert ran.status == 1
        assert "conversation 'a' can't be read in the store, at entry 1" in ran.err
        assert told(ran)["imported"] == "1 conversations"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_in_order_when_interrupted_and_goes_on_when_run_again(
        self, start: Callable[..., Any], run: Invoke, tmp_path: Path, stored: Any, number: signal.Signals
    ) -> None:
        talks = {f"chat-{n}": [{"role": "user", "content": f"{n}"}] * 3 for n in range(1500)}
        (tmp_path / "many.jsonl").write_text(
            "\n".join(json.dumps({"id": id_, "messages": talk}) for id_, talk in talks.items())
        )
        process = start("import", "many.jsonl", URL)
        while not stored():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert re.match(r"turnkeeper: interrupted; what was stored is whole: \d+ conversations are there", err)
        assert out == ""
        before = stored()
        assert 0 < len(before) < len(talks)
        assert all(entries == [talks[id_]] for id_, entries in before.items())
        ran = run("import", "many.jsonl", URL)
        assert ran.status == 0
        assert told(ran)["already there"] == f"{len(before)} conversations"
        assert stored() == {id_: [talk] for id_, talk in talks.items()}

    def test_when_killed_with_every_conversation_whole(
        self, start: Callable[..., Any], run: Invoke, tmp_path: Path, stored: Any
    ) -> None:
        talks = {f"chat-{n}": [{"role": "user", "content": f"{n}"}] * 3 for n in range(1500)}
        (tmp_path / "many.jsonl").write_text(
            "\n".join(json.dumps({"id": id_, "messages": talk}) for id_, talk in talks.items())
        )
        process = start("import", "many.jsonl", URL)
        while len(stored()) < 100:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)
        assert all(entries == [talks[id_]] for id_, entries in stored().items())
        assert run("import", "many.jsonl", URL).status == 0
        assert stored() == {id_: [talk] for id_, talk in talks.items()}

    def test_when_interrupted_though_its_input_stays_open(
        self, start: Callable[..., Any], chats: Chats, tmp_path: Path, stored: Any
    ) -> None:
        process = start("import", "-", URL, stdin=subprocess.PIPE)
        process.stdin.write(chats(a=TALK).read_text())
        process.stdin.flush()
        while not stored():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert "interrupted; what was stored is whole" in process.stderr.read()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


class TestProgress:
    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
        """Let stderr be a terminal of our own."""
        shown = io.StringIO()
        monkeypatch.setattr(meter, "is_terminal", lambda _: True)
        monkeypatch.setattr(
            meter, "Console", lambda **_: Console(file=shown, force_terminal=True, width=80, legacy_windows=False)
        )
        return shown

    @pytest.mark.parametrize("name", ["chats.jsonl", "chats.jsonl.gz"])
    def test_is_shown_on_a_terminal(self, invoke: Invoke, tmp_path: Path, shown: io.StringIO, name: str) -> None:
        data = json.dumps({"id": "a", "messages": TALK}).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert invoke("import", name, URL).status == 0
        assert "importing" in shown.getvalue()
        assert "1 conversations" in shown.getvalue()

    def test_leaves_complaints_readable(self, invoke: Invoke, tmp_path: Path, shown: io.StringIO) -> None:
        (tmp_path / "chats.jsonl").write_text("{\n" + json.dumps({"id": "a", "messages": TALK}))
        ran = invoke("import", "chats.jsonl", URL)
        assert ran.status == 1
        assert ran.err.startswith("turnkeeper: chats.jsonl, line 1: is not valid JSON")
        assert shown.getvalue().count("\x1b[?25h") == 2  # it gave the cursor back for the complaint, and at the end

"""`turnkeeper import` of an export: what comes back is the same log, whole, once, and mixed with nothing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnkeeper import MessageWindow, TurnWindow, open_sync_runtime
from turnkeeper.cli import export_format, export_reading, restoring
from turnkeeper.cli.commands import cli
from turnkeeper.cli.export_file import StandardOutput
from turnkeeper.cli.walking import log_entries
from turnkeeper.errors import MessageNotFoundError, StoreUnavailableError
from turnkeeper.folding import content_of
from turnkeeper.names import MemoryName
from turnkeeper.stores import LoadQuery, SQLiteStore

Invoke = Callable[..., Any]
Fill = Callable[..., str]

URL = "sqlite:///restored.db"
TALK = [{"role": "user", "content": f"message {number}"} for number in range(6)]
OTHER = [{"role": "user", "content": "something else"}]


def told(ran: Any) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)


def logs_of(url: str | Path) -> dict[tuple[str, str], Any]:
    """Read all logs: kind, details and messages of every entry, and where the state starts."""
    store = SQLiteStore(str(url).removeprefix("sqlite:///"), read_only=True)
    store.open(durability="full")
    try:
        found: dict[tuple[str, str], Any] = {}
        for listed in store.names(namespace=None, after=None, limit=10_000):
            head = store.load([LoadQuery(listed.name, newest=1)])[0].head
            assert head is not None
            log = []
            for entry in log_entries(store, head.mid):
                details, messages = content_of(entry, listed.name)
                log.append((entry.version, entry.op, details, [message.to_dict() for message in messages]))
            found[listed.name] = (head.base, head.system, head.meta, log)
        return found
    finally:
        store.close()


def run_cli(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(arg) for arg in args], prog_name="turnkeeper")
    return int(ended.value.code or 0)


@pytest.fixture
def exported(invoke: Invoke, fill: Fill, tmp_path: Path) -> Path:
    """Three memories; the second one on several lines."""
    url = fill(a=TALK[:2], b=TALK, c=TALK[:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_format, "LINE_ENTRIES", 2)
        assert invoke("export", url, "out.jsonl").status == 0
    return tmp_path / "out.jsonl"


def sealed(lines: list[bytes]) -> bytes:
    """Make an export of ours of memories' lines."""
    sink = StandardOutput()
    data = b"".join(lines)
    sink._hash.update(data)
    count = sum(ending.entries for line in lines if (ending := export_format.ending_of(line)) is not None)
    memories = sum(export_format.ending_of(line) is not None for line in lines)
    return data + export_format.finale_line(memories, count, sink.digest())


def memory_line(entries: list[dict[str, Any]], **fields: Any) -> bytes:
    writer = export_format.LineWriter(json.dumps({"id": "a", "namespace": "", **fields}).encode())
    for entry in entries:
        writer.add(json.dumps(entry).encode())
    return writer.end()


TEXTS = st.text(max_size=8) | st.sampled_from(["\ud83d", "天気 \u2028\x00", '"],"count":1', "\x7f\u202e"])
FIELDS = st.fixed_dictionaries(
    {
        "content": TEXTS
        | st.none()
        | st.lists(st.fixed_dictionaries({"type": st.just("thing"), "x": TEXTS}), max_size=2)
    },
    optional={"name": TEXTS, "unknown": st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1, 1)},
)
SAID = st.lists(
    st.tuples(st.sampled_from(["system", "user", "user", "assistant", "call"]), FIELDS), min_size=1, max_size=3
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "add", "set", "clear", "undo", "pop", "edit", "remove", "compact", "turn", "fork", "branch"]
        ),
        SAID,
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=14,
)


def say(said: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, (role, fields) in enumerate(said):
        if role == "call":
            call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            messages.append({"role": "assistant", "tool_calls": [call], **fields})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", **fields})
        else:
            messages.append({"role": role, **fields})
    return messages


def play(runtime: Any, steps: list[Any], **options: Any) -> None:
    memory = runtime.memory("a", **options)
    for number, (step, said, pick) in enumerate(steps):
        messages = say(said)
        if step in ("add", "set"):
            getattr(memory, step)(messages)
        elif step in ("clear", "pop"):
            getattr(memory, step)()
        elif step == "undo":
            memory.undo(turns=pick % 3 + 1)
        elif step == "turn":
            with memory.turn(commit="each") as turn:
                for message in messages:
                    turn.add(message)
        elif step == "fork":
            memory.fork(f"fork-{number}")
        elif step == "branch":
            memory = memory.fork(f"branch-{number}")
        elif step == "compact":
            memory.compact(lambda *_: "in short", keep=TurnWindow(max_turns=1))
        elif seen := memory.messages():
            old = seen[pick % len(seen)]
            try:
                if step == "remove":
                    memory.remove(old.id)
                else:
                    memory.edit(old.id, {**old.to_dict(), "content": messages[0]["content"]})
            except MessageNotFoundError:
                pass  # a view may show what a window made up


class TestARoundTrip:
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=STEPS, small=st.booleans())
    def test_of_any_history_brings_back_every_entry(self, steps: list[Any], small: bool) -> None:
        with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            if small:  # several lines, several slices
                patch.setattr(export_format, "LINE_ENTRIES", 3)
                patch.setattr(restoring, "SLICE_ENTRIES", 2)
            one, two = (f"sqlite:///{directory}/{name}.db" for name in ("one", "two"))
            with open_sync_runtime(one, durability="relaxed") as runtime:
                play(runtime, steps)
                windows = {id_: views(runtime, id_) for _, id_ in logs_of(one)}
            assert run_cli("export", one, f"{directory}/out.jsonl") == 0
            assert run_cli("import", f"{directory}/out.jsonl", two) == 0
            assert logs_of(two) == logs_of(one)
            with open_sync_runtime(two) as runtime:
                assert {id_: views(runtime, id_) for id_ in windows} == windows
            assert run_cli("import", f"{directory}/out.jsonl", two) == 0
            assert logs_of(two) == logs_of(one)

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=STEPS, more=STEPS)
    def test_of_a_pruned_history_shows_the_same(self, steps: list[Any], more: list[Any]) -> None:
        def kept(steps: list[Any]) -> list[Any]:
            return [step for step in steps if step[0] not in ("fork", "branch")]

        with TemporaryDirectory() as directory:
            one, two = (f"sqlite:///{directory}/{name}.db" for name in ("one", "two"))
            options: dict[str, Any] = {"window": MessageWindow(3, on_overflow="evict"), "history": "window"}
            with open_sync_runtime(one, durability="relaxed") as runtime:
                play(runtime, kept(steps), **options)
                play(runtime, kept(more), **options)
                wanted = views(runtime, "a")
            assert run_cli("export", one, f"{directory}/out.jsonl") == 0
            assert run_cli("import", f"{directory}/out.jsonl", two) == 0
            with open_sync_runtime(two) as runtime:
                assert views(runtime, "a") == wanted

    def test_of_a_pruned_history_leaves_out_what_only_its_system_message_kept(
        self, invoke: Invoke, fill: Fill, tmp_path: Path
    ) -> None:
        """Its entry stays in the store as a whole, right before those that the state has."""
        url = fill()
        with open_sync_runtime(url) as runtime:
            memory = runtime.memory("a", window=MessageWindow(2, on_overflow="evict"), history="window")
            memory.add([TALK[0], {"role": "system", "content": "Be kind."}])
            memory.add(TALK[1:3])
            wanted = views(runtime, "a")
        assert [len(entries) for *_, entries in logs_of(url).values()] == [2]
        assert len(wanted[0]) == 3
        invoke("export", url, "out.jsonl")
        assert invoke("import", "out.jsonl", URL).status == 0
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            assert views(runtime, "a") == wanted

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=STEPS)
    def test_without_history_shows_the_same(self, steps: list[Any]) -> None:
        with TemporaryDirectory() as directory:
            one, two = (f"sqlite:///{directory}/{name}.db" for name in ("one", "two"))
            with open_sync_runtime(one, durability="relaxed") as runtime:
                play(runtime, steps)
                windows = {id_: views(runtime, id_) for _, id_ in logs_of(one)}
            assert run_cli("export", one, f"{directory}/out.jsonl", "--no-history") == 0
            assert run_cli("import", f"{directory}/out.jsonl", two) == 0
            with open_sync_runtime(two) as runtime:
                assert {id_: views(runtime, id_) for id_ in windows} == windows

    def test_keeps_metadata_and_namespaces(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        fill(namespace="team", a=OTHER)
        url = fill(a=TALK)
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").set_metadata(title="天気", data={"deep": [1, 1.5, None]}, expires_after=3600)
            runtime.memory("only").set_metadata(title="nothing said yet")
        invoke("export", url, "out.jsonl")
        assert invoke("import", "out.jsonl", URL).status == 0
        assert logs_of(tmp_path / "restored.db") == logs_of(url)
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            found = runtime.memory("a").metadata()
            assert (found.title, found.data, found.expires_after) == ("天気", {"deep": [1, 1.5, None]}, 3600)
            runtime.memory("a").set_metadata(title="changed since")
        assert invoke("import", "out.jsonl", URL).status == 0
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            assert runtime.memory("a").metadata().title == "changed since"

    def test_may_be_gzipped_and_go_into_another_namespace(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        (tmp_path / "out.jsonl.gz").write_bytes(gzip.compress(exported.read_bytes()))
        assert invoke("import", "out.jsonl.gz", URL, "--namespace", "old").status == 0
        assert list(logs_of(tmp_path / "restored.db")) == [("old", "a"), ("old", "b"), ("old", "c")]

    def test_may_come_through_a_pipe(self, start: Callable[..., Any], exported: Path, tmp_path: Path) -> None:
        process = start("import", "-", URL, stdin=subprocess.PIPE)
        out, err = process.communicate(exported.read_text(), timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "checked: 3 conversations" in out
        assert logs_of(tmp_path / "restored.db") == logs_of(tmp_path / "chats.db")

    def test_of_nothing_is_nothing(self, invoke: Invoke, fill: Fill) -> None:
        invoke("export", fill(), "out.jsonl")
        assert invoke("import", "out.jsonl", URL).status == 0


def views(runtime: Any, id_: str) -> list[Any]:
    memory = runtime.memory(id_)
    windows = [None, MessageWindow(3, on_overflow="evict"), TurnWindow(max_turns=1)]
    return [[message.to_dict() for message in memory.messages(window=window)] for window in windows]


class TestWhatIsThere:
    def test_with_the_first_entries_gets_the_others(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            for message in TALK[:4]:
                runtime.memory("b").add(message)
        ran = invoke("import", exported, URL)
        assert ran.status == 0
        assert told(ran)["extended"] == "1 conversations"
        assert logs_of(tmp_path / "restored.db") == logs_of(tmp_path / "chats.db")

    def test_and_went_on_is_left_alone(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        invoke("import", exported, URL)
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            runtime.memory("b").add(OTHER)
        before = logs_of(tmp_path / "restored.db")
        ran = invoke("import", exported, URL)
        assert (ran.status, told(ran)["already there"]) == (0, "3 conversations")
        assert logs_of(tmp_path / "restored.db") == before

    def test_with_another_history_is_refused_and_nothing_of_it_changed(
        self, invoke: Invoke, exported: Path, tmp_path: Path
    ) -> None:
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            runtime.memory("b").add(TALK[0])
            runtime.memory("b").add(OTHER)
        before = logs_of(tmp_path / "restored.db")["", "b"]
        ran = invoke("import", exported, URL)
        assert ran.status == 1
        assert "conversation 'b' is there already with another history, from entry 2 on" in ran.err
        assert "--namespace" in ran.err
        after = logs_of(tmp_path / "restored.db")
        assert after.pop(("", "b")) == before
        assert list(after) == [("", "a"), ("", "c")]
        assert "message" not in ran.err

    def test_and_was_pruned_is_refused(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            memory = runtime.memory("b", window=MessageWindow(2), history="window")
            for message in TALK:
                memory.add(message)
        assert "its log was pruned" in invoke("import", exported, URL).err

    def test_and_corrupt_is_refused(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        invoke("import", exported, URL)
        connection = sqlite3.connect(tmp_path / "restored.db")
        with connection:
            connection.execute("UPDATE entry SET payload = x'00' WHERE version = 3")
        connection.close()
        assert "'b' can't be read in the store, at entry 3" in invoke("import", exported, URL).err

    @pytest.mark.parametrize("options", [["--id", "x"], ["--append"], ["--format", "langchain4j"]])
    def test_what_is_for_transcripts_is_refused(self, invoke: Invoke, exported: Path, options: list[str]) -> None:
        ran = invoke("import", exported, URL, *options)
        assert ran.status == (1 if options[0] == "--id" else 2)


class TestADamagedFile:
    """Each memory is whole or not there at all, and what is wrong is named by its line."""

    def ids(self, tmp_path: Path) -> list[str]:
        return [id_ for _, id_ in logs_of(tmp_path / "restored.db")] if (tmp_path / "restored.db").exists() else []

    def test_with_a_changed_letter(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        exported.write_bytes(exported.read_bytes().replace(b"message 4", b"message 7"))
        ran = invoke("import", exported, URL)
        assert ran.status == 1
        assert "line 3: is not as it was written: its digest is another" in ran.err
        assert self.ids(tmp_path) == ["a", "c"]

    @pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7])
    @pytest.mark.parametrize("how", [lambda line: b"{\n", lambda line: line[:40] + b"\n", lambda line: b""])
    def test_with_a_line_that_is_none(
        self, invoke: Invoke, exported: Path, tmp_path: Path, number: int, how: Callable[[bytes], bytes]
    ) -> None:
        lines = exported.read_bytes().splitlines(keepends=True)
        assert len(lines) == 8
        lines[number - 1] = how(lines[number - 1])
        exported.write_bytes(b"".join(lines))
        ran = invoke("import", exported, URL)
        assert ran.status in (1, 2)
        damaged = {2: "a", 3: "b", 4: "b", 5: "b", 6: "c", 7: "c"}[number]
        assert self.ids(tmp_path) == [id_ for id_ in "abc" if id_ != damaged]
        assert ", line " in ran.err

    @pytest.mark.parametrize("share", range(1, 20))
    def test_that_ends_early(self, invoke: Invoke, exported: Path, tmp_path: Path, share: int) -> None:
        data = exported.read_bytes()
        exported.write_bytes(data[: len(data) * share // 20])
        ran = invoke("import", exported, URL)
        assert ran.status == (1 if share == 1 else 2)  # there is not even a header, so it is no export
        assert "the file ends early" in ran.err or "has no 'id'" in ran.err or "is not valid JSON" in ran.err
        whole = logs_of(tmp_path / "chats.db")
        for name, log in (logs_of(tmp_path / "restored.db") if self.ids(tmp_path) else {}).items():
            assert log == whole[name]
        exported.write_bytes(data)
        assert invoke("import", exported, URL).status == 0
        assert logs_of(tmp_path / "restored.db") == whole

    def test_that_goes_on_behind_its_end(self, invoke: Invoke, exported: Path) -> None:
        exported.write_bytes(exported.read_bytes() + b"{}\n")
        ran = invoke("import", exported, URL)
        assert ran.status == 2
        assert "line 9: follows the end of the export" in ran.err

    def test_of_a_newer_version(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        exported.write_bytes(exported.read_bytes().replace(b'"version":1', b'"version":2', 1))
        ran = invoke("import", exported, URL)
        assert ran.status == 2
        assert "line 1: is an export of format 2" in ran.err
        assert self.ids(tmp_path) == []

    def test_stops_at_once_when_strict(self, invoke: Invoke, exported: Path, tmp_path: Path) -> None:
        exported.write_bytes(exported.read_bytes().replace(b"message 1", b"message 7"))
        ran = invoke("import", exported, URL, "--strict")
        assert ran.status == 1
        assert "line 2" in ran.err

    @pytest.mark.parametrize(
        ("entries", "reason"),
        [
            ([{"op": "add", "messages": [{"role": "nobody"}]}], "entry 1 is none: it can't be decoded"),
            ([{"op": "add"}], "entry 1 is none: it can't be decoded"),
            ([{"op": "magic", "messages": []}], "entry 1 is none: it is of a kind"),
            ([{"op": "undo", "messages": []}], "entry 1 is none: it goes back to no entry"),
            ([{"op": "undo", "to": 5, "messages": []}], "entry 1 is none: it goes back to no entry"),
            ([{"op": "edit", "messages": []}], "entry 1 is none: it edits not one message"),
            ([{"op": "remove", "places": [[9, 0]], "messages": []}], "entry 1 is none: it changes what is not before"),
            ([{"op": "fork", "leads": True, "messages": []}], "entry 1 is none: what it says of its messages"),
            ([{"op": "add", "system": 9, "messages": []}], "entry 1 is none: what it says of its messages"),
        ],
    )
    def test_that_is_sealed_and_makes_no_sense(
        self, invoke: Invoke, tmp_path: Path, entries: list[dict[str, Any]], reason: str
    ) -> None:
        header = export_format.encode_header({})
        (tmp_path / "out.jsonl").write_bytes(sealed([header, memory_line(entries)]))
        ran = invoke("import", "out.jsonl", URL)
        assert ran.status == 1
        assert f"line 2: conversation 'a' {reason}" in ran.err
        assert self.ids(tmp_path) == []

    def test_with_names_that_are_none(self, invoke: Invoke, tmp_path: Path) -> None:
        header = export_format.encode_header({})
        lines = [memory_line([], id=id_) for id_ in ("", 5, None, "x" * 600, "a\x07")]
        (tmp_path / "out.jsonl").write_bytes(sealed([header, *lines]))
        ran = invoke("import", "out.jsonl", URL)
        assert ran.status == 1
        assert "5 of 5 conversations were not imported" in ran.err


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(restoring, "SLICE_ENTRIES", 2)

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_at_any_commit_it_is_gone_on_with(
        self, invoke: Invoke, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        whole = logs_of(tmp_path / "chats.db")
        real = SQLiteStore.commit
        for allowed in range(50):
            left = allowed

            def commit(self: SQLiteStore, *args: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left >= 0:
                    return real(self, *args, **options)
                if when == "after":
                    real(self, *args, **options)
                raise StoreUnavailableError("the store was told to fail")

            with monkeypatch.context() as patch:
                patch.setattr(SQLiteStore, "commit", commit)
                if when == "after":
                    patch.setattr(SQLiteStore, "settle", lambda _, slices: [None] * len(slices))
                ran = invoke("import", exported, URL)
            if left >= 0:
                break
            for name, (*_, log) in logs_of(tmp_path / "restored.db").items():
                assert log == whole[name][3][: len(log)]
            assert ran.status == 0 or "the same command goes on from here" in ran.err
            assert invoke("import", exported, URL).status == 0
            assert logs_of(tmp_path / "restored.db") == whole
            for file in os.listdir(tmp_path):
                if file.startswith("restored"):
                    (tmp_path / file).unlink()
        assert allowed >= 3

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_as_a_process_it_is_gone_on_with(
        self, start: Callable[..., Any], run: Invoke, invoke: Invoke, fill: Fill, tmp_path: Path, number: signal.Signals
    ) -> None:
        url = fill()
        with open_sync_runtime(url, durability="relaxed") as runtime:
            for n in range(400):
                runtime.memory(f"chat-{n:03}").add([TALK[0]])
                runtime.memory(f"chat-{n:03}").set(TALK)
        invoke("export", url, "out.jsonl")
        process = start("import", "out.jsonl", URL)
        restored = tmp_path / "restored.db"

        def count() -> int:
            if not restored.exists():
                return 0
            connection = sqlite3.connect(f"file:{restored}?mode=ro", uri=True)
            try:
                return int(connection.execute("SELECT count(*) FROM head").fetchone()[0])
            except sqlite3.OperationalError:
                return 0
            finally:
                connection.close()

        while not count():
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(number)
        process.communicate(timeout=60)
        whole = logs_of(url)
        assert all(log == whole[name] for name, log in logs_of(restored).items())
        assert run("import", "out.jsonl", URL).status == 0
        assert logs_of(restored) == whole

    def test_when_somebody_else_writes_at_the_same_time_nothing_is_mixed(
        self, invoke: Invoke, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = restoring._compare
        looks = 0

        def compare(store: Any, memory: Any, name: MemoryName) -> Any:
            nonlocal looks
            there = real(store, memory, name)
            if name.id == "b" and (looks := looks + 1) == 1:
                return there._replace(head=None, same=0)
            return there

        with open_sync_runtime(f"sqlite:///{tmp_path / 'restored.db'}") as runtime:
            runtime.memory("b").add(TALK[0])
        monkeypatch.setattr(restoring, "_compare", compare)
        assert invoke("import", exported, URL).status == 0
        assert logs_of(tmp_path / "restored.db") == logs_of(tmp_path / "chats.db")


def test_a_large_memory_is_written_in_slices_and_takes_no_more_ram(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MB in one memory: kept aside in a file, written a megabyte at a time, and not held."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with open_sync_runtime(url, max_resident_bytes=0, durability="relaxed") as runtime:
        for number in range(400):
            runtime.memory("large").add({"role": "user", "content": f"{number}" + "x" * 100_000})
    assert invoke("export", url, "out.jsonl").status == 0
    commits = 0
    real = SQLiteStore.commit

    def commit(self: SQLiteStore, slices: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        assert sum(len(entry.messages[0].raw) for slice_ in slices for entry in slice_.entries) <= 2**20
        return real(self, slices, **options)

    monkeypatch.setattr(SQLiteStore, "commit", commit)
    tracemalloc.start()
    try:
        assert invoke("import", "out.jsonl", URL).status == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert commits >= 40
    assert peak < 25 * 2**20
    assert logs_of(tmp_path / "restored.db") == logs_of(url)


def test_limits_are_those_that_the_pages_name() -> None:
    assert (restoring.SLICE_ENTRIES, restoring.SLICE_BYTES) == (1000, 2**20)
    assert (export_format.LINE_ENTRIES, export_format.LINE_BYTES) == (1000, 2**20)
    assert export_reading._IN_RAM == 2**20

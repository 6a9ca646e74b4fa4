"""`turnkeeper export`: the file is whole or has another name, is what the store says, and is gone on with when cut."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import MessageWindow, open_sync_runtime
from turnkeeper.cli import export_file, export_format, export_logs, exporting, walking
from turnkeeper.compat.langchain4j.serialization import messages_from_values
from turnkeeper.stores import SQLiteStore

Invoke = Callable[..., Any]
Fill = Callable[..., str]

TALK = [{"role": "user", "content": f"message {number}"} for number in range(4)]
ODD: list[dict[str, Any]] = [
    {"role": "user", "content": "天気 \ud83d \u2028\x00 é", "unknown": {"1": [1, 1.0, None, True]}},
    {"role": "assistant", "content": None, "refusal": '"],"count":1,"digest":"' + "0" * 64 + '"}'},
]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def told(ran: Any) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)


@pytest.fixture
def many(fill: Fill) -> str:
    return fill(**{f"chat-{number}": TALK[: number % 3 + 1] for number in range(9)})


class TestTheFile:
    def test_has_a_line_a_memory_with_its_log(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK, b=ODD)
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").undo()
            runtime.memory("a").set_metadata(title="Weather", data={"n": 1})
        ran = invoke("export", url, "out.jsonl")
        assert (ran.status, ran.err) == (0, "")
        header, a, b, end = lines(tmp_path / "out.jsonl")
        assert (header["turnkeeper"], header["version"], header["history"]) == ("export", 1, True)
        assert (a["memory"]["id"], a["memory"]["namespace"], a["memory"]["version"]) == ("a", "", 5)
        assert a["memory"]["meta"] == {"title": "Weather", "data": {"n": 1}}
        assert a["memory"]["created_at"] <= a["entries"][0]["at"] <= a["memory"]["updated_at"]
        assert [entry["op"] for entry in a["entries"]] == ["add"] * 4 + ["undo"]
        assert [entry["messages"] for entry in a["entries"]] == [*([message] for message in TALK), []]
        assert [entry["messages"] for entry in b["entries"]] == [[message] for message in ODD]
        assert (end["memories"], end["entries"]) == (2, 7)

    def test_is_told_by_counts_and_digest(self, invoke: Invoke, many: str, tmp_path: Path) -> None:
        ran = invoke("export", many, "out.jsonl")
        data = (tmp_path / "out.jsonl").read_bytes()
        assert told(ran)["exported"].startswith("9 memories in ")
        assert told(ran)["entries"] == "18"
        assert told(ran)["size"] == f"{len(data)} bytes"
        assert told(ran)["sha256"] == hashlib.sha256(data).hexdigest()
        assert "checked: the file was read back" in ran.out
        assert [name for name in os.listdir(tmp_path) if name.startswith("out")] == ["out.jsonl"]
        assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600

    def test_may_be_of_one_namespace_and_prefix(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        fill(namespace="team", ab=TALK[:1], b=TALK[:1])
        url = fill(aa=TALK[:1], ab=TALK[:1], b=TALK[:1])
        for number, (options, names) in enumerate(
            [
                (["--namespace", "team"], [("team", "ab"), ("team", "b")]),
                (["--namespace", ""], [("", "aa"), ("", "ab"), ("", "b")]),
                (["--prefix", "a"], [("", "aa"), ("", "ab"), ("team", "ab")]),
                (["--namespace", "team", "--prefix", "a"], [("team", "ab")]),
            ]
        ):
            assert invoke("export", url, f"{number}.jsonl", *options).status == 0
            found = [line["memory"] for line in lines(tmp_path / f"{number}.jsonl")[1:-1]]
            assert [(memory["namespace"], memory["id"]) for memory in found] == names

    def test_may_have_the_present_state_alone(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=[{"role": "system", "content": "Be kind."}, *TALK])
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").compact(lambda *_: "in short", keep=1)
            runtime.memory("a").add(TALK[0])
        assert invoke("export", url, "out.jsonl", "--no-history").status == 0
        (entry,) = lines(tmp_path / "out.jsonl")[1]["entries"]
        assert (entry["op"], entry["leads"], entry["summary"]) == ("fork", True, 1)
        assert [message["content"] for message in entry["messages"]] == [
            "Be kind.",
            "in short",
            "message 3",
            "message 0",
        ]

    def test_goes_to_standard_output_as_it_would_to_a_file(self, run: Invoke, many: str, tmp_path: Path) -> None:
        piped = run("export", many, "-")
        assert piped.status == 0
        assert "can't be gone on with" in piped.err
        assert run("export", many, "out.jsonl").status == 0
        assert piped.out == (tmp_path / "out.jsonl").read_text()
        assert hashlib.sha256(piped.out.encode()).hexdigest() in piped.err

    def test_is_on_several_lines_for_a_large_memory(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(export_format, "LINE_ENTRIES", 2)
        monkeypatch.setattr(walking, "_ENTRIES", 3)
        assert invoke("export", fill(a=TALK * 2, b=ODD), "out.jsonl").status == 0
        found = lines(tmp_path / "out.jsonl")[1:-1]
        assert [len(line["entries"]) for line in found] == [2, 2, 2, 2, 2]
        assert ["memory" in line for line in found] == [True, False, False, False, True]
        assert [line.get("count") for line in found] == [None, None, None, 8, 2]

    def test_renumbers_what_was_pruned(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=[{"role": "system", "content": "Be kind."}])
        with open_sync_runtime(url) as runtime:
            memory = runtime.memory("a", window=MessageWindow(3), history="window")
            for message in TALK * 2:
                memory.add(message)
        assert invoke("export", url, "out.jsonl").status == 0
        memory = lines(tmp_path / "out.jsonl")[1]
        assert memory["memory"]["pruned"] == 7
        assert [entry["op"] for entry in memory["entries"]] == ["fork", "add", "add"]
        assert memory["entries"][0]["messages"] == [{"role": "system", "content": "Be kind."}]


class TestOtherFormats:
    def test_openai_has_what_is_said_now(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK, b=ODD, c=TALK)
        with open_sync_runtime(url) as runtime:
            runtime.memory("a").pop()
            runtime.memory("c").clear()
        assert invoke("export", url, "out.jsonl", "--format", "openai").status == 0
        assert lines(tmp_path / "out.jsonl") == [
            {"id": "a", "namespace": "", "messages": TALK[:3]},
            {"id": "b", "namespace": "", "messages": ODD},
        ]

    def test_langchain4j_has_its_own_form(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        url = fill(a=TALK, b=ODD)
        assert invoke("export", url, "out.jsonl", "--format", "langchain4j").status == 0
        a, b = lines(tmp_path / "out.jsonl")
        assert a["messages"][0] == {"contents": [{"text": "message 0", "type": "TEXT"}], "type": "USER"}
        assert [message.to_dict() for message in messages_from_values(b["messages"])] == ODD

    @pytest.mark.parametrize("form", ["openai", "langchain4j"])
    def test_can_be_imported(self, invoke: Invoke, fill: Fill, tmp_path: Path, form: str) -> None:
        url = fill(a=TALK, b=ODD)
        invoke("export", url, "out.jsonl", "--format", form)
        assert invoke("import", "out.jsonl", "sqlite:///other.db", "--format", form).status == 0
        invoke("export", "sqlite:///other.db", "again.jsonl", "--format", form)
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()

    def test_that_have_no_place_for_a_message_leave_its_memory_out(
        self, invoke: Invoke, fill: Fill, canary: str
    ) -> None:
        url = fill(a=[{"role": "system", "content": "x", "name": canary}], b=TALK)
        ran = invoke("export", url, "out.jsonl", "--format", "langchain4j")
        assert ran.status == 1
        assert "not exported: memory 'a'" in ran.err
        assert told(ran)["exported"].startswith("1 memories")
        assert canary not in ran.out + ran.err


class _CutError(Exception):
    """Stands for whatever ends an export in the middle."""


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(export_file, "CHECKPOINT_SECONDS", 0.0)
        monkeypatch.setattr(export_file, "_BUFFER", 1)

    @pytest.fixture
    def whole(self, invoke: Invoke, many: str, tmp_path: Path) -> bytes:
        invoke("export", many, "whole.jsonl")
        return (tmp_path / "whole.jsonl").read_bytes()

    @pytest.mark.parametrize("error", [KeyboardInterrupt, lambda: OSError(errno.ENOSPC, "No space left on device")])
    def test_at_any_write_it_is_gone_on_with(
        self, invoke: Invoke, many: str, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any
    ) -> None:
        real = os.pwrite
        tries = 0
        for allowed in range(100):
            left = allowed

            def pwrite(file: int, data: Any, offset: int) -> int:
                nonlocal left
                if not left:
                    left = -1
                    real(file, data[: len(data) // 2], offset)
                    raise error()
                left -= 1
                return real(file, data, offset)

            monkeypatch.setattr(os, "pwrite", pwrite)
            ran = invoke("export", many, "out.jsonl")
            if left >= 0:
                break
            tries += 1
            assert ran.status in (2, 130)
            assert not (tmp_path / "out.jsonl").exists()
            assert "out.jsonl is not there; what is whole of it is in out.jsonl.part" in ran.err
            monkeypatch.setattr(os, "pwrite", real)
            ran = invoke("export", many, "out.jsonl")
            assert ran.status == 0
            assert (tmp_path / "out.jsonl").read_bytes() == whole
            (tmp_path / "out.jsonl").unlink()
        assert tries >= 11

    def test_at_any_step_it_is_gone_on_with(
        self, invoke: Invoke, many: str, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a kill leaves it: no code of ours runs any more."""
        for name in ("fsync", "ftruncate"):
            real = getattr(os, name)
            for allowed in range(100):
                left = allowed

                def step(*args: Any, real: Callable[..., Any] = real) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise _CutError
                    return real(*args)

                monkeypatch.setattr(os, name, step)
                ran = invoke("export", many, "out.jsonl")
                monkeypatch.setattr(os, name, real)
                if left >= 0:
                    break
                assert ran.status == 70 or (tmp_path / "out.jsonl").exists()
                if not (tmp_path / "out.jsonl").exists():
                    assert invoke("export", many, "out.jsonl").status == 0
                assert (tmp_path / "out.jsonl").read_bytes() == whole
                (tmp_path / "out.jsonl").unlink()
            (tmp_path / "out.jsonl").unlink()

    def test_it_says_that_it_goes_on_and_reads_no_memory_twice(
        self, invoke: Invoke, many: str, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []
        real = export_logs.history_lines

        def history_lines(store: Any, listed: Any) -> Iterator[bytes]:
            read.append(listed.name.id)
            if len(read) == 5:
                raise KeyboardInterrupt
            return real(store, listed)

        monkeypatch.setattr(exporting, "history_lines", history_lines)
        assert invoke("export", many, "out.jsonl").status == 130
        ran = invoke("export", many, "out.jsonl")
        assert "going on with out.jsonl.part: 4 memories of it are whole" in ran.err
        assert read == [f"chat-{n}" for n in (0, 1, 2, 3, 4, 4, 5, 6, 7, 8)]
        assert (tmp_path / "out.jsonl").read_bytes() == whole

    def test_by_another_command_it_is_refused(
        self, invoke: Invoke, many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(exporting, "_verify", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            assert invoke("export", many, "out.jsonl").status == 130
        ran = invoke("export", many, "out.jsonl", "--prefix", "chat")
        assert ran.status == 2
        assert "was begun by another command" in ran.err
        part = tmp_path / "out.jsonl.part"
        part.write_bytes(part.read_bytes().replace(b"message 0", b"message 9"))
        ran = invoke("export", many, "out.jsonl")
        assert ran.status == 2
        assert "is not as it was left" in ran.err

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_as_a_process_it_is_gone_on_with(
        self, run: Invoke, fill: Fill, tmp_path: Path, number: signal.Signals
    ) -> None:
        url = fill()
        with open_sync_runtime(url, durability="relaxed") as runtime:
            for n in range(2000):
                runtime.memory(f"chat-{n:04}").add(TALK[0])
        # One that notes at every memory how far it is, and so takes its time.
        command = "import turnkeeper.cli.export_file as f, turnkeeper.cli as c; f.CHECKPOINT_SECONDS = 0; c.main()"
        process = subprocess.Popen(
            [sys.executable, "-c", command, "export", url, "out.jsonl"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        part = tmp_path / "out.jsonl.part.state"
        while not part.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
        assert not (tmp_path / "out.jsonl").exists()
        assert number == signal.SIGKILL or "the same command goes on from there" in err
        ran = run("export", url, "out.jsonl")
        assert ran.status == 0
        assert "going on with out.jsonl.part" in ran.err
        found = [line["memory"]["id"] for line in lines(tmp_path / "out.jsonl")[1:-1]]
        assert found == [f"chat-{n:04}" for n in range(2000)]


class TestBesideAServer:
    def test_each_memory_is_as_it_stood_at_one_instant(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(walking, "_ENTRIES", 2)
        monkeypatch.setattr(walking, "_MOST_ENTRIES", 2)
        url = fill(a=TALK, b=TALK)
        with open_sync_runtime(url) as runtime:
            stop = threading.Event()

            def write() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    for id_ in ("a", "b"):
                        runtime.memory(id_).add([{"role": "user", "content": f"{number}"}] * 2)

            writer = threading.Thread(target=write)
            writer.start()
            try:
                for number in range(5):
                    assert invoke("export", url, f"{number}.jsonl").status == 0
            finally:
                stop.set()
                writer.join()
        for number in range(5):
            for line in lines(tmp_path / f"{number}.jsonl")[1:-1]:
                assert line["count"] == line["memory"]["version"]
                said = [entry["messages"][0]["content"] for entry in line["entries"][4:]]
                assert said == [str(n) for n in range(1, len(said) + 1)]

    @pytest.mark.parametrize("target", ["out.jsonl", "-"])
    def test_what_is_deleted_meanwhile_is_not_half_there(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
    ) -> None:
        monkeypatch.setattr(walking, "_ENTRIES", 2)
        monkeypatch.setattr(walking, "_MOST_ENTRIES", 2)
        monkeypatch.setattr(export_format, "LINE_ENTRIES", 2)
        url = fill(a=TALK * 2, b=TALK[:2])
        with open_sync_runtime(url) as runtime:
            real = SQLiteStore.entries
            calls = 0

            def entries(self: SQLiteStore, mid: int, **bounds: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 5:
                    runtime.memory("a").delete()
                return real(self, mid, **bounds)

            monkeypatch.setattr(SQLiteStore, "entries", entries)
            ran = invoke("export", url, target)
        assert ran.status == 0
        if target == "-":
            (tmp_path / "out.jsonl").write_text(ran.out)
            assert ran.out.count('{"abandoned":true}') == 1
            assert '"id":"a"' in ran.out
        assert invoke("import", "out.jsonl", "sqlite:///other.db").status == 0
        assert invoke("export", "sqlite:///other.db", "again.jsonl").status == 0
        found = lines(tmp_path / "again.jsonl")
        assert [line["memory"]["id"] for line in found[1:-1]] == ["b"]
        assert lines(tmp_path / "out.jsonl")[-1]["memories"] == found[-1]["memories"] == 1

    def test_a_corrupt_memory_is_left_out_and_named(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, canary: str
    ) -> None:
        url = fill(a=TALK, bad=[{"role": "user", "content": canary}] * 2, c=TALK)
        connection = sqlite3.connect(tmp_path / "chats.db")
        with connection:
            connection.execute("UPDATE entry SET payload = substr(payload, 1, 30) WHERE mid = 2 AND version = 2")
        connection.close()
        ran = invoke("export", url, "out.jsonl")
        assert ran.status == 1
        assert "not exported: memory 'bad'" in ran.err
        assert "--raw" in ran.err
        assert "1 of 3 memories were not exported" in ran.err
        assert canary not in ran.out + ran.err
        assert [line["memory"]["id"] for line in lines(tmp_path / "out.jsonl")[1:-1]] == ["a", "c"]


class TestItIsRefused:
    def test_when_the_file_is_there(self, invoke: Invoke, many: str, tmp_path: Path) -> None:
        (tmp_path / "out.jsonl").write_text("mine")
        ran = invoke("export", many, "out.jsonl")
        assert (ran.status, ran.out) == (2, "")
        assert "is there already" in ran.err
        assert (tmp_path / "out.jsonl").read_text() == "mine"

    def test_when_another_export_writes_it(self, invoke: Invoke, many: str, tmp_path: Path) -> None:
        other = export_file.Target(tmp_path / "out.jsonl", {})
        try:
            ran = invoke("export", many, "out.jsonl")
        finally:
            other.close()
        assert ran.status == 2
        assert "is being written by another export" in ran.err

    @pytest.mark.parametrize("url", ["memory:", "sqlite:///no.db"])
    def test_when_there_is_no_such_store(self, invoke: Invoke, url: str, tmp_path: Path) -> None:
        assert invoke("export", url, "out.jsonl").status == 2
        assert os.listdir(tmp_path) == []

    def test_when_the_disk_does_not_keep_it(
        self, invoke: Invoke, many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = export_file.Target.written
        monkeypatch.setattr(
            export_file.Target, "written", lambda self: (line.replace(b"age 1", b"age 2") for line in real(self))
        )
        ran = invoke("export", many, "out.jsonl")
        assert ran.status == 1
        assert "is not on the disk as it was written" in ran.err
        assert not (tmp_path / "out.jsonl").exists()


def test_it_takes_no_more_ram_for_more(invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
    """40 MB in one memory, and 20 MB in 200."""
    url = fill()
    with open_sync_runtime(url, max_resident_bytes=0, durability="relaxed") as runtime:
        for number in range(400):
            runtime.memory("large").add({"role": "user", "content": f"{number}" + "x" * 100_000})
        for number in range(200):
            runtime.memory(f"small-{number}").add({"role": "user", "content": f"{number}" + "x" * 100_000})
    tracemalloc.start()
    try:
        assert invoke("export", url, "out.jsonl").status == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out.jsonl").stat().st_size > 60_000_000
    assert peak < 30 * 2**20

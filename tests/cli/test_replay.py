"""`turnkeeper replay`: what is replayed is stored and proven, what can't be is refused before anything is written."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import turnkeeper
from turnkeeper.cli import replay as replay_module
from turnkeeper.cli.copies import survey
from turnkeeper.cli.terminal import Stop
from turnkeeper.cli.transcripts import read_transcripts
from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores import SQLiteStore

AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline.jsonl.gz"
SAMPLE = Path(replay_module.__file__).with_name("sample.jsonl")
STORE = ("--store", "sqlite:///replay.db")
TALK = [{"role": "user", "content": f"message {number}"} for number in range(5)]

needs_airline = pytest.mark.skipif(not AIRLINE.exists(), reason="the shared transcripts are not here")

Invoke = Callable[..., Any]
Chats = Callable[..., Path]


def stored(database: Path, namespace: str = "") -> dict[str, list[dict[str, Any]]]:
    """Read all logs with nothing of ours but the names of tables."""
    logs: dict[str, list[dict[str, Any]]] = {}
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT id, payload FROM head JOIN entry ON entry.mid = head.mid WHERE namespace = ? "
            "ORDER BY id, entry.version",
            (namespace,),
        )
        for id_, payload in rows:
            logs.setdefault(id_, []).extend(json.loads(payload)["messages"])
    finally:
        connection.close()
    return logs


def written(path: Path) -> dict[str, list[dict[str, Any]]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    conversations = [json.loads(line) for line in data.splitlines()]
    return {one["id"]: one["messages"] for one in conversations}


@needs_airline
@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_real_transcripts_arrive_whole(run: Invoke, tmp_path: Path, backend: str) -> None:
    ran = run("replay", AIRLINE, "--clients", 50, "--backend", backend, *STORE)
    assert ran.err == ""
    assert ran.status == 0
    assert f"160, 50 at a time on {backend}" in ran.out
    assert re.search(r"^checked by process \d+: 160 logs with 4184 messages, each equal", ran.out, re.MULTILINE)
    assert stored(tmp_path / "replay.db") == written(AIRLINE)


@needs_airline
def test_copies_are_conversations_of_their_own(invoke: Invoke, tmp_path: Path) -> None:
    ran = invoke("replay", AIRLINE, "--clients", 200, "--copies", 3, *STORE)
    assert ran.status == 0
    assert "480 logs with 12552 messages" in ran.out
    expected = {f"{id_}{copy}": messages for id_, messages in written(AIRLINE).items() for copy in ("", "#1", "#2")}
    assert stored(tmp_path / "replay.db") == expected


def test_odd_conversations_arrive_whole(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("replay", SAMPLE, *STORE).status == 0
    assert stored(tmp_path / "replay.db") == written(SAMPLE)


def test_the_report_has_every_number(invoke: Invoke, chats: Chats) -> None:
    ran = invoke("replay", chats(a=TALK, b=TALK), *STORE)
    told = dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)
    assert told["conversations"].startswith("2, 2 at a time")
    assert re.match(r"10 in \d+\.\d\d s", told["messages"])
    assert re.match(r"[1-9]\d* messages/s", told["throughput"])
    percentiles = r"p50 \S+ \S+  p90 \S+ \S+  p99 \S+ \S+  p99\.9 \S+ \S+  max \S+ \S+"
    assert re.fullmatch(percentiles, told["add"])
    assert re.fullmatch(percentiles + r"  \(\d+ reads beside the writers\)", told["read"])
    assert re.match(r"mean [1-9]\S*, peak [12] ", told["group size"])
    assert re.fullmatch(r"\d+ MiB", told["peak RAM"])


def test_the_checking_process_is_another_one(invoke: Invoke, chats: Chats) -> None:
    found = re.search(r"checked by process (\d+)", invoke("replay", chats(a=TALK)).out)
    assert found is not None
    assert int(found[1]) != os.getpid()


def test_all_forms_of_input_are_taken_together(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text(json.dumps({"id": "a", "messages": TALK}) + "\n" + json.dumps(TALK))
    (tmp_path / "zipped.jsonl.gz").write_bytes(gzip.compress(json.dumps({"id": "b", "messages": TALK}).encode()))
    (tmp_path / "array.json").write_text(json.dumps([{"id": "c", "messages": TALK}, TALK], indent=1))
    assert invoke("replay", "lines.jsonl", "zipped.jsonl.gz", "array.json", *STORE).status == 0
    expected = dict.fromkeys(("a", "b", "c", "lines-2", "array-2"), TALK)
    assert stored(tmp_path / "replay.db") == expected


def test_the_store_has_a_default_of_its_own(invoke: Invoke, chats: Chats, tmp_path: Path) -> None:
    assert invoke("replay", chats(a=TALK)).status == 0
    assert stored(tmp_path / "turnkeeper-replay.db") == {"a": TALK}


class TestIdsThatExist:
    @pytest.fixture
    def again(self, invoke: Invoke, chats: Chats) -> Path:
        path = chats(a=TALK, b=TALK)
        assert invoke("replay", path, *STORE).status == 0
        return path

    def test_are_refused_before_any_write(self, invoke: Invoke, chats: Chats, again: Path, tmp_path: Path) -> None:
        before = (tmp_path / "replay.db").read_bytes()
        ran = invoke("replay", chats("other.jsonl", new=TALK, b=TALK), *STORE)
        assert ran.status == 2
        assert "'b'" in ran.err
        assert "--namespace" in ran.err
        assert "--replace" in ran.err
        assert (tmp_path / "replay.db").read_bytes() == before
        assert stored(tmp_path / "replay.db") == {"a": TALK, "b": TALK}

    def test_are_counted(self, invoke: Invoke, again: Path) -> None:
        assert "'a' and 1 more of the input" in invoke("replay", again, *STORE).err

    def test_are_found_among_copies(self, invoke: Invoke, chats: Chats, tmp_path: Path) -> None:
        assert invoke("replay", chats(**{"a#2": TALK}), *STORE).status == 0
        assert invoke("replay", chats(a=TALK), "--copies", 3, *STORE).status == 2
        assert invoke("replay", chats(a=TALK), "--copies", 2, *STORE).status == 0

    def test_may_live_in_another_namespace(self, invoke: Invoke, again: Path, tmp_path: Path) -> None:
        assert invoke("replay", again, "--namespace", "second", *STORE).status == 0
        assert stored(tmp_path / "replay.db", "second") == stored(tmp_path / "replay.db")
        assert invoke("replay", again, "--namespace", "second", *STORE).status == 2

    def test_are_replaced_on_demand(self, invoke: Invoke, chats: Chats, again: Path, tmp_path: Path) -> None:
        ran = invoke("replay", chats("other.jsonl", b=TALK[:2], c=TALK), "--replace", *STORE)
        assert ran.status == 0
        assert "replaced\t1 conversations were there before" in ran.out
        assert stored(tmp_path / "replay.db") == {"a": TALK, "b": TALK[:2], "c": TALK}

    def test_are_replaced_and_counted_all(self, invoke: Invoke, tmp_path: Path) -> None:
        assert invoke("replay", SAMPLE, *STORE).status == 0
        assert "replaced\t31 conversations" in invoke("replay", SAMPLE, "--replace", *STORE).out


class TestRefusedInput:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("{", "is not valid JSON"),
            ('{"id": "x"}', "has no 'messages'"),
            ('{"id": "x", "messages": []}', "empty list"),
            ('{"id": "x", "messages": [{"role": "canary-zanzibar"}]}', "role"),
            ('{"id": "x", "messages": [{"role": "tool", "content": "canary-zanzibar"}]}', "tool_call_id"),
            ('{"id": "a", "messages": [{"role": "user", "content": "canary-zanzibar"}]}', "already used"),
            ('{"id": "x\\u0007", "messages": [{"role": "user", "content": "canary-zanzibar"}]}', "control character"),
            ('"canary-zanzibar"', "neither an object nor a list"),
            ('{"id": "x", "messages": "canary-zanzibar"}', "not a list"),
        ],
    )
    def test_is_named_by_file_line_and_reason_and_nothing_is_done(
        self, invoke: Invoke, tmp_path: Path, canary: str, line: str, reason: str
    ) -> None:
        good = json.dumps({"id": "a", "messages": TALK})
        (tmp_path / "bad.jsonl").write_text(f"{good}\n{line}\n")
        ran = invoke("replay", "bad.jsonl", *STORE)
        assert ran.status == 2
        assert ran.err.startswith("turnkeeper: bad.jsonl, line 2: ")
        assert reason in ran.err
        assert canary not in ran.err
        assert ran.err.count("\n") == 1
        assert ran.out == ""
        assert os.listdir(tmp_path) == ["bad.jsonl"]

    def test_in_the_last_file_keeps_the_first_from_being_replayed(
        self, invoke: Invoke, chats: Chats, tmp_path: Path
    ) -> None:
        (tmp_path / "damaged.jsonl.gz").write_bytes(gzip.compress(b"[" * 1000)[:-9])
        ran = invoke("replay", chats(a=TALK), "damaged.jsonl.gz", *STORE)
        assert ran.status == 2
        assert "damaged.jsonl.gz" in ran.err
        assert not (tmp_path / "replay.db").exists()

    def test_that_is_missing(self, invoke: Invoke, tmp_path: Path) -> None:
        assert invoke("replay", "no.jsonl")[::2] == (
            2,
            "turnkeeper: no.jsonl: can't be read: No such file or directory\n",
        )
        assert os.listdir(tmp_path) == []

    def test_that_is_empty(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "empty.jsonl").touch()
        assert invoke("replay", "empty.jsonl")[::2] == (2, "turnkeeper: no conversation in empty.jsonl\n")

    def test_that_can_be_read_only_once(self, invoke: Invoke, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        ran = invoke("replay", "pipe")
        assert ran.status == 2
        assert "regular file" in ran.err

    def test_given_twice(self, invoke: Invoke, chats: Chats) -> None:
        path = chats(a=TALK)
        assert "already used" in invoke("replay", path, path).err

    def test_whose_copies_would_share_an_id(self, invoke: Invoke, chats: Chats, tmp_path: Path) -> None:
        path = chats(**{"a": TALK, "a#1": TALK})
        ran = invoke("replay", path, "--copies", 2, *STORE)
        assert ran.status == 2
        assert "'a#1'" in ran.err
        assert not (tmp_path / "replay.db").exists()
        assert invoke("replay", path, *STORE).status == 0

    @pytest.mark.parametrize("id_", ["a#0", "a#01", "a#3", "a#x", "a#", "#1", "a#1#1", "a#²"])
    def test_that_only_looks_like_a_copy_is_taken(self, chats: Chats, id_: str) -> None:
        assert survey([chats(**{"a": TALK, id_: TALK})], 3).conversations == 6

    def test_whose_copies_ids_would_be_too_long(self, chats: Chats) -> None:
        path = chats(**{"x" * 510: TALK})
        assert survey([path], 10).conversations == 10
        with pytest.raises(Stop, match="512 bytes"):
            survey([path], 11)

    def test_an_invalid_namespace(self, invoke: Invoke, chats: Chats, tmp_path: Path) -> None:
        assert invoke("replay", chats(a=TALK), "--namespace", "a\x07", *STORE).status == 2
        assert not (tmp_path / "replay.db").exists()


class TestRefusedStores:
    def test_one_in_memory_because_no_other_process_could_check_it(self, invoke: Invoke, chats: Chats) -> None:
        ran = invoke("replay", chats(a=TALK), "--store", "memory:")
        assert ran.status == 2
        assert "no other could check" in ran.err

    def test_one_in_use(self, invoke: Invoke, chats: Chats, fill: Callable[..., str], tmp_path: Path) -> None:
        url = fill("replay.db", old=TALK)
        with turnkeeper.open_sync_runtime(url):
            ran = invoke("replay", chats(a=TALK), *STORE)
        assert ran.status == 2
        assert f"in use by another runtime (process {os.getpid()})" in ran.err
        assert "nothing was written" in ran.err
        assert ran.err.count("\n") == 1
        assert stored(tmp_path / "replay.db") == {"old": TALK}

    def test_one_of_another_program(self, invoke: Invoke, chats: Chats, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "replay.db")
        connection.execute("CREATE TABLE t (x)")
        connection.close()
        ran = invoke("replay", chats(a=TALK), *STORE)
        assert ran.status == 2
        assert "another program" in ran.err

    def test_one_that_cannot_be_created(self, invoke: Invoke, chats: Chats) -> None:
        ran = invoke("replay", chats(a=TALK), "--store", "sqlite:///no/such/directory/x.db")
        assert ran.status == 2
        assert ran.err.count("\n") == 1

    def test_one_that_fails_in_the_middle(
        self, invoke: Invoke, chats: Chats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Failing(SQLiteStore):
            commits = 0

            def commit(self, *args: Any, **kwargs: Any) -> Any:
                self.commits += 1
                if self.commits > 3:
                    raise StoreUnavailableError("the disk is full")
                return super().commit(*args, **kwargs)

        def opened(url: str, **options: Any) -> turnkeeper.Runtime:
            return turnkeeper.open_runtime(Failing(tmp_path / "replay.db"), **options)

        monkeypatch.setattr(replay_module, "open_runtime", opened)
        ran = invoke("replay", chats(a=TALK), *STORE)
        assert ran.status == 2
        assert ran.err == (
            "turnkeeper: the disk is full; what was stored is whole: 3 of 5 messages acknowledged, "
            "0 of 1 conversations complete\n"
        )
        assert stored(tmp_path / "replay.db") == {"a": TALK[:3]}

    def test_a_loop_that_is_not_installed(
        self, invoke: Invoke, chats: Chats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        ran = invoke("replay", chats(a=TALK), "--backend", "trio", *STORE)
        assert ran[::2] == (2, "turnkeeper: the backend trio is not installed: pip install trio\n")
        assert not (tmp_path / "replay.db").exists()


def test_input_is_streamed_not_held(run: Invoke, tmp_path: Path) -> None:
    text = os.urandom(10_000).hex()
    with gzip.open(tmp_path / "large.jsonl.gz", "wt", compresslevel=1) as file:
        for number in range(150):
            messages = [{"role": "user", "content": f"{number} {position} {text}"} for position in range(20)]
            file.write(json.dumps({"id": f"c{number}", "messages": messages}) + "\n")
    ran = run("replay", "large.jsonl.gz", "--clients", 4, *STORE)
    assert ran.status == 0
    found = re.search(r"peak RAM\t(\d+) MiB", ran.out)
    assert found is not None
    assert int(found[1]) < 90  # 57 MiB of messages; a Python with everything loaded takes 40 more


class TestInterrupted:
    @pytest.fixture
    def endless(self, tmp_path: Path) -> Path:
        with (tmp_path / "endless.jsonl").open("w") as file:
            for number in range(400):
                messages = [{"role": "user", "content": f"{number}.{position}"} for position in range(100)]
                file.write(json.dumps({"id": f"c{number}", "messages": messages}) + "\n")
        return tmp_path / "endless.jsonl"

    @staticmethod
    def wait_for_entries(database: Path) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if database.exists() and database.stat().st_size:
                try:
                    if any(len(log) > 5 for log in stored(database).values()):
                        return
                except sqlite3.Error:
                    pass
            time.sleep(0.02)
        pytest.fail("the replay did not get going")

    @pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_it_ends_cleanly_and_what_was_stored_is_whole(
        self,
        start: Callable[..., Any],
        tmp_path: Path,
        endless: Path,
        backend: str,
        number: signal.Signals,
        status: int,
    ) -> None:
        process = start("replay", endless, "--clients", 20, "--backend", backend, *STORE)
        try:
            self.wait_for_entries(tmp_path / "replay.db")
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == status
        assert out == ""
        found = re.fullmatch(
            r"turnkeeper: interrupted; what was stored is whole: (\d+) of 40000 messages acknowledged, "
            r"(\d+) of 400 conversations complete\n",
            err,
        )
        assert found is not None, err
        logs, input_ = stored(tmp_path / "replay.db"), written(endless)
        for id_, log in logs.items():
            assert log == input_[id_][: len(log)]
        assert sum(map(len, logs.values())) >= int(found[1]) > 0
        assert sum(len(log) == 100 for log in logs.values()) >= int(found[2])

    @pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
    def test_not_in_the_background_of_a_shell_which_ignores_it(
        self, tmp_path: Path, chats: Chats, backend: str
    ) -> None:
        path = chats(**{f"c{number}": TALK * 20 for number in range(10)})
        ignoring = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-m", "turnkeeper", "replay", str(path), "--backend", backend, *STORE]
        process = subprocess.Popen(
            [sys.executable, "-c", ignoring, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        try:
            self.wait_for_entries(tmp_path / "replay.db")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0
        assert "checked by process" in out

    def test_while_it_checks(
        self, invoke: Invoke, chats: Chats, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def interrupted(*_: object, **__: object) -> str:
            raise KeyboardInterrupt

        monkeypatch.setattr(replay_module, "check_in_fresh_process", interrupted)
        ran = invoke("replay", chats(a=TALK), *STORE)
        assert ran.status == 130
        assert "interrupted while checking; what was stored is whole: 5 of 5" in ran.err


class TestProgress:
    def test_is_not_shown_when_piped(self, run: Invoke, chats: Chats) -> None:
        ran = run("replay", chats(a=TALK))
        assert ran.err == ""
        assert "\x1b" not in ran.out

    def test_is_shown_on_a_terminal_on_stderr(self, start: Callable[..., Any], chats: Chats) -> None:
        ours, theirs = os.openpty()
        process = start("replay", chats(a=TALK), stderr=theirs, env={"TERM": "xterm-256color", "COLUMNS": "100"})
        os.close(theirs)
        try:
            shown = b"".join(_until_closed(ours))
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        assert process.returncode == 0
        assert b"replaying" in shown
        assert b"5/5" in shown
        assert "\x1b" not in out


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            return
        if not chunk:
            return
        yield chunk


def test_what_the_tests_compare_with_is_what_is_replayed() -> None:
    read = {one.id: [message.to_dict() for message in one.messages] for one in read_transcripts([SAMPLE])}
    assert read == written(SAMPLE)

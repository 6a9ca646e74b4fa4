"""Turns of several processes on one shared file: the lease excludes, is renewed, given back, and ends with its host."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

import turnkeeper
from processes.remote import BACKENDS, Backend, RemoteError, url_of
from turnkeeper.testing import check_prompt
from turns.remote_turns import RemoteTurns

LEASE = 1.0  # seconds: what a test has to wait for at most


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chats.db", shared=True)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the event loop of the other processes."""
    backend: Backend = request.param
    return backend


def read(remote: RemoteTurns) -> list[Any]:
    texts: list[Any] = remote.call("read", "m")[1]
    return texts


def run(remote: RemoteTurns, text: str, **options: Any) -> Any:
    """Run a whole turn."""
    remote.call("turn_open", "whole", "m", options)
    remote.call("turn_add", "whole", [text])
    return remote.call("turn_commit", "whole")


class TestExclusion:
    def test_a_turn_keeps_the_other_process_out_and_reads_do_not_wait(self, url: str, backend: Backend) -> None:
        with RemoteTurns(url, backend=backend) as first, RemoteTurns(url, backend=backend) as second:
            second.call("add", "m", ["before"])
            first.call("turn_open", "t", "m", {})
            first.call("turn_add", "t", ["q"])
            with pytest.raises(RemoteError, match="TurnBusyError"):
                second.call("turn_open", "other", "m", {"on_busy": "reject"})
            with pytest.raises(RemoteError, match="TurnBusyError"):
                second.call("turn_open", "other", "m", {"timeout": 0.05})
            assert read(second) == read(first) == ["before"]
            assert first.call("turn_read", "t") == ["before", "q"]
            second.send("add", "m", ["waited"])
            first.call("turn_add", "t", ["a"])
            assert first.call("turn_commit", "t") == "1.2"
            assert second.answer() == "1.3"
            assert read(first) == read(second) == ["before", "q", "a", "waited"]

    def test_it_is_given_back_though_nothing_was_said(self, url: str) -> None:
        with RemoteTurns(url, turn_lease=60) as first, RemoteTurns(url, turn_lease=60) as second:
            for step in ("turn_commit", "turn_abort"):
                first.call("turn_open", "t", "m", {})
                first.call(step, "t")
                run(second, step, timeout=20)
            assert read(first) == ["turn_commit", "turn_abort"]

    def test_turns_of_two_processes_in_turn(self, url: str, backend: Backend) -> None:
        with RemoteTurns(url, backend=backend) as first, RemoteTurns(url, backend=backend) as second:
            for number in range(10):
                run(first if number % 2 else second, str(number))
            assert read(first) == read(second) == [str(number) for number in range(10)]

    def test_it_is_renewed_while_its_process_lives(self, url: str, backend: Backend) -> None:
        with RemoteTurns(url, backend=backend, turn_lease=0.3) as first, RemoteTurns(url) as second:
            first.call("turn_open", "t", "m", {})
            first.call("turn_add", "t", ["own"])
            with pytest.raises(RemoteError, match="TurnBusyError"):
                second.call("turn_open", "other", "m", {"timeout": 1.0})  # three leases
            first.call("turn_commit", "t")
            run(second, "next")
            assert read(first) == ["own", "next"]

    def test_a_graceful_close_gives_it_back(self, url: str) -> None:
        with RemoteTurns(url) as second:
            with RemoteTurns(url, turn_lease=60) as first:
                first.call("turn_open", "t", "m", {})
                first.call("turn_add", "t", ["lost"])
                first.call("turn_abort", "t")
            run(second, "next", timeout=20)
            assert read(second) == ["next"]


class TestAHostThatDies:
    @pytest.mark.parametrize("commit", ["turn", "each"])
    def test_killed_in_a_turn_it_frees_it_at_expiry(self, url: str, backend: Backend, commit: str) -> None:
        with RemoteTurns(url, backend=backend, turn_lease=LEASE) as first, RemoteTurns(url, backend=backend) as second:
            second.call("add", "m", ["before"])
            first.call("turn_open", "t", "m", {"commit": commit})
            first.call("turn_add", "t", ["of the dead"])
            first.kill()
            start = time.monotonic()
            stays = ["of the dead"] if commit == "each" else []
            assert read(second) == ["before", *stays]
            second.call("add", "m", ["waited"])
            assert time.monotonic() - start < 20
            assert read(second) == ["before", *stays, "waited"]
            run(second, "next")

    def test_who_does_not_wait_takes_its_place(self, url: str) -> None:
        with RemoteTurns(url, turn_lease=60) as first, RemoteTurns(url) as second:
            first.call("turn_open", "t", "m", {})
            first.kill()
            run(second, "next", on_busy="interrupt", timeout=20)
            assert read(second) == ["next"]

    @pytest.mark.parametrize("takes", ["add", "turn"])
    def test_a_late_commit_is_refused_and_gives_the_messages_back(self, url: str, backend: Backend, takes: str) -> None:
        """The host stands still for longer than its lease, as in a pause of its machine."""
        with RemoteTurns(url, backend=backend, turn_lease=LEASE) as first, RemoteTurns(url, backend=backend) as second:
            second.call("add", "m", ["before"])
            first.call("turn_open", "t", "m", {})
            first.call("turn_add", "t", ["paid for", "as well"])
            first.stop()
            try:
                first.send("turn_commit", "t")
                if takes == "add":
                    second.call("add", "m", ["written"])
                else:
                    run(second, "written")
            finally:
                first.go_on()
            given_back: Any = None
            with contextlib.suppress(RemoteError):  # TurnInterruptedError: its renewal found out first
                given_back = first.answer()
            assert given_back in (None, ["paid for", "as well"])
            assert read(first) == read(second) == ["before", "written"]
            run(first, "on")
            assert read(second) == ["before", "written", "on"]

    def test_p39_p47_b1_what_it_had_committed_is_shown_validly(self, url: str) -> None:
        """Killed while a tool runs: the call is stored, its result never comes."""
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        with RemoteTurns(url, turn_lease=LEASE) as first, RemoteTurns(url) as second:
            first.call("turn_open", "t", "m", {"commit": "each"})
            first.call("turn_add", "t", ["question"])
            first.call("turn_add_json", "t", [{"role": "assistant", "content": None, "tool_calls": [call]}])
            first.kill()
            run(second, "another question")
            with turnkeeper.open_sync_runtime(url) as runtime:
                prompt = runtime.memory("m").messages().to_dicts()
            check_prompt(prompt)
            assert [prompt[0]["content"], prompt[-1]["content"]] == ["question", "another question"]


class TestTakingItsPlace:
    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    @pytest.mark.parametrize("commit", ["turn", "each"])
    def test_across_processes(self, url: str, on_busy: str, commit: str) -> None:
        with RemoteTurns(url, turn_lease=60) as first, RemoteTurns(url, turn_lease=60) as second:
            first.call("add", "m", ["before"])
            first.call("turn_open", "t", "m", {"commit": commit})
            first.call("turn_add", "t", ["holder"])
            run(second, "new", on_busy=on_busy)
            stays = ["holder"] if (on_busy, commit) == ("interrupt", "each") else []
            assert read(first) == read(second) == ["before", *stays, "new"]
            if commit == "turn":
                assert first.call("turn_commit", "t") == ["holder"], "a conflict gives it back"
            else:
                with pytest.raises(RemoteError, match=r"TurnConflictError|TurnInterruptedError"):
                    first.call("turn_add", "t", ["late"])
                first.call("turn_abort", "t")
            first.call("add", "m", ["after"])
            assert read(second) == ["before", *stays, "new", "after"]

    def test_a_rollback_takes_nothing_back_of_a_turn_that_was_left(self, url: str) -> None:
        with RemoteTurns(url) as first, RemoteTurns(url) as second:
            for number in range(10):
                first.call("turn_open", "t", "m", {"commit": "each"})
                first.call("turn_add", "t", [f"committed {number}"])
                first.call("turn_commit", "t")
                run(second, f"new {number}", on_busy="rollback")
            assert read(first) == [f"{what} {number}" for number in range(10) for what in ("committed", "new")]

    def test_retries_meet_in_another_process(self, url: str) -> None:
        with RemoteTurns(url) as first, RemoteTurns(url) as second:
            run(first, "once", idempotency_key="k")
            with pytest.raises(RemoteError, match="TurnAlreadyCommittedError"):
                run(second, "twice", idempotency_key="k")
            assert read(second) == ["once"]

"""`turnkeeper demo`: every claim is checked while it is shown, and one that does not hold is said to."""

from __future__ import annotations

import importlib.util
import os
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from turnkeeper import ConflictError, Runtime, open_runtime, open_sync_runtime
from turnkeeper.cli import demo_claims, demo_crash, demo_turns
from turnkeeper.cli.claims import ClaimFailedError
from turnkeeper.cli.demo_writer import BATCH, part, sender_id

Invoke = Callable[..., Any]

TITLES = [
    "Recorded conversations, live",
    "Two messages to one conversation at once",
    "A second message before the first is answered",
    "Many senders",
    "A cancelled add",
    "A stale writer",
    "A repeated request",
    "Blocking code",
    "A kill in the middle of a write",
    "Nothing is left behind",
]


def test_it_shows_what_it_claims(run: Invoke, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shown = run("demo", env={"TMPDIR": str(scratch)})
    assert os.listdir(scratch) == []
    assert shown.err == ""
    assert shown.status == 0
    assert [line.removeprefix("ok ") for line in shown.out.splitlines() if line.startswith("ok ")] == TITLES
    assert "10 of 10 claims hold" in shown.out
    text = " ".join(shown.out.split())
    assert "31 conversations at once, 380 messages" in text
    assert "asyncio, uvloop, trio; then a new process found every log equal to its input" in text
    assert re.search(r"both are there, once each, one behind the other: from the \w+, then from the \w+", text)
    assert "enqueue: Q1 call result A1 Q2 A2; reject: Q1 call result A1, Q2 was refused at once" in text
    assert "interrupt: Q1 call (closed) Q2 A2; rollback: Q2 A2, no trace of Q1" in text
    assert "200 tasks and 16 threads wrote 560 messages to one conversation" in text
    killed = re.search(r"killed 3 times with SIGKILL: all (\d+) acknowledged batches .* of (\d+) cut off", text)
    assert killed is not None
    assert int(killed[1]) >= 180
    assert int(killed[2]) >= 1
    assert "integrity check is ok" in text
    assert os.listdir(tmp_path) == ["scratch"]
    # Piped it is plain, and fits the page.
    assert "\x1b" not in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_an_interrupt_leaves_nothing_behind(start: Callable[..., Any], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = start("demo", env={"TMPDIR": str(scratch)})
    try:
        deadline = time.monotonic() + 30
        while not any(scratch.rglob("killed.db")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "turnkeeper: interrupted\n")
    assert os.listdir(scratch) == []


def test_it_takes_no_arguments(invoke: Invoke) -> None:
    assert invoke("demo", "now").status == 2


def test_it_runs_without_trio_and_uvloop(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    ran = invoke("demo")
    assert ran.status == 0
    assert "on asyncio; then" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ClaimFailedError("one of the two is lost"), "one of the two is lost"),
        (KeyError("canary-zanzibar"), "broke with KeyError"),
        (ExceptionGroup("canary-zanzibar", [ConflictError("somebody won")]), "somebody won"),
    ],
)
def test_a_claim_that_does_not_hold_is_1_and_the_others_are_shown(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, canary: str, error: Exception, said: str
) -> None:
    async def fail(_: Runtime) -> str:
        raise error

    monkeypatch.setattr(demo_claims, "two_at_once", fail)
    monkeypatch.setattr(demo_crash, "_KILLS", 1)
    ran = invoke("demo")
    assert ran.status == 1
    assert f"FAILED Two messages to one conversation at once\n    {said}\n" in ran.out
    assert ran.out.count("\nok ") == 9
    assert "9 of 10 claims hold" in ran.out
    assert canary not in ran.out + ran.err


class _Fake:
    """A conversation that keeps only some of what it is sent."""

    def __init__(self, keep: Callable[[list[Any]], list[Any]]) -> None:
        self.kept: list[Any] = []
        self._keep = keep

    def __call__(self, *_: object) -> _Fake:
        return self

    @property
    def sync(self) -> Any:
        class Blocking:
            memory = staticmethod(lambda _: Blocking)
            add = staticmethod(lambda message: anyio.from_thread.run(self.add, message))

        return Blocking

    memory = property(lambda self: self)

    async def add(self, message: Any, **_: object) -> Any:
        await checkpoint()
        self.kept.extend(message if isinstance(message, list) else [message])

    async def messages(self) -> Any:
        from turnkeeper.messages import encode_messages

        return encode_messages(self._keep(self.kept))


@pytest.mark.anyio
@pytest.mark.parametrize("keep", [lambda kept: kept[:-1], lambda kept: [*kept, kept[-1]]])
async def test_a_message_lost_or_doubled_is_noticed(keep: Any) -> None:
    with pytest.raises(ClaimFailedError):
        await demo_claims.two_at_once(_Fake(keep))  # type: ignore[arg-type]
    with pytest.raises(ClaimFailedError):
        await demo_claims.many_senders(_Fake(keep))  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_sender_out_of_order_is_noticed() -> None:
    with pytest.raises(ClaimFailedError):
        await demo_claims.many_senders(_Fake(lambda kept: kept[::-1]))  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_half_an_add_is_noticed() -> None:
    fake = _Fake(lambda kept: [message for message in kept if message["content"] != "never mind"][:-1])
    with pytest.raises(ClaimFailedError, match="in part"):
        await demo_claims.cancelled_adds(fake)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_an_honest_runtime_keeps_the_claims(tmp_path: Path) -> None:
    async with open_runtime(f"sqlite:///{tmp_path / 'demo.db'}") as runtime:
        for claim in (
            demo_claims.two_at_once,
            demo_turns.double_message,
            demo_claims.many_senders,
            demo_claims.cancelled_adds,
            demo_claims.stale_writer,
        ):
            assert await claim(runtime)
        assert await demo_claims.plain_script(runtime, tmp_path)
    assert await demo_claims.idempotent_retry(tmp_path)


class _Muddled:
    """A runtime that takes one policy for another."""

    def __init__(self, runtime: Runtime, asked: str, done: str) -> None:
        self._runtime = runtime
        self._asked = asked
        self._done = done

    def memory(self, memory_id: str) -> Any:
        memory = self._runtime.memory(memory_id)

        class Muddled:
            messages = staticmethod(memory.messages)

            @staticmethod
            def turn(on_busy: str = "enqueue", **options: Any) -> Any:
                return memory.turn(on_busy=self._done if on_busy == self._asked else on_busy, **options)  # type: ignore[arg-type]

        return Muddled


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ("enqueue", "interrupt"),
        ("reject", "enqueue"),
        ("interrupt", "rollback"),
        ("rollback", "interrupt"),
        ("interrupt", "enqueue"),
        ("rollback", "reject"),
    ],
)
async def test_a_second_message_treated_otherwise_than_asked_is_noticed(
    monkeypatch: pytest.MonkeyPatch, asked: str, done: str
) -> None:
    monkeypatch.setattr(demo_turns, "_PATIENCE", 0.05)
    async with open_runtime("memory:") as runtime:
        with pytest.raises(ClaimFailedError, match=f"{asked}: "):
            await demo_turns.double_message(_Muddled(runtime, asked, done))  # type: ignore[arg-type]


class TestTheKill:
    @pytest.mark.parametrize(
        ("messages", "problem"),
        [
            ([part(0, number) for number in range(BATCH - 1)], "in part"),
            ([part(0, number) for number in range(BATCH)] * 2, "torn, doubled or out of order"),
            ([part(0, number) for number in reversed(range(BATCH))], "torn, doubled or out of order"),
            ([part(1, number) for number in range(BATCH)], "torn, doubled or out of order"),
        ],
    )
    def test_a_batch_that_is_not_whole_is_noticed(self, tmp_path: Path, messages: list[Any], problem: str) -> None:
        path = tmp_path / "killed.db"
        with open_sync_runtime(f"sqlite:///{path}") as runtime:
            runtime.memory(sender_id(3)).add(messages)
        with pytest.raises(ClaimFailedError, match=problem):
            anyio.run(demo_crash._count_batches, path)

    @pytest.mark.parametrize(
        ("tried", "acknowledged", "problem"),
        [
            (5, 1, "acknowledged batch is missing"),
            (0, 0, "more batches than were sent"),
            (1, 1, "on its way"),
        ],
    )
    def test_what_the_writer_said_is_held_against_what_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: int, acknowledged: int, problem: str
    ) -> None:
        with open_sync_runtime(f"sqlite:///{tmp_path / 'killed.db'}") as runtime:
            if tried != 5:
                runtime.memory(sender_id(0)).add([part(0, number) for number in range(BATCH)])
        said = demo_crash._Killed(Counter({0: tried, 1: int(tried == 0)}), Counter({0: acknowledged}))
        monkeypatch.setattr(demo_crash, "_KILLS", 1)
        monkeypatch.setattr(demo_crash, "_kill_while_writing", lambda _: said)
        with pytest.raises(ClaimFailedError, match=problem):
            demo_crash.survive_kills(tmp_path)

    @pytest.mark.parametrize("script", ["exit 0", "exec sleep 60"])
    def test_a_writer_that_does_not_write_is_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
    ) -> None:
        monkeypatch.setattr(demo_crash, "child_command", lambda *_: ["/bin/sh", "-c", script])
        monkeypatch.setattr(demo_crash, "_PATIENCE", 0.3)
        with pytest.raises(ClaimFailedError, match="the writer"):
            demo_crash.survive_kills(tmp_path)

    def test_the_writer_is_killed_when_the_demo_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[subprocess.Popen[bytes]] = []
        real = subprocess.Popen

        def popen(*args: Any, **kwargs: Any) -> Any:
            started.append(real(*args, **kwargs))
            return started[-1]

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess, "Popen", popen)
        monkeypatch.setattr(select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo_crash.survive_kills(tmp_path)
        assert started[0].returncode == -9

"""Running the command line: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turnkeeper import open_sync_runtime
from turnkeeper.cli.commands import cli

CANARY = "canary-zanzibar"


class Ran(NamedTuple):
    """What a command left: status, stdout, stderr."""

    status: int
    out: str
    err: str


Invoke = Callable[..., Ran]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def invoke(*args: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(arg) for arg in args], prog_name="turnkeeper")
        out, err = capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return invoke


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a command as a process of its own, in an empty directory."""

    def start(*args: object, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **options.pop("env", {})}
        return subprocess.Popen(
            [sys.executable, "-m", "turnkeeper", *map(str, args)],
            cwd=tmp_path,
            env=environment,
            text=True,
            encoding="utf-8",
            # Tests that run in a shell's background ignore Ctrl-C, and what they start would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    return start


@pytest.fixture
def run(start: Start) -> Invoke:
    """Run a command as a process of its own, to its end."""

    def run(*args: object, **options: Any) -> Ran:
        process = start(*args, **options)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        return Ran(process.returncode, out, err)

    return run


@pytest.fixture
def chats(tmp_path: Path) -> Callable[..., Path]:
    """Write conversations, by id, as a transcript file."""

    def chats(name: str = "chats.jsonl", **conversations: Iterable[object]) -> Path:
        path = tmp_path / name
        lines = [json.dumps({"id": id_, "messages": list(messages)}) for id_, messages in conversations.items()]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return chats


@pytest.fixture
def fill(tmp_path: Path) -> Callable[..., str]:
    """Store conversations, by id, in a database and return its URL."""

    def fill(name: str = "chats.db", namespace: str = "", **conversations: Iterable[Any]) -> str:
        url = f"sqlite:///{tmp_path / name}"
        with open_sync_runtime(url) as runtime:
            for id_, messages in conversations.items():
                for message in messages:
                    runtime.memory(id_, namespace).add(message)
        return url

    return fill


def user(text: str = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def canary() -> str:
    """What must never be in an error."""
    return CANARY

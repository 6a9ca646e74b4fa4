"""A runtime in another process that does what the test says, one step at a time, so that nothing depends on timing.

    with Remote(url) as remote:
        remote.call("add", "m", ["hello"])
        with pytest.raises(RemoteError, match="ConflictError"): ...

The script runs this file as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import turnkeeper

Backend = Literal["asyncio", "uvloop", "trio"]

BACKENDS: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
PATIENCE_SECONDS = 60.0


class RemoteError(Exception):
    """What the other process raised.

    Attributes:
        kind: name of the class of the error.
        text: its text.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


class Remote:
    """A process with one runtime; entering waits until it is open, leaving closes it gracefully."""

    def __init__(self, url: str, *, backend: Backend = "asyncio", umask: int | None = None, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps([url, backend, options])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            umask=-1 if umask is None else umask,
            text=True,
            encoding="ascii",
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self._answer()  # open, or why not
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self._process.poll() is None:
            self._process.kill()  # don't let a close that hangs hide the error
        status = self._end()
        if error is None:
            assert status in (0, -9), f"the other process ended with {status}"

    def call(self, step: str, *arguments: Any) -> Any:
        """Have one of `STEPS` done and return what it returned."""
        self.send(step, *arguments)
        return self._answer()

    def send(self, step: str, *arguments: Any) -> None:
        """Have one of `STEPS` done, and don't wait for it: `answer` does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([step, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the step that was sent."""
        return self._answer()

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until the kernel is done with it."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"the other process ended with {self._process.wait(PATIENCE_SECONDS)}"
        result, kind, text = json.loads(line)
        if kind:
            raise RemoteError(kind, text)
        return result

    def _end(self) -> int:
        with self._process:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            return self._process.wait(PATIENCE_SECONDS)


# In the other process


def user(text: str) -> dict[str, str]:
    """Make a message."""
    return {"role": "user", "content": text}


def add(runtime: turnkeeper.SyncRuntime, memory: str, texts: list[str], key: str | None = None) -> str:
    return str(runtime.memory(memory).add(map(user, texts), idempotency_key=key).version)


def add_json(runtime: turnkeeper.SyncRuntime, memory: str, messages: list[dict[str, Any]]) -> str:
    return str(runtime.memory(memory).add(messages).version)


def replace(runtime: turnkeeper.SyncRuntime, memory: str, texts: list[str], version: str | None = None) -> str:
    expected = turnkeeper.Version.parse(version) if version else None
    return str(runtime.memory(memory).set(map(user, texts), if_version=expected).version)


def read(runtime: turnkeeper.SyncRuntime, memory: str) -> list[Any]:
    """Return version and texts."""
    messages = runtime.memory(memory).messages()
    return [str(messages.version), [message.content for message in messages]]


def delete(runtime: turnkeeper.SyncRuntime, memory: str) -> bool:
    return runtime.memory(memory).delete()


def clear(runtime: turnkeeper.SyncRuntime, memory: str) -> str:
    return str(runtime.memory(memory).clear().version)


def conflicts(runtime: turnkeeper.SyncRuntime) -> int:
    return runtime.stats().conflicts


def fork(_runtime: turnkeeper.SyncRuntime) -> int:
    """Leave a child behind that does nothing but live until it is killed; return when it has got past the fork."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(1)
        os.write(writing, b"x")
        never, _ = os.pipe()
        os.read(never, 1)
        os._exit(0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return pid


STEPS: dict[str, Callable[..., Any]] = {
    step.__name__: step for step in (add, add_json, replace, read, delete, clear, conflicts, fork)
}


def serve(url: str, backend: Backend, options: dict[str, Any]) -> None:
    """Do what standard input says, until it ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    try:
        with turnkeeper.open_sync_runtime(url, backend=backend, **options) as runtime:
            print(json.dumps([None, None, None]), file=answers, flush=True)
            for line in sys.stdin:
                step, *arguments = json.loads(line)
                try:
                    answer = [STEPS[step](runtime, *arguments), None, None]
                except turnkeeper.TurnkeeperError as error:
                    answer = [None, type(error).__name__, str(error)]
                print(json.dumps(answer), file=answers, flush=True)
    except turnkeeper.TurnkeeperError as error:
        print(json.dumps([None, type(error).__name__, str(error)]), file=answers, flush=True)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def url_of(path: Path, *, shared: bool = False) -> str:
    """Return the URL of a file."""
    return f"sqlite:///{path}" + ("?shared=true" if shared else "")


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))

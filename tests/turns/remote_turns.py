"""A process that holds turns open while it is told what to do next; its script, and its end of the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextvars import Context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import turnkeeper
from processes.remote import STEPS, Backend, Remote, serve, user

turns: dict[str, tuple[turnkeeper.SyncTurn, Context]] = {}
"""By name, each with the context that it was entered in: outside of that, this process is inside no turn."""


class RemoteTurns(Remote):
    """A `Remote` that knows the steps below as well."""

    def __init__(self, url: str, *, backend: Backend = "asyncio", **options: Any) -> None:
        start = subprocess.Popen

        def started(arguments: list[str], **others: Any) -> subprocess.Popen[str]:
            return start([arguments[0], __file__, *arguments[2:]], **others)

        subprocess.Popen = started  # type: ignore[assignment, misc]
        try:
            super().__init__(url, backend=backend, **options)
        finally:
            subprocess.Popen = start  # type: ignore[misc]

    def stop(self) -> None:
        """Let it stand still."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


def turn_open(runtime: turnkeeper.SyncRuntime, name: str, memory: str, options: dict[str, Any]) -> str:
    turn, context = runtime.memory(memory).turn(**options), Context()
    context.run(turn.__enter__)
    turns[name] = turn, context
    return turn.id


def turn_add(_: turnkeeper.SyncRuntime, name: str, texts: list[str]) -> None:
    turns[name][0].add(map(user, texts))


def turn_add_json(_: turnkeeper.SyncRuntime, name: str, messages: list[dict[str, Any]]) -> None:
    turns[name][0].add(messages)


def turn_read(_: turnkeeper.SyncRuntime, name: str) -> list[Any]:
    return [message.content for message in turns[name][0].messages()]


def turn_commit(_: turnkeeper.SyncRuntime, name: str) -> list[Any] | str | None:
    """Return the version; or, in a list, the texts that a conflict gave back."""
    turn, context = turns.pop(name)
    try:
        context.run(turn.__exit__, None, None, None)
    except turnkeeper.TurnConflictError as conflict:
        return [message["content"] for message in conflict.messages]
    return None if turn.receipt is None else str(turn.receipt.version)


def turn_abort(_: turnkeeper.SyncRuntime, name: str) -> None:
    turn, context = turns.pop(name)
    context.run(turn.__exit__, ValueError, None, None)


if __name__ == "__main__":
    import json

    for step in (turn_open, turn_add, turn_add_json, turn_read, turn_commit, turn_abort):
        STEPS[step.__name__] = step
    serve(*json.loads(sys.argv[1]))

"""The process that `turnkeeper demo` kills: it writes batches for ever, and says when each is acknowledged.

Run as `python -m turnkeeper.cli.demo_writer FILE`. Before a batch it prints `try <sender> <batch>`, after the answer
`ack <sender> <batch>`.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import anyio

from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.stores import SQLiteStore

__all__ = ["BATCH", "SENDERS", "part", "sender_id"]

SENDERS: Final = 8
"""Conversations written at once, so that at any moment some batch is on its way."""

BATCH: Final = 5
"""Messages in one batch: enough that half a batch would show."""


def sender_id(sender: int) -> str:
    """Name a sender's conversation."""
    return f"written-while-killed-{sender}"


def part(batch: int, number: int) -> dict[str, str]:
    """Return one message of a batch."""
    return {"role": "user", "content": f"batch {batch}, part {number + 1} of {BATCH}"}


def _print(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # at once and whole: nothing may be lost in a buffer when the kill comes


async def _send(runtime: Runtime, sender: int) -> None:
    memory = runtime.memory(sender_id(sender))
    batch = len(await memory.messages()) // BATCH  # goes on where the last one was killed
    while True:
        _print(f"try {sender} {batch}")
        await memory.add([part(batch, number) for number in range(BATCH)])
        _print(f"ack {sender} {batch}")
        batch += 1


async def _main(path: str) -> None:
    async with open_runtime(SQLiteStore(path)) as runtime, anyio.create_task_group() as group:
        for sender in range(SENDERS):
            group.start_soon(_send, runtime, sender)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])

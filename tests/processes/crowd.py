"""The script of one process in a crowd: many tasks add to memories that other processes add to as well, and read them.

Each call goes into a journal when it begins and when it has its answer, so that a kill loses nothing of what was
promised. Its times are those of the machine's one monotonic clock, so that the calls of all processes can be ordered.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio

import turnkeeper

TICK: Final = 100
"""Answers between two lines on standard output."""


@dataclass(frozen=True)
class Orders:
    """What one process is to do.

    Attributes:
        name: of this life of this process; no two have the same.
        journal: the file that it appends to.
        reads: share of its calls that read.
        options: the runtime's.
    """

    url: str
    backend: str
    name: str
    tasks: int
    memories: int
    journal: str
    reads: float = 0.2
    options: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Lines of JSON, each in the kernel's hands when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *values: object) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")


def digest(texts: Iterable[str]) -> str:
    """Sum up what a read showed."""
    return blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


class Player:
    """The tasks of one process."""

    def __init__(self, orders: Orders, runtime: turnkeeper.Runtime) -> None:
        self.stopping = False
        self._orders = orders
        self._runtime = runtime
        self._journal = Journal(Path(orders.journal))
        self._calls = itertools.count()
        self._answers = 0

    async def work(self, number: int) -> None:
        """Add and read until told to stop."""
        sender, random = f"{self._orders.name}.{number}", Random(f"{self._orders.name}.{number}")
        sent = 0
        while not self.stopping:
            memory = self._runtime.memory(f"memory-{random.randrange(self._orders.memories)}")
            if random.random() < self._orders.reads:
                await self._read(sender, memory)
            else:
                count = random.randint(1, 3)
                await self._add(sender, memory, [f"{sender} {sent + offset}" for offset in range(count)])
                sent += count
            self._answers += 1
            if self._answers % TICK == 0:
                say("tick")

    async def _read(self, sender: str, memory: turnkeeper.ChatMemory) -> None:
        invoked = time.monotonic_ns()
        try:
            shown = await memory.messages()
        except turnkeeper.StoreUnavailableError:
            return
        texts = [message.text for message in shown]
        self._journal.write(
            "read", sender, memory.id, invoked, time.monotonic_ns(), shown.version.n, len(texts), digest(texts)
        )

    async def _add(self, sender: str, memory: turnkeeper.ChatMemory, texts: list[str]) -> None:
        """Add a batch; once more when nothing was changed, as the error said."""
        while True:
            call, invoked, version = next(self._calls), time.monotonic_ns(), 0
            self._journal.write("add", sender, call, memory.id, invoked, texts)
            try:
                version = (await memory.add([{"role": "user", "content": text} for text in texts])).version.n
                outcome = "ok"
            except turnkeeper.OutcomeUnknownError:
                outcome = "unknown"
            except (turnkeeper.ContentionError, turnkeeper.StoreUnavailableError):
                outcome = "failed"
            self._journal.write("added", sender, call, time.monotonic_ns(), outcome, version)
            if outcome != "failed" or self.stopping:
                return


def say(line: str) -> None:
    """Tell the test; to nobody, when it has gone."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def play(orders: Orders) -> None:
    """Open, say so, wait for the others, and work until standard input says the second line."""
    listen = functools.partial(anyio.to_thread.run_sync, sys.stdin.readline)
    async with turnkeeper.open_runtime(orders.url, **orders.options) as runtime:
        say("open")
        await listen()
        player = Player(orders, runtime)
        async with anyio.create_task_group() as tasks:
            for number in range(orders.tasks):
                tasks.start_soon(player.work, number)
            await listen()
            player.stopping = True
        say(f"conflicts {runtime.stats().conflicts}")


def main() -> None:
    """Follow the orders in the first argument."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    orders = Orders(**given)
    options = {"use_uvloop": True} if orders.backend == "uvloop" else {}
    backend = "trio" if orders.backend == "trio" else "asyncio"
    anyio.run(play, orders, backend=backend, backend_options=options)


if __name__ == "__main__":
    main()

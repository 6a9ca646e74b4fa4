"""Many conversations in one SQLite file: what it costs to list, open, page, prune and erase them.

    python benchmarks/million.py [--conversations 1000000] [--folder /tmp]

Prints a table for docs/performance.md. Times are of this machine; RAM is the process's own, with what it was before.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import anyio

import turnkeeper
from turnkeeper import AssistantMessage, Message, RetentionPolicy, Runtime, UserMessage
from turnkeeper.log import ADD, Committed, Entry, Slice
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import SQLiteStore

GROUP = 2_000
OPENED = 2_000
MESSAGES = 4


def main() -> None:
    """Build the file, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "chats.db"
        table = Table()
        with table.row(f"write {options.conversations:,} conversations of {MESSAGES} messages (store alone)"):
            build(path, options.conversations)
        table.note("file", f"{path.stat().st_size / 2**20:,.0f} MB")
        anyio.run(measure, path, options.conversations, table)
        table.note("file afterwards", f"{path.stat().st_size / 2**20:,.0f} MB")


class Table:
    """Rows of what was done, how long it took, and how much RAM the process had at most by then."""

    def __init__(self) -> None:
        print("| What | Time | RAM at most |\n|---|---|---|", flush=True)

    @contextmanager
    def row(self, what: str, times: int = 1) -> Iterator[None]:
        """Measure one row; `times`: how many there are of it."""
        started = time.perf_counter()
        yield
        taken = time.perf_counter() - started
        shown = f"{taken:,.2f} s" if times == 1 else f"{taken:,.2f} s, {taken / times * 1e3:.2f} ms each"
        self.note(what, shown)

    def note(self, what: str, shown: str) -> None:
        """Print a row."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(f"| {what} | {shown} | {peak:,.0f} MB |", flush=True)


def build(path: Path, conversations: int) -> None:
    """Write the conversations, half of the messages each in an entry of its own."""
    store = SQLiteStore(path)
    store.open(durability="relaxed")
    try:
        slices = (conversation(n) for n in range(conversations))
        while group := list(islice(slices, GROUP)):
            outcomes = store.commit(group, receipt_ttl=1.0)
            assert all(isinstance(outcome, Committed) for outcome in outcomes)
    finally:
        store.close()


def conversation(n: int) -> Slice:
    """Return what creates the n-th conversation."""
    messages: list[Message] = []
    for turn in range(MESSAGES // 2):
        messages.append(UserMessage(f"question {turn} of conversation {n}: what is on my list for today?"))
        messages.append(AssistantMessage(f"answer {turn}: three things, and the first is the letter to the bank."))
    entries = tuple([Entry(ADD, os.urandom(16), encode_messages([message])) for message in messages])
    return Slice(MemoryName(f"tenant-{n % 10}", f"user-{n:07d}"), 0, 0, entries)


async def measure(path: Path, conversations: int, table: Table) -> None:
    """Do with them what a server does, and what an operator does."""
    url = f"sqlite:///{path}"
    pick = random.Random(7).sample(range(conversations), OPENED)
    with table.row("open the file"):
        runtime = turnkeeper.open_runtime(url)
        await runtime.__aenter__()
    try:
        with table.row("list all, in pages of 1 000"):
            assert await count(runtime) == conversations
        with table.row(f"read {OPENED:,} of them, one after the other", OPENED):
            for n in pick:
                assert len(await runtime.memory(f"user-{n:07d}", f"tenant-{n % 10}").messages()) == MESSAGES
        with table.row(f"a page of the history of {OPENED:,}", OPENED):
            for n in pick:
                page = await runtime.memory(f"user-{n:07d}", f"tenant-{n % 10}").history(limit=2, reverse=True)
                assert len(page.entries) == 2
        with table.row(f"add to {OPENED:,}, 100 at once", OPENED):
            await in_parallel(100, (adding(runtime, n) for n in pick))
    finally:
        await runtime.__aexit__(None, None, None)
    policy = RetentionPolicy(max_messages=2)
    async with turnkeeper.open_runtime(url, history=policy, sweep_interval=1e6) as runtime:
        share = 20
        with table.row(f"give one in {share} a retention policy"):
            await in_parallel(64, (set_policy(runtime, n, policy) for n in range(0, conversations, share)))
    async with turnkeeper.open_runtime(url, sweep_interval=1e6) as runtime:
        with table.row("a sweep that prunes them"):
            await runtime._core.keeper.sweep()
        with table.row("erase a tenth, by namespace"):
            erasure = await runtime.erase_all(namespace="tenant-3", confirm="tenant-3")
            assert erasure.count == len(range(3, conversations, 10))
            assert erasure.blocked is None
        with table.row("list the rest"):
            assert await count(runtime) == conversations - erasure.count


async def count(runtime: Runtime) -> int:
    """List all memories."""
    found, cursor = 0, None
    while True:
        page = await runtime.memories(limit=1_000, cursor=cursor)
        found += len(page.memories)
        if (cursor := page.cursor) is None:
            return found


async def set_policy(runtime: Runtime, n: int, policy: RetentionPolicy) -> None:
    """Give a conversation a policy of its own."""
    await runtime.memory(f"user-{n:07d}", f"tenant-{n % 10}").set_metadata(retention=policy)


async def adding(runtime: Runtime, n: int) -> None:
    """Add a message."""
    await runtime.memory(f"user-{n:07d}", f"tenant-{n % 10}").add(UserMessage("and tomorrow?"))


async def in_parallel(at_once: int, jobs: Iterator[Awaitable[Any]]) -> None:
    """Await all jobs, so many at a time."""

    async def work() -> None:
        for job in jobs:
            await job

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)


if __name__ == "__main__":
    main()

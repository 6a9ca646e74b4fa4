"""The script of one process in a crowd: many tasks add to memories that other processes add to as well, and read them.

What was acknowledged goes on a board that all processes map into their memory, so each strong read can be held to what
any of them was promised before it began.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import anyio

import turnkeeper


@dataclass(frozen=True)
class Orders:
    """What one process is to do.

    Attributes:
        process: its number, from 0.
        board: file with one 64-bit number for each process and memory.
        results: file for the results.
    """

    url: str
    backend: str
    process: int
    tasks: int
    seconds: float
    memories: int
    board: str
    results: str


@dataclass
class Results:
    """What one process did: for each memory what was acknowledged, as (version, sender, first number, count)."""

    acknowledged: dict[str, list[tuple[int, str, int, int]]] = field(default_factory=dict)
    reads: int = 0
    contention: int = 0
    conflicts: int = 0
    stale: list[str] = field(default_factory=list)


class Board:
    """The latest acknowledged version of each memory, in a slot for each process, so that no two write the same."""

    def __init__(self, path: Path, memories: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._slots = memoryview(self._map).cast("q")
        self._memories = memories

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._slots.release()
        self._map.close()

    def note(self, process: int, memory: int, version: int) -> None:
        """Tell everybody that `version` is acknowledged."""
        slot = process * self._memories + memory
        self._slots[slot] = max(self._slots[slot], version)

    def latest(self, memory: int) -> int:
        """Return the highest version that anybody was promised."""
        return max(self._slots[memory :: self._memories])

    @staticmethod
    def make(path: Path, processes: int, memories: int) -> None:
        """Make an empty board."""
        path.write_bytes(bytes(8 * processes * memories))


async def play(orders: Orders) -> Results:
    """Open, say so, wait for the others, and work."""
    results = Results()
    with Board(Path(orders.board), orders.memories) as board:
        async with turnkeeper.open_runtime(orders.url) as runtime:
            sys.stdout.write("open\n")
            sys.stdout.flush()
            await anyio.to_thread.run_sync(sys.stdin.readline)
            deadline = time.monotonic() + orders.seconds
            async with anyio.create_task_group() as tasks:
                for number in range(orders.tasks):
                    tasks.start_soon(_work, orders, number, runtime, board, results, deadline)
            results.conflicts = runtime.stats().conflicts
    return results


async def _work(
    orders: Orders, number: int, runtime: turnkeeper.Runtime, board: Board, results: Results, deadline: float
) -> None:
    sender, sent = f"{orders.process}.{number}", 0
    random = Random(sender)
    while time.monotonic() < deadline:
        index = random.randrange(orders.memories)
        memory = runtime.memory(f"memory-{index}")
        if random.random() < 0.2:
            promised = board.latest(index)
            seen = (await memory.messages()).version.n
            results.reads += 1
            if seen < promised:
                results.stale.append(f"{memory.id}: {sender} read version {seen} after {promised} was acknowledged")
            continue
        count = random.randint(1, 3)
        batch = [{"role": "user", "content": f"{sender} {sent + offset}"} for offset in range(count)]
        while True:
            try:
                receipt = await memory.add(batch)
                break
            except turnkeeper.ContentionError:  # nothing was changed, as it says
                results.contention += 1
        board.note(orders.process, index, receipt.version.n)
        results.acknowledged.setdefault(memory.id, []).append((receipt.version.n, sender, sent, count))
        sent += count


def main() -> None:
    """Follow the orders in the first argument, and write down the results."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    orders = Orders(**given)
    options = {"use_uvloop": True} if orders.backend == "uvloop" else {}
    backend = "trio" if orders.backend == "trio" else "asyncio"
    results = anyio.run(play, orders, backend=backend, backend_options=options)
    Path(orders.results).write_text(json.dumps(asdict(results)))


if __name__ == "__main__":
    main()

"""Random histories on the store, and whether they could have happened one call after another."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from turnkeeper.errors import TurnkeeperError
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.stores import Store
from turnkeeper.testing.control import unload
from turnkeeper.testing.faults import FaultStore
from turnkeeper.testing.recorder import History, Recorder
from turnkeeper.testing.suite.base import SuitePart
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS

__all__ = ["Histories"]

MEMORIES = 6
SENDERS = 5
CALLS = 5


def start(recorder: Any, sender: Any, token: str, seen: dict[Any, Any], chance: Random) -> Any:
    """Start one random call of a sender on a recorder, async or blocking."""
    kind = chance.choices(["add", "batch", "set", "swap", "clear", "delete", "messages"], [30, 10, 8, 8, 4, 3, 30])[0]
    if kind == "add":
        return recorder.add(sender, [token])
    if kind == "batch":
        return recorder.add(sender, [f"{token}a", f"{token}b", f"{token}c"])
    if kind == "set":
        return recorder.set(sender, [token])
    if kind == "swap" and sender in seen:
        return recorder.set(sender, [token], if_version=seen[sender])
    return getattr(recorder, kind if kind in ("clear", "delete") else "messages")(sender)


async def send(runtime: Runtime, memory: str, history: History, sender: int, seed: str) -> None:
    """Make the random calls of one sender, now and then cancelled, the memory now and then unloaded."""
    chance = Random(f"{seed}-{memory}-{sender}")
    recorder = Recorder(runtime.memory(memory), history)
    seen: dict[int, Any] = {}
    for number in range(CALLS):
        if chance.random() < 0.1:
            unload(runtime, memory)
        with anyio.CancelScope() as scope, contextlib.suppress(TurnkeeperError):
            if chance.random() < 0.15:
                scope.deadline = anyio.current_time() + chance.random() / 200
            answer = await start(recorder, sender, f"{sender}.{number}", seen, chance)
            if hasattr(answer, "version"):
                seen[sender] = answer.version


async def run(runtimes: list[Runtime], seed: str, faulty: FaultStore | None = None) -> None:
    """Let senders loose on several memories, then check each memory's history with a last read past RAM."""
    histories = {f"m{n}": History() for n in range(MEMORIES)}
    async with anyio.create_task_group() as tasks:
        for memory, history in histories.items():
            for sender in range(SENDERS):
                tasks.start_soon(send, runtimes[sender % len(runtimes)], memory, history, sender, seed)
    if faulty is not None:
        faulty.heal()
    for memory, history in histories.items():
        unload(runtimes[0], memory)
        await Recorder(runtimes[0].memory(memory), history).messages("last")
        history.check()
    stats = runtimes[0].stats()
    assert stats.pending == stats.pending_bytes == 0


class Histories(SuitePart):
    """Each memory is linearizable: each call takes effect at one instant between its start and its answer."""

    @pytest.mark.parametrize("seed", range(3))
    async def test_random_histories_are_linearizable(self, place: Path, seed: int) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with open_runtime(self.make_store(place, None)) as runtime:
                await run([runtime], f"alone-{seed}")

    @pytest.mark.parametrize("seed", range(3))
    async def test_random_histories_are_linearizable_when_the_store_fails(self, place: Path, seed: int) -> None:
        chance = Random(f"faults-{seed}")
        store = FaultStore(self.make_store(place, None))
        with anyio.fail_after(PATIENCE_SECONDS):
            async with open_runtime(store) as runtime:
                for _ in range(3):
                    store.fail_before(chance.randint(1, 2), on=chance.choice(["commit", "load"]))
                    store.fail_after(chance.randint(1, 2))
                await run([runtime], f"faults-{seed}", store)

    @pytest.mark.parametrize("seed", range(3))
    async def test_random_histories_of_two_runtimes_are_linearizable_together(self, place: Path, seed: int) -> None:
        stores: list[Store] = [self.make_store(place, None) for _ in range(2)]
        if not stores[0].shared:
            pytest.skip("one runtime owns this store")
        with anyio.fail_after(PATIENCE_SECONDS):
            async with open_runtime(stores[0]) as one, open_runtime(stores[1]) as other:
                await run([one, other], f"two-{seed}")

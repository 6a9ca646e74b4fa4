"""Promise 1 on random histories.

Adds, sets, clears, deletes and reads by many senders at once, with cancellations by scope and natively, unloads,
failing stores and threads, are linearizable. Cancelled and unknown calls may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import turnkeeper.committer
from turnkeeper import Runtime, TurnkeeperError, open_runtime
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import FaultStore, History, Recorder, SyncRecorder, unload
from turnkeeper.testing.suite.histories import start

pytestmark = pytest.mark.anyio

SENDERS = 6
TURNS = 6


def sender_thread(runtime: Runtime, memory_id: str, history: History, sender: int, seed: str) -> None:
    chance = Random(f"{seed}-{sender}")
    recorder = SyncRecorder(runtime.sync.memory(memory_id), history)
    seen: dict[Any, Any] = {}
    for turn in range(TURNS):
        with contextlib.suppress(TurnkeeperError):
            answer = start(recorder, sender, f"{sender}.{turn}", seen, chance)
            if hasattr(answer, "version"):
                seen[sender] = answer.version


async def sender_task(
    runtime: Runtime,
    history: History,
    sender: int,
    seed: str,
    cancel: Callable[[Any, Random], Awaitable[Any]],
    memory_id: str = "m",
) -> None:
    chance = Random(f"{seed}-{sender}")
    recorder = Recorder(runtime.memory(memory_id), history)
    seen: dict[Any, Any] = {}
    for turn in range(TURNS):
        if chance.random() < 0.1:
            unload(runtime, memory_id)
        for _ in range(chance.randrange(3)):
            await anyio.lowlevel.checkpoint()
        try:
            answer = await cancel(start(recorder, sender, f"{sender}.{turn}", seen, chance), chance)
        except TurnkeeperError:
            continue
        if hasattr(answer, "version"):
            seen[sender] = answer.version


async def by_scope(operation: Any, chance: Random) -> Any:
    """Run an operation; sometimes cancel its scope a few passes of the loop later."""
    if chance.random() < 0.8:
        return await operation
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel_later(passes: int) -> None:
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            group.start_soon(cancel_later, chance.randrange(8))
            answer = None
            # an error must not leave the group, which would wrap it
            with contextlib.suppress(TurnkeeperError):
                answer = await operation
            group.cancel_scope.cancel()
            return answer
    return None


async def natively(operation: Any, chance: Random) -> Any:
    """Run an operation in an asyncio task; sometimes cancel that."""
    if chance.random() < 0.8:
        return await operation
    task = asyncio.ensure_future(operation)
    for _ in range(chance.randrange(8)):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def one_run(store: Store, seed: str, **options: Any) -> None:
    """Let senders loose on one memory, then check what they saw, with a last read by an unloaded memory."""
    chance = Random(seed)
    history = History()
    ways = [by_scope, natively] if asyncio_runs() else [by_scope]
    async with open_runtime(store, **options) as runtime:
        async with anyio.create_task_group() as group:
            for sender in range(SENDERS):
                group.start_soon(sender_task, runtime, history, sender, seed, chance.choice(ways))
        if isinstance(store, FaultStore):
            store.heal()
        unload(runtime, "m")
        await Recorder(runtime.memory("m"), history).messages("last")
        assert runtime.stats().pending == runtime.stats().pending_bytes == 0
    history.check()


def asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture(autouse=True)
def settle_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a store that is out of reach as often as ever, without the real time between."""
    monkeypatch.setattr(turnkeeper.committer, "_SETTLE_WAITS", (0.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("runs", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_random_histories_in_memory(runs: int) -> None:
    for number in range(runs):
        chance = Random(f"memory-{number}")
        store = FaultStore(InMemoryStore())
        for _ in range(chance.randrange(3)):
            (store.fail_before if chance.random() < 0.5 else store.fail_after)(chance.randrange(1, 3))
        if chance.random() < 0.2:
            store.fail_before(4, on="settle")
        await one_run(
            store, f"memory-{number}", mailbox_size=chance.choice([1, 2, 256]), max_pending=chance.choice([2, 99])
        )


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
async def test_random_histories_on_sqlite(tmp_path: Path, shared: bool) -> None:
    for number in range(60):
        chance = Random(f"sqlite-{number}-{shared}")
        store = FaultStore(SQLiteStore(tmp_path / f"{number}.db", shared=shared))
        for _ in range(chance.randrange(3)):
            (store.fail_before if chance.random() < 0.5 else store.fail_after)(chance.randrange(1, 3))
        await one_run(store, f"sqlite-{number}-{shared}", mailbox_size=chance.choice([1, 256]))


async def test_random_histories_of_threads_beside_tasks(store_url: str) -> None:
    for number in range(15):
        history = History()
        async with open_runtime(store_url) as runtime, anyio.create_task_group() as group:
            for sender in range(0, SENDERS, 2):
                seed = f"threads-{number}"
                group.start_soon(anyio.to_thread.run_sync, sender_thread, runtime, f"m{number}", history, sender, seed)
                group.start_soon(sender_task, runtime, history, sender + 1, seed, by_scope, f"m{number}")
        history.check()


async def test_two_runtimes_on_one_shared_file_are_linearizable_together(tmp_path: Path) -> None:
    for number in range(30):
        history = History()
        path = tmp_path / f"{number}.db"
        async with (
            open_runtime(SQLiteStore(path, shared=True)) as one,
            open_runtime(SQLiteStore(path, shared=True)) as other,
            anyio.create_task_group() as group,
        ):
            for sender in range(SENDERS):
                runtime = (one, other)[sender % 2]
                group.start_soon(sender_task, runtime, history, sender, f"two-{number}", by_scope)
        history.check()

"""Promise 1 with turns: what many tasks do at once on one memory, turns among it, is linearizable.

A turn is one add of all that it said, by who opened it. A `commit="each"` turn is an add for each of its adds. What it
reads is not recorded: it is the committed view with its own words. All `on_busy` but "rollback", which takes back what
was seen, and so is no add; that one is the state machine's.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import turnkeeper.committer
from turnkeeper import OutcomeUnknownError, Runtime, TurnInterruptedError, TurnkeeperError, open_runtime
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import FaultStore, History, Recorder, unload

pytestmark = pytest.mark.anyio

SENDERS = 6
STEPS = 6


@pytest.fixture(autouse=True)
def _settle_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnkeeper.committer, "_SETTLE_WAITS", (0.0, 0.0, 0.0, 0.0))


async def passes(chance: Random, most: int = 4) -> None:
    for _ in range(chance.randrange(most)):
        await anyio.lowlevel.checkpoint()


async def turn(runtime: Runtime, history: History, sender: int, token: str, chance: Random) -> None:
    """Hold a turn of two adds, recorded as one."""
    memory = runtime.memory("m")
    options: Any = {"on_busy": chance.choice(["enqueue", "enqueue", "reject", "interrupt"])}
    tokens = [f"{token}a", f"{token}b"]
    with history.record(sender, "add", tokens) as answer:
        async with memory.turn(**options) as turn:
            for said in tokens:
                await passes(chance)
                await turn.add({"role": "user", "content": said})
                if chance.random() < 0.3:
                    assert [message.text for message in await turn.messages()][-1] == said
            if chance.random() < 0.1:
                raise TurnkeeperError("the body failed")
        answer.append(turn.receipt)


async def turn_of_steps(runtime: Runtime, history: History, sender: int, token: str, chance: Random) -> None:
    """Hold a turn whose adds are committed one by one, and recorded so."""
    options: Any = {"on_busy": chance.choice(["enqueue", "interrupt"]), "commit": "each"}
    async with runtime.memory("m").turn(**options) as turn:
        for said in (f"{token}a", f"{token}b"):
            await passes(chance)
            with history.record(sender, "add", [said]) as answer:
                answer.append(await turn.add({"role": "user", "content": said}))


async def sender_task(runtime: Runtime, history: History, sender: int, seed: str) -> None:
    chance = Random(f"{seed}-{sender}")
    recorder = Recorder(runtime.memory("m"), history)
    for step in range(STEPS):
        token = f"{sender}.{step}"
        if chance.random() < 0.1:
            unload(runtime, "m")
        await passes(chance)
        kind = chance.choice(["turn", "turn", "each", "add", "read", "read", "set", "clear"])
        with anyio.CancelScope() as scope:
            if chance.random() < 0.15:
                scope.deadline = anyio.current_time() + chance.random() * 0.01
            try:
                if kind == "turn":
                    await turn(runtime, history, sender, token, chance)
                elif kind == "each":
                    await turn_of_steps(runtime, history, sender, token, chance)
                elif kind == "add":
                    await recorder.add(sender, [token])
                elif kind == "set":
                    await recorder.set(sender, [token])
                elif kind == "clear":
                    await recorder.clear(sender)
                else:
                    await recorder.messages(sender)
            except (OutcomeUnknownError, TurnInterruptedError, TurnkeeperError):
                continue


async def one_run(store: Store, seed: str, **options: Any) -> None:
    """Let senders loose, all of whom come to an end, and check what they saw with a last read of the store."""
    history = History()
    async with open_runtime(store, **options) as runtime:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for sender in range(SENDERS):
                    group.start_soon(sender_task, runtime, history, sender, seed)
        if isinstance(store, FaultStore):
            store.heal()
        unload(runtime, "m")
        await Recorder(runtime.memory("m"), history).messages("last")
        # Who left while a lease that was not given back kept him out is waited for until that runs out.
        with anyio.fail_after(10):
            while runtime.stats().pending:  # noqa: ASYNC110 (a counter)
                await anyio.sleep(0.01)
        assert runtime.stats().pending_bytes == 0
    history.check()


def faulty(store: Store, chance: Random, inline: Any = None) -> FaultStore:
    faulty = FaultStore(store, inline=inline)
    for _ in range(chance.randrange(3)):
        (faulty.fail_before if chance.random() < 0.5 else faulty.fail_after)(chance.randrange(1, 3))
    if chance.random() < 0.2:
        faulty.fail_before(4, on="settle")
    return faulty


@pytest.mark.parametrize("runs", [40, pytest.param(500, marks=pytest.mark.slow)])
async def test_random_turns_in_memory(runs: int) -> None:
    for number in range(runs):
        chance = Random(f"memory-{number}")
        store = faulty(InMemoryStore(), chance, inline=chance.choice([None, False]))
        await one_run(store, f"memory-{number}", mailbox_size=chance.choice([1, 2, 256]))


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
async def test_random_turns_on_sqlite(tmp_path: Path, shared: bool) -> None:
    for number in range(12):
        chance = Random(f"sqlite-{number}-{shared}")
        store = SQLiteStore(tmp_path / f"{number}.db", shared=shared)
        # A lease that was not given back holds everybody up until it runs out.
        await one_run(faulty(store, chance), f"sqlite-{number}", turn_lease=0.2, durability="relaxed")


async def test_two_runtimes_on_one_shared_file_keep_out_of_each_others_turns(tmp_path: Path) -> None:
    for number in range(8):
        history = History()
        path = tmp_path / f"{number}.db"
        async with (
            open_runtime(SQLiteStore(path, shared=True), durability="relaxed") as one,
            open_runtime(SQLiteStore(path, shared=True), durability="relaxed") as other,
        ):
            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    for sender in range(4):
                        group.start_soon(sender_task, (one, other)[sender % 2], history, sender, f"two-{number}")
            await Recorder(one.memory("m"), history).messages("last")
        history.check()

"""Two runtimes on one SQLite file, as two processes have it: a summary replaces what it saw, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from support.schedule import Gate
from turnkeeper import ChatMemory, CompactionAbandonedError, TurnWindow
from windows.saying import system, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[ChatMemory, ChatMemory]]:
    """Return a handle of one memory in each of two runtimes."""
    url = f"sqlite:///{tmp_path}/chats.db?shared=true"
    async with turnkeeper.open_runtime(url) as first, turnkeeper.open_runtime(url) as second:
        yield first.memory("m"), second.memory("m")


async def test_what_another_process_adds_meanwhile_stays(both: tuple[ChatMemory, ChatMemory]) -> None:
    ours, theirs = both
    await say(ours, system("s"), *turns(1, 3))
    async with compacting(ours) as running:
        await say(theirs, *turns(4, 4))
    assert running.returned
    assert await line(theirs) == await line(ours) == "s S1 u3 a3 u4 a4"
    await theirs.add(user("u5"))
    assert await line(ours) == "s S1 u3 a3 u4 a4 u5"


@pytest.mark.parametrize("change", ["compact", "set", "clear", "delete"])
async def test_it_is_abandoned_when_another_process_replaced_what_it_saw(
    change: str, both: tuple[ChatMemory, ChatMemory]
) -> None:
    ours, theirs = both
    await say(ours, *turns(1, 4))
    async with compacting(ours) as running:
        if change == "compact":
            assert await theirs.compact(Model("theirs"), keep=TurnWindow(max_turns=2)) is not None
        elif change == "set":
            await theirs.set(turns(7, 8))
        elif change == "clear":
            await theirs.clear()
        else:
            await theirs.delete()
        expected = await line(theirs)
    assert isinstance(running.error, CompactionAbandonedError)
    assert await line(ours) == await line(theirs) == expected


async def test_of_two_at_once_one_wins(both: tuple[ChatMemory, ChatMemory]) -> None:
    await say(both[0], *turns(1, 4))
    outcomes: list[object] = []
    with Gate() as gate:

        async def compact(memory: ChatMemory, name: str) -> None:
            try:
                outcomes.append(await memory.compact(Model(name, gate=gate), keep=LAST_TURN))
            except CompactionAbandonedError as error:
                outcomes.append(error)

        async with anyio.create_task_group() as tasks:
            for memory, name in zip(both, ("ours", "theirs"), strict=True):
                tasks.start_soon(compact, memory, name)
            await gate.arrival(2)
            gate.open()
    assert sorted(isinstance(outcome, CompactionAbandonedError) for outcome in outcomes) == [False, True]
    assert await line(both[0]) == await line(both[1])
    assert await line(both[0]) in ("ours u4 a4", "theirs u4 a4")


async def test_a_second_compaction_may_be_another_process_s(both: tuple[ChatMemory, ChatMemory]) -> None:
    ours, theirs = both
    await say(ours, *turns(1, 3))
    await ours.compact(Model(), keep=LAST_TURN)
    await say(theirs, *turns(4, 4))
    model = Model("S2")
    await theirs.compact(model, keep=LAST_TURN)
    assert model.calls == [("u3 a3", "S1")]
    assert await line(ours) == "S2 u4 a4"


async def test_the_summary_waits_for_a_turn_in_another_process(both: tuple[ChatMemory, ChatMemory]) -> None:
    ours, theirs = both
    await say(ours, *turns(1, 3))
    model = Model()

    async def compact() -> None:
        assert await ours.compact(model, keep=LAST_TURN) is not None

    async with anyio.create_task_group() as tasks, theirs.turn() as turn:
        await turn.add(user("u4"))
        tasks.start_soon(compact)
        while not model.calls:
            await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert await line(theirs) == "u1 a1 u2 a2 u3 a3"
    assert await line(theirs) == await line(ours) == "S1 u3 a3 u4"

"""Summaries that keep every word: whoever fails, leaves or gets in the way, nothing is lost, doubled or torn."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import turnkeeper
from compaction.summing import LAST_TURN
from turnkeeper import ChatMemory, CompactionPolicy, Message, MessageWindow, Runtime, TurnkeeperError, TurnWindow
from turnkeeper.testing import unload
from windows.saying import answer, user

pytestmark = pytest.mark.anyio

ROUNDS = 60


class ModelFailedError(Exception):
    """The provider refused."""


class Conversation:
    """Many tasks on one memory of one or two runtimes, and what became of each of their turns.

    Attributes:
        sure: turns whose writers were told that they are stored.
        never: turns whose writers were told that they are not.
    """

    def __init__(self, runtimes: list[Runtime], chance: Random) -> None:
        self._runtimes = runtimes
        self._chance = chance
        self.sure: list[int] = []
        self.never: list[int] = []

    async def summarise(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        """Keep every word, after a while; fail or say nothing now and then."""
        for _ in range(self._chance.randrange(30)):
            await checkpoint()
        what = self._chance.random()
        if what < 0.1:
            raise ModelFailedError
        return "" if what < 0.15 else words((*summary, *messages))

    async def step(self, number: int) -> None:
        """Do one thing, whatever comes of it."""
        runtime = self._chance.choice(self._runtimes)
        memory = runtime.memory("m")
        what = self._chance.choice(["turn", "each", "add", "interrupt", "compact", "compact", "unload"])
        if what == "unload":
            unload(runtime, "m")
            return
        try:
            if what == "compact":
                keeps: list[TurnWindow | int] = [1, 5, LAST_TURN]
                await memory.compact(self.summarise, keep=self._chance.choice(keeps))
                return
            if what == "add":
                await memory.add(user(f"u{number}"), answer(f"a{number}"))
            else:
                await self._turn(memory, number, what)
        except ModelFailedError:
            return
        except TurnkeeperError:
            if what in ("turn", "add", "interrupt"):
                self.never.append(number)
            return
        self.sure.append(number)

    async def _turn(self, memory: ChatMemory, number: int, what: str) -> None:
        options: dict[str, Any] = {"each": {"commit": "each"}, "interrupt": {"on_busy": "interrupt"}}.get(what, {})
        async with memory.turn(**options) as turn:
            await turn.add(user(f"u{number}"))
            for _ in range(self._chance.randrange(5)):
                await checkpoint()
            await turn.add(answer(f"a{number}"))


def words(messages: tuple[Message, ...]) -> str:
    return " ".join(message.text for message in messages)


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_every_word_is_there_once_and_in_its_place(store_url: str, seed: int, by_itself: bool) -> None:
    chance = Random(seed)
    runtimes: list[Runtime] = []
    talk = Conversation(runtimes, chance)
    policy = (
        CompactionPolicy(talk.summarise, when=MessageWindow(9), keep=TurnWindow(max_turns=2)) if by_itself else None
    )
    async with turnkeeper.open_runtime(store_url, compaction=policy) as first:
        runtimes.append(first)
        if "shared" in store_url:
            async with turnkeeper.open_runtime(store_url, compaction=policy) as second:
                runtimes.append(second)
                await converse(talk, chance)
                runtimes.remove(second)
        else:
            await converse(talk, chance)
        unload(first, "m")
        said = words(await first.memory("m").messages()).split()
    assert len(set(said)) == len(said), "nothing twice"
    for number in talk.sure:
        assert f"u{number}" in said, "nothing lost"
        assert said.index(f"a{number}") == said.index(f"u{number}") + 1, "nothing torn"
    assert not {f"u{number}" for number in talk.never} & set(said), "no trace of what was refused"
    assert len(talk.sure) > ROUNDS // 8


async def converse(talk: Conversation, chance: Random) -> None:
    """Let everybody speak at once; one in five leaves somewhere on the way."""

    async def take_part(number: int) -> None:
        with anyio.CancelScope() as scope:
            if chance.random() < 0.2:
                tasks.start_soon(interfere, scope, chance.randrange(40))
            await talk.step(number)

    async def interfere(scope: anyio.CancelScope, passes: int) -> None:
        for _ in range(passes):
            await checkpoint()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number in range(ROUNDS):
            tasks.start_soon(take_part, number)
            for _ in range(chance.randrange(20)):
                await checkpoint()

"""Summarisers that stop, fail and take notes; conversations in a few words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from support.schedule import Gate
from turnkeeper import ChatMemory, Message, Receipt, TurnkeeperError, TurnWindow
from windows.saying import Fields, answer, spoken, user

LAST_TURN = TurnWindow(max_turns=1)


class Model:
    """An async summariser.

    Args:
        replies: what it returns or raises, one after the other; then `S1`, `S2`, by the number of the call.
        gate: where it stops before it replies.

    Attributes:
        replies: those that are left.
        calls: messages and summary of each call, in a line each.
    """

    def __init__(self, *replies: Any, gate: Gate | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.replies = list(replies)
        self._gate = gate

    async def __call__(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> Any:
        """Note what there is to sum up."""
        self.calls.append((spoken(messages), spoken(summary)))
        number = len(self.calls)
        if self._gate is not None:
            await self._gate.stop()
        reply = self.replies.pop(0) if self.replies else f"S{number}"
        if isinstance(reply, BaseException):
            raise reply
        return reply


@dataclass
class Running:
    """A compaction that stands at its gate, and afterwards what came of it."""

    model: Model
    receipt: Receipt | None = None
    error: TurnkeeperError | None = None
    returned: bool = field(default=False)


@asynccontextmanager
async def compacting(memory: ChatMemory, *replies: Any, keep: TurnWindow | int = LAST_TURN) -> AsyncIterator[Running]:
    """Run the block while a summariser is at work, and then let it end."""
    with Gate() as gate:
        running = Running(Model(*replies, gate=gate))

        async def run() -> None:
            try:
                running.receipt = await memory.compact(running.model, keep=keep)
                running.returned = True
            except TurnkeeperError as error:
                running.error = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await gate.arrival()
            yield running
            gate.open()


def turns(first: int, last: int) -> list[Fields]:
    """Return so many turns: `u1 a1 u2 a2 …`."""
    return [each for n in range(first, last + 1) for each in (user(f"u{n}"), answer(f"a{n}"))]


async def say(memory: ChatMemory, *said: Fields) -> None:
    """Add each as an entry of its own."""
    for each in said:
        await memory.add(each)


async def line(memory: ChatMemory, **how: Any) -> str:
    """Read, as one line."""
    return spoken(await memory.messages(**how))

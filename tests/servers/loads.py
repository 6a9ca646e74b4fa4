"""Many tasks that add to a few memories and read them, recorded, until enough was answered after a fault is over."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import anyio

from servers.faults import judge_histories
from turnkeeper import OutcomeUnknownError, Runtime, StoreUnavailableError
from turnkeeper.testing import History, Recorder

__all__ = ["Load"]

_SENDERS: Final = 12
_MEMORIES: Final = 4
_PAUSE: Final = 0.01  # seconds that a sender waits after an error, so that it does not run hot while a server is away


class Load:
    """Senders at work on a runtime.

    Attributes:
        histories: what they did, by memory.
        told: how often they were told what.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.histories = {f"memory-{number}": History() for number in range(_MEMORIES)}
        self.told: Counter[str] = Counter()
        self._runtime = runtime
        self._answered = 0
        self._wanted = 0
        self._enough = anyio.Event()
        self._stopping = False

    async def during(self, fault: Callable[[], Awaitable[object]], *, before: int = 60, after: int = 120) -> None:
        """Have a fault happen in the middle of the load.

        Args:
            fault: until it is over.
            before: answers before it.
            after: answers after it.
        """
        async with anyio.create_task_group() as tasks:
            for number in range(_SENDERS):
                tasks.start_soon(self._work, number)
            await self._answers(before)
            await fault()
            await self._answers(after)
            self._stopping = True

    def judge(self, url: str) -> int:
        """Hold what they were told against what is stored; return how many messages there are."""
        return judge_histories(self.histories, url)

    async def _answers(self, more: int) -> None:
        self._wanted, self._enough = self._answered + more, anyio.Event()
        await self._enough.wait()

    async def _work(self, number: int) -> None:
        sender, chance = str(number), Random(number)
        recorders = [Recorder(self._runtime.memory(memory), history) for memory, history in self.histories.items()]
        sent = 0
        while not self._stopping:
            recorder = chance.choice(recorders)
            if chance.random() < 0.2:
                operate = functools.partial(recorder.messages, sender)
            else:
                tokens = [f"{sender} {sent + offset}" for offset in range(chance.randint(1, 3))]
                operate = functools.partial(recorder.add, sender, tokens)
                sent += len(tokens)
            try:
                await operate()
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self.told[type(error).__name__] += 1
                await anyio.sleep(_PAUSE)
                continue
            self.told["ok"] += 1
            self._answered += 1
            if self._answered == self._wanted:
                self._enough.set()

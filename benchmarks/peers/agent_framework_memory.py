"""Microsoft Agent Framework: `InMemoryHistoryProvider`, with message ids, without which it drops real repeats."""

import itertools
from collections import defaultdict
from contextlib import asynccontextmanager

from agent_framework import InMemoryHistoryProvider, Message

TITLE = "Agent Framework InMemoryHistoryProvider"
PACKAGES = DISTRIBUTIONS = ("agent-framework-core",)
DURABILITY = "memory"
BACKENDS = ("asyncio", "uvloop", "trio")


class Histories:
    def __init__(self, provider):
        self._provider, self._states, self._ids = provider, defaultdict(dict), itertools.count()

    async def add(self, conversation, messages):
        made = [Message(each["role"], [each["content"]], message_id=f"m{next(self._ids)}") for each in messages]
        await self._provider.save_messages(conversation, made, state=self._states[conversation])

    async def read(self, conversation):
        kept = await self._provider.get_messages(conversation, state=self._states[conversation])
        return [{"role": str(message.role), "content": message.text} for message in kept]


@asynccontextmanager
async def opened(place, *, window):
    yield Histories(InMemoryHistoryProvider())

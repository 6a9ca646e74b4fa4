"""OpenAI Agents SDK: `SQLiteSession` in memory, its default."""

from contextlib import asynccontextmanager

from agents.memory.sqlite_session import SQLiteSession

TITLE = "OpenAI Agents SQLiteSession, memory"
PACKAGES = DISTRIBUTIONS = ("openai-agents",)
DURABILITY = "memory"
BACKENDS = ("asyncio", "uvloop")


class _Sessions(dict):
    def __missing__(self, conversation):
        return self.setdefault(conversation, SQLiteSession(conversation))

    async def add(self, conversation, messages):
        await self[conversation].add_items(list(messages))

    async def read(self, conversation):
        return await self[conversation].get_items()


@asynccontextmanager
async def opened(place, *, window):
    sessions = _Sessions()
    yield sessions
    for session in sessions.values():
        session.close()

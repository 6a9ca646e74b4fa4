"""OpenAI Agents SDK: `SQLAlchemySession` on SQLite, all conversations on one engine."""

from contextlib import asynccontextmanager

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

TITLE = "OpenAI Agents SQLAlchemySession, SQLite"
PACKAGES = ("openai-agents[sqlalchemy]", "sqlalchemy[asyncio]", "aiosqlite")
DISTRIBUTIONS = ("openai-agents", "sqlalchemy")
DURABILITY = "power cut"
BACKENDS = ("asyncio", "uvloop")


class _Sessions(dict):
    def __init__(self, engine):
        self.engine = engine

    def __missing__(self, conversation):
        return self.setdefault(conversation, SQLAlchemySession(conversation, engine=self.engine, create_tables=True))

    async def add(self, conversation, messages):
        await self[conversation].add_items(list(messages))

    async def read(self, conversation):
        return await self[conversation].get_items()


@asynccontextmanager
async def opened(place, *, window):
    engine = create_async_engine(f"sqlite+aiosqlite:///{place}/chats.db")
    yield _Sessions(engine)
    await engine.dispose()

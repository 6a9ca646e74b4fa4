"""LangChain community: `SQLChatMessageHistory` on SQLite in its async mode."""

from contextlib import asynccontextmanager

from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import convert_to_messages, convert_to_openai_messages
from sqlalchemy.ext.asyncio import create_async_engine

TITLE = "LangChain SQLChatMessageHistory, SQLite"
PACKAGES = ("langchain-community", "sqlalchemy[asyncio]", "aiosqlite")
DISTRIBUTIONS = ("langchain-community", "sqlalchemy")
DURABILITY = "power cut"  # SQLite's own default: a rollback journal with synchronous=FULL
BACKENDS = ("asyncio", "uvloop")


class _Histories(dict):
    def __init__(self, engine):
        self.engine = engine

    def __missing__(self, conversation):
        history = SQLChatMessageHistory(conversation, connection=self.engine, async_mode=True)
        return self.setdefault(conversation, history)

    async def add(self, conversation, messages):
        await self[conversation].aadd_messages(convert_to_messages(messages))

    async def read(self, conversation):
        return convert_to_openai_messages(await self[conversation].aget_messages())


@asynccontextmanager
async def opened(place, *, window):
    engine = create_async_engine(f"sqlite+aiosqlite:///{place}/chats.db")
    histories = _Histories(engine)
    await histories["first"].aget_messages()  # else the first adds race to make the table
    yield histories
    await engine.dispose()

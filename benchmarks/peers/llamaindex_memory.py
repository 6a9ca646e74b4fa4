"""LlamaIndex: `Memory` on a SQLite file, one object for each conversation and one store."""

from contextlib import asynccontextmanager

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory

TITLE = "LlamaIndex Memory, SQLite"
PACKAGES = ("llama-index-core", "sqlalchemy[asyncio]", "aiosqlite", "greenlet")
DISTRIBUTIONS = ("llama-index-core", "sqlalchemy")
DURABILITY = "power cut"
BACKENDS = ("asyncio", "uvloop")


class _Memories(dict):
    def __init__(self, uri):
        self.uri = uri

    def __missing__(self, conversation):
        options = {"token_limit": 10**9, "tokenizer_fn": str.split, "async_database_uri": self.uri}
        return self.setdefault(conversation, Memory.from_defaults(session_id=conversation, **options))

    async def add(self, conversation, messages):
        made = [ChatMessage(role=message["role"], content=message["content"]) for message in messages]
        await self[conversation].aput_messages(made)

    async def read(self, conversation):
        kept = await self[conversation].aget_all()
        return [{"role": message.role.value, "content": message.content} for message in kept]


@asynccontextmanager
async def opened(place, *, window):
    memories = _Memories(f"sqlite+aiosqlite:///{place}/chats.db")
    await memories["first"].aget_all()  # else the first puts race to make the table
    yield memories

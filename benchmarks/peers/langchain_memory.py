"""LangChain: `InMemoryChatMessageHistory`, one for each conversation."""

from contextlib import asynccontextmanager

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import convert_to_messages, convert_to_openai_messages

TITLE = "LangChain InMemoryChatMessageHistory"
PACKAGES = DISTRIBUTIONS = ("langchain-core",)
DURABILITY = "memory"
TOOLS = True


class _Histories(dict):
    def __missing__(self, conversation):
        return self.setdefault(conversation, InMemoryChatMessageHistory())

    async def add(self, conversation, messages):
        await self[conversation].aadd_messages(convert_to_messages(messages))

    async def read(self, conversation):
        return convert_to_openai_messages(list(await self[conversation].aget_messages()))


@asynccontextmanager
async def opened(place, *, window):
    yield _Histories()

"""AutoGen: `UnboundedChatCompletionContext`, one for each conversation."""

from contextlib import asynccontextmanager

from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, UserMessage

TITLE = "AutoGen UnboundedChatCompletionContext"
PACKAGES = DISTRIBUTIONS = ("autogen-core",)
DURABILITY = "memory"
BACKENDS = ("asyncio", "uvloop", "trio")


class _Contexts(dict):
    def __missing__(self, conversation):
        return self.setdefault(conversation, UnboundedChatCompletionContext())

    async def add(self, conversation, messages):
        for message in messages:
            kind = UserMessage if message["role"] == "user" else AssistantMessage
            await self[conversation].add_message(kind(content=message["content"], source="s"))

    async def read(self, conversation):
        return [{"role": each.source, "content": each.content} for each in await self[conversation].get_messages()]


@asynccontextmanager
async def opened(place, *, window):
    yield _Contexts()

"""pydantic-ai: `InMemoryConversationStore`; load, append, save, again where another one was faster."""

from contextlib import asynccontextmanager

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

TITLE = "pydantic-ai InMemoryConversationStore"
PACKAGES = DISTRIBUTIONS = ("pydantic-ai-slim",)
DURABILITY = "memory"
BACKENDS = ("asyncio", "uvloop", "trio")


def _made(message):
    if message["role"] == "user":
        return ModelRequest(parts=[UserPromptPart(message["content"])])
    return ModelResponse(parts=[TextPart(message["content"])])


class _Conversations:
    def __init__(self):
        self._store = InMemoryConversationStore()

    async def add(self, conversation, messages):
        loaded = await self._store.load(conversation) or Conversation(conversation_id=conversation)
        loaded.messages.extend(map(_made, messages))
        await self._store.save(loaded)

    async def read(self, conversation):
        loaded = await self._store.load(conversation)
        return [{"role": each.kind, "content": each.parts[0].content} for each in (loaded.messages if loaded else ())]


@asynccontextmanager
async def opened(place, *, window):
    yield _Conversations()

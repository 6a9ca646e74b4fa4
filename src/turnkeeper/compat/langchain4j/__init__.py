"""LangChain4j's chat memories, drop-in: the names in Python's spelling, the races gone. See docs/langchain4j.md."""

from turnkeeper.compat.langchain4j.conversations import MessageList
from turnkeeper.compat.langchain4j.errors import AsyncNotSupportedError, UnsupportedByStoreError
from turnkeeper.compat.langchain4j.homes import StoreHost
from turnkeeper.compat.langchain4j.ids import IdCodec, decode_id, encode_id
from turnkeeper.compat.langchain4j.memory import ChatMemory
from turnkeeper.compat.langchain4j.message_window import MessageWindowChatMemory
from turnkeeper.compat.langchain4j.native_store import StoreChatMemoryStore
from turnkeeper.compat.langchain4j.service import ChatMemoryProvider, ChatMemoryService
from turnkeeper.compat.langchain4j.stores import (
    ChatMemoryStore,
    InMemoryChatMemoryStore,
    SingleSlotChatMemoryStore,
)
from turnkeeper.compat.langchain4j.token_window import TokenCountEstimator, TokenWindowChatMemory

__all__ = [
    "AsyncNotSupportedError",
    "ChatMemory",
    "ChatMemoryProvider",
    "ChatMemoryService",
    "ChatMemoryStore",
    "IdCodec",
    "InMemoryChatMemoryStore",
    "MessageList",
    "MessageWindowChatMemory",
    "SingleSlotChatMemoryStore",
    "StoreChatMemoryStore",
    "StoreHost",
    "TokenCountEstimator",
    "TokenWindowChatMemory",
    "UnsupportedByStoreError",
    "decode_id",
    "encode_id",
]

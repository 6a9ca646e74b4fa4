"""turnkeeper: every conversation's memory is an actor, so any number of tasks can use it at once."""

import logging

from turnkeeper.config import RuntimeOptions, Settings
from turnkeeper.errors import (
    ConflictError,
    ContentionError,
    IdempotencyMismatchError,
    InvalidArgumentError,
    InvalidMemoryIdError,
    InvalidMessageError,
    InvalidStoreURLError,
    MemoryCorruptError,
    MissingExtraError,
    OutcomeUnknownError,
    OverloadedError,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreError,
    StoreFormatError,
    StoreInUseError,
    StoreUnavailableError,
    TurnkeeperError,
)
from turnkeeper.log import Receipt, Version
from turnkeeper.memory import ChatMemory
from turnkeeper.messages import (
    AssistantMessage,
    Message,
    MessageLike,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.stats import MemoryStats, RuntimeStats
from turnkeeper.sync import SyncChatMemory, SyncRuntime, open_sync_runtime
from turnkeeper.windows import Messages, Unbounded, Window

__all__ = [
    "AssistantMessage",
    "ChatMemory",
    "ConflictError",
    "ContentionError",
    "IdempotencyMismatchError",
    "InvalidArgumentError",
    "InvalidMemoryIdError",
    "InvalidMessageError",
    "InvalidStoreURLError",
    "MemoryCorruptError",
    "MemoryStats",
    "Message",
    "MessageLike",
    "Messages",
    "MissingExtraError",
    "OutcomeUnknownError",
    "OverloadedError",
    "Receipt",
    "Runtime",
    "RuntimeClosedError",
    "RuntimeOptions",
    "RuntimeStats",
    "RuntimeUsageError",
    "Settings",
    "StoreError",
    "StoreFormatError",
    "StoreInUseError",
    "StoreUnavailableError",
    "SyncChatMemory",
    "SyncRuntime",
    "SystemMessage",
    "ToolCall",
    "ToolMessage",
    "TurnkeeperError",
    "Unbounded",
    "UserMessage",
    "Version",
    "Window",
    "__version__",
    "open_runtime",
    "open_sync_runtime",
]

__version__ = "0.1.0"

logging.getLogger("turnkeeper").addHandler(logging.NullHandler())

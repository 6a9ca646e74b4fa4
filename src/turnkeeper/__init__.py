"""turnkeeper: every conversation's memory is an actor, so any number of tasks can use it at once."""

import logging

from turnkeeper.config import RuntimeOptions, Settings
from turnkeeper.errors import (
    AcknowledgedDataLostError,
    CompactionAbandonedError,
    CompactionError,
    ConflictError,
    ContentionError,
    DecryptionError,
    HistoryPrunedError,
    IdempotencyMismatchError,
    InvalidArgumentError,
    InvalidMemoryIdError,
    InvalidMessageError,
    InvalidStoreURLError,
    MemoryCorruptError,
    MemoryExistsError,
    MessageNotFoundError,
    MissingExtraError,
    NestedTurnError,
    OutcomeUnknownError,
    OverloadedError,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreError,
    StoreFormatError,
    StoreInUseError,
    StoreUnavailableError,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnConflictError,
    TurnEndedError,
    TurnInterruptedError,
    TurnkeeperError,
    WindowOverflowError,
)
from turnkeeper.events import Notice, Reset
from turnkeeper.history import HistoryEntry, HistoryPage
from turnkeeper.log import Receipt, Removed, Version
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
from turnkeeper.metadata import Metadata
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.policies import CompactionPolicy, RetentionPolicy
from turnkeeper.registry import Erasure, MemoryPage
from turnkeeper.searching import SearchHit, SearchPage
from turnkeeper.stats import MemoryStats, RuntimeStats
from turnkeeper.sync import (
    SyncChatMemory,
    SyncMemoryWatch,
    SyncRuntime,
    SyncRuntimeWatch,
    SyncTurn,
    open_sync_runtime,
)
from turnkeeper.tokens import BpeCounter, CharacterCounter, PartCosts, TokenCounter
from turnkeeper.turns import Turn
from turnkeeper.watches import MemoryWatch, RuntimeWatch
from turnkeeper.windows import Messages, MessageWindow, TokenWindow, TurnWindow, Unbounded, Window

__all__ = [
    "AcknowledgedDataLostError",
    "AssistantMessage",
    "BpeCounter",
    "CharacterCounter",
    "ChatMemory",
    "CompactionAbandonedError",
    "CompactionError",
    "CompactionPolicy",
    "ConflictError",
    "ContentionError",
    "DecryptionError",
    "Erasure",
    "HistoryEntry",
    "HistoryPage",
    "HistoryPrunedError",
    "IdempotencyMismatchError",
    "InvalidArgumentError",
    "InvalidMemoryIdError",
    "InvalidMessageError",
    "InvalidStoreURLError",
    "MemoryCorruptError",
    "MemoryExistsError",
    "MemoryPage",
    "MemoryStats",
    "MemoryWatch",
    "Message",
    "MessageLike",
    "MessageNotFoundError",
    "MessageWindow",
    "Messages",
    "Metadata",
    "MissingExtraError",
    "NestedTurnError",
    "Notice",
    "OutcomeUnknownError",
    "OverloadedError",
    "PartCosts",
    "Receipt",
    "Removed",
    "Reset",
    "RetentionPolicy",
    "Runtime",
    "RuntimeClosedError",
    "RuntimeOptions",
    "RuntimeStats",
    "RuntimeUsageError",
    "RuntimeWatch",
    "SearchHit",
    "SearchPage",
    "Settings",
    "StoreError",
    "StoreFormatError",
    "StoreInUseError",
    "StoreUnavailableError",
    "SyncChatMemory",
    "SyncMemoryWatch",
    "SyncRuntime",
    "SyncRuntimeWatch",
    "SyncTurn",
    "SystemMessage",
    "TokenCounter",
    "TokenWindow",
    "ToolCall",
    "ToolMessage",
    "Turn",
    "TurnAlreadyCommittedError",
    "TurnBusyError",
    "TurnConflictError",
    "TurnEndedError",
    "TurnInterruptedError",
    "TurnWindow",
    "TurnkeeperError",
    "Unbounded",
    "UserMessage",
    "Version",
    "Window",
    "WindowOverflowError",
    "__version__",
    "open_runtime",
    "open_sync_runtime",
]

__version__ = "0.1.0"

logging.getLogger("turnkeeper").addHandler(logging.NullHandler())

"""Zerda's conversation memories (zerda 0.1.0), drop-in: change the import and keep the rest. See docs/zerda.md."""

from turnkeeper.compat.zerda.base import BaseMemory
from turnkeeper.compat.zerda.buffer import ConversationBufferMemory
from turnkeeper.compat.zerda.summary import ConversationSummaryMemory
from turnkeeper.compat.zerda.window import ConversationBufferWindowMemory

__all__ = [
    "BaseMemory",
    "ConversationBufferMemory",
    "ConversationBufferWindowMemory",
    "ConversationSummaryMemory",
]

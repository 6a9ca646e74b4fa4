"""The blocking facade: the same names, arguments, results and errors for threads and plain scripts."""

from turnkeeper.sync.memory import SyncChatMemory
from turnkeeper.sync.runtime import SyncRuntime, open_sync_runtime
from turnkeeper.sync.turn import SyncTurn
from turnkeeper.sync.watching import SyncMemoryWatch, SyncRuntimeWatch

__all__ = [
    "SyncChatMemory",
    "SyncMemoryWatch",
    "SyncRuntime",
    "SyncRuntimeWatch",
    "SyncTurn",
    "open_sync_runtime",
]

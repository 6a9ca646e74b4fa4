"""The blocking facade: the same names, arguments, results and errors for threads and plain scripts."""

from turnkeeper.sync.memory import SyncChatMemory
from turnkeeper.sync.runtime import SyncRuntime, open_sync_runtime
from turnkeeper.sync.turn import SyncTurn

__all__ = ["SyncChatMemory", "SyncRuntime", "SyncTurn", "open_sync_runtime"]

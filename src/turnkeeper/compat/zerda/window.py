"""The memory that keeps the last exchanges."""

from __future__ import annotations

from typing import Any, Literal

from turnkeeper.compat.zerda.buffer import ConversationBufferMemory
from turnkeeper.compat.zerda.mirror import Kind
from turnkeeper.errors import InvalidArgumentError

__all__ = ["ConversationBufferWindowMemory"]


class ConversationBufferWindowMemory(ConversationBufferMemory):
    """Keeps the last `k` exchanges; what leaves the window leaves the store in the same commit.

    Args:
        k: exchanges, at least 1.
        history: "keep": the store keeps what leaves the window, and objects with a larger one show it again.
        kwargs: those of `ConversationBufferMemory`.

    Raises:
        ValueError: `k` is below 1.
        TypeError: `k` is no `int`.

    Attributes:
        k: as given.
    """

    def __init__(self, k: int = 5, *, history: Literal["keep", "window"] = "window", **kwargs: Any) -> None:
        """Keep the arguments; no I/O."""
        if k <= 0:
            raise InvalidArgumentError("k must be at least 1: a window shows something")
        if not isinstance(k, int):
            raise TypeError(f"k must be an int, not a {type(k).__name__}")
        if history not in ("keep", "window"):
            raise InvalidArgumentError("history must be 'keep' or 'window'")
        self.k: int = k
        self._history = history
        super().__init__(**kwargs)

    def _kind(self) -> Kind:
        return super()._kind()._replace(most=self.k, prunes=self._history == "window")

    def get_memory_stats(self) -> dict[str, Any]:
        """Return what the buffer's say, `window_size` and `is_full`; costs O(1)."""
        stats = super().get_memory_stats()
        return stats | {
            "type": "ConversationBufferWindowMemory",
            "window_size": self.k,
            "is_full": stats["message_count"] >= self.k,
        }

    def get_window_info(self) -> dict[str, Any]:
        """Return `current_size`, `max_size`, `available_slots` and `is_full`."""
        size = len(self._chat)
        return {
            "current_size": size,
            "max_size": self.k,
            "available_slots": self.k - size,
            "is_full": size >= self.k,
        }

"""The memory that keeps all exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time
from typing import Any

from turnkeeper.compat.zerda.base import LiveMemory
from turnkeeper.compat.zerda.mirror import Kind
from turnkeeper.opening import Runtime
from turnkeeper.stores import Store
from turnkeeper.sync import SyncRuntime

__all__ = ["ConversationBufferMemory", "format_exchanges"]


class ConversationBufferMemory(LiveMemory):
    """Keeps the whole conversation. Any number of threads, tasks and objects may use one conversation at once.

    Every method may raise what `SyncChatMemory` raises; on the event loop's own thread of the given `runtime` the
    blocking ones raise `RuntimeUsageError` with the name of what to call there.

    Args:
        return_messages: `load_memory_variables` returns the live list, not text.
        input_key: where `save_context` finds what the user said.
        output_key: where it finds the answer.
        memory_key: the name under which `load_memory_variables` returns the conversation.
        memory_id: names the conversation, so that other objects can share it; None: this object's own, which in memory
            ends with the object.
        store: URL of a store, or a `Store`, in a runtime that the whole process shares; None: in memory.
        runtime: an open runtime to live in, instead of a store.

    Raises:
        InvalidMemoryIdError: the id breaks the rules.
        InvalidArgumentError: a store and a runtime were given, or what is neither.

    Attributes:
        return_messages: as given; may be changed, as may the keys.
        input_key: as given.
        output_key: as given.
        memory_key: as given.
    """

    def __init__(
        self,
        return_messages: bool = False,
        input_key: str = "input",
        output_key: str = "output",
        memory_key: str = "history",
        *,
        memory_id: str | None = None,
        store: str | Store | None = None,
        runtime: Runtime | SyncRuntime | None = None,
    ) -> None:
        """Keep the arguments; no I/O."""
        super().__init__(self._kind(), memory_id, store, runtime)
        self.return_messages: bool = return_messages
        self.input_key: str = input_key
        self.output_key: str = output_key
        self.memory_key: str = memory_key

    def _kind(self) -> Kind:
        return Kind(_characters)

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Append an exchange with the time of now; where a key is missing, None is kept.

        Raises:
            InvalidMessageError: the store can't carry a value as JSON; nothing was changed.
        """
        exchange = {
            "input": inputs.get(self.input_key),
            "output": outputs.get(self.output_key),
            "timestamp": time(),
        }
        self._chat.save((exchange,), "await memory.asave_context(…)")

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the conversation under `memory_key`: text, or with `return_messages` the live list itself.

        Args:
            inputs: not used.
        """
        self._chat.handle("await memory.aload_memory_variables(…)")
        if self.return_messages:
            self._chat.look(lambda: None)
            return {self.memory_key: self._chat}
        return {self.memory_key: self._format_messages_as_text()}

    def _format_messages_as_text(self) -> str:
        """Return the conversation as text; a subclass may have a form of its own."""
        return format_exchanges(self.chat_memory)

    def get_memory_stats(self) -> dict[str, Any]:
        """Return `type`, `message_count` (exchanges), `total_characters` and `estimated_tokens`; costs O(1)."""
        totals = self._chat.totals()
        return {
            "type": "ConversationBufferMemory",
            "message_count": totals.exchanges,
            "total_characters": totals.amount,
            "estimated_tokens": totals.amount // 4,
        }

    def get_messages(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return a list of the exchanges.

        Args:
            limit: only the last so many; None or 0: all; a negative one leaves out so many of the first.
        """
        exchanges = self._chat.snapshot()
        return exchanges[-limit:] if limit else exchanges


def format_exchanges(exchanges: Iterable[Mapping[str, Any]]) -> str:
    """Return exchanges as text."""
    return "\n".join([f"user: {exchange['input']}\nassistant: {exchange['output']}" for exchange in exchanges])


def _characters(said: object, answered: object) -> int:
    return len(str(said)) + len(str(answered))

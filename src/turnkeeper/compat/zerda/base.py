"""What a memory is, and what all of them share here: a live list in some runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from uuid import uuid4

import anyio

from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.zerda.live import LiveList, LiveWindow
from turnkeeper.compat.zerda.mirror import Kind
from turnkeeper.compat.zerda.references import drop_references_with
from turnkeeper.names import memory_name
from turnkeeper.opening import Runtime
from turnkeeper.stores import Store
from turnkeeper.sync import SyncChatMemory, SyncRuntime

__all__ = ["BaseMemory", "LiveMemory"]


class BaseMemory(ABC):
    """What every memory can do; derive from it to make one of your own."""

    @abstractmethod
    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Remember an exchange."""

    @abstractmethod
    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return what is remembered, under the name that a prompt knows it by."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    def get_memory_stats(self) -> dict[str, Any]:
        """Return the class's name as `type`, and 0 as `size`."""
        return {"type": type(self).__name__, "size": 0}


class LiveMemory(BaseMemory):
    """A memory whose `chat_memory` is a live list; see `ConversationBufferMemory` for the arguments."""

    def __init__(
        self, kind: Kind, memory_id: str | None, store: str | Store | None, runtime: Runtime | SyncRuntime | None
    ) -> None:
        """Find the runtime; no I/O."""
        host = runtime_for(store, runtime)
        name = memory_name(f"zerda-{uuid4().hex}" if memory_id is None else memory_id)
        kind_of_list = LiveList if kind.most is None else LiveWindow
        self._chat: LiveList = kind_of_list(host, name, kind, fresh=memory_id is None)
        if memory_id is None and host.forgets:
            # Nobody else knows it: it goes when the list does, which is what the user may still hold.
            host.delete_with(self._chat, name)
            drop_references_with(self._chat, host, name)

    @property
    def chat_memory(self) -> LiveList:
        """The exchanges as they are now: a live list. Assigning replaces them, all of them or none."""
        return self._chat

    @chat_memory.setter
    def chat_memory(self, exchanges: Iterable[Mapping[Any, Any]]) -> None:
        if exchanges is not self._chat:  # as `memory.chat_memory += […]` does
            self._chat[:] = list(exchanges)

    @property
    def memory_id(self) -> str:
        """The memory's id in its runtime; another object with it is the same conversation."""
        return self._chat.name.id

    @property
    def native(self) -> SyncChatMemory:
        """The memory's native handle for blocking code: each exchange is a user message and an assistant message."""
        return self._chat.handle()

    def clear(self) -> None:
        """Forget everything."""
        self._chat.wipe()

    async def asave_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """`save_context` without blocking the event loop, whichever it is: it runs in a worker thread.

        A caller that is cancelled while it waits for a thread has saved nothing; afterwards the exchange is saved,
        whole, and the caller sees only its cancellation.
        """
        await anyio.to_thread.run_sync(self.save_context, inputs, outputs)

    async def aload_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """`load_memory_variables` without blocking the event loop; it may be cancelled at any time."""
        return await anyio.to_thread.run_sync(self.load_memory_variables, inputs)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a memory belongs to its process and can't be pickled or copied; make a new one and extend its chat_memory"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory_id={self.memory_id!r}>"

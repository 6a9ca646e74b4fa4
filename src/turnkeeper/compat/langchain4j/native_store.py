"""One of turnkeeper's stores, looking like LangChain4j's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Literal, final

from turnkeeper.compat.default_runtime import CompatRuntime, runtime_for
from turnkeeper.compat.langchain4j.conversations import NativeConversation
from turnkeeper.compat.langchain4j.ids import IdCodec, encode_id
from turnkeeper.compat.langchain4j.stores import ChatMemoryStore, check_list
from turnkeeper.messages import Message, MessageLike, encode_messages
from turnkeeper.names import memory_name
from turnkeeper.opening import Runtime
from turnkeeper.requests import Request
from turnkeeper.stores import Store
from turnkeeper.sync import SyncRuntime
from turnkeeper.windows import Unbounded, Window

__all__ = ["StoreChatMemoryStore"]

_AS_IT_IS: Final = Unbounded(on_unanswered="keep")


@final
class StoreChatMemoryStore(ChatMemoryStore):
    """One of turnkeeper's stores as a `ChatMemoryStore`: for memories, or for code of yours that wants one.

    Memories on it keep all promises of turnkeeper: they are fenced, durable where the store is, and may use versions,
    idempotency keys, other windows and a history. A memory of id "user-42" is `runtime.memory("user-42")`.

    Args:
        store: a store's URL, a `Store` of your own, or None: in memory, together with all others of this process.
        runtime: an open runtime, instead of a store.
        namespace: keeps tenants apart; may be empty.
        id_codec: for ids that are not str, int, UUID or tuples of these.

    Raises:
        InvalidArgumentError: store and runtime were given, or one that is neither.
        InvalidStoreURLError: the URL names no store.
        InvalidMemoryIdError: the namespace is too long, or has control characters.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        runtime: Runtime | SyncRuntime | None = None,
        namespace: str = "",
        id_codec: IdCodec | None = None,
    ) -> None:
        """Find the runtime; no I/O."""
        memory_name("id", namespace)
        self._runtime: CompatRuntime = runtime_for(store, runtime)
        self._namespace: str = namespace
        self._id_codec: IdCodec | None = id_codec

    def conversation(
        self, memory_id: Hashable, window: Window, history: Literal["keep", "window"], id_codec: IdCodec | None = None
    ) -> NativeConversation:
        """Return a memory's conversation; no I/O.

        Args:
            memory_id: the memory's id.
            window: what it shows.
            history: whether what the window evicts stays in the store.
            id_codec: instead of the store's own.

        Raises:
            InvalidMemoryIdError: see `encode_id`.
        """
        name = memory_name(encode_id(memory_id, id_codec or self._id_codec), self._namespace)
        return NativeConversation(self._runtime, name, window, history)

    def get_messages(self, memory_id: Hashable, /) -> list[Message]:
        """Return a fresh list of the messages of a memory, as they were added, results behind their calls.

        Raises:
            InvalidMemoryIdError: see `encode_id`.
        """
        return self._all(memory_id).read(None)

    def update_messages(self, memory_id: Hashable, messages: Iterable[MessageLike], /) -> None:
        """Replace the messages of a memory, all of them or none; an empty list empties it.

        Raises:
            InvalidArgumentError: no list was given.
            InvalidMessageError: one is no message; nothing was changed.
            InvalidMemoryIdError: see `encode_id`.
        """
        conversation = self._all(memory_id)
        conversation.call("update_messages_async", _replacing(conversation, messages))

    def delete_messages(self, memory_id: Hashable, /) -> None:
        """Remove a memory and its name.

        Raises:
            InvalidMemoryIdError: see `encode_id`.
        """
        conversation = self._all(memory_id)
        conversation.call("delete_messages_async", conversation.deleting())

    async def get_messages_async(self, memory_id: Hashable, /) -> list[Message]:
        """`get_messages` without blocking, in any event loop."""
        return await self._all(memory_id).read_async(None)

    async def update_messages_async(self, memory_id: Hashable, messages: Iterable[MessageLike], /) -> None:
        """`update_messages` without blocking, in any event loop."""
        conversation = self._all(memory_id)
        await conversation.ask(_replacing(conversation, messages))

    async def delete_messages_async(self, memory_id: Hashable, /) -> None:
        """`delete_messages` without blocking, in any event loop."""
        conversation = self._all(memory_id)
        await conversation.ask(conversation.deleting())

    def _all(self, memory_id: Hashable) -> NativeConversation:
        return self.conversation(memory_id, _AS_IT_IS, "keep")


def _replacing(conversation: NativeConversation, messages: Iterable[MessageLike]) -> Request:
    encoded = encode_messages(check_list(messages))
    return conversation.setting((encoded,), None, None) if encoded else conversation.clearing()

"""What the two memories share: everything but their windows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeAlias
from uuid import uuid4

from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.langchain4j.conversations import (
    Conversation,
    ListConversation,
    MessageList,
    NativeConversation,
)
from turnkeeper.compat.langchain4j.errors import UnsupportedByStoreError
from turnkeeper.compat.langchain4j.ids import IdCodec, encode_id, key_of
from turnkeeper.compat.langchain4j.memory import ChatMemory, flattened
from turnkeeper.compat.langchain4j.native_store import StoreChatMemoryStore
from turnkeeper.compat.langchain4j.stores import ChatMemoryStore
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.log import Version
from turnkeeper.messages import MessageLike
from turnkeeper.names import memory_name
from turnkeeper.opening import Runtime
from turnkeeper.requests import Request
from turnkeeper.stores import Store
from turnkeeper.sync import SyncChatMemory, SyncRuntime
from turnkeeper.windows import Window
from turnkeeper.windows.base import HISTORIES, check_choice

__all__ = ["DEFAULT_ID", "Limit", "StoreLike", "WindowChatMemory", "limit_of"]

DEFAULT_ID: Final = "default"
_NAMESPACE: Final = "turnkeeper.compat.langchain4j"
"""Of memories without a store: nobody else's ids are in it."""

Limit: TypeAlias = int | Callable[[Any], int]
"""A number of at least 1, or a function of the memory's id that returns one; it is asked at every operation."""

StoreLike: TypeAlias = ChatMemoryStore | Store | Runtime | SyncRuntime | str
"""A store in LangChain4j's sense, or one of ours: a `Store`, its URL, or an open runtime."""


class WindowChatMemory(ChatMemory):
    """What the two memories share. Any number of threads and tasks may use one at once, or several of one id.

    All changes are atomic: nobody sees a batch in part, or the memory empty while `set` replaces what it holds. The
    messages are encoded in the caller's thread or task, and what a request makes fail fails alone.

    Blocking methods work in every thread, also where an event loop runs, which they hold up; only on the very loop
    that a given runtime or `StoreHost` lives in they raise `RuntimeUsageError`. The async twins work on asyncio,
    uvloop and trio. Who is cancelled while a request waits for its turn has changed nothing; later the request runs to
    its end, whole, and its caller sees only the cancellation.

    The methods raise what turnkeeper's own memories raise: `StoreError`, `OutcomeUnknownError`, `RuntimeClosedError`,
    `OverloadedError` and others, see docs/errors.md.
    """

    def __init__(
        self,
        window: Window,
        memory_id: Hashable | None,
        store: StoreLike | None,
        *,
        offload: bool,
        id_codec: IdCodec | None,
        history: Literal["keep", "window"],
    ) -> None:
        """Find the store's runtime; no I/O."""
        check_choice("history", history, HISTORIES)
        self._id: Hashable = DEFAULT_ID if memory_id is None else memory_id
        self._alone = store is None
        self._kept = False  # from the first request on, somebody sees to it that it goes with this object
        self._conversation: Conversation
        if store is None:
            key_of(self._id)
            name = memory_name(uuid4().hex, _NAMESPACE)
            self._conversation = NativeConversation(runtime_for(), name, window, history)
            return
        if isinstance(store, (str, Store)):
            store = StoreChatMemoryStore(store)
        elif isinstance(store, (Runtime, SyncRuntime)):
            store = StoreChatMemoryStore(runtime=store)
        if isinstance(store, StoreChatMemoryStore):
            self._conversation = store.conversation(memory_id, window, history, id_codec)
        elif isinstance(store, ChatMemoryStore):
            if history != "window":
                raise UnsupportedByStoreError(
                    "history=\"keep\" needs one of turnkeeper's own stores: a ChatMemoryStore holds the window's "
                    "messages and nothing else"
                )
            encoded = encode_id(memory_id, id_codec)
            self._conversation = ListConversation(store, memory_id, encoded, window, offload=offload)
        else:
            raise InvalidArgumentError(
                f"a chat_memory_store is a ChatMemoryStore, a store's URL, a Store or a runtime, not a "
                f"{type(store).__name__}"
            )

    @property
    def volatile(self) -> bool:
        """Whether the conversation ends with this object, since no store was given."""
        return self._alone

    @property
    def native(self) -> SyncChatMemory:
        """Turnkeeper's own handle for blocking code: exclusive turns, receipts, compaction.

        Raises:
            UnsupportedByStoreError: a store of the user's own has none of these.
        """
        self._keep()
        if not isinstance(self._conversation, NativeConversation):
            raise UnsupportedByStoreError("a native handle needs one of turnkeeper's own stores")
        return self._conversation.handle()

    def id(self) -> Hashable:
        """Return the id as it was given, or "default"."""
        return self._id

    def add(self, *messages: MessageLike | Iterable[MessageLike] | None, idempotency_key: str | None = None) -> None:
        """Add messages, all of them at once or none; then the oldest leave until the rest fits.

        Args:
            messages: one, several, or an iterable of them; None or nothing is a no-op.
            idempotency_key: 1-512 bytes; a request repeated with it changes nothing.

        Raises:
            InvalidMessageError: one is no message; nothing was changed.
            IdempotencyMismatchError: the key was used for something else.
            UnsupportedByStoreError: a store of the user's own has no idempotency keys.
        """
        batch = tuple(flattened(messages))
        if batch:
            self._call("add_async", self._conversation.adding((batch,), idempotency_key))

    def set(
        self,
        *messages: MessageLike | Iterable[MessageLike] | None,
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Replace all messages at once: nobody ever sees the memory empty or half replaced.

        Nothing in this library calls it by itself.

        Args:
            messages: as for `add`, at least one.
            if_version: replace only what is at exactly this version, such as `messages().version`.
            idempotency_key: as for `add`.

        Raises:
            InvalidArgumentError: None or no message was given; nothing was changed.
            InvalidMessageError: one is no message; nothing was changed.
            ConflictError: the memory is not at `if_version`; nothing was changed.
            IdempotencyMismatchError: the key was used for something else.
            UnsupportedByStoreError: a store of the user's own has neither versions nor idempotency keys.
        """
        batch = tuple(flattened(messages))
        self._call("set_async", self._conversation.setting((batch,), if_version, idempotency_key))

    def messages(self, *, window: Window | None = None) -> MessageList:
        """Return a fresh list of what the window shows.

        Args:
            window: instead of the memory's own.

        Raises:
            InvalidArgumentError: the limit's function returned no number of at least 1.
            UnsupportedByStoreError: a store of the user's own holds what this memory's window shows, nothing else.
        """
        self._keep()
        return self._conversation.read(window)

    def clear(self) -> None:
        """Remove all messages."""
        self._call("clear_async", self._conversation.clearing())

    async def add_async(
        self, *messages: MessageLike | Iterable[MessageLike] | None, idempotency_key: str | None = None
    ) -> None:
        """`add` without blocking; concurrent calls are welcome, and each is kept.

        Raises:
            AsyncNotSupportedError: the store is blocking, and this memory may not offload it; otherwise as `add`.
        """
        batch = tuple(flattened(messages))
        if batch:
            await self._ask(self._conversation.adding((batch,), idempotency_key))

    async def set_async(
        self,
        *messages: MessageLike | Iterable[MessageLike] | None,
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """`set` without blocking.

        Raises:
            AsyncNotSupportedError: as for `add_async`; otherwise as `set`.
        """
        batch = tuple(flattened(messages))
        await self._ask(self._conversation.setting((batch,), if_version, idempotency_key))

    async def messages_async(self, *, window: Window | None = None) -> MessageList:
        """`messages` without blocking.

        Raises:
            AsyncNotSupportedError: as for `add_async`; otherwise as `messages`.
        """
        self._keep()
        return await self._conversation.read_async(window)

    async def clear_async(self) -> None:
        """`clear` without blocking.

        Raises:
            AsyncNotSupportedError: as for `add_async`.
        """
        await self._ask(self._conversation.clearing())

    def _call(self, method: str, request: Request) -> None:
        self._keep()
        self._conversation.call(method, request)

    async def _ask(self, request: Request) -> None:
        self._keep()
        await self._conversation.ask(request)

    def _keep(self) -> None:
        """See to it that a conversation without a store goes with this object; a second time does no harm."""
        if self._alone and not self._kept:
            self._conversation.delete_with(self)
            self._kept = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self._id!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a memory belongs to its process and can't be pickled or copied; make a new one of the same id")


@dataclass(frozen=True)
class _LimitOf:
    """A user's function of the id, as a function of whatever turnkeeper calls the memory."""

    function: Callable[[Any], int]
    memory_id: Hashable

    def __call__(self, _: str) -> int:
        return self.function(self.memory_id)


def limit_of(limit: Limit, memory_id: Hashable | None) -> int | Callable[[str], int]:
    """Return a memory's limit as a window has it; a function of the user's gets the id as it was given."""
    if not callable(limit):
        return limit
    return _LimitOf(limit, DEFAULT_ID if memory_id is None else memory_id)

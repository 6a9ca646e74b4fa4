"""What a memory speaks to: a conversation in one of our stores, or one whose list is in a store of the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Literal

from turnkeeper.compat.default_runtime import CompatRuntime
from turnkeeper.compat.langchain4j.calling import line_to
from turnkeeper.compat.langchain4j.errors import UnsupportedByStoreError
from turnkeeper.compat.langchain4j.homes import Home, home_of
from turnkeeper.compat.langchain4j.list_actor import ListRequest, Place
from turnkeeper.compat.langchain4j.stores import ChatMemoryStore, async_unsupported
from turnkeeper.log import CLEAR, Version
from turnkeeper.messages import Message, encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.requests import DELETE, READ, Request
from turnkeeper.sync import SyncChatMemory
from turnkeeper.turns import check_not_nested
from turnkeeper.windows import Messages, Window
from turnkeeper.writes import add_request, set_request

__all__ = ["Conversation", "ListConversation", "MessageList", "NativeConversation"]


class MessageList(list[Message]):
    """A fresh list of messages, its receiver's to change.

    Attributes:
        version: what `set(if_version=…)` takes to replace exactly this state; None in a store of the user's own.
        overflow: whether this exceeds the window's limit, as a lone system message may.
    """

    version: Version | None
    overflow: bool

    def __init__(self, messages: Messages, version: Version | None) -> None:
        """Copy what a window shows."""
        super().__init__(messages)
        self.version = version
        self.overflow = messages.overflow


class Conversation(ABC):
    """One conversation as a memory uses it. Each method has a blocking form and an awaited one of the same request.

    The requests are made, and messages encoded, in the caller's thread or task.
    """

    __slots__ = ("_name", "_window")

    def __init__(self, name: MemoryName, window: Window) -> None:
        self._name = name
        self._window = window

    @property
    @abstractmethod
    def runtime(self) -> CompatRuntime:
        """The runtime that the conversation's actor lives in."""

    @abstractmethod
    def adding(self, messages: tuple[Any, ...], idempotency_key: str | None) -> Request:
        """Make a request that adds."""

    @abstractmethod
    def setting(self, messages: tuple[Any, ...], if_version: Version | None, idempotency_key: str | None) -> Request:
        """Make a request that replaces."""

    @abstractmethod
    def clearing(self) -> Request:
        """Make a request that empties."""

    def delete_with(self, owner: object) -> None:
        """Delete the memory once `owner` is collected."""
        self.runtime.delete_with(owner, self._name)

    def call(self, method: str, request: Request) -> Any:
        """Send a request and wait for its answer in this thread.

        Args:
            method: what to await on the runtime's own loop, where this would never return.
            request: made by the methods above.
        """
        return self._handle()._submit(method, request)

    async def ask(self, request: Request) -> Any:
        """Send a request and await its answer, in any event loop."""
        line = await line_to(self.runtime)
        return await line.ask(lambda: line.core.submit(self._name, request))

    @abstractmethod
    def read(self, window: Window | None) -> MessageList:
        """Return what this window shows, or the memory's own."""

    @abstractmethod
    async def read_async(self, window: Window | None) -> MessageList:
        """Await what `read` returns."""

    def _handle(self) -> SyncChatMemory:
        return SyncChatMemory(self.runtime.core, self._name, self._window, "keep")


class NativeConversation(Conversation):
    """A conversation in one of our stores.

    Args:
        runtime: where it lives.
        name: the memory.
        window: what is shown.
        history: whether what the window evicts stays in the store.
    """

    __slots__ = ("_prunes", "_runtime")

    def __init__(
        self, runtime: CompatRuntime, name: MemoryName, window: Window, history: Literal["keep", "window"]
    ) -> None:
        """Do no I/O."""
        super().__init__(name, window)
        self._runtime = runtime
        self._prunes = history == "window"

    @property
    def runtime(self) -> CompatRuntime:
        """The runtime of the store."""
        return self._runtime

    def adding(self, messages: tuple[Any, ...], idempotency_key: str | None) -> Request:
        """Make a request that adds."""
        return add_request(messages, self._window, self._prunes, idempotency_key)

    def setting(self, messages: tuple[Any, ...], if_version: Version | None, idempotency_key: str | None) -> Request:
        """Make a request that replaces."""
        return set_request(messages, self._window, self._prunes, if_version, idempotency_key)

    def clearing(self) -> Request:
        """Make a request that empties."""
        return Request(CLEAR, window=self._window, prunes=self._prunes)

    def deleting(self) -> Request:
        """Make a request that removes the memory and its name."""
        return Request(DELETE)

    def handle(self) -> SyncChatMemory:
        """Return turnkeeper's own handle for blocking code."""
        history: Literal["keep", "window"] = "window" if self._prunes else "keep"
        return SyncChatMemory(self.runtime.core, self._name, self._window, history)

    def call(self, method: str, request: Request) -> Any:
        """Send a request and wait for its answer in this thread.

        Raises:
            NestedTurnError: a turn of this memory is open here, so this would wait for itself.
        """
        handle = self._handle()
        check_not_nested(handle._core, self._name)
        return handle._submit(method, request)

    async def ask(self, request: Request) -> Any:
        """Send a request and await its answer, in any event loop.

        Raises:
            NestedTurnError: a turn of this memory is open here, so this would wait for itself.
        """
        line = await line_to(self.runtime)
        check_not_nested(line.core, self._name)
        return await line.ask(lambda: line.core.submit(self._name, request))

    def read(self, window: Window | None) -> MessageList:
        """Return what this window shows, or the memory's own."""
        self.runtime.check_thread("await memory.messages_async()")
        view = self._handle().messages(window=window)
        return MessageList(view, view.version)

    async def read_async(self, window: Window | None) -> MessageList:
        """Await what `read` returns."""
        shown = self._window if window is None else window
        line = await line_to(self.runtime)
        view = await line.ask(lambda: line.core.read(self._name, shown))
        return MessageList(view, view.version)


class ListConversation(Conversation):
    """A conversation whose list is in a store of the user's own.

    Args:
        store: the store.
        memory_id: the id as the user gave it.
        encoded: the id as text.
        window: what is shown, and stored.
        offload: whether the store's blocking methods may be called in several threads, and for awaited requests.
    """

    __slots__ = ("_home", "_offload", "_place")

    def __init__(
        self, store: ChatMemoryStore, memory_id: Hashable, encoded: str, window: Window, *, offload: bool
    ) -> None:
        """Do no I/O."""
        self._home: Home = home_of(store)
        super().__init__(MemoryName(str(self._home.number), encoded), window)
        self._place = Place(store, memory_id, hash(self._name) if offload else self._home.number)
        self._offload = offload

    @property
    def runtime(self) -> CompatRuntime:
        """The runtime that hosts the store, or the one of all such stores."""
        return self._home.runtime()

    def adding(self, messages: tuple[Any, ...], idempotency_key: str | None) -> Request:
        """Make a request that adds."""
        self._refuse(idempotency_key=idempotency_key)
        return add_request(messages, self._window, False, None)

    def setting(self, messages: tuple[Any, ...], if_version: Version | None, idempotency_key: str | None) -> Request:
        """Make a request that replaces."""
        self._refuse(if_version=if_version, idempotency_key=idempotency_key)
        return set_request(messages, self._window, False, None, None)

    def clearing(self) -> Request:
        """Make a request that empties."""
        return Request(CLEAR, window=self._window)

    def call(self, method: str, request: Request) -> Any:
        """Send a request by way of the store's blocking methods."""
        return super().call(method, ListRequest(self._place, request, awaited=False))

    async def ask(self, request: Request) -> Any:
        """Send a request by way of the store's async twins, or of its blocking methods where it may be offloaded.

        Raises:
            AsyncNotSupportedError: it may not be, and there are no twins.
        """
        unsupported = async_unsupported(self._place.store)
        if unsupported is not None and not self._offload:
            raise unsupported
        return await super().ask(ListRequest(self._place, request, awaited=unsupported is None))

    def read(self, window: Window | None) -> MessageList:
        """Return what the memory's window shows."""
        self._refuse(window=window)
        return _unplaced(self.call("messages_async", Request(READ, window=self._window)))

    async def read_async(self, window: Window | None) -> MessageList:
        """Await what `read` returns."""
        self._refuse(window=window)
        return _unplaced(await self.ask(Request(READ, window=self._window)))

    def _refuse(self, **given: object) -> None:
        for name, value in given.items():
            if value is not None:
                raise UnsupportedByStoreError(
                    f"{name} needs one of turnkeeper's own stores: {type(self._place.store).__name__} holds the newest "
                    "list of messages and nothing else"
                )


def _unplaced(view: Messages) -> MessageList:
    """Copy what is shown without the places in a log that nobody else knows; what was made up stays marked."""
    shown = MessageList(view, None)
    for index, message in enumerate(shown):
        if not message.synthetic:
            (shown[index],) = encode_messages([message])
    return shown

"""Where memories keep their messages as LangChain4j has it: a list for each id, read and replaced whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import ClassVar, Final

from turnkeeper.compat.langchain4j.errors import AsyncNotSupportedError
from turnkeeper.compat.langchain4j.ids import key_of
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message, MessageLike, encode_messages

__all__ = ["ChatMemoryStore", "InMemoryChatMemoryStore", "SingleSlotChatMemoryStore", "async_unsupported", "check_list"]

_TWINS: Final = ("get_messages_async", "update_messages_async", "delete_messages_async")


class ChatMemoryStore(ABC):
    """A store of your own: define the three methods, and for the async twins of the memories all three async ones.

    Under our memories no two calls for one id ever overlap in this process, and what is read is read at each
    operation, so others may write to the same place between two of them. A memory reads once at most for an
    operation, and hands over a list that is its receiver's to keep. It never hands over an empty one: it deletes.

    Blocking methods are called in a thread of ours, always the same for one store, unless the memory has
    `offload_blocking_store=True`: then always the same for one id, up to eight ids at once. Async twins are awaited in
    the event loop of a thread of ours, or in your own loop with `StoreHost`. Where a call takes longer than 30
    seconds, or raises so that nobody can tell what it did, the caller gets `OutcomeUnknownError`.
    """

    inline: ClassVar[bool] = False
    """Blocking calls take microseconds and need no thread: they are made in the event loop of a thread of ours."""

    @abstractmethod
    def get_messages(self, memory_id: Hashable, /) -> Iterable[MessageLike] | None:
        """Return the messages of a memory, oldest first; none at all for an unknown id."""

    @abstractmethod
    def update_messages(self, memory_id: Hashable, messages: list[Message], /) -> None:
        """Replace the messages of a memory, all of them or none."""

    @abstractmethod
    def delete_messages(self, memory_id: Hashable, /) -> None:
        """Remove the messages of a memory; a no-op when there are none."""

    async def get_messages_async(self, memory_id: Hashable, /) -> Iterable[MessageLike] | None:
        """`get_messages` without blocking.

        Raises:
            AsyncNotSupportedError: this store does not define it.
        """
        raise _unsupported(self, "get_messages_async")

    async def update_messages_async(self, memory_id: Hashable, messages: list[Message], /) -> None:
        """`update_messages` without blocking.

        Raises:
            AsyncNotSupportedError: this store does not define it.
        """
        raise _unsupported(self, "update_messages_async")

    async def delete_messages_async(self, memory_id: Hashable, /) -> None:
        """`delete_messages` without blocking.

        Raises:
            AsyncNotSupportedError: this store does not define it.
        """
        raise _unsupported(self, "delete_messages_async")


class InMemoryChatMemoryStore(ChatMemoryStore):
    """Keeps the messages of any number of memories in this object, and loses them with it. Safe in all threads."""

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        """Start empty."""
        self._lists: dict[Hashable, tuple[Message, ...]] = {}  # no lock: each step is one operation of the dict

    def get_messages(self, memory_id: Hashable, /) -> list[Message]:
        """Return a fresh list of the messages of a memory.

        Raises:
            InvalidMemoryIdError: the id is None, or can't be hashed.
        """
        return list(self._lists.get(key_of(memory_id), ()))

    def update_messages(self, memory_id: Hashable, messages: Iterable[MessageLike], /) -> None:
        """Replace the messages of a memory by a copy of these; an empty list deletes.

        Raises:
            InvalidArgumentError: no list was given.
            InvalidMessageError: one is no message; nothing was changed.
            InvalidMemoryIdError: the id is None, or can't be hashed.
        """
        key = key_of(memory_id)
        copied = encode_messages(check_list(messages))
        if copied:
            self._lists[key] = copied
        else:
            self._lists.pop(key, None)

    def delete_messages(self, memory_id: Hashable, /) -> None:
        """Remove the messages of a memory.

        Raises:
            InvalidMemoryIdError: the id is None, or can't be hashed.
        """
        self._lists.pop(key_of(memory_id), None)

    async def get_messages_async(self, memory_id: Hashable, /) -> Iterable[MessageLike] | None:
        """Do what `get_messages` does."""
        return self.get_messages(memory_id)

    async def update_messages_async(self, memory_id: Hashable, messages: list[Message], /) -> None:
        """Do what `update_messages` does."""
        self.update_messages(memory_id, messages)

    async def delete_messages_async(self, memory_id: Hashable, /) -> None:
        """Do what `delete_messages` does."""
        self.delete_messages(memory_id)


class SingleSlotChatMemoryStore(InMemoryChatMemoryStore):
    """Keeps the messages of one memory, and refuses every other id.

    Args:
        memory_id: the id.

    Raises:
        InvalidMemoryIdError: the id is None, or can't be hashed.
    """

    def __init__(self, memory_id: Hashable) -> None:
        """Start empty."""
        super().__init__()
        self._key: Hashable = key_of(memory_id)

    def get_messages(self, memory_id: Hashable, /) -> list[Message]:
        """Return a fresh list of the messages.

        Raises:
            InvalidArgumentError: this store is for another id.
        """
        self._check(memory_id)
        return super().get_messages(memory_id)

    def update_messages(self, memory_id: Hashable, messages: Iterable[MessageLike], /) -> None:
        """Replace the messages by a copy of these; an empty list deletes.

        Raises:
            InvalidArgumentError: this store is for another id, or no list was given.
            InvalidMessageError: one is no message; nothing was changed.
        """
        self._check(memory_id)
        super().update_messages(memory_id, messages)

    def delete_messages(self, memory_id: Hashable, /) -> None:
        """Remove the messages.

        Raises:
            InvalidArgumentError: this store is for another id.
        """
        self._check(memory_id)
        super().delete_messages(memory_id)

    def _check(self, memory_id: Hashable) -> None:
        if key_of(memory_id) != self._key:
            raise InvalidArgumentError("this store keeps the messages of one memory, and that has another id")


def check_list(messages: Iterable[MessageLike] | None) -> Iterable[MessageLike]:
    """Refuse what is no list of messages.

    Raises:
        InvalidArgumentError: it is None, or nothing that holds messages.
    """
    if messages is None or isinstance(messages, (str, bytes, Message, dict)) or not isinstance(messages, Iterable):
        raise InvalidArgumentError(f"messages must be a list of messages, not {type(messages).__name__}")
    return messages


def async_unsupported(store: ChatMemoryStore) -> AsyncNotSupportedError | None:
    """Return the error of whoever awaits a memory on this store; None: it defines all three async twins."""
    kind = type(store)
    missing = next((name for name in _TWINS if getattr(kind, name) is getattr(ChatMemoryStore, name)), None)
    return None if missing is None else _unsupported(store, missing)


def _unsupported(store: ChatMemoryStore, method: str) -> AsyncNotSupportedError:
    return AsyncNotSupportedError(
        f"{type(store).__name__} does not define {method}: define the three async twins, or say "
        "offload_blocking_store=True to have its blocking methods called in threads"
    )

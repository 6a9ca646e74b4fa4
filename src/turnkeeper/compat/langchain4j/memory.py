"""What a memory is: the interface, and what it does by itself for those who define the rest."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from turnkeeper.compat.langchain4j.errors import AsyncNotSupportedError
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message, MessageLike

__all__ = ["ChatMemory", "flattened"]


class ChatMemory(ABC):
    """The memory of a chat conversation, as LangChain4j has it: derive from it to make one of your own.

    Define `id`, `add` for one message, `messages` and `clear`. The class then takes several messages, an iterable of
    them, None or nothing as well: your `add` is called for each. One that takes `*messages` gets them as they come.
    Messages are turnkeeper's, or mappings in OpenAI chat form.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let an `add` for one message take several."""
        super().__init_subclass__(**options)
        add = cls.__dict__.get("add")
        if inspect.isfunction(add) and not _takes_several(add):
            cls.add = _for_each(add)  # type: ignore[method-assign]

    @abstractmethod
    def id(self) -> Hashable:
        """Return the memory's id."""

    @abstractmethod
    def add(self, *messages: Any, **options: Any) -> None:
        """Add a message; several, an iterable of them, None or nothing where this is not overridden for it.

        Args:
            messages: whoever defines this needs to take one.
            options: further arguments of a subclass.
        """

    @abstractmethod
    def messages(self) -> Sequence[MessageLike]:
        """Return what the memory shows now: perhaps not all that was added, but a part, a summary, or both."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all messages."""

    def set(self, *messages: Any, **options: Any) -> None:
        """Replace all messages: by `clear()`, and then `add()`.

        That is not atomic: others see the memory empty in between, and an `add` that fails leaves it so. Override it
        where you can do better. The library never calls it.

        Args:
            messages: several, or one iterable of them; at least one.
            options: passed on to `add`.

        Raises:
            InvalidArgumentError: None or no message was given; nothing was changed.
        """
        batch = list(flattened(messages))
        if not batch:
            raise InvalidArgumentError("set needs at least one message; to empty a memory, use clear()")
        self.clear()
        self.add(batch, **options)

    async def add_async(self, *messages: Any, **options: Any) -> None:
        """`add` without blocking.

        Raises:
            AsyncNotSupportedError: always, when it is awaited: a blocking memory is not moved to a thread silently.
        """
        raise _unsupported(self, "add_async")

    async def set_async(self, *messages: Any, **options: Any) -> None:
        """`set` without blocking.

        Raises:
            AsyncNotSupportedError: always, when it is awaited.
        """
        raise _unsupported(self, "set_async")

    async def messages_async(self) -> Sequence[MessageLike]:
        """`messages` without blocking.

        Raises:
            AsyncNotSupportedError: always, when it is awaited.
        """
        raise _unsupported(self, "messages_async")


def flattened(messages: tuple[Any, ...]) -> Iterable[Any]:
    """Return the messages that were given: several, one iterable of them, or None."""
    if len(messages) != 1:
        return messages
    given = messages[0]
    if given is None:
        return ()
    if isinstance(given, (Message, Mapping, str, bytes)) or not isinstance(given, Iterable):
        return messages
    return given


def _takes_several(add: Callable[..., Any]) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(add).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _for_each(add_one: Callable[..., None]) -> Callable[..., None]:
    @wraps(add_one)
    def add(self: ChatMemory, *messages: Any, **options: Any) -> None:
        for message in flattened(messages):
            add_one(self, message, **options)

    return add


def _unsupported(memory: ChatMemory, method: str) -> AsyncNotSupportedError:
    return AsyncNotSupportedError(f"{type(memory).__name__} does not define {method}")

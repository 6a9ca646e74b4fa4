"""What the model is shown: a view of the log, computed without I/O, that nothing stored depends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from turnkeeper.log import Version
from turnkeeper.messages import Message

__all__ = ["Messages", "Unbounded", "Window"]


class Messages(tuple[Message, ...]):
    """An immutable tuple of messages, and the version of the memory that it shows.

    Attributes:
        version: pass it as `if_version=` to replace exactly this state.
    """

    version: Version

    def __new__(cls, messages: Iterable[Message], version: Version) -> Messages:
        """Combine messages and version."""
        self = super().__new__(cls, messages)
        self.__dict__["version"] = version
        return self

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a view is immutable."""
        raise AttributeError(f"Messages are immutable; can't set {name!r}")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return fresh dicts in OpenAI chat form, ready for a model's client."""
        return [message.to_dict() for message in self]

    def __repr__(self) -> str:
        """Show count and version, never the content."""
        return f"<Messages count={len(self)} version={self.version}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the version."""
        return Messages, (tuple(self), self.version)


class Window(ABC):
    """A rule that picks what the model sees. Windows are values: they hold limits and no state."""

    @abstractmethod
    def view(self, messages: Sequence[Message]) -> Iterable[Message]:
        """Pick from the state's messages, oldest first."""


class Unbounded(Window):
    """Everything: the default."""

    def view(self, messages: Sequence[Message]) -> Iterable[Message]:
        """Return all messages."""
        return messages

    def __repr__(self) -> str:
        """Show how it is made."""
        return "Unbounded()"

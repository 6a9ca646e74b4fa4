"""What the model is shown: a view of the log, computed without I/O, that nothing stored depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.log import Version
from turnkeeper.messages import Message

__all__ = ["HISTORIES", "Messages", "OnOverflow", "OnUnanswered", "Unbounded", "Window", "check_choice"]

OnOverflow = Literal["error", "keep", "evict"]
"""What happens to a message that does not fit: it is refused, it stays, or it leaves at once."""

OnUnanswered = Literal["close", "drop", "keep"]
"""What a view makes of a call without a result, once something else than its results has followed."""

_ON_UNANSWERED: Final = ("close", "drop", "keep")

HISTORIES: Final = ("keep", "window")
"""Whether the store keeps what a window evicts, or it leaves with it."""


class Messages(tuple[Message, ...]):
    """An immutable tuple of messages, and the version of the memory that it shows.

    Attributes:
        version: pass it as `if_version=` to replace exactly this state.
        overflow: whether this exceeds the window's limit: a current turn that had to stay, or a lone system message.
    """

    version: Version
    overflow: bool

    def __new__(cls, messages: Iterable[Message], version: Version, overflow: bool = False) -> Messages:
        """Combine messages and version."""
        self = super().__new__(cls, messages)
        self.__dict__["version"] = version
        self.__dict__["overflow"] = overflow
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
        return Messages, (tuple(self), self.version, self.overflow)


class Window:
    """A rule that picks what the model sees. Windows are values: they hold limits and no state.

    One of your own defines `view`. Every window gets a valid sequence: results stand behind their call, those that
    answer no call are gone, and `on_unanswered` has been applied.

    Attributes:
        on_unanswered: what becomes of a call without a result, once something else than its results has followed:
            "close" puts a synthetic error result behind it (`message.synthetic`), until the real one comes; "drop"
            hides the call with the results that it has; "keep" leaves it as it is. Only in the view: nothing is
            written.
    """

    __slots__ = ()

    on_unanswered: OnUnanswered = "close"
    counting: ClassVar[bool] = False
    """Whether `count` does anything."""

    def view(self, messages: Sequence[Message]) -> Iterable[Message]:
        """Pick from the state's messages, oldest first."""
        return messages

    def limit(self, memory_id: str) -> int | None:
        """Return what this memory's view may hold now; None: no limit."""
        return None

    def count(self, messages: tuple[Message, ...]) -> None:
        """Count new messages, in their sender's task or thread; what this raises fails that request alone."""


@dataclass(frozen=True)
class Unbounded(Window):
    """Everything: the default.

    Args:
        on_unanswered: see `Window`.
    """

    on_unanswered: OnUnanswered = field(default="close", kw_only=True)

    def __post_init__(self) -> None:
        """Check the argument."""
        check_choice("on_unanswered", self.on_unanswered, _ON_UNANSWERED)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        InvalidArgumentError: it is none of them.
    """
    if value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(map(repr, choices))}")

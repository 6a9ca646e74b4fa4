"""What a runtime does with conversations by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from turnkeeper.durations import Duration, seconds
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message, MessageLike
from turnkeeper.windows import LimitedWindow, TurnWindow
from turnkeeper.windows.limited import check_limit

__all__ = ["CompactionPolicy", "RetentionPolicy", "Summarizer", "keeping"]

Summary: TypeAlias = str | MessageLike | Iterable[MessageLike]

Summarizer: TypeAlias = Callable[[tuple[Message, ...], tuple[Message, ...]], Summary | Awaitable[Summary]]
"""Called with the messages to be summed up, and what sums up everything before them; async, or blocking in a daemon
thread of its own."""


@dataclass(frozen=True)
class CompactionPolicy:
    """When conversations are compacted by themselves, and what is left of them.

    Args:
        summarizer: see `ChatMemory.compact`.
        when: a window with a limit: what it can't show whole is too long.
        keep: turns that stay as they are, as a `TurnWindow`, or a number of messages.
        timeout: seconds that the summariser may take. A blocking one can't be stopped: its thread is left behind, and
            counts in `max_compactions` until it comes back.

    Raises:
        InvalidArgumentError: `when` has no limit, or `keep` is neither.
    """

    summarizer: Summarizer
    when: LimitedWindow
    keep: TurnWindow | int = 20
    timeout: Duration = 120.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not callable(self.summarizer):
            raise InvalidArgumentError("a summarizer is a function of the messages and of the summary before them")
        if not isinstance(self.when, LimitedWindow):
            raise InvalidArgumentError("when is a window with a limit: what it can't show whole is compacted")
        object.__setattr__(self, "keep", keeping(self.keep))
        seconds("timeout", self.timeout)

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return seconds("timeout", self.timeout)


@dataclass(frozen=True)
class RetentionPolicy:
    """How long the store keeps what was said; what is older is pruned in the background, for good.

    Entries leave whole, the oldest first. The current turn, the current system message and a summary that stands for
    older messages stay, however old they are.

    Args:
        max_age: seconds since an entry was made, or a `timedelta`; None: any.
        max_messages: how many messages of the log are kept, those that were undone or replaced included; None: all.

    Raises:
        InvalidArgumentError: neither is given, or one is out of range.
    """

    max_age: Duration | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.max_age is None and self.max_messages is None:
            raise InvalidArgumentError("a RetentionPolicy needs max_age or max_messages")
        if self.max_age is not None:
            object.__setattr__(self, "max_age", seconds("max_age", self.max_age))
        if self.max_messages is not None:
            check_limit("max_messages", self.max_messages)

    @property
    def max_age_us(self) -> int | None:
        """The age in microseconds, as stores count."""
        return None if self.max_age is None else int(seconds("max_age", self.max_age) * 1e6)


def keeping(keep: TurnWindow | int) -> TurnWindow:
    """Return the window that shows what a compaction leaves.

    Raises:
        InvalidArgumentError: it is neither a `TurnWindow` nor a number of messages.
    """
    return keep if isinstance(keep, TurnWindow) else TurnWindow(max_messages=check_limit("keep", keep))

"""The windows with a limit: by messages, by tokens, by whole turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.messages import Message, UserMessage, known_count, remember_count
from turnkeeper.tokens import BpeCounter, CharacterCounter, TokenCounter
from turnkeeper.windows.base import OnOverflow, OnUnanswered, Window, check_choice

__all__ = ["Limit", "LimitedWindow", "MessageWindow", "TokenWindow", "TurnWindow"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

Limit = int | Callable[[str], int]
"""A number of at least 1, or a function of the memory id that returns one; it is asked at every operation."""

_FALLBACK: Final = CharacterCounter()
"""Counts what the window's own counter fails on: a read must not fail because of counting."""

_FEWEST: Final = 16
_ENTRIES_A_TURN: Final = 4
"""Guesses, for the first of several attempts."""

_OVERFLOWS: Final = ("error", "keep", "evict")
_UNANSWERED: Final = ("close", "drop", "keep")


class LimitedWindow(Window):
    """A window with a limit: the oldest leave until the rest fits, and calls and their results leave together.

    The view depends on the log and on the limit as it is now, and on nothing else: a higher limit shows again what a
    lower one hid. Of the system messages only the current one is shown; it is never evicted, and it counts.

    Attributes:
        on_overflow: "error": an add after which the new message, or its call, would not be visible is refused;
            "keep": the current turn stays and `Messages.overflow` says so; "evict": it leaves at once.
        system_first: show the system message before all others, and not where it was added.
        whole_turns: evict turn by turn.
    """

    __slots__ = ()

    on_overflow: OnOverflow
    system_first: bool
    whole_turns: bool = False

    @property
    def given_limit(self) -> Limit:
        """The limit as it was given."""
        raise NotImplementedError

    @property
    def overhead(self) -> int:
        """What a list costs beside its messages."""
        return 0

    @property
    def counts_turns(self) -> bool:
        """Whether the limit is a number of turns: then only these count."""
        return False

    @property
    def least(self) -> int:
        """The least that a message, or a turn of a window of whole turns, can cost."""
        return 1

    def weigh(self, message: Message) -> int:
        """Return what a message costs; never raises."""
        return 1

    def first_try(self, limit: int) -> int:
        """Return how many entries are likely to hold what is visible."""
        return limit + 1

    def limit(self, memory_id: str) -> int:
        """Ask for the limit of a memory.

        Raises:
            InvalidArgumentError: the function returned something else than a number of at least 1.
        """
        limit = self.given_limit
        return check_limit("the limit", limit(memory_id)) if callable(limit) else limit

    def _check(self, overflows: Sequence[str]) -> None:
        check_choice("on_overflow", self.on_overflow, overflows)
        check_choice("on_unanswered", self.on_unanswered, _UNANSWERED)


@dataclass(frozen=True)
class MessageWindow(LimitedWindow):
    """The newest messages; LangChain4j's rules.

    An equal system message is ignored, without a write when it is added through a handle with this window; a different
    one replaces the old one and goes last, or first with `system_first=True`. The system message counts.
    Source: `MessageWindowChatMemory` of LangChain4j, and its tests (docs/conformance.md).

    Args:
        max_messages: at least 1, or a function of the memory id.
        system_first: show the system message first.
        on_overflow: see `LimitedWindow`.
        on_unanswered: see `Window`.

    Raises:
        InvalidArgumentError: a limit below 1, or an unknown choice.
    """

    max_messages: Limit
    system_first: bool = field(default=False, kw_only=True)
    on_overflow: OnOverflow = field(default="error", kw_only=True)
    on_unanswered: OnUnanswered = field(default="close", kw_only=True)

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_given_limit("max_messages", self.max_messages)
        self._check(_OVERFLOWS)

    @property
    def given_limit(self) -> Limit:
        """The limit as it was given."""
        return self.max_messages


class _CountingWindow(LimitedWindow):
    """Weighs messages by their tokens. Each message is counted once, wherever it is shown."""

    __slots__ = ()

    counting: ClassVar[bool] = True

    @property
    def _counter(self) -> TokenCounter:
        raise NotImplementedError

    @property
    def overhead(self) -> int:
        """What the counter charges for a list; where it fails, what a `CharacterCounter` does."""
        try:
            return self._counter.list_overhead
        except Exception as error:
            logger.warning("a token counter's list_overhead failed with %s", type(error).__name__)
        return _FALLBACK.list_overhead

    def first_try(self, limit: int) -> int:
        """Return how many entries are likely to hold what is visible."""
        return _FEWEST

    @property
    def least(self) -> int:
        """A counter may find that a message costs nothing."""
        return 0

    def count(self, messages: tuple[Message, ...]) -> None:
        """Count new messages.

        Raises:
            InvalidArgumentError: the counter returned something else than a number of at least 0.
        """
        for message in messages:
            _count(message, self._counter)

    def weigh(self, message: Message) -> int:
        """Return the message's tokens; where the counter fails, those that a `CharacterCounter` finds."""
        counter = self._counter
        known = known_count(message, counter)
        if known is not None:
            return known
        try:
            return _count(message, counter)
        except Exception as error:
            logger.warning("a token counter failed with %s; the message is estimated", type(error).__name__)
        estimate = _FALLBACK.count(message)
        remember_count(message, counter, estimate)
        return estimate


@dataclass(frozen=True)
class TokenWindow(_CountingWindow):
    """The newest messages that fit a number of tokens; otherwise `MessageWindow`.

    A list costs the counter's `list_overhead` and the sum of its messages. A lone system message above the limit
    stays. Source: `TokenWindowChatMemory` of LangChain4j, and its tests (docs/conformance.md).

    Args:
        max_tokens: at least 1, or a function of the memory id.
        counter: a `TokenCounter`, or a function that returns the tokens of a text; None: `CharacterCounter()`.
        system_first: show the system message first.
        on_overflow: see `LimitedWindow`.
        on_unanswered: see `Window`.

    Raises:
        InvalidArgumentError: a limit below 1, an unknown choice, or no counter.
    """

    max_tokens: Limit
    counter: TokenCounter | Callable[[str], int] | None = None
    system_first: bool = field(default=False, kw_only=True)
    on_overflow: OnOverflow = field(default="error", kw_only=True)
    on_unanswered: OnUnanswered = field(default="close", kw_only=True)

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_given_limit("max_tokens", self.max_tokens)
        object.__setattr__(self, "counter", as_counter(self.counter))
        self._check(_OVERFLOWS)

    @property
    def given_limit(self) -> Limit:
        """The limit as it was given."""
        return self.max_tokens

    @property
    def _counter(self) -> TokenCounter:
        return self.counter  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class TurnWindow(_CountingWindow):
    """Whole turns: what agents with tools should use.

    Shows the system message, then opens on a user message. The current turn is never evicted; what came before the
    first user message belongs to no turn and is not shown.

    Args:
        max_messages: the most messages, or a function of the memory id; give exactly one of the three limits.
        max_tokens: the most tokens, likewise.
        max_turns: the most turns, likewise.
        counter: for `max_tokens`: a `TokenCounter`, or a function that returns the tokens of a text; None:
            `CharacterCounter()`.
        on_overflow: "keep": a current turn above the limit stays, and `Messages.overflow` says so; "error": an add
            that takes the current turn above the limit is refused.
        on_unanswered: see `Window`.

    Raises:
        InvalidArgumentError: none or several limits, a limit below 1, an unknown choice, or no counter.
    """

    max_messages: Limit | None = None
    max_tokens: Limit | None = None
    max_turns: Limit | None = None
    counter: TokenCounter | Callable[[str], int] | None = None
    on_overflow: OnOverflow = "keep"
    on_unanswered: OnUnanswered = "close"
    system_first: bool = field(default=True, init=False, repr=False)
    whole_turns: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        limits = {
            "max_messages": self.max_messages,
            "max_tokens": self.max_tokens,
            "max_turns": self.max_turns,
        }
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if len(given) != 1:
            raise InvalidArgumentError(f"give exactly one of {', '.join(limits)}")
        for name, limit in given.items():
            check_given_limit(name, limit)
        if self.max_tokens is None and self.counter is not None:
            raise InvalidArgumentError("a counter is for max_tokens")
        object.__setattr__(self, "counter", None if self.max_tokens is None else as_counter(self.counter))
        self._check(("keep", "error"))

    @property
    def given_limit(self) -> Limit:
        """The limit as it was given."""
        limit = self.max_messages or self.max_tokens or self.max_turns
        assert limit is not None
        return limit

    @property
    def _counter(self) -> TokenCounter:
        return self.counter  # type: ignore[return-value]

    @property
    def overhead(self) -> int:
        """What the counter charges for a list."""
        return 0 if self.max_tokens is None else super().overhead

    @property
    def least(self) -> int:
        """A turn has a message at least; a counter may find that it costs nothing."""
        return 1 if self.max_tokens is None else 0

    def first_try(self, limit: int) -> int:
        """Return how many entries are likely to hold what is visible."""
        if self.max_turns is not None:
            return _ENTRIES_A_TURN * limit + 1
        return _FEWEST if self.max_tokens is not None else limit + 1

    @property
    def counts_turns(self) -> bool:
        """Whether it was made with `max_turns`."""
        return self.max_turns is not None

    def count(self, messages: tuple[Message, ...]) -> None:
        """Count new messages, where tokens are the limit."""
        if self.max_tokens is not None:
            super().count(messages)

    def weigh(self, message: Message) -> int:
        """Return what a message costs."""
        if self.max_tokens is not None:
            return super().weigh(message)
        return 1 if self.max_turns is None or isinstance(message, UserMessage) else 0


def check_limit(name: str, limit: object) -> int:
    """Return a limit that is one.

    Raises:
        InvalidArgumentError: it is no number of at least 1.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        shown = limit if isinstance(limit, int) else f"a {type(limit).__name__}"
        raise InvalidArgumentError(f"{name} must be a number of at least 1, not {shown}")
    return limit


def check_given_limit(name: str, limit: object) -> None:
    """Refuse what is neither a limit nor a function that may return one."""
    if not callable(limit):
        check_limit(name, limit)


def as_counter(counter: object) -> TokenCounter:
    """Return a counter for what was given as one.

    Raises:
        InvalidArgumentError: it is neither a `TokenCounter` nor a function.
    """
    if counter is None:
        return CharacterCounter()
    if isinstance(counter, TokenCounter):
        return counter
    if callable(counter):
        return BpeCounter(cast(Callable[[str], int], counter))
    raise InvalidArgumentError(f"a counter is a TokenCounter or a function of a text, not a {type(counter).__name__}")


def _count(message: Message, counter: TokenCounter) -> int:
    known = known_count(message, counter)
    if known is not None:
        return known
    count = counter.count(message)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidArgumentError("a token counter has to return a number of at least 0")
    remember_count(message, counter, count)
    return count

"""Calls and results paired: a log as the units that a window shows or hides whole."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from turnkeeper.messages import (
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    links_of,
    make_lost_result,
    version_of,
)

if TYPE_CHECKING:
    from turnkeeper.windows.view import View

__all__ = ["Exchange", "Transcript", "Unit", "current_system", "unit_version"]

_HIDDEN: Final = -1
"""In the trail: a result that answers nothing, and so is in no unit."""


class Exchange:
    """An assistant message with calls, and the results they have so far, in order of arrival.

    Attributes:
        call: the assistant message.
        results: the results.
        missing: how many of its calls have none.
    """

    __slots__ = ("_lost", "call", "missing", "results")

    def __init__(self, call: Message) -> None:
        self.call: Message = call
        self.results: list[Message] = []
        self.missing: int = len(links_of(call))
        self._lost: tuple[Message, ...] = ()

    def lost(self) -> tuple[Message, ...]:
        """Return a synthetic result for each call that has none; the same objects until a result comes or goes."""
        if len(self._lost) != self.missing:
            answered = [links_of(result)[0] for result in self.results]
            lost = []
            for link in links_of(self.call):
                if link in answered:
                    answered.remove(link)
                else:
                    lost.append(make_lost_result(link))
            self._lost = tuple(lost)
        return self._lost

    def answer(self, result: Message) -> None:
        """Take a result."""
        self.results.append(result)
        self.missing -= 1
        self._lost = ()

    def retract(self) -> Message:
        """Take the last result back."""
        self.missing += 1
        self._lost = ()
        return self.results.pop()


Unit = Message | Exchange
"""A message that stands for itself, or an exchange. Results stand behind their call, however late they came."""


class Transcript:
    """A log's units in order, or those of its newer part: what all windows on it share. Grows and shrinks on the right.

    A result belongs to the latest earlier call of its id that has none yet; one that finds no such call is in no unit.
    So pairs among the newer messages don't depend on the older ones, and a part of a log can be windowed like the
    whole.

    Attributes:
        start: number of the first unit held; numbers stay when units leave on the left.
        units: the units held.
        turns: numbers of the units that are user messages: each begins a turn.
        system: the current system message, also when it stands before the units held: the last that differed from
            the one before.
        system_at: its unit's number, -1 when it stands before the units held or there is none.
        system_before: the one that was current before the units held, as far as that is known.
        summary: what stands for the messages before the units; each window shows it, whatever its roles are.
        views: what windows have made of this transcript.
        trail: what `pop` needs, for each message pushed since `begin`.
    """

    __slots__ = (
        "_open",
        "start",
        "summary",
        "system",
        "system_at",
        "system_before",
        "trail",
        "turns",
        "units",
        "views",
    )

    def __init__(self, system: Message | None = None, summary: tuple[Message, ...] = ()) -> None:
        """Start empty, behind an older part with this system message, or one that was summed up."""
        self.start: int = 0
        self.units: list[Unit] = []
        self.turns: list[int] = []
        self.system: Message | None = system
        self.system_at: int = -1
        self.system_before: Message | None = system
        self.summary: tuple[Message, ...] = summary
        self.views: list[View] = []
        self._open: dict[str, list[int]] = {}  # numbers of the units with unanswered calls, by link
        self.trail: list[tuple[int, Message | None, int] | int] = []

    @property
    def end(self) -> int:
        """The number that the next unit gets."""
        return self.start + len(self.units)

    def push(self, message: Message) -> int:
        """Take the next message and return its unit's number; -1 when it is a result that answers nothing."""
        if isinstance(message, ToolMessage):
            return self._answer(message)
        number = self.start + len(self.units)
        self.trail.append((number, self.system, self.system_at))
        unit: Unit = message
        if isinstance(message, UserMessage):
            self.turns.append(number)
        elif isinstance(message, SystemMessage):
            if self.system is None or message != self.system:
                self.system, self.system_at = message, number
        elif links := links_of(message):
            unit = Exchange(message)
            for link in links:
                self._open.setdefault(link, []).append(number)
        self.units.append(unit)
        for view in self.views:
            view.appended(self, number)
        return number

    def _answer(self, result: Message) -> int:
        link = links_of(result)[0]
        waiting = self._open.get(link)
        if waiting is None:
            self.trail.append(_HIDDEN)
            return _HIDDEN
        number = waiting.pop()
        if not waiting:
            del self._open[link]
        self._exchange(number).answer(result)
        self.trail.append(number)
        for view in self.views:
            view.changed(self, number)
        return number

    def pop(self) -> None:
        """Take the last message back that was pushed since the trail began."""
        step = self.trail.pop()
        if isinstance(step, tuple):
            number, self.system, self.system_at = step
            unit = self.units.pop()
            if isinstance(unit, Exchange):
                for link in links_of(unit.call):
                    waiting = self._open[link]
                    waiting.pop()
                    if not waiting:
                        del self._open[link]
            elif isinstance(unit, UserMessage):
                self.turns.pop()
            for view in self.views:
                view.removed(self, number)
        elif step != _HIDDEN:
            result = self._exchange(step).retract()
            self._open.setdefault(links_of(result)[0], []).append(step)
            for view in self.views:
                view.changed(self, step)

    @property
    def pushed(self) -> int:
        """How many messages were pushed since the trail began: so many can be popped."""
        return len(self.trail)

    def begin(self) -> None:
        """Begin the trail anew: what is held now stays."""
        self.trail.clear()

    def trim(self, number: int, system: Message | None) -> None:
        """Let the units before this number go, behind which this system message is current. The trail must be empty."""
        leaving = number - self.start
        del self.units[:leaving]
        del self.turns[: next((place for place, turn in enumerate(self.turns) if turn >= number), len(self.turns))]
        self.start = number
        self.system_before = system
        if self.system_at < number:
            self.system_at = -1
        for link, waiting in list(self._open.items()):
            waiting[:] = [unit for unit in waiting if unit >= number]
            if not waiting:
                del self._open[link]
        for view in self.views:
            view.trimmed(self, leaving)

    def version(self, number: int) -> int:
        """Return the number of the log entry in which a unit begins."""
        return unit_version(self.units[number - self.start])

    def _exchange(self, number: int) -> Exchange:
        unit = self.units[number - self.start]
        assert isinstance(unit, Exchange)
        return unit


def unit_version(unit: Unit) -> int:
    """Return the number of the log entry in which a unit begins."""
    return version_of(unit.call if isinstance(unit, Exchange) else unit)


def current_system(messages: tuple[Message, ...]) -> int:
    """Return the index of the system message that is current after these; there is one."""
    current, found = None, -1
    for index, message in zip(count(), messages, strict=False):
        if isinstance(message, SystemMessage) and (current is None or message != current):
            current, found = message, index
    return found

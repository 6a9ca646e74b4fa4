"""One memory's log as it is held in RAM: tentative changes on the right, taken back on rollback. Pure."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from typing import Final, TypeAlias

import msgspec

from turnkeeper.log import Head, Version
from turnkeeper.messages import Message, SystemMessage, place_message, version_of
from turnkeeper.windows import LimitedWindow, Messages, TurnWindow, Window
from turnkeeper.windows.rendering import rendered
from turnkeeper.windows.transcript import Exchange, Transcript, unit_version
from turnkeeper.windows.view import View, view_of

__all__ = ["Compactable", "Log", "Mark"]


_SLACK: Final = 64
"""Units that may stay though no window reaches them, beside as many as are reached: leaving is done in bulk."""


_UNUSED: Final = 256
"""Units that come while nobody looks through a window, until what was kept for it is dropped."""


Mark: TypeAlias = tuple[int, int, int, int, list[Message], int, Transcript, int]


class Compactable(msgspec.Struct, frozen=True, gc=False):
    """The older part of a log, to be summed up.

    Attributes:
        messages: as a window shows them, without the current system message.
        summary: what stands for what was before them already.
        to: number of the last entry among them.
        mid: the memory's row.
        base: number of the entry that starts the state.
        count: how many messages lie before `to`, and how many results the calls among them have.
    """

    messages: tuple[Message, ...]
    summary: tuple[Message, ...]
    to: int
    mid: int
    base: int
    count: int


class Log:
    """The messages since `base` or the newer part of them, the versions around them, and their size.

    Attributes:
        mid: the memory's row, 0 while there is none.
        n: number of the last entry, tentative ones included.
        base: number of the entry that starts the state.
        size: bytes of the encoded messages held.
        after: all entries behind this one are held; -1: the whole state is.
        created_at: microseconds since the epoch, 0 while there is no row.
        updated_at: the same of the last committed entry.
    """

    __slots__ = (
        "_messages",
        "_transcript",
        "after",
        "base",
        "created_at",
        "mid",
        "n",
        "size",
        "updated_at",
    )

    def __init__(self, head: Head | None = None) -> None:
        """Start empty at `head`'s row."""
        self.mid: int = head.mid if head else 0
        self.n: int = 0
        self.base: int = 0
        self.size: int = 0
        self.after: int = -1
        self.created_at: int = head.created_at if head else 0
        self.updated_at: int = head.updated_at if head else 0
        self._messages: list[Message] = []
        self._transcript: Transcript = Transcript()

    @property
    def complete(self) -> bool:
        """Whether all messages of the state are held."""
        return self.after < 0

    @property
    def version(self) -> Version:
        """The version this log stands at; a row that is there for a turn's lease alone is no version yet."""
        return Version(self.mid if self.n else 0, self.n)

    @property
    def system(self) -> int:
        """Number of the entry with the current system message, 0 without one."""
        system = self._transcript.system
        return 0 if system is None else version_of(system)

    @property
    def count(self) -> int:
        """How many messages are held, with the summary and the system message that stand for older ones."""
        transcript = self._transcript
        older = transcript.system is not None and transcript.system_at < 0
        return len(self._messages) + len(transcript.summary) + older

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages held, as they were added."""
        return tuple(self._messages)

    # Taking entries

    def append(
        self,
        messages: tuple[Message, ...],
        window: Window | None = None,
        limit: int | None = None,
        *,
        judging: bool = False,
    ) -> bool | None:
        """Take the next entry, one that adds.

        Returns:
            False, and nothing is taken, when `judging` finds that a message would not be visible; None, when that hangs
            on older messages than are held. They are judged one after the other, as if each had come alone.
        """
        self.n += 1
        return self._take(messages, window, limit, judging)

    def replace(
        self,
        messages: tuple[Message, ...],
        window: Window | None = None,
        limit: int | None = None,
        *,
        judging: bool = False,
    ) -> bool | None:
        """Take the next entry, one that starts the state anew; otherwise as `append`."""
        mark = self.mark()
        self.n += 1
        self.base = self.n
        self.size = 0
        self.after = -1
        # New ones, so that the old ones are whole for a rollback.
        self._messages = []
        self._transcript = Transcript()
        if self._take(messages, window, limit, judging):
            return True
        self.rollback(mark)
        return False

    def undo(self, to: int, messages: tuple[Message, ...] = ()) -> None:
        """Take the next entry, one that goes back to the state after entry `to`, which is not before `base`.

        Costs a step for each message kept.
        """
        transcript = self._transcript
        self.n += 1
        kept = [message for message in self._messages if version_of(message) <= to]
        self._rebuild(kept, Transcript(transcript.system_before, transcript.summary))
        self._take(messages, None, None, False)

    def compact(self, to: int, summary: tuple[Message, ...]) -> None:
        """Take the next entry, one that puts a summary in the place of everything up to entry `to`.

        The current system message stays. Costs a step for each message kept.
        """
        transcript = self._transcript
        system = transcript.system
        if system is not None and transcript.system_at >= 0 and version_of(system) > to:
            system = None  # it comes again with its entry, which is held
        self.n += 1
        self.base = self.n
        if self.after <= to:
            self.after = -1
        for index, message in enumerate(summary):
            place_message(message, self.n, index)
        kept = [message for message in self._messages if version_of(message) > to]
        self._rebuild(kept, Transcript(system, summary))

    def _rebuild(self, kept: list[Message], transcript: Transcript) -> None:
        # New ones, so that the old ones are whole for a rollback.
        self._messages, self._transcript = kept, transcript
        older = transcript.summary if transcript.system is None else (transcript.system, *transcript.summary)
        self.size = sum([len(message.raw) for message in (*older, *kept)])
        for message in kept:
            transcript.push(message)

    def _take(
        self, messages: tuple[Message, ...], window: Window | None, limit: int | None, judging: bool
    ) -> bool | None:
        transcript, n = self._transcript, self.n
        shown = [(view, view.shown) for view in transcript.views] if judging else []
        view = None if window is None else view_of(window, transcript)
        for index, message in enumerate(messages):
            place_message(message, n, index)
            self.size += len(message.raw)
            self._messages.append(message)
            number = transcript.push(message)
            if view is not None:
                view.settle(transcript, limit)
                if judging and not view.shows(transcript, number, message):
                    certain = view.covered(transcript, self.complete)
                    self._take_back(index + 1)
                    self.n -= 1
                    view.settle(transcript, limit)
                    for known, was in shown:
                        known.shown = was  # nothing has changed, so readers find the same object
                    return False if certain else None
        return True

    def _take_back(self, count: int) -> None:
        for _ in range(count):
            self._transcript.pop()
            self.size -= len(self._messages.pop().raw)

    def begin(self) -> Mark:
        """Begin a round of tentative entries: what is held now stays. Return what `rollback` goes back to."""
        transcript, messages = self._transcript, self._messages
        transcript.trail.clear()
        return self.n, self.base, self.size, self.after, messages, len(messages), transcript, 0

    def mark(self) -> Mark:
        """Note where the log stands, between tentative entries."""
        transcript = self._transcript
        return (
            self.n,
            self.base,
            self.size,
            self.after,
            self._messages,
            len(self._messages),
            transcript,
            transcript.pushed,
        )

    def rollback(self, mark: Mark) -> None:
        """Drop all entries since `mark`; costs one step for each message dropped."""
        self.n, self.base, self.size, self.after, self._messages, count, self._transcript, pushed = mark
        while self._transcript.pushed > pushed:
            self._transcript.pop()
        del self._messages[count:]

    def settle(self, mid: int, at: int) -> bool:
        """Note that the tentative entries are committed, at `at` and in row `mid`; True when they made the row."""
        self.updated_at = at
        if self.mid == mid:
            return False
        self.mid = mid
        self.created_at = at
        return True

    # Compacting

    def compactable(self, keep: TurnWindow, limit: int) -> Compactable | None:
        """Return what may be summed up so that a window has room for the rest; None: nothing. Needs all messages.

        Only whole turns, and so closed exchanges; never the current one, and whole entries.
        """
        view, transcript = self._settled(keep, limit), self._transcript
        turns = transcript.turns
        place = bisect_left(turns, view.first(transcript))
        while 0 < place < len(turns) and not self._opens_entry(turns[place]):
            place -= 1
        if place == 0 or not turns:
            return None  # what stands before the first turn goes with it
        first = turns[place]
        to = transcript.version(first) - 1
        units = [unit for unit in transcript.units[: first - transcript.start] if unit_version(unit) <= to]
        seen = tuple(rendered(units, transcript.system))
        if not seen:
            return None
        return Compactable(seen, transcript.summary, to, self.mid, self.base, self._count_until(to))

    def _opens_entry(self, number: int) -> bool:
        """Tell whether no message of an earlier turn is in the entry in which this turn begins."""
        transcript = self._transcript
        version = transcript.version(number)
        while number > transcript.start and transcript.version(number - 1) == version:
            number -= 1
            if not isinstance(transcript.units[number - transcript.start], SystemMessage):
                return False
        return True

    def still(self, compactable: Compactable) -> bool:
        """Tell whether what was to be summed up is what it was. Needs all messages."""
        return (
            self.base == compactable.base
            and self.mid == compactable.mid
            and self._count_until(compactable.to) == compactable.count
        )

    def _count_until(self, version: int) -> int:
        units = self._transcript.units
        answered = [len(unit.results) for unit in units if isinstance(unit, Exchange) and unit_version(unit) <= version]
        return sum([version_of(message) <= version for message in self._messages]) + sum(answered)

    # Reading

    def covers(self, window: Window, limit: int | None) -> bool:
        """Tell whether everything is held that this window shows."""
        view = self._settled(window, limit)
        return view.covered(self._transcript, self.complete)

    def hides(self, window: LimitedWindow, limit: int) -> bool:
        """Tell whether the state has more than a window shows; True as well where what is held does not tell."""
        view, transcript = self._settled(window, limit), self._transcript
        first = 0 if not window.whole_turns or not transcript.turns else transcript.turns[0] - transcript.start
        return not self.complete or view.first(transcript) > transcript.start + first

    def view(self, window: Window, limit: int | None) -> Messages | None:
        """Return what a window shows, the same object until that or the version changes; None: older ones are needed.

        Costs one step for each message that came or left since the last look, and the tuple.
        """
        transcript = self._transcript
        return view_of(window, transcript).look(transcript, limit, self.complete, self.version)

    def _settled(self, window: Window, limit: int | None) -> View:
        view = view_of(window, self._transcript)
        view.settle(self._transcript, limit)
        return view

    def view_with(self, messages: tuple[Message, ...], window: Window, limit: int | None) -> Messages | None:
        """Return what a window would show with these messages at the end; None: older ones are needed."""
        shown = [(view, view.shown) for view in self._transcript.views]
        version, mark = self.version, self.mark()
        self.append(messages)
        seen = self._settled(window, limit).look(self._transcript, limit, self.complete, version)
        self.rollback(mark)
        self._settled(window, limit)
        for view, was in shown:
            view.shown = was  # so that other readers find the same object
        return seen

    def renamed(self, view: Messages, version: Version) -> Messages:
        """Return a view with the version that it turned out to have; the next read finds the same object."""
        renamed = Messages(view, version, view.overflow)
        for known in self._transcript.views:
            if known.shown is view:
                known.shown = renamed
        return renamed

    def resume(self, other: Log) -> None:
        """Find the objects that another log at the same version returned, where they show the same."""
        if other.version != self.version:
            return
        for view in reversed(other._transcript.views):
            shown = view.shown
            if shown is not None and shown.version == self.version:
                with contextlib.suppress(Exception):  # a window of the user's: its next read tells
                    again = self.view(view.window, view.limit)
                    if again is not None and (again, again.overflow) == (shown, shown.overflow):
                        view_of(view.window, self._transcript).shown = shown

    def without_equal_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Leave out the system messages that equal the one that is current when they come."""
        if not any(isinstance(message, SystemMessage) for message in messages):
            return messages
        current, kept = self._transcript.system, []
        for message in messages:
            if isinstance(message, SystemMessage):
                if current is not None and message == current:
                    continue
                current = message
            kept.append(message)
        return tuple(kept)

    def trim(self) -> None:
        """Let go what no window in use reaches, when it is much. Only where nothing is tentative.

        What a window needs after all, because its limit rose or it is a new one, is loaded again.
        """
        transcript = self._transcript
        if len(transcript.units) <= _SLACK or not transcript.views:
            return
        # What nobody has looked through for long does not hold anything; it is made anew when it is wanted.
        unused = transcript.end - _UNUSED
        transcript.views[1:] = [view for view in transcript.views[1:] if view.looked_at >= unused]
        first = min([view.needed(transcript) for view in transcript.views])
        if first - transcript.start <= _SLACK + transcript.end - first:
            return
        version = transcript.version(first)
        self._let_go(version)
        self.after = version - 1

    def prunable(self, window: Window, limit: int) -> int:
        """Return the number of the entry before which this window shows none, but for the system message; 0: none."""
        if self._transcript.summary:
            return 0  # the entry that sums up stands behind some that it left
        view, transcript = self._settled(window, limit), self._transcript
        if not view.covered(transcript, self.complete):
            return 0
        first = view.first(transcript)
        return transcript.version(first) if first < transcript.end else max(self.n, self.base)

    def prune(self, base: int) -> None:
        """Note that the entries before `base` are gone, but for the system message. Only where nothing is tentative."""
        self._let_go(base)
        self.base = base
        if self.after < base:
            self.after = -1

    def _let_go(self, version: int) -> None:
        """Drop the entries before this version. A result that came later for a call that goes is hidden with it."""
        transcript = self._transcript
        first = transcript.start
        while first < transcript.end and transcript.version(first) < version:
            first += 1
        transcript.begin()
        transcript.trim(first)
        leaving = 0
        for message in self._messages:
            if version_of(message) >= version:
                break
            leaving += 1
            self.size -= len(message.raw)
        del self._messages[:leaving]

    # Loading

    def start(self, head: Head, first: int, after: int, system: Message | None, summary: tuple[Message, ...]) -> None:
        """Stand before the state's first entry, or behind an older part that is not held."""
        self.n = after or first - 1
        self.base = head.base
        self.after = after or -1
        self._rebuild([], Transcript(system, summary))

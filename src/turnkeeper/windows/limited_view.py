"""The view of a window with a limit: what is evicted, and what is shown again."""

from __future__ import annotations

from bisect import bisect_left

from turnkeeper.log import Version
from turnkeeper.messages import Message, SystemMessage, ToolMessage
from turnkeeper.windows.base import Messages
from turnkeeper.windows.limited import LimitedWindow
from turnkeeper.windows.rendering import render
from turnkeeper.windows.transcript import Exchange, Transcript

__all__ = ["LimitedView"]


class LimitedView:
    """The view of a window with a limit: each unit's cost, the first visible unit, and the cost of what is visible."""

    __slots__ = (
        "_costs",
        "_first",
        "_flat",
        "_flat_end",
        "_flat_first",
        "_room",
        "_system",
        "_total",
        "limit",
        "looked_at",
        "shown",
        "window",
    )

    def __init__(self, window: LimitedWindow, transcript: Transcript) -> None:
        self.window: LimitedWindow = window
        self._costs: list[int] = []
        self._first: int = transcript.start
        self._total: int = 0  # of the visible units, without the system message
        self.limit: int | None = 0
        self._room: int | None = None  # left at the last look, None when units came to or left the end meanwhile
        self._system: Message | None = None  # the one that `_flat` shows in its place
        self._flat: list[Message] = []  # the visible messages of the units from `_flat_first` to before `_flat_end`
        self._flat_first: int = transcript.start
        self._flat_end: int = transcript.start
        self.looked_at: int = transcript.end
        self.shown: Messages | None = None
        for number in range(transcript.start, transcript.end):
            self._costs.append(self._cost(transcript, number))
        self._total = sum(self._costs)

    def first(self, transcript: Transcript) -> int:
        """Number of the first visible unit."""
        return self._first

    def needed(self, transcript: Transcript) -> int:
        """The unit, or turn, before the first visible one does not fit: that proves it."""
        earlier = self._earlier(transcript, self._first)
        return transcript.start if earlier is None else earlier

    def appended(self, transcript: Transcript, number: int) -> None:
        """Take note of a new last unit: the one before it is not current any more."""
        self.shown = None
        self._revalue(transcript, number - 1)
        cost = self._cost(transcript, number)
        self._costs.append(cost)
        self._total += cost

    def changed(self, transcript: Transcript, number: int) -> None:
        """Take note of a result that came or went."""
        self.shown = None
        if self._flat_first <= number < self._flat_end:
            self._forget()
        self._revalue(transcript, number)

    def removed(self, transcript: Transcript, number: int) -> None:
        """Take note that the last unit is gone: the one before it may be current again."""
        self.shown = self._room = None
        cost = self._costs.pop()
        if number >= self._first:
            self._total -= cost
        else:
            self._first = number
        if self._flat_end >= number:
            self._forget()
        self._revalue(transcript, number - 1)

    def trimmed(self, transcript: Transcript, leaving: int) -> None:
        """Take note that so many units left on the left; visible ones only when they were pruned."""
        start = transcript.start
        if self._first < start:
            self._total -= sum(self._costs[leaving - start + self._first : leaving])
            self._first = start
            self.shown = self._room = None
        del self._costs[:leaving]
        if self._flat_first < transcript.start:
            self._forget()

    def _revalue(self, transcript: Transcript, number: int) -> None:
        place = number - transcript.start
        if place < 0 or not isinstance(transcript.units[place], Exchange):
            return
        cost = self._cost(transcript, number)
        change = cost - self._costs[place]
        self._costs[place] = cost
        if number >= self._first:
            self._total += change
        elif change < 0:
            self._room = None  # it may fit now

    def _forget(self) -> None:
        self._flat = []
        self._flat_first = self._flat_end = self._first

    def _cost(self, transcript: Transcript, number: int) -> int:
        weigh = self.window.weigh
        unit = transcript.units[number - transcript.start]
        if not isinstance(unit, Exchange):
            return 0 if isinstance(unit, SystemMessage) else weigh(unit)
        cost = weigh(unit.call)
        for result in unit.results:
            cost += weigh(result)
        if unit.missing and number != transcript.end - 1:
            if self.window.on_unanswered == "drop":
                return 0
            if self.window.on_unanswered == "close":
                cost += sum([weigh(lost) for lost in unit.lost()])
        return cost

    # Evicting

    def settle(self, transcript: Transcript, limit: int | None) -> None:
        """Find the first visible unit: the oldest from which on everything fits.

        Evicts from where it stood and, where there is more room than at the last look, shows older units again, so
        that the result depends on the transcript and the limit alone. Each unit passed is a step.
        """
        assert limit is not None
        self.looked_at = transcript.end
        window, costs = self.window, self._costs
        start = transcript.start
        room = limit - window.overhead - self._fixed_cost(transcript)
        self.limit = limit
        before = self._first
        left = room - self._total
        if left < 0 or self._room is None or left > self._room or window.whole_turns or window.on_overflow == "keep":
            floor = self._floor(transcript)
            if window.whole_turns:
                self._align(transcript)
            while self._total > room and self._first < floor:
                following = self._next(transcript, self._first)
                self._total -= sum(costs[self._first - start : following - start])
                self._first = following
            if self._room is None or room - self._total > self._room or self._first > floor:
                while (earlier := self._earlier(transcript, self._first)) is not None:
                    gain = sum(costs[earlier - start : self._first - start])
                    if self._first <= floor and self._total + gain > room:
                        break
                    self._total += gain
                    self._first = earlier
        self._room = room - self._total
        if self._first != before:
            self.shown = None

    def _fixed_cost(self, transcript: Transcript) -> int:
        system, window = transcript.system, self.window
        cost = 0 if system is None else window.weigh(system)
        if transcript.summary and not window.counts_turns:
            cost += sum([window.weigh(message) for message in transcript.summary])
        return cost

    def _floor(self, transcript: Transcript) -> int:
        """Number of the last unit that may become the first visible one."""
        if self.window.whole_turns or self.window.on_overflow == "keep":
            if transcript.turns:
                return transcript.turns[-1]
            if not self.window.whole_turns:
                return max(transcript.end - 1, transcript.start)
        return transcript.end

    def _align(self, transcript: Transcript) -> None:
        """Move to the beginning of a turn."""
        turns, start = transcript.turns, transcript.start
        place = bisect_left(turns, self._first)
        aligned = turns[place] if place < len(turns) else transcript.end
        if aligned != self._first:
            self._total -= sum(self._costs[self._first - start : aligned - start])
            self._first = aligned

    def _next(self, transcript: Transcript, number: int) -> int:
        if not self.window.whole_turns:
            return number + 1
        turns = transcript.turns
        return turns[bisect_left(turns, number + 1)]

    def _earlier(self, transcript: Transcript, number: int) -> int | None:
        if not self.window.whole_turns:
            return number - 1 if number > transcript.start else None
        turns = transcript.turns
        place = bisect_left(turns, number)
        return turns[place - 1] if place else None

    def covered(self, transcript: Transcript, complete: bool) -> bool:
        """Tell whether no older unit could be visible."""
        window = self.window
        if complete:
            return True
        if not transcript.turns and (window.whole_turns or window.on_overflow == "keep"):
            return False  # the current turn begins further back
        if self._first > (transcript.turns[0] if window.whole_turns else transcript.start):
            return True
        if (
            transcript.summary
            and transcript.system is not None
            and transcript.system_at < 0
            and not window.system_first
        ):
            return False  # it costs no room, and may stand right before what is held, and so behind the summary
        assert self._room is not None
        return self._room < window.least

    def shows(self, transcript: Transcript, number: int, message: Message) -> bool:
        """Tell whether a message that was just pushed is visible, or for whole turns, whether everything fits."""
        if number < 0:
            return False
        if self.window.whole_turns:
            assert self._room is not None
            # What came before the first user message is not shown, and yet taken; a result comes after its call.
            hidden = isinstance(message, ToolMessage) and bool(transcript.turns) and number < self._first
            return self._room >= 0 and not hidden
        return number >= self._first or isinstance(message, SystemMessage)

    # Showing

    def look(self, transcript: Transcript, limit: int | None, complete: bool, version: Version) -> Messages | None:
        """Return what is visible, the same object until that, or the version, changes."""
        self.settle(transcript, limit)
        if not complete and not self.covered(transcript, False):
            return None
        assert self._room is not None
        # An empty list fits any limit, whatever the counter charges for one.
        held = self._first < transcript.end or transcript.system is not None or bool(transcript.summary)
        overflow = self._room < 0 and held
        shown = self.shown
        if shown is None or shown.version != version or shown.overflow != overflow:
            shown = self.shown = self._show(transcript, version, overflow)
        return shown

    def _show(self, transcript: Transcript, version: Version, overflow: bool) -> Messages:
        window = self.window
        system = transcript.system
        in_place = system if not window.system_first and transcript.system_at >= self._first else None
        if in_place is not self._system or self._first < self._flat_first or self._flat_end < self._first:
            self._system = in_place
            self._forget()
        flat = self._flat
        gone = 0
        for number in range(self._flat_first, self._first):
            gone += self._length(transcript, number)
        del flat[:gone]
        self._flat_first = self._first
        last = transcript.end - 1
        for number in range(self._flat_end, last):
            self._render(transcript, number, False)
        self._flat_end = max(last, self._first)
        held = len(flat)
        if last >= self._first:
            self._render(transcript, last, True)
        visible = flat
        if transcript.summary or (system is not None and in_place is None):
            first = () if system is None or in_place is not None else (system,)
            visible = [*first, *transcript.summary, *flat]
        shown = Messages(visible, version, overflow)
        del flat[held:]
        return shown

    def _render(self, transcript: Transcript, number: int, current: bool) -> None:
        unit = transcript.units[number - transcript.start]
        if not isinstance(unit, SystemMessage) or unit is self._system:
            render(unit, current, self.window, self._flat)

    def _length(self, transcript: Transcript, number: int) -> int:
        unit = transcript.units[number - transcript.start]
        if not isinstance(unit, Exchange):
            return int(not isinstance(unit, SystemMessage))
        length = 1 + len(unit.results)
        if unit.missing and self.window.on_unanswered == "drop":
            return 0
        return length + (unit.missing if self.window.on_unanswered == "close" else 0)

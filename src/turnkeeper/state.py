"""One memory's log as it is held in RAM: tentative changes on the right, taken back on rollback. Pure."""

from __future__ import annotations

import contextlib
from typing import Final, TypeAlias

from turnkeeper.log import Head, NewMeta, Version
from turnkeeper.messages import Message, SystemMessage, place_message, place_of, split_place, version_of
from turnkeeper.metadata import expires_after_of
from turnkeeper.windows import LimitedWindow, Messages, Window
from turnkeeper.windows.transcript import Transcript
from turnkeeper.windows.view import View, view_of

__all__ = ["Log", "Mark"]


_SLACK: Final = 64
"""Units that may stay though no window reaches them, beside as many as are reached: leaving is done in bulk."""


_UNUSED: Final = 256
"""Units that come while nobody looks through a window, until what was kept for it is dropped."""


Mark: TypeAlias = tuple[int, int, int, int, int, dict[int, int], list[Message], int, Transcript, int]

_NO_EDITS: Final[dict[int, int]] = {}


class Log:
    """The messages since `base` or the newer part of them, the versions around them, and their size.

    Attributes:
        mid: the memory's row, 0 while there is none.
        n: number of the last entry, tentative ones included.
        base: number of the entry that starts the state.
        size: bytes of the encoded messages held.
        moved: number of the last entry when pruning moved `base`, as far as no later entry is known to say so; -1: it
            did not.
        after: all entries behind this one are held; -1: the whole state is.
        first: number of the first entry that the state needs besides the one at `base`.
        meta: the memory's metadata, as the store has them.
        meta_version: how often they were changed.
        expires_at: microseconds since the epoch at which the memory may be deleted, as last read; 0: never.
        missing_system: number of the entry with the system message that was current before the whole state, where
            another has taken its place and it was not read; 0: there is none, or it is known.
        transcript: the messages held, paired. Others only read it.
        created_at: microseconds since the epoch, 0 while there is no row.
        updated_at: the same of the last committed entry.
    """

    __slots__ = (
        "_edited",
        "_messages",
        "after",
        "base",
        "created_at",
        "expires_at",
        "first",
        "meta",
        "meta_version",
        "mid",
        "missing_system",
        "moved",
        "n",
        "size",
        "transcript",
        "updated_at",
    )

    def __init__(self, head: Head | None = None) -> None:
        """Start empty at `head`'s row."""
        self.mid: int = head.mid if head else 0
        self.n: int = 0
        self.base: int = 0
        self.size: int = 0
        self.after: int = -1
        self.first: int = 0
        self.missing_system: int = 0
        self.moved: int = -1
        self.meta: bytes | None = None
        self.meta_version: int = 0
        self.expires_at: int = 0
        self.created_at: int = head.created_at if head else 0
        self.updated_at: int = 0
        if head is not None:
            self.note(head)
        # Later entries that say what a system message says now, by its place. Replaced, never changed.
        self._edited: dict[int, int] = _NO_EDITS
        self._messages: list[Message] = []
        self.transcript: Transcript = Transcript()

    def describe(self, meta: NewMeta) -> None:
        """Take over metadata that were committed."""
        self.meta, self.meta_version = meta.data, meta.expected + 1

    @property
    def expires_after(self) -> float | None:
        """Seconds without a change after which this memory is to be deleted; 0: never, None: as the runtime says."""
        return None if self.meta is None else expires_after_of(self.meta)

    def note(self, head: Head) -> None:
        """Take over what a row says besides where the log stands."""
        self.meta, self.meta_version, self.expires_at = head.meta, head.meta_version, head.expires_at
        self.updated_at = head.updated_at

    @property
    def head(self) -> Head:
        """The memory's row, as far as it is known."""
        return Head(
            self.mid,
            self.n,
            self.base,
            self.system,
            self.created_at,
            self.updated_at,
            self.expires_at,
            self.meta_version,
            self.meta,
        )

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
        system = self.transcript.system
        return 0 if system is None else self.entry_of(system)

    @property
    def before(self) -> int:
        """Number of the entry before the state from which a system message is held, 0 without one."""
        system = self.transcript.system_before
        number = 0 if system is None else self.entry_of(system)
        return number if number < self.first else 0

    def entry_of(self, system: Message) -> int:
        """Return the number of the entry that has what a system message says now."""
        return self._edited.get(place_of(system)) or version_of(system)

    @property
    def count(self) -> int:
        """How many messages are held, with the summary and the system message that stand for older ones."""
        transcript = self.transcript
        return len(self._messages) + len(transcript.summary) + (transcript.system_before is not None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages held, as they were added."""
        return tuple(self._messages)

    @property
    def last(self) -> Message | None:
        """The last message, if any is held."""
        return self._messages[-1] if self._messages else None

    def messages_from(self, place: int) -> tuple[Message, ...]:
        """Return those of the messages held that stand at this place or behind it."""
        return tuple([message for message in self._messages if place_of(message) >= place])

    def messages_until(self, version: int) -> tuple[Message, ...]:
        """Return those of the messages held that came with entries up to this one."""
        return tuple([message for message in self._messages if version_of(message) <= version])

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
        self.base = self.first = self.n
        self.size = 0
        self.after = -1
        # New ones, so that the old ones are whole for a rollback.
        self._messages = []
        self.transcript = Transcript()
        if self._take(messages, window, limit, judging):
            return True
        self.rollback(mark)
        return False

    def fork(self, messages: tuple[Message, ...], leads: bool, summary: int) -> None:
        """Take the next entry, one that starts the state with another memory's: a system message, a summary, the rest.

        Args:
            messages: all of them, in this order.
            leads: whether the first is a system message that stands before all others.
            summary: how many behind that are the summary.
        """
        self.n += 1
        self.base = self.first = self.n
        self.after = -1
        for index, message in enumerate(messages):
            place_message(message, self.n, index)
        rest = leads + summary
        self._rebuild(list(messages[rest:]), Transcript(messages[0] if leads else None, messages[leads:rest]))

    def undo(self, cut: int) -> tuple[Message, ...]:
        """Take the next entry, one that takes off all messages at this place and behind it; return them.

        What stands for messages before those held stays. Costs a step for each message kept.
        """
        self.n += 1
        transcript = self.transcript
        kept = [message for message in self._messages if place_of(message) < cut]
        removed = tuple([message for message in self._messages if place_of(message) >= cut])
        self._rebuild(kept, Transcript(transcript.system_before, transcript.summary))
        return removed

    def remove(self, places: frozenset[int]) -> None:
        """Take the next entry, one that takes messages out; those not held are not missed."""
        self.n += 1
        transcript = self.transcript
        kept = [message for message in self._messages if place_of(message) not in places]
        before = transcript.system_before
        if before is not None and place_of(before) in places:
            before = None
        self._rebuild(kept, Transcript(before, transcript.summary))

    def edit(self, place: int, message: Message) -> None:
        """Take the next entry, one that puts a message in the place of an earlier one, if that is held."""
        self.n += 1
        place_message(message, *split_place(place))
        transcript = self.transcript
        before = transcript.system_before
        if before is not None and place_of(before) == place:
            # Replaced already, and where messages that equalled it are not held, a later one is no repetition of it.
            before = message if self.complete or before is transcript.system else None
        kept = [message if place_of(each) == place else each for each in self._messages]
        self._rebuild(kept, Transcript(before, transcript.summary))

    def settle_system(self, system: Message | None) -> None:
        """Note that the last entry says which system message is current: needed where older messages are not held."""
        transcript = self.transcript
        if system is not None:
            self._edited = {**self._edited, place_of(system): self.n}
        if system is None or transcript.system is None or place_of(transcript.system) != place_of(system):
            self._rebuild(list(self._messages), Transcript(system, transcript.summary))

    def compact(self, to: int, summary: tuple[Message, ...], system: Message | None, *, current: bool) -> None:
        """Take the next entry, one that puts a summary in the place of everything up to entry `to`.

        Args:
            to: number of the last entry summed up.
            summary: the messages in its place.
            system: the one that was current then; it stays.
            current: whether it still is.
        """
        self.n += 1
        before = system
        if self.after > to and not current:  # one that is not held may have come since
            before = self.transcript.system_before
        if system is not None:
            self._edited = {**self._edited, place_of(system): self.n}
        self.base = self.n
        self.first = to + 1
        if self.after <= to:
            self.after = -1
        for index, message in enumerate(summary):
            place_message(message, self.n, index)
        kept = [message for message in self._messages if version_of(message) > to]
        self._rebuild(kept, Transcript(before, summary))

    def system_until(self, to: int) -> Message | None:
        """Return the system message that was current after entry `to`, as far as it is held."""
        system = self.transcript.system_before
        for message in self._messages:
            if version_of(message) > to:
                break
            if isinstance(message, SystemMessage) and (system is None or message != system):
                system = message
        return system

    def _rebuild(self, kept: list[Message], transcript: Transcript) -> None:
        # New ones, so that the old ones are whole for a rollback.
        self._messages, self.transcript = kept, transcript
        older = transcript.summary if transcript.system is None else (transcript.system, *transcript.summary)
        self.size = sum([len(message.raw) for message in (*older, *kept)])
        for message in kept:
            transcript.push(message)

    def _take(
        self, messages: tuple[Message, ...], window: Window | None, limit: int | None, judging: bool
    ) -> bool | None:
        transcript, n = self.transcript, self.n
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
            self.transcript.pop()
            self.size -= len(self._messages.pop().raw)

    def begin(self) -> Mark:
        """Begin a round of tentative entries: what is held now stays. Return what `rollback` goes back to."""
        transcript, messages = self.transcript, self._messages
        transcript.trail.clear()
        return (
            self.n,
            self.base,
            self.first,
            self.size,
            self.after,
            self._edited,
            messages,
            len(messages),
            transcript,
            0,
        )

    def mark(self) -> Mark:
        """Note where the log stands, between tentative entries."""
        transcript = self.transcript
        return (
            self.n,
            self.base,
            self.first,
            self.size,
            self.after,
            self._edited,
            self._messages,
            len(self._messages),
            transcript,
            transcript.pushed,
        )

    def rollback(self, mark: Mark) -> None:
        """Drop all entries since `mark`; costs one step for each message dropped."""
        (
            self.n,
            self.base,
            self.first,
            self.size,
            self.after,
            self._edited,
            self._messages,
            count,
            self.transcript,
            pushed,
        ) = mark
        while self.transcript.pushed > pushed:
            self.transcript.pop()
        del self._messages[count:]

    def settle(self, mid: int, at: int) -> bool:
        """Note that the tentative entries are committed, at `at` and in row `mid`; True when they made the row."""
        self.updated_at = at
        if self.mid == mid:
            return False
        self.mid = mid
        self.created_at = at
        return True

    # Reading

    def settled(self, window: Window, limit: int | None) -> View:
        """Return what a window with this limit has made of the messages held."""
        view = view_of(window, self.transcript)
        view.settle(self.transcript, limit)
        return view

    def covers(self, window: Window, limit: int | None) -> bool:
        """Tell whether everything is held that this window shows."""
        view = self.settled(window, limit)
        return view.covered(self.transcript, self.complete)

    def hides(self, window: LimitedWindow, limit: int) -> bool:
        """Tell whether the state has more than a window shows; True as well where what is held does not tell."""
        view, transcript = self.settled(window, limit), self.transcript
        first = 0 if not window.whole_turns or not transcript.turns else transcript.turns[0] - transcript.start
        return not self.complete or view.first(transcript) > transcript.start + first

    def view(self, window: Window, limit: int | None) -> Messages | None:
        """Return what a window shows, the same object until that or the version changes; None: older ones are needed.

        Costs one step for each message that came or left since the last look, and the tuple.
        """
        transcript = self.transcript
        return view_of(window, transcript).look(transcript, limit, self.complete, self.version)

    def view_with(self, messages: tuple[Message, ...], window: Window, limit: int | None) -> Messages | None:
        """Return what a window would show with these messages at the end; None: older ones are needed."""
        shown = [(view, view.shown) for view in self.transcript.views]
        version, mark = self.version, self.mark()
        self.append(messages)
        seen = self.settled(window, limit).look(self.transcript, limit, self.complete, version)
        self.rollback(mark)
        self.settled(window, limit)
        for view, was in shown:
            view.shown = was  # so that other readers find the same object
        return seen

    def renamed(self, view: Messages, version: Version) -> Messages:
        """Return a view with the version that it turned out to have; the next read finds the same object."""
        renamed = Messages(view, version, view.overflow)
        for known in self.transcript.views:
            if known.shown is view:
                known.shown = renamed
        return renamed

    def resume(self, other: Log) -> None:
        """Find the objects that another log at the same version returned, where they show the same."""
        if other.version != self.version:
            return
        for view in reversed(other.transcript.views):
            shown = view.shown
            if shown is not None and shown.version == self.version:
                with contextlib.suppress(Exception):  # a window of the user's: its next read tells
                    again = self.view(view.window, view.limit)
                    if again is not None and (again, again.overflow) == (shown, shown.overflow):
                        view_of(view.window, self.transcript).shown = shown

    def without_equal_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Leave out the system messages that equal the one that is current when they come."""
        if not any(isinstance(message, SystemMessage) for message in messages):
            return messages
        current, kept = self.transcript.system, []
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
        transcript = self.transcript
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
        if self.transcript.summary:
            return 0  # the entry that sums up stands behind some that it left
        view, transcript = self.settled(window, limit), self.transcript
        if not view.covered(transcript, self.complete):
            return 0
        first = view.first(transcript)
        return transcript.version(first) if first < transcript.end else max(self.n, self.base)

    def prunes_to(self, cut: int) -> tuple[int, int]:
        """Return what becomes of a wish to prune what is before `cut`: the entry before which they go, and `base`.

        The current turn stays, and so does a summary with all that it left, until another one takes its place.
        """
        turns = self.transcript.turns
        newest = self.transcript.version(turns[-1]) if turns else self.n if self.complete else self.after + 1
        cut = min(cut, newest)
        if cut <= self.first:
            return cut, self.base
        if cut <= self.base or self.transcript.summary:
            return self.first, self.base  # the entry at `base` sums up what was before `first`
        return cut, cut

    def prune(self, base: int) -> None:
        """Note that the entries before `base` are gone, but for the system message. Only where nothing is tentative."""
        if self.transcript.summary:  # older than what is left
            kept = [message for message in self._messages if version_of(message) >= base]
            self._rebuild(kept, Transcript(self._system_left(base)))
        else:
            self._let_go(base)
        if base != self.base:
            self.moved = self.n
        self.base = self.first = base
        if self.after < base:
            self.after = -1

    def _let_go(self, version: int) -> None:
        """Drop the entries before this version. A result that came later for a call that goes is hidden with it."""
        transcript = self.transcript
        first = transcript.start
        while first < transcript.end and transcript.version(first) < version:
            first += 1
        was, stays = transcript.system_before, self._system_left(version)
        self.size += _size(stays) - _size(was)
        transcript.begin()
        transcript.trim(first, stays)
        leaving = 0
        for message in self._messages:
            if version_of(message) >= version:
                break
            leaving += 1
            self.size -= len(message.raw)
        del self._messages[:leaving]

    def _system_left(self, version: int) -> Message | None:
        """Return the system message that was current before an entry, if what it says is known without older ones."""
        system = self.system_until(version - 1)
        known = system is not None and (system is self.transcript.system or self.entry_of(system) >= version)
        return system if known else None

    # Loading

    def start(
        self, head: Head, first: int, after: int, system: Message | None, said_by: int, summary: tuple[Message, ...]
    ) -> None:
        """Stand before the state's first entry, or behind an older part that is not held.

        Args:
            head: the memory's row.
            first: number of the first entry that the state needs besides the one at its base.
            after: number of the last entry that is not held; 0: the whole state is.
            system: the system message that is current there, as far as it is known.
            said_by: number of the entry that has it.
            summary: what stands for what was summed up.
        """
        self.n = after or first - 1
        self.base = head.base
        self.first = first
        self.after = after or -1
        if system is not None and version_of(system) != said_by:
            self._edited = {place_of(system): said_by}
        self._rebuild([], Transcript(system, summary))


def _size(message: Message | None) -> int:
    return 0 if message is None else len(message.raw)

"""The older part of a log: what may be summed up, and whether it is still what a summariser saw. Pure."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from turnkeeper.messages import Message, SystemMessage
from turnkeeper.state import Log
from turnkeeper.windows import TurnWindow
from turnkeeper.windows.rendering import rendered
from turnkeeper.windows.transcript import Exchange, Transcript, unit_version

__all__ = ["Compactable", "compactable", "unchanged"]


class Compactable(msgspec.Struct, frozen=True, gc=False):
    """The older part of a log, to be summed up.

    Attributes:
        messages: as a window shows them, without the current system message.
        summary: what stands for what was before them already.
        to: number of the last entry among them.
        mid: the memory's row.
        base: number of the entry that starts the state.
        prefix: the messages up to `to`, as they were added.
        answers: how many results the calls among them have.
    """

    messages: tuple[Message, ...]
    summary: tuple[Message, ...]
    to: int
    mid: int
    base: int
    prefix: tuple[Message, ...]
    answers: int


def compactable(log: Log, keep: TurnWindow, limit: int) -> Compactable | None:
    """Return what may be summed up so that a window has room for the rest; None: nothing. Needs all messages.

    Only whole turns, and so closed exchanges; never the current one, and whole entries.
    """
    view, transcript = log.settled(keep, limit), log.transcript
    turns = transcript.turns
    place = bisect_left(turns, view.first(transcript))
    while 0 < place < len(turns) and not _opens_entry(transcript, turns[place]):
        place -= 1
    if place == 0 or not turns:
        return None  # what stands before the first turn goes with it
    first = turns[place]
    to = transcript.version(first) - 1
    units = [unit for unit in transcript.units[: first - transcript.start] if unit_version(unit) <= to]
    seen = tuple(rendered(units, transcript.system))
    if not seen:
        return None
    return Compactable(
        seen, transcript.summary, to, log.mid, log.base, log.messages_until(to), _count_answers(transcript, to)
    )


def unchanged(log: Log, seen: Compactable) -> bool:
    """Tell whether what was to be summed up is what it was. Needs all messages."""
    return (
        log.base == seen.base
        and log.mid == seen.mid
        and _count_answers(log.transcript, seen.to) == seen.answers
        and log.messages_until(seen.to) == seen.prefix
        and log.transcript.summary == seen.summary
    )


def _opens_entry(transcript: Transcript, number: int) -> bool:
    """Tell whether no message of an earlier turn is in the entry in which this turn begins."""
    version = transcript.version(number)
    while number > transcript.start and transcript.version(number - 1) == version:
        number -= 1
        if not isinstance(transcript.units[number - transcript.start], SystemMessage):
            return False
    return True


def _count_answers(transcript: Transcript, to: int) -> int:
    exchanges = (unit for unit in transcript.units if isinstance(unit, Exchange) and unit_version(unit) <= to)
    return sum([len(unit.results) for unit in exchanges])

"""Compactions: what they see, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from statemachine.states import Answer, Batch, Path, State, entry_of, place, refused
from statemachine.views import visible
from turnkeeper import CompactionAbandonedError, Window
from windows.model import Said, answered, called, current_system, pair, show
from windows.saying import rules_of


@dataclass(frozen=True)
class Seen:
    """What a compaction is about to replace: the messages up to an entry, with the results that their calls have."""

    epoch: int
    said: tuple[str, ...]
    to: int


@dataclass(frozen=True)
class Shown:
    """What a summariser is shown, as labels: messages, and the summary before them."""

    messages: tuple[str, ...]
    summary: tuple[str, ...]


def compact(state: State, seen: Iterable[Seen], batch: Batch) -> list[Path]:
    """Put a summary in the place of what was seen: one of these."""
    return [path for one in seen for path in _compact(state, one, batch)]


def _compact(state: State, seen: Seen, batch: Batch) -> list[Path]:
    if _prefix(state, seen.to) != seen.said or state.epoch != seen.epoch:
        return refused(state, CompactionAbandonedError)
    log = [said for said in state.log if said is state.older or entry_of(said) <= seen.to]
    at = current_system(log)
    older = None if at is None else log[at]
    then = state.next(
        "compact",
        batch,
        said=tuple(said for said in state.said if entry_of(said) > seen.to),
        summary=place(batch, state.n + 1),
        older=older,
        epoch=state.epoch + 1,
        base=state.n + 1,
        first=seen.to + 1,
        cut=0,
    ).note(older)
    return [Path((state, then), Answer(then.stamp, len(batch)))]


def _prefix(state: State, to: int) -> tuple[str, ...]:
    results = [state.said[result] for result, call in pair(state.said).items() if entry_of(state.said[call]) <= to]
    return tuple(repr(said) for said in (*state.said, *results) if said in results or entry_of(said) <= to)


def look_back(state: State, keep: Window, when: Window | None = None) -> tuple[Seen, Shown] | None:
    """What a compaction is to replace, and what it is shown of it; None: nothing."""
    if when is not None and not hides(state, when):
        return None
    log, rules = visible(state.log, state.older), rules_of(keep)
    start = show(log, replace(rules, overhead=rules.overhead + len(state.summary)), keep.limit("m")).start
    users = [index for index, said in enumerate(log) if said.role == "user"]
    first = next((place for place, user in enumerate(users) if user >= start), 0)
    while first and not _opens_entry(log, users[first]):
        first -= 1
    if not first:
        return None
    start = users[first]
    to = entry_of(log[start]) - 1
    answers, system = pair(log), current_system(log)
    labels: list[str] = []
    for unit, said in enumerate(log[:start]):
        if said is state.older or said.role == "tool" or unit == system or entry_of(said) > to:
            continue
        results = [result for result in range(len(log)) if answers.get(result) == unit]
        lost = called(said)
        for result in results:
            lost.remove(answered(log[result]))
        labels += [said.id, *(log[result].id for result in results), *(f"lost {call}" for call in lost)]
    if not labels:
        return None
    seen = Seen(state.epoch, _prefix(state, to), to)
    return seen, Shown(tuple(labels), tuple(said.id for said in state.summary))


def hides(state: State, when: Window) -> bool:
    """Tell whether a window can't show everything."""
    log, rules = visible(state.log, state.older), rules_of(when)
    units = [index for index, said in enumerate(log) if said.role != "tool"]
    shown = show(log, replace(rules, overhead=rules.overhead + len(state.summary)), when.limit("m"))
    return bool(units) and shown.start > units[0]


def _opens_entry(log: list[Said], user: int) -> bool:
    """Whether nothing of an earlier turn is in the entry in which a turn begins."""
    before = [said for said in log[:user] if entry_of(said) == entry_of(log[user])]
    return all(said.role in ("system", "tool") for said in before)

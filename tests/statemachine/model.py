"""What a memory is, in the plainest words: a list of messages, a turn, who waits, and what keys were used for.

A request leads from one state to the next through the states of a `Path`. One that was disturbed (cancelled, or the
store failed) may have stopped at any of them, and only at these: nothing is ever half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from turnkeeper import (
    CompactionAbandonedError,
    ConflictError,
    IdempotencyMismatchError,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnConflictError,
    TurnEndedError,
    TurnInterruptedError,
    TurnWindow,
    Window,
    WindowOverflowError,
)
from turnkeeper.windows import LimitedWindow
from windows.model import Said, accepts, answered, called, current_system, pair, show
from windows.saying import Fields, rules_of

Batch: TypeAlias = tuple[Fields, ...]


@dataclass(frozen=True)
class Stamp:
    """A version: the row's generation (None: there is none), and the number of its last entry."""

    row: int | None
    n: int


@dataclass(frozen=True)
class Used:
    """What an idempotency key was used for, and what that got."""

    content: tuple[Any, ...]
    stamp: Stamp
    count: int


@dataclass(frozen=True)
class OpenTurn:
    """The open turn: since when, its own last commit, and what it has added and not committed."""

    turn: int
    since: Stamp
    at: Stamp
    each: bool
    key: str | None
    added: Batch = ()


@dataclass(frozen=True)
class Seen:
    """What a compaction is about to replace: the messages up to an entry, with the results that their calls have."""

    epoch: int
    ids: tuple[str, ...]
    to: int


@dataclass(frozen=True)
class State:
    """A memory.

    Attributes:
        row: generation of the memory's row, None while there is none; `rows` is how many there were.
        n: number of the last entry.
        said: the messages, each named `"<entry>.<index>"`.
        summary: what stands for what was before them.
        older: the system message that stands before them.
        epoch: rises when all that was said is replaced.
        turn: the open turn.
        over: the turns that ended otherwise than by being left, which they were told.
        held: who waits for its end, in order.
        used: the idempotency keys used so far.
    """

    row: int | None = None
    rows: int = 0
    n: int = 0
    said: tuple[Said, ...] = ()
    summary: tuple[Said, ...] = ()
    older: Said | None = None
    epoch: int = 0
    turn: OpenTurn | None = None
    over: frozenset[int] = frozenset()
    held: tuple[int, ...] = ()
    used: tuple[tuple[str, Used], ...] = ()

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.row, self.n)

    @property
    def log(self) -> list[Said]:
        """The messages, behind the system message that stands before them."""
        return [*([] if self.older is None else [self.older]), *self.said]

    @property
    def count(self) -> int:
        """How many messages there are, with those that stand for others."""
        system = current_system(self.log)
        older = self.older is not None and system == 0
        return len(self.said) + len(self.summary) + older

    def find(self, key: str | None) -> Used | None:
        return dict(self.used).get(key) if key is not None else None


@dataclass(frozen=True)
class Answer:
    """What a caller gets: a receipt, any other value, or an error of a type."""

    stamp: Stamp | None = None
    count: int = 0
    value: Any = None
    error: type[Exception] | None = None


@dataclass(frozen=True)
class Path:
    """The states that a request goes through, the present one first, and what its caller gets at the end."""

    states: tuple[State, ...]
    answer: Answer


def entry_of(said: Said) -> int:
    return int(said.id.split(".")[0])


def place(batch: Iterable[Fields], n: int) -> tuple[Said, ...]:
    return tuple(Said(f"{n}.{index}", fields) for index, fields in enumerate(batch))


def _next(state: State, **changes: Any) -> State:
    """Take the next entry; the first one makes the row."""
    row, rows = (state.rows, state.rows + 1) if state.row is None else (state.row, state.rows)
    return replace(state, row=row, rows=rows, n=state.n + 1, **changes)


def _use(state: State, key: str | None, content: tuple[Any, ...], count: int) -> State:
    if key is None:
        return state
    return replace(state, used=(*state.used, (key, Used(content, state.stamp, count))))


def _refused(state: State, error: type[Exception]) -> list[Path]:
    return [Path((state,), Answer(error=error))]


def _replayed(state: State, used: Used, content: tuple[Any, ...]) -> list[Path]:
    if used.content != content:
        return _refused(state, IdempotencyMismatchError)
    return [Path((state,), Answer(used.stamp, used.count))]


def content_of(op: str, batch: Batch) -> tuple[Any, ...]:
    return op, repr(batch)


# Requests, where no turn is in the way


def add(state: State, batch: Batch, window: Window, key: str | None) -> list[Path]:
    content = content_of("add", batch)
    if (used := state.find(key)) is not None:
        return _replayed(state, used, content)
    if isinstance(window, LimitedWindow) and not window.whole_turns and key is None:
        batch = _without_equal_system(state, batch)
        if not batch:
            return [Path((state,), Answer(state.stamp, 0))]
    then = _next(state, said=state.said + place(batch, state.n + 1))
    then = _use(then, key, content, len(batch))
    return _judged(state, then, state.log, batch, window)


def set_(state: State, batch: Batch, window: Window, key: str | None, fits: bool) -> list[Path]:
    content = content_of("set", batch)
    if (used := state.find(key)) is not None:
        return _replayed(state, used, content)
    if not fits:
        return _refused(state, ConflictError)
    then = _next(state, said=place(batch, state.n + 1), summary=(), older=None, epoch=state.epoch + 1)
    then = _use(then, key, content, len(batch))
    return _judged(state, then, [], batch, window)


def _judged(state: State, then: State, log: Sequence[Said], batch: Batch, window: Window) -> list[Path]:
    taken = Path((state, then), Answer(then.stamp, len(batch)))
    if not isinstance(window, LimitedWindow) or window.on_overflow != "error":
        return [taken]
    refused = Path((state,), Answer(error=WindowOverflowError))
    rules = rules_of(window)
    rules = replace(rules, overhead=rules.overhead + (len(state.summary) if log else 0))
    fits = accepts(log, place(batch, state.n + 1), rules, window.limit("m"))
    if fits is None or state.summary:
        return [taken, refused]
    return [taken] if fits else [refused]


def _without_equal_system(state: State, batch: Batch) -> Batch:
    log = state.log
    at = current_system(log)
    current = None if at is None else log[at].fields
    kept: list[Fields] = []
    for fields in batch:
        if fields["role"] == "system":
            if fields == current:
                continue
            current = fields
        kept.append(fields)
    return tuple(kept)


def clear(state: State) -> list[Path]:
    if not state.count:
        return [Path((state,), Answer(state.stamp, 0))]
    then = _next(state, said=(), summary=(), older=None, epoch=state.epoch + 1)
    return [Path((state, then), Answer(then.stamp, 0))]


def delete(state: State) -> list[Path]:
    then = replace(state, row=None, n=0, said=(), summary=(), older=None, epoch=state.epoch + 1)
    if state.row is None:
        return [Path((state,), Answer(value=False))]
    return [Path((state, then), Answer(value=True))]


def compact(state: State, seen: Seen, batch: Batch) -> list[Path]:
    if prefix_of(state, seen.to) != seen.ids or state.epoch != seen.epoch:
        return _refused(state, CompactionAbandonedError)
    log = state.log
    at = current_system(log)
    older = log[at] if at is not None and (log[at] is state.older or entry_of(log[at]) <= seen.to) else None
    then = _next(
        state,
        said=tuple(said for said in state.said if entry_of(said) > seen.to),
        summary=place(batch, state.n + 1),
        older=older,
        epoch=state.epoch + 1,
    )
    return [Path((state, then), Answer(then.stamp, len(batch)))]


def prefix_of(state: State, to: int) -> tuple[str, ...]:
    results = [state.said[result] for result, call in pair(state.said).items() if entry_of(state.said[call]) <= to]
    return tuple(said.id for said in (*state.said, *results) if said in results or entry_of(said) <= to)


def look_back(state: State, window: Window) -> tuple[Seen, list[str]] | None:
    """What a compaction is to replace, and the labels of what it is shown of it; None: nothing."""
    log, rules = _visible(state.log, state.older), rules_of(window)
    start = show(log, replace(rules, overhead=rules.overhead + len(state.summary)), window.limit("m")).start
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
    return Seen(state.epoch, prefix_of(state, to), to), labels


def _opens_entry(log: list[Said], user: int) -> bool:
    """Whether nothing of an earlier turn is in the entry in which a turn begins."""
    before = [said for said in log[:user] if entry_of(said) == entry_of(log[user])]
    return all(said.role in ("system", "tool") for said in before)


# Turns


def end_turn(state: State, *, told: bool) -> State:
    if state.turn is None:
        return state
    return replace(state, turn=None, over=state.over | {state.turn.turn} if told else state.over)


def undo(state: State, to: int) -> State:
    return _next(state, said=tuple(said for said in state.said if entry_of(said) <= to))


def open_turn(state: State, turn: int, on_busy: str, each: bool, key: str | None) -> list[Path]:
    """Open a turn that does not wait."""
    states = [state]
    running = state.turn
    if running is not None and on_busy == "reject":
        return _refused(state, TurnBusyError)
    if (used := state.find(key)) is not None:  # looked for before anybody is interrupted
        return _refused(state, TurnAlreadyCommittedError if used.content == ("turn",) else IdempotencyMismatchError)
    if running is not None:
        assert on_busy in ("interrupt", "rollback")
        states.append(end_turn(state, told=True))
    if running is not None and on_busy == "rollback" and running.at != running.since:
        states.append(undo(states[-1], running.since.n))
    last = states[-1]
    states.append(replace(last, turn=OpenTurn(turn, last.stamp, last.stamp, each, key)))
    return [Path(tuple(states), Answer())]


def refusal(state: State, turn: int) -> type[Exception] | None:
    """Say why nothing can be done in a turn that was opened."""
    if state.turn is not None and state.turn.turn == turn:
        return None
    return TurnInterruptedError if turn in state.over else TurnEndedError


def _own(state: State) -> OpenTurn:
    assert state.turn is not None
    return state.turn


def undisturbed(turn: OpenTurn, state: State) -> bool:
    return turn.at.n == state.n and turn.at.row in (None, state.row)


def turn_add(state: State, turn: int, batch: Batch) -> list[Path]:
    if (error := refusal(state, turn)) is not None:
        return _refused(state, error)
    own = _own(state)
    if not own.each:
        then = replace(state, turn=replace(own, added=own.added + batch))
        return [Path((state, then), Answer())]
    if not undisturbed(own, state):
        return _refused(state, TurnConflictError)
    # The answer and what the turn knows of it are one step; an unknown outcome is one that it does not know.
    committed = _next(state, said=state.said + place(batch, state.n + 1))
    then = replace(committed, turn=replace(own, at=committed.stamp))
    return [Path((state, committed, then), Answer(then.stamp, len(batch)))]


def leave_turn(state: State, turn: int) -> list[Path]:
    """Leave it normally."""
    if (error := refusal(state, turn)) is not None:
        return _refused(state, error)
    own = _own(state)
    left = end_turn(state, told=False)
    if not own.added:
        return [Path((state, left), Answer())]
    if not undisturbed(own, state):
        return [Path((left,), Answer(error=TurnConflictError))]
    then = _next(left, said=state.said + place(own.added, state.n + 1))
    then = _use(then, own.key, ("turn",), len(own.added))
    return [Path((left, then), Answer(then.stamp, len(own.added)))]


# Looking


def view(state: State, window: Window, added: Batch = ()) -> tuple[list[str], bool]:
    """What a window shows, as labels, with what a turn has added; and whether that exceeds its limit."""
    log, rules = _visible([*state.log, *place(added, state.n + 1)], state.older), rules_of(window)
    if not (isinstance(window, TurnWindow) and window.max_turns is not None):
        rules = replace(rules, overhead=rules.overhead + len(state.summary))
    limit = window.limit("m")
    shown = show(log, rules, limit)
    if not state.summary:
        return shown.labels, shown.overflow
    system = current_system(log)
    older = system is not None and log[system] is state.older
    in_place = not older and (
        limit is None or (not rules.system_first and system is not None and system >= shown.start)
    )
    first = 0 if system is None or in_place else 1
    overflow = limit is not None and shown.total > limit
    return [*shown.labels[:first], *(said.id for said in state.summary), *shown.labels[first:]], overflow


def _visible(log: list[Said], older: Said | None) -> list[Said]:
    """Leave out the system message that stood before all others, once there is another one."""
    return log[1:] if older is not None and current_system(log) != 0 else log

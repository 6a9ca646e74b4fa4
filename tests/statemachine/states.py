"""What a memory is, in the plainest words: a list of messages, a turn, who waits, and what keys were used for.

A request leads from one state to the next through the states of a `Path`. One that was disturbed (cancelled, or the
store failed) may have stopped at any of them, and only at these: nothing is ever half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from windows.model import Said, current_system
from windows.saying import Fields

Batch: TypeAlias = tuple[Fields, ...]

Entries: TypeAlias = tuple[tuple[str, Batch], ...]
"""What was committed: operations and their messages, in order."""


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
    """The open turn.

    Attributes:
        since: the version when it began.
        at: the version after its own last commit that it knows of.
        added: what it has added and not committed.
        alone: no other process can write, so that whatever was committed meanwhile is its own.
        unsure: the store did not say what became of one of its commits.
        late: it has lasted longer than it may: whoever meets it ends it.
    """

    turn: int
    since: Stamp
    at: Stamp
    each: bool
    key: str | None
    added: Batch = ()
    alone: bool = True
    unsure: bool = False
    late: bool = False


@dataclass(frozen=True)
class State:
    """A memory.

    Attributes:
        row: generation of the memory's row, None while there is none; `rows` is how many there were.
        n: number of the last entry.
        said: the messages, each named `"<entry>.<index>"`.
        summary: what stands for what was before them.
        older: the system message that stands before them.
        epoch: rises when all that was said is replaced, or the oldest of it is pruned.
        base: number of the entry that starts the state.
        first: number of the first entry that the state needs besides that one.
        cut: number of the entry before which what was said was pruned.
        noted: later entries that say what the current system message is, by its id.
        title: the metadata's; `revision` is how often they were changed.
        turn: the open turn.
        over: the turns that ended otherwise than by being left, which they were told.
        held: who waits for its end, in order.
        used: the idempotency keys used so far.
        written: the entries since it was last looked at.
    """

    row: int | None = None
    rows: int = 0
    n: int = 0
    said: tuple[Said, ...] = ()
    summary: tuple[Said, ...] = ()
    older: Said | None = None
    epoch: int = 0
    base: int = 0
    first: int = 1
    cut: int = 0
    noted: tuple[tuple[str, int], ...] = ()
    title: str | None = None
    revision: int = 0
    turn: OpenTurn | None = None
    over: frozenset[int] = frozenset()
    held: tuple[int, ...] = ()
    used: tuple[tuple[str, Used], ...] = ()
    written: Entries = field(default=(), repr=False)

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
        return len(self.everything)

    @property
    def system(self) -> Said | None:
        """The current system message."""
        at = current_system(self.log)
        return None if at is None else self.log[at]

    def note(self, system: Said | None) -> State:
        """Note that the last entry says what a system message is."""
        return self if system is None else replace(self, noted=(*self.noted, (system.id, self.n)))

    @property
    def everything(self) -> list[Said]:
        """All messages: the system message that stands before them, the summary, the rest."""
        older = [] if self.older is None else [self.older]
        return [*older, *self.summary, *self.said]

    def find(self, key: str | None) -> Used | None:
        return dict(self.used).get(key) if key is not None else None

    def next(self, op: str, batch: Batch = (), **changes: Any) -> State:
        """Take the next entry; the first one makes the row."""
        row, rows = (self.rows, self.rows + 1) if self.row is None else (self.row, self.rows)
        return replace(self, row=row, rows=rows, n=self.n + 1, written=(*self.written, (op, batch)), **changes)

    def use(self, key: str | None, content: tuple[Any, ...], count: int) -> State:
        """Note what a key was used for, at the version that this got."""
        if key is None:
            return self
        return replace(self, used=(*self.used, (key, Used(content, self.stamp, count))))


@dataclass(frozen=True)
class Answer:
    """What a caller gets: a receipt, what was removed (with its ids), any other value, or an error of a type."""

    stamp: Stamp | None = None
    count: int = 0
    value: Any = None
    error: type[Exception] | None = None


@dataclass(frozen=True)
class Path:
    """The states that a request goes through, the present one first, and what its caller gets at the end.

    Attributes:
        unknown: where it may have stopped when the store did not say what it did; None: at any of the states.
    """

    states: tuple[State, ...]
    answer: Answer
    unknown: tuple[State, ...] | None = None


Applied: TypeAlias = Callable[[State], list[Path]]
"""What a request leads to."""


def refused(state: State, error: type[Exception]) -> list[Path]:
    return [Path((state,), Answer(error=error))]


def unchanged(state: State) -> list[Path]:
    return [Path((state,), Answer())]


def entry_of(said: Said) -> int:
    return int(said.id.split(".")[0])


def place(batch: Iterable[Fields], n: int) -> tuple[Said, ...]:
    return tuple(Said(f"{n}.{index}", fields) for index, fields in enumerate(batch))

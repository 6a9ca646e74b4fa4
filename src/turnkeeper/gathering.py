"""What many actors ask of the store travels together, without a delay: one group is in the store, the next gathers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import anyio

from turnkeeper.errors import StoreError, fresh
from turnkeeper.stores import Store

__all__ = ["Gatherer", "GroupStatistics", "check_count", "wrapped"]

Item = TypeVar("Item")

Answer = TypeVar("Answer")


class GroupStatistics:
    """Counters of one gatherer: groups sent, items in them, and the largest group."""

    __slots__ = ("groups", "items", "peak")

    def __init__(self) -> None:
        self.groups: int = 0
        self.items: int = 0
        self.peak: int = 0

    def count(self, items: int) -> None:
        """Count one group."""
        self.groups += 1
        self.items += items
        self.peak = max(self.peak, items)


class _Waiting(Generic[Item, Answer]):
    """One item in line, and where its answer goes."""

    __slots__ = ("answer", "done", "item")

    def __init__(self, item: Item, done: anyio.Event) -> None:
        self.item = item
        self.done = done
        self.answer: Answer | None = None


class Gatherer(ABC, Generic[Item, Answer]):
    """Collects items while a group is under way, then sends them on together. A task of the runtime runs `flush`.

    Every item is answered: by the store, or as lost when `flush` is cancelled or the gatherer closed.
    """

    def __init__(self, max_weight: int, max_bytes: int) -> None:
        self.statistics: GroupStatistics = GroupStatistics()
        self._max_weight = max_weight
        self._max_bytes = max_bytes
        self.told: Callable[[Sequence[Item], Sequence[Answer]], None] | None = None  # of each group's answers
        self.announce: Callable[[Sequence[Item], Sequence[Answer]], None] | None = None  # the same, for other processes
        self._line: deque[_Waiting[Item, Answer]] = deque()
        self._wake = anyio.Event()
        self._make_event = type(self._wake)  # the running loop's own: asking which one that is takes a microsecond
        self._closed = False

    async def _ask(self, item: Item) -> Answer:
        """Get in line and return the answer. A cancelled caller leaves its item behind, which is answered unheard."""
        if self._closed:
            return self._lost(item, sent=False)
        waiting: _Waiting[Item, Answer] = _Waiting(item, self._make_event())
        self._line.append(waiting)
        self._wake.set()
        await waiting.done.wait()
        return cast(Answer, waiting.answer)

    async def flush(self) -> None:
        """Send group after group, for ever. Cancelled (also natively), it answers the group in flight as lost."""
        while True:
            if not self._line:
                self._wake = anyio.Event()
                await self._wake.wait()
            group = self._take()
            if not group:
                continue
            self.statistics.count(len(group))
            answers: list[Answer] | None = None
            try:
                answers = await self._send([waiting.item for waiting in group])
            finally:
                if answers is None:
                    answers = [self._lost(waiting.item, sent=True) for waiting in group]
                for waiting, answer in zip(group, answers, strict=True):
                    waiting.answer = answer
                    waiting.done.set()
                if self.told is not None:
                    self.told([waiting.item for waiting in group], answers)
                if self.announce is not None:
                    self.announce([waiting.item for waiting in group], answers)

    def close(self) -> None:
        """Answer all that wait as lost; nothing is accepted any more."""
        self._closed = True
        while self._line:
            waiting = self._line.popleft()
            waiting.answer = self._lost(waiting.item, sent=False)
            waiting.done.set()

    def _take(self) -> list[_Waiting[Item, Answer]]:
        group: list[_Waiting[Item, Answer]] = []
        weight = size = 0
        while self._line:
            its_weight, its_size = self._measure(self._line[0].item)
            weight += its_weight
            size += its_size
            if group and (weight > self._max_weight or size > self._max_bytes):
                break
            group.append(self._line.popleft())
        return group

    @abstractmethod
    def _measure(self, item: Item) -> tuple[int, int]:
        """Return an item's share of a group's two bounds."""

    @abstractmethod
    async def _send(self, items: list[Item]) -> list[Answer]:
        """Ask the store for all at once."""

    @abstractmethod
    def _lost(self, item: Item, *, sent: bool) -> Answer:
        """Answer for an item that was dropped on its way (`sent`: perhaps behind the store's door)."""


def check_count(answers: Sequence[object], questions: Sequence[object]) -> None:
    """Refuse a store's answers when they are more or fewer than what it was asked.

    Raises:
        StoreError: they are.
    """
    if len(answers) != len(questions):
        raise StoreError(f"the store gave {len(answers)} answers to {len(questions)} questions")


def wrapped(error: BaseException, store: Store, action: str) -> StoreError:
    """Make a store's error ours; a foreign one leaves only its type behind, since its text may hold content."""
    if isinstance(error, StoreError):
        return fresh(error)
    return StoreError(f"{store.describe()}: {action} failed with {type(error).__name__}")

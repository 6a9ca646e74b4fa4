"""Values that an in-memory memory keeps as the caller's own objects, beside what their messages say."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

from turnkeeper.compat.default_runtime import CompatRuntime
from turnkeeper.errors import OutcomeUnknownError
from turnkeeper.names import MemoryName

__all__ = ["Hold", "References", "drop_references_with", "holding", "references_for"]

Hold = Callable[[Mapping[Any, Any]], int]
"""Keeps values by reference, and returns the number to find them by."""

_SLACK: Final = 64
"""What is no longer needed may be as much as what is, and this much more, before somebody looks."""

_numbers: Final = count(1)


class References:
    """The objects of one memory, each under a number that rides in the message of its exchange.

    The memory's content decides what stays: its writers drop what they evict or clear, and `prune` finds what went
    some other way. No lock: each step is one operation of a dict or a set, and a forked child finds them whole.
    """

    __slots__ = ("_held", "_pending", "_prune_at")

    def __init__(self) -> None:
        """Start empty."""
        self._held: dict[int, Mapping[Any, Any]] = {}
        self._pending: set[int] = set()
        self._prune_at: int = _SLACK

    def hold(self, values: Mapping[Any, Any]) -> int:
        """Keep values for an exchange that is on its way into the log, and return their number."""
        number = next(_numbers)
        self._pending.add(number)
        self._held[number] = values
        return number

    def settle(self, numbers: Iterable[int], *, stored: bool) -> None:
        """Note that exchanges are in the log, or never will be."""
        for number in numbers:
            if not stored:
                self._held.pop(number, None)
            self._pending.discard(number)

    def get(self, number: int) -> Mapping[Any, Any]:
        """Return values; empty when they are not here, as in an export of the memory to another process."""
        return self._held.get(number, {})

    def drop(self, numbers: Iterable[int]) -> None:
        """Let go what left the log."""
        for number in numbers:
            self._held.pop(number, None)

    @property
    def wants_pruning(self) -> bool:
        """Whether so much came that it pays to look what is still needed."""
        return len(self._held) > self._prune_at

    def candidates(self) -> set[int]:
        """Return what may be let go unless the log, as it is read from now on, still has it."""
        return set(self._held) - self._pending

    def prune(self, candidates: set[int], used: set[int]) -> None:
        """Let go the candidates that are not used."""
        self.drop(candidates - used)
        self._prune_at = 2 * len(self._held) + _SLACK


@contextmanager
def holding(references: References | None) -> Iterator[Hold | None]:
    """Yield what holds values while they are written in the block; None where there is nothing to hold them."""
    if references is None:
        yield None
        return
    numbers: list[int] = []

    def hold(values: Mapping[Any, Any]) -> int:
        numbers.append(references.hold(values))
        return numbers[-1]

    stored = True
    try:
        yield hold
    except Exception as error:
        # Where the outcome is not known they stay, until somebody looks what the log has.
        stored = isinstance(error, OutcomeUnknownError)
        raise
    finally:
        references.settle(numbers, stored=stored)


_shelves: Final[WeakKeyDictionary[object, dict[MemoryName, References]]] = WeakKeyDictionary()


def references_for(runtime: CompatRuntime, name: MemoryName) -> References | None:
    """Return what all objects on this memory share; None where memories outlive the process."""
    return _shelf(runtime).setdefault(name, References()) if runtime.forgets else None


def drop_references_with(owner: object, runtime: CompatRuntime, name: MemoryName) -> None:
    """Let the references of a memory go once `owner` is collected."""
    weakref.finalize(owner, _shelf(runtime).pop, name, None).atexit = False


def _shelf(runtime: CompatRuntime) -> dict[MemoryName, References]:
    return _shelves.setdefault(runtime.identity, {})

"""`chat_memory`: a list, and for the window a list that can do what a deque can, of what the memory holds now."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

from turnkeeper.compat.zerda.editing import EditableMirror

__all__ = ["LiveList", "LiveWindow"]


class LiveList(EditableMirror):
    """The exchanges of a memory, as a list that is always up to date.

    Each read asks the memory's actor first, each change goes through it, whole or not at all. Iterating, copying and
    slicing work on the exchanges of one instant. Its elements are dicts, whose changes go through the actor as well; a
    dict that is put in is copied. Printing, comparing, pickling and `json.dumps` do what they do for a list.
    """

    __slots__ = ()

    # Reads

    def __len__(self) -> int:
        return self.look(lambda: list.__len__(self))

    def __getitem__(self, index: Any) -> Any:
        return self.look(lambda: list.__getitem__(self, index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.snapshot())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.snapshot()[::-1])

    def __contains__(self, value: object) -> bool:
        return value in self.snapshot()

    def __repr__(self) -> str:
        return repr(self.snapshot())

    def __eq__(self, other: object) -> bool:
        return bool(self.snapshot() == _plain(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.snapshot() != _plain(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.snapshot() < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.snapshot() <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.snapshot() > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.snapshot() >= _plain(other))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Any) -> Any:
        return self.snapshot() + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return _plain(other) + self.snapshot()

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return self.snapshot() * times

    def __rmul__(self, times: SupportsIndex) -> list[Any]:
        return self.snapshot() * times

    def copy(self) -> list[Any]:
        """Return a plain list of the exchanges as they are now."""
        return self.snapshot()

    def count(self, value: Any) -> int:
        """Count what equals `value`."""
        return self.snapshot().count(value)

    def index(self, value: Any, *bounds: SupportsIndex) -> int:
        """Return where `value` is; ValueError if it is not there."""
        return self.snapshot().index(value, *bounds)

    def __copy__(self) -> list[Any]:
        return self.snapshot()

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(self.snapshot(), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as a plain list."""
        return list, (self.snapshot(),)

    # Changes

    def append(self, entry: Mapping[Any, Any]) -> None:
        """Append an exchange."""
        self.extend((entry,))

    def extend(self, entries: Iterable[Mapping[Any, Any]]) -> None:
        """Append exchanges, all of them or none."""
        many = list(entries)
        for entry in many:
            if not isinstance(entry, Mapping):
                raise TypeError(f"an exchange is a dict, not a {type(entry).__name__}")
        if many:
            self.save(many)

    def __iadd__(self, entries: Iterable[Mapping[Any, Any]]) -> LiveList:  # type: ignore[override,misc]
        self.extend(entries)
        return self

    def __imul__(self, times: SupportsIndex) -> LiveList:
        self.edit(lambda after: _assign(after, after * times))
        return self

    def insert(self, index: SupportsIndex, entry: Mapping[Any, Any]) -> None:
        """Insert an exchange before `index`."""
        self.edit(lambda after: after.insert(index, entry))

    def remove(self, value: Any) -> None:
        """Remove the first exchange that equals `value`; ValueError if there is none."""
        self.edit(lambda after: after.remove(value))

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Remove an exchange and return it."""
        return self.edit(lambda after: after.pop(index))

    def clear(self) -> None:
        """Remove all exchanges; a summary stays."""
        self.edit(lambda after: after.clear())

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sort the exchanges."""
        self.edit(lambda after: after.sort(key=key, reverse=reverse))

    def reverse(self) -> None:
        """Turn the order round."""
        self.edit(lambda after: after.reverse())

    def __setitem__(self, index: Any, value: Any) -> None:
        self.edit(lambda after: after.__setitem__(index, value))

    def __delitem__(self, index: Any) -> None:
        self.edit(lambda after: after.__delitem__(index))


class LiveWindow(LiveList):
    """The exchanges in a window: a `LiveList` of at most `maxlen`, which does what a deque does as well."""

    __slots__ = ()

    @property
    def maxlen(self) -> int:
        """The most exchanges that the window shows."""
        assert self.kind.most is not None
        return self.kind.most

    def insert(self, index: SupportsIndex, entry: Mapping[Any, Any]) -> None:
        """Insert an exchange before `index`; IndexError if the window is full."""

        def change(after: list[Any]) -> None:
            if len(after) >= self.maxlen:
                raise IndexError("the window is full")
            after.insert(index, entry)

        self.edit(change)

    def appendleft(self, entry: Mapping[Any, Any]) -> None:
        """Put an exchange first; when the window is full, the last one leaves."""
        self.extendleft((entry,))

    def extendleft(self, entries: Iterable[Mapping[Any, Any]]) -> None:
        """Put exchanges first, one after the other, so that the last of them is the first."""
        many = list(entries)
        self.edit(lambda after: _assign(after, [*reversed(many), *after][: self.maxlen]))

    def popleft(self) -> Any:
        """Remove the first exchange and return it."""
        return self.pop(0)

    def rotate(self, steps: int = 1) -> None:
        """Take the last exchange to the front, `steps` times."""

        def change(after: list[Any]) -> None:
            if after:
                cut = -steps % len(after)
                after[:] = after[cut:] + after[:cut]

        self.edit(change)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.edit(lambda after: _assign(after, _changed(after, index, value)[-self.maxlen :]))

    def __imul__(self, times: SupportsIndex) -> LiveWindow:
        self.edit(lambda after: _assign(after, (after * times)[-self.maxlen :]))
        return self


def _plain(other: Any) -> Any:
    """Return what a list can be compared with and added to; deques are what Zerda's windows are."""
    if isinstance(other, LiveList):
        return other.snapshot()
    return list(other) if isinstance(other, deque) else other


def _assign(after: list[Any], entries: list[Any]) -> None:
    after[:] = entries


def _changed(after: list[Any], index: Any, value: Any) -> list[Any]:
    changed = list(after)
    changed[index] = value
    return changed

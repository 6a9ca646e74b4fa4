"""Whose row is it? Entries are read by the number of their row, and open for the name of their memory alone."""

from __future__ import annotations

from typing import Final

from turnkeeper.names import MemoryName
from turnkeeper.stores.base import Store

__all__ = ["NamesOfRows"]

_REMEMBERED: Final = 10_000
_PAGE: Final = 1_000


class NamesOfRows:
    """Names that were seen with their rows; a row's name never changes, so none of them is ever wrong.

    Threads may use it at once: all it does is to read and to replace entries of dictionaries.
    """

    __slots__ = ("_newer", "_older", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newer: dict[int, MemoryName] = {}
        self._older: dict[int, MemoryName] = {}

    def note(self, mid: int, name: MemoryName) -> None:
        """Remember a row's name, and forget those that nobody asked for in a long time."""
        if len(self._newer) >= _REMEMBERED:
            self._older, self._newer = self._newer, {}
        self._newer[mid] = name

    def name_of(self, mid: int) -> MemoryName | None:
        """Return a row's name; None: there is no such row any more.

        Who reads entries has just read the row, as a rule. Otherwise all rows are gone through, page by page.
        """
        name = self._newer.get(mid) or self._older.get(mid)
        if name is None:
            name = self._look_for(mid)
        if name is not None:
            self.note(mid, name)
        return name

    def _look_for(self, mid: int) -> MemoryName | None:
        after: MemoryName | None = None
        while page := self._store.names(namespace=None, after=after, limit=_PAGE):
            for each in page:
                if each.head.mid == mid:
                    return each.name
            after = page[-1].name
        return None

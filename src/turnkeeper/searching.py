"""Search: which memories said something, and where."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.history import HistoryEntry, history_entry
from turnkeeper.registry import check_scope
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import Found, SearchQuery, Store

__all__ = ["SearchHit", "SearchPage", "search", "search_query"]

_LONGEST_PAGE: Final = 1_000


class SearchHit(msgspec.Struct, frozen=True, gc=False):
    """An entry that has all the words.

    Attributes:
        id: the memory's id.
        namespace: its namespace.
        entry: the entry, with all its messages.
        current: whether the memory's state still shows one of them: not what was undone, replaced, or summed up.
    """

    id: str
    namespace: str
    entry: HistoryEntry
    current: bool

    def __repr__(self) -> str:
        """Name the place, never what was said."""
        return f"<SearchHit id={self.id!r} namespace={self.namespace!r} version={self.entry.version}>"


class SearchPage(msgspec.Struct, frozen=True, gc=False):
    """Some of what was found.

    Attributes:
        hits: the newest first.
        cursor: where the next page goes on; None: there are no more.
    """

    hits: tuple[SearchHit, ...]
    cursor: str | None


def search_query(text: str, namespace: str | None, prefix: str, limit: int, cursor: str | None) -> SearchQuery:
    """Check the arguments of a search; see `Runtime.search`.

    Raises:
        InvalidArgumentError: one is out of range, or there is no word to search for.
    """
    if not isinstance(text, str) or not text.split():
        raise InvalidArgumentError("search needs at least one word")
    if "\0" in text:
        raise InvalidArgumentError("a text to search for can't hold a NUL")
    check_scope(namespace, prefix)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _LONGEST_PAGE:
        raise InvalidArgumentError(f"limit must be a whole number from 1 to {_LONGEST_PAGE}")
    if cursor is not None and not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()):
        raise InvalidArgumentError("the cursor is none of a page of hits")
    return SearchQuery(text, namespace, prefix, limit, int(cursor or 0))


async def search(core: RuntimeCore, query: SearchQuery) -> SearchPage:
    """Search the store; nothing is loaded."""
    return await core.look_up(partial(_search, query=query))


def _search(store: Store, query: SearchQuery) -> SearchPage:
    found = store.search(query)
    hits = tuple([_hit(each) for each in found])
    return SearchPage(hits, str(found[-1].place) if len(found) == query.limit else None)


def _hit(found: Found) -> SearchHit:
    name = found.name
    return SearchHit(name.id, name.namespace, history_entry(found.entry, found.mid, name), found.current)

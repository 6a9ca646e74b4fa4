"""Going through what a store holds, by reading only: every memory in turn, and one memory's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turnkeeper.cli.terminal import Stop
from turnkeeper.errors import MemoryCorruptError, StoreError, StoreUnavailableError
from turnkeeper.folding import fold
from turnkeeper.log import StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import InMemoryStore, Listed, LoadQuery, Store, store_from_url

__all__ = ["log_entries", "look_at", "memories", "store_to_look_at"]

_PAGE: Final = 500
_ENTRIES: Final = 16
_MOST_ENTRIES: Final = 1000
_PAGE_BYTES: Final = 2**20


def store_to_look_at(url: str) -> Store:
    """Make the store that a URL names, for reading only, not opened yet.

    Raises:
        InvalidStoreURLError: the URL names no store.
        Stop: it names one in memory.
    """
    store = store_from_url(url, read_only=True)
    if isinstance(store, InMemoryStore):
        raise Stop("a store in memory belongs to its process alone: there is nothing to look at from here")
    return store


def memories(
    store: Store, *, namespace: str | None = None, prefix: str = "", after: MemoryName | None = None
) -> Iterator[Listed]:
    """Yield every memory behind `after` whose id begins with `prefix`, in byte order of (namespace, id)."""
    while page := store.names(namespace=namespace, after=after, limit=_PAGE, prefix=prefix):
        yield from page
        after = page[-1].name


def look_at(store: Store, name: MemoryName) -> Log | MemoryCorruptError:
    """Load one memory and fold it; return what is wrong with it when that can't be done.

    Raises:
        StoreError: the store as a whole can't be read.
    """
    try:
        return fold(store.load([LoadQuery(name)])[0], name)
    except MemoryCorruptError as error:
        return error
    except StoreUnavailableError:
        raise
    except StoreError:
        # The store is there, but not these rows: a damaged page, or a text column that is no UTF-8.
        return MemoryCorruptError(name.id, name.namespace, 0, "its rows can't be read")


def log_entries(store: Store, mid: int, *, after: int = 0, before: int = 0) -> Iterator[StoredEntry]:
    """Yield the entries of a memory's whole log, also those that its state no longer shows.

    Args:
        store: an open one.
        mid: the memory's row.
        after: only entries behind this one.
        before: only entries before this one; 0: all.
    """
    limit = _ENTRIES
    while page := store.entries(mid, after=after, before=before, limit=limit):
        yield from page
        after = page[-1].version
        # Large entries are read a few at a time: a page is what is held in RAM.
        limit = max(1, min(_MOST_ENTRIES, _PAGE_BYTES * len(page) // sum([len(entry.payload) for entry in page])))

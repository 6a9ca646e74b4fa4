"""What a copy reads of a memory in the source: its log, in parts of bounded size, whatever is done to it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from turnkeeper.cli.copy_standing import Standing, after
from turnkeeper.cli.renumbering import isolated_before
from turnkeeper.cli.walking import log_entries
from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.log import Head, StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.stores import Loaded, LoadQuery, Store

__all__ = ["PART_BYTES", "PART_ENTRIES", "ChangedError", "Part", "RefusedError", "look", "parts", "row_of"]

PART_ENTRIES: Final = 1000
PART_BYTES: Final = 2**20
"""What is written at once: a memory with more becomes whole in several parts. One entry at least."""


class ChangedError(Exception):
    """The memory is another one than it was when it was looked at: look again."""


class RefusedError(Exception):
    """A memory can't be copied; why. It is told of this one, the others go on."""


class Part(NamedTuple):
    """Entries to be written together.

    Attributes:
        entries: in order.
        standing: where the state stands with them.
    """

    entries: tuple[StoredEntry, ...]
    standing: Standing


def row_of(store: Store, name: MemoryName) -> Head | None:
    """Read a memory's row."""
    return store.load([LoadQuery(name, newest=1)])[0].head


def look(store: Store, names: list[MemoryName]) -> list[Loaded | None]:
    """Look at memories all at once: each one's row and newest entry. None: this one can't be read."""
    queries = [LoadQuery(name, newest=1) for name in names]
    try:
        return list(store.load(queries)) if queries else []
    except StoreUnavailableError:
        raise
    except StoreError:
        if len(names) == 1:
            return [None]
    return [look(store, [name])[0] for name in names]  # one is damaged: find it


def parts(store: Store, name: MemoryName, head: Head, standing: Standing) -> Iterator[Part]:
    """Yield a memory's entries up to `head`, behind those that end at `standing`, in parts.

    Raises:
        ChangedError: it was deleted meanwhile, or pruned beyond `head`.
        RefusedError: an entry is missing.
    """
    batch: list[StoredEntry] = []
    size = 0
    kept: tuple[int, ...] = ()  # what pruning left before `cut`
    cut = 0
    for entry in log_entries(store, head.mid, after=standing.n, before=head.version + 1):
        if batch and not cut and (len(batch) == PART_ENTRIES or size + len(entry.payload) > PART_BYTES):
            yield Part(tuple(batch), standing)
            batch, size = [], 0
        if entry.version != standing.n + 1 and entry.version != cut and entry.version not in kept:
            kept, cut = _kept(store, name, head, standing.n + 1)
        batch.append(entry)
        size += len(entry.payload)
        if entry.version < cut:
            standing = standing._replace(n=entry.version)  # no state ends here any more
            continue
        if cut:
            standing = Standing(entry.version, entry.version, kept[-1] if kept else 0)
            kept, cut = (), 0
        standing = after(standing, entry, head.system)
    if cut:
        raise ChangedError  # all up to `head` is pruned, and more
    if standing.n < head.version:
        _kept(store, name, head, standing.n + 1)
        raise ChangedError
    if batch:
        yield Part(tuple(batch), standing)


def _kept(store: Store, name: MemoryName, head: Head, missing: int) -> tuple[tuple[int, ...], int]:
    """Return what pruning left of the beginning, and the entry from which on all are there."""
    now = row_of(store, name)
    if now is None or now.mid != head.mid:
        raise ChangedError
    isolated, first = isolated_before(store, now)
    if first <= missing:
        raise RefusedError(f"has no entry {missing} in the source, which is damaged there")
    return tuple([entry.version for entry in isolated]), first

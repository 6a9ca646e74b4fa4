"""The log as it was, in pages of entries. Runs in the store's reading thread."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from turnkeeper.errors import AcknowledgedDataLostError, ConflictError, HistoryPrunedError, InvalidArgumentError
from turnkeeper.folding import content_of
from turnkeeper.log import Head, LoadQuery, StoredEntry, Version
from turnkeeper.messages import Message, place_message
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store

__all__ = [
    "HistoryEntry",
    "HistoryPage",
    "PageQuery",
    "check_version",
    "first_kept",
    "head_of",
    "history_entry",
    "never",
    "pruned",
    "read_page",
]

_LEFT_BEHIND: Final = 2
"""Entries before the first one kept that pruning leaves: the system message's, and a summary's."""

_LONGEST_PAGE: Final = 10_000


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a memory's log.

    Attributes:
        version: the memory's version with it.
        time: seconds since the epoch, by the store's clock; never less than that of the entry before.
        op: "add", "set", "clear", "compact", "undo", "pop", "edit", "remove" or "fork".
        messages: what it brought; nothing for a clear, an undo, a pop and a removal. An edited message has its id.
    """

    version: Version
    time: float
    op: str
    messages: tuple[Message, ...]


class HistoryPage(msgspec.Struct, frozen=True, gc=False):
    """A part of a memory's log.

    Attributes:
        entries: in order, or the other way round.
        cursor: where the next page goes on: its `after`, or `before` the other way round; None: there is none now.
    """

    entries: tuple[HistoryEntry, ...]
    cursor: Version | None


class PageQuery(msgspec.Struct, frozen=True, gc=False):
    """Which page of a log; see `LogHandle.history`."""

    after: Version | None
    before: Version | None
    limit: int
    reverse: bool

    def check(self) -> PageQuery:
        """Return this query.

        Raises:
            InvalidArgumentError: a bound is no version, or the limit is out of range.
        """
        check_version(self.after, "after")
        check_version(self.before, "before")
        if not isinstance(self.limit, int) or not 1 <= self.limit <= _LONGEST_PAGE:
            raise InvalidArgumentError(f"limit must be a whole number from 1 to {_LONGEST_PAGE}")
        return self


def check_version(version: Version | None, what: str = "if_version") -> Version | None:
    """Return what is a version or None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    if version is not None and not isinstance(version, Version):
        raise InvalidArgumentError(f"{what} must be a Version or None, not {type(version).__name__}")
    return version


def head_of(store: Store, name: MemoryName, *versions: Version | None) -> Head | None:
    """Return a memory's row.

    Raises:
        ConflictError: one of the versions is not of this memory, or of one that was deleted.
    """
    head = store.load([LoadQuery(name, newest=1)])[0].head
    for version in versions:
        if version is not None and version.n and (head is None or version.mid != head.mid):
            raise ConflictError(
                f"memory {name.id!r} (namespace {name.namespace!r}): version {version} is another memory's, or one's "
                "that was deleted"
            )
    return head


def read_page(store: Store, name: MemoryName, query: PageQuery) -> HistoryPage:
    """Read a page; see `LogHandle.history`."""
    after, before, limit, reverse = query.after, query.before, query.limit, query.reverse
    head = head_of(store, name, after, before)
    if head is None or head.version == 0:
        return HistoryPage((), None)
    first = first_kept(store, head.mid)
    low = first - 1 if after is None else after.n
    high = head.version + 1 if before is None else min(before.n, head.version + 1)
    if low + 1 < first or (before is not None and before.n <= first > 1):
        raise pruned(name, first)
    if high <= low + 1:
        return HistoryPage((), None)
    found = store.entries(head.mid, after=low, before=high, limit=limit, newest=reverse)
    if found and not reverse and found[0].version != low + 1:
        raise pruned(name, found[0].version)  # just now
    entries = tuple([history_entry(entry, head.mid, name) for entry in (reversed(found) if reverse else found)])
    more = bool(found) and (found[0].version > low + 1 if reverse else found[-1].version < high - 1)
    return HistoryPage(entries, entries[-1].version if more else None)


def history_entry(entry: StoredEntry, mid: int, name: MemoryName) -> HistoryEntry:
    """Decode an entry.

    Raises:
        MemoryCorruptError: it can't be.
    """
    details, messages = content_of(entry, name)
    for index, message in enumerate(messages):
        place_message(message, *(details.places[0] if details.places else (entry.version, index)))
    return HistoryEntry(Version(mid, entry.version), entry.at / 1e6, entry.op, messages)


def first_kept(store: Store, mid: int) -> int:
    """Return the number of the first entry behind which none was pruned."""
    oldest = [entry.version for entry in store.entries(mid, after=0, limit=_LEFT_BEHIND + 1)]
    for version, following in reversed(list(pairwise(oldest))):
        if following != version + 1:
            return following
    return oldest[0] if oldest else 1


def never(name: MemoryName, head: Head, n: int) -> AcknowledgedDataLostError:
    """Make the error of a version beyond the head: there are none but those that were acknowledged."""
    return AcknowledgedDataLostError(
        name.id, name.namespace, Version(head.mid, n), Version(head.mid if head.version else 0, head.version)
    )


def pruned(name: MemoryName, first: int) -> HistoryPrunedError:
    """Make the error of what is gone; `first`: number of the entry from which on the log is whole."""
    return HistoryPrunedError(
        f"memory {name.id!r} (namespace {name.namespace!r}): what was asked for is pruned: the log goes back to "
        f"entry {first} now; begin with after=None"
    )

"""The log as it was: pages of entries, and the state at an earlier version. Runs in the store's reading thread."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Final

import msgspec

from turnkeeper.errors import ConflictError, HistoryPrunedError, InvalidArgumentError
from turnkeeper.folding import content_of, fold
from turnkeeper.log import COMPACT, STARTING, Details, Entry, Head, Loaded, LoadQuery, StoredEntry, Version, details_of
from turnkeeper.messages import Message, place_message
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import Store

__all__ = [
    "HistoryEntry",
    "HistoryPage",
    "PageQuery",
    "check_version",
    "copied_entries",
    "first_kept",
    "head_of",
    "history_entry",
    "log_at",
    "read_page",
]

_LEFT_BEHIND: Final = 2
"""Entries before the first one kept that pruning leaves: the system message's, and a summary's."""

_LONGEST_PAGE: Final = 10_000

_CHUNK: Final = 256
"""Entries read at once on the way back to where a state starts."""


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
        raise _pruned(name, first)
    if high <= low + 1:
        return HistoryPage((), None)
    found = store.entries(head.mid, after=low, before=high, limit=limit, newest=reverse)
    if found and not reverse and found[0].version != low + 1:
        raise _pruned(name, found[0].version)  # just now
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


def copied_entries(store: Store, name: MemoryName, at: Version | None) -> tuple[Entry, ...]:
    """Return a log's entries up to a version, to be the first ones of another memory; raises as `log_at` does."""
    head = head_of(store, name, at)
    last = 0 if head is None else head.version if at is None else at.n
    if head is None or last == 0:
        return ()
    if last > head.version:
        raise _never(name, head, last)
    if (kept := first_kept(store, head.mid)) > 1:
        raise _pruned(name, kept)
    if last >= head.base > 1 and (start := _entry(store, head.mid, head.base)) and start.op not in STARTING:
        raise _pruned(name, head.base)  # though it is there: the one entry before has the system message
    entries: list[Entry] = []
    while len(entries) < last:
        found = store.entries(head.mid, after=len(entries), before=last + 1, limit=_CHUNK)
        if not found or found[0].version != len(entries) + 1:
            raise _pruned(name, found[0].version if found else last)
        for entry in found:
            details, messages = content_of(entry, name)
            entries.append(Entry(entry.op, os.urandom(16), messages, None, None if details == Details() else details))
    return tuple(entries)


def log_at(store: Store, name: MemoryName, version: Version) -> Log:
    """Build the log as it stood at a version.

    Raises:
        ConflictError: the memory was never at this version.
        HistoryPrunedError: what it takes was pruned.
        MemoryCorruptError: an entry can't be decoded.
    """
    head = head_of(store, name, version)
    if head is None or version.n == 0:
        return Log()
    if version.n > head.version:
        raise _never(name, head, version.n)
    entries = _back_to_start(store, head, version, name)
    start = next((entry for entry in reversed(entries) if entry.op in STARTING), None)
    base = start.version if start is not None else head.base if entries[0].version > 1 else 0
    # What starts a state says what was before; otherwise the rest was pruned.
    system = _system_before(store, head, entries[0].version, version.n, name) if start is None else None
    then = Head(head.mid, version.n, base, system.version if system else 0, head.created_at, entries[-1].at)
    loaded = Loaded(then, 0, tuple(entries), system)
    log = fold(loaded, name)
    if log.missing_system and (before := _entry(store, head.mid, log.missing_system)) is not None:
        log = fold(loaded, name, before)
    return log


def _back_to_start(store: Store, head: Head, version: Version, name: MemoryName) -> list[StoredEntry]:
    """Return the entries up to a version that its state needs."""
    kept = first_kept(store, head.mid)
    entries: list[StoredEntry] = []
    first = None
    while not entries or first is None or entries[0].version > first:
        before = entries[0].version if entries else version.n + 1
        if entries and first is None and before in (1, head.base):
            return entries  # nothing ever was before it, or all that was is pruned
        if before <= kept:
            raise _pruned(name, kept)
        after = max(kept - 1, before - 1 - _CHUNK, head.base - 1 if before > head.base else 0)
        found = store.entries(head.mid, after=after, before=before, limit=_CHUNK)
        if not found:
            raise _pruned(name, before)
        entries[:0] = found
        if first is None:
            start = next((entry for entry in reversed(found) if entry.op in STARTING), None)
            if start is not None:
                first = details_of(start).to + 1 if start.op == COMPACT else start.version
    return [entry for entry in entries if entry.version >= first]


def _system_before(store: Store, head: Head, first: int, last: int, name: MemoryName) -> StoredEntry | None:
    """Return the entry with the system message that was current after entry `last`, if it is before entry `first`."""
    if first == 1:
        return None
    number = _system_after(store, head, last)
    if not 0 < number < first:
        return None
    if (entry := _entry(store, head.mid, number)) is None:
        raise _pruned(name, first)
    return entry


def _system_after(store: Store, head: Head, last: int) -> int:
    """Return the number of the entry with the system message that was current after entry `last`; 0: there was none."""
    while found := store.entries(head.mid, after=last, before=head.version + 1, limit=_CHUNK):
        for entry in found:
            if number := details_of(entry).system:  # the next one that put another in its place
                return number
        last = found[-1].version
    return head.system


def _entry(store: Store, mid: int, version: int) -> StoredEntry | None:
    found = store.entries(mid, after=version - 1, before=version + 1, limit=1) if version else []
    return found[0] if found else None


def first_kept(store: Store, mid: int) -> int:
    """Return the number of the first entry behind which none was pruned."""
    oldest = [entry.version for entry in store.entries(mid, after=0, limit=_LEFT_BEHIND + 1)]
    for version, following in reversed(list(pairwise(oldest))):
        if following != version + 1:
            return following
    return oldest[0] if oldest else 1


def _never(name: MemoryName, head: Head, n: int) -> ConflictError:
    return ConflictError(
        f"memory {name.id!r} (namespace {name.namespace!r}) is at entry {head.version}, and never had {n}"
    )


def _pruned(name: MemoryName, first: int) -> HistoryPrunedError:
    return HistoryPrunedError(
        f"memory {name.id!r} (namespace {name.namespace!r}): what was asked for is pruned: the log goes back to "
        f"entry {first} now; begin with after=None"
    )

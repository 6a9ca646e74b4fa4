"""A memory at an earlier version: its state, or its whole log up to there. Runs in the store's reading thread.

A state at a version is what was shown there last: by then pruning may have let it begin in the middle of the log. The
head says so of the present one; of one that came before, the first entry that followed does (`Details.begins`).
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from turnkeeper.errors import HistoryPrunedError
from turnkeeper.folding import content_of, fold
from turnkeeper.history import first_kept, head_of, never, pruned
from turnkeeper.log import STARTING, Details, Entry, Head, Loaded, StoredEntry, Version, details_of, first_entry
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import Store

__all__ = ["copied_entries", "log_at"]

_CHUNK: Final = 256
"""Entries read at once on the way back to where a state starts."""


class _Start(msgspec.Struct, frozen=True, gc=False):
    """Where a state starts.

    Attributes:
        base: number of the entry that starts it; 0: the first.
        system: number of the entry with the system message that was current at `since`; -1: not known.
        since: a version that this is known of.
        told: an entry says so, of a state that pruning let begin there: it has no summary.
    """

    base: int
    system: int
    since: int
    told: bool


def log_at(store: Store, name: MemoryName, version: Version) -> Log:
    """Build the log as it stood at a version; it lacks older messages where they were pruned since.

    Raises:
        AcknowledgedDataLostError: the store has lost this version.
        ConflictError: the version is another memory's.
        HistoryPrunedError: what was pruned since may have shown in any window.
        MemoryCorruptError: an entry can't be decoded.
    """
    while True:
        head = head_of(store, name, version)
        if head is None or version.n == 0:
            return Log()
        try:
            return _log_at(store, head, version, name)
        except HistoryPrunedError:
            if version.n < head.version or head == head_of(store, name, version):
                raise  # otherwise it was the present one, and is pruned right now


def _log_at(store: Store, head: Head, version: Version, name: MemoryName) -> Log:
    n, kept = version.n, _kept(store, head, version, name)
    start, found = _read_back(store, head, n, kept, name)
    start = start or _Start(0, 0, 0, told=False)
    needed = _first_of(start, found)
    entries = tuple([entry for entry in found if needed <= entry.version <= n])
    whole = entries[0].version == needed
    if not whole and not start.told:
        raise pruned(name, kept)  # a summary may be gone, which every window shows
    system = _system_at(store, head, start, entries, name)
    then = Head(head.mid, n, start.base, system.version if system else 0, head.created_at, entries[-1].at)
    loaded = Loaded(then, 0 if whole else entries[0].version - 1, entries, system)
    log = fold(loaded, name)
    if log.missing_system and (before := _entry(store, head.mid, log.missing_system)) is not None:
        log = fold(loaded, name, before)
    return log


def copied_entries(store: Store, name: MemoryName, at: Version | None) -> tuple[Entry, ...]:
    """Return a log's entries up to a version, to be the first ones of another memory.

    Raises:
        AcknowledgedDataLostError: the store has lost this version.
        ConflictError: the version is another memory's.
        HistoryPrunedError: something of the log was pruned, or the state began in the middle of it then.
        MemoryCorruptError: an entry can't be decoded.
    """
    head = head_of(store, name, at)
    if head is None or head.version == 0 or (at is not None and at.n == 0):
        return ()
    version = Version(head.mid, head.version) if at is None else at
    if (kept := _kept(store, head, version, name)) > 1:
        raise pruned(name, kept)
    start, found = _read_back(store, head, version.n, kept, name)
    if start is not None and start.base > 1 and found[start.base - found[0].version].op not in STARTING:
        raise pruned(name, start.base)  # though it is there: the one entry before has the system message
    entries: list[Entry] = []
    while len(entries) < version.n:
        page = store.entries(head.mid, after=len(entries), before=version.n + 1, limit=_CHUNK)
        if not page or page[0].version != len(entries) + 1:
            raise pruned(name, page[0].version if page else version.n)
        for entry in page:
            details, messages = content_of(entry, name)
            entries.append(Entry(entry.op, os.urandom(16), messages, None, None if details == Details() else details))
    return tuple(entries)


def _kept(store: Store, head: Head, version: Version, name: MemoryName) -> int:
    """Return the number of the first entry behind which none was pruned, if that is not behind the version."""
    if version.n > head.version:
        raise never(name, head, version.n)
    if (kept := first_kept(store, head.mid)) > version.n:
        raise pruned(name, kept)
    return kept


def _read_back(
    store: Store, head: Head, n: int, kept: int, name: MemoryName
) -> tuple[_Start | None, list[StoredEntry]]:
    """Return where the state at version `n` starts, if something says so, and the entries from there on, or `kept`."""
    start = _Start(head.base, head.system, n, told=False) if n == head.version else None
    entries: list[StoredEntry] = []
    low, before = kept, n + 2 if start is None else n + 1  # the next entry may tell
    while before > low:
        found = store.entries(head.mid, after=max(low, before - _CHUNK) - 1, before=before, limit=_CHUNK)
        if not found or found[-1].version != before - 1 or found[0].version != before - len(found):
            raise pruned(name, before)  # just now
        before = found[0].version
        entries[:0] = found
        for entry in reversed(found):
            start = start or _told_by(entry, n)
        if start is not None:
            low = max(kept, _first_of(start, entries))
    return start, entries


def _told_by(entry: StoredEntry, n: int) -> _Start | None:
    """Return what an entry says of where the state at version `n` starts."""
    if entry.version <= n and entry.op in STARTING:
        return _Start(entry.version, 0, entry.version, told=False)
    begins = details_of(entry).begins
    if begins is None or not 0 < begins[0] < entry.version:
        return None
    return _Start(*begins, entry.version - 1, told=True)


def _first_of(start: _Start, entries: list[StoredEntry]) -> int:
    """Return the number of the first entry that a state needs, as far as it can be told from some of the last ones."""
    place = start.base - entries[0].version
    return first_entry(entries[place] if place >= 0 else None, start.base)


def _system_at(
    store: Store, head: Head, start: _Start, entries: tuple[StoredEntry, ...], name: MemoryName
) -> StoredEntry | None:
    """Return the entry with the system message from before these, where it is there and any.

    Raises:
        HistoryPrunedError: it is gone, and was current.
    """
    first = entries[0].version
    if start.system == 0 or start.system >= first:
        return None
    entry = _entry(store, head.mid, start.system)
    # Who put another in its place said so.
    if entry is None and not any(details_of(each).system for each in entries if each.version > start.since):
        raise pruned(name, first)
    return entry


def _entry(store: Store, mid: int, version: int) -> StoredEntry | None:
    found = store.entries(mid, after=version - 1, before=version + 1, limit=1) if version > 0 else []
    return found[0] if found else None

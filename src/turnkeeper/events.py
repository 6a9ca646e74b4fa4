"""What watchers are told, and how the log is read for them. The reading runs in the store's reading thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from turnkeeper.errors import MemoryCorruptError
from turnkeeper.history import HistoryEntry, first_kept, history_entry
from turnkeeper.log import Head, LoadQuery, StoredEntry, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store

__all__ = ["NOTHING", "PAGE", "Event", "Notice", "Read", "Reset", "read_events", "read_heads", "version_now"]

NOTHING: Final = Version(0, 0)
"""The version of a memory that is not there."""

PAGE: Final = 100
"""Entries that one read of the store brings a watcher."""

_ANY: Final = 2**62
"""More entries than a log ever has: behind them nothing is to be read."""


class Reset(msgspec.Struct, frozen=True, gc=False):
    """A gap in what a watcher sees: entries were pruned before it read them, or the memory was deleted.

    Whoever builds a state from the events drops it and reads `memory.messages()` again. Events follow from `version`
    on, the oldest that is kept; those up to the version of the messages just read are in them already.

    Attributes:
        version: the one that the next event follows. `Version(0, 0)`: the next event is the first entry of a memory of
            this name, which may not have been made yet.
    """

    version: Version


Event: TypeAlias = HistoryEntry | Reset
"""What a watcher of one memory is given."""


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A memory has changed.

    Attributes:
        id: its id.
        namespace: its namespace.
        version: a version that it has reached, the newest known; `Version(0, 0)`: it was deleted.
    """

    id: str
    namespace: str
    version: Version


class Read(NamedTuple):
    """A part of a memory's log, as a watcher goes on with it.

    Attributes:
        events: in order.
        at: the version behind them.
        more: there may be more already.
    """

    events: tuple[Event, ...]
    at: Version
    more: bool


def version_now(store: Store, name: MemoryName) -> Version:
    """Return the version that a memory is at; `NOTHING` when there is none."""
    return _version(_heads(store, [(name, NOTHING)])[0])


def read_heads(store: Store, known: Mapping[MemoryName, Version]) -> dict[MemoryName, Version]:
    """Return the versions that memories are at; cheapest for those that are still the ones that are known."""
    heads = _heads(store, list(known.items()))
    return {name: _version(head) for name, head in zip(known, heads, strict=True)}


def read_events(store: Store, name: MemoryName, at: Version) -> Read:
    """Read what follows a version, at most `PAGE` entries; a gap is told by one `Reset`.

    Raises:
        MemoryCorruptError: the very next entry can't be decoded.
    """
    head = _heads(store, [(name, at)])[0]
    if head is None or head.version == 0:
        return Read((Reset(NOTHING),) if at.n else (), NOTHING, False)
    lost = at.n > 0 and (at.mid != head.mid or at.n > head.version)
    if lost or at.mid != head.mid:
        at = Version(head.mid, 0)
    found = store.entries(head.mid, after=at.n, limit=PAGE)
    if not found and head.version > at.n:
        return _behind_the_gap(store, name, head, at, lost)
    first = at.n + 1
    if lost or any(entry.version != n for n, entry in enumerate(found, start=first)):
        first = max(first, first_kept(store, head.mid))
    events: list[Event] = []
    if lost or first > at.n + 1:
        at = Version(head.mid, first - 1)
        events.append(Reset(at if first > 1 else NOTHING))
    kept = [entry for entry in found if entry.version >= first]
    _decode(kept, name, head.mid, events)
    if isinstance(last := events[-1] if events else None, HistoryEntry):
        at = last.version
    return Read(tuple(events), at, len(found) == PAGE or (bool(kept) and at.n < kept[-1].version))


def _decode(entries: Sequence[StoredEntry], name: MemoryName, mid: int, events: list[Event]) -> None:
    for entry in entries:
        try:
            events.append(history_entry(entry, mid, name))
        except MemoryCorruptError:
            if not events:
                raise
            return  # those before it first


def _behind_the_gap(store: Store, name: MemoryName, head: Head, at: Version, lost: bool) -> Read:
    """There were entries a moment ago: the memory was deleted meanwhile, or they were pruned, every one."""
    now = _heads(store, [(name, at)])[0]
    if now is None or now.mid != head.mid:
        return Read((Reset(NOTHING),), NOTHING, True) if lost or at.n else Read((), NOTHING, True)
    at = Version(head.mid, head.version)
    return Read((Reset(at),), at, True)


def _heads(store: Store, known: Sequence[tuple[MemoryName, Version]]) -> list[Head | None]:
    # Known beyond its end, a memory of this `mid` costs its row alone; another one also its newest entry.
    queries = [LoadQuery(name, Version(version.mid, _ANY), newest=1) for name, version in known]
    return [loaded.head for loaded in store.load(queries)]


def _version(head: Head | None) -> Version:
    return NOTHING if head is None or head.version == 0 else Version(head.mid, head.version)

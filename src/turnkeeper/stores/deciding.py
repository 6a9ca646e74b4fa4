"""What stores decide alike, whatever their tables look like. Pure: each of them has read what is decided on."""

from __future__ import annotations

from collections.abc import Callable

from turnkeeper.log import (
    COMPACT,
    FORK,
    STARTING,
    Committed,
    Head,
    Loaded,
    NewMeta,
    Outcome,
    Slice,
    StoredEntry,
    Unknown,
)

__all__ = ["is_of_its_turn", "settled_entries", "settled_lease", "settled_meta", "state_of"]


def is_of_its_turn(slice_: Slice) -> bool:
    """Tell whether a slice is the turn's own doing, its entries or its renewal; others may only go the same way."""
    turn_id, lease = slice_.turn_id, slice_.lease
    if not turn_id:
        return False
    renews = lease is not None and lease.turn_id == turn_id and lease.seconds > 0
    return renews or any(entry.turn_id == turn_id for entry in slice_.entries)


def state_of(
    head: Head,
    base: int,
    entries: tuple[StoredEntry, ...],
    newest: int,
    *,
    start: StoredEntry | None,
    system: Callable[[], StoredEntry | None],
    earlier: Callable[[], bool],
) -> Loaded:
    """Put together what a load of a state answers; see `Loaded`.

    Args:
        head: the memory's row.
        base: number of the state's first entry besides the one that starts it (`first_entry`).
        entries: the state's entries from there on, or the newest of them.
        newest: how many were asked for; 0: all.
        start: the entry that starts the state, where there is one.
        system: reads the entry with the state's system message.
        earlier: whether there is an entry right before `base`.
    """
    first = entries[0].version if len(entries) == newest > 0 else base
    older = False
    if first == base > 1 and (start is None or start.op not in STARTING):
        older = earlier() and base - 1 != head.system
    if start is not None and (start.version >= first or start.op not in (COMPACT, FORK)):
        start = None  # it is among them, or has nothing to show besides
    said_before = system() if 0 < head.system < first else None
    return Loaded(head, 0 if first == base else first - 1, entries, said_before, older=older, start=start)


def settled_entries(slice_: Slice, mid: int, version: int, found: bytes | None, at: int) -> Outcome | None:
    """Tell whether a slice's entries were committed; see `Store.settle`.

    Args:
        slice_: has entries.
        mid: the row of that name now; 0: there is none.
        version: where it stands.
        found: id of the entry behind the expected version; None: there is none.
        at: that entry's time.
    """
    if not mid or (slice_.mid and mid != slice_.mid):
        return None
    if found is None:
        return Unknown() if slice_.expected < version else None  # what stood there was pruned
    return Committed(mid, at) if found == slice_.entries[0].entry_id else None


def settled_meta(head: Head, meta: NewMeta) -> Outcome | None:
    """Tell whether a memory got these metadata, when nothing else was to be changed."""
    if head.meta_version > meta.expected + 1:
        return Unknown()  # others have changed them since
    done = (head.meta_version, head.meta) == (meta.expected + 1, meta.data)
    return Committed(head.mid, head.updated_at) if done else None


def settled_lease(slice_: Slice, mid: int, updated_at: int, holder: bytes | None) -> Outcome | None:
    """Tell whether a lease was taken or given back, when nothing else was to be changed.

    Args:
        slice_: without a lease, nothing was.
        mid: the row of that name now; 0: there is none.
        updated_at: its time.
        holder: the turn that has a lease on it, living or not; None: no turn.
    """
    lease = slice_.lease
    if lease is None or (mid != 0 and holder == lease.turn_id) != (lease.seconds > 0):
        return None
    return Committed(mid, updated_at) if mid else Committed(slice_.mid, 0)

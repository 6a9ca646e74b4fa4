"""What is left to do for a memory: told from how it lies in both stores, and from the note that a copy leaves."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from msgspec.structs import replace

from turnkeeper.cli.copy_reading import RefusedError
from turnkeeper.cli.copy_standing import Standing
from turnkeeper.log import Head, StoredEntry, StoredReceipt, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import KeptReceipt, Loaded, Store

__all__ = [
    "AHEAD",
    "NOTE_KEY",
    "NOTHING",
    "PRESENT",
    "Place",
    "Stores",
    "is_untouched",
    "judge",
    "note_of",
    "place_of",
    "same",
]

NOTE_KEY: Final = "turnkeeper-copy"
"""The idempotency key under which a copy notes, as a receipt in the target, what it wrote: it never counts as one of
the memory's own."""

NOTE_SECONDS: Final = 30 * 86_400

PRESENT: Final = "present"
AHEAD: Final = "ahead"


class Stores(NamedTuple):
    """Where from and where to.

    Attributes:
        source: only reads.
        target: writes.
        reader: the target on another connection, which only reads.
    """

    source: Store
    target: Store
    reader: Store


class Place(NamedTuple):
    """How far a memory is in the target.

    Attributes:
        mid: its row; 0: there is none.
        standing: where its log stands.
        head: the row, as far as there is one.
        keeps_meta: its metadata are its own by now.
        remade: it is the copy of a memory that was deleted in the source since.
    """

    mid: int
    standing: Standing
    head: Head | None
    keeps_meta: bool = False
    remade: bool = False


NOTHING: Final = Place(0, Standing(0, 0, 0), None)


def place_of(head: Head, *, keeps_meta: bool = False) -> Place:
    """Return where a memory stands that is there."""
    return Place(head.mid, Standing(head.version, head.base, head.system), head, keeps_meta)


def note_of(stores: Stores, head: Head, n: int, meta_version: int) -> KeptReceipt:
    """Return the note that this is how far a memory was copied; it dies by itself.

    Args:
        stores: the source and the target.
        head: the memory's row in the source.
        n: the last entry written.
        meta_version: the revision of the metadata written.
    """
    digest = _store_digest(stores.source) + _row_digest(head)
    until = stores.target.now() + NOTE_SECONDS * 1_000_000
    return KeptReceipt(NOTE_KEY, digest, Version(1, n), meta_version, until)


def _store_digest(store: Store) -> bytes:
    return hashlib.sha256(store.describe().encode()).digest()[:16]


def _row_digest(head: Head) -> bytes:
    return hashlib.sha256(f"{head.mid} {head.created_at}".encode()).digest()[:16]


def judge(stores: Stores, name: MemoryName, seen: Loaded, there: Loaded) -> Place | str:
    """Decide what is to be done: write behind a place, or nothing, because it is `PRESENT`, or has more (`AHEAD`).

    Args:
        stores: the source and the target.
        name: the memory.
        seen: its row and newest entry in the source, where it is.
        there: the same in the target.

    Raises:
        RefusedError: the target has something else.
    """
    source, target = seen.head, there.head
    assert source is not None
    if target is None:
        return NOTHING
    if target.version == 0 and target.meta_version in (0, source.meta_version) and target.meta in (None, source.meta):
        return place_of(target) if not same(source, target) else PRESENT
    if target.created_at != source.created_at:
        if is_untouched(stores, target, _read_note(stores, name)):
            # The source has deleted what it was made from.
            return Place(target.mid, NOTHING.standing, target, remade=True)
        raise RefusedError("is there already, and is another memory")
    if target.version > source.version:
        return _judge_longer(stores, source, target, seen)
    if target.version:
        _prove(stores, name, source, target, there)
    return _judge_row(stores, name, source, target)


def _judge_longer(stores: Stores, source: Head, target: Head, seen: Loaded) -> str:
    wanted = _newest(seen)
    found = _entry(stores.target, target.mid, source.version)
    if source.version == 0 or wanted == found or (found is None and target.base > source.version):
        return AHEAD
    raise RefusedError(f"is there already with another history, at entry {source.version}")


def _prove(stores: Stores, name: MemoryName, source: Head, target: Head, there: Loaded) -> None:
    """Prove that the target has the first entries of the source's log: entry ids are random, and logs only grow."""
    found = _newest(there)
    wanted = _entry(stores.source, source.mid, target.version)
    if found is not None and wanted is not None:
        if found != wanted:
            raise RefusedError(f"is there already with another history, at entry {target.version}")
        return
    note = _note(stores, name, target)
    if note is None or note.digest[16:] != _row_digest(source):
        raise RefusedError(
            "is there already, and what would show that it is the same was pruned in the source since it was copied"
        )


def _judge_row(stores: Stores, name: MemoryName, source: Head, target: Head) -> Place | str:
    keeps_meta = target.meta_version > source.meta_version
    if not keeps_meta and (target.meta_version, target.meta) != (source.meta_version, source.meta):
        note = _note(stores, name, target)
        ours = target.meta_version == 0 or (note is not None and note.receipt.count == target.meta_version)
        if not ours or target.meta_version == source.meta_version:
            raise RefusedError("is there already, and its metadata were changed in both stores")
    if target.version == source.version:
        row = source
        if keeps_meta:
            row = replace(row, meta=target.meta, meta_version=target.meta_version, expires_at=target.expires_at)
        if target.base > source.base:  # pruned there
            row = replace(row, base=target.base, system=target.system)
        if same(row, target):
            return PRESENT
    return place_of(target, keeps_meta=keeps_meta)


def same(one: Head, other: Head) -> bool:
    """Tell whether two rows say the same."""
    return replace(one, mid=0) == replace(other, mid=0)


def is_untouched(stores: Stores, target: Head, note: StoredReceipt | None) -> bool:
    """Tell whether a memory is what a copy from this source left, and nobody has written to it since."""
    ours = _current(target, note)
    return (
        ours is not None
        and ours.digest[:16] == _store_digest(stores.source)
        and (ours.receipt.count == target.meta_version)
    )


def _note(stores: Stores, name: MemoryName, target: Head) -> StoredReceipt | None:
    """Return what a copy noted, if nobody has written entries since."""
    return _current(target, _read_note(stores, name))


def _read_note(stores: Stores, name: MemoryName) -> StoredReceipt | None:
    return stores.target.receipts([(name, NOTE_KEY)])[0]


def _current(target: Head, note: StoredReceipt | None) -> StoredReceipt | None:
    if note is None or note.receipt.version != Version(target.mid, target.version) or len(note.digest) != 32:
        return None
    return note


def _newest(loaded: Loaded) -> StoredEntry | None:
    head = loaded.head
    if head is None or not loaded.entries or loaded.entries[-1].version != head.version:
        return None
    return loaded.entries[-1]


def _entry(store: Store, mid: int, version: int) -> StoredEntry | None:
    found = store.entries(mid, after=version - 1, before=version + 1, limit=1) if version else []
    return found[0] if found else None

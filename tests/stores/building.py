"""Slices, entries and loads in a few words, and a clock that goes where the test wants it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from hashlib import sha256

from turnkeeper.folding import fold
from turnkeeper.log import (
    ADD,
    CLEAR,
    SET,
    Committed,
    Entry,
    Head,
    Key,
    NewMeta,
    Outcome,
    Slice,
    Version,
)
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import Loaded, LoadQuery, Store

TTL = 1000.0

_entry_ids = itertools.count(1)


class Clock:
    """Seconds since the epoch, as the test says."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def name(memory_id: str = "m", namespace: str = "") -> MemoryName:
    """Name a memory."""
    return MemoryName(namespace, memory_id)


def entry(*texts: str, op: str = ADD, key: str | None = None) -> Entry:
    """Make an entry of user messages, with an id of its own."""
    messages = encode_messages([{"role": "user", "content": text} for text in texts])
    digest = sha256(repr((op, texts)).encode()).digest()
    return Entry(op, next(_entry_ids).to_bytes(16, "big"), messages, None if key is None else Key(key, digest))


def clearing() -> Entry:
    """Make an entry that clears."""
    return entry(op=CLEAR)


def setting(*texts: str) -> Entry:
    """Make an entry that sets."""
    return entry(*texts, op=SET)


def add(
    memory: MemoryName, mid: int, expected: int, *entries: Entry | str, base: int = 0, not_before: int = 0
) -> Slice:
    """Make a slice of entries; a text stands for an entry with one message."""
    made = tuple(entry(part) if isinstance(part, str) else part for part in entries)
    return Slice(memory, mid, expected, made, base=base, not_before=not_before)


def delete(memory: MemoryName, mid: int, expected: int) -> Slice:
    """Make a slice that deletes."""
    return Slice(memory, mid, expected, (), delete=True)


def commit(store: Store, *slices: Slice, ttl: float = TTL) -> list[Outcome]:
    """Commit a group."""
    return store.commit(slices, receipt_ttl=ttl)


def committed(store: Store, slice_: Slice, ttl: float = TTL) -> int:
    """Commit a slice that has to succeed, and return its `mid`."""
    (outcome,) = commit(store, slice_, ttl=ttl)
    assert isinstance(outcome, Committed)
    return outcome.mid


def load(store: Store, memory: MemoryName, known: Version | None = None) -> Loaded:
    """Load one memory."""
    (loaded,) = store.load([LoadQuery(memory, known)])
    return loaded


def texts(store: Store, memory: MemoryName) -> list[str]:
    """Load one memory and return its texts."""
    return [str(message.content) for message in fold(load(store, memory), memory).messages]


def log(store: Store, memory: MemoryName) -> list[tuple[int, str]]:
    """Return number and kind of each entry of a memory, whether the state shows it or not."""
    head = load(store, memory).head
    entries = store.entries(head.mid, after=0, limit=10_000) if head else []
    return [(stored.version, stored.op) for stored in entries]


def listed(store: Store, *, namespace: str | None = None, page: int = 1000) -> Sequence[MemoryName]:
    """List all names, page by page."""
    names: list[MemoryName] = []
    while True:
        found = store.names(namespace=namespace, after=names[-1] if names else None, limit=page)
        if not found:
            return names
        names += [one.name for one in found]


def head_of(store: Store, memory: MemoryName) -> Head:
    """Return the row of a memory that is there."""
    head = load(store, memory).head
    assert head is not None
    return head


def describing(memory: MemoryName, mid: int, expected: int, revision: int, data: bytes = b"{}") -> Slice:
    """Make a slice that has metadata and no entries; `revision`: how often they were changed before."""
    return Slice(memory, mid, expected, (), meta=NewMeta(revision, data))


def pruning(memory: MemoryName, mid: int, expected: int, before: int, *, base: int = 0, system: int = 0) -> Slice:
    """Make a slice that prunes and has no entries."""
    return Slice(memory, mid, expected, (), base=base, system=system, prune=before)

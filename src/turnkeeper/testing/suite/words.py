"""Slices, entries and loads in a few words."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from turnkeeper.folding import fold
from turnkeeper.log import (
    ADD,
    CLEAR,
    SET,
    Committed,
    Entry,
    Head,
    Key,
    Loaded,
    LoadQuery,
    NewMeta,
    Outcome,
    Slice,
    Version,
)
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store

__all__ = [
    "TTL",
    "add",
    "clearing",
    "commit",
    "committed",
    "delete",
    "describing",
    "entry",
    "head_of",
    "listed",
    "load",
    "log",
    "name",
    "outcome_of",
    "pruning",
    "setting",
    "texts",
]

TTL: Final = 1000.0
"""Seconds that receipts live, unless a test says otherwise."""

_process = os.urandom(8)
_entry_ids = itertools.count(1)


def name(memory_id: str = "m", namespace: str = "") -> MemoryName:
    """Name a memory."""
    return MemoryName(namespace, memory_id)


def entry(*texts: str, op: str = ADD, key: str | None = None) -> Entry:
    """Make an entry of user messages, with an id of its own."""
    messages = encode_messages([{"role": "user", "content": text} for text in texts])
    digest = sha256(repr((op, texts)).encode()).digest()
    entry_id = _process + next(_entry_ids).to_bytes(8, "big")
    return Entry(op, entry_id, messages, None if key is None else Key(key, digest))


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


def describing(memory: MemoryName, mid: int, expected: int, revision: int, data: bytes = b"{}") -> Slice:
    """Make a slice that has metadata and no entries; `revision`: how often they were changed before."""
    return Slice(memory, mid, expected, (), meta=NewMeta(revision, data))


def pruning(memory: MemoryName, mid: int, expected: int, before: int, *, base: int = 0, system: int = 0) -> Slice:
    """Make a slice that prunes and has no entries."""
    return Slice(memory, mid, expected, (), base=base, system=system, prune=before)


def commit(store: Store, *slices: Slice, ttl: float = TTL) -> list[Outcome]:
    """Commit a group."""
    outcomes = store.commit(slices, receipt_ttl=ttl)
    assert len(outcomes) == len(slices), "a commit returns one outcome for each slice, in order"
    return outcomes


def outcome_of(store: Store, slice_: Slice, ttl: float = TTL) -> Outcome:
    """Commit one slice."""
    (outcome,) = commit(store, slice_, ttl=ttl)
    return outcome


def committed(store: Store, slice_: Slice, ttl: float = TTL) -> int:
    """Commit a slice that has to succeed, and return its `mid`."""
    outcome = outcome_of(store, slice_, ttl)
    assert isinstance(outcome, Committed), "this slice is right, so it has to be committed"
    return outcome.mid


def load(store: Store, memory: MemoryName, known: Version | None = None) -> Loaded:
    """Load one memory."""
    (loaded,) = store.load([LoadQuery(memory, known)])
    return loaded


def texts(store: Store, memory: MemoryName) -> list[str]:
    """Load one memory and return its texts."""
    return [str(message.content) for message in fold(load(store, memory), memory).messages]


def head_of(store: Store, memory: MemoryName) -> Head:
    """Return the row of a memory that is there."""
    head = load(store, memory).head
    assert head is not None, "the memory is there"
    return head


def log(store: Store, memory: MemoryName) -> list[tuple[int, str]]:
    """Return number and kind of each entry of a memory, whether the state shows it or not."""
    head = load(store, memory).head
    entries = store.entries(head.mid, after=0, limit=10_000) if head else []
    return [(stored.version, stored.op) for stored in entries]


def listed(store: Store, *, namespace: str | None = None, page: int = 1000, prefix: str = "") -> Sequence[MemoryName]:
    """List all names, page by page."""
    names: list[MemoryName] = []
    while True:
        after = names[-1] if names else None
        found = store.names(namespace=namespace, after=after, limit=page, prefix=prefix)
        if not found:
            return names
        assert len(found) <= page, "a page has at most as many names as its limit"
        names += [one.name for one in found]

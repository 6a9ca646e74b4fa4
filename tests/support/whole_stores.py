"""Whole stores: filled with memories that have been through everything, and compared down to the last byte."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from turnkeeper import MessageWindow, TurnkeeperError
from turnkeeper.cli.copy_judging import NOTE_KEY
from turnkeeper.cli.walking import log_entries, memories
from turnkeeper.log import Head, StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.stores import KeptReceipt, Store, store_from_url
from turnkeeper.sync import SyncRuntime

__all__ = ["Whole", "contents", "scribble", "whole"]


class Whole(NamedTuple):
    """All that a store has of a memory, but for the number of its row."""

    head: Head
    entries: tuple[StoredEntry, ...]
    receipts: tuple[tuple[KeptReceipt, bool], ...]


def whole(url: str) -> dict[MemoryName, Whole]:
    """Read all that lies in a store."""
    store = store_from_url(url, read_only=True)
    store.open(durability="relaxed")
    try:
        return contents(store)
    finally:
        store.close()


def contents(store: Store) -> dict[MemoryName, Whole]:
    """Read all that lies in a store that is open: of receipts also whether they lead to the memory that is there."""
    found = {}
    for listed in memories(store):
        mid = listed.head.mid
        receipts = [
            (replace(kept, version=replace(kept.version, mid=0)), kept.version.mid == mid)
            for kept in store.receipts_of(listed.name, after="", limit=100_000)
            if kept.key != NOTE_KEY
        ]
        entries = tuple(log_entries(store, mid))
        found[listed.name] = Whole(replace(listed.head, mid=0), entries, tuple(receipts))
    return found


def scribble(
    runtime: SyncRuntime, seed: int, steps: int, ids: str = "abcdef", after: Callable[[], object] = int
) -> None:
    """Do `steps` random things to memories of one letter each; those of capital letters prune.

    Args:
        runtime: an open one.
        seed: the same things for the same seed.
        steps: how many.
        ids: the memories.
        after: called after each step.
    """
    chance = random.Random(seed)
    for step in range(steps):
        memory_id = chance.choice(ids)
        pruning: dict[str, Any] = {"window": MessageWindow(4), "history": "window"} if memory_id.isupper() else {}
        memory: Any = runtime.memory(memory_id, chance.choice(["", "team"]), **pruning)
        with contextlib.suppress(TurnkeeperError, IndexError):  # nothing to take back, say
            _do(memory, chance, step)
        after()


def _do(memory: Any, chance: random.Random, step: int) -> None:
    def said(role: str = "user") -> dict[str, Any]:
        return {"role": role, "content": f"{role} {step} " + "é" * chance.randrange(20)}

    roll = chance.random()
    if roll < 0.5:
        role = chance.choice(["user", "user", "user", "assistant", "system", "developer"])
        memory.add(said(role), idempotency_key=f"key-{step}" if chance.random() < 0.3 else None)
    elif roll < 0.55:
        memory.add([said(), said("system"), said("assistant")])
    elif roll < 0.6:
        memory.add({"role": "system", "content": "always the same"})
    elif roll < 0.64:
        memory.set([said("system"), said()] if chance.random() < 0.5 else [said()])
    elif roll < 0.67:
        memory.clear()
    elif roll < 0.73:
        memory.undo()
    elif roll < 0.78:
        memory.pop()
    elif roll < 0.84:
        message = chance.choice(memory.messages())
        memory.edit(message.id, said(message.role))
    elif roll < 0.89:
        memory.remove(chance.choice(memory.messages()).id)
    elif roll < 0.92:
        memory.compact(lambda *_: f"summary {step}", keep=chance.randrange(3))
    elif roll < 0.96:
        memory.set_metadata(title=f"title {step}", data={"step": step})
    elif roll < 0.98:
        memory.fork(f"{memory.id}-{step}", history=chance.random() < 0.5)
    else:
        memory.delete()

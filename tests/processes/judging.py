"""What the journals of a crowd say happened, held against what is stored."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from processes.crowd import digest
from turnkeeper.log import StoredEntry
from turnkeeper.stores import Store
from turnkeeper.testing import Call, check_history

Stored: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""By memory: the texts of each entry, in order of the versions from 1."""


@dataclass
class Record:
    """What the processes said about one memory.

    Attributes:
        adds: those that were begun; without an answer they are of unknown outcome.
        reads: with the number of texts and their digest in place of a result.
    """

    adds: list[Call] = field(default_factory=list)
    reads: list[tuple[Call, int, str]] = field(default_factory=list)


def read_journals(paths: Iterable[Path]) -> dict[str, Record]:
    """Return what was recorded, by memory."""
    records: dict[str, Record] = defaultdict(Record)
    for path in paths:
        begun: dict[tuple[str, int], tuple[str, Call]] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:  # a kill may have torn the last one
            kind, sender, *values = json.loads(line)
            if kind == "read":
                memory, invoked, returned, version, count, digested = values
                call = Call(sender, "messages", (), invoked, returned, "ok", (), version)
                records[memory].reads.append((call, count, digested))
            elif kind == "add":
                number, memory, invoked, texts = values
                begun[sender, number] = memory, Call(sender, "add", tuple(texts), invoked, None, "unknown")
            else:
                number, returned, outcome, version = values
                memory, call = begun.pop((sender, number))
                call = replace(call, returned=returned, outcome=outcome, version=version or None)
                records[memory].adds.append(call)
        for memory, call in begun.values():
            records[memory].adds.append(call)
    return records


def read_store(store: Store) -> dict[str, list[list[str]]]:
    """Read what is stored, past the runtime; the store is opened and closed."""
    store.open(durability="relaxed")
    try:
        found: dict[str, list[list[str]]] = {}
        for listed in store.names(namespace="", after=None, limit=1_000):
            entries = _all_entries(store, listed.head.mid)
            assert [entry.version for entry in entries] == list(range(1, listed.head.version + 1)), "there is a gap"
            found[listed.name.id] = [[_text(message) for message in _messages(entry)] for entry in entries]
        return found
    finally:
        store.close()


def _all_entries(store: Store, mid: int) -> list[StoredEntry]:
    entries: list[StoredEntry] = []
    while more := store.entries(mid, after=entries[-1].version if entries else 0, limit=5_000):
        entries += more
    return entries


def _messages(entry: StoredEntry) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(entry.payload)["messages"]
    return messages


def _text(message: dict[str, Any]) -> str:
    return str(message["content"])


def judge(records: Mapping[str, Record], stored: Stored, *, steps: int = 500_000) -> int:
    """Hold one against the other; return how many messages are stored.

    Every acknowledged batch is there once, whole, at its version; what has no answer is there once or not at all; what
    failed is not there, and nothing else is. Each sender's batches are in its order. Every read showed exactly what was
    there at its version. And the calls on each memory are linearizable.
    """
    for memory, record in records.items():
        log = stored.get(memory, [])
        _judge_writes(memory, record.adds, log)
        reads = [_judged_read(memory, read, log) for read in record.reads]
        _judge_times(memory, [*record.adds, *reads])
        check_history([*record.adds, *reads], max_steps=steps)
    assert set(stored) <= set(records), "nobody wrote these memories"
    return sum(len(texts) for log in stored.values() for texts in log)


def _judge_writes(memory: str, adds: Sequence[Call], log: Sequence[Sequence[str]]) -> None:
    at: dict[tuple[Hashable, ...], int] = {tuple(texts): version for version, texts in enumerate(log, 1)}
    assert len(at) == len(log), f"{memory} has a batch twice"
    known = set()
    for add in adds:
        if add.outcome == "ok":
            assert at.get(add.argument) == add.version, f"{memory}: {add} is stored at {at.get(add.argument)}"
        if add.outcome != "failed":
            known.add(add.argument)
    assert set(at) <= known, f"{memory} holds what failed, or what nobody sent"
    latest: dict[str, int] = defaultdict(lambda: -1)
    for text in (text for texts in log for text in texts):
        sender, number = text.split()
        assert int(number) > latest[sender], f"{memory}: {sender} is out of order"
        latest[sender] = int(number)


def _judged_read(memory: str, read: tuple[Call, int, str], log: Sequence[Sequence[str]]) -> Call:
    call, count, digested = read
    shown = [text for texts in log[: call.version] for text in texts]
    assert (len(shown), digest(shown)) == (count, digested), f"{memory}: {call} showed something else"
    return replace(call, result=tuple(shown))


def _judge_times(memory: str, calls: Iterable[Call]) -> None:
    """What was answered before another call began has no later version: quickly, for histories of any length."""
    by_start = sorted((call for call in calls if call.outcome == "ok"), key=lambda call: call.invoked)
    by_end = sorted(by_start, key=lambda call: call.returned or 0)
    latest = position = 0
    for call in by_start:
        while (by_end[position].returned or 0) < call.invoked:
            latest = max(latest, by_end[position].version or 0)
            position += 1
        lowest = latest if call.op == "messages" else latest + 1
        assert (call.version or 0) >= lowest, f"{memory}: {call} came after version {latest} was promised"

"""A store that tells what was read and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turnkeeper.log import Outcome, Slice
from turnkeeper.stores import InMemoryStore, Loaded, LoadQuery
from windows.saying import Fields


class Watched(InMemoryStore):
    """Keeps the loads and the commits that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[LoadQuery, Loaded]] = []
        self.commits: list[Slice] = []

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories."""
        loaded = super().load(queries)
        self.loads += zip(queries, loaded, strict=True)
        return loaded

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit each slice."""
        self.commits += slices
        return super().commit(slices, receipt_ttl=receipt_ttl)

    @property
    def messages_read(self) -> int:
        """How many messages came out of the store so far, those of entries with a system message included."""
        count = 0
        for _, loaded in self.loads:
            entries = [*loaded.entries, *([] if loaded.system is None else [loaded.system])]
            count += sum(len(json.loads(entry.payload)["messages"]) for entry in entries)
        return count

    def stored(self, memory_id: str = "m") -> list[tuple[str, list[Fields]]]:
        """Return kind and messages of each entry of a memory."""
        listed = [row for row in self.names(namespace=None, after=None, limit=99) if row.name.id == memory_id]
        entries: Any = [self.entries(row.head.mid, after=0, limit=99_999) for row in listed]
        return [(entry.op, json.loads(entry.payload)["messages"]) for found in entries for entry in found]

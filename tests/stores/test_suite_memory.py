"""The in-memory store keeps every promise of a store that can be kept within one process."""

from __future__ import annotations

import time
from pathlib import Path

from turnkeeper.stores import InMemoryStore, Store
from turnkeeper.testing import StoreClock, StoreSuite


class TestInMemoryStore(StoreSuite):
    durable = False

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return InMemoryStore(clock=clock or time.time)

    def receipts_held(self, store: Store) -> int:
        assert isinstance(store, InMemoryStore)
        return len(store._receipts)

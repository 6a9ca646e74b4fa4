"""The SQLite store keeps every promise of a store, alone on its file and shared."""

from __future__ import annotations

import time
from pathlib import Path

from turnkeeper.stores import SQLiteStore, Store
from turnkeeper.testing import StoreClock, StoreSuite


class TestSQLiteStore(StoreSuite):
    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return SQLiteStore(place / "chats.db", clock=clock or time.time)

    def receipts_held(self, store: Store) -> int:
        assert isinstance(store, SQLiteStore)
        assert store._reader is not None
        return int(store._reader.execute("SELECT count(*) FROM receipt").fetchone()[0])


class TestSharedSQLiteStore(TestSQLiteStore):
    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return SQLiteStore(place / "chats.db", shared=True, clock=clock or time.time)

"""A store keeps every promise with an encrypted store around it."""

from __future__ import annotations

import time
from pathlib import Path

from turnkeeper.stores import EncryptedStore, InMemoryStore, Keyring, SQLiteStore, Store
from turnkeeper.testing import StoreClock, StoreSuite


def keys() -> Keyring:
    return Keyring({"old": b"o" * 32, "new": b"n" * 32}, active="new")


class TestEncryptedInMemoryStore(StoreSuite):
    durable = False

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return EncryptedStore(InMemoryStore(clock=clock or time.time), keys())


class TestEncryptedSQLiteStore(StoreSuite):
    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return EncryptedStore(SQLiteStore(place / "chats.db", clock=clock or time.time), keys())


class TestEncryptedSharedSQLiteStore(StoreSuite):
    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return EncryptedStore(SQLiteStore(place / "chats.db", shared=True, clock=clock or time.time), keys())

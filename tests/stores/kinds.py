"""The kinds of store, as parameters of the `store` fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.building import Clock
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store

__all__ = ["ALL", "ON_DISK", "SHARED"]


def make_in_memory(_directory: Path, clock: Clock) -> Store:
    return InMemoryStore(clock=clock)


def make_sqlite(directory: Path, clock: Clock) -> Store:
    return SQLiteStore(directory / "own.db", clock=clock)


def make_shared_sqlite(directory: Path, clock: Clock) -> Store:
    return SQLiteStore(directory / "shared.db", shared=True, clock=clock)


ALL = [
    pytest.param(make_in_memory, id="memory"),
    pytest.param(make_sqlite, id="sqlite"),
    pytest.param(make_shared_sqlite, id="sqlite-shared"),
]
ON_DISK = ALL[1:]
SHARED = ALL[2:]

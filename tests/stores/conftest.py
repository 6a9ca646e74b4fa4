"""Every kind of store, open, with a clock that goes where the test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.building import Clock
from stores.kinds import ALL
from turnkeeper.stores import Store


@pytest.fixture
def clock() -> Clock:
    """Return the store's clock."""
    return Clock()


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """Return an open store."""
    made: Store = request.param(tmp_path, clock)
    made.open(durability="full")
    yield made
    made.close()

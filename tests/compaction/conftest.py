"""What most tests in here need."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import turnkeeper
from windows.conftest import _no_actor_fails

__all__ = ["_no_actor_fails", "memory", "runtime"]


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[turnkeeper.Runtime]:
    """Return an open runtime on each kind of store."""
    async with turnkeeper.open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: turnkeeper.Runtime) -> turnkeeper.ChatMemory:
    """Return a handle of a memory that is empty."""
    return runtime.memory("m")

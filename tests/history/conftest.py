"""What the tests of the log share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from turnkeeper import ChatMemory, Runtime, open_runtime


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")

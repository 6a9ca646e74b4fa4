"""A lock around a list: what no memory can be faster than, and what keeps nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

TITLE = "floor: lock and list"
DURABILITY = "memory"
TOOLS = True


class _Lists:
    def __init__(self, window: int | None) -> None:
        self._window = window
        self._all: defaultdict[str, tuple[anyio.Lock, list[dict[str, Any]]]] = defaultdict(lambda: (anyio.Lock(), []))

    async def add(self, conversation: str, messages: Sequence[dict[str, Any]]) -> None:
        lock, kept = self._all[conversation]
        async with lock:
            kept.extend(messages)

    async def read(self, conversation: str) -> Sequence[dict[str, Any]]:
        lock, kept = self._all[conversation]
        async with lock:
            return kept[-self._window :] if self._window else list(kept)

    async def read_all(self, conversation: str) -> Sequence[dict[str, Any]]:
        return self._all[conversation][1]


@asynccontextmanager
async def opened(place: Path, *, window: int | None) -> AsyncIterator[_Lists]:
    """Open it."""
    yield _Lists(window)

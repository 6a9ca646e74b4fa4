"""turnkeeper, SQLite."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Literal

from turnkeeper.bench.adapters.ours import Ours, OursBlocking, opened_blocking_on, opened_on

TITLE = "turnkeeper, SQLite"
DISTRIBUTIONS = ("turnkeeper",)
DURABILITY = "power cut"
CONSISTENCY = "local"
SHARED = True
TOOLS = WINDOWS = True


def opened(place: Path, *, window: int | None) -> AbstractAsyncContextManager[Ours]:
    """Open it."""
    return opened_on(f"sqlite:///{place}/chats.db", window)


def opened_blocking(
    place: Path, *, window: int | None, backend: Literal["asyncio", "uvloop", "trio"]
) -> AbstractContextManager[OursBlocking]:
    """Open it for threads."""
    return opened_blocking_on(f"sqlite:///{place}/chats.db", window, backend)

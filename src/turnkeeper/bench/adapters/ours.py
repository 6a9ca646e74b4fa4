"""What this package's own subjects have in common: a runtime on a store, with every default."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import turnkeeper
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.windows import MessageWindow, Unbounded, Window

__all__ = ["Ours", "OursBlocking", "opened_blocking_on", "opened_on", "server_url"]


class Ours:
    """Conversations of a runtime."""

    def __init__(self, runtime: turnkeeper.Runtime) -> None:
        self._runtime = runtime

    async def add(self, conversation: str, messages: Sequence[dict[str, Any]]) -> None:
        """Add messages as one batch."""
        await self._runtime.memory(conversation).add(messages)

    async def read(self, conversation: str) -> list[dict[str, Any]]:
        """Read the window."""
        return (await self._runtime.memory(conversation).messages()).to_dicts()

    async def read_all(self, conversation: str) -> list[dict[str, Any]]:
        """Read everything, whatever the window."""
        return (await self._runtime.memory(conversation, window=Unbounded()).messages()).to_dicts()

    def turn(self, conversation: str) -> turnkeeper.Turn:
        """Begin a turn that nobody else writes into."""
        return self._runtime.memory(conversation).turn()


class OursBlocking:
    """The same through the blocking facade."""

    def __init__(self, runtime: turnkeeper.SyncRuntime) -> None:
        self._runtime = runtime

    def add(self, conversation: str, messages: Sequence[dict[str, Any]]) -> None:
        """Add messages as one batch."""
        self._runtime.memory(conversation).add(messages)

    def read(self, conversation: str) -> list[dict[str, Any]]:
        """Read the window."""
        return self._runtime.memory(conversation).messages().to_dicts()


def _window(limit: int | None) -> Window:
    return Unbounded() if limit is None else MessageWindow(limit, on_overflow="evict")


@asynccontextmanager
async def opened_on(url: str, window: int | None) -> AsyncIterator[Ours]:
    """Open a runtime."""
    async with turnkeeper.open_runtime(url, window=_window(window)) as runtime:
        yield Ours(runtime)


@contextmanager
def opened_blocking_on(
    url: str, window: int | None, backend: Literal["asyncio", "uvloop", "trio"]
) -> Iterator[OursBlocking]:
    """Open a runtime for threads."""
    with turnkeeper.open_sync_runtime(url, backend=backend, window=_window(window)) as runtime:
        yield OursBlocking(runtime)


def server_url(variable: str, option: str) -> str:
    """Return the URL of a server from the environment, with an option added that keeps runs apart.

    Raises:
        InvalidArgumentError: the variable is not set.
    """
    url = os.environ.get(variable)
    if not url:
        raise InvalidArgumentError(f"set {variable} to the URL of a server that may be filled with rubbish")
    return f"{url}{'&' if '?' in url else '?'}{option}"

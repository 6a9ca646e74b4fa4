"""A bare actor: a stream, a task, an event for each reply, a list. What an actor costs before it is any good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

TITLE = "floor: bare actor"
DURABILITY = "memory"
TOOLS = WINDOWS = True

Dicts = Sequence[dict[str, Any]]


class _Request:
    __slots__ = ("done", "messages", "result")

    def __init__(self, messages: Dicts | None) -> None:
        self.messages = messages
        self.done = anyio.Event()
        self.result: Dicts = ()


class _Actors:
    def __init__(self, group: TaskGroup, window: int | None) -> None:
        self._group = group
        self._window = window
        self._mailboxes: dict[str, MemoryObjectSendStream[_Request]] = {}

    async def add(self, conversation: str, messages: Dicts) -> None:
        await self._ask(conversation, _Request(messages))

    async def read(self, conversation: str) -> Dicts:
        return await self._ask(conversation, _Request(None))

    async def _ask(self, conversation: str, request: _Request) -> Dicts:
        mailbox = self._mailboxes.get(conversation)
        if mailbox is None:
            mailbox, requests = anyio.create_memory_object_stream[_Request](1024)
            self._mailboxes[conversation] = mailbox
            self._group.start_soon(self._run, requests)
        await mailbox.send(request)
        await request.done.wait()
        return request.result

    async def _run(self, requests: Any) -> None:
        kept: list[dict[str, Any]] = []
        async for request in requests:
            if request.messages is None:
                request.result = kept[-self._window :] if self._window else list(kept)
            else:
                kept.extend(request.messages)
            request.done.set()


@asynccontextmanager
async def opened(place: Path, *, window: int | None) -> AsyncIterator[_Actors]:
    """Open it."""
    async with anyio.create_task_group() as group:
        yield _Actors(group, window)
        group.cancel_scope.cancel()

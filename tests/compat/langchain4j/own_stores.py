"""Stores as users write them, which watch how they are called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import anyio

from support.schedule import Gate
from turnkeeper import Message
from turnkeeper.compat.langchain4j import ChatMemoryStore


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def call(call_id: str) -> dict[str, Any]:
    function = {"name": "search", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


class OwnStore(ChatMemoryStore):
    """Keeps what it is given, by reference, as careless stores do.

    Attributes:
        lists: what it holds.
        calls: how often each method was called.
        threads: which threads called it.
        overlaps: ids for which two calls were under way at once.
        peak: most calls under way at once.
        at_read: called in each read; at_write: in each write, before it, with the messages.
        gates: gates at which reads stop, by id.
    """

    def __init__(self) -> None:
        self.lists: dict[Hashable, list[Message]] = {}
        self.calls: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.overlaps: list[Hashable] = []
        self.peak = 0
        self.at_read: Callable[[], object] = lambda: None
        self.at_write: Callable[[list[Message]], object] = lambda messages: None
        self.gates: dict[Hashable, Gate] = {}
        self._under_way: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def watching(self, method: str, memory_id: Hashable) -> Iterator[None]:
        with self._lock:
            self.calls[method] += 1
            self.threads.add(threading.get_ident())
            if self._under_way[memory_id]:
                self.overlaps.append(memory_id)
            self._under_way[memory_id] += 1
            self.peak = max(self.peak, self._under_way.total())
        try:
            yield
        finally:
            with self._lock:
                self._under_way[memory_id] -= 1

    def get_messages(self, memory_id: Hashable, /) -> list[Message] | None:
        with self.watching("get", memory_id):
            if memory_id in self.gates:
                self.gates[memory_id].stop_thread()
            self.at_read()
            return self.lists.get(memory_id)

    def update_messages(self, memory_id: Hashable, messages: list[Message], /) -> None:
        with self.watching("update", memory_id):
            assert messages, "an empty list was handed over"
            self.at_write(messages)
            self.lists[memory_id] = messages

    def delete_messages(self, memory_id: Hashable, /) -> None:
        with self.watching("delete", memory_id):
            self.at_write([])
            self.lists.pop(memory_id, None)


class InlineStore(OwnStore):
    """Needs no thread."""

    inline: ClassVar[bool] = True


class TwinStore(OwnStore):
    """Has async twins, which yield to other tasks at every step as a driver does."""

    async def get_messages_async(self, memory_id: Hashable, /) -> list[Message] | None:
        with self.watching("get_async", memory_id):
            if memory_id in self.gates:
                await self.gates[memory_id].stop()
            await anyio.lowlevel.checkpoint()
            self.at_read()
            return self.lists.get(memory_id)

    async def update_messages_async(self, memory_id: Hashable, messages: list[Message], /) -> None:
        with self.watching("update_async", memory_id):
            assert messages, "an empty list was handed over"
            await anyio.lowlevel.checkpoint()
            self.at_write(messages)
            self.lists[memory_id] = messages

    async def delete_messages_async(self, memory_id: Hashable, /) -> None:
        with self.watching("delete_async", memory_id):
            await anyio.lowlevel.checkpoint()
            self.at_write([])
            self.lists.pop(memory_id, None)


STORES: list[type[OwnStore]] = [OwnStore, InlineStore, TwinStore]

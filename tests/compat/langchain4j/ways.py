"""The ways in which a memory may keep its messages: each promise is tested on all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat.langchain4j.own_stores import InlineStore, OwnStore, TwinStore
from turnkeeper import open_sync_runtime
from turnkeeper.compat.langchain4j import (
    ChatMemoryStore,
    InMemoryChatMemoryStore,
    MessageWindowChatMemory,
    StoreChatMemoryStore,
)

OWN = ("own", "own, inline", "own, offloaded", "own, with twins", "in memory")
NATIVE = ("turnkeeper's, in memory", "turnkeeper's, on sqlite")
WITH_STORE = OWN + NATIVE
ALL = ("alone", *WITH_STORE)
AWAITED = tuple(way for way in ALL if way not in ("own", "own, inline"))
"""Those whose async methods can be awaited."""


class Way:
    """Makes memories.

    Attributes:
        name: of the way.
        store: the store under them; None: they have none.
    """

    def __init__(self, name: str, store: ChatMemoryStore | None) -> None:
        self.name = name
        self.store = store

    @property
    def own(self) -> OwnStore:
        """The store, where it watches how it is called."""
        assert isinstance(self.store, OwnStore)
        return self.store

    def memory(
        self, max_messages: int | Callable[[Any], int] = 10, memory_id: Hashable = "m", **options: Any
    ) -> MessageWindowChatMemory:
        """Make a memory."""
        return MessageWindowChatMemory(max_messages, id=memory_id, **self.options, **options)

    @property
    def options(self) -> dict[str, Any]:
        """What names the store to a memory."""
        return {"chat_memory_store": self.store, "offload_blocking_store": self.name == "own, offloaded"}


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Way]:
    """Return a way with a store of its own."""
    if name in NATIVE:
        url = "memory:" if name == NATIVE[0] else f"sqlite:///{folder}/chats.db"
        with open_sync_runtime(url) as runtime:
            yield Way(name, StoreChatMemoryStore(runtime=runtime))
        return
    kinds: dict[str, Callable[[], ChatMemoryStore | None]] = {
        "alone": lambda: None,
        "own": OwnStore,
        "own, inline": InlineStore,
        "own, offloaded": OwnStore,
        "own, with twins": TwinStore,
        "in memory": InMemoryChatMemoryStore,
    }
    yield Way(name, kinds[name]())


@pytest.fixture
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    """Return the way that a test's parameters name."""
    with opened(request.param, tmp_path) as made:
        yield made


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on each of these ways."""
    return pytest.mark.parametrize("way", names, indirect=True)

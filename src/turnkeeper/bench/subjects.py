"""What is measured: an adapter is a module with a few names, and one file can be brought along."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

from turnkeeper.errors import InvalidArgumentError

__all__ = ["BUILT_IN", "Adapter", "BlockingConversations", "Conversations", "load_adapter"]

Dict: TypeAlias = dict[str, Any]


class Conversations(Protocol):
    """A subject that is open: adds messages and reads conversations, each named by its id.

    Messages are dicts in OpenAI's chat form: "role", "content" and for tools "tool_calls" and "tool_call_id". Where a
    subject has turns, `add_turn` adds a whole one, exclusively; others get its messages one after the other.
    """

    async def add(self, conversation: str, messages: Sequence[Dict]) -> None:
        """Add messages; returns when the subject says that they are kept."""

    async def read(self, conversation: str) -> Sequence[Dict]:
        """Return what a model would be shown."""


class BlockingConversations(Protocol):
    """The same for threads."""

    def add(self, conversation: str, messages: Sequence[Dict]) -> None:
        """Add messages."""

    def read(self, conversation: str) -> Sequence[Dict]:
        """Return what a model would be shown."""


class Adapter:
    """An adapter module, checked.

    Attributes:
        name: the module's, as the command line says it.
        title: what the tables call the subject.
        packages: requirements to be installed in its environment; none: it runs in ours.
        distributions: whose versions the results name.
        durability: "memory", "process" or "power cut".
        backends: those it runs on.
        consistency: "strong" or "local" where it has the choice; else empty.
        shared: another process can read what it stored.
        tools: it keeps tool calls and results.
        opened: makes it, on a directory; `window` limits what is read to so many messages, None: all.
        opened_blocking: the same for threads; None: it has no blocking form.
    """

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name: str = name
        self.title: str = module.TITLE
        self.packages: tuple[str, ...] = tuple(getattr(module, "PACKAGES", ()))
        self.distributions: tuple[str, ...] = tuple(getattr(module, "DISTRIBUTIONS", ()))
        self.durability: str = module.DURABILITY
        self.backends: tuple[str, ...] = tuple(getattr(module, "BACKENDS", ("asyncio", "uvloop", "trio")))
        self.consistency: str = getattr(module, "CONSISTENCY", "")
        self.shared: bool = getattr(module, "SHARED", self.durability != "memory")
        self.tools: bool = getattr(module, "TOOLS", False)
        self.windows: bool = getattr(module, "WINDOWS", False)
        self.opened: Callable[..., AbstractAsyncContextManager[Conversations]] | None = getattr(module, "opened", None)
        self.opened_blocking: Callable[..., AbstractContextManager[BlockingConversations]] | None = getattr(
            module, "opened_blocking", None
        )


BUILT_IN: Final = {
    "turnkeeper-memory": "turnkeeper.bench.adapters.in_memory",
    "turnkeeper-sqlite": "turnkeeper.bench.adapters.sqlite",
    "turnkeeper-sqlite-shared": "turnkeeper.bench.adapters.sqlite_shared",
    "turnkeeper-postgres": "turnkeeper.bench.adapters.postgres",
    "turnkeeper-redis": "turnkeeper.bench.adapters.redis",
    "floor-list": "turnkeeper.bench.adapters.floor_list",
    "floor-actor": "turnkeeper.bench.adapters.floor_actor",
    "floor-sql": "turnkeeper.bench.adapters.floor_sql",
}
"""Subjects that come with the package: its own stores, and what nothing that does the same job can be faster than."""


def load_adapter(name: str) -> Adapter:
    """Load a built-in subject by its name, or the adapter in a file.

    Raises:
        InvalidArgumentError: there is no such subject, or the file is no adapter.
    """
    if name in BUILT_IN:
        return Adapter(name, importlib.import_module(BUILT_IN[name]))
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise InvalidArgumentError(f"no subject {name!r}: name an adapter file, or one of {', '.join(BUILT_IN)}")
    spec = importlib.util.spec_from_file_location(f"turnkeeper_bench_adapter_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        return Adapter(path.stem, module)
    except AttributeError as error:
        raise InvalidArgumentError(f"{path} is no adapter: it has no {error.name}") from None

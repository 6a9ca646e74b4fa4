"""What is measured: an adapter is a module with a few names, and one file can be brought along."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from turnkeeper.cli.loops import BACKENDS
from turnkeeper.errors import InvalidArgumentError

__all__ = [
    "BUILT_IN",
    "Adapter",
    "BlockingConversations",
    "Conversations",
    "Description",
    "describe_adapter",
    "load_adapter",
]

Dict: TypeAlias = dict[str, Any]


class Conversations(Protocol):
    """A subject that is open: adds messages and reads conversations, each named by its id.

    Messages are dicts in OpenAI's chat form: "role", "content" and for tools "tool_calls" and "tool_call_id". A subject
    that can keep a turn whole may have a method `turn(conversation)` as well: an async context manager with `add`
    and `messages`. One whose reads are limited may have `read_all`, which checks use where nobody else can look.
    """

    async def add(self, conversation: str, messages: Sequence[Dict]) -> None:
        """Add messages; returns when the subject says that they are kept."""

    async def read(self, conversation: str) -> Sequence[Dict]:
        """Return what a model would be shown."""
        ...


class BlockingConversations(Protocol):
    """The same for threads."""

    def add(self, conversation: str, messages: Sequence[Dict]) -> None:
        """Add messages."""

    def read(self, conversation: str) -> Sequence[Dict]:
        """Return what a model would be shown."""
        ...


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter says of its subject in constants, which can be read without its packages.

    Attributes:
        name: the file's, or the built-in subject's.
        title: what the tables call it.
        packages: requirements to be installed in its environment; none: it runs in ours.
        distributions: whose versions the results name.
        durability: what an acknowledgement promises: "memory", "process" (survives this process's death) or "power
            cut".
        backends: the event loops it runs on.
        consistency: "strong" or "local" where it has the choice; else empty.
        shared: another process can read what it stored.
        tools: it keeps tool calls and results.
        windows: what it reads is limited by the window that it is opened with; others read all.
        blocking: it has a blocking form.
    """

    name: str
    title: str
    durability: str
    packages: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    backends: tuple[str, ...] = BACKENDS
    consistency: str = ""
    shared: bool = False
    tools: bool = False
    windows: bool = False
    blocking: bool = False


class Adapter(NamedTuple):
    """An adapter, loaded where its packages are.

    Attributes:
        about: what it says of itself.
        opened: makes the subject on a directory; `window` is how many messages a read should show, None: all.
        opened_blocking: the same for threads, with the event loop that a subject may need behind it.
    """

    about: Description
    opened: Callable[..., AbstractAsyncContextManager[Conversations]]
    opened_blocking: Callable[..., AbstractContextManager[BlockingConversations]] | None


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


def describe_adapter(name: str) -> Description:
    """Read what an adapter says of its subject, without running it.

    Raises:
        InvalidArgumentError: there is no such subject, or the file is no adapter.
    """
    path = _path(name)
    constants, functions = _outline(path)
    missing = {"TITLE", "DURABILITY", "opened"} - constants.keys() - functions
    if missing:
        raise InvalidArgumentError(f"{path} is no adapter: it has no {', '.join(sorted(missing))}")
    return Description(
        name=name if name in BUILT_IN else path.stem,
        title=constants["TITLE"],
        durability=constants["DURABILITY"],
        packages=tuple(constants.get("PACKAGES", ())),
        distributions=tuple(constants.get("DISTRIBUTIONS", ())),
        backends=tuple(constants.get("BACKENDS", BACKENDS)),
        consistency=constants.get("CONSISTENCY", ""),
        shared=constants.get("SHARED", constants["DURABILITY"] != "memory"),
        tools=constants.get("TOOLS", False),
        windows=constants.get("WINDOWS", False),
        blocking="opened_blocking" in functions,
    )


def load_adapter(name: str) -> Adapter:
    """Load a built-in subject by its name, or the adapter in a file.

    Raises:
        InvalidArgumentError: there is no such subject, or the file is no adapter.
    """
    about = describe_adapter(name)
    if name in BUILT_IN:
        module = importlib.import_module(BUILT_IN[name])
    else:
        path = _path(name)
        spec = importlib.util.spec_from_file_location(f"turnkeeper_bench_adapter_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return Adapter(about, module.opened, getattr(module, "opened_blocking", None))


def _path(name: str) -> Path:
    if name in BUILT_IN:
        spec = importlib.util.find_spec(BUILT_IN[name])
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise InvalidArgumentError(f"no subject {name!r}: name an adapter file, or one of {', '.join(BUILT_IN)}")
    return path


def _outline(path: Path) -> tuple[dict[str, Any], set[str]]:
    """Return a module's constants in capitals and the names of its functions."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:
        raise InvalidArgumentError(f"{path} is no adapter: it is not Python") from None
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id.isupper():
                    with contextlib.suppress(ValueError):
                        constants[target.id] = ast.literal_eval(node.value)
    functions = {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    return constants, functions

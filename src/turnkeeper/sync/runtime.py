"""The runtime for blocking code, and its opening."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NoReturn, Unpack, cast

from anyio.from_thread import start_blocking_portal

from turnkeeper.config import RuntimeOptions
from turnkeeper.durations import Duration
from turnkeeper.errors import InvalidArgumentError, MissingExtraError
from turnkeeper.names import memory_name
from turnkeeper.registry import Erasure, MemoryPage, MemoryQuery, erase, erase_all, list_memories
from turnkeeper.runtime import RuntimeCore, make_core
from turnkeeper.searching import SearchPage, search, search_query
from turnkeeper.stats import RuntimeStats
from turnkeeper.stores import Store
from turnkeeper.sync.calling import call, in_loop
from turnkeeper.sync.memory import SyncChatMemory
from turnkeeper.sync.watching import SyncRuntimeWatch
from turnkeeper.watches import FeedReader
from turnkeeper.windows import Window

__all__ = ["SyncRuntime", "open_sync_runtime"]


class SyncRuntime:
    """A runtime for blocking code: `runtime.sync` of an open one, or what `open_sync_runtime` opens."""

    __slots__ = ("_core",)

    def __init__(self, core: RuntimeCore) -> None:
        self._core = core

    def memory(
        self,
        memory_id: str,
        namespace: str = "",
        window: Window | None = None,
        *,
        history: Literal["keep", "window"] | None = None,
    ) -> SyncChatMemory:
        """Return a handle; no I/O. See `Runtime.memory`."""
        return SyncChatMemory(self._core, memory_name(memory_id, namespace), window, history)

    def memories(
        self,
        namespace: str | None = None,
        prefix: str = "",
        *,
        updated_after: int = 0,
        limit: int = 100,
        cursor: str | None = None,
    ) -> MemoryPage:
        """List memories, page by page; see `Runtime.memories`."""
        query = MemoryQuery(namespace, prefix, updated_after, limit, cursor).check()
        return cast(
            MemoryPage, call(self._core, "await runtime.memories(…)", partial(list_memories, self._core, query))
        )

    def erase(
        self,
        ids: Iterable[str] | None = None,
        *,
        namespace: str = "",
        prefix: str | None = None,
        forks: bool = False,
        dry_run: bool = False,
    ) -> Erasure:
        """Delete memories for good; see `Runtime.erase`."""
        if ids is not None and not isinstance(ids, str):
            ids = tuple(ids)  # here: whatever it comes from must not hold up the loop
        run = partial(erase, self._core, ids, namespace, prefix, dry_run=dry_run, forks=forks)
        return cast(Erasure, call(self._core, "await runtime.erase(…)", run))

    def erase_all(self, *, confirm: str, namespace: str | None = None) -> Erasure:
        """Erase every memory of a namespace, or of the whole store; see `Runtime.erase_all`."""
        run = partial(erase_all, self._core, confirm, namespace)
        return cast(Erasure, call(self._core, "await runtime.erase_all(…)", run))

    def watch(
        self, namespace: str | None = None, prefix: str = "", timeout: Duration | None = None
    ) -> SyncRuntimeWatch:
        """Return a watch of many memories, to be opened by `with` and iterated inside; see `Runtime.watch`.

        Args:
            namespace: only that one; None: all.
            prefix: only ids that begin with it.
            timeout: seconds without a notice after which the iterator ends; None: it waits for ever.
        """
        return SyncRuntimeWatch(self._core, FeedReader(self._core, namespace, prefix), timeout)

    def search(
        self,
        text: str,
        *,
        namespace: str | None = None,
        prefix: str = "",
        limit: int = 20,
        cursor: str | None = None,
    ) -> SearchPage:
        """Find what was said; see `Runtime.search`."""
        run = partial(search, self._core, search_query(text, namespace, prefix, limit, cursor))
        return cast(SearchPage, call(self._core, "await runtime.search(…)", run))

    def stats(self) -> RuntimeStats:
        """Return the runtime's counters at this instant; still after closing."""
        if self._core.closed:
            return self._core.stats()
        return cast(RuntimeStats, call(self._core, "runtime.stats()", in_loop(self._core.stats)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} store={self._core.store.describe()!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a runtime can't be pickled; open one in each process")


@contextmanager
def open_sync_runtime(
    store: str | Store | None = None,
    *,
    backend: Literal["asyncio", "uvloop", "trio"] = "asyncio",
    backend_options: Mapping[str, Any] | None = None,
    **options: Unpack[RuntimeOptions],
) -> Iterator[SyncRuntime]:
    """Open a runtime for a plain script or threads, on an event loop in a thread of its own.

    Args:
        store: as for `open_runtime`.
        backend: "asyncio", "uvloop" or "trio".
        backend_options: passed on to `anyio.run`.
        options: as for `open_runtime`.

    Raises:
        InvalidArgumentError: an unknown backend, option or store.
        MissingExtraError: the backend is not installed.
        StoreError: the store can't be opened.
    """
    core = make_core(store, options)
    name, loop_options = _backend(backend, backend_options)
    with start_blocking_portal(name, loop_options) as portal, portal.wrap_async_context_manager(core):
        yield SyncRuntime(core)


def _backend(backend: str, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    loop_options = dict(options or {})
    if backend not in ("asyncio", "uvloop", "trio"):
        raise InvalidArgumentError(f"unknown backend {backend!r}; known are 'asyncio', 'uvloop', 'trio'")
    if backend != "asyncio" and importlib.util.find_spec(backend) is None:
        raise MissingExtraError(f"the backend {backend!r} is not installed; pip install {backend}")
    if backend == "uvloop":
        return "asyncio", {"use_uvloop": True, **loop_options}
    return backend, loop_options

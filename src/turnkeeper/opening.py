"""The front door: open a runtime, get handles."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Literal, NoReturn, Self, Unpack

from turnkeeper.config import RuntimeOptions
from turnkeeper.memory import ChatMemory
from turnkeeper.names import memory_name
from turnkeeper.registry import Erasure, MemoryPage, MemoryQuery, erase, erase_all, list_memories
from turnkeeper.runtime import RuntimeCore, make_core
from turnkeeper.searching import SearchPage, search, search_query
from turnkeeper.stats import RuntimeStats
from turnkeeper.stores import Store
from turnkeeper.sync import SyncRuntime
from turnkeeper.watches import FeedReader, RuntimeWatch
from turnkeeper.windows import Window

__all__ = ["Runtime", "open_runtime"]


class Runtime:
    """Owns the store and one actor for each memory in use. Made by `open_runtime`; entered and left by one task.

    Belongs to the event loop in which it is entered; `runtime.sync` serves other threads.
    """

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
    ) -> ChatMemory:
        """Return a handle to a memory, which need not exist yet; no I/O.

        Args:
            memory_id: 1-512 bytes of UTF-8 without control characters, compared byte for byte.
            namespace: keeps tenants apart; the same rules, and may be empty.
            window: what this handle shows, instead of the runtime's window.
            history: "keep": the store keeps what the window evicts; "window": a write through this handle removes
                what its window evicts, in the same commit, for good and for every handle, but for the current system
                message. None: the runtime's `history`.

        Raises:
            InvalidMemoryIdError: id or namespace break the rules.
            InvalidArgumentError: `history="window"` without a window that has a limit.
        """
        return ChatMemory(self._core, memory_name(memory_id, namespace), window, history)

    async def memories(
        self,
        namespace: str | None = None,
        prefix: str = "",
        *,
        updated_after: int = 0,
        limit: int = 100,
        cursor: str | None = None,
    ) -> MemoryPage:
        """List memories, page by page, in byte order of namespace and id; nothing is loaded.

        Each memory that is there all the while is listed once, whatever comes and goes meanwhile.

        Args:
            namespace: only that one; None: all.
            prefix: only ids that begin with it, byte for byte.
            updated_after: only those with an entry later than this, in microseconds since the epoch, such as
                `metadata().updated_at`.
            limit: at most so many, 1 to 10 000.
            cursor: the last page's; None: from the beginning.

        Raises:
            InvalidArgumentError: an argument is out of range, or the cursor is none.
        """
        return await list_memories(self._core, MemoryQuery(namespace, prefix, updated_after, limit, cursor).check())

    async def erase(
        self,
        ids: Iterable[str] | None = None,
        *,
        namespace: str = "",
        prefix: str | None = None,
        forks: bool = False,
        dry_run: bool = False,
    ) -> Erasure:
        """Delete memories for good: the names, every entry, and the metadata, so that nothing in the store shows them.

        Each goes through its actor, in turn with its other requests, so that no writer that is late brings anything
        back. Receipts of idempotency keys stay until they expire: a hash of the name and of the content is all they
        have, and a request repeated with its key creates nothing. Cancelled or failing, what was deleted stays so:
        erase again.

        Args:
            ids: which; or
            prefix: all whose ids begin with it, byte for byte; not empty.
            namespace: theirs.
            forks: also the memories that were forked off them, and so on.
            dry_run: only tell what would be erased.

        Returns:
            Which memories there were; and what kept the store from making them unreadable in its files.

        Raises:
            InvalidArgumentError: neither or both of ids and prefix, or an empty prefix.
        """
        return await erase(self._core, ids, namespace, prefix, dry_run=dry_run, forks=forks)

    async def erase_all(self, *, confirm: str, namespace: str | None = None) -> Erasure:
        """Erase every memory of a namespace, or of the whole store.

        Args:
            confirm: the namespace's name again, or "every conversation".
            namespace: which; None: all.

        Raises:
            InvalidArgumentError: `confirm` does not say so; nothing was changed.
        """
        return await erase_all(self._core, confirm, namespace)

    def watch(self, namespace: str | None = None, prefix: str = "") -> RuntimeWatch:
        """Return a watch of many memories, to be opened by `async with` and iterated inside: a `Notice` of each change.

        Args:
            namespace: only that one; None: all.
            prefix: only ids that begin with it.

        Raises:
            InvalidMemoryIdError: the namespace breaks the rules.
            InvalidArgumentError: `prefix` is no text.
        """
        return RuntimeWatch(FeedReader(self._core, namespace, prefix))

    async def search(
        self,
        text: str,
        *,
        namespace: str | None = None,
        prefix: str = "",
        limit: int = 20,
        cursor: str | None = None,
    ) -> SearchPage:
        """Find what was said, the newest first: entries whose texts have all the words, in all of the log.

        Only where the store has an index: on SQLite with `?search=true`, off by default. Words are compared without
        case and diacritics. Operators of the store's own query language have no meaning.

        Args:
            text: the words.
            namespace: only there; None: everywhere.
            prefix: only memories whose ids begin with it, byte for byte.
            limit: at most so many hits, 1 to 1 000.
            cursor: the last page's; None: from the newest.

        Raises:
            InvalidArgumentError: an argument is out of range, or there is no word.
            StoreError: the store has no search.
        """
        return await search(self._core, search_query(text, namespace, prefix, limit, cursor))

    @property
    def sync(self) -> SyncRuntime:
        """The blocking facade of this runtime, for every thread but the event loop's own."""
        return SyncRuntime(self._core)

    def stats(self) -> RuntimeStats:
        """Return the counters of this instant; still after closing."""
        return self._core.stats()

    async def __aenter__(self) -> Self:
        """Open the store and start. Cancelled or failing, it leaves nothing open.

        Raises:
            StoreInUseError: another runtime owns the store.
            StoreFormatError: the store is foreign or newer.
            StoreUnavailableError: it can't be reached or written.
            RuntimeUsageError: this runtime was entered before.
        """
        await self._core.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop accepting, drain for at most `close_timeout`, fail the rest with `RuntimeClosedError`, close the store.

        Shielded from cancellation; a store that stalls can't hold it.

        Raises:
            RuntimeUsageError: left by another task than the one that entered; the runtime stays open.
        """
        self._core.check_leaving_task()
        await self._core.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} store={self._core.store.describe()!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a runtime can't be pickled; open one in each process")


def open_runtime(store: str | Store | None = None, **options: Unpack[RuntimeOptions]) -> Runtime:
    """Make a runtime; `async with` opens it.

    Args:
        store: a URL such as `sqlite:///chats.db` (relative), `sqlite:////var/lib/chats.db` (absolute) or `memory:`,
            a `Store` of your own, or None: in memory, which is said once at INFO.
        options: see `turnkeeper.Settings` and docs/configuration.md; durations are seconds or a `timedelta`.

    Raises:
        InvalidArgumentError: an option is unknown or out of range, or the URL names no store.
    """
    return Runtime(make_core(store, options))

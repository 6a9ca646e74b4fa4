"""Where the actors of a user's store live: in a thread of ours for all such stores, or in a loop of the user's."""

from __future__ import annotations

import weakref
from itertools import count
from types import TracebackType
from typing import Final, NoReturn, Self

from turnkeeper.compat.default_runtime import CompatRuntime, _default, _DefaultRuntime, process, runtime_for
from turnkeeper.compat.langchain4j.list_core import ListCore
from turnkeeper.compat.langchain4j.stores import ChatMemoryStore
from turnkeeper.errors import InvalidArgumentError, RuntimeUsageError
from turnkeeper.opening import Runtime
from turnkeeper.stores import InMemoryStore

__all__ = ["Home", "StoreHost", "home_of"]

_SHARED: Final = "chat memory stores"

_numbers: Final = count(1)


class _SharedRuntime(_DefaultRuntime):
    """The process-wide runtime of all stores that are not hosted."""

    def __init__(self) -> None:
        super().__init__(InMemoryStore(), ours=True)

    def _make(self) -> Runtime:
        return Runtime(ListCore())


class Home:
    """What is known of one store: all memories on it share this.

    Attributes:
        number: tells stores apart.
    """

    __slots__ = ("__weakref__", "_host", "_used", "number")

    def __init__(self) -> None:
        """Start without a host."""
        self.number: int = next(_numbers)
        self._host: CompatRuntime | None = None
        self._used = False

    def runtime(self) -> CompatRuntime:
        """Return the runtime of the store's actors: that of its host, also when it is closed, or the shared one."""
        if self._host is None and not self._used:
            with process().lock:
                self._used = self._host is None
        return self._host or _shared()

    def check_free(self) -> None:
        """Refuse a host where actors of this store may live already.

        Raises:
            RuntimeUsageError: it is hosted, or was used without a host.
        """
        if self._used:
            raise RuntimeUsageError("this store was used without a host before: enter its StoreHost first")
        if self._host is not None and not self._host.core.closed:
            raise RuntimeUsageError("this store has a host")

    def settle(self, host: CompatRuntime) -> None:
        """Have the actors live there from now on.

        Raises:
            RuntimeUsageError: as for `check_free`.
        """
        with process().lock:
            self.check_free()
            self._host = host


class StoreHost:
    """Lets the actors of a user's store live in the event loop in which it is entered, as long as it is open.

    So the store's async twins are awaited there, next to the connections that belong to that loop, on asyncio, uvloop
    or trio. Enter it before the store is used; entered and left by one task.

    ```
    async with StoreHost(store):
        await MessageWindowChatMemory(10, id="user-42", chat_memory_store=store).add_async(message)
    ```

    Args:
        store: a store of your own.

    Raises:
        InvalidArgumentError: it is no `ChatMemoryStore`.
    """

    def __init__(self, store: ChatMemoryStore) -> None:
        """Start nothing yet."""
        if not isinstance(store, ChatMemoryStore):
            raise InvalidArgumentError(f"a host is for a ChatMemoryStore, not a {type(store).__name__}")
        self._home = home_of(store)
        self._core = ListCore()

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            RuntimeUsageError: the store is hosted, or was used without a host.
        """
        self._home.check_free()
        await self._core.open()
        try:
            self._home.settle(runtime_for(runtime=Runtime(self._core)))
        except BaseException:
            await self._core.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop accepting, drain for at most 10 seconds, fail the rest with `RuntimeClosedError`.

        From now on memories on this store raise that, until it is hosted again. Shielded from cancellation.

        Raises:
            RuntimeUsageError: left by another task than the one that entered.
        """
        self._core.check_leaving_task()
        await self._core.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a host belongs to its event loop and can't be pickled or copied")


_homes: Final[dict[int, tuple[weakref.ref[ChatMemoryStore], Home]]] = {}


def home_of(store: ChatMemoryStore) -> Home:
    """Return what is known of a store. Stores are told apart by identity, as they need not be hashable.

    Takes no lock, since the garbage collector may run a destructor of the user's in any place: each step is one
    operation of a dict. An entry is gone before its store's place in memory is free for another one.
    """
    key = id(store)
    known = _homes.get(key)
    if known is None:
        known = _homes.setdefault(key, (weakref.ref(store, lambda gone: _forget(key, gone)), Home()))
    return known[1]


def _forget(key: int, gone: weakref.ref[ChatMemoryStore]) -> None:
    known = _homes.get(key)
    if known is not None and known[0] is gone:  # else it lost the race of two first uses
        del _homes[key]


def _shared() -> CompatRuntime:
    # A default runtime like the others, so that they are closed, and left to the parent at a fork, together.
    return _default.get(_SHARED) or _default.setdefault(_SHARED, _SharedRuntime())

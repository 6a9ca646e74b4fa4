"""The registry: one memory for each id, made by the user's provider when it is first asked for."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Hashable
from concurrent.futures import Future
from threading import get_ident
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Protocol
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint

from turnkeeper.compat.default_runtime import Process, process
from turnkeeper.compat.langchain4j.calling import wait_for
from turnkeeper.compat.langchain4j.ids import key_of
from turnkeeper.compat.langchain4j.memory import ChatMemory
from turnkeeper.compat.langchain4j.window_memory import DEFAULT_ID, WindowChatMemory
from turnkeeper.errors import InvalidArgumentError, RuntimeUsageError

__all__ = ["ChatMemoryProvider", "ChatMemoryService"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")


class ChatMemoryProvider(Protocol):
    """Makes the memory of an id: any function of the id, also an async one."""

    def __call__(self, memory_id: Any, /) -> ChatMemory | Awaitable[ChatMemory]:
        """Return the memory of this id."""
        ...


class _Known(NamedTuple):
    memory_id: Hashable
    memory: ChatMemory


class _Creation:
    """A call of the provider that is under way.

    Attributes:
        ended: done when it has ended, well or not.
        thread: where the provider runs.
        task: the task that awaits it; 0: it is called blocking.
    """

    __slots__ = ("ended", "task", "thread")

    def __init__(self, task: int) -> None:
        self.ended: Future[None] = Future()
        self.thread: int = get_ident()
        self.task: int = task


class ChatMemoryService:
    """Finds the memory of an id, or has it made: by one call of the provider, however many ask at once.

    Ids of different types are different ids: 1, "1" and True. None is none. Any number of threads and tasks may use
    one service. A memory is let go when more are held than `max_memories`, the one asked for longest ago first. One
    with a store is made again when it is next asked for, and its conversation goes on. **The conversation of a memory
    without a store ends**, unless somebody else still holds that memory: then it is found again, so that no
    conversation ever has two.

    Args:
        source: a `ChatMemoryProvider`, or one memory that every id gets.
        max_memories: how many memories are held at most, so that ids that never come back don't fill the RAM. None:
            no bound.

    Raises:
        InvalidArgumentError: the source is neither, or the bound is below 1.
    """

    DEFAULT: ClassVar[str] = DEFAULT_ID
    """The id under which the one memory is known."""

    def __init__(self, source: ChatMemoryProvider | ChatMemory, *, max_memories: int | None = 10_000) -> None:
        """Start empty, or with the one memory."""
        if not isinstance(source, ChatMemory) and not callable(source):
            raise InvalidArgumentError(
                f"a service is for a ChatMemory, or a function that makes them, not for a {type(source).__name__}"
            )
        if max_memories is not None and (type(max_memories) is not int or max_memories < 1):
            raise InvalidArgumentError("max_memories must be a number of at least 1, or None")
        self._only: ChatMemory | None = source if isinstance(source, ChatMemory) else None
        self._provider: Any = source
        self._max_memories: int | None = max_memories
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._let_go: WeakValueDictionary[Hashable, ChatMemory] = WeakValueDictionary()
        self._creations: dict[Hashable, _Creation] = {}
        self._warned = False
        self._process: Process = process()
        # Reentrant, because the garbage collector may run a destructor of the user's in any place.
        self._own_lock: threading.RLock = threading.RLock()
        if self._only is not None:
            self._known[key_of(self.DEFAULT)] = _Known(self.DEFAULT, self._only)

    # Finding and making

    def get_or_create_chat_memory(self, memory_id: Hashable) -> ChatMemory:
        """Return the memory of an id, made by the provider if there is none.

        The provider runs in this thread, and holds up only those who want the same id. What it raises is raised here,
        and the next in line tries again.

        Raises:
            InvalidMemoryIdError: None, or it can't be hashed.
            InvalidArgumentError: the provider returned no memory.
            RuntimeUsageError: the provider is async, or makes the memory of this id further up in this very thread.
        """
        key = key_of(memory_id)
        while True:
            found = self._find_or_claim(key, memory_id)
            if isinstance(found, ChatMemory):
                return found
            creation, mine = found
            if mine:
                try:
                    made = self._provider(memory_id)
                    if inspect.isawaitable(made):
                        _drop(made)
                        raise RuntimeUsageError(
                            "the provider is async: use 'await service.get_or_create_chat_memory_async(…)'"
                        )
                    return self._install(key, memory_id, made)
                finally:
                    self._end(key, creation)
            if creation.thread == get_ident():
                raise _waits_for_itself()
            creation.ended.result()

    async def get_or_create_chat_memory_async(self, memory_id: Hashable) -> ChatMemory:
        """Return the memory of an id, made by the provider if there is none; it may be async.

        A blocking provider runs in this task. Others who want the same id wait without blocking their event loops. A
        caller that is cancelled while its provider runs leaves the next in line to try.

        Raises:
            InvalidMemoryIdError: None, or it can't be hashed.
            InvalidArgumentError: the provider returned no memory.
            RuntimeUsageError: this very task makes the memory of this id.
        """
        key = key_of(memory_id)
        task = anyio.get_current_task().id
        while True:
            found = self._find_or_claim(key, memory_id, task)
            if isinstance(found, ChatMemory):
                await checkpoint()
                return found
            creation, mine = found
            if mine:
                try:
                    made = self._provider(memory_id)
                    if inspect.isawaitable(made):
                        made = await made
                    return self._install(key, memory_id, made)
                finally:
                    self._end(key, creation)
            if creation.thread == get_ident() and creation.task in (task, 0):
                raise _waits_for_itself()
            await wait_for(creation.ended)

    def _find_or_claim(self, key: Hashable, memory_id: Hashable, task: int = 0) -> ChatMemory | tuple[_Creation, bool]:
        """Return the memory; or the creation of it that is under way, and whether that is now the caller's to do."""
        if self._only is not None:
            return self._only
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known.memory
            held = self._let_go.pop(key, None)
            if held is not None:
                self._hold(key, memory_id, held)
                return held
            creation = self._creations.get(key)
            if creation is not None:
                return creation, False
            creation = self._creations[key] = _Creation(task)
            return creation, True

    def _install(self, key: Hashable, memory_id: Hashable, made: object) -> ChatMemory:
        if not isinstance(made, ChatMemory):
            raise InvalidArgumentError(f"the provider returned a {type(made).__name__}, not a ChatMemory")
        with self._lock:
            self._hold(key, memory_id, made)
        return made

    def _end(self, key: Hashable, creation: _Creation) -> None:
        with self._lock:
            if self._creations.get(key) is creation:
                del self._creations[key]
        creation.ended.set_result(None)

    def _hold(self, key: Hashable, memory_id: Hashable, memory: ChatMemory) -> None:
        self._known[key] = _Known(memory_id, memory)
        while self._max_memories is not None and len(self._known) > self._max_memories:
            oldest, (_, leaving) = self._known.popitem(last=False)
            self._let_go[oldest] = leaving
            if isinstance(leaving, WindowChatMemory) and leaving.volatile and not self._warned:
                self._warned = True
                logger.warning(
                    "more than %d memories: the one asked for longest ago has no store and ends unless somebody holds "
                    "it; give memories a store, or raise max_memories (said once)",
                    self._max_memories,
                )

    # Looking and letting go

    def get_chat_memory(self, memory_id: Hashable) -> ChatMemory | None:
        """Return the memory of an id, or None; never makes one. The one memory is known as "default" alone.

        Raises:
            InvalidMemoryIdError: None, or it can't be hashed.
        """
        key = key_of(memory_id)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known.memory
            return self._let_go.get(key)

    def evict_chat_memory(self, memory_id: Hashable) -> ChatMemory | None:
        """Forget the memory of an id and return it, or None; what its store holds stays. The one memory stays, too.

        Raises:
            InvalidMemoryIdError: None, or it can't be hashed.
        """
        key = key_of(memory_id)
        if self._only is not None:
            return None
        with self._lock:
            known = self._known.pop(key, None)
            return self._let_go.pop(key, None) if known is None else known.memory

    def clear_all(self) -> None:
        """Clear every memory, and forget it; the one memory is only cleared.

        What a memory raises is raised here: those before it are cleared and forgotten, those after it are not.
        """
        with self._lock:
            memories = [(key, known.memory) for key, known in self._known.items()] + list(self._let_go.items())
        for key, memory in memories:
            memory.clear()
            if self._only is None:
                self._forget(key, memory)

    def _forget(self, key: Hashable, memory: ChatMemory) -> None:
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.memory is memory:
                del self._known[key]
            if self._let_go.get(key) is memory:
                del self._let_go[key]

    def get_chat_memory_ids(self) -> list[Hashable]:
        """Return the ids of the memories that are held, as they were given."""
        with self._lock:
            return [known.memory_id for known in self._known.values()]

    def get_chat_memories(self) -> list[ChatMemory]:
        """Return the memories that are held."""
        with self._lock:
            return [known.memory for known in self._known.values()]

    @property
    def _lock(self) -> threading.RLock:
        if self._process is not process():
            with process().lock:
                if self._process is not process():
                    # A forked child: whoever held the lock, or was making a memory, is not here.
                    self._own_lock = threading.RLock()
                    self._creations = {}
                    self._process = process()
        return self._own_lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memories={len(self._known)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a service belongs to its process and can't be pickled or copied")


def _waits_for_itself() -> RuntimeUsageError:
    return RuntimeUsageError(
        "the memory of this id is being made further up in this very thread or task, so waiting for it would never "
        "end; in tasks, use 'await service.get_or_create_chat_memory_async(…)' alone"
    )


def _drop(awaitable: object) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()

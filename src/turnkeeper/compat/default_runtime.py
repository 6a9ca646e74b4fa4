"""The runtime behind drop-in memories: one for each store in a process, opened at first use in a thread of its own.

Blocking calls work from every thread, also one whose event loop is running, since the loop they wait for is another.
`runtime_for` finds a process-wide runtime, or wraps one that the user opened.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from anyio.lowlevel import checkpoint

from turnkeeper.compat.loop_thread import LoopThread, starting
from turnkeeper.compat.reaper import Reaper
from turnkeeper.errors import InvalidArgumentError, RuntimeClosedError, RuntimeUsageError, TurnkeeperError
from turnkeeper.log import Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.requests import DELETE, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import InMemoryStore, Store, store_from_url
from turnkeeper.sync import SyncRuntime

__all__ = ["CompatRuntime", "Process", "close_default_runtimes", "process", "runtime_for"]

_STOP_SECONDS: Final = 15.0
"""Longer than a runtime's `close_timeout`: a store that stalls can't hold the end of the process."""

_DELETE_SECONDS: Final = 30.0


class Process:
    """This process; a forked child is another one, with another of these.

    Whatever was made in another process may be half changed, and its locks held, by a thread that is not here.

    Attributes:
        lock: held while something is made anew; nobody holds it when a process begins.
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        """Begin."""
        # Reentrant, as all locks here: the collector may run a destructor of the user's, which uses another memory.
        self.lock: threading.RLock = threading.RLock()


class CompatRuntime(ABC):
    """A runtime as drop-in memories use it.

    Attributes:
        forgets: what is stored ends with this process.
        identity: lives as long as the memories do: the key for whatever else has to.
        unused: nothing can have been stored through this.
    """

    forgets: bool
    identity: object
    unused: bool

    @property
    @abstractmethod
    def sync(self) -> SyncRuntime:
        """The runtime for blocking code. Opens it where that is ours to do.

        Raises:
            RuntimeClosedError: the user closed it, or the interpreter is at its end.
            StoreError: the store can't be opened.
        """

    @property
    def core(self) -> RuntimeCore:
        """The runtime's inside."""
        return self.sync._core  # the facade's own modules are the only others that reach in

    def check_thread(self, instead: str) -> None:
        """Refuse a blocking call on the thread of this runtime's own event loop: it could never return.

        Args:
            instead: what to call there, such as "await memory.asave_context(…)".

        Raises:
            RuntimeUsageError: this is that thread.
        """
        if self.core.on_loop_thread():
            raise RuntimeUsageError(
                f"a blocking call on the event loop's own thread would never return; use '{instead}'"
            )

    def delete_with(self, owner: object, name: MemoryName) -> None:
        """Delete a memory once `owner` is collected. That may happen in any thread and never waits."""
        if not self.unused:
            _reaper.start()
        weakref.finalize(owner, _reaper.put, self, name).atexit = False

    def delete(self, names: Sequence[MemoryName]) -> None:
        """Delete memories and drop them from RAM; those that can't be deleted stay."""
        core = self.core
        core.check_reachable()
        core.portal.start_task_soon(_delete, core, names).result(_DELETE_SECONDS)


class _GivenRuntime(CompatRuntime):
    """A runtime that the user opened and closes."""

    def __init__(self, runtime: SyncRuntime) -> None:
        self._sync = runtime
        self.identity: object = runtime._core
        self.unused: bool = False
        self.forgets: bool = isinstance(runtime._core.store, InMemoryStore)

    @property
    def sync(self) -> SyncRuntime:
        return self._sync


class _DefaultRuntime(CompatRuntime):
    """The process-wide runtime of one store: opened at first use, and again after it was closed and after a fork."""

    def __init__(self, store: Store, *, ours: bool) -> None:
        self._store = store
        self._ours = ours
        self._lock = threading.RLock()
        self._opening = False
        self._thread: LoopThread[Runtime] | None = None
        self._undeleted: deque[MemoryName] = deque()
        self.identity: object = self
        self.unused: bool = True
        self.forgets: bool = isinstance(store, InMemoryStore)

    @property
    def sync(self) -> SyncRuntime:
        thread = self._thread
        return (self._open() if thread is None else thread).value.sync

    def _open(self) -> LoopThread[Runtime]:
        with self._lock:
            if self._thread is None:
                if _exiting:
                    raise RuntimeClosedError("the interpreter is at its end; nothing was changed")
                if self._opening:
                    raise RuntimeUsageError("a destructor used the runtime while its thread was opening it")
                self._opening = True
                self.unused = False
                try:
                    self._thread = LoopThread("turnkeeper default runtime", self._make)
                finally:
                    self._opening = False
                if self.forgets:
                    _reaper.start()
                while self._undeleted:
                    _reaper.put(self, self._undeleted.popleft())
            return self._thread

    def delete(self, names: Sequence[MemoryName]) -> None:
        if self._thread is None:  # closed: that is no reason to open it
            self._undeleted.extend(names)
        else:
            super().delete(names)

    def _make(self) -> Runtime:
        if not self._ours:
            return open_runtime(self._store)
        if self.forgets:
            # The same rows in a new object: after a fork, the runtime that the parent opened still holds the old one.
            self._store = copy.copy(self._store)
            return open_runtime(self._store)
        # An opened store holds connections, which stay with the process that opened it: this one is never opened.
        return open_runtime(copy.deepcopy(self._store))

    def close(self) -> None:
        """Close it; the next use opens it again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(_STOP_SECONDS)

    def start_anew(self) -> None:
        """Leave the runtime to the parent: called in a forked child."""
        self._lock = threading.RLock()
        self._opening = False
        self._thread = None


class _ForkableStore(InMemoryStore):
    """Is never in the middle of a commit when the process forks."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit each slice."""
        with _committing:
            return super().commit(slices, receipt_ttl=receipt_ttl)


async def _delete(core: RuntimeCore, names: Sequence[MemoryName]) -> None:
    for name in names:
        with contextlib.suppress(TurnkeeperError):
            await core.submit(name, Request(DELETE))
    await checkpoint()  # the actors park
    for name in names:
        core.unload(name)


_exiting = False
_process = Process()
_committing: Final = threading.RLock()
_reaper: Final = Reaper()
_default: Final[dict[Hashable, _DefaultRuntime]] = {}
_given: Final[WeakValueDictionary[RuntimeCore, _GivenRuntime]] = WeakValueDictionary()


def runtime_for(store: str | Store | None = None, runtime: Runtime | SyncRuntime | None = None) -> CompatRuntime:
    """Find the process-wide runtime of a store, or take one that the user opened; does no I/O.

    Args:
        store: a store's URL, a `Store` of your own, or None: in memory.
        runtime: an open runtime, instead of a store.

    Raises:
        InvalidArgumentError: both were given, or one that is neither.
        InvalidStoreURLError: the URL names no store.
    """
    if runtime is not None:
        if store is not None:
            raise InvalidArgumentError("give a store or a runtime, not both: a runtime has its store")
        if not isinstance(runtime, (Runtime, SyncRuntime)):
            raise InvalidArgumentError(f"a runtime is a Runtime or SyncRuntime, not a {type(runtime).__name__}")
        given = runtime if isinstance(runtime, SyncRuntime) else runtime.sync
        with _process.lock:
            return _given.setdefault(given._core, _GivenRuntime(given))
    if not isinstance(store, (str, Store)) and store is not None:
        raise InvalidArgumentError(f"a store is a URL or a Store, not a {type(store).__name__}")
    named = store if isinstance(store, Store) else store_from_url("memory:" if store is None else store)
    key: Hashable
    if named is store:
        key = named
    elif isinstance(named, InMemoryStore):
        key, named = InMemoryStore, _ForkableStore()
    else:
        key = named.describe(), named.shared
    with _process.lock:
        return _default.setdefault(key, _DefaultRuntime(named, ours=named is not store))


def close_default_runtimes() -> None:
    """Close the process-wide runtimes: stores are let go, and acknowledged messages are where they belong.

    What is kept in memory stays, and the next use of a drop-in memory opens its runtime again. At the end of the
    interpreter this happens by itself, and for good.
    """
    for runtime in list(_default.values()):
        runtime.close()


def process() -> Process:
    """Return what stands for this process."""
    return _process


def _at_exit() -> None:
    global _exiting
    _exiting = True
    _reaper.stop(_STOP_SECONDS)
    close_default_runtimes()


def _start_anew_in_child() -> None:
    global _process
    _after_fork()
    _process = Process()
    _reaper.start_anew()
    for runtime in list(_default.values()):
        runtime.start_anew()


def _before_fork() -> None:
    starting.acquire()
    _committing.acquire()


def _after_fork() -> None:
    _committing.release()
    starting.release()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_start_anew_in_child)

"""The runtime: owns the store, the actors and their tasks, and sees to it that nobody is left waiting."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import checkpoint

from turnkeeper.actor import Actor
from turnkeeper.admission import Admission
from turnkeeper.committer import Committer
from turnkeeper.compaction import Compactor
from turnkeeper.config import Settings
from turnkeeper.errors import (
    InvalidArgumentError,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreInUseError,
    closed,
)
from turnkeeper.log import StoredReceipt
from turnkeeper.names import MemoryName
from turnkeeper.notices import Notices
from turnkeeper.reader import Reader
from turnkeeper.requests import CLOSE_TURN, READ, READING, Request
from turnkeeper.residency import Residency
from turnkeeper.retention import Keeper
from turnkeeper.services import Inbox, Services
from turnkeeper.stats import RuntimeStats
from turnkeeper.storage import Storage
from turnkeeper.stores import Reseal, Store, store_from_url
from turnkeeper.turnstile import OpenTurn
from turnkeeper.watching import Watching
from turnkeeper.windows import Messages, Window

__all__ = ["RuntimeCore", "make_core"]

T = TypeVar("T")

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_NEW: Final = "not opened yet"
_OPENING: Final = "being opened"
_OPEN: Final = "open"
_CLOSING: Final = "closing"
_CLOSED: Final = "closed"
_FORKED: Final = "the parent process's"

_opened: Final[WeakSet[RuntimeCore]] = WeakSet()


def _disown_in_child() -> None:
    for core in list(_opened):
        core.disown()


# Loop, threads and locks stay with the parent. Asking for the process id at every request would cost more.
os.register_at_fork(after_in_child=_disown_in_child)


class RuntimeCore:
    """Finds, starts, unloads and drains actors; an async context manager that is entered and left by one task.

    Its tasks live in a task group of a keeper task, shielded from the opener's scope: when that is cancelled, what
    was taken still runs to its end before the runtime closes.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings = settings
        self.store = store
        self._state = _NEW
        self._thread = 0
        self._task = 0
        self._failed_at_close = 0
        self._storage = Storage(store, settings)
        self.portal: BlockingPortal
        self._group: TaskGroup  # the keeper's
        self._services: Services
        self._residency: Residency
        self._admission: Admission
        self._compactor: Compactor
        self._keeper: Keeper
        self.watching: Watching
        self._notices: Notices | None = None

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.check_leaving_task()
        await self.close()

    async def open(self) -> None:
        """Open the store and start the runtime's tasks. Cancelled or failing, it leaves nothing open."""
        if self._state is not _NEW:
            raise RuntimeUsageError(f"this runtime is {self._state}; open a new one with open_runtime()")
        if any(other.store is self.store and other.holds_store() for other in _opened):
            raise StoreInUseError(f"{self.store.describe()}: this store object is in use by another runtime")
        self._state = _OPENING
        _opened.add(self)
        self._thread = get_ident()
        self._task = anyio.get_current_task().id
        self._stop = anyio.Event()
        # The running loop's own class: `anyio.Event()` would find out at every request which loop is running.
        self._make_event = type(self._stop)
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        try:
            await self._storage.open()
            self._prepare()
            self._outer = anyio.create_task_group()
            await self._outer.__aenter__()
        except BaseException:
            self._state = _NEW  # whatever was in the way, it may be tried again
            self._storage.begin_closing()
            raise
        self._outer.start_soon(self._keep)
        try:
            with anyio.CancelScope(shield=True):  # a pass of the loop; half open there would be no way out
                await self._ready.wait()
        except BaseException:  # a native cancel, which no shield stops
            await self.close()
            raise
        self._state = _OPEN

    def spawn_task(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run a task of the runtime's own until it closes."""
        self._clean.run(self._group.start_soon, function, *arguments)

    @property
    def compactor(self) -> Compactor:
        """What compacts this runtime's memories."""
        self.check_usable()
        return self._compactor

    def holds_store(self) -> bool:
        """Whether the store is open, or on its way there or back."""
        return self._storage.is_open

    def disown(self) -> None:
        """Mark this runtime as belonging to the parent process: called in a forked child."""
        self._state = _FORKED

    def _prepare(self) -> None:
        settings, store, storage = self.settings, self.store, self._storage
        self._admission = Admission(settings)
        strong = settings.consistency == "strong" if settings.consistency else store.shared
        self._committer = Committer(store, settings, storage.writing, storage.reading)
        self._reader = Reader(store, settings, storage.reading)
        services = self._services = Services(
            settings,
            self._committer,
            self._reader,
            self._admission,
            self._spawn,
            self._make_event,
            strong=strong,
            shared=store.shared,
        )
        if storage.announcing is not None:
            self._notices = services.notices = Notices(store, storage.announcing, self.spawn_task)
            self._committer.announce = self._notices.committed
        self._compactor = Compactor(self, settings.compaction, settings.max_compactions)
        if settings.compaction is not None:
            services.policy = self._compactor.look
        self._keeper = Keeper(self)
        services.expect_policies = self._keeper.expect_policies
        self.watching = Watching(services, self.spawn_task)
        self._residency = services.residency = Residency(settings, lambda name: Actor(name, services))

    async def _keep(self) -> None:
        """Hold the task group of everything that runs, until told to stop.

        Shielded from the opener's scope. Natively cancelled, it takes the runtime down: everybody gets an error.
        """
        # Actors serve many callers: they must not inherit the context variables of the one who opened the runtime.
        self._clean = Context()
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as self._group, BlockingPortal() as self.portal:
                    try:
                        tasks = [self._residency.sweep_for_ever]
                        if not self.store.inline:
                            tasks += [self._committer.flush, self._reader.flush]
                        tasks.append(self._keeper.keep_for_ever)
                        for task in tasks:
                            self._clean.run(self._group.start_soon, self._supervise, task)
                        self._ready.set()
                        await self._stop.wait()
                    finally:
                        self._abort()  # from here on a task that is cancelled is meant to be
                        await self.portal.stop()  # its calls have their answers and only need to hand them on
                        self._group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if self._stop.is_set():
                raise
            logger.error("the runtime's own task was cancelled from outside; the runtime is closed")
        finally:
            self._state = _CLOSED
            self._abort()
            self._ready.set()
            self._ended.set()

    async def _supervise(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run one of the runtime's endless tasks again when somebody cancels it natively."""
        while True:
            try:
                await function()
            except anyio.get_cancelled_exc_class():
                if self._services.stopping or self._state is not _OPEN:
                    raise
                logger.error("a task of the runtime was cancelled from outside; it goes on")
            except Exception as error:
                logger.error("a task of the runtime failed with %s; it goes on", type(error).__name__)

    def _spawn(self, actor: Actor, inbox: Inbox) -> None:
        self._residency.started(actor)
        self._clean.run(self._group.start_soon, actor.run, inbox)

    async def close(self) -> None:
        """Stop accepting, drain until `close_timeout`, fail the rest, close the store.

        Shielded from cancellation, and bounded: a store that stalls is left to its daemon thread. A native cancel in
        here cuts the draining short; everybody is answered all the same.
        """
        if self._state is _OPEN:
            self._state = _CLOSING
        self.watching.close()
        try:
            with anyio.CancelScope(shield=True):
                deadline = anyio.current_time() + self.settings.close_timeout
                self._admission.close()
                self._compactor.close()
                with anyio.CancelScope(deadline=deadline):
                    await self._admission.drained()
                self._abort()
                self._stop.set()
                await self._ended.wait()
                await self._storage.close(deadline)
        finally:
            self._state = _CLOSED
            self._abort()
            self._stop.set()
            self._storage.begin_closing()
            await self._leave_outer()
            if self._failed_at_close:
                logger.warning("closed with %d requests failed after the deadline", self._failed_at_close)

    def check_leaving_task(self) -> None:
        """Refuse to be left by another task than the one that entered: its scopes would be torn."""
        if self._state is _FORKED:
            self.check_reachable()
        if anyio.get_current_task().id != self._task:
            raise RuntimeUsageError(
                "the runtime was entered by another task than the one leaving it; enter and leave it in one task, "
                "for example in your server's lifespan function, not in a fixture or generator that changes tasks"
            )

    def _abort(self) -> None:
        """Answer everybody, in one synchronous step."""
        self._services.stopping = True
        if self._notices is not None:
            self._notices.close()
        self.watching.close()
        self._admission.close()
        self._compactor.close()
        for actor in self._residency.actors():
            if (lease := actor.lease_left()) is not None:
                self._storage.leases_left.append(lease)
            self._failed_at_close += actor.fail_outstanding(closed)
        self._committer.close()
        self._reader.close()

    async def _leave_outer(self) -> None:
        self._outer.cancel_scope.cancel()
        await self._outer.__aexit__(None, None, None)

    # Requests

    def check_usable(self) -> None:
        """Refuse what can't work: a forked child, a foreign thread, a runtime that is not open.

        Raises:
            RuntimeUsageError: used in a forked child, or in another thread than its event loop's, or not entered.
            RuntimeClosedError: closing or closed.
        """
        if self._state is not _OPEN:
            self.check_reachable()
            raise RuntimeClosedError(f"the runtime is {self._state}; nothing was changed")
        if get_ident() != self._thread:
            raise RuntimeUsageError(
                "this runtime belongs to another thread's event loop: call it through runtime.sync from other threads"
            )

    def check_reachable(self) -> None:
        """Refuse what can't work from another thread: a forked child, a runtime that is not open.

        Raises:
            RuntimeUsageError: used in a forked child, or not entered.
            RuntimeClosedError: closed. While it is closing, the loop decides.
        """
        if self._state in (_NEW, _OPENING):
            raise RuntimeUsageError("this runtime is not open: use it inside 'async with open_runtime(…)'")
        if self._state is _FORKED:
            raise RuntimeUsageError("this runtime was opened before os.fork(): open a new one in the child")
        if self._state is _CLOSED:
            raise RuntimeClosedError(f"the runtime is {self._state}; nothing was changed")

    async def submit(self, name: MemoryName, request: Request) -> Any:
        """Put a request into its memory's mailbox and return the answer, or raise it.

        A caller cancelled before the actor takes the request has changed nothing; later the request runs to its end.
        """
        self.check_usable()
        request.done = self._make_event()
        reads = request.op in READING
        if not self._admission.admit(request.size, reads):
            await self._admission.wait(request.size, reads)
            if self._state is not _OPEN:
                self._admission.release(request.size, reads)
                raise RuntimeClosedError(f"the runtime is {self._state}; nothing was changed")
        actor = self._residency.find_or_make(name)
        try:
            if not actor.offer(request):
                await actor.offer_in_turn(request)
            await request.done.wait()
        except BaseException:
            actor.abandon(request)
            raise
        if request.error is not None:
            raise request.error
        return request.result

    async def submit_at_once(self, request: Request) -> Any:
        """Put a request of an open turn before all others of its memory, and return the answer, or raise it.

        It waits for no room: those who take the room may be waiting for this turn. Cancelled before the actor takes
        it, it has changed nothing.
        """
        self.check_usable()
        turn = request.turn
        assert turn is not None
        if request.op != CLOSE_TURN and (refusal := turn.refusal(request.messages)) is not None:
            raise refusal
        request.done = self._make_event()
        self._admission.force(request.size)
        actor = self._residency.find_or_make(turn.name)
        try:
            actor.offer_at_once(request)
            await request.done.wait()
        except BaseException:
            actor.abandon(request)
            raise
        if request.error is not None:
            raise request.error
        return request.result

    async def receipt(self, name: MemoryName, key: str) -> StoredReceipt | None:
        """Look up what an idempotency key stands for.

        Raises:
            StoreError: the store can't be read.
        """
        self.check_usable()
        return await self._reader.receipt(name, key)

    async def look_up(self, job: Callable[[Store], T]) -> T:
        """Run a function of the store in its reading thread, and return what it returns, or raise it.

        What is acknowledged is there; what is under way may be, or not yet. A cancelled caller has changed nothing.

        Raises:
            StoreError: the store can't be read.
        """
        self.check_usable()
        return await self._reader.run(job)

    async def scrub(self) -> str | None:
        """Make what was deleted unreadable in the store's files; return what prevented it.

        Raises:
            StoreError: the store failed, or took too long; then it may still come to it.
        """
        self.check_usable()
        return await self._storage.scrub()

    async def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Put sealed payloads into the place of others; see `Store.reseal`.

        Raises:
            StoreError: the store failed, or took too long; then it may still come to it.
        """
        self.check_usable()
        return await self._storage.reseal(changes)

    @property
    def keeper(self) -> Keeper:
        """What lets go what has expired, and what no policy keeps."""
        return self._keeper

    def leave_turn(self, turn: OpenTurn) -> None:
        """End a turn without a trace of what it had not committed."""
        # Also while closing: who waits for it may go on then.
        actor = self._residency.find(turn.name) if self._state in (_OPEN, _CLOSING) else None
        if actor is None:
            turn.end()
        else:
            actor.leave_turn(turn)

    def make_turn(self, name: MemoryName, max_duration: float) -> OpenTurn:
        """Make a turn, to be opened by a request."""
        self.check_usable()
        return OpenTurn(name, max_duration, self._make_event(), alone=not self.store.shared)

    async def read(self, name: MemoryName, window: Window) -> Messages:
        """Read a view: at once when nothing is pending, else in turn."""
        self.check_usable()
        if not isinstance(window, Window):
            raise InvalidArgumentError(f"a window is a Window, not a {type(window).__name__}")
        actor = self._residency.find(name)
        if actor is not None and (view := actor.quiescent_view(window)) is not None:
            await checkpoint()
            return view
        result = await self.submit(name, Request(READ, window=window))
        assert isinstance(result, Messages)
        return result

    def unload(self, name: MemoryName) -> bool:
        """Drop a memory from RAM now; False when it is not there, or has pending requests."""
        return self._residency.unload(name)

    def on_loop_thread(self) -> bool:
        """Tell whether the calling thread runs this runtime's event loop."""
        return get_ident() == self._thread

    @property
    def closed(self) -> bool:
        """Whether nothing changes any more."""
        return self._state is _CLOSED

    def stats(self) -> RuntimeStats:
        """Return the counters of this instant.

        Raises:
            RuntimeUsageError: not opened yet.
        """
        if self._state in (_NEW, _OPENING):
            self.check_reachable()
        admission, residency = self._admission, self._residency
        commits, reads = self._committer.statistics, self._reader.statistics
        return RuntimeStats(
            running=residency.running,
            resident=len(residency),
            resident_bytes=residency.bytes,
            peak_resident=residency.peak,
            pending=admission.pending,
            pending_bytes=admission.pending_bytes,
            peak_pending=admission.peak_pending,
            peak_pending_bytes=admission.peak_bytes,
            waiting=admission.waiting,
            overloaded=admission.overloaded,
            commits=commits.items,
            commit_groups=commits.groups,
            peak_commit_group=commits.peak,
            reads=reads.items,
            read_groups=reads.groups,
            conflicts=self._services.conflicts,
            unknown_outcomes=self._services.unknown_outcomes,
            acknowledged_lost=self._services.acknowledged_lost,
            unloads=residency.unloads,
            failed_at_close=self._failed_at_close,
            compactions=self._compactor.done,
            compaction_failures=self._compactor.failures,
        )


def make_core(store: str | Store | None, options: Mapping[str, Any]) -> RuntimeCore:
    """Check a store (or its URL; None: in memory) and options, and make a runtime of them, not opened yet.

    Raises:
        InvalidArgumentError: an option is unknown or out of range, or the URL names no store.
    """
    settings = Settings.of(options)
    if store is None:
        logger.info("no store was named: conversations are kept in memory and end with this process")
        store = "memory:"
    if isinstance(store, str):
        store = store_from_url(store)
    if not isinstance(store, Store):
        raise InvalidArgumentError(f"a store is a URL or a Store, not a {type(store).__name__}")
    return RuntimeCore(store, settings)

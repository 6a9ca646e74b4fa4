"""One memory: the task that owns its log, and the mailbox through which everybody else speaks to it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from turnkeeper.errors import (
    RuntimeUsageError,
    closed,
)
from turnkeeper.ledger import LARGEST_BATCH
from turnkeeper.log import (
    Receipt,
)
from turnkeeper.names import MemoryName
from turnkeeper.requests import ABANDONED, CLOSE_TURN, DONE, OPEN_TURN, PASSING, QUEUED, READING, TAKEN, Request
from turnkeeper.services import Inbox, Services
from turnkeeper.turning import TurnLedger
from turnkeeper.turnstile import INTERRUPT, ROLLBACK, WAITING, OpenTurn, Turnstile
from turnkeeper.windows import Messages, Window

__all__ = ["Actor"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")


class Actor(TurnLedger):
    """Serves one memory's requests one batch at a time, in the order in which they came.

    A request is QUEUED until the actor takes it in one synchronous step, the point of no return. The task ends after
    a while without requests; log and view stay, and the next request starts a new one. Nothing here is thread-safe.
    """

    __slots__ = ("_mailbox", "_outstanding", "_serving", "_wake", "counted", "used")

    def __init__(self, name: MemoryName, services: Services) -> None:
        super().__init__(name, services)
        self.used: float = 0.0
        self.counted: int = 0
        self._serving = False  # also true in a load whose callers have all left
        self._mailbox: MemoryObjectSendStream[Request] | None = None
        self._wake: anyio.Event | None = None  # set to wake the task, None while it is awake
        self._outstanding: set[Request] | None = None

    # From outside, in one synchronous step each

    @property
    def pinned(self) -> bool:
        """Whether requests are pending, or its task is in the middle of some: then it must not be unloaded."""
        stile = self._turnstile
        if stile is not None and stile.turn is not None:
            stile.expire(self._services.now())
            if stile.turn is not None:
                return True
        if stile is not None and stile.owed is not None:
            return True  # only here it is known what is to be taken back
        # A lease is given back by the task: without it, others would wait until it runs out.
        return self._serving or bool(self._outstanding) or bool(self._lease and self._mailbox)

    @property
    def running(self) -> bool:
        """Whether it has a task."""
        return self._mailbox is not None

    @property
    def size(self) -> int:
        """Bytes of encoded messages and metadata that it holds."""
        log = self._log
        return 0 if log is None else log.size if log.meta is None else log.size + len(log.meta)

    def quiescent_view(self, window: Window) -> Messages | None:
        """Return what a read would find; None if something is pending, others may write, or too little is held."""
        services = self._services
        if self._log is None or services.strong or self.name in services.doubtful:
            return None
        if self._turnstile is not None and self._turnstile.owed is not None:
            return None  # what is to be taken back is nothing to show
        # While a turn is open, whoever else waits has to wait for its end: the committed state stays what it is.
        if self._outstanding and (self._serving or self._turnstile is None or not self._turnstile.still):
            return None
        return self._log.view(window, window.limit(self.name.id))

    def offer(self, request: Request) -> bool:
        """Put a request into the mailbox, starting the task if there is none; False when the mailbox is full."""
        if self._mailbox is None:
            self._mailbox, inbox = anyio.create_memory_object_stream[Request](self._services.settings.mailbox_size)
            self._outstanding = set()
            self._services.spawn(self, inbox)
        assert self._outstanding is not None
        self._outstanding.add(request)
        try:
            self._mailbox.send_nowait(request)
        except anyio.WouldBlock:
            self._rouse()  # what fills the mailbox may have been abandoned while the task was parked
            return False
        self._rouse()
        return True

    async def offer_in_turn(self, request: Request) -> None:
        """Wait for room in the mailbox, in order of arrival. The caller abandons the request if this is cancelled."""
        assert self._mailbox is not None
        # Where the task is gone meanwhile, it has answered everything outstanding.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._mailbox.send(request)
            self._rouse()  # it may have emptied its mailbox and parked before there was room for this one

    def offer_at_once(self, request: Request) -> None:
        """Put a request of the open turn before all others, whatever the mailbox holds."""
        stile = self._turnstile
        if stile is None or self._outstanding is None:  # the task is gone, and the turn with it
            assert request.turn is not None
            self._answer(request, request.turn.refusal() or closed())
            return
        self._outstanding.add(request)
        stile.urgent.append(request)
        self._rouse()

    def leave_turn(self, turn: OpenTurn) -> None:
        """End a turn without a trace of what it had not committed, in one synchronous step."""
        opening = turn.state == WAITING
        turn.end()
        self._owe_lease(turn)
        if self._turnstile is not None and not opening:
            self._turnstile.release(turn)
            self._rouse()

    def abandon(self, request: Request) -> None:
        """Note that a caller left: a request that was not taken yet will never run."""
        if request.state == QUEUED:
            self._finish(request)
            request.state = ABANDONED
            request.messages = ()

    def end_task(self) -> None:
        """Let the task end; only while nothing is outstanding, when it is parked at its empty mailbox."""
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None
            self._outstanding = None
            self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def fail_outstanding(self, make_error: Callable[[], Exception]) -> int:
        """Answer every pending request with an error of its own, and return how many; forget the log.

        Requests whose commit is under way get `OutcomeUnknownError`.
        """
        writing, self._writing = self._writing or (), None
        outstanding = list(self._outstanding or ())
        if (stile := self._turnstile) is not None:
            stile.drop()
            self._turnstile = None
            if stile.owed is not None:
                self._turnstile = Turnstile(self._services.settings.mailbox_size)
                self._turnstile.owed = stile.owed
        if writing:
            self._services.doubtful.add(self.name)
        for request in outstanding:
            self._answer(request, self._unknown() if request in writing else make_error())
        if writing:
            self._log = None  # with tentative entries: how many were acknowledged it does not tell
        self._drop_log()
        if self._services.stopping:
            self._forget_lease()  # otherwise the next task gives it back
        self.end_task()
        return len(outstanding)

    # The task

    async def run(self, inbox: Inbox) -> None:
        """Serve until the mailbox is closed.

        Cancelled by the runtime's scope or natively by somebody else, or broken by an error of ours, it answers
        everybody: nobody is left waiting. A commit under way goes on in the committer, and its callers get
        `OutcomeUnknownError`.
        """
        try:
            with inbox:
                while True:
                    if self._lease and self._lease_is_due():  # before all else: there may always be a next request
                        self._serving = True
                        await self._keep_lease()
                        self._serving = False
                        continue
                    try:
                        first = self._next(inbox)
                    except anyio.WouldBlock:
                        # Parked at an event of its own: a stream's receive costs twice as much, and hands an item to
                        # a task that may be cancelled natively before it wakes, which would lose it.
                        self._wake = wake = self._services.make_event()
                        if self._turnstile is None and not self._lease:
                            await wake.wait()
                        else:
                            await self._wait_for_turn(wake)
                        continue
                    except anyio.EndOfStream:
                        return
                    self._serving = True
                    size = await self._serve(first, inbox)
                    self._serving = False
                    if size == LARGEST_BATCH:
                        await checkpoint()  # there may be more: let others have their turn
        except BaseException as error:
            self._serving = False
            cancelled = isinstance(error, anyio.get_cancelled_exc_class())
            if (cancelled and self._services.stopping) or not (cancelled or isinstance(error, Exception)):
                self.fail_outstanding(closed)
                raise
            # Only this memory is affected: the next request starts a new task and loads afresh.
            reason = "was cancelled from outside" if cancelled else f"failed with {type(error).__name__}"
            logger.error("the task of a memory %s", reason)
            self.fail_outstanding(lambda: self._interrupted(reason))

    async def _wait_for_turn(self, wake: anyio.Event) -> None:
        """Park, until something happens, the turn is over, or somebody who waits may go on."""
        stile = self._turnstile
        deadline = self._lease_due() if self._lease else math.inf
        if stile is not None and (wake_at := stile.wake_at()) is not None:
            deadline = min(deadline, wake_at)
        with anyio.CancelScope(deadline=deadline):
            await wake.wait()
        self._wake = None
        if stile is not None:
            stile.expire(self._services.now())

    async def _serve(self, first: Request, inbox: Inbox) -> int:
        """Answer a batch and return its size."""
        unreachable = await self._load(first) if self._log is None else None
        # The point of no return: from here on what was taken runs to its end.
        batch = self._take(first, inbox)
        size = len(batch)
        opening = batch.pop() if batch and batch[-1].op == OPEN_TURN else None
        closing = batch.pop() if batch and batch[-1].op == CLOSE_TURN else None
        stile = self._turnstile
        if unreachable is None and self._corrupt is None and stile is not None and stile.owed is not None:
            unreachable = await self._pay(stile)
        if unreachable is not None:
            batch = self._refuse(batch, unreachable)
        writers = list(batch)
        while batch and self._log is not None:  # None: everybody was answered, because the runtime closes
            if self._corrupt is not None:
                batch = self._refuse_corrupt(batch, self._corrupt)
            batch = await self._round(batch)
        held = sum(request.state == QUEUED for request in writers)  # by another process's turn
        if opening is not None and held and opening.on_busy not in (INTERRUPT, ROLLBACK):
            self._wait_again(opening, held)
        elif opening is not None:
            await self._open_turn(opening, unreachable)
        if closing is not None and closing.turn is not None:
            self._answer(closing, await self._close_turn(closing.turn))
        if self._corrupt is not None:
            self._drop_log()  # look again next time: it may have been repaired
        elif self._log is not None:
            self._log.trim()
        self._services.residency.settle(self)
        return size

    def _next(self, inbox: Inbox) -> Request:
        """Return the next request that may pass; raises what the inbox raises when there is none."""
        stile = self._turnstile
        if stile is not None and (waited := stile.next(self._services.now())) is not None:
            return waited
        while True:
            request = inbox.receive_nowait()
            if request.op == OPEN_TURN and stile is None:
                stile = self._turnstile = Turnstile(self._services.settings.mailbox_size)
            if stile is None or request.state != QUEUED or request.op in PASSING:
                return request
            met = stile.meet(request, self._services.now())
            if met is True:
                return request
            if isinstance(met, Exception):
                self._answer(request, met)

    def _take(self, first: Request, inbox: Inbox) -> list[Request]:
        batch: list[Request] = []
        outstanding = self._outstanding or ()
        request = first
        while True:
            if request.state == QUEUED:
                request.state = TAKEN
                batch.append(request)
                if request.op == CLOSE_TURN:
                    return batch
                if request.op == OPEN_TURN:
                    assert self._turnstile is not None
                    self._turnstile.turn = request.turn
                    return batch
            if len(batch) == LARGEST_BATCH or len(outstanding) <= len(batch):
                return batch
            try:
                request = self._next(inbox)
            except (anyio.WouldBlock, anyio.EndOfStream):
                return batch

    # Answering

    def _answer(self, request: Request, result: object) -> None:
        if request.state >= ABANDONED:
            return
        if isinstance(result, Exception):
            request.error = result
        else:
            request.result = result
        self._finish(request)
        request.state = DONE
        if request.turn is not None:
            if isinstance(result, Receipt):
                request.turn.advance(result.version)
            if request.ends:
                self.leave_turn(request.turn)
        request.done.set()

    def _finish(self, request: Request) -> None:
        if self._outstanding is not None:
            self._outstanding.discard(request)
        self._services.admission.release(request.size, request.op in READING)

    def _interrupted(self, reason: str) -> RuntimeUsageError:
        return RuntimeUsageError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): its task {reason}; nothing was changed"
        )

    def _adopt(self, request: Request) -> None:
        assert self._outstanding is not None
        self._outstanding.add(request)
        self._services.admission.force(request.size)

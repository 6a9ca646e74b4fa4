"""One memory: the task that owns its log, and the mailbox through which everybody else speaks to it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from random import random
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from turnkeeper.committer import Fetch, Reach
from turnkeeper.errors import (
    ContentionError,
    IdempotencyMismatchError,
    MemoryCorruptError,
    OutcomeUnknownError,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreError,
    TurnAlreadyCommittedError,
    fresh,
)
from turnkeeper.log import (
    UNDO,
    Committed,
    Conflict,
    Duplicate,
    Held,
    Key,
    Lease,
    NotCommitted,
    Receipt,
    Rejected,
    Slice,
    StoredReceipt,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING, Plan, apply, conflicting
from turnkeeper.requests import ABANDONED, DELETE, DONE, OPEN_TURN, QUEUED, READING, TAKEN, Request
from turnkeeper.services import Inbox, Services
from turnkeeper.state import Log
from turnkeeper.turnstile import INTERRUPT, REJECT, ROLLBACK, WAITING, OpenTurn, Turnstile, busy
from turnkeeper.windows import Messages, Window

__all__ = ["Actor", "closed"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_BACKOFF: Final = 0.001
_LONGEST_BACKOFF: Final = 0.05
"""Seconds to let others through after losing a race, times the attempts so far and a random share."""

_BATCH: Final = 128
"""Requests taken from a mailbox at once: a slice of bounded size, and a chance for others in between."""


class Actor:
    """Serves one memory's requests one batch at a time, in the order in which they came.

    A request is QUEUED until the actor takes it in one synchronous step, the point of no return. The task ends after
    a while without requests; log and view stay, and the next request starts a new one. Nothing here is thread-safe.
    """

    __slots__ = (
        "_corrupt",
        "_lease",
        "_log",
        "_mailbox",
        "_outstanding",
        "_renew_at",
        "_services",
        "_serving",
        "_turnstile",
        "_wake",
        "_writing",
        "counted",
        "name",
        "used",
    )

    def __init__(self, name: MemoryName, services: Services) -> None:
        self.name: MemoryName = name
        self.used: float = 0.0
        self.counted: int = 0
        self._services = services
        self._serving = False  # also true in a load whose callers have all left
        self._log: Log | None = None
        self._corrupt: MemoryCorruptError | None = None
        self._mailbox: MemoryObjectSendStream[Request] | None = None
        self._wake: anyio.Event | None = None  # set to wake the task, None while it is awake
        self._outstanding: set[Request] | None = None
        self._writing: list[Request] | None = None
        self._turnstile: Turnstile | None = None  # comes with the first turn
        self._lease = b""  # the turn that holds the store's lease for us
        self._renew_at = 0.0

    # From outside, in one synchronous step each

    @property
    def pinned(self) -> bool:
        """Whether requests are pending, or its task is in the middle of some: then it must not be unloaded."""
        stile = self._turnstile
        if stile is not None and stile.turn is not None:
            stile.expire(self._services.now())
            if stile.turn is not None:
                return True
        return self._serving or bool(self._outstanding)

    @property
    def running(self) -> bool:
        """Whether it has a task."""
        return self._mailbox is not None

    @property
    def size(self) -> int:
        """Bytes of encoded messages it holds."""
        return 0 if self._log is None else self._log.size

    def quiescent_view(self, window: Window) -> Messages | None:
        """Return what a read would find; None if something is pending, others may write, or too little is held."""
        services = self._services
        if self._log is None or services.strong or self.name in services.doubtful:
            return None
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
        if self._turnstile is not None:
            self._turnstile.drop()
            self._turnstile = None
        if writing:
            self._services.doubtful.add(self.name)
        for request in outstanding:
            self._answer(request, self._unknown() if request in writing else make_error())
        self._log = None
        self._lease = b""
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
                    try:
                        first = self._next(inbox)
                    except anyio.WouldBlock:
                        if self._lease and await self._keep_lease():
                            continue
                        # Parked at an event of its own: a stream's receive costs twice as much, and hands an item to
                        # a task that may be cancelled natively before it wakes, which would lose it.
                        self._wake = wake = self._services.make_event()
                        if self._turnstile is None:
                            await wake.wait()
                        else:
                            await self._wait_for_turn(wake, self._turnstile)
                        continue
                    except anyio.EndOfStream:
                        return
                    self._serving = True
                    size = await self._serve(first, inbox)
                    self._serving = False
                    if size == _BATCH:
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

    async def _serve(self, first: Request, inbox: Inbox) -> int:
        """Answer a batch and return its size."""
        unreachable = await self._load(first) if self._log is None else None
        # The point of no return: from here on what was taken runs to its end.
        batch = self._take(first, inbox)
        size = len(batch)
        opening = batch.pop() if batch and batch[-1].op == OPEN_TURN else None
        if unreachable is not None:
            batch = self._refuse(batch, unreachable)
        while batch and self._log is not None:  # None: everybody was answered, because the runtime closes
            if self._corrupt is not None:
                batch = self._refuse_corrupt(batch, self._corrupt)
            batch = await self._round(batch)
        if opening is not None:
            await self._open_turn(opening, unreachable)
        if self._corrupt is not None:
            self._log = None  # look again next time: it may have been repaired
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
            if stile is None or request.state != QUEUED or request.op in READING:
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
                if request.op == OPEN_TURN:
                    assert self._turnstile is not None
                    self._turnstile.turn = request.turn
                    return batch
            if len(batch) == _BATCH or len(outstanding) <= len(batch):
                return batch
            try:
                request = self._next(inbox)
            except (anyio.WouldBlock, anyio.EndOfStream):
                return batch

    async def _round(self, batch: list[Request]) -> list[Request]:
        """Answer at least the first request of a batch, and return those that are left.

        Each pass applies what is left to the log anew, and commits what comes of it in one slice.
        """
        services = self._services
        current = not services.strong and self.name not in services.doubtful
        max_writers = _BATCH
        attempts = reaches = 0
        while batch and (log := self._log) is not None:
            version = log.n
            mark = log.begin()
            plan = apply(log, batch, self.name, services.random_bytes, max_writers=max_writers)
            if plan.lacking is not None and not plan.consumed:
                # Everything, when a limit rises again while what it needs is fetched.
                if (
                    unreachable := await self._fetch(None, plan.lacking if reaches == 0 else (EVERYTHING, None))
                ) is not None:
                    return self._refuse(batch, unreachable)
                current = True
                if self._corrupt is not None:
                    return batch
                reaches += 1
                continue
            if not plan.writes:
                # A commit proves that its log was current; answers without one need the proof from the store.
                if not current:
                    current = True
                    if (unreachable := await self._refresh(batch[0])) is not None:
                        return self._refuse(batch, unreachable)
                    if self._corrupt is not None:
                        return batch
                    if self._log is not log or log.n != version:
                        continue
                if refused := self._reply(plan):
                    await self._reconsider(refused)
                return batch[plan.consumed :]
            self._writing = plan.writers
            slice_ = plan.slice(self.name, log, version, self._lease)
            outcome = await services.committer.commit(slice_)
            self._writing = None
            if isinstance(outcome, Committed):
                services.doubtful.discard(self.name)
                if slice_.lease is not None:
                    self._lease = b""
                if plan.deletes is not None:
                    self._log, self._corrupt = Log(), None
                else:
                    if log.settle(outcome.mid, outcome.at):
                        plan.settle(log)
                    if plan.prune:
                        log.prune(plan.prune)
                if refused := self._reply(plan):
                    await self._reconsider(refused)
                if services.policy is not None and plan.deletes is None:
                    services.policy(self.name, log)
                return batch[plan.consumed :]
            log.rollback(mark)
            if isinstance(outcome, Conflict):
                services.conflicts += 1
                attempts += 1
                if attempts == services.settings.conflict_attempts:
                    self._fail(plan, self._contention)
                elif attempts > 1:
                    await anyio.sleep(random() * min(_LONGEST_BACKOFF, _BACKOFF * attempts))
                if (unreachable := await self._refresh(batch[0])) is not None:
                    return self._refuse(batch, unreachable)
                current = True
                if self._corrupt is not None:
                    return [request for request in batch if request.state != DONE]
            elif isinstance(outcome, Held):
                self._hold(batch)
            elif isinstance(outcome, Duplicate):
                request = plan.writers[outcome.index]
                self._answer(request, self._replayed(request, outcome.stored))
            elif isinstance(outcome, Rejected) and len(plan.writers) > 1:
                max_writers = 1  # one of them is refused for a reason of its own: find it
            elif isinstance(outcome, (Rejected, NotCommitted)):
                self._fail(plan, partial(fresh, outcome.error))
            else:
                self._fail(plan, self._unknown)
                services.doubtful.add(self.name)
                self._log = None  # what it holds may be behind or ahead of the store
                if (unreachable := await self._load(batch[0])) is not None:
                    return self._refuse(batch, unreachable)
                if self._corrupt is not None:
                    return [request for request in batch if request.state != DONE]
            batch = [request for request in batch if request.state == TAKEN]
        return batch

    # Turns

    async def _wait_for_turn(self, wake: anyio.Event, stile: Turnstile) -> None:
        """Park, until something happens or somebody who waits may go on."""
        times = [time for time in (stile.wake_at(), self._renew_at if self._lease else None) if time is not None]
        with anyio.CancelScope(deadline=min(times, default=math.inf)):
            await wake.wait()
        self._wake = None
        stile.expire(self._services.now())

    def _hold(self, batch: list[Request]) -> None:
        """Another process's turn is open: let the writers wait, as if they had not been taken. Reads go on."""
        if self._turnstile is None:
            self._turnstile = Turnstile(self._services.settings.mailbox_size)
        waiting = []
        for request in batch:
            if request.state != TAKEN or request.op in READING:
                continue
            if request.turn is not None:
                self._answer(request, conflicting(self.name, request.messages))
            else:
                request.state = QUEUED
                waiting.append(request)
        self._turnstile.held.extendleft(reversed(waiting))
        self._turnstile.close(self._services.now())

    async def _open_turn(self, request: Request, error: Exception | None) -> None:
        """Let a turn begin: look for its key, undo what it rolls back, and tell its caller.

        It keeps others out from the moment in which it was taken; failing, or left by its caller, it lets them in.
        """
        turn, stile = request.turn, self._turnstile
        assert turn is not None
        assert stile is not None
        if error is not None:
            error = fresh(error) if isinstance(error, StoreError) else error
        elif self._corrupt is not None:
            error = fresh(self._corrupt)
        elif request.key is not None:
            error = await self._committed_before(request, request.key)
        if error is None and self._services.shared and turn.state == WAITING:
            leased = await self._take_lease(request, turn)
            if leased is False:
                stile.release(turn)
                stile.held.appendleft(request)
                stile.close(self._services.now())
                request.state = QUEUED
                return
            error = leased if isinstance(leased, Exception) else None
        if error is None and turn.undo >= 0 and turn.state == WAITING:
            error = await self._undo(turn.undo)
        log = self._log
        if error is None and log is not None and turn.state == WAITING and request.state == TAKEN:
            turn.begin(self._services.now(), log.version)
            self._answer(request, turn)
            return
        stile.release(turn)
        turn.end()
        self._answer(request, error or self._interrupted("was left"))

    async def _take_lease(self, request: Request, turn: OpenTurn) -> Exception | bool:
        """Keep other processes out; False when one of them has a turn open and the request has to wait."""
        attempts, settings, stile = 0, self._services.settings, self._turnstile
        assert stile is not None
        lease = Lease(turn.id, settings.turn_lease, request.on_busy in (INTERRUPT, ROLLBACK))
        while (log := self._log) is not None and self._corrupt is None:
            outcome = await self._services.committer.commit(self._lease_slice(log, lease))
            if isinstance(outcome, Committed):
                log.settle(outcome.mid, log.updated_at or outcome.at)
                self._lease = turn.id
                self._renew_at = self._services.now() + settings.turn_lease / 3
                stile.reopen()
                if request.on_busy == ROLLBACK and outcome.stolen_from >= 0:
                    turn.undo = outcome.stolen_from
                return True
            if isinstance(outcome, Held):
                return busy(turn) if request.on_busy == REJECT else False
            if isinstance(outcome, Conflict):
                attempts += 1
                if attempts == settings.conflict_attempts:
                    return self._contention()
                if attempts > 1:
                    await anyio.sleep(random() * min(_LONGEST_BACKOFF, _BACKOFF * attempts))
                if (unreachable := await self._refresh(request)) is not None:
                    return fresh(unreachable)
            elif isinstance(outcome, (Rejected, NotCommitted)):
                return fresh(outcome.error)
            else:
                return self._unknown()
        return fresh(self._corrupt) if self._corrupt is not None else closed()

    async def _keep_lease(self) -> bool:
        """Give the lease back when its turn is over, renew it when it is time; False: neither."""
        stile, log, now = self._turnstile, self._log, self._services.now()
        turn = None if stile is None else stile.turn
        holds = turn is not None and turn.id == self._lease
        if log is None or (holds and now < self._renew_at):
            return False
        settings = self._services.settings
        lease = Lease(self._lease, settings.turn_lease if holds else 0.0)
        self._serving = True
        outcome = await self._services.committer.commit(self._lease_slice(log, lease))
        self._serving = False
        if not holds:
            self._lease = b""  # where it was not given back, it runs out
            if log.n == 0:
                self._log = None  # its row is gone
        elif isinstance(outcome, (Conflict, Held)):
            assert turn is not None
            assert stile is not None
            turn.end("lost")
            stile.release(turn)
            self._lease = b""
        else:
            self._renew_at = now + settings.turn_lease / 3
        return True

    def _lease_slice(self, log: Log, lease: Lease) -> Slice:
        return Slice(
            self.name,
            log.mid,
            log.n,
            (),
            log.base,
            log.system,
            not_before=log.updated_at,
            turn_id=self._lease,
            lease=lease,
        )

    async def _committed_before(self, request: Request, key: Key) -> Exception | None:
        try:
            stored = await self._services.reader.receipt(self.name, key.key)
        except StoreError as unreachable:
            return unreachable
        if stored is None:
            return None
        receipt = self._replayed(request, stored)
        if isinstance(receipt, Exception):
            return receipt
        return TurnAlreadyCommittedError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): a turn with this idempotency key was "
            "committed before; use its receipt",
            receipt,
        )

    async def _undo(self, to: int) -> Exception | None:
        """Take back the entries after `to` by one that says so; return what prevented it."""
        undoing = Request(UNDO, window=EVERYTHING)
        undoing.state = TAKEN
        undoing.done = self._services.make_event()
        undoing.to = to
        assert self._outstanding is not None
        self._outstanding.add(undoing)
        self._services.admission.force(0)
        left = [undoing]
        while left and self._log is not None and self._corrupt is None:
            left = await self._round(left)
        return undoing.error

    # Reading the store

    async def _load(self, request: Request) -> StoreError | None:
        """Read as much of the memory as a request needs; return what prevented it."""
        return await self._fetch(None, self._reach(request))

    async def _refresh(self, request: Request) -> StoreError | None:
        """Read what other writers added since, or as much as a request needs; return what prevented it."""
        known = None if self._log is None or self._corrupt else self._log.version
        return await self._fetch(known, self._reach(request))

    def _reach(self, request: Request) -> Reach | None:
        """Return what of the memory a request needs; None: its head."""
        if request.window is None:
            return None
        try:
            return request.window, request.window.limit(self.name.id)
        except Exception:  # a limit function that fails will fail the request
            return None

    async def _fetch(self, known: Version | None, reach: Reach | None) -> StoreError | None:
        try:
            fetched = await self._services.reader.load(Fetch(self.name, known, reach))
        except StoreError as error:
            self._log = None
            return error
        log, head = fetched.log, fetched.loaded.head
        if log is None:
            assert self._log is not None
            try:
                log = self._log.extend(fetched.loaded, self.name)
            except MemoryCorruptError as error:
                log = error
        self._corrupt = log if isinstance(log, MemoryCorruptError) else None
        if isinstance(log, MemoryCorruptError):
            log = Log(head)  # empty, but at the head: enough to delete it
            log.n = head.version if head else 0
        self._log = log
        return None

    # Answering

    def _reply(self, plan: Plan) -> list[tuple[Request, Key, Exception]]:
        """Answer everybody but those whose refusal has to be reconsidered, and return these."""
        refused = []
        for request, result in plan.answers:
            if request.key is not None and isinstance(result, Exception):
                refused.append((request, request.key, result))
            else:
                self._answer(request, result)
        return refused

    async def _reconsider(self, refused: list[tuple[Request, Key, Exception]]) -> None:
        for request, key, error in refused:
            self._answer(request, await self._look_up(request, key, error))

    async def _look_up(self, request: Request, key: Key, error: Exception) -> Receipt | Exception:
        """A repeated request may fail where the first did not, by its `if_version`: the first one's receipt counts."""
        try:
            stored = await self._services.reader.receipt(self.name, key.key)
        except StoreError as unreachable:
            return unreachable
        return error if stored is None else self._replayed(request, stored)

    def _replayed(self, request: Request, stored: StoredReceipt) -> Receipt | Exception:
        if request.key is not None and request.key.digest == stored.digest:
            return stored.receipt
        return IdempotencyMismatchError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): this idempotency key was used for other "
            "content; use a new key for a new request"
        )

    def _refuse(self, batch: list[Request], error: StoreError) -> list[Request]:
        for request in batch:
            self._answer(request, fresh(error))
        return []

    def _refuse_corrupt(self, batch: list[Request], error: MemoryCorruptError) -> list[Request]:
        """Refuse what comes before a delete: that one needs only the head, and behind it all is well again."""
        first = next((index for index, request in enumerate(batch) if request.op == DELETE), len(batch))
        self._refuse(batch[:first], error)
        return batch[first:]

    def _fail(self, plan: Plan, make_error: Callable[[], Exception]) -> None:
        for request in plan.writers:
            self._answer(request, make_error())

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
        self._services.admission.release(request.size)

    def _unknown(self) -> OutcomeUnknownError:
        self._services.unknown_outcomes += 1
        return OutcomeUnknownError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): the store did not say whether the change "
            "was committed; read the memory, or repeat the request with the same idempotency_key"
        )

    def _contention(self) -> ContentionError:
        return ContentionError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): other writers won "
            f"{self._services.settings.conflict_attempts} times in a row (conflict_attempts); nothing was changed"
        )

    def _interrupted(self, reason: str) -> RuntimeUsageError:
        return RuntimeUsageError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): its task {reason}; nothing was changed"
        )


def closed() -> RuntimeClosedError:
    """Make the error of those who were still waiting when the runtime closed."""
    return RuntimeClosedError("the runtime closed before the request was run; nothing was changed")

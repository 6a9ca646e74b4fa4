"""One memory's log, and its way into the store and out of it: loading, rounds of tentative entries, outcomes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from random import random
from typing import Final

import anyio

from turnkeeper.applying import apply
from turnkeeper.errors import (
    AcknowledgedDataLostError,
    ConflictError,
    ContentionError,
    IdempotencyMismatchError,
    MemoryCorruptError,
    OutcomeUnknownError,
    StoreError,
    fresh,
)
from turnkeeper.folding import extend
from turnkeeper.log import (
    POP,
    UNDO,
    Committed,
    Conflict,
    Duplicate,
    Held,
    Key,
    NotCommitted,
    Receipt,
    Rejected,
    StoredReceipt,
    Version,
)
from turnkeeper.looking import conflicting
from turnkeeper.losses import NOTHING, find_loss
from turnkeeper.metadata import expires_after_of, keeps_apart
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING, Plan
from turnkeeper.reader import Fetch, Reach
from turnkeeper.requests import DELETE, DONE, PRUNE, QUEUED, READING, TAKEN, UNDO_TURNS, Request
from turnkeeper.services import Services
from turnkeeper.state import Log
from turnkeeper.turnstile import Turnstile

__all__ = ["LARGEST_BATCH", "Ledger", "replayed"]

FIRST_BACKOFF: Final = 0.001
LONGEST_BACKOFF: Final = 0.05
"""Seconds to let others through after losing a race, times the attempts so far and a random share."""

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_COMPUTED: Final = frozenset((UNDO_TURNS, POP, PRUNE))
"""Requests that hang on what the state is."""

LARGEST_BATCH: Final = 128
"""Requests taken from a mailbox at once: a slice of bounded size, and a chance for others in between."""


class Ledger(ABC):
    """What an actor is besides its mailbox: the owner of a log, who alone applies requests to it and commits them.

    Nothing here is thread-safe, and one task at a time runs it.
    """

    __slots__ = ("_corrupt", "_known", "_lease", "_log", "_returning", "_services", "_turnstile", "_writing", "name")

    def __init__(self, name: MemoryName, services: Services) -> None:
        self.name: MemoryName = name
        self._services = services
        self._log: Log | None = None
        self._known = NOTHING  # the version acknowledged last, while there is no log that says so
        self._corrupt: MemoryCorruptError | None = None
        self._writing: list[Request] | None = None
        self._turnstile: Turnstile | None = None  # comes with the first turn
        self._lease = b""  # the turn that holds the store's lease for us
        self._returning = False  # that turn is over, and closing waits until the lease is given back

    def _forget_lease(self) -> None:
        self._lease = b""
        if (notices := self._services.notices) is not None:
            notices.leave(self.look_at_lease)
        self._stop_returning()

    def _stop_returning(self) -> None:
        if self._returning:
            self._returning = False
            self._services.admission.release(0)

    @abstractmethod
    def look_at_lease(self) -> None:
        """Look soon whether the open turn still has its lease."""

    @abstractmethod
    def _answer(self, request: Request, result: object) -> None:
        """Answer a request, once."""

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
            acknowledged = self._known if self._log is None else self._log.version
            before = self._log.before if known is not None and self._log is not None else 0
            fetched = await self._services.reader.load(Fetch(self.name, known, reach, before))
        except StoreError as error:
            self._drop_log()
            return error
        log, head = fetched.log, fetched.loaded.head
        if acknowledged.n and (lost := await find_loss(self._services, self.name, acknowledged, head)) is not None:
            self._log, self._known = None, NOTHING  # it is told once; then it goes on from what is there
            return lost
        self._known = NOTHING
        if log is None:
            assert self._log is not None
            try:
                log = extend(self._log, fetched.loaded, self.name)
            except MemoryCorruptError as error:
                log = error
        self._corrupt = log if isinstance(log, MemoryCorruptError) else None
        if isinstance(log, MemoryCorruptError):
            log = Log(head)  # empty, but at the head: enough to delete it
            log.n = head.version if head else 0
        elif self._log is not None and log is not self._log:
            log.resume(self._log)
        self._log = log
        return None

    def _drop_log(self) -> None:
        """Forget the log, without tentative entries, but not what is acknowledged of it."""
        if self._log is not None:
            self._known, self._log = self._log.version, None

    # Committing

    async def _round(self, batch: list[Request]) -> list[Request]:
        """Answer at least the first request of a batch, and return those that are left.

        Each pass applies what is left to the log anew, and commits what comes of it in one slice.
        """
        services = self._services
        current = not services.strong and self.name not in services.doubtful
        if services.strong and any(request.op in _COMPUTED for request in batch):
            # What follows from the state is worth trying on the present one alone.
            current = True
            if (unreachable := await self._refresh(batch[0])) is not None:
                return self._refuse(batch, unreachable)
            if self._corrupt is not None:
                return batch
        max_writers = LARGEST_BATCH
        proven = services.strong or not services.shared  # nobody else writes, or it is current when it matters
        attempts = reaches = 0
        while batch and (log := self._log) is not None:
            version, base, head = log.n, log.base, None if current else log.head
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
                if not current or (not proven and self._claims_loss(plan)):
                    current = proven = True
                    if (unreachable := await self._refresh(batch[0])) is not None:
                        return self._refuse(batch, unreachable)
                    if self._corrupt is not None:
                        return batch
                    if self._log is not log or log.head != head:  # metadata and pruning change no version
                        continue
                if refused := self._reply(plan):
                    await self._reconsider(refused)
                return batch[plan.consumed :]
            self._writing = plan.writers
            lasts = log.expires_after if plan.meta is None else expires_after_of(plan.meta.data)
            expires_after = services.settings.expires_after or 0.0 if lasts is None else lasts
            slice_ = plan.slice(self.name, log, version, expires_after, self._lease, base)
            outcome = await services.committer.commit(slice_)
            self._writing = None
            if plan.meta is not None and (keeps_apart(log.meta) or keeps_apart(plan.meta.data)):
                services.expect_policies()  # whatever became of it: it may be committed yet
            if isinstance(outcome, Committed):
                services.doubtful.discard(self.name)
                if slice_.lease is not None:
                    self._forget_lease()
                if plan.deletes is not None:
                    self._log, self._corrupt = Log(), None
                else:
                    if log.settle(outcome.mid, outcome.at if slice_.entries else log.updated_at or outcome.at):
                        plan.settle(log)
                    if slice_.entries or slice_.meta is not None:
                        log.expires_at = outcome.at + int(expires_after * 1e6) if expires_after else 0
                    if plan.meta is not None:
                        log.describe(plan.meta)
                        plan.settle(log)
                    if plan.base:
                        log.prune(plan.base)
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
                    await anyio.sleep(random() * min(LONGEST_BACKOFF, FIRST_BACKOFF * attempts))
                if (unreachable := await self._refresh(batch[0])) is not None:
                    return self._refuse(batch, unreachable)
                self._forestall(plan)  # only now: whoever reads again finds what is new
                current = True
                if self._corrupt is not None:
                    return [request for request in batch if request.state != DONE]
            elif isinstance(outcome, Held):
                self._hold(batch)
            elif isinstance(outcome, Duplicate):
                request, stored = plan.writers[outcome.index], outcome.stored
                ahead = stored.receipt.version
                if ahead.mid == log.mid and ahead.n > log.n and self._corrupt is None:
                    if (unreachable := await self._refresh(request)) is not None:
                        return self._refuse(batch, unreachable)
                    if (now := self._log) is not None and ahead.mid == now.mid and ahead.n > now.n:
                        services.acknowledged_lost += 1
                        lost = AcknowledgedDataLostError(self.name.id, self.name.namespace, ahead, now.version)
                        self._answer(request, lost)
                self._answer(request, self._replayed(request, stored))
            elif isinstance(outcome, Rejected) and len(plan.writers) > 1:
                max_writers = 1  # one of them is refused for a reason of its own: find it
            elif isinstance(outcome, (Rejected, NotCommitted)):
                self._fail(plan, partial(fresh, outcome.error))
            else:
                if current:
                    self._reply_before_writers(plan)
                for request in plan.writers:
                    if request.turn is not None:
                        request.turn.unsure = True
                self._fail(plan, self._unknown)
                services.doubtful.add(self.name)
                self._drop_log()  # what it holds may be behind the store
                if (unreachable := await self._load(batch[0])) is not None:
                    return self._refuse(batch, unreachable)
                if self._corrupt is not None:
                    return [request for request in batch if request.state != DONE]
            batch = [request for request in batch if request.state == TAKEN]
        return batch

    def _forestall(self, plan: Plan) -> None:
        """Refuse what was computed from a state that is not the present one: nobody asked for it on another."""
        for request in plan.writers:
            if request.op == DELETE and request.about is not None:
                self._answer(request, False)  # its time is not over, or was put off
            elif request.op in _COMPUTED:
                error = (
                    f"memory {self.name.id!r} (namespace {self.name.namespace!r}): somebody else wrote to it meanwhile"
                )
                self._answer(request, ConflictError(f"{error}; nothing was changed: read it again and decide anew"))

    def _hold(self, batch: list[Request]) -> None:
        """Another process's turn is open: let the writers wait, as if they had not been taken. Reads go on."""
        if self._turnstile is None:
            self._turnstile = Turnstile(self._services.settings.mailbox_size)
        waiting = []
        for request in batch:
            if request.state != TAKEN or request.op in READING:
                continue
            if request.turn is not None or request.op == UNDO:  # later it would take back what others did
                self._answer(request, conflicting(self.name, request.messages))
            else:
                request.state = QUEUED
                waiting.append(request)
        self._turnstile.held.extendleft(reversed(waiting))
        self._turnstile.close(self._services.now())

    def _claims_loss(self, plan: Plan) -> bool:
        return any(isinstance(result, AcknowledgedDataLostError) for _, result in plan.answers)

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

    def _reply_before_writers(self, plan: Plan) -> None:
        """Answer who changed nothing in front of all that did: applied again, it could come behind them."""
        requests = [request for request, _ in plan.answers]
        del plan.answers[requests.index(plan.writers[0]) :]
        for request, result in plan.answers:
            if request.key is None or not isinstance(result, Exception):
                self._answer(request, result)

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
        return replayed(self.name, request.key, stored)

    def _refuse(self, batch: list[Request], error: StoreError) -> list[Request]:
        if isinstance(error, AcknowledgedDataLostError) and not any(request.state <= TAKEN for request in batch):
            self._known = error.known  # all have their answers already: the next request is told
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


def replayed(name: MemoryName, key: Key | None, stored: StoredReceipt) -> Receipt | IdempotencyMismatchError:
    """Return what a repeated request gets: the first one's receipt, if it was the same request."""
    if key is not None and key.digest == stored.digest:
        return stored.receipt
    return IdempotencyMismatchError(
        f"memory {name.id!r} (namespace {name.namespace!r}): this idempotency key was used for other content; use a "
        "new key for a new request"
    )

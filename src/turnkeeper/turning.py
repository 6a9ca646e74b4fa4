"""How a turn of one memory begins, keeps other processes out, and is taken back."""

from __future__ import annotations

from abc import abstractmethod
from random import random
from typing import Final

import anyio

from turnkeeper.errors import (
    AcknowledgedDataLostError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TurnAlreadyCommittedError,
    closed,
    fresh,
)
from turnkeeper.ledger import FIRST_BACKOFF, LONGEST_BACKOFF, Ledger, replayed
from turnkeeper.log import (
    UNDO,
    Committed,
    Conflict,
    Held,
    Key,
    Lease,
    NotCommitted,
    Outcome,
    Rejected,
    Slice,
    StoredReceipt,
    Unknown,
)
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import QUEUED, TAKEN, Request
from turnkeeper.services import Services
from turnkeeper.state import Log
from turnkeeper.turnstile import INTERRUPT, REJECT, ROLLBACK, WAITING, OpenTurn, Turnstile, busy

__all__ = ["TurnLedger", "committed_before"]

_SHORTEST_PAUSE: Final = 0.02
"""Seconds before a lease is given back again that could not be; each time twice as many, times a random share."""

_BETWEEN_LOOKS: Final = 1.0
"""Seconds between two looks at a lease that notices bring about: each is a small commit, and notices are many."""

_LONGEST_LEAVING: Final = 1.0
"""Seconds in which that is tried before the turn's caller is told that it failed."""


class TurnLedger(Ledger):
    """A ledger that opens turns. On a shared store each holds a lease, renewed while it is open."""

    __slots__ = ("_lease_ends", "_pause", "_renew_at", "_return_at")

    def __init__(self, name: MemoryName, services: Services) -> None:
        super().__init__(name, services)
        self._renew_at = 0.0
        self._lease_ends = 0.0  # when it has run out for sure, unless it is renewed
        self._return_at = 0.0
        self._pause = _SHORTEST_PAUSE

    def _hold_lease(self, turn: OpenTurn) -> None:
        self._forget_lease()
        self._lease = turn.id
        duration, now = self._services.settings.turn_lease, self._services.now()
        self._renew_at, self._lease_ends = now + duration / 3, now + duration
        self._return_at, self._pause = 0.0, _SHORTEST_PAUSE
        if (notices := self._services.notices) is not None:
            notices.enter(self.look_at_lease)

    def look_at_lease(self) -> None:
        """Look whether the open turn still has its lease: another process may have taken it. Once a second at most."""
        if self._renews() is not None:
            looked = self._lease_ends - self._services.settings.turn_lease
            self._renew_at = min(self._renew_at, max(self._services.now(), looked + _BETWEEN_LOOKS))
            self._rouse()

    @abstractmethod
    def _rouse(self) -> None:
        """Wake the task."""

    @abstractmethod
    def _adopt(self, request: Request) -> None:
        """Count a request of our own among those that are to be answered."""

    @abstractmethod
    def leave_turn(self, turn: OpenTurn) -> None:
        """End a turn without a trace of what it had not committed, in one synchronous step."""

    async def _open_turn(self, request: Request, error: Exception | None) -> None:
        """Let a turn begin: look for its key, undo what it rolls back, and tell its caller.

        It keeps others out from the moment in which it was taken; failing, or left by its caller, it lets them in.
        """
        turn, stile = request.turn, self._turnstile
        assert turn is not None
        assert stile is not None
        if error is None and self._log is None and request.state == TAKEN:
            error = await self._load(request)  # what was before it had dropped it
        if error is not None:
            error = fresh(error) if isinstance(error, StoreError) else error
        elif self._corrupt is not None:
            error = fresh(self._corrupt)
        elif request.key is not None:
            error = await self._committed_before(request, request.key)
        if error is None and self._services.shared and turn.state == WAITING:
            leased = await self._take_lease(request, turn)
            if leased is False and turn.state == WAITING:
                stile.close(self._services.now())
                self._wait_again(request, 0)
                return
            if isinstance(leased, Exception):
                error = leased
            elif request.key is not None and turn.state == WAITING:
                error = await self._committed_before(request, request.key)  # it may have been while we were kept out
        if turn.undo is not None:
            # Also when this one comes to nothing: the other turn was told that nothing of it is left.
            stile.owed = turn.undo
            failure = await self._pay(stile)
            error = error or failure
        log = self._log
        if error is None and log is not None and turn.state == WAITING and request.state == TAKEN:
            turn.begin(self._services.now(), log.version)
            self._answer(request, turn)
            return
        stile.release(turn)
        turn.end()
        self._owe_lease(turn)
        self._answer(request, error or closed())

    def _wait_again(self, request: Request, place: int) -> None:
        """Put an opening back into the line, as if it had not been taken."""
        turn, stile = request.turn, self._turnstile
        assert turn is not None
        assert stile is not None
        stile.release(turn)
        if request.on_busy == REJECT or turn.state != WAITING:
            turn.end()
            self._answer(request, busy(turn))
        else:
            request.state = QUEUED
            stile.held.insert(place, request)

    async def _committed_before(self, request: Request, key: Key) -> Exception | None:
        try:
            stored = await self._services.reader.receipt(self.name, key.key)
        except StoreError as unreachable:
            return unreachable
        return None if stored is None else committed_before(self.name, key, stored)

    async def _take_lease(self, request: Request, turn: OpenTurn) -> Exception | bool:
        """Keep other processes out; False when one of them has a turn open and the request has to wait."""
        attempts, settings, stile = 0, self._services.settings, self._turnstile
        assert stile is not None
        lease = Lease(turn.id, settings.turn_lease, request.on_busy in (INTERRUPT, ROLLBACK))
        while (log := self._log) is not None and self._corrupt is None:
            outcome = await self._services.committer.commit(self._lease_slice(log, lease))
            if isinstance(outcome, Committed):
                log.settle(outcome.mid, log.updated_at or outcome.at)
                self._hold_lease(turn)
                stile.reopen()
                if request.on_busy == ROLLBACK and outcome.stolen_from >= 0:
                    turn.undo = outcome.stolen_from, log.n
                return True
            if isinstance(outcome, Held):
                return busy(turn) if request.on_busy == REJECT else False
            if isinstance(outcome, Conflict):
                attempts += 1
                if attempts == settings.conflict_attempts:
                    return self._contention()
                if attempts > 1:
                    await anyio.sleep(random() * min(LONGEST_BACKOFF, FIRST_BACKOFF * attempts))
                if (unreachable := await self._refresh(request)) is not None:
                    return fresh(unreachable)
            elif isinstance(outcome, (Rejected, NotCommitted)):
                return fresh(outcome.error)
            else:
                # The store may hold it: unless it is given back, nobody could write until it runs out.
                self._hold_lease(turn)
                self._drop_log()
                return self._unknown()
        return fresh(self._corrupt) if self._corrupt is not None else closed()

    def lease_left(self) -> Slice | None:
        """Return what gives the lease back when the runtime ends; None: there is none, or a commit is under way."""
        if not self._lease or self._log is None or self._writing is not None:
            return None
        return self._lease_slice(self._log, Lease(self._lease, 0.0))

    def _owe_lease(self, turn: OpenTurn) -> None:
        """Note that a turn is over: closing waits until its lease, if it has one, is given back."""
        if self._lease == turn.id and not self._returning:
            self._returning = True
            self._services.admission.force(0)

    def _renews(self) -> OpenTurn | None:
        """Return the open turn whose lease we hold; None: it is over, and its lease to be given back."""
        turn = None if self._turnstile is None else self._turnstile.turn
        return turn if turn is not None and turn.id == self._lease else None

    def _lease_due(self) -> float:
        """Return when to renew the lease, or next to try to give it back, by the loop's clock."""
        return self._return_at if self._renews() is None else self._renew_at

    def _lease_is_due(self) -> bool:
        """Whether it is time to renew the lease, or to give it back: not while one of our own may take it over."""
        stile, now = self._turnstile, self._services.now()
        if now < self._lease_due():
            return False
        return stile is None or self._renews() is not None or not stile.held or now < stile.closed_until

    async def _keep_lease(self) -> None:
        """Renew the lease, or give it back when its turn is over."""
        turn, now = self._renews(), self._services.now()
        if turn is None:
            await self._return_lease()
            return
        settings, log = self._services.settings, self._log
        self._renew_at = now + settings.turn_lease / 3
        if log is None:
            if await self._fetch_for_lease():
                self._renew_at = now
            return
        outcome = await self._services.committer.commit(self._lease_slice(log, Lease(turn.id, settings.turn_lease)))
        if isinstance(outcome, (Conflict, Held)):
            turn.end("lost")
            if self._turnstile is not None:
                self._turnstile.release(turn)
            self._forget_lease()
        else:
            self._lease_ends = self._services.now() + settings.turn_lease

    async def _return_lease(self) -> tuple[Outcome | None, int]:
        """Try to give the lease back; where that fails, it is to be tried again until the lease has run out.

        Returns:
            What came of it (None: the store could not be read for it), and the version at which it was tried.
        """
        outcome, version = None, -1
        if self._log is None:
            await self._fetch_for_lease()
        if (log := self._log) is not None:
            version = log.n
            outcome = await self._services.committer.commit(self._lease_slice(log, Lease(self._lease, 0.0)))
            if log.n == 0 or isinstance(outcome, Conflict):
                self._drop_log()  # its row is gone, or came with it; or others have written
        now = self._services.now()
        if isinstance(outcome, (Committed, Held)) or now >= self._lease_ends:
            self._forget_lease()
        else:
            self._return_at = now + self._pause * (0.5 + random())
            self._pause *= 2
            self._stop_returning()
        return outcome, version

    async def _fetch_for_lease(self) -> bool:
        """Read the head; a loss found by this is told to the next request, as here is nobody to be told."""
        error = await self._fetch(None, None)
        if isinstance(error, AcknowledgedDataLostError):
            self._known = error.known
        return error is None

    async def _close_turn(self, turn: OpenTurn) -> Exception | None:
        """Leave a turn before its caller goes on; return what it is to be told.

        Who steals a lease may undo what it stands for: as long as it may be in the store, the turn is not left.
        """
        refusal = turn.refusal()
        self.leave_turn(turn)
        until = self._services.now() + _LONGEST_LEAVING
        doubtful = False  # it may have been given back, though we were not told
        while self._lease == turn.id:
            outcome, version = await self._return_lease()
            if isinstance(outcome, Committed) and (turn.unsure or version == turn.at.n):
                return refusal
            if not doubtful and (
                isinstance(outcome, (Committed, Held)) or (isinstance(outcome, Conflict) and not turn.unsure)
            ):
                turn.lose()
                return refusal or turn.refusal()
            doubtful = doubtful or isinstance(outcome, Unknown)
            if self._lease != turn.id or self._services.now() >= until:
                return refusal or self._not_surely_over()
            await anyio.sleep(max(0.0, self._return_at - self._services.now()))
        return refusal

    def _not_surely_over(self) -> OutcomeUnknownError:
        self._services.unknown_outcomes += 1
        return OutcomeUnknownError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): the store did not say that the turn is "
            f"over: until its lease has run out, {self._services.settings.turn_lease} s (turn_lease) at most, a turn "
            "of another process with on_busy='rollback' can take back what it committed; read the memory"
        )

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

    async def _pay(self, stile: Turnstile) -> StoreError | None:
        """Take back what a rollback owes, before anybody builds on it; return what prevented it."""
        assert stile.owed is not None
        failure = await self._undo(*stile.owed)
        if failure is None:
            stile.owed = None
        if failure is None or isinstance(failure, StoreError):
            return failure
        return StoreUnavailableError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): what a turn is to take back is not known to "
            "be taken back; nothing was changed"
        )

    async def _undo(self, to: int, at: int) -> Exception | None:
        """Take back the entries after `to` by one that says so; return what prevented it."""
        undoing = Request(UNDO, window=EVERYTHING, about=(to, at))
        undoing.state = TAKEN
        undoing.done = self._services.make_event()
        self._adopt(undoing)
        left = [undoing]
        while left and self._log is not None and self._corrupt is None:
            left = await self._round(left)
        self._answer(undoing, closed() if self._corrupt is None else fresh(self._corrupt))  # unless it has its answer
        return undoing.error


def committed_before(name: MemoryName, key: Key, stored: StoredReceipt) -> Exception:
    """Make the error of a turn whose key has a receipt."""
    receipt = replayed(name, key, stored)
    if isinstance(receipt, Exception):
        return receipt
    return TurnAlreadyCommittedError(
        f"memory {name.id!r} (namespace {name.namespace!r}): a turn with this idempotency key was committed before; "
        "use its receipt",
        receipt,
    )

"""How a turn of one memory begins, keeps other processes out, and is taken back."""

from __future__ import annotations

from abc import abstractmethod
from random import random

import anyio

from turnkeeper.errors import (
    StoreError,
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
    Rejected,
    Slice,
    StoredReceipt,
)
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import QUEUED, TAKEN, Request
from turnkeeper.services import Services
from turnkeeper.state import Log
from turnkeeper.turnstile import INTERRUPT, REJECT, ROLLBACK, WAITING, OpenTurn, busy

__all__ = ["TurnLedger", "committed_before"]


class TurnLedger(Ledger):
    """A ledger that opens turns. On a shared store each holds a lease, renewed while it is open."""

    __slots__ = ("_renew_at",)

    def __init__(self, name: MemoryName, services: Services) -> None:
        super().__init__(name, services)
        self._renew_at = 0.0

    @abstractmethod
    def _adopt(self, request: Request) -> None:
        """Count a request of our own among those that are to be answered."""

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
            failure = await self._undo(*turn.undo)
            stile.owed = None if failure is None else turn.undo
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
                self._forget_lease()
                self._lease = turn.id
                self._renew_at = self._services.now() + settings.turn_lease / 3
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
                self._forget_lease()
                self._lease, self._log = turn.id, None
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

    def _lease_is_due(self) -> bool:
        """Whether it is time to renew the lease, or to give it back: not while one of our own may take it over."""
        stile, now = self._turnstile, self._services.now()
        if stile is None:
            return True
        if stile.turn is not None and stile.turn.id == self._lease:
            return now >= self._renew_at
        return not stile.held or now < stile.closed_until

    async def _keep_lease(self) -> None:
        """Renew the lease, or give it back when its turn is over; or read what is needed for that."""
        stile, log, now = self._turnstile, self._log, self._services.now()
        turn = None if stile is None else stile.turn
        holds = turn is not None and turn.id == self._lease
        settings = self._services.settings
        if log is None:
            if await self._fetch(None, None) is None:
                return
            self._renew_at = now + settings.turn_lease / 3
            if not holds:
                self._forget_lease()  # it runs out
            return
        lease = Lease(self._lease, settings.turn_lease if holds else 0.0)
        outcome = await self._services.committer.commit(self._lease_slice(log, lease))
        if not holds:
            if log.n == 0:
                self._log = None  # its row is gone, or came with it
            if log.mid or not isinstance(outcome, Conflict):
                self._forget_lease()  # where it was not given back, it runs out
        elif isinstance(outcome, (Conflict, Held)):
            assert turn is not None
            assert stile is not None
            turn.end("lost")
            stile.release(turn)
            self._forget_lease()
        else:
            self._renew_at = now + settings.turn_lease / 3

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

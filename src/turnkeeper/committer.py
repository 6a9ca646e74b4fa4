"""Group commit: slices of many actors go into the store together, without a delay, and each gets its own outcome.

Commits have a thread and a connection of their own. A store that needs no thread is called inline.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio

from turnkeeper.config import Settings
from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.gathering import Gatherer, check_count, wrapped
from turnkeeper.lane import Lane, LaneTimeoutError
from turnkeeper.log import (
    NotCommitted,
    Outcome,
    Rejected,
    Slice,
    Unknown,
)
from turnkeeper.stores import Store

__all__ = ["Committer"]

_UNKNOWN: Final = Unknown()

_SETTLE_WAITS: Final = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each attempt to find out what became of a commit."""

_SETTLE_TIME: Final = 5.0
"""Seconds after which no further attempt begins, and that one attempt may take."""


class Committer(Gatherer[Slice, Outcome]):
    """Commits slices of many memories in groups.

    A commit that raises or takes too long is settled: the store is asked by entry id what became of it. What fails
    for a reason of its own is found by committing slice by slice, so one bad slice harms no other.
    """

    def __init__(self, store: Store, settings: Settings, lane: Lane | None, read_lane: Lane | None) -> None:
        """Commit through `lane` and settle through `read_lane`; both None: call the store inline."""
        super().__init__(settings.group_entries, settings.group_bytes)
        self._store = store
        self._lane = lane
        self._read_lane = read_lane
        self._timeout = settings.commit_timeout
        self._receipt_ttl = settings.idempotency_ttl

    async def commit(self, slice_: Slice) -> Outcome:
        """Commit one slice and return its outcome; never raises for the store's reasons.

        A cancelled caller does not stop the commit.
        """
        if self._lane is not None:
            return await self._ask(slice_)
        self.statistics.count(1)
        outcome: Outcome = _UNKNOWN
        try:
            outcome = self._store.commit((slice_,), receipt_ttl=self._receipt_ttl)[0]
        except Exception as error:
            outcome = await self._settle_one(slice_, wrapped(error, self._store, "commit"))
        finally:
            if self.told is not None:
                self.told((slice_,), (outcome,))
            if self.announce is not None:
                self.announce((slice_,), (outcome,))
        return outcome

    def _measure(self, item: Slice) -> tuple[int, int]:
        return len(item.entries), sum(len(message.raw) for entry in item.entries for message in entry.messages)

    async def _send(self, items: list[Slice]) -> list[Outcome]:
        assert self._lane is not None
        try:
            commit = partial(self._store.commit, items, receipt_ttl=self._receipt_ttl)
            outcomes = await self._lane.call(commit, timeout=self._timeout)
            check_count(outcomes, items)
            return outcomes
        except LaneTimeoutError as error:
            if not error.started:
                return [NotCommitted(self._too_slow()) for _ in items]
            # It may still land, so "not found" proves nothing: only what is found is known.
            found = await self._look_up(items)
            return [outcome or Unknown() for outcome in found or [None] * len(items)]
        except Exception as error:
            return await self._settle(items, wrapped(error, self._store, "commit"))

    async def _settle(self, slices: list[Slice], error: StoreError) -> list[Outcome]:
        """Find out what became of a group whose commit raised `error`, and commit what did not fail for it."""
        if len(slices) == 1:
            return [await self._settle_one(slices[0], error)]
        found = await self._look_up(slices)
        if found is None:
            return [Unknown() for _ in slices]
        outcomes: list[Outcome] = []
        for slice_, outcome in zip(slices, found, strict=True):
            if outcome is not None:
                outcomes.append(outcome)
            elif isinstance(error, StoreUnavailableError):
                outcomes.append(NotCommitted(error))
            else:
                outcomes.extend(await self._send([slice_]))
        return outcomes

    async def _settle_one(self, slice_: Slice, error: StoreError) -> Outcome:
        found = await self._look_up([slice_])
        if found is None:
            return Unknown()
        refused = NotCommitted if isinstance(error, StoreUnavailableError) else Rejected
        return found[0] or refused(error)

    async def _look_up(self, slices: list[Slice]) -> list[Outcome | None] | None:
        """Ask the store by entry id; None when it can't be asked."""
        patience = min(self._timeout, _SETTLE_TIME)
        until = anyio.current_time() + patience
        for wait in _SETTLE_WAITS:
            await anyio.sleep(wait)
            if wait and anyio.current_time() >= until:  # the first attempt took all of it: callers are waiting
                break
            try:
                settle = partial(self._store.settle, slices)
                if self._read_lane is None:
                    found = settle()
                else:
                    found = await self._read_lane.call(settle, timeout=patience)
                check_count(found, slices)
                return found
            except Exception:  # whatever keeps the store from answering: the attempts are bounded
                continue
        return None

    def _too_slow(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._store.describe()} did not get to the commit within {self._timeout} s (commit_timeout)"
        )

    def _lost(self, item: Slice, *, sent: bool) -> Outcome:
        if sent:
            return Unknown()
        return NotCommitted(StoreUnavailableError(f"{self._store.describe()} is closing"))

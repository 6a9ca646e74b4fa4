"""A runtime's store and its threads: opened, closed and called in bounds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio

from turnkeeper.config import Settings
from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.gathering import wrapped
from turnkeeper.lane import Job, Lane, LaneTimeoutError
from turnkeeper.log import Slice
from turnkeeper.stores import Reseal, Store

__all__ = ["Storage"]

T = TypeVar("T")

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_FOR_THE_STORE: Final = 1.0
"""Seconds that closing the store, with the leases of open turns given back, may take though draining has used up
`close_timeout`."""


class Storage:
    """The store, with one thread that writes, one that reads and one that announces; an inline store has the last only.

    Attributes:
        store: the store.
        leases_left: of turns that were open to the end, to be given back at closing.
        is_open: the store is open, or on its way there or back.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store: Store = store
        self.leases_left: list[Slice] = []
        self.is_open: bool = False
        self._settings = settings
        self._lanes: tuple[Lane, Lane] | tuple[()] = ()
        self._announcing: Lane | None = None

    @property
    def writing(self) -> Lane | None:
        """The thread that writes; None: the store is called inline."""
        return self._lanes[0] if self._lanes else None

    @property
    def reading(self) -> Lane | None:
        """The thread that reads; None: the store is called inline."""
        return self._lanes[1] if self._lanes else None

    @property
    def announcing(self) -> Lane | None:
        """The thread that tells other processes; None: the store can't."""
        return self._announcing

    async def open(self) -> None:
        """Open the store.

        Raises:
            StoreError: it can't be, or took longer than `commit_timeout`.
        """
        store, timeout = self.store, self._settings.commit_timeout
        open_it = partial(store.open, durability=self._settings.durability)
        self.is_open = True  # or on its way there: either way it has to be closed
        try:
            if store.inline:
                open_it()
            else:
                self._lanes = Lane("turnkeeper commit"), Lane("turnkeeper read")
                await self._lanes[0].call(open_it, timeout=timeout)
            if store.announces:  # some know only now
                self._announcing = Lane("turnkeeper announce")
        except LaneTimeoutError:
            slow = f"{store.describe()} did not open within {timeout} s (commit_timeout)"
            failure: StoreError = StoreUnavailableError(slow)
        except Exception as error:
            failure = wrapped(error, store, "open")
        else:
            return
        raise failure  # outside the handlers: a chained error could hold anything

    async def scrub(self) -> str | None:
        """Make what was deleted unreadable in the store's files; return what prevented it.

        Raises:
            StoreError: the store failed, or took too long; then it may still come to it.
        """
        return await self._between_commits(self.store.scrub, "scrub")

    async def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Put sealed payloads into the place of others; see `Store.reseal`.

        Raises:
            StoreError: the store failed, or took too long; then it may still come to it.
        """
        return await self._between_commits(partial(self.store.reseal, changes), "reseal")

    async def _between_commits(self, job: Callable[[], T], what: str) -> T:
        if not self._lanes:
            return job()
        timeout = self._settings.commit_timeout
        try:
            return await self._lanes[0].call(job, timeout=timeout)
        except LaneTimeoutError:
            slow = f"{self.store.describe()}: {what} was not done within {timeout} s (commit_timeout)"
            failure: StoreError = StoreUnavailableError(slow)
        except Exception as error:
            failure = wrapped(error, self.store, what)
        raise failure

    async def close(self, deadline: float) -> None:
        """Close the store, until the deadline or a moment longer; one that stalls is left to its thread.

        Raises:
            StoreError: it could not be closed.
        """
        job = self.begin_closing()
        if job is None:
            return
        with anyio.CancelScope(deadline=max(deadline, anyio.current_time() + _FOR_THE_STORE)):
            await job.done.wait()
        if not job.done.is_set():
            logger.warning("%s stalls; it is closed when it comes back", self.store.describe())
        elif job.error is not None:
            raise wrapped(job.error, self.store, "close")

    def begin_closing(self) -> Job[None] | None:
        """Close an inline store, or have another closed behind everything that its threads have to do, and end them.

        Returns:
            The closing, or None when there is nothing to wait for.
        """
        if not self.is_open:
            return None
        self.is_open = False
        announcing, self._announcing = self._announcing, None
        if not self._lanes:
            if announcing is not None:
                announcing.stop()
            if self.leases_left:
                self._give_back_leases()
            self._close_inline()
            return None
        (commits, reads), self._lanes = self._lanes, ()
        if self.leases_left:
            commits.post(self._give_back_leases)
        job = Job(self.store.close)

        def behind_the_others() -> None:
            commits.put(job)
            commits.stop()

        def behind_the_reads() -> None:
            if announcing is None:
                behind_the_others()
            else:
                announcing.put(last)
                announcing.stop()

        last = Job(behind_the_others)
        reads.post(behind_the_reads)
        reads.stop()
        return job

    def _give_back_leases(self) -> None:
        """Let other processes in where turns were open to the end; where that fails, their leases run out."""
        with contextlib.suppress(Exception):
            self.store.commit(self.leases_left, receipt_ttl=self._settings.idempotency_ttl)

    def _close_inline(self) -> None:
        try:
            self.store.close()
        except Exception as error:
            failure = wrapped(error, self.store, "close")
        else:
            return
        raise failure

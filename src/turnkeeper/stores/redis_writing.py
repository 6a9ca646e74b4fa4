"""Writing to a Redis server that may be lost at any moment, so that nothing is written twice and the truth is told.

A command on a lost connection may have been run, may be waiting in the server, or may never have arrived. So before
anything is looked up or sent again, the server is asked to end that connection (CLIENT KILL): then nothing of it can
land any more. A server that started anew has dropped its connections with its process; one that took over from another
must be a primary, which takes nothing from the old one any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from redis.exceptions import ResponseError

from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores.patience import waits
from turnkeeper.stores.redis_errors import LostError, explained, may_pass, was_not_run
from turnkeeper.stores.redis_links import Command, Identity, Link, Reply
from turnkeeper.stores.redis_urls import Place

__all__ = ["PATIENCE_SECONDS", "Writer"]

PATIENCE_SECONDS: Final = 8.0
"""After so long no further attempt is begun; one in progress ends by the driver's timeouts."""


class Writer:
    """The connection that writes, and what is known of it. `write` from one thread, `settle` from another.

    Args:
        place: where the server is.
        described: the store, for messages.
    """

    def __init__(self, place: Place, described: str) -> None:
        self._place = place
        self._described = described
        self._lock = Lock()
        self._living: list[Identity] = []  # connections that may carry something to the server
        self._open_outcome = False
        self._epoch = 0
        self._writing_since = 0
        self._closed = False
        self._fencing: list[Link] = []
        self.link: Link = Link(place, self._join)

    def close(self) -> None:
        """Close the connections for good."""
        with self._lock:
            self._closed = True
            links = [self.link, *self._fencing]
        for link in links:
            link.shut()

    def write(
        self, commands: Sequence[Command], find: Callable[[Link, list[int]], list[Reply | None]], action: str
    ) -> list[Reply]:
        """Send all, and again what a lost connection or a server's passing state kept from being run.

        Args:
            commands: each is run whole or not at all.
            find: looks up what became of some of them: what `write` is to return for each, None for what did nothing.
            action: what this is, for messages.

        Returns:
            For each the server's answer, what was found, or an error that says why it was not run.

        Raises:
            StoreUnavailableError: what became of some of it is not known.
        """
        with self._lock:
            self._writing_since = self._epoch
            self._open_outcome = True
        replies: list[Reply] = [LostError("LOST", sent=False)] * len(commands)
        left, lost = list(range(len(commands))), list[int]()
        error: Exception = LostError("LOST", sent=False)
        give_up = time.monotonic() + PATIENCE_SECONDS
        for wait in (*waits(), -1.0):
            self._check()
            try:
                if lost:
                    self._end_connections(action)
                    found = find(self.link, lost)
                    for n, reply in zip(lost, found, strict=True):
                        replies[n] = reply
                    left = sorted({*left, *(n for n, reply in zip(lost, found, strict=True) if reply is None)})
                    lost = []
                for n, reply in zip(left, self.link.run([commands[n] for n in left]), strict=True):
                    replies[n] = reply
                lost = [n for n in left if isinstance(replies[n], LostError) and replies[n].sent]
                left = [n for n in left if n not in set(lost) and isinstance(replies[n], Exception)]
                again = [n for n in left if may_pass(replies[n])]
                if not lost and not again:
                    break
                left, error = again, replies[(lost or again)[0]]
            except (LostError, ResponseError) as failure:
                error = failure
            if wait < 0 or time.monotonic() > give_up or not may_pass(error):
                break
            time.sleep(wait)
        self._check()
        if lost:
            raise explained(error, self._described, action) from None
        with self._lock:
            self._open_outcome = False
        for n, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[n] = explained(reply, self._described, action)
        return replies

    def settle(self) -> None:
        """Make sure that nothing of a write that raised, or is still under way, lands any more.

        Raises:
            LostError: that can't be seen to just now.
            StoreUnavailableError: that can't be seen to.
        """
        with self._lock:
            if not self._open_outcome:
                return
            self._epoch += 1
        self._end_connections("settle", own=False)
        with self._lock:
            self._open_outcome = self._open_outcome and bool(self._living)

    # Helpers

    def _join(self, identity: Identity) -> None:
        """Take note of a connection before anything is sent on it; refuse it to a write that was settled meanwhile."""
        with self._lock:
            if self._writing_since != self._epoch:
                raise LostError("LOST", sent=False)
            self._living.append(identity)

    def _check(self) -> None:
        with self._lock:
            settled, closed = self._writing_since != self._epoch, self._closed
        if closed:
            raise StoreUnavailableError(f"{self._described} was closed meanwhile")
        if settled:
            raise StoreUnavailableError(f"{self._described}: the commit took too long and was given up")

    def _end_connections(self, action: str, *, own: bool = True) -> None:
        if own:
            self.link.close()
        link = Link(self._place)
        with self._lock:
            living = list(self._living)
            if self._closed:
                raise LostError("LOST", sent=False)
            self._fencing.append(link)
        try:
            for identity in living:
                self._end(link, identity, action)
        finally:
            link.close()
            with self._lock:
                self._fencing.remove(link)
        with self._lock:
            self._living = [identity for identity in self._living if identity not in living]

    def _end(self, link: Link, identity: Identity, action: str) -> None:
        asked = link.run_at(identity.address, [("INFO", "server"), ("INFO", "replication")])
        if isinstance(asked[0], LostError) and self._place.cluster:
            if identity.address in link.addresses():
                raise LostError("LOST", sent=False)
            return  # the others made a replica take its place: what it still takes is never seen
        for reply in asked:
            if isinstance(reply, LostError):
                raise LostError(reply.reason, sent=False)
        if any(isinstance(reply, Exception) for reply in asked) or not identity.run:
            raise self._no_fence(action, "INFO")
        server, replication = (reply.decode("utf-8", "replace") for reply in asked)
        if f"run_id:{identity.run}" not in server.split():
            if "role:master" not in replication.split():
                raise LostError("READONLY", sent=False)
            return
        if not identity.client:
            raise self._no_fence(action, "CLIENT ID")
        killed = link.run_at(identity.address, [("CLIENT", "KILL", "ID", identity.client)])[0]
        if isinstance(killed, LostError):
            raise LostError(killed.reason, sent=False)
        if isinstance(killed, Exception):
            if was_not_run(killed):
                raise LostError("LOST", sent=False)
            raise self._no_fence(action, "CLIENT KILL")

    def _no_fence(self, action: str, right: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._described}: {action} lost its connection, and the server does not let this user have {right}, so "
            "what became of it is not known; docs/redis.md lists the rights that are needed"
        )

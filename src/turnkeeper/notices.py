"""Notices between processes: other ones are told that something was committed, and theirs are heard.

A notice says nothing but "look": it may get lost, so whoever waits for one looks now and then all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import random
from typing import Any, Final

import anyio

from turnkeeper.lane import Job, Lane
from turnkeeper.log import Committed, Outcome, Slice, Unknown
from turnkeeper.stores import Store

__all__ = ["Notices"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_AT_ONCE: Final = 1.0
"""Seconds that one call listens: so long may a thread stay after the last listener has left."""

_APART: Final = 0.01
"""Seconds between two notices that are passed on; those that come in between are one."""

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds before a store that could not listen is asked again; each time twice as many, times a random share."""


class Notices:
    """What one runtime tells others, and hears of them. While nobody listens there is no thread and no task for it."""

    def __init__(
        self, store: Store, lane: Lane, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        """Announce through `lane`; `spawn` starts a task of the runtime."""
        self._store = store
        self._lane = lane
        self._spawn = spawn
        self._queued = False  # an announcement is on its way, and has not begun: it covers what is committed now
        self._listeners: dict[Callable[[], None], None] = {}
        self._listening = False
        self._job: Job[bool] | None = None
        self._closed = False

    # Telling

    def committed(self, slices: Sequence[Slice], outcomes: Sequence[Outcome]) -> None:
        """Tell others of a group, if there is something in it for them; never waits and never fails."""
        if not self._queued and any(map(_concerns_others, slices, outcomes)):
            self._queued = True
            self._lane.post(self._announce)

    def _announce(self) -> None:
        self._queued = False  # first: what is committed from here on needs the next one
        try:
            self._store.announce()
        except Exception as error:
            logger.debug("a notice to other processes failed with %s", type(error).__name__)

    # Hearing

    def enter(self, heard: Callable[[], None]) -> None:
        """Have a function called, in the event loop, whenever another process told of something."""
        self._listeners[heard] = None
        self._start()

    def leave(self, heard: Callable[[], None]) -> None:
        """Call it no more. Harmless when repeated."""
        self._listeners.pop(heard, None)

    def close(self) -> None:
        """Hear nothing more; a thread that listens is left behind, and ends by itself."""
        self._closed = True
        self._listeners.clear()

    def _start(self) -> None:
        if not (self._listening or self._closed) and self._listeners:
            self._listening = True
            self._spawn(self._listen)

    async def _listen(self) -> None:
        lane, pause = Lane("turnkeeper listen"), _SHORTEST_PAUSE
        try:
            while self._listeners:
                # One call at a time: a task that was cancelled natively may have left one behind.
                job = self._job = self._job or lane.post(partial(self._store.listen, _AT_ONCE))
                await job.done.wait()
                self._job = None
                if job.error is not None:
                    logger.debug("listening to other processes failed with %s", type(job.error).__name__)
                    await anyio.sleep(pause * (0.5 + random()))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _SHORTEST_PAUSE
                if job.result:
                    for heard in list(self._listeners):
                        heard()
                    await anyio.sleep(_APART)
        except anyio.get_cancelled_exc_class():
            if self._closed:
                raise
            logger.error("a task of the runtime was cancelled from outside; it goes on")
        finally:
            self._listening = False
            lane.stop()
        self._start()


def _concerns_others(slice_: Slice, outcome: Outcome) -> bool:
    if isinstance(outcome, Committed):
        return bool(slice_.entries) or slice_.delete or (slice_.lease is not None and slice_.lease.steal)
    return isinstance(outcome, Unknown)

"""Which memories are in RAM and which have a task: found, started, let go in order of use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio

from turnkeeper.actor import Actor
from turnkeeper.config import Settings
from turnkeeper.names import MemoryName

__all__ = ["Residency"]

_SHORTEST_SWEEP: Final = 0.05
_LONGEST_SWEEP: Final = 5.0
_PINNED_SKIPPED: Final = 16
"""Pinned memories passed over in one go when room is needed: they are the most recently used ones soon."""


class Residency:
    """At most one actor a memory, in order of use; one sweeper for all, no timer for any.

    Whether a memory may go is decided in the same synchronous step in which it goes, so no request can slip between.

    Args:
        settings: linger, idle timeout, and the bounds on memories and bytes in RAM.
        make_actor: makes the actor of a memory that is not in RAM.
        clock: the loop's clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        make_actor: Callable[[MemoryName], Actor],
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._linger = settings.linger
        self._idle_timeout = settings.idle_timeout
        self._max_resident = settings.max_resident
        self._max_bytes = settings.max_resident_bytes
        self._make_actor = make_actor
        self._clock = clock
        waits = [self._linger] if self._idle_timeout is None else [self._linger, self._idle_timeout]
        self._interval = min(max(min(waits) / 2, _SHORTEST_SWEEP), _LONGEST_SWEEP)
        # Two orders of use: a sweep looks at the old end of each and stops early.
        self._resident: OrderedDict[MemoryName, Actor] = OrderedDict()
        self._running: OrderedDict[MemoryName, Actor] = OrderedDict()
        # A coarse clock, set by each sweep and so behind by one interval at most: asking the loop for the time at
        # every request would cost a microsecond.
        self._now = clock()
        self._wake = anyio.Event()
        self.bytes: int = 0
        self.peak: int = 0
        self.unloads: int = 0

    def __len__(self) -> int:
        return len(self._resident)

    @property
    def running(self) -> int:
        """How many memories have a task."""
        return len(self._running)

    def find(self, name: MemoryName) -> Actor | None:
        """Return the actor of a memory that is in RAM, and count it as used."""
        actor = self._resident.get(name)
        if actor is not None:
            actor.used = self._now
            self._resident.move_to_end(name)
        return actor

    def find_or_make(self, name: MemoryName) -> Actor:
        """Return the memory's actor; what has been idle longest makes room for a new one."""
        actor = self.find(name)
        return self._make(name) if actor is None else actor

    def _make(self, name: MemoryName) -> Actor:
        self._make_room(1)
        actor = self._resident[name] = self._make_actor(name)
        actor.used = self._now
        self.peak = max(self.peak, len(self._resident))
        self._wake.set()
        return actor

    def started(self, actor: Actor) -> None:
        """Note that an actor has a task now."""
        self._running[actor.name] = actor

    def settle(self, actor: Actor) -> None:
        """Note that an actor has answered what it took: count its bytes, and make room if they are too many."""
        if self._resident.get(actor.name) is not actor:
            return
        actor.used = self._now
        if actor.name in self._running:
            self._running.move_to_end(actor.name)
        self.bytes += actor.size - actor.counted
        actor.counted = actor.size
        if self._too_much(0):
            self._make_room(0)

    async def sweep_for_ever(self) -> None:
        """End idle tasks and drop idle memories, as long as there are any."""
        while True:
            if not self._running and (self._idle_timeout is None or not self._resident):
                self._wake = anyio.Event()
                await self._wake.wait()
            await anyio.sleep(self._interval)
            self.sweep()

    def sweep(self) -> None:
        """Do one sweep: tasks idle for at least `linger` end, memories idle for at least `idle_timeout` leave RAM."""
        self._now = self._clock()
        now = self._now - self._interval
        for _ in range(len(self._running)):
            name, actor = next(iter(self._running.items()))
            if actor.used > now - self._linger:
                break
            if actor.pinned:
                self._running.move_to_end(name)
            else:
                self._end_task(actor)
        if self._idle_timeout is None:
            return
        for _ in range(len(self._resident)):
            name, actor = next(iter(self._resident.items()))
            if actor.used > now - self._idle_timeout:
                break
            if actor.pinned:
                self._resident.move_to_end(name)
            else:
                self._drop(actor)

    def unload(self, name: MemoryName) -> bool:
        """Drop a memory from RAM now; False when it is not there or pinned."""
        actor = self._resident.get(name)
        if actor is None or actor.pinned:
            return False
        self._drop(actor)
        return True

    def actors(self) -> list[Actor]:
        """Return all actors in RAM."""
        return list(self._resident.values())

    def _make_room(self, coming: int) -> None:
        skipped = 0
        while self._resident and self._too_much(coming) and skipped < _PINNED_SKIPPED:
            name, actor = next(iter(self._resident.items()))
            if actor.pinned:
                self._resident.move_to_end(name)
                skipped += 1
            else:
                self._drop(actor)

    def _too_much(self, coming: int) -> bool:
        if self._max_resident is not None and len(self._resident) + coming > self._max_resident:
            return True
        return self._max_bytes is not None and self.bytes > self._max_bytes

    def _drop(self, actor: Actor) -> None:
        self._end_task(actor)
        del self._resident[actor.name]
        self.bytes -= actor.counted
        self.unloads += 1

    def _end_task(self, actor: Actor) -> None:
        actor.end_task()
        self._running.pop(actor.name, None)

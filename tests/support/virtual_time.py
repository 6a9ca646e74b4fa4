"""Backends on which time is virtual: when nothing else is ready, the clock jumps to the next timer.

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
    async def test_idle_memories_are_unloaded_after_an_hour() -> None: ...

Each test (and each Hypothesis example) starts at time 0. A clock can't know that a thread is still working and jumps
on, so never combine virtual time with a store that uses threads.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from trio.testing import MockClock


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that jumps to its next timer instead of waiting for it."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._jump))
        # A timer is due before `time() + resolution`. The nanosecond of the real clock is lost in rounding after half a
        # year, and the loop would wait for ever for a timer set to now.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:  # no timer is set: only another thread or a signal can wake the loop
            return super().select(None)
        self._jump(max(timeout, 0.0))
        return ready


class _FreshClock(dict[str, Any]):
    """Trio options with a new clock each time they are unpacked: a used MockClock goes on where it stopped.

    `f(**options)` reads a dict subclass through `keys` and `__getitem__` only when `__iter__` is overridden too.
    """

    def __init__(self) -> None:
        super().__init__(clock=None)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __getitem__(self, key: str) -> MockClock:
        assert key == "clock"
        return MockClock(autojump_threshold=0)


VIRTUAL_TIME_BACKENDS = [
    pytest.param(("asyncio", {"debug": True, "loop_factory": VirtualTimeLoop}), id="asyncio-virtual"),
    pytest.param(("trio", _FreshClock()), id="trio-virtual"),
]

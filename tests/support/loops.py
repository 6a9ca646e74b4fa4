"""What differs between asyncio and trio for the test tools, in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import trio
from trio.testing import MockClock

from support.virtual_time import VirtualTimeLoop


@dataclass(frozen=True, slots=True)
class RunningLoop:
    """The event loop the caller runs in, to be used from other threads and signal handlers.

    Attributes:
        is_virtual: time jumps, so real time must not be measured.
    """

    is_virtual: bool
    _call_soon: Callable[[Callable[[], object]], object]
    _tasks: Callable[[], list[tuple[str, object]]]

    @classmethod
    def current(cls) -> RunningLoop:
        """Describe the running loop."""
        if trio.lowlevel.in_trio_task():
            root = trio.lowlevel.current_root_task()
            assert root is not None
            return cls(
                is_virtual=isinstance(trio.lowlevel.current_clock(), MockClock),
                _call_soon=trio.lowlevel.current_trio_token().run_sync_soon,
                _tasks=lambda: [(task.name, task.coro) for task in _trio_tasks(root)],
            )
        loop = asyncio.get_running_loop()
        return cls(
            is_virtual=isinstance(loop, VirtualTimeLoop),
            _call_soon=loop.call_soon_threadsafe,
            _tasks=lambda: [(task.get_name(), task.get_coro()) for task in asyncio.all_tasks(loop)],
        )

    def post(self, callback: Callable[[], object]) -> None:
        """Have the loop's thread call `callback` soon. Does nothing once the loop has ended."""
        with suppress(RuntimeError):  # "loop is closed"; trio.RunFinishedError is one as well
            self._call_soon(callback)

    def tasks(self) -> list[tuple[str, object]]:
        """Return name and coroutine of each task. For the loop's own thread only."""
        return self._tasks()


def _trio_tasks(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    pending = [root]
    while pending:
        task = pending.pop()
        yield task
        for nursery in task.child_nurseries:
            pending.extend(nursery.child_tasks)

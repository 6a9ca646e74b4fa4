"""A runtime's life: entered and left by one task, closed and opened again when told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from statemachine.witness import Witness
from turnkeeper import Runtime, open_runtime

PATIENCE: Final = 10.0
"""Seconds that nothing here may take: nobody hangs."""


class Lifetime:
    """Keeps a runtime open; `group` is for tasks of the test's own, and outlives it."""

    def __init__(self, make_store: Callable[[], Witness], **options: Any) -> None:
        self._make_store = make_store
        self._options = options
        self.store: Witness
        self.runtime: Runtime
        self.group: TaskGroup
        self._reopen = anyio.Event()
        self._opened = anyio.Event()
        self._last = False

    async def keep(self) -> None:
        """Keep a runtime open until told to stop, and open another one on the same store when told."""
        async with anyio.create_task_group() as self.group:
            while not self._last:
                self.store = self._make_store()
                async with open_runtime(self.store, **self._options) as self.runtime:
                    self.opened()
                    self._opened.set()
                    await self._reopen.wait()
                    self._reopen = anyio.Event()
                    if self._last:
                        self.group.cancel_scope.cancel()
                assert self.runtime.stats().pending == self.runtime.stats().pending_bytes == 0
            self._opened.set()

    def opened(self) -> None:
        """Note that there is another runtime."""

    async def start(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self._opened.wait()

    async def leave(self, *, last: bool = False) -> None:
        """Close the runtime, and open another one on the same store unless it is the last."""
        self._last = last
        self._opened = anyio.Event()
        self._reopen.set()
        with anyio.fail_after(PATIENCE):
            await self._opened.wait()

"""An event loop in a daemon thread of its own, with something open in it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["LoopThread", "starting"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

T = TypeVar("T")

starting: Final = threading.RLock()
"""Held while a loop starts. A fork has to wait for it: what is being imported then would stay locked in the child."""


class LoopThread(Generic[T]):
    """Runs an asyncio event loop in a daemon thread, and keeps a context manager open in it.

    `anyio.from_thread.start_blocking_portal` does the same, but leaves a suspended generator with whoever entered it:
    a forked child, or an interpreter at its end, would run that to its end and wait for a loop that is not there.

    Args:
        name: the thread's name.
        make: makes the context manager, in the loop.

    Raises:
        Exception: what kept it from opening.

    Attributes:
        value: what the context manager returned.
        portal: the way into the loop for other threads.
    """

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """Start, and wait until it is open."""
        self._make = make
        self._opened: Future[tuple[T, BlockingPortal]] = Future()
        self._unwanted = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with starting:
            self._thread.start()
            try:
                wait([self._opened])
            except BaseException:  # Ctrl-C: nobody will ever stop it
                self._unwanted = True
                if self._opened.done():
                    self.stop(0)
                raise
        self.value: T
        self.portal: BlockingPortal
        self.value, self.portal = self._opened.result()

    def stop(self, timeout: float) -> None:
        """Cancel what other threads started, leave the context manager, and wait for the end at most `timeout` seconds.

        May be called again.
        """
        with contextlib.suppress(Exception):  # it has ended, or never began
            portal = self._opened.result(0)[1]
            portal.start_task_soon(portal.stop, True)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if self._opened.done():
                logger.error("%s ended with %s", self._thread.name, type(error).__name__)
            else:
                self._opened.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as value, BlockingPortal() as portal:
            self._opened.set_result((value, portal))
            if not self._unwanted:
                await portal.sleep_until_stopped()

"""Deleting the memories of objects that were collected, without ever making the collector wait."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from turnkeeper.names import MemoryName

__all__ = ["Deleting", "Reaper"]

_DELETED_AT_ONCE: Final = 1_000


class Deleting(Protocol):
    """A runtime, as far as this goes.

    Attributes:
        unused: nothing can have been stored through it.
    """

    unused: bool

    def delete(self, names: Sequence[MemoryName]) -> None:
        """Delete memories."""


class Reaper:
    """A thread that deletes the memories of objects that were collected.

    The garbage collector calls `put` in any thread and between any two instructions, so that takes no lock: both
    queues may be appended to from within themselves.
    """

    def __init__(self) -> None:
        self._dead: deque[tuple[Deleting, MemoryName]] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lock = threading.RLock()

    def put(self, runtime: Deleting, name: MemoryName) -> None:
        """Have a memory deleted soon."""
        if not runtime.unused:
            self._dead.append((runtime, name))
            self._wake.put(True)

    def start(self) -> None:
        """Make sure that the thread runs."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(target=self._run, name="turnkeeper reaper", daemon=True)
                    self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread for good, and wait at most `timeout` seconds; what was not deleted ends with the process."""
        self._stopped = True
        self._dead.clear()
        if self._thread is not None:
            self._wake.put(False)
            self._thread.join(timeout)

    def start_anew(self) -> None:
        """Forget the parent's thread: called in a forked child. What was not deleted yet is deleted here, too."""
        self._wake = SimpleQueue()
        self._lock = threading.RLock()
        self._thread = None
        if self._dead:
            self._wake.put(True)

    def _run(self) -> None:
        wake = self._wake
        while wake.get():
            by_runtime: dict[Deleting, list[MemoryName]] = {}
            for _ in range(min(len(self._dead), _DELETED_AT_ONCE)):
                runtime, name = self._dead.popleft()
                by_runtime.setdefault(runtime, []).append(name)
            if self._dead:
                wake.put(True)
            for runtime, names in by_runtime.items():
                # A runtime that is closed, or whose loop is gone or stalls, must not end this thread.
                with contextlib.suppress(Exception):
                    runtime.delete(names)
            del by_runtime

"""Locks between processes on side files, with a bound on the wait."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final
from weakref import WeakSet

from turnkeeper.errors import StoreUnavailableError

try:
    import fcntl
except ImportError:  # a platform without flock: the SQLite store says so when it is opened
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock"]

_held: Final[WeakSet[FileLock]] = WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.close()


# A forked child would hold its parent's locks for as long as it lives, also when the parent is long gone.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)

_FIRST_WAIT: Final = 0.0002
_LONGEST_WAIT: Final = 0.005


class FileLock:
    """An advisory `flock` on a side file (mode 0600, created on first use, never removed).

    The lock belongs to this object's open file, so two of them exclude each other in one process too, and the kernel
    drops it when the process dies. Not for concurrent use by several threads.
    """

    def __init__(self, path: Path) -> None:
        """Name the side file; nothing is opened yet."""
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, exclusive: bool, timeout: float) -> bool:
        """Take the lock and return True, or False when others held it for `timeout` seconds (0: don't wait).

        Raises:
            StoreUnavailableError: the side file can't be opened, or the platform has no `flock`.
        """
        if fcntl is None:
            raise StoreUnavailableError("this platform has no flock, which the SQLite store needs")
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreUnavailableError(f"can't open the lock file {self.path}: {error.strerror}") from error
            _held.add(self)
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        deadline = time.monotonic() + timeout
        wait = _FIRST_WAIT
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
                return True
            # flock knows no timeout, and a blocking call could not be given up: poll, with waits that grow.
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT)

    def release(self) -> None:
        """Give the lock back and keep the file open."""
        if fcntl is not None and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def note_owner(self, *, alone: bool) -> None:
        """Write this process's id into the side file, for the message that another runtime gets; or nothing, if it
        is one of several.
        """
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode() if alone else b"", 0)

    def owner(self) -> str:
        """Return what the owner noted, or "?"."""
        with contextlib.suppress(OSError):
            noted = self.path.read_text(encoding="ascii", errors="replace").strip()
            return noted if noted.isdigit() else "?"
        return "?"

    def close(self) -> None:
        """Drop lock and file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

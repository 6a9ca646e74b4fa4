"""How much the whole runtime has on its plate: pending requests and their bytes, with two lines at the door."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import anyio

from turnkeeper.config import Settings
from turnkeeper.errors import OverloadedError, RuntimeClosedError

__all__ = ["Admission"]


class _Waiter:
    __slots__ = ("admitted", "size", "woken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.woken = anyio.Event()
        self.admitted = False


_Line: TypeAlias = OrderedDict[_Waiter, None]
"""One leaves from its middle in one step."""


class Admission:
    """Counts requests from admission to answer. When full, callers wait in line, first come, first served.

    One request alone is always let in, however large: otherwise it could never be. Reads have a bound and a line of
    their own: writers may wait for somebody's turn, and must not keep reads from those who don't.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_pending = settings.max_pending
        self._max_bytes = settings.max_pending_bytes
        self._reject = settings.on_overload == "reject"
        self._lines: tuple[_Line, _Line] = OrderedDict(), OrderedDict()  # of writes and of reads
        self._empty = anyio.Event()
        self._closed = False
        self._reads = 0
        self.pending: int = 0
        self.pending_bytes: int = 0
        self.peak_pending: int = 0
        self.peak_bytes: int = 0
        self.overloaded: int = 0

    @property
    def waiting(self) -> int:
        """Callers in line."""
        return sum(map(len, self._lines))

    def admit(self, size: int, reads: bool = False) -> bool:
        """Admit a request of `size` bytes now, or return False."""
        if self._lines[reads] or not self._fits(size, reads):
            return False
        self._count(size, reads)
        return True

    def force(self, size: int) -> None:
        """Admit what others wait for, room or no room; it counts as a write."""
        self._count(size, False)

    async def wait(self, size: int, reads: bool = False) -> None:
        """Get in line until there is room. A cancelled caller leaves the line and has changed nothing.

        Raises:
            OverloadedError: the runtime is set to refuse instead.
            RuntimeClosedError: it closed meanwhile.
        """
        if self._reject:
            self.overloaded += 1
            raise OverloadedError(
                f"{self.pending} requests with {self.pending_bytes} bytes are pending (max_pending={self._max_pending},"
                f" max_pending_bytes={self._max_bytes}); retry later, or wait in line with on_overload='wait'"
            )
        waiter = _Waiter(size)
        line = self._lines[reads]
        line[waiter] = None
        try:
            await waiter.woken.wait()
        except BaseException:
            if waiter.admitted:
                self.release(size, reads)
            elif line.pop(waiter, waiter) is None:
                self._let_in(reads)  # it may have been the only one that did not fit
            raise
        if not waiter.admitted:
            raise RuntimeClosedError("the runtime closed before the request was admitted; nothing was changed")

    def release(self, size: int, reads: bool = False) -> None:
        """Note that a request was answered or abandoned."""
        self.pending -= 1
        self.pending_bytes -= size
        if reads:
            self._reads -= 1
        if self._lines[reads]:
            self._let_in(reads)
        if not self.pending and self._closed:
            self._empty.set()

    def close(self) -> None:
        """Turn away the lines."""
        self._closed = True
        if not self.pending:
            self._empty.set()
        for line in self._lines:
            while line:
                line.popitem(last=False)[0].woken.set()

    async def drained(self) -> None:
        """Wait, after `close`, until every admitted request is answered."""
        await self._empty.wait()

    def _fits(self, size: int, reads: bool) -> bool:
        if reads:  # they bring no messages
            return self._reads < self._max_pending
        writes = self.pending - self._reads
        return not writes or (writes < self._max_pending and self.pending_bytes + size <= self._max_bytes)

    def _count(self, size: int, reads: bool) -> None:
        self.pending += 1
        self.pending_bytes += size
        if reads:
            self._reads += 1
        if self.pending > self.peak_pending:
            self.peak_pending = self.pending
        if self.pending_bytes > self.peak_bytes:
            self.peak_bytes = self.pending_bytes

    def _let_in(self, reads: bool) -> None:
        line = self._lines[reads]
        while line and self._fits((waiter := next(iter(line))).size, reads):
            del line[waiter]
            waiter.admitted = True
            self._count(waiter.size, reads)
            waiter.woken.set()

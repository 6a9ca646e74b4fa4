"""How much the whole runtime has on its plate: pending requests and their bytes, with a line at the door."""

from __future__ import annotations

from collections import OrderedDict

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


class Admission:
    """Counts requests from admission to answer. When full, callers wait in line, first come, first served.

    One request alone is always let in, however large: otherwise it could never be.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_pending = settings.max_pending
        self._max_bytes = settings.max_pending_bytes
        self._reject = settings.on_overload == "reject"
        self._line: OrderedDict[_Waiter, None] = OrderedDict()  # leaves from the middle in one step
        self._empty = anyio.Event()
        self._closed = False
        self.pending: int = 0
        self.pending_bytes: int = 0
        self.peak_pending: int = 0
        self.peak_bytes: int = 0
        self.overloaded: int = 0

    @property
    def waiting(self) -> int:
        """Callers in line."""
        return len(self._line)

    def admit(self, size: int) -> bool:
        """Admit a request of `size` bytes now, or return False."""
        if self._line or not self._fits(size):
            return False
        self._count(size)
        return True

    def force(self, size: int) -> None:
        """Admit a request that others wait for, room or no room."""
        self._count(size)

    async def wait(self, size: int) -> None:
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
        self._line[waiter] = None
        try:
            await waiter.woken.wait()
        except BaseException:
            if waiter.admitted:
                self.release(size)
            elif self._line.pop(waiter, waiter) is None:
                self._let_in()  # it may have been the only one that did not fit
            raise
        if not waiter.admitted:
            raise RuntimeClosedError("the runtime closed before the request was admitted; nothing was changed")

    def release(self, size: int) -> None:
        """Note that a request was answered or abandoned."""
        self.pending -= 1
        self.pending_bytes -= size
        if self._line:
            self._let_in()
        if not self.pending and self._closed:
            self._empty.set()

    def close(self) -> None:
        """Turn away the line."""
        self._closed = True
        if not self.pending:
            self._empty.set()
        while self._line:
            self._line.popitem(last=False)[0].woken.set()

    async def drained(self) -> None:
        """Wait, after `close`, until every admitted request is answered."""
        await self._empty.wait()

    def _fits(self, size: int) -> bool:
        if not self.pending:
            return True
        return self.pending < self._max_pending and self.pending_bytes + size <= self._max_bytes

    def _count(self, size: int) -> None:
        self.pending += 1
        self.pending_bytes += size
        if self.pending > self.peak_pending:
            self.peak_pending = self.pending
        if self.pending_bytes > self.peak_bytes:
            self.peak_bytes = self.pending_bytes

    def _let_in(self) -> None:
        while self._line and self._fits((waiter := next(iter(self._line))).size):
            del self._line[waiter]
            waiter.admitted = True
            self._count(waiter.size)
            waiter.woken.set()

"""A list of messages on its way from one state to the next: what requests make of it, computed without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from turnkeeper.log import ADD, CLEAR, SET
from turnkeeper.messages import Message, encode_messages
from turnkeeper.requests import Request
from turnkeeper.state import Log
from turnkeeper.windows import Messages, Window

__all__ = ["Draft"]


class Draft:
    """The messages that a store has for one id, with requests applied to them in order.

    The store is to hold what the window of the last writer shows, without the results that the window made up: what
    is evicted leaves at once.

    Attributes:
        given: the messages as they were read; None: nobody has needed them.
        changed: whether the store has to be written.
    """

    __slots__ = ("_limit", "_log", "_window", "changed", "given")

    def __init__(self) -> None:
        """Start without knowing anything."""
        self.given: tuple[Message, ...] | None = None
        self.changed: bool = False
        self._log: Log | None = None
        self._window: Window | None = None  # the last writer's
        self._limit: int | None = None

    def needs(self, request: Request) -> bool:
        """Tell whether a request can't be applied before the messages are read."""
        return self._log is None and request.op not in (SET, CLEAR)

    def read(self, messages: tuple[Message, ...]) -> None:
        """Take what the store has."""
        self.given = messages
        self._log = _log_of(messages)

    def apply(self, request: Request, memory_id: str) -> Messages | None:
        """Apply a request, and return what it is to be answered with.

        Raises:
            Exception: what the limit's function raised; nothing was changed.
        """
        window = request.window
        limit = None if window is None else window.limit(memory_id)
        if request.op in (SET, CLEAR):
            self._log = _log_of(request.messages)
            self._wrote(window, limit)
            return None
        if self._window is not None and self._window != window:
            self._log = _log_of(self.stored())
            self._window = None
        assert self._log is not None
        assert window is not None
        if request.op == ADD:
            messages = self._log.without_equal_system(request.messages)
            if messages:
                self._log.append(messages)
                self._wrote(window, limit)
            return None
        view = self._log.view(window, limit)
        assert view is not None
        return view

    def _wrote(self, window: Window | None, limit: int | None) -> None:
        self._window, self._limit = window, limit
        self.changed = True

    def stored(self) -> tuple[Message, ...]:
        """Return what the store is to hold."""
        assert self._log is not None
        shown: Sequence[Message] = self._log.messages
        if self._window is not None:
            view = self._log.view(self._window, self._limit)
            assert view is not None
            shown = [message for message in view if not message.synthetic]
        return encode_messages(shown)  # copies without a place in this log, which means nothing outside of it


def _log_of(messages: tuple[Message, ...]) -> Log:
    log = Log()
    log.append(messages)
    return log

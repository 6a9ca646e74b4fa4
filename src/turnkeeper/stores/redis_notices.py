"""Notices between processes: a channel of the Redis server on which each tells the others that it committed."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from turnkeeper.stores.redis_errors import LostError, explained
from turnkeeper.stores.redis_links import Link, command, hang_up
from turnkeeper.stores.redis_urls import Place

__all__ = ["Notices"]


class Notices:
    """Announces on one connection and listens on another, each from its own thread and made when it is needed."""

    def __init__(self, place: Place, described: str) -> None:
        self._place = place
        self._described = described
        self._channel: Final = f"{place.prefix}:changes"
        self._token: Final = os.urandom(16).hex().encode()
        self._out = Link(place)
        self._in: Any = None
        self._closed = False

    def announce(self) -> None:
        """Tell the others."""
        reply = self._out.run([command("", "PUBLISH", self._channel, self._token)])[0]
        if isinstance(reply, Exception):
            raise explained(reply, self._described, "announce") from None

    def listen(self, timeout: float) -> bool:
        """Wait for a notice of another one; see `Store.listen`."""
        if self._closed:
            return False
        try:
            if self._in is None:
                self._subscribe()
                return True
            until = time.monotonic() + timeout
            while self._in.can_read(max(0.0, until - time.monotonic())):
                said = self._in.read_response()
                if said[0] == b"message" and said[2] != self._token:
                    return True
            return False
        except Exception as error:
            listening, self._in = self._in, None
            if listening is not None:
                hang_up(listening)
            if self._closed:
                return False
            lost = error if isinstance(error, LostError) else LostError.of(error, sent=False)
            raise explained(lost, self._described, "listen") from None

    def _subscribe(self) -> None:
        address = Link(self._place).addresses()[0] if self._place.cluster else (self._place.host, self._place.port)
        connection = self._place.connection(*address)
        try:
            connection.connect()
            connection.send_command("SUBSCRIBE", self._channel)
            connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        self._in = connection
        if self._closed:
            raise LostError("LOST", sent=False)

    def close(self) -> None:
        """Close both for good; who listens is woken."""
        self._closed = True
        self._out.shut()
        listening = self._in
        if listening is not None:
            hang_up(listening)

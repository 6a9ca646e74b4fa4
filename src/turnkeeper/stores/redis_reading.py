"""Reading from a Redis server: what is lost or passes is simply asked again, for a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from turnkeeper.errors import TurnkeeperError
from turnkeeper.stores.patience import patiently
from turnkeeper.stores.redis_errors import LostError, code_of, explained, may_pass
from turnkeeper.stores.redis_links import Command, Link, Reply, command
from turnkeeper.stores.redis_urls import Place
from turnkeeper.stores.redis_writing import PATIENCE_SECONDS

__all__ = ["Reader"]

T = TypeVar("T")


class Reader:
    """The connection that reads; from one thread at a time.

    Attributes:
        link: the connection.
        pure: the server can call scripts that only read as such (Redis 7), which a user without the right to write may.
    """

    def __init__(self, place: Place, described: str) -> None:
        self.link: Link = Link(place)
        self.pure: bool = True
        self._described = described

    def close(self) -> None:
        """Close the connection for good."""
        self.link.shut()

    def look_at_server(self) -> None:
        """Connect, and find out what the server can do."""

        def ask() -> Reply:
            reply = self.link.run([command("", "INFO", "server")])[0]
            if isinstance(reply, LostError) or (isinstance(reply, Exception) and code_of(reply) != "NOPERM"):
                raise reply
            return reply

        info = self.patiently(ask, "open")
        lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else []
        version = next((line.partition(":")[2] for line in lines if line.startswith("redis_version:")), "7")
        self.pure = int(version.partition(".")[0]) >= 7

    def all(self, commands: Sequence[Command], action: str) -> list[Reply]:
        """Send commands and return all answers, or raise what the first error means."""

        def attempt() -> list[Reply]:
            replies = self.link.run(commands)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

        return self.patiently(attempt, action)

    def patiently(self, attempt: Callable[[], T], action: str) -> T:
        """Return what `attempt()` returns; while it fails for what may pass, try again."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        try:
            return patiently(attempt, again=lambda error: may_pass(error) and time.monotonic() < give_up)
        except TurnkeeperError:
            raise
        except Exception as error:
            raise explained(error, self._described, action) from None

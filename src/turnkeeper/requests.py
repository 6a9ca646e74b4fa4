"""What travels through a mailbox: one small object a request, with a slot for its answer and one event."""

from __future__ import annotations

from typing import Any, Final

import anyio

from turnkeeper.log import Key, Version
from turnkeeper.messages import Message
from turnkeeper.windows import Window

__all__ = ["ABANDONED", "DELETE", "DONE", "QUEUED", "READ", "STATS", "TAKEN", "Request"]

DELETE: Final = "delete"
READ: Final = "read"
STATS: Final = "stats"

QUEUED: Final = 0
"""In the mailbox, or on its way there: a caller that leaves now has changed nothing."""
TAKEN: Final = 1
"""Past the point of no return: it runs to its end, whether its caller stays or not."""
ABANDONED: Final = 2
"""Its caller left in time; it never runs."""
DONE: Final = 3
"""Answered."""


class Request:
    """One request to one memory, made in its caller's task or thread.

    Attributes:
        op: "add", "set", "clear", "delete", "read" or "stats".
        messages: what it writes, encoded.
        size: bytes it counts for in the runtime's bound on pending bytes.
        key: idempotency key and content digest, or None.
        if_version: the version that the memory must be at, or None.
        window: the window of the handle, or the one that a read asks for: so much of the
            log the request needs; None: its head.
        prunes: whether what the window evicts leaves the store as well.
        state: QUEUED, TAKEN, ABANDONED or DONE.
        done: set when the answer is there; made when the request enters its event loop.
        result: the answer, unless `error` is set.
    """

    __slots__ = ("done", "error", "if_version", "key", "messages", "op", "prunes", "result", "size", "state", "window")

    done: anyio.Event

    def __init__(
        self,
        op: str,
        messages: tuple[Message, ...] = (),
        *,
        key: Key | None = None,
        if_version: Version | None = None,
        window: Window | None = None,
        prunes: bool = False,
    ) -> None:
        self.op: str = op
        self.messages: tuple[Message, ...] = messages
        self.size: int = len(messages[0].raw) if len(messages) == 1 else sum([len(message.raw) for message in messages])
        self.key: Key | None = key
        self.if_version: Version | None = if_version
        self.window: Window | None = window
        self.prunes: bool = prunes
        self.state: int = QUEUED
        self.result: Any = None
        self.error: Exception | None = None

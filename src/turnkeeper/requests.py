"""What travels through a mailbox: one small object a request, with a slot for its answer and one event."""

from __future__ import annotations

from typing import Any, Final

import anyio

from turnkeeper.log import FORK, Key, Version
from turnkeeper.messages import Message
from turnkeeper.turnstile import ENQUEUE, OpenTurn
from turnkeeper.windows import Window

__all__ = [
    "ABANDONED",
    "ALONE",
    "CLOSE_TURN",
    "DELETE",
    "DESCRIBE",
    "DONE",
    "FORK_OFF",
    "LOOK_BACK",
    "ONLY_EXISTING",
    "OPEN_TURN",
    "PASSING",
    "PRUNE",
    "QUEUED",
    "READ",
    "READING",
    "RESTORE",
    "SET_METADATA",
    "STATS",
    "TAKEN",
    "TURN_ADD",
    "TURN_READ",
    "TURN_TRY",
    "UNDO_TURNS",
    "Request",
]

DELETE: Final = "delete"
DESCRIBE: Final = "describe"
CLOSE_TURN: Final = "close turn"
LOOK_BACK: Final = "look back"
OPEN_TURN: Final = "open turn"
TURN_ADD: Final = "turn add"
TURN_READ: Final = "turn read"
TURN_TRY: Final = "turn try"
READ: Final = "read"
PRUNE: Final = "prune"
SET_METADATA: Final = "set metadata"
RESTORE: Final = "restore"
STATS: Final = "stats"
FORK_OFF: Final = "fork off"
UNDO_TURNS: Final = "undo turns"

READING: Final = frozenset((READ, STATS, LOOK_BACK, FORK_OFF, DESCRIBE))
"""What changes nothing."""

PASSING: Final = READING | {SET_METADATA}
"""What waits for nobody's turn: it changes no version."""

ALONE: Final = frozenset((FORK, RESTORE, SET_METADATA, PRUNE))
"""What shares a commit with nothing else."""

ONLY_EXISTING: Final = -1
"""In the place of the revision that metadata must be at: any, but there must be such a memory."""

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
        op: what is asked: "add", "set", "clear", or one of the constants of this module.
        messages: what it writes, encoded.
        size: bytes it counts for in the runtime's bound on pending bytes.
        key: idempotency key and content digest, or None.
        if_version: the version that the memory must be at, or None.
        window: the window of the handle, or the one that a read asks for: so much of the
            log the request needs; None: its head.
        prunes: whether what the window evicts leaves the store as well.
        turn: the turn that it opens, or belongs to.
        on_busy: what an opening does while another turn is open.
        about: what its op needs besides, as the function says that applies it (`plan` and `revising`).
        ends: whether the turn ends with it, whatever its outcome.
        state: QUEUED, TAKEN, ABANDONED or DONE.
        done: set when the answer is there; made when the request enters its event loop.
        result: the answer, unless `error` is set.
    """

    __slots__ = (
        "about",
        "done",
        "ends",
        "error",
        "if_version",
        "key",
        "messages",
        "on_busy",
        "op",
        "prunes",
        "result",
        "size",
        "state",
        "turn",
        "window",
    )

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
        turn: OpenTurn | None = None,
        on_busy: str = ENQUEUE,
        ends: bool = False,
        about: Any = None,
    ) -> None:
        self.op: str = op
        self.messages: tuple[Message, ...] = messages
        self.size: int = len(messages[0].raw) if len(messages) == 1 else sum([len(message.raw) for message in messages])
        self.key: Key | None = key
        self.if_version: Version | None = if_version
        self.window: Window | None = window
        self.prunes: bool = prunes
        self.turn: OpenTurn | None = turn
        self.on_busy: str = on_busy
        self.ends: bool = ends
        self.about: Any = about
        self.state: int = QUEUED
        self.result: Any = None
        self.error: Exception | None = None

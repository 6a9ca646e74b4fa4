"""Who may write to one memory while a turn is open, and who waits. Pure: no I/O, no `async`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from turnkeeper.errors import OverloadedError, TurnBusyError, TurnEndedError, TurnInterruptedError
from turnkeeper.log import Version
from turnkeeper.names import MemoryName

if TYPE_CHECKING:
    import anyio

    from turnkeeper.messages import Message
    from turnkeeper.requests import Request

__all__ = [
    "ENDED",
    "ENQUEUE",
    "INTERRUPT",
    "ON_BUSY",
    "OPEN",
    "REJECT",
    "ROLLBACK",
    "WAITING",
    "OpenTurn",
    "Turnstile",
    "busy",
]

ENQUEUE: Final = "enqueue"
REJECT: Final = "reject"
INTERRUPT: Final = "interrupt"
ROLLBACK: Final = "rollback"
ON_BUSY: Final = (ENQUEUE, REJECT, INTERRUPT, ROLLBACK)
"""What becomes of a turn that is opened while another is open. LangGraph's platform names the same four."""

WAITING: Final = 0
OPEN: Final = 1
ENDED: Final = 2

_QUEUED: Final = 0
"""As in `requests`, which imports this module."""

_FEWEST_IN_LINE: Final = 64
"""A line shorter than this is not looked through for those who left it."""

_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between looks at whether another process's turn is over."""

_REASONS: Final = {
    "interrupt": "another turn interrupted it; what it had committed stays",
    "rollback": "another turn took its place; nothing of it is left",
    "expired": "it lasted longer than max_duration",
    "lost": "another process took its place, its lease ran out, or the memory's task ended",
}


class OpenTurn:
    """One turn, as its caller and the actor share it. Used in the event loop's thread alone.

    Attributes:
        id: 16 random bytes.
        name: the memory.
        state: WAITING, OPEN or ENDED.
        reason: why it ended, when it was not left: "interrupt", "rollback", "expired", "lost".
        over: set when it ended that way.
        max_duration: seconds from opening to expiry.
        deadline: when it expires, by the loop's clock.
        since: the memory's version when it began.
        at: its version after the turn's own last commit.
        alone: no other process can write: whatever came since it began is its own.
        unsure: the store did not say whether one of its commits happened, so `at` may be behind.
        undo: what it takes back before it begins: the number of the entry to which the log goes back, and that at
            which the log has to stand for it (-1: any); None: nothing.
    """

    __slots__ = (
        "alone",
        "at",
        "deadline",
        "id",
        "max_duration",
        "name",
        "over",
        "reason",
        "since",
        "state",
        "undo",
        "unsure",
    )

    def __init__(self, name: MemoryName, max_duration: float, over: anyio.Event, *, alone: bool = True) -> None:
        self.id: bytes = os.urandom(16)
        self.name: MemoryName = name
        self.state: int = WAITING
        self.reason: str = ""
        self.over: anyio.Event = over
        self.max_duration: float = max_duration
        self.deadline: float = 0.0
        self.since: Version = Version(0, 0)
        self.at: Version = Version(0, 0)
        self.alone: bool = alone
        self.unsure: bool = False
        self.undo: tuple[int, int] | None = None

    def begin(self, now: float, since: Version) -> None:
        """Open it."""
        self.state = OPEN
        self.deadline = now + self.max_duration
        self.since = self.at = since

    def advance(self, version: Version) -> None:
        """Note one of its own commits."""
        self.at = version

    def follows(self, version: Version, tentative: int = 0) -> bool:
        """Tell whether nobody else has written since it began; so many entries of its own are under way."""
        if self.unsure and self.alone:
            return True
        return self.at.n + tentative == version.n and self.at.mid in (0, version.mid)

    def trace(self) -> tuple[int, int] | None:
        """Return what takes back what it committed, as `undo`; None: it committed nothing."""
        if self.unsure and self.alone:
            return self.since.n, -1
        return None if self.at == self.since else (self.since.n, self.at.n)

    def end(self, reason: str = "") -> None:
        """End it, once: whatever its caller does next is refused. With a reason, that is told to who watches."""
        if self.state != ENDED:
            self.state = ENDED
            self.reason = reason
            if reason:
                self.over.set()

    def lose(self) -> None:
        """Note, of one that is being left, that another process had taken its place."""
        self.reason = "lost"
        self.over.set()

    def refusal(self, messages: Sequence[Message] = ()) -> Exception | None:
        """Return why nothing can be done in it, not even with what it was to say; None while it is open."""
        if self.state == OPEN:
            return None
        where = f"memory {self.name.id!r} (namespace {self.name.namespace!r})"
        if self.reason:
            return TurnInterruptedError(
                f"{where}: the turn is over: {_REASONS[self.reason]}",
                self.reason,
                [message.to_dict() for message in messages],
            )
        return TurnEndedError(f"{where}: the turn is not open; use it inside its 'async with'")


class Turnstile:
    """Lets one turn through at a time. Writes from outside it wait, in order; reads never do.

    Attributes:
        turn: the one that is open, or being opened.
        held: requests that wait for it to end.
        urgent: requests of the open turn itself: they pass before everything else.
        owed: what a turn was to take back and could not; see `OpenTurn.undo`.
        closed_until: when to ask the store again, by the loop's clock, after another process's turn kept us out.
    """

    __slots__ = ("_most", "_pause", "_tidy_at", "closed_until", "held", "owed", "turn", "urgent")

    def __init__(self, most: int) -> None:
        """Let at most so many turns wait."""
        self._most: int = most
        self.turn: OpenTurn | None = None
        self.held: deque[Request] = deque()
        self.urgent: deque[Request] = deque()
        self.owed: tuple[int, int] | None = None
        self.closed_until: float = 0.0
        self._pause: float = _SHORTEST_PAUSE
        self._tidy_at: int = _FEWEST_IN_LINE

    def next(self, now: float) -> Request | None:
        """Return who is next by right: the open turn's own requests, then those that waited until it was over."""
        if self.urgent:
            return self.urgent.popleft()
        if self.turn is None and self.held and now >= self.closed_until:
            return self.held.popleft()
        return None

    def close(self, now: float) -> None:
        """Let nobody write for a while: another process's turn is open."""
        self.closed_until = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def reopen(self) -> None:
        """Note that no other process is in the way."""
        self._pause = _SHORTEST_PAUSE

    def meet(self, request: Request, now: float) -> Exception | bool:
        """Say whether a write or an opening may pass now; otherwise it is held, or refused with the error returned."""
        turn = self.turn
        if turn is not None and turn.state == OPEN and now >= turn.deadline:
            self._end("expired")
            turn = None
        self._tidy()
        opening = request.turn
        if turn is None and not self.held:
            return True
        if opening is not None:
            if request.on_busy == REJECT:
                return busy(opening)
            if request.on_busy in (INTERRUPT, ROLLBACK):
                if turn is not None:
                    if turn.state == WAITING:
                        opening.undo = turn.undo  # what it was to take back, this one does
                    elif request.on_busy == ROLLBACK:
                        opening.undo = turn.trace()
                    self._end(request.on_busy)
                return True
            if sum(waiting.turn is not None and waiting.state == _QUEUED for waiting in self.held) >= self._most:
                return OverloadedError(
                    f"memory {opening.name.id!r} (namespace {opening.name.namespace!r}): {self._most} turns wait "
                    "already (mailbox_size); retry later"
                )
        self.held.append(request)
        return False

    def _tidy(self) -> None:
        """Forget who left the line: they count for nothing, and must not pile up behind a long turn."""
        while self.held and self.held[0].state != _QUEUED:
            self.held.popleft()
        if len(self.held) >= self._tidy_at:
            staying = [waiting for waiting in self.held if waiting.state == _QUEUED]
            self.held.clear()
            self.held.extend(staying)
            self._tidy_at = max(_FEWEST_IN_LINE, 2 * len(staying))

    def release(self, turn: OpenTurn) -> None:
        """Let others through, if this is the turn that keeps them."""
        if self.turn is turn:
            self.turn = None

    def wake_at(self) -> float | None:
        """Return when the turn is over, or who waits may go on, by the loop's clock; None: not by time alone."""
        if self.turn is not None:
            return self.turn.deadline if self.turn.state == OPEN else None
        return self.closed_until if self.held else None

    @property
    def still(self) -> bool:
        """Whether a turn is open that asks for nothing: until it does, nothing can change."""
        return self.turn is not None and self.turn.state == OPEN and not self.urgent

    def drop(self) -> None:
        """End the turn with the actor's task; who waited has an answer."""
        if self.turn is not None:
            self._end("lost")

    def expire(self, now: float) -> None:
        """End a turn that lasted too long."""
        if self.turn is not None and self.turn.state == OPEN and now >= self.turn.deadline:
            self._end("expired")

    def _end(self, reason: str) -> None:
        assert self.turn is not None
        self.turn.end(reason)
        self.turn = None


def busy(turn: OpenTurn) -> TurnBusyError:
    """Make the error of a turn that was not to wait."""
    return TurnBusyError(
        f"memory {turn.name.id!r} (namespace {turn.name.namespace!r}): another turn is open; wait for it with "
        "on_busy='enqueue', or take its place with on_busy='interrupt' or 'rollback'"
    )

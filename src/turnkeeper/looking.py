"""Answers to requests that change nothing: what a memory shows, what it is, and what a turn would be shown.

Pure. What a log in RAM does not hold is noted in the plan as lacking.
"""

from __future__ import annotations

from typing import Any

from turnkeeper.compactable import Compactable, compactable
from turnkeeper.errors import TurnConflictError, WindowOverflowError
from turnkeeper.forking import fork_off
from turnkeeper.messages import Message
from turnkeeper.metadata import describe
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING, Plan
from turnkeeper.requests import (
    DESCRIBE,
    FORK_OFF,
    LOOK_BACK,
    TURN_READ,
    Request,
)
from turnkeeper.state import Log
from turnkeeper.stats import MemoryStats
from turnkeeper.windows import LimitedWindow, Messages, TurnWindow

__all__ = ["conflicting", "look", "look_ahead", "overflowing", "read"]


def look(log: Log, request: Request, plan: Plan, name: MemoryName) -> Any:
    """Answer what changes nothing; most of it needs the whole state."""
    if request.op == DESCRIBE:
        return describe(name, log.head)
    if request.op == LOOK_BACK and request.about is not None:
        settled = _is_short(log, request.about, plan, name)
        if settled is not False:
            return settled
    if not log.complete:
        plan.lacking = EVERYTHING, None
        return None
    if request.op == LOOK_BACK:
        return _look_back(log, request, name)
    if request.op == FORK_OFF:
        return fork_off(log)
    return MemoryStats(log.version, log.count, log.size, log.created_at, log.updated_at)


def read(log: Log, request: Request, plan: Plan, name: MemoryName) -> Messages | Exception | None:
    """Answer a read with its view, or with what its window raised; None: the plan says what is lacking."""
    window = request.window or EVERYTHING
    try:
        limit = window.limit(name.id)
        view = log.view(window, limit)
    except Exception as error:  # a window is the user's code: it fails its own request only
        return error
    if view is None:
        plan.lacking = window, limit
    return view


def _is_short(log: Log, when: LimitedWindow, plan: Plan, name: MemoryName) -> Exception | bool | None:
    """Return False when a window can't show the state whole; otherwise what a compaction is answered."""
    try:
        limit = when.limit(name.id)
        if not log.covers(when, limit):
            plan.lacking = when, limit
            return None
        return False if log.hides(when, limit) else None
    except Exception as error:  # a limit function of the user's
        return error


def _look_back(log: Log, request: Request, name: MemoryName) -> Compactable | Exception | None:
    window = request.window
    assert isinstance(window, TurnWindow)
    try:
        return compactable(log, window, window.limit(name.id))
    except Exception as error:  # a limit function of the user's
        return error


def look_ahead(log: Log, request: Request, plan: Plan, name: MemoryName) -> Messages | Exception | None:
    """Answer a turn that asks what would be seen if it were committed, or whether all of it would be."""
    window = request.window or EVERYTHING
    assert request.turn is not None
    if not request.turn.follows(log.version, len(plan.entries)):
        return conflicting(name, request.messages)
    try:
        limit = window.limit(name.id)
        if not log.covers(window, limit):
            plan.lacking = window, limit
            return None
        if request.op == TURN_READ:
            return log.view_with(request.messages, window, limit)
    except Exception as error:
        return error
    mark = log.mark()
    taken = log.append(request.messages, window, limit, judging=True)
    if taken:
        log.rollback(mark)
    elif taken is None:
        plan.lacking = EVERYTHING, None
    else:
        return overflowing(name, limit)
    return None


def conflicting(name: MemoryName, messages: tuple[Message, ...]) -> TurnConflictError:
    """Make the error of a turn that others wrote into; it keeps what the turn had said."""
    return TurnConflictError(
        f"memory {name.id!r} (namespace {name.namespace!r}): the turn had it no longer to itself; "
        "nothing was committed now, and its messages are in the error",
        [message.to_dict() for message in messages],
    )


def overflowing(name: MemoryName, limit: int | None) -> WindowOverflowError:
    """Make the error of a message that its window would not show."""
    return WindowOverflowError(
        f"memory {name.id!r} (namespace {name.namespace!r}): a message would not be visible in the window, whose limit "
        f"is {limit}: it is too large, or a result whose call the window does not show or that has its result; raise "
        "the limit, shorten the message, or choose another on_overflow; nothing was changed"
    )

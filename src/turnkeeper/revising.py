"""Changes to what was said: turns undone, messages popped, edited, removed, and memories forked. Pure.

Each takes one entry. A function here applies a request to a log and says what entry it makes; what it is `about` stands
in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from turnkeeper.compactable import Compactable, unchanged
from turnkeeper.errors import (
    AcknowledgedDataLostError,
    CompactionAbandonedError,
    ConflictError,
    InvalidMessageError,
    MessageNotFoundError,
)
from turnkeeper.log import COMPACT, EDIT, POP, REMOVE, UNDO, Details, Receipt, Removed
from turnkeeper.messages import (
    Message,
    SystemMessage,
    ToolMessage,
    encode_messages,
    links_of,
    make_place,
    place_of,
    same,
    split_place,
)
from turnkeeper.names import MemoryName
from turnkeeper.requests import UNDO_TURNS, Request
from turnkeeper.state import Log
from turnkeeper.windows.transcript import Exchange

__all__ = [
    "REVISING",
    "Result",
    "Revision",
    "compact",
    "revise",
    "roll_back",
    "stale",
]


class Revision(msgspec.Struct, frozen=True, gc=False):
    """An entry to be made, of which the log holds the effect already, and what its request is answered."""

    op: str
    details: Details
    messages: tuple[Message, ...]
    answer: Receipt | Removed


Result: TypeAlias = Revision | Receipt | Removed | Exception | None
"""What a request comes to: an entry; an answer, when there is nothing to do; an error; None: more has to be loaded."""


def _undo(log: Log, request: Request, name: MemoryName) -> Result:
    """Take off the last turns; about: how many. What stood before the first user message stays."""
    transcript, turns = log.transcript, request.about
    starts = transcript.turns
    if len(starts) < turns and not log.complete:
        return None
    if not starts:
        return Removed(log.version, ())
    opening = transcript.units[starts[-min(turns, len(starts))] - transcript.start]
    assert not isinstance(opening, Exchange)
    return _take_off(log, UNDO, place_of(opening))


def _pop(log: Log, request: Request, name: MemoryName) -> Result:
    """Take off the last message, whatever it is. A summary is none."""
    if (last := log.last) is None:
        return Removed(log.version, ()) if log.complete else None
    return _take_off(log, POP, place_of(last))


def _take_off(log: Log, op: str, cut: int) -> Result:
    removed = log.messages_from(cut)
    if _hides_system(log, removed):
        return None
    was, number = log.transcript.system, log.system
    log.undo(cut)
    version, index = split_place(cut)
    details = _with_system(log, was, number, Details(to=version - 1, part=index))
    return Revision(op, details, (), Removed(log.version, removed))


def _with_system(
    log: Log, was: Message | None, number: int, details: Details, brought: Message | None = None
) -> Details:
    """Let an entry that took something away say which system message is current now, where it was another."""
    now = log.transcript.system
    if now is was:
        return details
    log.settle_system(now)
    return replace(details, system=number, stays=None if now is brought else _state(now))


def _state(system: Message | None) -> tuple[int, int, str] | None:
    return None if system is None else (*split_place(place_of(system)), system.raw.decode())


def _hides_system(log: Log, removed: tuple[Message, ...]) -> bool:
    """Tell whether a system message goes, and the log does not know which one is current then."""
    return not log.complete and any(isinstance(message, SystemMessage) for message in removed)


def _edit(log: Log, request: Request, name: MemoryName) -> Result:
    """Put the request's message in the place of another; about: that one's id. Calls and results keep their ids."""
    old = _find(log, request.about)
    if old is None:
        return _unknown(name) if log.complete else None
    new = request.messages[0]
    if new.role != old.role or links_of(new) != links_of(old):
        return InvalidMessageError(0, "role, tool_calls or tool_call_id", "is not that of the message to be edited")
    fields, own = new.to_dict(), old.to_dict().get("id")
    if fields.get("id") not in (None, old.id):
        return InvalidMessageError(0, "id", "is not that of the message to be edited")
    if own is None:
        fields.pop("id", None)
    else:
        fields["id"] = own
    (new,) = encode_messages([fields])
    if same(old, new):
        return Receipt(log.version, 0)
    if _hides_system(log, (old,)):
        return None
    was, number, place = log.transcript.system, log.system, place_of(old)
    log.edit(place, new)
    details = _with_system(log, was, number, Details(places=(split_place(place),)), new)
    return Revision(EDIT, details, (new,), Receipt(log.version, 1))


def _remove(log: Log, request: Request, name: MemoryName) -> Result:
    """Take a message out; about: its id. Calls and their results go together."""
    found = _find(log, request.about)
    if found is None:
        return _unknown(name) if log.complete else None
    removed = _with_its_exchange(log, found)
    if removed is None or _hides_system(log, removed):
        return None
    was, number = log.transcript.system, log.system
    places = [place_of(message) for message in removed]
    log.remove(frozenset(places))
    details = _with_system(log, was, number, Details(places=tuple([split_place(place) for place in places])))
    return Revision(REMOVE, details, (), Removed(log.version, removed))


def _with_its_exchange(log: Log, message: Message) -> tuple[Message, ...] | None:
    """Return what goes with a message; None: its call may be older than what is held."""
    for unit in log.transcript.units:
        if isinstance(unit, Exchange) and (unit.call is message or any(each is message for each in unit.results)):
            return (unit.call, *unit.results)
    return (message,) if log.complete or not isinstance(message, ToolMessage) else None


def _find(log: Log, message_id: str) -> Message | None:
    """Return the message of the state that has this id, of several the latest. A summary's are none."""
    before = log.transcript.system_before
    version, _, index = message_id.partition(".")
    automatic = version.isdecimal() and index.isdecimal() and len(message_id) < 20
    place = make_place(int(version), int(index)) if automatic else -1
    known = log.messages if before is None else (before, *log.messages)
    for message in reversed(known):
        # A message is decoded only where it can be the one.
        if (place_of(message) == place or b'"id"' in message.raw) and message.id == message_id:
            return message
    return None


def _unknown(name: MemoryName) -> MessageNotFoundError:
    return MessageNotFoundError(
        f"memory {name.id!r} (namespace {name.namespace!r}) shows no message with this id; nothing was changed"
    )


REVISING: Final[dict[str, Callable[[Log, Request, MemoryName], Result]]] = {
    UNDO_TURNS: _undo,
    POP: _pop,
    EDIT: _edit,
    REMOVE: _remove,
}
"""How each of these requests is applied."""


def revise(log: Log, request: Request, name: MemoryName) -> Result:
    """Apply a request to a log."""
    return stale(log, request, name) or REVISING[request.op](log, request, name)


def roll_back(log: Log, request: Request) -> Result:
    """Take back what a turn committed; about: `OpenTurn.undo`. Needs all messages."""
    to, at = request.about
    if log.n == to or (at >= 0 and log.n != at):
        return Receipt(log.version, 0)
    was, number = log.transcript.system, log.system
    log.undo(make_place(to + 1, 0))
    return Revision(UNDO, _with_system(log, was, number, Details(to=to)), (), Receipt(log.version, 0))


def compact(log: Log, request: Request, name: MemoryName) -> Result:
    """Put the request's messages in the place of what they sum up; about: that `Compactable`. Needs all messages."""
    seen: Compactable = request.about
    if not unchanged(log, seen):
        return CompactionAbandonedError(
            f"memory {name.id!r} (namespace {name.namespace!r}): what was summed up was replaced meanwhile; "
            "nothing was changed"
        )
    system, number = log.system_until(seen.to), log.system
    current = system is not None and system is log.transcript.system
    log.compact(seen.to, request.messages, system, current=current)
    details = Details(to=seen.to, system=number if current else 0, stays=_state(system))
    return Revision(COMPACT, details, request.messages, Receipt(log.version, len(request.messages)))


def stale(log: Log, request: Request, name: MemoryName) -> AcknowledgedDataLostError | ConflictError | None:
    """Return why a request that hangs on a version can't be applied."""
    expected = request.if_version
    if expected is None or expected == log.version:
        return None
    if expected.mid == log.mid and expected.n > log.n:  # a version is there only once it was acknowledged
        return AcknowledgedDataLostError(name.id, name.namespace, expected, log.version)
    return ConflictError(
        f"memory {name.id!r} (namespace {name.namespace!r}) is at version {log.version}, not {expected}: "
        "read it again and decide anew"
    )

"""Applying a batch of requests to a log: pure, synchronous, and tentative until the store has spoken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from turnkeeper.errors import ConflictError, InvalidArgumentError
from turnkeeper.forking import Copy, fork, parent_of, restore
from turnkeeper.log import (
    ADD,
    CLEAR,
    COMPACT,
    FORK,
    SET,
    UNDO,
    Details,
    Entry,
    NewMeta,
    Receipt,
)
from turnkeeper.looking import conflicting, look, look_ahead, overflowing, read
from turnkeeper.messages import Message, SystemMessage
from turnkeeper.metadata import Metadata, decode_metadata, describe, encode_metadata
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING, Plan
from turnkeeper.requests import (
    ALONE,
    DELETE,
    ONLY_EXISTING,
    PRUNE,
    READ,
    RESTORE,
    SET_METADATA,
    TURN_ADD,
    TURN_READ,
    TURN_TRY,
    Request,
)
from turnkeeper.revising import (
    REVISING,
    Result,
    Revision,
    compact,
    revise,
    roll_back,
    stale,
)
from turnkeeper.state import Log
from turnkeeper.windows import LimitedWindow, TurnWindow

__all__ = ["apply"]

_CURRENT_TURN: Final = TurnWindow(max_turns=1)


def apply(
    log: Log, batch: Sequence[Request], name: MemoryName, random_bytes: Callable[[int], bytes], *, max_writers: int
) -> Plan:
    """Apply requests to `log` in order, as far as one slice reaches; the log's entries are tentative afterwards.

    A slice ends before a delete, before and behind what goes alone, before a key that it already uses, before a request
    that needs older messages than the log holds, and after `max_writers` writers. Entries are named by `random_bytes`,
    16 each.
    """
    plan = Plan()
    if log.moved == log.n:
        plan.begins = log.base, log.system
    keys: set[str] | None = None
    ids = random_bytes(16 * len(batch))
    for request in batch:
        if len(plan.writers) == max_writers or (request.op in ALONE and plan.consumed):
            break
        if request.key is not None:
            if keys is None:
                keys = set()
            elif request.key.key in keys:
                break
            keys.add(request.key.key)
        if request.op == DELETE and (log.n or log.meta_version):  # else there is none, or a row for a lease alone
            if not plan.consumed:
                plan.deletes = request
                plan.writers.append(request)
                plan.answers.append((request, True))
                plan.consumed = 1
            break
        answer = _answer(log, request, plan, name, ids)
        if plan.lacking is not None:
            break
        plan.answers.append((request, answer))
        plan.consumed += 1
        if request.op in ALONE:
            break
    if plan.pruning is not None:
        plan.prune = plan.base = _prunable(log, plan.pruning, name)
    return plan


def _prunable(log: Log, window: LimitedWindow, name: MemoryName) -> int:
    try:
        base = log.prunable(window, window.limit(name.id))
    except Exception:  # a limit function that fails now; the next write prunes what this one leaves
        return 0
    return base if base > 1 else 0


def _answer(log: Log, request: Request, plan: Plan, name: MemoryName, ids: bytes) -> Any:
    op, messages = request.op, request.messages
    if op == READ:
        return read(log, request, plan, name)
    turn_id = b""
    if request.turn is not None:
        refusal = request.turn.refusal(messages)
        if refusal is not None:
            return refusal
        if op in (TURN_READ, TURN_TRY):
            return look_ahead(log, request, plan, name)
        turn_id = request.turn.id
        # Several tasks of one turn may add at once, and then their entries share a slice.
        if not request.turn.follows(log.version, sum([entry.turn_id == turn_id for entry in plan.entries])):
            return conflicting(name, messages)
    details = None
    if op in (ADD, TURN_ADD):
        if not messages:
            return Receipt(log.version, 0)
        # Who reads the log from here on has to find the system message from before.
        brings = isinstance(messages[-1], SystemMessage) or (len(messages) > 1 and _brings_system(messages))
        system = log.system if brings else 0
        if isinstance(request.window, LimitedWindow):
            # With a key there has to be a receipt, and so an entry; the views ignore an equal system message anyway.
            if not request.window.whole_turns and request.key is None:
                messages = log.without_equal_system(messages)
                if not messages:
                    return Receipt(log.version, 0)
            refusal = _write(log, request, messages, request.window, plan, name)
            if refusal is not None or plan.lacking is not None:
                return refusal
        else:
            log.append(messages)
        if system and log.system != system:
            details = Details(system=system)
    elif op == SET:
        if (refusal := stale(log, request, name)) is not None:
            return refusal
        if isinstance(request.window, LimitedWindow):
            refusal = _write(log, request, messages, request.window, plan, name)
            if refusal is not None:
                return refusal
        else:
            log.replace(messages)
    elif op == CLEAR:
        if log.complete and not log.count:
            return Receipt(log.version, 0)
        log.replace(())
    elif op in REVISING or op in (COMPACT, UNDO, FORK, RESTORE):
        revision = _revise(log, request, plan, name)
        if op == FORK and isinstance(revision, (Copy, Revision)) and (parent := parent_of(request)) is not None:
            stored = replace(decode_metadata(log.meta), parent=parent)
            plan.meta = NewMeta(log.meta_version, encode_metadata(stored))
        if isinstance(revision, Copy):
            plan.entries.extend(revision.entries)
            plan.writers.append(request)
            return revision.answer
        if not isinstance(revision, Revision):
            return revision
        _enter(plan, request, ids, revision.op, revision.messages, revision.details)
        return revision.answer
    elif op == SET_METADATA:
        return _set_metadata(log, request, plan, name)
    elif op == PRUNE:
        return _prune(log, request, plan)
    elif op == DELETE:
        return False  # there is no such memory
    else:
        return look(log, request, plan, name)
    # What a turn commits bit by bit may be taken back as a whole: nothing leaves before its end.
    lasts = request.turn is None or request.ends
    if request.prunes and lasts and isinstance(request.window, LimitedWindow):
        plan.pruning = request.window
    _enter(plan, request, ids, ADD if turn_id else op, messages, details, turn_id)
    return Receipt(log.version, len(messages))


def _enter(
    plan: Plan,
    request: Request,
    ids: bytes,
    op: str,
    messages: tuple[Message, ...],
    details: Details | None,
    turn_id: bytes = b"",
) -> None:
    place = 16 * len(plan.entries)
    if plan.begins is not None and not plan.entries:
        details = replace(details or Details(), begins=plan.begins)
    plan.entries.append(Entry(op, ids[place : place + 16], messages, request.key, details, turn_id))
    plan.writers.append(request)


def _brings_system(messages: tuple[Message, ...]) -> bool:
    return any(isinstance(message, SystemMessage) for message in messages)


def _revise(log: Log, request: Request, plan: Plan, name: MemoryName) -> Result | Copy:
    """Apply what changes the past; it takes more than what the log holds to know some of it."""
    result: Result = None
    if request.op in (FORK, RESTORE):
        return fork(log, request, name) if request.op == FORK else restore(log, request, name)
    if request.op in REVISING:
        result = revise(log, request, name)
    elif not log.complete:
        pass
    elif request.op == UNDO:
        result = roll_back(log, request)
    else:
        result = compact(log, request, name)
    if result is None:
        plan.lacking = EVERYTHING, None
    return result


def _set_metadata(log: Log, request: Request, plan: Plan, name: MemoryName) -> Metadata | Exception:
    """Change the metadata; about: a function of what they are; the revision they must have, None or ONLY_EXISTING."""
    change, revision = request.about
    if revision == ONLY_EXISTING:
        if not log.n and not log.meta_version:
            return describe(name, log.head)
    elif revision is not None and revision != log.meta_version:
        return ConflictError(
            f"memory {name.id!r} (namespace {name.namespace!r}): its metadata are at revision {log.meta_version}, not "
            f"{revision}: read them again and decide anew"
        )
    try:
        plan.meta = NewMeta(log.meta_version, encode_metadata(change(decode_metadata(log.meta))))
    except InvalidArgumentError as error:
        return error
    plan.writers.append(request)
    return describe(name, replace(log.head, meta=plan.meta.data, meta_version=log.meta_version + 1))


def _prune(log: Log, request: Request, plan: Plan) -> int:
    """Remove old entries from the store.

    About: the entry before which they go, the first one that is there, and the row and the number of changes to its
    metadata that say so. Another memory of this name, or one with another policy by now, is left alone.

    Returns:
        The number of the first entry that stays.
    """
    cut: int
    kept: int
    cut, kept, *judged = request.about
    if judged != [log.mid, log.meta_version]:
        return kept
    if not log.transcript.turns and not log.complete:  # the current turn began before what is held
        plan.lacking = _CURRENT_TURN, 1
        return kept
    prune, base = log.prunes_to(min(cut, log.n))
    leaves = prune - kept - len({version for version in (log.system, base) if kept <= version < prune})
    if leaves <= 0 and base == log.base:
        return kept
    plan.prune = prune
    if base != log.base or base == log.first:  # otherwise the state stays as it is, a compaction's
        plan.base = base
    plan.writers.append(request)
    return prune


def _write(
    log: Log, request: Request, messages: tuple[Message, ...], window: LimitedWindow, plan: Plan, name: MemoryName
) -> Exception | None:
    """Take an entry through a window with a limit, or return why not."""
    try:
        limit = window.limit(name.id)
    except Exception as error:
        return error
    judging = window.on_overflow == "error"
    if request.op != SET:
        # A result may answer a call that is shown, but not held: that has to be known before it is refused.
        if judging and not log.covers(window, limit):
            plan.lacking = window, limit
            return None
        taken = log.append(messages, window, limit, judging=judging)
        if taken is None:
            plan.lacking = EVERYTHING, None
            return None
    else:
        taken = log.replace(messages, window, limit, judging=judging)
    return None if taken else overflowing(name, limit)

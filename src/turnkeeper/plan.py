"""Applying a batch of requests to a log: pure, synchronous, and tentative until the store has spoken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from turnkeeper.errors import CompactionAbandonedError, ConflictError, TurnConflictError, WindowOverflowError
from turnkeeper.log import ADD, CLEAR, COMPACT, SET, UNDO, Entry, Lease, Receipt, Slice, Version
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.requests import DELETE, LOOK_BACK, READ, TURN_ADD, TURN_READ, TURN_TRY, Request
from turnkeeper.state import Compactable, Log
from turnkeeper.stats import MemoryStats
from turnkeeper.windows import LimitedWindow, Messages, TurnWindow, Unbounded, Window

__all__ = ["EVERYTHING", "Plan", "apply", "conflicting"]

EVERYTHING: Final = Unbounded()
"""Needs the whole state."""


class Plan:
    """What a batch comes to: entries to commit, and the answers that may go out once they are.

    Attributes:
        entries: to be committed in one slice.
        writers: the requests behind the entries, one each.
        deletes: the request that removes the memory, when that is what the plan does; then there are no entries.
        answers: (request, result or exception) in order.
        consumed: how many requests of the batch the plan covers.
        pruning: the window of the last request that prunes.
        prune: number of the entry before which all but the current system message goes from the store; 0: none.
        lacking: the window, and its limit, for which the next request of the batch needs older messages.
    """

    __slots__ = ("answers", "consumed", "deletes", "entries", "lacking", "prune", "pruning", "writers")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.writers: list[Request] = []
        self.deletes: Request | None = None
        self.answers: list[tuple[Request, Any]] = []
        self.consumed: int = 0
        self.pruning: LimitedWindow | None = None
        self.prune: int = 0
        self.lacking: tuple[Window, int | None] | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.entries) or self.deletes is not None

    def slice(self, name: MemoryName, log: Log, expected: int, turn_id: bytes = b"") -> Slice:
        """Return what to commit; `log` already holds the entries, `expected` is the version before them.

        With the turn that holds the store's lease, which is given back by the turn's last commit.
        """
        last = self.writers[-1]
        gives_back = turn_id and last.ends and last.turn is not None and last.turn.id == turn_id
        return Slice(
            name,
            log.mid,
            expected,
            tuple(self.entries),
            self.prune or log.base,
            log.system,
            self.deletes is not None,
            log.updated_at,
            bool(self.prune),
            turn_id,
            Lease(turn_id, 0.0) if gives_back else None,
        )

    def settle(self, log: Log) -> None:
        """Give the answers the row's number, which a new memory gets only when it is committed."""
        self.answers = [(request, _settled(answer, log)) for request, answer in self.answers]


def apply(
    log: Log, batch: Sequence[Request], name: MemoryName, random_bytes: Callable[[int], bytes], *, max_writers: int
) -> Plan:
    """Apply requests to `log` in order, as far as one slice reaches; the log's entries are tentative afterwards.

    A slice ends before a delete, before a key that it already uses, before a request that needs older messages than
    the log holds, and after `max_writers` writers. Entries are named by `random_bytes`, 16 each.
    """
    plan = Plan()
    keys: set[str] | None = None
    ids = random_bytes(16 * len(batch))
    for request in batch:
        if len(plan.writers) == max_writers:
            break
        if request.key is not None:
            if keys is None:
                keys = set()
            elif request.key.key in keys:
                break
            keys.add(request.key.key)
        if request.op == DELETE and log.n:  # 0: there is none, or a row for a turn's lease alone
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
    if plan.pruning is not None:
        plan.prune = _prunable(log, plan.pruning, name)
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
        return _read(log, request, plan, name)
    turn_id = b""
    if request.turn is not None:
        refusal = request.turn.refusal(messages)
        if refusal is not None:
            return refusal
        if op in (TURN_READ, TURN_TRY):
            return _look_ahead(log, request, plan, name)
        turn_id = request.turn.id
        # Several tasks of one turn may add at once, and then their entries share a slice.
        if not request.turn.follows(log.version, sum([entry.turn_id == turn_id for entry in plan.entries])):
            return conflicting(name, messages)
    if op in (ADD, TURN_ADD):
        if not messages:
            return Receipt(log.version, 0)
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
    elif op == SET:
        expected = request.if_version
        if expected is not None and expected != log.version:
            return ConflictError(
                f"memory {name.id!r} (namespace {name.namespace!r}) is at version {log.version}, not {expected}: "
                "read it again and decide anew"
            )
        if isinstance(request.window, LimitedWindow):
            refusal = _write(log, request, messages, request.window, plan, name)
            if refusal is not None:
                return refusal
        else:
            log.replace(messages)
    elif op in (LOOK_BACK, COMPACT):
        if request.when is not None and (settled := _is_short(log, request.when, plan, name)) is not False:
            return settled
        if not log.complete:
            plan.lacking = EVERYTHING, None
            return None
        if op == LOOK_BACK:
            return _look_back(log, request, name)
        if request.seen is None or not log.still(request.seen):
            return CompactionAbandonedError(
                f"memory {name.id!r} (namespace {name.namespace!r}): what was summed up was replaced meanwhile; "
                "nothing was changed"
            )
        request.to = request.seen.to
        log.compact(request.to, messages)
    elif op == UNDO:
        if not log.complete:
            plan.lacking = EVERYTHING, None
            return None
        if log.n == request.to or (request.at >= 0 and log.n != request.at):
            return Receipt(log.version, 0)
        log.undo(request.to)
    elif op == CLEAR:
        if log.complete and not log.count:
            return Receipt(log.version, 0)
        log.replace(())
    elif op == DELETE:
        return False  # there is no such memory
    else:
        if not log.complete:
            plan.lacking = EVERYTHING, None
            return None
        return MemoryStats(log.version, log.count, log.size, log.created_at, log.updated_at)
    # What a turn commits bit by bit may be taken back as a whole: nothing leaves before its end.
    lasts = request.turn is None or request.ends
    if request.prunes and lasts and isinstance(request.window, LimitedWindow):
        plan.pruning = request.window
    entries = plan.entries
    place = 16 * len(entries)
    entries.append(Entry(ADD if turn_id else op, ids[place : place + 16], messages, request.key, request.to, turn_id))
    plan.writers.append(request)
    return Receipt(log.version, len(messages))


def _read(log: Log, request: Request, plan: Plan, name: MemoryName) -> Messages | Exception | None:
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
        return log.compactable(window, window.limit(name.id))
    except Exception as error:  # a limit function of the user's
        return error


def conflicting(name: MemoryName, messages: tuple[Message, ...]) -> TurnConflictError:
    """Make the error of a turn that others wrote into; it keeps what the turn had said."""
    return TurnConflictError(
        f"memory {name.id!r} (namespace {name.namespace!r}): the turn had it no longer to itself; "
        "nothing was committed now, and its messages are in the error",
        [message.to_dict() for message in messages],
    )


def _look_ahead(log: Log, request: Request, plan: Plan, name: MemoryName) -> Messages | Exception | None:
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
        return _overflow(name, limit)
    return None


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
    return None if taken else _overflow(name, limit)


def _overflow(name: MemoryName, limit: int | None) -> WindowOverflowError:
    return WindowOverflowError(
        f"memory {name.id!r} (namespace {name.namespace!r}): a message would not be visible in the window, whose limit "
        f"is {limit}: it is too large, or a result whose call the window does not show or that has its result; raise "
        "the limit, shorten the message, or choose another on_overflow; nothing was changed"
    )


def _settled(answer: Any, log: Log) -> Any:
    if isinstance(answer, Compactable):
        return replace(answer, mid=log.mid)
    if not isinstance(answer, (Messages, MemoryStats, Receipt)) or answer.version.n == 0:
        return answer  # of no row: there was no memory yet
    version = Version(log.mid, answer.version.n)
    if isinstance(answer, Messages):
        return log.renamed(answer, version)
    if isinstance(answer, MemoryStats):
        return replace(answer, version=version, created_at=log.created_at, updated_at=log.updated_at)
    return replace(answer, version=version)

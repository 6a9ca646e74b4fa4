"""Applying a batch of requests to a log: pure, synchronous, and tentative until the store has spoken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from turnkeeper.errors import ConflictError
from turnkeeper.log import ADD, CLEAR, SET, Entry, Receipt, Slice, Version
from turnkeeper.names import MemoryName
from turnkeeper.requests import DELETE, READ, Request
from turnkeeper.state import Log
from turnkeeper.stats import MemoryStats
from turnkeeper.windows import Messages, Unbounded

__all__ = ["Plan", "apply"]


class Plan:
    """What a batch comes to: entries to commit, and the answers that may go out once they are.

    Attributes:
        entries: to be committed in one slice.
        writers: the requests behind the entries, one each.
        deletes: the request that removes the memory, when that is what the plan does; then there are no entries.
        answers: (request, result or exception) in order.
        consumed: how many requests of the batch the plan covers.
    """

    __slots__ = ("answers", "consumed", "deletes", "entries", "writers")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.writers: list[Request] = []
        self.deletes: Request | None = None
        self.answers: list[tuple[Request, Any]] = []
        self.consumed: int = 0

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.entries) or self.deletes is not None

    def slice(self, name: MemoryName, log: Log, expected: int) -> Slice:
        """Return what to commit; `log` already holds the entries, `expected` is the version before them."""
        return Slice(
            name, log.mid, expected, tuple(self.entries), log.base, log.system, self.deletes is not None, log.updated_at
        )

    def settle(self, log: Log) -> None:
        """Give the answers the row's number, which a new memory gets only when it is committed."""
        self.answers = [(request, _settled(answer, log)) for request, answer in self.answers]


def apply(
    log: Log, batch: Sequence[Request], name: MemoryName, random_bytes: Callable[[int], bytes], *, max_writers: int
) -> Plan:
    """Apply requests to `log` in order, as far as one slice reaches; the log's entries are tentative afterwards.

    A slice ends before a delete, before a key that it already uses, and after `max_writers` writers. Entries are
    named by `random_bytes`, 16 each.
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
        if request.op == DELETE and log.mid != 0:
            if not plan.consumed:
                plan.deletes = request
                plan.writers.append(request)
                plan.answers.append((request, True))
                plan.consumed = 1
            break
        plan.answers.append((request, _answer(log, request, plan, name, ids)))
        plan.consumed += 1
    return plan


def _answer(log: Log, request: Request, plan: Plan, name: MemoryName, ids: bytes) -> Any:
    op = request.op
    if op == READ:
        return _read(log, request)
    if op == ADD:
        if not request.messages:
            return Receipt(log.version, 0)
        log.append(request.messages)
    elif op == SET:
        expected = request.if_version
        if expected is not None and expected != log.version:
            return ConflictError(
                f"memory {name.id!r} (namespace {name.namespace!r}) is at version {log.version}, not {expected}: "
                "read it again and decide anew"
            )
        log.replace(request.messages)
    elif op == CLEAR:
        if not log.count:
            return Receipt(log.version, 0)
        log.replace(())
    elif op == DELETE:
        return False  # there is no such memory
    else:
        return MemoryStats(log.version, log.count, log.size, log.created_at, log.updated_at)
    entries = plan.entries
    place = 16 * len(entries)
    entries.append(Entry(op, ids[place : place + 16], request.messages, request.key))
    plan.writers.append(request)
    return Receipt(log.version, len(request.messages))


def _read(log: Log, request: Request) -> Messages | Exception:
    if request.window is None or isinstance(request.window, Unbounded):
        return log.view()
    try:
        return Messages(request.window.view(log.view()), log.version)
    except Exception as error:  # a window is the user's code: it fails its own request only
        return error


def _settled(answer: Any, log: Log) -> Any:
    if not isinstance(answer, (Messages, MemoryStats, Receipt)) or answer.version.n == 0:
        return answer  # of no row: there was no memory yet
    if isinstance(answer, Messages) and answer.version.n == log.n:
        return log.view()  # so that the next read finds the same object
    version = Version(log.mid, answer.version.n)
    if isinstance(answer, Messages):
        return Messages(answer, version)
    if isinstance(answer, MemoryStats):
        return replace(answer, version=version, created_at=log.created_at, updated_at=log.updated_at)
    return replace(answer, version=version)

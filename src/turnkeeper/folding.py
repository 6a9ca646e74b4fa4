"""A log from what lies in the store: entries in order become the state. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from turnkeeper.errors import MemoryCorruptError
from turnkeeper.log import ADD, CLEAR, COMPACT, SET, UNDO, Head, Loaded, StoredEntry, summed_up_to
from turnkeeper.messages import Message, place_message, restore_message
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.windows.transcript import current_system
from turnkeeper.wire import decode, encode

__all__ = ["extend", "fold"]

_REPLACING: Final = frozenset((SET, CLEAR))
_KNOWN: Final = frozenset((ADD, SET, CLEAR, COMPACT, UNDO))


class _Payload(msgspec.Struct):
    messages: list[msgspec.Raw]
    to: int = 0


_decode_payload = msgspec.json.Decoder(_Payload).decode


def fold(loaded: Loaded, name: MemoryName) -> Log:
    """Build a log from what the store holds.

    Raises:
        MemoryCorruptError: an entry is missing, of an unknown kind, or can't be decoded.
    """
    head = loaded.head
    log = Log(head)
    if head is not None:
        if loaded.older:
            raise MemoryCorruptError(name.id, name.namespace, head.base, "the state begins in the middle of the log")
        start = loaded.start or next((entry for entry in loaded.entries if entry.version == head.base), None)
        first = max(head.base, 1) if start is None or start.op != COMPACT else summed_up_to(start) + 1
        summary: tuple[Message, ...] = ()
        if loaded.start is not None:
            summary = _content(loaded.start, name)[1]
            for index, message in enumerate(summary):
                place_message(message, head.base, index)
        log.start(head, first, loaded.after, _system_of(loaded, head, first, name), summary)
        _apply(log, loaded.entries, head, name)
        log.begin()
    return log


def extend(log: Log, loaded: Loaded, name: MemoryName) -> Log:
    """Return a log with what was read from the store behind it: the same object, or a new one where it has to be.

    Raises:
        MemoryCorruptError: what was read can't be decoded; the log is unchanged.
    """
    if loaded.head is None or loaded.head.mid != log.mid or not loaded.continues:
        return fold(loaded, name)
    mark = log.begin()
    try:
        _apply(log, loaded.entries, loaded.head, name)
    except MemoryCorruptError:
        log.rollback(mark)
        raise
    log.updated_at = loaded.head.updated_at
    return log


def _system_of(loaded: Loaded, head: Head, first: int, name: MemoryName) -> Message | None:
    if not 0 < head.system <= (loaded.after or first - 1):
        return None
    if loaded.system is None or loaded.system.version != head.system:
        raise MemoryCorruptError(name.id, name.namespace, head.system, "the entry is missing")
    messages = _content(loaded.system, name)[1]
    index = current_system(messages)
    if index < 0:
        raise MemoryCorruptError(name.id, name.namespace, head.system, "the entry has no system message")
    place_message(messages[index], head.system, index)
    return messages[index]


def _apply(log: Log, entries: Iterable[StoredEntry], head: Head, name: MemoryName) -> None:
    for entry in entries:
        if entry.version != log.n + 1:
            raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the entry is missing")
        if entry.op not in _KNOWN:
            raise MemoryCorruptError(name.id, name.namespace, entry.version, "the entry is of an unknown kind")
        to, messages = _content(entry, name)
        if entry.op in _REPLACING:
            log.replace(messages)
        elif entry.op == UNDO:
            log.undo(to, messages)
        elif entry.op == COMPACT:
            log.compact(to, messages)
        else:
            log.append(messages)
    if log.base < head.base <= log.n:
        log.prune(head.base)  # by another process
    if (log.n, log.base) != (head.version, head.base):
        raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the log does not end where its head says")


def _content(entry: StoredEntry, name: MemoryName) -> tuple[int, tuple[Message, ...]]:
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError, msgspec.MsgspecError):
        try:
            payload = _decode_payload(entry.payload)
            to, raws = payload.to, [bytes(raw) for raw in payload.messages]
        except msgspec.DecodeError:
            to, raws = _split_with_surrogates(entry.payload)
        return to, tuple([restore_message(raw) for raw in raws])
    # Outside the handler: a chained error would hold the payload, and with it what was said.
    raise MemoryCorruptError(name.id, name.namespace, entry.version, "its payload can't be decoded")


def _split_with_surrogates(payload: bytes) -> tuple[int, list[bytes]]:
    """Split what msgspec refuses: texts with lone surrogates, which the standard library reads."""
    decoded = decode(payload)
    if not isinstance(decoded, dict):
        raise ValueError("not an entry's payload")
    return int(decoded.get("to", 0)), [encode(message) for message in decoded["messages"]]

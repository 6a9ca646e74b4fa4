"""A log from what lies in the store: entries in order become the state. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from turnkeeper.errors import MemoryCorruptError
from turnkeeper.log import (
    ADD,
    CLEAR,
    COMPACT,
    EDIT,
    FORK,
    POP,
    REMOVE,
    SET,
    UNDO,
    Details,
    Head,
    Loaded,
    StoredEntry,
    details_of,
    first_entry,
)
from turnkeeper.messages import Message, SystemMessage, make_place, place_message, restore_message
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.windows.transcript import current_system
from turnkeeper.wire import decode, encode

__all__ = ["apply_entries", "apply_entry", "content_of", "extend", "fold", "recall_system"]

_ONLY_MESSAGES: Final = b'{"messages"'
"""How a payload begins that says nothing besides."""

_KNOWN: Final = frozenset((ADD, SET, CLEAR, COMPACT, UNDO, POP, EDIT, REMOVE, FORK))


class _Payload(Details, frozen=True, kw_only=True):
    messages: list[msgspec.Raw]


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
        first = first_entry(start, head.base)
        held = loaded.after + 1 if loaded.after else first
        summary: tuple[Message, ...] = ()
        if loaded.start is not None:
            details, messages = content_of(loaded.start, name)
            for index, message in enumerate(messages):
                place_message(message, head.base, index)
            summary = messages
            if loaded.start.op == FORK:
                summary = messages[details.leads : details.leads + details.summary]
        log.start(head, first, loaded.after, _system_of(loaded, head, held, name), summary)
        apply_entries(log, loaded.entries, name)
        _check_end(log, head, name)
        if log.transcript.system_before is None:
            log.missing_system = _missing_system(start, loaded.entries, held)
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
        apply_entries(log, loaded.entries, name)
        _check_end(log, loaded.head, name)
    except MemoryCorruptError:
        log.rollback(mark)
        raise
    log.updated_at = loaded.head.updated_at
    return log


def recall_system(log: Log, entry: StoredEntry | None, name: MemoryName) -> None:
    """Tell a log the system message from before, which its `missing_system` asked for.

    Raises:
        MemoryCorruptError: the entry can't be decoded, or has no system message. One that was pruned is no fault.
    """
    if entry is None:
        log.missing_system = 0
    else:
        log.recall(_system_in(entry, name), entry.version)


def _missing_system(start: StoredEntry | None, entries: Sequence[StoredEntry], held: int) -> int:
    said = [(COMPACT, details_of(start))] if start is not None and start.op == COMPACT else []
    # Only an entry that changes the system message speaks of the one before: few payloads are looked into.
    said += [(entry.op, details_of(entry)) for entry in entries if not entry.payload.startswith(_ONLY_MESSAGES)]
    removed = {version for op, details in said if op == REMOVE for version, _ in details.places}
    before = next((details.system for op, details in said if op in (ADD, COMPACT) and 0 < details.system < held), 0)
    return 0 if before in removed else before


def _system_of(loaded: Loaded, head: Head, held: int, name: MemoryName) -> Message | None:
    if not 0 < head.system < held:
        return None
    if loaded.system is None or loaded.system.version != head.system:
        raise MemoryCorruptError(name.id, name.namespace, head.system, "the entry is missing")
    return _system_in(loaded.system, name)


def _system_in(entry: StoredEntry, name: MemoryName) -> Message:
    details, messages = content_of(entry, name)
    index = current_system(messages)
    if entry.op == FORK:
        rest = current_system(messages[details.leads + details.summary :])
        index = details.leads + details.summary + rest if rest >= 0 else 0
    if index < 0 or not isinstance(messages[index], SystemMessage):
        raise MemoryCorruptError(name.id, name.namespace, entry.version, "the entry has no system message")
    version, index_there = details.places[0] if entry.op == EDIT and details.places else (entry.version, index)
    place_message(messages[index], version, index_there)
    return messages[index]


def apply_entries(log: Log, entries: Iterable[StoredEntry], name: MemoryName) -> None:
    """Take entries behind those that a log holds, one after the other.

    Raises:
        MemoryCorruptError: one is missing, of an unknown kind, or can't be decoded.
    """
    for entry in entries:
        if entry.version != log.n + 1:
            raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the entry is missing")
        if entry.op not in _KNOWN:
            raise MemoryCorruptError(name.id, name.namespace, entry.version, "the entry is of an unknown kind")
        details, messages = content_of(entry, name)
        if not apply_entry(log, entry.op, details, messages):
            raise MemoryCorruptError(name.id, name.namespace, entry.version, "it does not say what it changes")


def apply_entry(log: Log, op: str, details: Details, messages: tuple[Message, ...]) -> bool:
    """Take the next entry; False, and nothing is taken, when it lacks what its kind has to say."""
    if op == ADD:
        log.append(messages)
    elif op in (SET, CLEAR):
        log.replace(messages)
    elif op in (UNDO, POP):
        log.undo(make_place(details.to + 1, details.part))
    elif op == COMPACT:
        log.compact(details.to, messages)
    elif op == REMOVE:
        log.remove(frozenset([make_place(*place) for place in details.places]))
    elif op == FORK:
        log.fork(messages, details.leads, details.summary)
    elif len(details.places) == len(messages) == 1:
        log.edit(make_place(*details.places[0]), messages[0], current=details.system > 0)
    else:
        return False
    return True


def _check_end(log: Log, head: Head, name: MemoryName) -> None:
    if log.base < head.base <= log.n:
        log.prune(head.base)  # by another process
    if (log.n, log.base) != (head.version, head.base):
        raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the log does not end where its head says")


def content_of(entry: StoredEntry, name: MemoryName) -> tuple[Details, tuple[Message, ...]]:
    """Decode an entry.

    Raises:
        MemoryCorruptError: it can't be.
    """
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError, msgspec.MsgspecError):
        try:
            payload = _decode_payload(entry.payload)
            details: Details = payload
            raws = [bytes(raw) for raw in payload.messages]
        except msgspec.DecodeError:
            details, raws = _split_with_surrogates(entry.payload)
        return details, tuple([restore_message(raw) for raw in raws])
    # Outside the handler: a chained error would hold the payload, and with it what was said.
    raise MemoryCorruptError(name.id, name.namespace, entry.version, "its payload can't be decoded")


def _split_with_surrogates(payload: bytes) -> tuple[Details, list[bytes]]:
    """Split what msgspec refuses: texts with lone surrogates, which the standard library reads."""
    decoded = decode(payload)
    if not isinstance(decoded, dict):
        raise ValueError("not an entry's payload")
    return msgspec.convert(decoded, Details), [encode(message) for message in decoded["messages"]]

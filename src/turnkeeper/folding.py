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
    STARTING,
    UNDO,
    Details,
    Head,
    Loaded,
    StoredEntry,
    details_of,
    first_entry,
)
from turnkeeper.messages import Message, make_place, place_message, restore_message
from turnkeeper.names import MemoryName
from turnkeeper.sealed import check_meta, check_payload
from turnkeeper.state import Log
from turnkeeper.windows.transcript import current_system
from turnkeeper.wire import decode, encode

__all__ = ["apply_entries", "apply_entry", "content_of", "extend", "fold", "stated"]

_ONLY_MESSAGES: Final = b'{"messages"'
"""How a payload begins that says nothing besides."""

_KNOWN: Final = frozenset((ADD, SET, CLEAR, COMPACT, UNDO, POP, EDIT, REMOVE, FORK))


_TAKING_AWAY: Final = frozenset((UNDO, POP, EDIT, REMOVE))


class _Payload(msgspec.Struct):
    messages: list[msgspec.Raw]


_decode_messages = msgspec.json.Decoder(_Payload).decode
_decode_details = msgspec.json.Decoder(Details).decode
_NO_DETAILS: Final = Details()


def fold(loaded: Loaded, name: MemoryName, before: StoredEntry | None = None) -> Log:
    """Build a log from what the store holds.

    Args:
        loaded: what was read.
        name: the memory's.
        before: the entry that the log's `missing_system` asked for, when it was folded without.

    Raises:
        MemoryCorruptError: an entry is missing, of an unknown kind, or can't be decoded.
        DecryptionError: one is sealed, or the metadata are.
    """
    head = loaded.head
    log = Log(head)
    if head is not None:
        check_meta(head.meta, name)
        # The one entry that may be there is that of a system message which another took the place of since.
        if loaded.older and _missing_system(loaded.entries, head.base) != head.base - 1:
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
        system, said_by = _system_of(loaded, head, held, name), head.system
        if system is None and before is not None:
            system, said_by = _system_in(before, name), before.version
        elif system is None and not loaded.after and start is not None and start.op == COMPACT:
            system, said_by = stated(details_of(start)), start.version
        log.start(head, first, loaded.after, system, said_by, summary)
        apply_entries(log, loaded.entries, name)
        _check_end(log, head, name)
        if head.base > 1 and not _is_told(start, loaded.entries, head.base):
            log.moved = log.n
        if system is None and log.complete and (start is None or start.op != COMPACT):
            log.missing_system = _missing_system(loaded.entries, held)
        log.begin()
    return log


def extend(log: Log, loaded: Loaded, name: MemoryName) -> Log:
    """Return a log with what was read from the store behind it: the same object, or a new one where it has to be.

    Raises:
        MemoryCorruptError: what was read can't be decoded; the log is unchanged.
    """
    if loaded.head is None or loaded.head.mid != log.mid or not loaded.continues:
        return fold(loaded, name)
    check_meta(loaded.head.meta, name)
    mark = log.begin()
    try:
        apply_entries(log, loaded.entries, name)
        _check_end(log, loaded.head, name)
    except MemoryCorruptError:
        log.rollback(mark)
        raise
    log.note(loaded.head)
    return log


def _is_told(start: StoredEntry | None, entries: Sequence[StoredEntry], base: int) -> bool:
    """Tell whether the log says where its state begins: by the kind of that entry, or in one behind it."""
    if start is not None and start.op in STARTING:
        return True
    for entry in entries:
        if not entry.payload.startswith(_ONLY_MESSAGES):
            begins = details_of(entry).begins
            if begins is not None and begins[0] == base:
                return True
    return False


def _missing_system(entries: Sequence[StoredEntry], held: int) -> int:
    for entry in entries:
        # Only an entry that changes the system message speaks of the one before: few payloads are looked into.
        if not entry.payload.startswith(_ONLY_MESSAGES) and (number := details_of(entry).system):
            return number if number < held else 0
    return 0


def _system_of(loaded: Loaded, head: Head, held: int, name: MemoryName) -> Message | None:
    if not 0 < head.system < held:
        return None
    if loaded.system is None or loaded.system.version != head.system:
        raise MemoryCorruptError(name.id, name.namespace, head.system, "the entry is missing")
    return _system_in(loaded.system, name)


def _system_in(entry: StoredEntry, name: MemoryName) -> Message:
    """Return the system message that was current after an entry which made it so."""
    details, messages = content_of(entry, name)
    if (system := stated(details)) is not None:
        return system
    for index, message in enumerate(messages):
        place_message(message, *(details.places[0] if entry.op == EDIT else (entry.version, index)))
    said = messages
    if entry.op == FORK:
        rest = details.leads + details.summary
        said = (*messages[: details.leads], *messages[rest:])
    index = current_system(said)
    if index < 0:
        raise MemoryCorruptError(name.id, name.namespace, entry.version, "the entry has no system message")
    return said[index]


def stated(details: Details) -> Message | None:
    """Return the system message that an entry says is current after it, though the entry does not bring it.

    Raises:
        ValueError: it is no message.
    """
    if details.stays is None:
        return None
    version, index, text = details.stays
    return restore_message(text.encode(), make_place(version, index))


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
        log.compact(details.to, messages, stated(details), current=details.system > 0)
    elif op == REMOVE:
        log.remove(frozenset([make_place(*place) for place in details.places]))
    elif op == FORK:
        log.fork(messages, details.leads, details.summary)
    elif len(details.places) == len(messages) == 1:
        log.edit(make_place(*details.places[0]), messages[0])
    else:
        return False
    if details.system and op in _TAKING_AWAY:
        log.settle_system(stated(details) or (messages[0] if op == EDIT else None))
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
    check_payload(entry.payload, name, entry.version)
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError, msgspec.MsgspecError):
        try:
            raws = [bytes(raw) for raw in _decode_messages(entry.payload).messages]
            says_more = entry.op != ADD or not entry.payload.startswith(_ONLY_MESSAGES)
            details = _decode_details(entry.payload) if says_more else _NO_DETAILS
        except msgspec.DecodeError:
            details, raws = _split_with_surrogates(entry.payload)
        stated(details)  # so that it is known to be one
        return details, tuple([restore_message(raw) for raw in raws])
    # Outside the handler: a chained error would hold the payload, and with it what was said.
    raise MemoryCorruptError(name.id, name.namespace, entry.version, "its payload can't be decoded")


def _split_with_surrogates(payload: bytes) -> tuple[Details, list[bytes]]:
    """Split what msgspec refuses: texts with lone surrogates, which the standard library reads."""
    decoded = decode(payload)
    if not isinstance(decoded, dict):
        raise ValueError("not an entry's payload")
    return msgspec.convert(decoded, Details), [encode(message) for message in decoded["messages"]]

"""Where a memory's state begins after each entry of its log, told from the entries alone. Pure.

A long memory comes in parts, and whoever looks between two of them has to find a state that it once had. The numbers
that this takes (`Head.base`, `Head.system`) are in no entry, but what each entry changes of them is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

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
    StoredEntry,
    details_of,
)
from turnkeeper.messages import SystemMessage

__all__ = ["Standing", "after"]


class Standing(NamedTuple):
    """What a row says of its log after an entry.

    Attributes:
        n: the entry's number.
        base: number of the entry that starts the state.
        system: number of the entry with the current system message; 0: there is none.
    """

    n: int
    base: int
    system: int


class _Role(msgspec.Struct):
    role: str = ""


class _Payload(msgspec.Struct):
    messages: list[_Role] = []


_ONLY_MESSAGES: Final = b'{"messages"'
_SEALED: Final = b'"sealed":'
_NOTHING: Final = Details()

_decode = msgspec.json.Decoder(_Payload).decode


def after(before: Standing, entry: StoredEntry, known: int) -> Standing:
    """Return where the state stands after one entry more.

    Args:
        before: where it stood.
        entry: the next one.
        known: number of an entry that is known to have a system message: counts where the entry itself can't be read.
    """
    n, op, base, system = entry.version, entry.op, before.base, before.system
    details = _NOTHING if entry.payload.startswith(_ONLY_MESSAGES) else details_of(entry)
    if op == ADD:
        # It says which one was current before, if it brings another. The first one has none to speak of.
        if details.system or (not system and _brings_system(entry, 0, known)):
            system = n
    elif op in (SET, CLEAR, FORK):
        leads = op == FORK and details.leads
        base, system = n, n if leads or _brings_system(entry, details.summary, known) else 0
    elif op == COMPACT:
        base, system = n, n if details.system else system
    elif op in (UNDO, POP, EDIT, REMOVE) and details.system:
        system = n if details.stays is not None or op == EDIT or n == known else 0
    return Standing(n, base, system)


def _brings_system(entry: StoredEntry, besides: int, known: int) -> bool:
    """Tell whether an entry has a system message, besides the first ones."""
    if not any(f'"{role}"'.encode() in entry.payload for role in SystemMessage.roles):
        return entry.version == known and _SEALED in entry.payload
    try:
        messages = _decode(entry.payload).messages
    except (msgspec.DecodeError, UnicodeDecodeError):
        return entry.version == known
    return any(message.role in SystemMessage.roles for message in messages[besides:])

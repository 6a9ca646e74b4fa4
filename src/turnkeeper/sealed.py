"""What a sealed payload looks like: a JSON object whose content only a key opens, beside what can be read without one.

    {"to": 7, "messages": [0, 0], "sealed": ["2026-11", "base64 of nonce, ciphertext and tag"]}

In front stands what stores, retention and expiry have to read: for an entry its positions in the log and a 0 for each
message, for metadata how long the memory is kept and which forks it has. Pure, and without any cryptography.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec.structs import replace

from turnkeeper.errors import DecryptionError
from turnkeeper.log import Details, Entry, StoredEntry, details_of
from turnkeeper.names import MemoryName
from turnkeeper.wire import decode

__all__ = [
    "PLAIN",
    "Sealed",
    "check_meta",
    "check_payload",
    "join",
    "refused",
    "sealed_of",
    "shown_of",
    "shown_of_meta",
]

PLAIN: Final = ""
"""In the place of a key's id: what lies there is not sealed, and plain content was refused."""

_KEY: Final = b'"sealed":["'
_SEALED: Final = re.compile(rb'"sealed":\["([A-Za-z0-9._-]{0,64})","([A-Za-z0-9+/=]*)"\]\}')


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """A sealed payload in its parts.

    Attributes:
        shown: all before the key's id, byte for byte; it is bound to the content.
        key_id: the key that opens it.
        box: base64 of nonce, ciphertext and tag.
    """

    shown: bytes
    key_id: str
    box: bytes

    def __repr__(self) -> str:
        """Name the key."""
        return f"<Sealed key_id={self.key_id!r} bytes={len(self.box)}>"


class _Kept(msgspec.Struct, omit_defaults=True):
    """What metadata say that holds for a memory which nobody can open."""

    expires_after: float | None = None
    max_age: float | None = None
    max_messages: int | None = None
    forks: tuple[tuple[str, str], ...] = ()


class _Counted(msgspec.Struct):
    messages: list[msgspec.Raw] = []


_decode_counted: Final = msgspec.json.Decoder(_Counted).decode
_decode_kept: Final = msgspec.json.Decoder(_Kept).decode


def sealed_of(payload: bytes) -> Sealed | None:
    """Return the parts of a sealed payload, or sealed metadata; None: it is not sealed.

    A plain one never ends like a sealed one: its last value is a list of objects, or one of texts of another name.
    """
    if not payload.endswith(b'"]}'):
        return None
    place = payload.rfind(_KEY)
    found = _SEALED.fullmatch(payload, place) if place > 0 else None
    return Sealed(payload[:place], found[1].decode(), found[2]) if found else None


def join(sealed: Sealed) -> bytes:
    """Return the payload that has these parts."""
    return b'%b"sealed":["%b","%b"]}' % (sealed.shown, sealed.key_id.encode(), sealed.box)


def shown_of(entry: Entry | StoredEntry) -> bytes:
    """Return what of an entry is shown without a key: positions, and how many messages it has."""
    if isinstance(entry, Entry) and not entry.sealed:
        details, count = entry.details, len(entry.messages)
    else:
        payload = entry.sealed if isinstance(entry, Entry) else entry.payload
        details, count = details_of(StoredEntry(0, entry.op, b"", payload, 0)), _count(payload)
    shown = b"" if details is None else msgspec.json.encode(_positions(details))[1:-1]
    return b'{%b%b"messages":[%b],' % (shown, b"," if shown else b"", b",".join([b"0"] * count))


def _positions(details: Details) -> Details:
    return replace(details, stays=None, origin=None)


def _count(payload: bytes) -> int:
    try:
        return len(_decode_counted(payload).messages)
    except (msgspec.MsgspecError, ValueError):
        pass
    try:  # texts with lone surrogates, which the standard library reads
        return len(decode(payload)["messages"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return 1  # as `message_count` counts what it can't read


def shown_of_meta(data: bytes) -> bytes:
    """Return what of metadata is shown without a key: how long the memory is kept, and the names of its forks."""
    try:
        kept = msgspec.json.encode(_decode_kept(data))[1:-1]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        kept = b""
    return b"{%b%b" % (kept, b"," if kept else b"")


def refused(shown: bytes) -> bytes:
    """Return what is handed out in the place of plain content that was refused: nothing of it but what is shown."""
    return join(Sealed(shown, PLAIN, b""))


def check_payload(payload: bytes, name: MemoryName, version: int) -> None:
    """Refuse a payload that is still sealed.

    Raises:
        DecryptionError: it is.
    """
    if (sealed := sealed_of(payload)) is not None:
        raise DecryptionError(name.id, name.namespace, version, sealed.key_id)


def check_meta(data: bytes | None, name: MemoryName) -> None:
    """Refuse metadata that are still sealed: whoever changes them would write over what they can't read.

    Raises:
        DecryptionError: they are.
    """
    if data is not None:
        check_payload(data, name, 0)

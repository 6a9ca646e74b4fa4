"""Ids of any type, and the text that each of them is in turnkeeper."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any, Final, Protocol
from uuid import UUID

from turnkeeper.errors import InvalidMemoryIdError
from turnkeeper.names import MAX_NAME_BYTES, memory_name

__all__ = ["IdCodec", "decode_id", "encode_id", "key_of"]

_INT: Final = "int:"
_UUID: Final = "uuid:"
_TUPLE: Final = "tuple:"
_OTHER: Final = "id:"
_TEXT: Final = "str:"
_MARKS: Final = (_INT, _UUID, _TUPLE, _OTHER, _TEXT)

_INTEGER: Final = re.compile("0|-?[1-9][0-9]*")
_LONGEST: Final = 10 ** (MAX_NAME_BYTES - len(_INT))
"""Integers below this, with a sign perhaps, are short enough to try; Python refuses to print much longer ones."""

_DEEPEST: Final = 200
"""Levels of nesting in a tuple: its text has two brackets for each, and at most 512 bytes."""


class IdCodec(Protocol):
    """Turns ids of types that turnkeeper doesn't know into text and back.

    It is asked only for those: text, integers, UUIDs and tuples of them are what they are without it.
    """

    def encode(self, memory_id: Any, /) -> str:
        """Return a text that no other id has: up to 500 bytes of UTF-8 without control characters."""
        ...

    def decode(self, text: str, /) -> Any:
        """Return the id that has this text."""
        ...


def encode_id(memory_id: Hashable, id_codec: IdCodec | None = None) -> str:
    """Return the text that an id is in turnkeeper: of no other id, and `decode_id` finds the way back.

    A text is itself, so that a memory "user-42" is `runtime.memory("user-42")`. Other types are marked: 1 is "int:1",
    and a text that begins like a mark is marked as text. Only exact types are known: True is no integer here.

    Args:
        memory_id: a `str`, `int`, `UUID` or tuple of such, or what `id_codec` encodes.
        id_codec: for all other types.

    Raises:
        InvalidMemoryIdError: None, a type that nobody encodes, or longer than 512 bytes, empty or with control
            characters as text.
    """
    if type(memory_id) is str:
        text = _TEXT + memory_id if memory_id.startswith(_MARKS) else memory_id
    elif type(memory_id) is int:
        text = _INT + _digits(memory_id)
    elif type(memory_id) is UUID:
        text = f"{_UUID}{memory_id}"
    elif type(memory_id) is tuple and _is_plain(memory_id, _DEEPEST):
        text = _TUPLE + json.dumps(_plain(memory_id), ensure_ascii=False, separators=(",", ":"))
    elif id_codec is None or memory_id is None:
        raise _unknown(memory_id)
    else:
        encoded = id_codec.encode(memory_id)
        if type(encoded) is not str:
            raise InvalidMemoryIdError(f"the id_codec made a {type(encoded).__name__} of an id, not a str")
        text = _OTHER + encoded
    return memory_name(text).id


def decode_id(text: str, id_codec: IdCodec | None = None) -> Any:
    """Return the id that `encode_id` made this text of.

    Raises:
        InvalidMemoryIdError: it is none of its texts, or one of an id that needs the codec, and there is none.
    """
    memory_name(text)
    if text.startswith(_TEXT):
        return text.removeprefix(_TEXT)
    if text.startswith(_OTHER):
        if id_codec is None:
            raise InvalidMemoryIdError("this text is an id of a type that needs the id_codec it was made with")
        return id_codec.decode(text.removeprefix(_OTHER))
    if not text.startswith(_MARKS):
        return text
    kind, _, rest = text.partition(":")
    try:
        if kind == "tuple":
            decoded: Any = _unplain(json.loads(rest))
        elif kind == "uuid":
            decoded = UUID(rest)
        else:
            decoded = int(rest) if _INTEGER.fullmatch(rest) else None
        if encode_id(decoded) == text:
            return decoded
    except (ValueError, TypeError, KeyError, RecursionError):  # whose texts may repeat it
        pass
    raise InvalidMemoryIdError("this text begins like an encoded id, but is none")


def key_of(memory_id: Hashable) -> Hashable:
    """Return a key that tells ids of different types apart, which a dict doesn't: 1, 1.0 and True are one to it.

    Raises:
        InvalidMemoryIdError: None, or it can't be hashed.
    """
    if memory_id is None:
        raise InvalidMemoryIdError("an id is required, None is none: a shared default would mix conversations")
    try:
        hash(memory_id)
    except TypeError:
        failure = InvalidMemoryIdError(f"an id must be hashable, a {type(memory_id).__name__} is not")
    else:
        return _key(memory_id)
    raise failure


def _key(memory_id: Any) -> Hashable:
    return type(memory_id), (tuple(map(_key, memory_id)) if type(memory_id) is tuple else memory_id)


def _unknown(memory_id: object) -> InvalidMemoryIdError:
    if memory_id is None:
        return InvalidMemoryIdError("an id is required, None is none: a shared default would mix conversations")
    return InvalidMemoryIdError(
        f"ids are str, int, UUID or tuples of these, not {type(memory_id).__name__}: give an id_codec for others"
    )


def _digits(number: int) -> str:
    if abs(number) >= _LONGEST:
        raise InvalidMemoryIdError(f"memory id is longer than {MAX_NAME_BYTES} bytes of UTF-8")
    return str(number)


def _is_plain(value: object, levels: int) -> bool:
    if type(value) is tuple:
        return levels > 0 and all(_is_plain(item, levels - 1) for item in value)
    return type(value) in (str, int, UUID)


def _plain(value: Any) -> Any:
    """Return an item of a tuple as JSON has it: tuples are arrays, and a UUID is the only kind of object."""
    if type(value) is tuple:
        return [_plain(item) for item in value]
    if type(value) is UUID:
        return {"uuid": str(value)}
    if type(value) is int:
        _digits(value)
    return value


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_unplain(item) for item in value])
    return UUID(value["uuid"]) if isinstance(value, dict) else value

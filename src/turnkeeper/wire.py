"""JSON as it is stored: faithful in both directions, or refused.

msgspec is fast but lenient where this library must not be: it writes NaN as null, a date as text and an integer key as
a string, and it refuses lone surrogates. So whatever is encoded is decoded again and compared with what was given; a
difference is named by its path. Texts with lone surrogates go through the standard library, which escapes them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec

__all__ = ["MAX_DEPTH", "Json", "UnfaithfulError", "decode", "encode", "encode_faithfully"]

Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

MAX_DEPTH: Final = 128
"""Levels of nesting in a message. Decoders recurse, and how deep they can depends on who calls: what one call stores,
every later one has to be able to read."""

_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep, or holds itself"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class UnfaithfulError(Exception):
    """A value that JSON can't carry unchanged, at `path` (such as `content[0].*`; empty for the whole)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def encode(value: Any) -> bytes:
    """Encode to compact JSON; lone surrogates are escaped. Raises what the encoders raise."""
    with contextlib.suppress(UnicodeEncodeError):
        return _encode(value)
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def decode(data: bytes | memoryview) -> Any:
    """Decode JSON, lone surrogate escapes included. Raises ValueError when it is none."""
    with contextlib.suppress(msgspec.DecodeError):
        return _decode(data)
    return json.loads(str(data, "utf-8"), parse_constant=_refuse_constant)


def encode_faithfully(value: dict[Any, Any]) -> tuple[bytes, dict[str, Any]]:
    """Encode an object, and return the bytes together with what they decode to.

    Raises:
        UnfaithfulError: the value would come back changed, is cyclic, too deep, or no JSON at all.
    """
    for key, item in value.items():
        if type(key) is not str or (type(item) is not str and item is not None):
            return _encode_and_compare(value)
    # Most messages are nothing but texts, which can't come back changed: no need to look.
    with contextlib.suppress(UnicodeEncodeError):
        return _encode(value), value
    return _encode_and_compare(value)


def _encode_and_compare(value: dict[Any, Any]) -> tuple[bytes, dict[str, Any]]:
    # Raised outside the handlers: a chained error would hold the value, and with it what was said.
    found: tuple[str, str] | None = None
    data, copy = b"", None
    try:
        data = encode(value)
        copy = decode(data)
    except RecursionError:
        found = "", _TOO_DEEP
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        found = _first_difference(value, None) or ("", "can't be written as JSON")
    if found is None and data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(copy) > MAX_DEPTH:
        found = "", _TOO_DEEP
    if found is None and copy != value:
        found = _first_difference(value, copy)
    if found is not None:
        raise UnfaithfulError(*found)
    return data, cast("dict[str, Any]", copy)


def _first_difference(value: Any, copy: Any) -> tuple[str, str] | None:
    try:
        return _difference(value, copy, "")
    except RecursionError:
        return "", _TOO_DEEP


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
    return deepest


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _difference(value: Any, copy: Any, path: str) -> tuple[str, str] | None:
    """Find the first place at which `value` is not what JSON made of it; tuples count as lists.

    `copy` is None where there is nothing to compare with: then only types are judged.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return None if copy is None or value == copy else (path, "can't be written as JSON unchanged")
    if isinstance(value, float):
        finite = value - value == 0
        return None if finite else (path, "is not a finite number")
    if isinstance(value, (list, tuple)):
        copies = copy if isinstance(copy, list) and len(copy) == len(value) else [None] * len(value)
        for index, (item, its_copy) in enumerate(zip(value, copies, strict=True)):
            if (found := _difference(item, its_copy, f"{path}[{index}]")) is not None:
                return found
        return None
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                return path, f"has a key that is no string (a {type(key).__name__})"
            its_copy = copy.get(key) if isinstance(copy, dict) else None
            # Below the top, keys are the user's data and stay out of errors.
            if (found := _difference(item, its_copy, f"{path}.*" if path else key)) is not None:
                return found
        return None if isinstance(value, dict) else (path, f"is a {type(value).__name__}, which JSON can't carry")
    return path, f"is a {type(value).__name__}, which JSON can't carry"

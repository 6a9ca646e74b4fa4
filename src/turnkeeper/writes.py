"""What handles and turns write: validated, encoded and counted in the caller's task or thread."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from turnkeeper.durations import Duration, seconds
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.history import check_version
from turnkeeper.log import ADD, EDIT, POP, REMOVE, SET, Key, Version
from turnkeeper.messages import Message, encode_messages
from turnkeeper.metadata import StoredMetadata, decode_metadata, encode_metadata
from turnkeeper.names import MAX_NAME_BYTES
from turnkeeper.policies import RetentionPolicy
from turnkeeper.requests import SET_METADATA, UNDO_TURNS, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.windows import HISTORIES, LimitedWindow, Window
from turnkeeper.windows.base import check_choice

__all__ = [
    "add_request",
    "edit_request",
    "encode_batch",
    "make_key",
    "metadata_request",
    "pop_request",
    "remove_request",
    "set_request",
    "undo_request",
    "window_and_pruning",
]

_NOT_IN_A_KEY: Final = re.compile("[\0\ud800-\udfff]")


def window_and_pruning(core: RuntimeCore, window: Window | None, history: str | None) -> tuple[Window, bool]:
    """Return a new handle's window, and whether what that evicts leaves the store as well.

    Raises:
        InvalidArgumentError: `history` is unknown, or "window" without a window that has a limit.
    """
    window = core.settings.window if window is None else window
    if isinstance(history, RetentionPolicy):
        raise InvalidArgumentError(
            "a handle has no RetentionPolicy: give it to open_runtime(history=), or to memory.set_metadata(retention=)"
        )
    of_runtime = core.settings.history if isinstance(core.settings.history, str) else "keep"
    history = of_runtime if history is None else history
    if not isinstance(window, Window):
        raise InvalidArgumentError(f"a window is a Window, not a {type(window).__name__}")
    check_choice("history", history, HISTORIES)
    prunes = history == "window"
    if prunes and not isinstance(window, LimitedWindow):
        raise InvalidArgumentError('history="window" needs a window with a limit')
    return window, prunes


def add_request(messages: tuple[Any, ...], window: Window, prunes: bool, idempotency_key: str | None) -> Request:
    """Validate, encode and count an add, in the caller's task or thread."""
    batch = encode_batch(messages, window)
    key = make_key(ADD, batch, idempotency_key) if batch and idempotency_key is not None else None
    return Request(ADD, batch, key=key, window=window, prunes=prunes)


def set_request(
    messages: tuple[Any, ...],
    window: Window,
    prunes: bool,
    if_version: Version | None,
    idempotency_key: str | None,
) -> Request:
    """Validate, encode and count a set, in the caller's task or thread."""
    check_version(if_version)
    if messages == (None,):
        messages = ()
    batch = encode_batch(messages, window)
    if not batch:
        raise InvalidArgumentError("set needs at least one message; to empty a memory, use clear()")
    key = None if idempotency_key is None else make_key(SET, batch, idempotency_key)
    return Request(SET, batch, key=key, if_version=if_version, window=window, prunes=prunes)


def undo_request(turns: int, window: Window, if_version: Version | None) -> Request:
    """Check the arguments of an undo."""
    if not isinstance(turns, int) or isinstance(turns, bool) or turns < 1:
        raise InvalidArgumentError("turns must be a whole number of at least 1")
    return Request(UNDO_TURNS, window=window, if_version=check_version(if_version), about=turns)


def pop_request(window: Window, if_version: Version | None) -> Request:
    """Check the arguments of a pop."""
    return Request(POP, window=window, if_version=check_version(if_version))


def edit_request(message_id: str, message: Any, window: Window, if_version: Version | None) -> Request:
    """Validate, encode and count what takes another message's place."""
    batch = encode_batch((message,), window)
    if len(batch) != 1:
        raise InvalidArgumentError("an edit takes one message")
    check_message_id(message_id)
    return Request(EDIT, batch, window=window, if_version=check_version(if_version), about=message_id)


def remove_request(message_id: str, window: Window, if_version: Version | None) -> Request:
    """Check the arguments of a removal."""
    check_message_id(message_id)
    return Request(REMOVE, window=window, if_version=check_version(if_version), about=message_id)


def metadata_request(
    title: str | UnsetType | None,
    data: Mapping[str, Any] | UnsetType,
    expires_after: Duration | UnsetType | None,
    retention: RetentionPolicy | UnsetType | None,
    if_revision: int | None,
) -> Request:
    """Check the arguments of a change of metadata."""
    changes: dict[str, Any] = {}
    if title is not UNSET:
        changes["title"] = title
    if data is not UNSET:
        if not isinstance(data, Mapping):
            raise InvalidArgumentError("metadata's data must be a mapping of JSON values")
        changes["data"] = dict(data)
    if expires_after is not UNSET:
        changes["expires_after"] = None if expires_after is None else seconds("expires_after", expires_after)
    if retention is not UNSET:
        if retention is not None and not isinstance(retention, RetentionPolicy):
            raise InvalidArgumentError("retention must be a RetentionPolicy or None")
        changes["max_age"] = None if retention is None else retention.max_age
        changes["max_messages"] = None if retention is None else retention.max_messages
    if if_revision is not None and (
        not isinstance(if_revision, int) or isinstance(if_revision, bool) or if_revision < 0
    ):
        raise InvalidArgumentError("if_revision must be a number, such as metadata().revision, or None")
    encoded = encode_metadata(StoredMetadata(**changes))  # refused here, or never
    if "data" in changes:
        changes["data"] = decode_metadata(encoded).data  # a copy: the caller's own may change meanwhile
    request = Request(SET_METADATA, about=(partial(replace, **changes), if_revision))
    request.size = len(encoded)
    return request


def check_message_id(message_id: object) -> None:
    """Refuse what is no message's id."""
    if not isinstance(message_id, str) or not message_id:
        raise InvalidArgumentError("a message's id is a non-empty str, such as message.id")


def encode_batch(messages: tuple[Any, ...], window: Window) -> tuple[Message, ...]:
    """Validate, encode and count one message, several, or one iterable of them."""
    batch = encode_messages(_flattened(messages))
    if window.counting:
        window.count(batch)
    return batch


def _flattened(messages: tuple[Any, ...]) -> Iterable[Any]:
    if len(messages) != 1 or isinstance(messages[0], (dict, Message, Mapping, str, bytes)):
        return messages
    return messages[0] if isinstance(messages[0], Iterable) else messages


def make_key(op: str, messages: tuple[Message, ...], idempotency_key: str) -> Key:
    """Combine an idempotency key with the digest of what it stands for.

    Raises:
        InvalidArgumentError: it is no key.
    """
    if not isinstance(idempotency_key, str) or not idempotency_key:
        raise InvalidArgumentError("an idempotency key is a non-empty str")
    size = len(idempotency_key.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES or _NOT_IN_A_KEY.search(idempotency_key):
        raise InvalidArgumentError(
            f"an idempotency key is at most {MAX_NAME_BYTES} bytes of UTF-8, without NUL and surrogates"
        )
    digest = hashlib.sha256(op.encode())
    for message in messages:
        digest.update(len(message.raw).to_bytes(8, "big"))
        digest.update(message.raw)
    return Key(idempotency_key, digest.digest())

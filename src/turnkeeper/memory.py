"""The handle: cheap, stateless, any number of them for one conversation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.log import ADD, CLEAR, SET, Key, Receipt, Version
from turnkeeper.messages import Message, MessageLike, encode_messages
from turnkeeper.names import MAX_NAME_BYTES, MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import DELETE, STATS, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stats import MemoryStats
from turnkeeper.windows import HISTORIES, LimitedWindow, Messages, Window
from turnkeeper.windows.base import check_choice

__all__ = ["ChatMemory", "add_request", "set_request", "window_and_pruning"]


_NOT_IN_A_KEY: Final = re.compile("[\0\ud800-\udfff]")


class ChatMemory:
    """One conversation, as its users see it. Made by `runtime.memory()`; making one does no I/O.

    Any number of tasks may use one handle, or handles of one memory, at once: requests take their turn, one sender's
    in its order. A caller that is cancelled before its request is taken has changed nothing; afterwards the request
    runs to its end, whole, and the caller sees only its cancellation.

    Every method may raise `RuntimeClosedError`, `RuntimeUsageError` (foreign thread, forked child), `OverloadedError`
    (with `on_overload="reject"`), `StoreUnavailableError` and other `StoreError`s, `MemoryCorruptError`; writers also
    `OutcomeUnknownError` and `ContentionError`.
    """

    __slots__ = ("_core", "_name", "_prunes", "_window")

    def __init__(self, core: RuntimeCore, name: MemoryName, window: Window | None, history: str | None) -> None:
        self._core = core
        self._name = name
        self._window, self._prunes = window_and_pruning(core, window, history)

    @property
    def id(self) -> str:
        """The memory's id."""
        return self._name.id

    @property
    def namespace(self) -> str:
        """The memory's namespace; empty by default."""
        return self._name.namespace

    async def add(self, *messages: MessageLike | Iterable[MessageLike], idempotency_key: str | None = None) -> Receipt:
        """Append messages, all of them in one entry or none.

        Args:
            messages: one message, several, or one iterable of them; ours, or mappings in OpenAI chat form. None at
                all is a no-op.
            idempotency_key: 1-512 bytes; a request repeated with it changes nothing and gets the first one's receipt,
                also after restart, clear and delete, for `idempotency_ttl`.

        Returns:
            The version with the messages in it, and their count; durable when it is there.

        Raises:
            InvalidMessageError: one is no message; nothing was added.
            WindowOverflowError: the handle's window has `on_overflow="error"`, and would not show one of them.
            IdempotencyMismatchError: the key was used for something else.
        """
        receipt: Receipt = await self._core.submit(
            self._name, add_request(messages, self._window, self._prunes, idempotency_key)
        )
        return receipt

    async def set(
        self,
        *messages: MessageLike | Iterable[MessageLike],
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Replace all messages, in one entry: nobody ever sees the memory empty or half replaced.

        Args:
            messages: as for `add`, at least one; to empty a memory, use `clear`.
            if_version: replace only what is at exactly this version, such as `messages().version`.
            idempotency_key: as for `add`.

        Returns:
            The version with the messages in it, and their count.

        Raises:
            InvalidMessageError: one is no message; nothing was changed.
            InvalidArgumentError: no message was given.
            WindowOverflowError: as for `add`.
            ConflictError: the memory is not at `if_version`.
            IdempotencyMismatchError: the key was used for something else.
        """
        request = set_request(messages, self._window, self._prunes, if_version, idempotency_key)
        receipt: Receipt = await self._core.submit(self._name, request)
        return receipt

    async def messages(self, *, window: Window | None = None) -> Messages:
        """Return what the model should see: an immutable tuple with `.version`, the same object until it changes.

        Shows every change acknowledged before the call, and none that is not committed. Results stand behind their
        call; a result that answers no call is not shown, and a call without one is treated by the window's
        `on_unanswered`.

        Args:
            window: compute this view instead of the handle's own.

        Raises:
            InvalidArgumentError: the window's limit is a function, and returned no number of at least 1.
        """
        return await self._core.read(self._name, self._window if window is None else window)

    async def clear(self) -> Receipt:
        """Empty the memory and keep its name; a no-op when it is empty."""
        receipt: Receipt = await self._core.submit(self._name, Request(CLEAR, window=self._window, prunes=self._prunes))
        return receipt

    async def delete(self) -> bool:
        """Remove the memory and its name; True when there was one. Works for a corrupt memory too."""
        existed: bool = await self._core.submit(self._name, Request(DELETE))
        return existed

    async def stats(self) -> MemoryStats:
        """Return its version, message count, size and times."""
        stats: MemoryStats = await self._core.submit(self._name, Request(STATS, window=EVERYTHING))
        return stats

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} namespace={self.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle belongs to its runtime and can't be pickled; send the id and make a new handle there")


def window_and_pruning(core: RuntimeCore, window: Window | None, history: str | None) -> tuple[Window, bool]:
    """Return a new handle's window, and whether what that evicts leaves the store as well.

    Raises:
        InvalidArgumentError: `history` is unknown, or "window" without a window that has a limit.
    """
    window = core.settings.window if window is None else window
    history = core.settings.history if history is None else history
    if not isinstance(window, Window):
        raise InvalidArgumentError(f"a window is a Window, not a {type(window).__name__}")
    check_choice("history", history, HISTORIES)
    prunes = history == "window"
    if prunes and not isinstance(window, LimitedWindow):
        raise InvalidArgumentError('history="window" needs a window with a limit')
    return window, prunes


def add_request(messages: tuple[Any, ...], window: Window, prunes: bool, idempotency_key: str | None) -> Request:
    """Validate, encode and count an add, in the caller's task or thread."""
    batch = encode_messages(_flattened(messages))
    window.count(batch)
    key = None if idempotency_key is None else _key(ADD, batch, idempotency_key)
    return Request(ADD, batch, key=key, window=window, prunes=prunes)


def set_request(
    messages: tuple[Any, ...],
    window: Window,
    prunes: bool,
    if_version: Version | None,
    idempotency_key: str | None,
) -> Request:
    """Validate, encode and count a set, in the caller's task or thread."""
    if if_version is not None and not isinstance(if_version, Version):
        raise InvalidArgumentError(f"if_version must be a Version or None, not {type(if_version).__name__}")
    if messages == (None,):
        messages = ()
    batch = encode_messages(_flattened(messages))
    if not batch:
        raise InvalidArgumentError("set needs at least one message; to empty a memory, use clear()")
    window.count(batch)
    key = None if idempotency_key is None else _key(SET, batch, idempotency_key)
    return Request(SET, batch, key=key, if_version=if_version, window=window, prunes=prunes)


def _flattened(messages: tuple[Any, ...]) -> Iterable[Any]:
    if len(messages) != 1 or isinstance(messages[0], (dict, Message, Mapping, str, bytes)):
        return messages
    return messages[0] if isinstance(messages[0], Iterable) else messages


def _key(op: str, messages: tuple[Message, ...], idempotency_key: str) -> Key | None:
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
    return Key(idempotency_key, digest.digest()) if messages else None

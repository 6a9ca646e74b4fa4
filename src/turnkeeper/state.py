"""One memory's log as it is held in RAM: tentative changes on the right, taken back on rollback. Pure."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from turnkeeper.errors import MemoryCorruptError
from turnkeeper.log import ADD, CLEAR, SET, Head, Loaded, StoredEntry, Version
from turnkeeper.messages import Message, SystemMessage, place_message, restore_message
from turnkeeper.names import MemoryName
from turnkeeper.windows import Messages
from turnkeeper.wire import decode, encode

__all__ = ["Log", "Mark", "fold"]

_REPLACING: Final = frozenset((SET, CLEAR))
_KNOWN: Final = frozenset((ADD, SET, CLEAR))


class _Payload(msgspec.Struct):
    messages: list[msgspec.Raw]


Mark: TypeAlias = tuple[int, int, int, int, "deque[Message] | None", int]

_decode_payload = msgspec.json.Decoder(_Payload).decode


class Log:
    """The messages since `base`, the versions around them, and their size.

    Attributes:
        mid: the memory's row, 0 while there is none.
        n: number of the last entry, tentative ones included.
        base: number of the entry that starts the state.
        system: number of the entry with the current system message, 0 without one.
        size: bytes of the encoded messages.
        created_at: microseconds since the epoch, 0 while there is no row.
        updated_at: the same of the last committed entry.
    """

    __slots__ = ("_messages", "_view", "base", "created_at", "mid", "n", "size", "system", "updated_at")

    def __init__(self, head: Head | None = None) -> None:
        """Start empty at `head`'s row."""
        self.mid: int = head.mid if head else 0
        self.n: int = 0
        self.base: int = 0
        self.system: int = 0
        self.size: int = 0
        self.created_at: int = head.created_at if head else 0
        self.updated_at: int = head.updated_at if head else 0
        # An empty deque alone weighs 760 bytes: it comes with the first message.
        self._messages: deque[Message] | None = None
        self._view: Messages | None = None

    @property
    def version(self) -> Version:
        """The version this log stands at."""
        return Version(self.mid, self.n)

    @property
    def count(self) -> int:
        """How many messages the state has."""
        return len(self._messages) if self._messages else 0

    def append(self, messages: tuple[Message, ...]) -> None:
        """Take the next entry, one that adds."""
        self._view = None
        self.n += 1
        if self._messages is None:
            self._messages = deque()
        self._take(messages)

    def replace(self, messages: tuple[Message, ...]) -> None:
        """Take the next entry, one that starts the state anew."""
        self._view = None
        self.n += 1
        self.base = self.n
        self.system = 0
        self.size = 0
        # A new deque, so that the old one is whole for a rollback.
        self._messages = deque() if messages else None
        if messages:
            self._take(messages)

    def _take(self, messages: tuple[Message, ...]) -> None:
        queue, n = self._messages, self.n
        assert queue is not None
        for index, message in enumerate(messages):
            place_message(message, n, index)
            self.size += len(message.raw)
            if message.role in SystemMessage.roles:
                self.system = n
            queue.append(message)

    def mark(self) -> Mark:
        """Note where the log stands, before tentative entries: what `rollback` goes back to."""
        return self.n, self.base, self.system, self.size, self._messages, self.count

    def rollback(self, mark: Mark) -> None:
        """Drop all entries since `mark`; costs one step for each message dropped."""
        self.n, self.base, self.system, self.size, messages, length = mark
        while messages is not None and len(messages) > length:
            messages.pop()
        self._messages = messages
        self._view = None

    def view(self) -> Messages:
        """Return the state; the same object until it changes."""
        if self._view is None:
            self._view = Messages(self._messages or (), Version(self.mid, self.n))
        return self._view

    def settle(self, mid: int, at: int) -> bool:
        """Note that the tentative entries are committed, at `at` and in row `mid`; True when they made the row."""
        self.updated_at = at
        if self.mid == mid:
            return False
        self.mid = mid
        self.created_at = at
        self._view = None
        return True

    def extend(self, loaded: Loaded, name: MemoryName) -> Log:
        """Return the log with what was read from the store behind it: this object, or a new one where it has to be.

        Raises:
            MemoryCorruptError: what was read can't be decoded; this log is unchanged.
        """
        if loaded.head is None or loaded.head.mid != self.mid or not loaded.after:
            return fold(loaded, name)
        mark = self.mark()
        try:
            _apply(self, loaded.entries, loaded.head, name)
        except MemoryCorruptError:
            self.rollback(mark)
            raise
        self.updated_at = loaded.head.updated_at
        return self


def fold(loaded: Loaded, name: MemoryName) -> Log:
    """Build a log from what the store holds.

    Raises:
        MemoryCorruptError: an entry is missing, of an unknown kind, or can't be decoded.
    """
    head = loaded.head
    log = Log(head)
    if head is not None:
        log.n = max(head.base - 1, 0)
        _apply(log, loaded.entries, head, name)
    return log


def _apply(log: Log, entries: Iterable[StoredEntry], head: Head, name: MemoryName) -> None:
    for entry in entries:
        if entry.version != log.n + 1:
            raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the entry is missing")
        if entry.op not in _KNOWN:
            raise MemoryCorruptError(name.id, name.namespace, entry.version, "the entry is of an unknown kind")
        messages = _messages(entry, name)
        if entry.op in _REPLACING:
            log.replace(messages)
        else:
            log.append(messages)
    if (log.n, log.base) != (head.version, head.base):
        raise MemoryCorruptError(name.id, name.namespace, log.n + 1, "the log does not end where its head says")


def _messages(entry: StoredEntry, name: MemoryName) -> tuple[Message, ...]:
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError, msgspec.MsgspecError):
        try:
            raws = [bytes(raw) for raw in _decode_payload(entry.payload).messages]
        except msgspec.DecodeError:
            raws = _split_with_surrogates(entry.payload)
        return tuple([restore_message(raw) for raw in raws])
    # Outside the handler: a chained error would hold the payload, and with it what was said.
    raise MemoryCorruptError(name.id, name.namespace, entry.version, "its payload can't be decoded")


def _split_with_surrogates(payload: bytes) -> list[bytes]:
    """Split what msgspec refuses: texts with lone surrogates, which the standard library reads."""
    return [encode(message) for message in decode(payload)["messages"]]

"""The errors callers can meet: one base, few sharp classes, never any message content.

An error names the memory, the limit and the way out. Whoever catches `TurnkeeperError` has caught them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from turnkeeper.log import Receipt, Version

__all__ = [
    "AcknowledgedDataLostError",
    "CompactionAbandonedError",
    "CompactionError",
    "ConflictError",
    "ContentionError",
    "DecryptionError",
    "HistoryPrunedError",
    "IdempotencyMismatchError",
    "InvalidArgumentError",
    "InvalidMemoryIdError",
    "InvalidMessageError",
    "InvalidStoreURLError",
    "MemoryCorruptError",
    "MemoryExistsError",
    "MessageNotFoundError",
    "MissingExtraError",
    "NestedTurnError",
    "OutcomeUnknownError",
    "OverloadedError",
    "RuntimeClosedError",
    "RuntimeUsageError",
    "StoreError",
    "StoreFormatError",
    "StoreInUseError",
    "StoreUnavailableError",
    "TurnAlreadyCommittedError",
    "TurnBusyError",
    "TurnConflictError",
    "TurnEndedError",
    "TurnInterruptedError",
    "TurnkeeperError",
    "WindowOverflowError",
]


class TurnkeeperError(Exception):
    """The base of every error this library raises on purpose."""


class InvalidArgumentError(TurnkeeperError, ValueError):
    """An argument is out of its range; nothing was changed."""


class InvalidMemoryIdError(InvalidArgumentError):
    """A memory id or namespace is not 1-512 bytes of UTF-8 without control characters (a namespace may be empty)."""


class InvalidStoreURLError(InvalidArgumentError):
    """A store URL has an unknown scheme or option, or lacks a path."""


class InvalidMessageError(InvalidArgumentError):
    """What was given is no message, or holds a value that JSON can't carry; the memory is unchanged.

    Attributes:
        index: position of the message among those given, from 0.
        field: the offending field as a path such as `tool_calls[0].id`, or None when it is the message itself.
        reason: what is wrong with it, without its content.
    """

    def __init__(self, index: int, field: str | None, reason: str) -> None:
        """Describe the message at `index`."""
        super().__init__(index, field, reason)
        self.index = index
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        """Name index and field, never the content."""
        where = f"message {self.index}" if self.field is None else f"message {self.index}, field {self.field!r}"
        return f"{where}: {self.reason}"


class WindowOverflowError(InvalidArgumentError):
    """A new message would not be visible through the handle's window; nothing was changed.

    It is larger than the limit, or a result whose call the window does not show any more. Raise the limit, shorten
    the message, or choose another `on_overflow`.
    """


class ConflictError(TurnkeeperError):
    """The memory is not at the version the request was made for; nothing was changed. Read again and decide anew."""


class MemoryExistsError(ConflictError):
    """The name that something was to be made under is in use; nothing was changed."""


class MessageNotFoundError(TurnkeeperError, LookupError):
    """The memory shows no message with this id: it never had one, or it was removed, replaced or summed up."""


class HistoryPrunedError(TurnkeeperError):
    """A version was asked for that retention, or `history="window"`, has removed from the store."""


class TurnBusyError(TurnkeeperError):
    """Another turn of the memory is open, and this one was not to wait, or waited long enough; nothing was changed."""


class NestedTurnError(TurnBusyError):
    """A turn was opened, or a write made through the handle, inside an open turn of the same memory.

    Waiting would never end: the open turn would wait for itself. Use `turn.add`, or leave the turn first.
    """


class TurnEndedError(TurnkeeperError):
    """The turn is not open: it was left, or not entered yet. Open a new one."""


class TurnInterruptedError(TurnEndedError):
    """Another turn took this one's place, it lasted longer than `max_duration`, or it lost its lease.

    Attributes:
        reason: "interrupt" or "rollback", by a turn of this runtime; "expired"; or "lost": a turn of another process
            took its place, or its lease ran out.
        messages: what the turn had added and not committed, as dicts in OpenAI chat form, so that paid work can be
            used again.
    """

    def __init__(self, message: str, reason: str, messages: list[dict[str, Any]]) -> None:
        """Say what happened, and keep the messages."""
        super().__init__(message, reason, messages)
        self.reason = reason
        self.messages = messages

    def __str__(self) -> str:
        """Say what happened, without the messages."""
        return str(self.args[0])

    def __repr__(self) -> str:
        """Show how many messages there are, never what they say."""
        return f"<{type(self).__name__} reason={self.reason!r} messages={len(self.messages)}>"


class TurnConflictError(ConflictError):
    """Somebody else wrote to the memory while the turn was open, or its lease ran out; nothing was committed now.

    Attributes:
        messages: what the turn had added and not committed, as dicts in OpenAI chat form, so that paid work can be
            used again.
    """

    def __init__(self, message: str, messages: list[dict[str, Any]]) -> None:
        """Keep the messages."""
        super().__init__(message, messages)
        self.messages = messages

    def __str__(self) -> str:
        """Say what happened, without the messages."""
        return str(self.args[0])

    def __repr__(self) -> str:
        """Show how many messages there are, never what they say."""
        return f"<{type(self).__name__} messages={len(self.messages)}>"


class TurnAlreadyCommittedError(TurnkeeperError):
    """A turn with this idempotency key was committed before; the body must not run again.

    Attributes:
        receipt: what the first one got.
    """

    def __init__(self, message: str, receipt: Receipt) -> None:
        """Keep the receipt."""
        super().__init__(message, receipt)
        self.receipt = receipt

    def __str__(self) -> str:
        """Say what happened."""
        return str(self.args[0])


class ContentionError(TurnkeeperError):
    """Other writers won every attempt; nothing was changed. Try again later, or route a memory to one process."""


class CompactionError(TurnkeeperError):
    """A compaction came to nothing: its summariser returned no message or was cancelled, there was no room for it, or
    one of this memory is under way; nothing was changed.
    """


class CompactionAbandonedError(ConflictError):
    """What was summed up was replaced meanwhile; nothing was changed. Compact again, if it is still long."""


class IdempotencyMismatchError(TurnkeeperError):
    """The idempotency key was used before for other content; nothing was changed. Use a new key for a new request."""


class OverloadedError(TurnkeeperError):
    """The runtime holds as many pending requests, or bytes of them, as it may; nothing was changed. Retry later."""


class OutcomeUnknownError(TurnkeeperError):
    """The store was out of reach when a commit had to be settled: the change is there whole, or not at all.

    Read the memory, or repeat the request with the same `idempotency_key`.
    """


class RuntimeClosedError(TurnkeeperError):
    """The runtime is closing or closed; a request refused with this error changed nothing."""


class RuntimeUsageError(TurnkeeperError, RuntimeError):
    """The runtime was used where it can't work: another loop's thread, a forked child, outside `async with`."""


class MissingExtraError(TurnkeeperError, ImportError):
    """An optional dependency is missing; the message holds the install line."""


class StoreError(TurnkeeperError):
    """The store refused or failed; the request changed nothing unless a subclass says otherwise."""


class StoreInUseError(StoreError):
    """Another runtime owns the store; the message names the way out."""


class StoreFormatError(StoreError):
    """The store holds something this version can't read: a foreign file, or a newer schema."""


class StoreUnavailableError(StoreError):
    """The store can't be reached, is locked, full, read-only or too slow; the request changed nothing."""


class MemoryCorruptError(StoreError):
    """One memory's stored log can't be decoded; every other memory is unaffected.

    Export it raw (`turnkeeper inspect URL ID --raw`), quarantine it (`turnkeeper doctor URL --quarantine`), or delete
    it.

    Attributes:
        memory_id: the id of the memory.
        namespace: its namespace.
        version: number of the entry that can't be read, 0 when it is the head itself.
        reason: what is wrong with it, without its content.
    """

    def __init__(self, memory_id: str, namespace: str, version: int, reason: str) -> None:
        """Describe the entry at `version`."""
        super().__init__(memory_id, namespace, version, reason)
        self.memory_id = memory_id
        self.namespace = namespace
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        """Name the memory, the entry and the way out."""
        return (
            f"memory {self.memory_id!r} (namespace {self.namespace!r}) can't be read at entry {self.version}: "
            f"{self.reason}; delete it, or see 'turnkeeper doctor URL --quarantine'"
        )


class AcknowledgedDataLostError(StoreError):
    """The store has less of a memory than it had acknowledged: a server took over that had not received everything.

    The request changed nothing. What is gone is gone; the memory goes on from what the store kept, and the next
    request works on it.

    Attributes:
        memory_id: the id of the memory.
        namespace: its namespace.
        known: the version that was acknowledged.
        found: the version that the store has now; `Version(0, 0)`: it has no such memory.
    """

    def __init__(self, memory_id: str, namespace: str, known: Version, found: Version) -> None:
        """Describe what was known and what is there."""
        super().__init__(memory_id, namespace, known, found)
        self.memory_id = memory_id
        self.namespace = namespace
        self.known = known
        self.found = found

    def __str__(self) -> str:
        """Name the memory, both versions and the way out."""
        there = f"has version {self.found} now" if self.found.n else "has no such memory now"
        return (
            f"memory {self.memory_id!r} (namespace {self.namespace!r}): the store acknowledged version {self.known} "
            f"and {there}: what is missing is lost; this request changed nothing, the next one goes on from what is "
            "there"
        )


class DecryptionError(MemoryCorruptError):
    """An entry of one memory, or its metadata, did not open: its key is missing or another one, or it was altered.

    Nothing was changed, and every other memory is unaffected. With the right key all is there again.

    Attributes:
        key_id: the key that it was sealed with; empty: it is not sealed, and plain content is refused.
    """

    def __init__(self, memory_id: str, namespace: str, version: int, key_id: str) -> None:
        """Describe the entry at `version`; 0: the metadata."""
        super().__init__(memory_id, namespace, version, _why_closed(key_id))
        self.args: tuple[str, str, int, str] = (memory_id, namespace, version, key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        """Name the memory, the entry, the key and the way out."""
        what = f"entry {self.version}" if self.version else "its metadata"
        return (
            f"memory {self.memory_id!r} (namespace {self.namespace!r}) can't be opened at {what}: {self.reason}; "
            "nothing was changed, see docs/encryption.md"
        )


def _why_closed(key_id: str) -> str:
    if not key_id:
        return "it is not encrypted, and plain content is read with allow_plain=True only"
    return f"sealed with key {key_id!r}, which is missing or another one, or it was altered or moved"


def closed() -> RuntimeClosedError:
    """Make the error of those who were still waiting when the runtime closed."""
    return RuntimeClosedError("the runtime closed before the request was run; nothing was changed")


E = TypeVar("E", bound=TurnkeeperError)


def fresh(error: E) -> E:
    """Copy an error without what is chained to it, whatever its constructor looks like.

    So no two callers raise the same object and grow each other's traceback, and nothing that a store's driver said
    travels along.
    """
    kind = type(error)
    copy = kind.__new__(kind)
    copy.args = error.args
    copy.__dict__.update({name: value for name, value in error.__dict__.items() if not name.startswith("__")})
    return copy

"""What is said about a memory besides its messages: title, the user's own JSON, kin, and how long it is kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.log import Head, Version
from turnkeeper.names import MemoryName
from turnkeeper.policies import RetentionPolicy
from turnkeeper.wire import UnfaithfulError, encode_faithfully

__all__ = [
    "Metadata",
    "StoredMetadata",
    "decode_metadata",
    "describe",
    "encode_metadata",
    "expires_after_of",
    "keeps_apart",
    "name_of",
    "with_fork",
    "without_fork",
]

_LONGEST_TITLE: Final = 10_000
"""Characters."""


class StoredMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory's metadata as they lie in the store.

    Attributes:
        title: for people.
        data: the user's JSON object.
        expires_after: seconds without a change after which the memory is deleted; 0: never, None: as the runtime says.
        max_age: retention: seconds that entries are kept.
        max_messages: retention: how many messages are kept.
        forks: ids and namespaces of the memories that were forked off this one.
        parent: id, namespace and version of the one that this was forked off.
    """

    title: str | None = None
    data: dict[str, Any] = {}
    expires_after: float | None = None
    max_age: float | None = None
    max_messages: int | None = None
    forks: tuple[tuple[str, str], ...] = ()
    parent: tuple[str, str, str] | None = None

    @property
    def retention(self) -> RetentionPolicy | None:
        """The memory's own policy, None without one."""
        if self.max_age is None and self.max_messages is None:
            return None
        try:
            return RetentionPolicy(max_age=self.max_age, max_messages=self.max_messages)
        except InvalidArgumentError:  # not of this version's making: keeps nobody else's from being kept to
            return None

    def __repr__(self) -> str:
        """Name the kind, never title or data."""
        return f"<{type(self).__name__}>"


class Metadata(msgspec.Struct, frozen=True):
    """What is said about a memory, at one instant.

    Attributes:
        id: the memory's id.
        namespace: its namespace.
        version: its version; number 0 while nothing was ever said in it.
        title: for people; None: never given.
        data: the user's JSON object, a fresh one.
        revision: how often title, data, expiry or retention were changed: what `if_revision` compares.
        created_at: microseconds since the epoch by the store's clock; 0 while there is no such memory.
        updated_at: the same of the last entry.
        expires_at: when it is deleted if nothing changes before, likewise; 0: never.
        expires_after: seconds, as it was set for this memory; 0: never, None: as the runtime says.
        retention: this memory's own policy; None: the runtime's.
        forks: ids and namespaces of the memories that were forked off this one. One that was deleted is still listed.
        parent: id, namespace and version of the one that this was forked off.
    """

    id: str
    namespace: str
    version: Version
    title: str | None
    data: dict[str, Any]
    revision: int
    created_at: int
    updated_at: int
    expires_at: int
    expires_after: float | None
    retention: RetentionPolicy | None
    forks: tuple[tuple[str, str], ...]
    parent: tuple[str, str, str] | None

    def __repr__(self) -> str:
        """Name the memory, never its title or data."""
        return f"<Metadata id={self.id!r} namespace={self.namespace!r} revision={self.revision}>"


class _Lasting(msgspec.Struct):
    expires_after: float | None = None


_decode: Final = msgspec.json.Decoder(StoredMetadata).decode
_decode_lasting: Final = msgspec.json.Decoder(_Lasting).decode
_NOTHING: Final = StoredMetadata()


def decode_metadata(data: bytes | None) -> StoredMetadata:
    """Read what a store has; what can't be read says nothing."""
    if data is None:
        return _NOTHING
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _NOTHING


def with_fork(stored: StoredMetadata, kin: tuple[str, str]) -> StoredMetadata:
    """Return metadata that list a fork, by its id and namespace."""
    return replace(stored, forks=(*without_fork(stored, kin).forks, kin))


def without_fork(stored: StoredMetadata, kin: tuple[str, str]) -> StoredMetadata:
    """Return metadata that do not list it."""
    return replace(stored, forks=tuple([each for each in stored.forks if each != kin]))


def name_of(metadata: Metadata) -> MemoryName:
    """Return the name of the memory that metadata are about."""
    return MemoryName(metadata.namespace, metadata.id)


def expires_after_of(data: bytes) -> float | None:
    """Return the `expires_after` of what a store has, without reading the rest."""
    try:
        return _decode_lasting(data).expires_after
    except (msgspec.MsgspecError, ValueError):
        return None


def keeps_apart(data: bytes | None) -> bool:
    """Tell whether metadata say how long this memory is kept."""
    stored = decode_metadata(data)
    return stored.retention is not None or stored.expires_after is not None


def encode_metadata(metadata: StoredMetadata) -> bytes:
    """Return metadata as JSON.

    Raises:
        InvalidArgumentError: JSON can't carry the user's data unchanged.
    """
    data = metadata.data
    if not isinstance(data, Mapping):
        raise InvalidArgumentError("metadata's data must be a mapping of JSON values")
    if metadata.title is not None and (not isinstance(metadata.title, str) or len(metadata.title) > _LONGEST_TITLE):
        raise InvalidArgumentError(f"a title is a str of at most {_LONGEST_TITLE} characters")
    try:
        encode_faithfully({"title": metadata.title, "data": dict(data)})
        return msgspec.json.encode(metadata)
    except (UnfaithfulError, UnicodeEncodeError, TypeError, RecursionError):
        pass
    raise InvalidArgumentError("metadata must be JSON: str keys, and no value that JSON can't carry unchanged")


def describe(name: MemoryName, head: Head | None) -> Metadata:
    """Return what is said about a memory with this row; None: there is none."""
    if head is None or not (head.version or head.meta_version):  # none, or one that is there for a turn's lease alone
        head = Head(0, 0, 0, 0, 0, 0)
    stored = decode_metadata(head.meta)
    return Metadata(
        id=name.id,
        namespace=name.namespace,
        version=Version(head.mid if head.version else 0, head.version),
        title=stored.title,
        data=stored.data,
        revision=head.meta_version,
        created_at=head.created_at,
        updated_at=head.updated_at,
        expires_at=head.expires_at,
        expires_after=stored.expires_after,
        retention=stored.retention,
        forks=stored.forks,
        parent=stored.parent,
    )

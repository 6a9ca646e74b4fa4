"""Names of memories: what is allowed, and the digest under which receipts outlive a delete."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from turnkeeper.errors import InvalidMemoryIdError

__all__ = ["MAX_NAME_BYTES", "MemoryName", "memory_name"]

MAX_NAME_BYTES = 512
"""Longest id or namespace, in bytes of UTF-8: it has to fit an index key on every store."""

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class MemoryName(NamedTuple):
    """A memory's full name; compared byte for byte."""

    namespace: str
    id: str

    def digest(self) -> bytes:
        """Return the SHA-256 (32 bytes) of this name; the length keeps `("a", "bc")` apart from `("ab", "c")`."""
        namespace = self.namespace.encode()
        return hashlib.sha256(len(namespace).to_bytes(4, "big") + namespace + self.id.encode()).digest()


def memory_name(memory_id: str, namespace: str = "") -> MemoryName:
    """Check and combine an id (1-512 bytes of UTF-8) and a namespace (0-512 bytes).

    Raises:
        InvalidMemoryIdError: not a `str`, empty id, too long, or with control characters or surrogates.
    """
    _check("memory id", memory_id)
    if namespace != "":
        _check("namespace", namespace)
    return MemoryName(namespace, memory_id)


def _check(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidMemoryIdError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidMemoryIdError(f"{what} must not be empty")
    if (found := _FORBIDDEN.search(value)) is not None:
        kind = "a surrogate" if found[0] >= "\ud800" else "a control character"
        raise InvalidMemoryIdError(f"{what} holds {kind} at position {found.start()}")
    if len(value) * 4 > MAX_NAME_BYTES and len(value.encode()) > MAX_NAME_BYTES:
        raise InvalidMemoryIdError(f"{what} is longer than {MAX_NAME_BYTES} bytes of UTF-8")

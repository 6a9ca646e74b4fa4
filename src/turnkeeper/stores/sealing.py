"""AES-256-GCM over payloads and metadata, each bound to its place. Pure but for the nonces."""

from __future__ import annotations

import binascii
import os
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnkeeper.log import StoredEntry
from turnkeeper.names import MemoryName
from turnkeeper.sealed import Sealed, join, sealed_of
from turnkeeper.stores.keyring import Keyring

__all__ = ["Place", "Sealer", "entry_place", "meta_place"]

_NONCE: Final = 12
_FORMAT: Final = "turnkeeper sealed 1"


class Place(NamedTuple):
    """Where something sealed belongs, and opens: anywhere else it does not.

    Attributes:
        kind: "entry" or "meta".
        namespace: the memory's.
        id: the memory's.
        version: the entry's number, or the metadata's revision.
        op: what the entry does.
        entry_id: the entry's id, in hexadecimal digits.
    """

    kind: str
    namespace: str
    id: str
    version: int
    op: str = ""
    entry_id: str = ""


def entry_place(name: MemoryName, version: int, op: str, entry_id: bytes) -> Place:
    """Return the place of an entry."""
    return Place("entry", name.namespace, name.id, version, op, entry_id.hex())


def meta_place(name: MemoryName, revision: int) -> Place:
    """Return the place of metadata that were changed so many times."""
    return Place("meta", name.namespace, name.id, revision)


def _bound(place: Place, key_id: str, shown: bytes) -> bytes:
    # A JSON list, so that no two places read alike, and behind it what is shown, byte for byte as it is stored.
    return msgspec.json.encode([_FORMAT, key_id, *place]) + shown


class Sealer:
    """Seals with a keyring's active key, and opens with any of its keys.

    Attributes:
        active: the id of the key that seals.
    """

    def __init__(self, keys: Keyring) -> None:
        """Set up the ciphers."""
        self.active: str = keys.active
        self._ciphers = {key_id: AESGCM(keys.key(key_id) or b"") for key_id in keys.ids}

    def seal(self, place: Place, shown: bytes, content: bytes) -> bytes:
        """Return the payload in which `content` is sealed.

        Args:
            place: the only one at which it opens.
            shown: the beginning of the payload, for all to read.
            content: what only the key opens.
        """
        nonce = os.urandom(_NONCE)
        box = self._ciphers[self.active].encrypt(nonce, content, _bound(place, self.active, shown))
        return join(Sealed(shown, self.active, b64encode(nonce + box)))

    def open(self, place: Place, sealed: Sealed) -> bytes | None:
        """Return what was sealed; None: its key is missing or another one, or it, or its place, is not what it was."""
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            return None
        try:
            box = b64decode(sealed.box, validate=True)
            return cipher.decrypt(box[:_NONCE], box[_NONCE:], _bound(place, sealed.key_id, sealed.shown))
        except (InvalidTag, binascii.Error, ValueError):
            return None

    def open_entry(self, name: MemoryName, entry: StoredEntry) -> bytes | None:
        """Return a sealed entry's plain payload; None: it is not sealed, or does not open."""
        sealed = sealed_of(entry.payload)
        return None if sealed is None else self.open(entry_place(name, entry.version, entry.op, entry.entry_id), sealed)

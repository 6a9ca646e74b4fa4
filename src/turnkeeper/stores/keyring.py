"""Keys by their ids: given by the program, or read from a file or the environment."""

from __future__ import annotations

import binascii
import os
import re
import stat
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec

from turnkeeper.errors import InvalidArgumentError

__all__ = ["Keyring"]

K = TypeVar("K", bound="Keyring")

_VARIABLE: Final = "TURNKEEPER_KEYS"
_SIZE: Final = 32
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FORM: Final = '{"active": "2026-11", "keys": {"2026-11": "32 bytes in base64"}}'
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    active: str
    keys: dict[str, str]


class Keyring:
    """Keys that open what was sealed with them, and the one that seals now.

    Args:
        keys: 32 random bytes by id, such as `secrets.token_bytes(32)`. An id is 1-64 letters, digits, ".", "_", "-",
            is stored in plain beside what its key seals, and never stands for another key later.
        active: the id of the key that seals.

    Attributes:
        active: the id of the key that seals.

    Raises:
        InvalidArgumentError: a key is not 32 bytes, an id breaks the rules, or `active` is none of them.
    """

    __slots__ = ("_keys", "active")

    def __init__(self, keys: Mapping[str, bytes], *, active: str) -> None:
        """Check and copy the keys."""
        for key_id, key in keys.items():
            if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
                raise InvalidArgumentError("a key's id is 1-64 letters, digits, '.', '_' or '-'")
            if not isinstance(key, bytes) or len(key) != _SIZE:
                raise InvalidArgumentError(
                    f"key {key_id!r} must be {_SIZE} bytes, such as secrets.token_bytes({_SIZE})"
                )
        if active not in keys:
            raise InvalidArgumentError("the active key's id is none of the keys")
        if len(set(keys.values())) < len(keys):
            raise InvalidArgumentError("two ids have the same key: a rotation between them would change nothing")
        self.active: str = active
        self._keys = dict(keys)

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys' ids, sorted."""
        return tuple(sorted(self._keys))

    def key(self, key_id: str) -> bytes | None:
        """Return a key; None: there is none of this id."""
        return self._keys.get(key_id)

    @classmethod
    def parse(cls: type[K], text: str) -> K:
        """Read keys from JSON: the active one's id, and all keys in base64 by their ids.

        Raises:
            InvalidArgumentError: it is not of that form, or a rule for keys is broken. The text is not repeated.
        """
        written, keys = None, {}
        try:
            written = msgspec.json.decode(text.encode(), type=_Written)
            keys = {key_id: b64decode(key, validate=True) for key_id, key in written.keys.items()}
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            written = None
        if written is None:  # outside the handler: a chained error would hold the text
            raise InvalidArgumentError(f"these are no keys; their form is {_FORM}")
        return cls(keys, active=written.active)

    @classmethod
    def from_file(cls: type[K], path: str | os.PathLike[str]) -> K:
        """Read keys from a file; see `parse`.

        Raises:
            InvalidArgumentError: it can't be read, others than its owner have access to it, or these are no keys.
        """
        file = Path(path)
        try:
            with file.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                text = opened.read()
        except OSError as error:
            raise InvalidArgumentError(f"the keys' file {str(file)!r} can't be read: {error.strerror}") from None
        if os.name == "posix" and mode & _OTHERS:
            raise InvalidArgumentError(f"others have access to the keys' file {str(file)!r}: chmod 600")
        return cls.parse(text.decode("utf-8", "replace"))

    @classmethod
    def from_environment(cls: type[K], environment: Mapping[str, str] | None = None) -> K | None:
        """Read keys from TURNKEEPER_KEYS, which names a file, or holds the JSON itself; None: it is not set.

        Raises:
            InvalidArgumentError: as `from_file`.
        """
        value = (os.environ if environment is None else environment).get(_VARIABLE, "").strip()
        if not value:
            return None
        return cls.parse(value) if value.startswith("{") else cls.from_file(value)

    def __repr__(self) -> str:
        """Name the ids, never a key."""
        return f"<Keyring active={self.active!r} ids={self.ids}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys can't be pickled; read them again where they are needed")

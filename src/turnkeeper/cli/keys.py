"""The keys of an encrypted store, for commands that open one."""

from __future__ import annotations

from pathlib import Path

from turnkeeper.stores import Keyring, Store

__all__ = ["keys_given", "with_keys"]


def keys_given(file: Path | None) -> Keyring | None:
    """Read the keys from a file, or from where TURNKEEPER_KEYS says; None: there are none.

    Raises:
        InvalidArgumentError: they can't be read, or others can read them.
    """
    return Keyring.from_environment() if file is None else Keyring.from_file(file)


def with_keys(store: Store, keys: Keyring | None, *, allow_plain: bool) -> Store:
    """Put an encrypted store around one that lies open, where there are keys.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    if keys is None:
        return store
    from turnkeeper.stores import EncryptedStore

    return EncryptedStore(store, keys, allow_plain=allow_plain)

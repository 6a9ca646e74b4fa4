"""Where logs are durable: the contract, the records it speaks in, and the stores that keep it."""

import typing

from turnkeeper.errors import MissingExtraError as _MissingExtraError
from turnkeeper.log import (
    Committed,
    Conflict,
    Duplicate,
    Entry,
    Head,
    Key,
    Loaded,
    LoadQuery,
    NewMeta,
    NotCommitted,
    Outcome,
    Rejected,
    Slice,
    StoredEntry,
    StoredReceipt,
    Unknown,
    encode_payload,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores.base import Changes, Cursor, Found, KeptReceipt, Listed, Reseal, SearchQuery, Store, Transfer
from turnkeeper.stores.in_memory import InMemoryStore
from turnkeeper.stores.keyring import Keyring
from turnkeeper.stores.sqlite import SQLiteStore
from turnkeeper.stores.urls import store_from_url

if typing.TYPE_CHECKING:
    from turnkeeper.stores.encrypted import EncryptedStore

__all__ = [
    "Changes",
    "Committed",
    "Conflict",
    "Cursor",
    "Duplicate",
    "EncryptedStore",
    "Entry",
    "Found",
    "Head",
    "InMemoryStore",
    "KeptReceipt",
    "Key",
    "Keyring",
    "Listed",
    "LoadQuery",
    "Loaded",
    "MemoryName",
    "NewMeta",
    "NotCommitted",
    "Outcome",
    "Rejected",
    "Reseal",
    "SQLiteStore",
    "SearchQuery",
    "Slice",
    "Store",
    "StoredEntry",
    "StoredReceipt",
    "Transfer",
    "Unknown",
    "encode_payload",
    "store_from_url",
]


def __getattr__(name: str) -> typing.Any:
    """Import the encrypted store when it is asked for: it alone needs cryptography."""
    if name != "EncryptedStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from turnkeeper.stores.encrypted import EncryptedStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise _MissingExtraError("encryption is in an extra: pip install 'turnkeeper[crypto]'") from None
    return EncryptedStore

"""Where logs are durable: the contract, the records it speaks in, and the stores that keep it."""

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
from turnkeeper.stores.base import Changes, Found, Listed, SearchQuery, Store
from turnkeeper.stores.in_memory import InMemoryStore
from turnkeeper.stores.sqlite import SQLiteStore
from turnkeeper.stores.urls import store_from_url

__all__ = [
    "Changes",
    "Committed",
    "Conflict",
    "Duplicate",
    "Entry",
    "Found",
    "Head",
    "InMemoryStore",
    "Key",
    "Listed",
    "LoadQuery",
    "Loaded",
    "MemoryName",
    "NewMeta",
    "NotCommitted",
    "Outcome",
    "Rejected",
    "SQLiteStore",
    "SearchQuery",
    "Slice",
    "Store",
    "StoredEntry",
    "StoredReceipt",
    "Unknown",
    "encode_payload",
    "store_from_url",
]

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
from turnkeeper.stores.base import Changes, Cursor, Found, KeptReceipt, Listed, SearchQuery, Store, Transfer
from turnkeeper.stores.in_memory import InMemoryStore
from turnkeeper.stores.sqlite import SQLiteStore
from turnkeeper.stores.urls import store_from_url

__all__ = [
    "Changes",
    "Committed",
    "Conflict",
    "Cursor",
    "Duplicate",
    "Entry",
    "Found",
    "Head",
    "InMemoryStore",
    "KeptReceipt",
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
    "Transfer",
    "Unknown",
    "encode_payload",
    "store_from_url",
]

"""Where logs are durable: the contract, and the stores that keep it."""

from turnkeeper.log import Loaded, LoadQuery
from turnkeeper.stores.base import Listed, Store
from turnkeeper.stores.in_memory import InMemoryStore
from turnkeeper.stores.sqlite import SQLiteStore
from turnkeeper.stores.urls import store_from_url

__all__ = ["InMemoryStore", "Listed", "LoadQuery", "Loaded", "SQLiteStore", "Store", "store_from_url"]

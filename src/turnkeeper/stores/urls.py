"""From a URL to a store."""

from __future__ import annotations

import contextlib
import importlib
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from turnkeeper.errors import InvalidStoreURLError, MissingExtraError
from turnkeeper.stores.base import Store
from turnkeeper.stores.in_memory import InMemoryStore
from turnkeeper.stores.sqlite import SQLiteStore

__all__ = ["store_from_url"]

_KNOWN: Final = (
    "memory:, sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/database, redis://host, valkey://host"
)
_SERVERS: Final = {
    "postgresql": ("turnkeeper.stores.postgres", "PostgresStore", "postgres"),
    "postgres": ("turnkeeper.stores.postgres", "PostgresStore", "postgres"),
    "redis": ("turnkeeper.stores.redis", "RedisStore", "redis"),
    "rediss": ("turnkeeper.stores.redis", "RedisStore", "redis"),
    "valkey": ("turnkeeper.stores.redis", "RedisStore", "redis"),
    "valkeys": ("turnkeeper.stores.redis", "RedisStore", "redis"),
}
"""Module, class and extra of those stores that need a driver: imported when they are named, not before."""

_FLAGS: Final = ("network_filesystem", "search", "shared")


def store_from_url(url: str, *, read_only: bool = False) -> Store:
    """Make the store that a URL names, not opened yet.

    `memory:` keeps everything in this process. `sqlite:///chats.db` is relative to the working directory,
    `sqlite:////var/lib/chats.db` absolute; options are `?shared=true`, `?search=true` and
    `?network_filesystem=true`. `postgresql://…` and `redis://…` (`valkey://…`; with TLS `rediss://`, `valkeys://`) need
    the extras of that name; see docs/postgresql.md and docs/redis.md for what their URLs can say.

    Raises:
        InvalidStoreURLError: unknown scheme or option, or no path. The URL's password is never repeated.
    """
    parts = _split(url)
    if parts.scheme == "memory":
        if parts.netloc or parts.path or parts.query:
            raise InvalidStoreURLError("'memory:' takes neither a path nor options")
        return InMemoryStore()
    if parts.scheme in _SERVERS:
        return _server_store(parts.scheme, url, read_only=read_only)
    if parts.scheme != "sqlite":
        raise InvalidStoreURLError(f"unknown store scheme {parts.scheme!r}; known are {_KNOWN}")
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/":
        raise InvalidStoreURLError("a SQLite URL has three slashes and a path: sqlite:///chats.db, sqlite:////abs.db")
    if path == "/:memory:":
        raise InvalidStoreURLError("to keep memories in this process alone, use 'memory:'")
    if "\0" in path:
        raise InvalidStoreURLError("a path can't hold a NUL")
    flags = _flags(parts.query)
    return SQLiteStore(
        path[1:],
        shared=flags.get("shared", False),
        search=flags.get("search", False),
        network_filesystem=flags.get("network_filesystem", False),
        read_only=read_only,
    )


def _server_store(scheme: str, url: str, *, read_only: bool) -> Store:
    module, name, extra = _SERVERS[scheme]
    try:
        store_class = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("turnkeeper"):
            raise
        raise MissingExtraError(f"{scheme}:// is in an extra: pip install 'turnkeeper[{extra}]'") from None
    store: Store = store_class(url, read_only=read_only)
    return store


def _split(url: str) -> SplitResult:
    parts = None
    with contextlib.suppress(ValueError):  # whose text repeats the URL, password and all
        parts = urlsplit(url)
    if parts is None:
        raise InvalidStoreURLError(f"this is no URL; known are {_KNOWN}")
    if parts.fragment or url.endswith("#"):
        raise InvalidStoreURLError("a store URL has no fragment; write '#' in a path as '%23'")
    return parts


def _flags(query: str) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _FLAGS:
            raise InvalidStoreURLError(f"unknown SQLite option {name!r}; known are {', '.join(_FLAGS)}")
        if value.lower() not in ("true", "false"):
            raise InvalidStoreURLError(f"SQLite option {name!r} is 'true' or 'false'")
        flags[name] = value.lower() == "true"
    return flags

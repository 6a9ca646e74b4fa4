"""Places on the tests' servers, a schema or a prefix, for tests that run on both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support import postgres_server, valkey_server

__all__ = ["KINDS", "server_place"]

KINDS = ("postgres", "redis")


@contextmanager
def server_place(kind: str, name: str) -> Iterator[str]:
    """Yield the URL of an empty place on a server of this kind, and clear it away afterwards."""
    drop: Callable[[str, str], None]
    if kind == "postgres":
        server, option, drop = postgres_server.server_url(), "schema", postgres_server.drop_schema
    else:
        server, option, drop = valkey_server.server_url(), "prefix", valkey_server.drop_prefix
    drop(server, name)
    yield f"{server}{'&' if '?' in server else '?'}{option}={name}"
    drop(server, name)

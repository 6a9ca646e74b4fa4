"""The kinds of servers that the tests of this folder run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from servers.postgres import PostgresServer
from servers.servers import Server
from servers.valkey import ValkeyServer

__all__ = ["KINDS"]

KINDS: dict[str, Callable[[Path], Server]] = {"postgres": PostgresServer, "redis": ValkeyServer}
"""By name: starts a server with its data in a folder."""

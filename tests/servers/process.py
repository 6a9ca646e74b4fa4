"""One server's processes: started until it says that it is ready, ended, killed, frozen."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

import psutil  # type: ignore[import-untyped]

__all__ = ["ServerProcess"]

_PATIENCE = 60.0


class ServerProcess:
    """What a server says goes into `said`; ended, it may be started again."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], ready: str, *, user: str | None = None) -> None:
        """Start it, and wait until it says that it is ready."""
        assert not self.running
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", user=user, cwd="/"
        )
        assert self._process.stdout is not None
        is_ready = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout, ready, is_ready), name="server's log", daemon=True
        )
        self._reader.start()
        assert is_ready.wait(_PATIENCE), "\n".join(self.said[-20:])
        assert self.running, "\n".join(self.said[-20:])

    def _read(self, output: IO[str], ready: str, is_ready: threading.Event) -> None:
        for line in output:
            self.said.append(line.rstrip("\n"))
            if ready in line:
                is_ready.set()
        is_ready.set()  # it has ended

    def end(self, number: int) -> None:
        """Send a signal that ends it, and wait for that."""
        assert self._process is not None
        self._process.send_signal(number)
        self._wait()

    def kill(self) -> None:
        """Kill all its processes at once."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._wait()

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def _wait(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

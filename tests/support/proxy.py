"""A proxy on loopback that cuts, holds up, slows down or refuses the connections of a driver to its server.

What passes is counted in transfers: what one side had sent when the proxy looked. A test runs an operation once to
count them, and then once more for each of them and each place in it, with the connection cut there.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

__all__ = ["WHERE", "Proxy", "Upstream", "Where"]

Upstream: TypeAlias = tuple[str, int] | str
"""Where the server listens: host and port, or the path of a socket."""

Where: TypeAlias = Literal["before", "in the middle", "after"]
WHERE: Final[tuple[Where, ...]] = ("before", "in the middle", "after")
"""Where in a transfer the connection is cut: nothing of it has passed, its first half, or all of it."""

_CHUNK: Final = 2**20


class _Connection:
    """Two sockets with a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.cut_off = threading.Event()
        self.flowing = threading.Event()

    def cut(self) -> None:
        """End both sides at once; what was sent before still arrives."""
        self.cut_off.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it

    def close(self) -> None:
        self.cut_off.set()
        self.client.close()
        self.server.close()


class Proxy:
    """Passes everything on until told otherwise. A context manager; its port stays the same while it lives.

    Attributes:
        host: of its address.
        port: of its address.
        struck: set when the cut that was asked for by `cut_at` was made.
        held: set when something is being held up by `hold`.
        refused: set when a connection was refused.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.host = "127.0.0.1"
        self.struck = threading.Event()
        self.held = threading.Event()
        self.refused = threading.Event()
        self._lock = threading.Condition(threading.Lock())
        self._transfers = 0
        self._bytes = 0
        self._cut: tuple[int, Where] | None = None
        self._cut_everything = False
        self._refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._delay = 0.0
        self._connections: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._listener = socket.create_server((self.host, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept, name="proxy")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closing.set()
        self.flow()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(10.0)
            assert not thread.is_alive(), "a thread of the proxy hangs"

    # What has passed

    @property
    def transfers(self) -> int:
        """Transfers since `count_anew`, in both directions of all connections."""
        with self._lock:
            return self._transfers

    @property
    def volume(self) -> int:
        """Bytes since `count_anew`, in both directions of all connections."""
        with self._lock:
            return self._bytes

    @property
    def connections(self) -> int:
        """Connections that are open."""
        with self._lock:
            return len(self._connections)

    def left(self, timeout: float) -> bool:
        """Wait until there are no connections; return whether it came to that."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._connections, timeout)

    def count_anew(self) -> None:
        """Count transfers and bytes from 0."""
        with self._lock:
            self._transfers = self._bytes = 0

    # What is to go wrong

    def cut_at(self, transfer: int, where: Where, *, everything: bool = False) -> None:
        """Cut the connection of a transfer, numbered from 0 from now on, once.

        Args:
            transfer: its number.
            where: in it.
            everything: cut all connections then, and refuse new ones until `admit`.
        """
        with self._lock:
            self._transfers = 0
            self._cut = (transfer, where)
            self._cut_everything = everything
            self.struck.clear()
            self.refused.clear()

    def forget_cut(self) -> None:
        """Make no cut that is still to come."""
        with self._lock:
            self._cut = None

    def cut(self) -> int:
        """Cut all connections now; return how many."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cut()
        return len(connections)

    def refuse(self) -> None:
        """Close new connections at once, as a server that is not there, until `admit`."""
        with self._lock:
            self._refusing = True
            self.refused.clear()

    def admit(self) -> None:
        """Let new connections through again."""
        with self._lock:
            self._refusing = False

    def hold(self, *, present: bool = False) -> None:
        """Pass nothing on until `flow`, with connections open: what a lost route or a frozen server looks like.

        Args:
            present: only those connections that are open now; new ones work.
        """
        self.held.clear()
        with self._lock:
            if not present:
                self._flowing.clear()
            for connection in self._connections:
                connection.flowing.clear()

    def flow(self) -> None:
        """Pass on what was held up, and everything else."""
        with self._lock:
            self._flowing.set()
            for connection in self._connections:
                connection.flowing.set()

    def slow_down(self, seconds: float) -> None:
        """Pass each transfer on so much later; 0: at once."""
        self._delay = seconds

    # Its threads

    def _start(self, function: Callable[..., None], *arguments: Any, name: str) -> None:
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                refusing = self._refusing or self._closing.is_set()
            server = None if refusing else self._connect()
            if server is None:
                client.close()
                self.refused.set()
                continue
            for end in (client, server):
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, server)
            with self._lock:
                if self._flowing.is_set():
                    connection.flowing.set()
                self._connections.add(connection)
            self._start(self._serve, connection, name="proxy connection")

    def _connect(self) -> socket.socket | None:
        try:
            if isinstance(self.upstream, tuple):
                return socket.create_connection(self.upstream, timeout=None)
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return None
        try:
            server.connect(self.upstream)
        except OSError:
            server.close()
            return None
        return server

    def _serve(self, connection: _Connection) -> None:
        """Pump one direction here and the other in a thread of its own; the sockets close when both have ended."""
        back = threading.Thread(
            target=self._pump, args=(connection, connection.server, connection.client), name="proxy back", daemon=True
        )
        back.start()
        self._pump(connection, connection.client, connection.server)
        back.join()
        connection.close()
        with self._lock:
            self._connections.discard(connection)
            self._lock.notify_all()

    def _pump(self, connection: _Connection, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK):
                if not self._pass_on(connection, data, target):
                    return
        except OSError:
            pass
        if not connection.cut_off.is_set():
            connection.flowing.wait()  # an end is held up like everything else
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def _pass_on(self, connection: _Connection, data: bytes, target: socket.socket) -> bool:
        """Send `data` on, as far as it may go; return whether the connection goes on."""
        with self._lock:
            number, self._transfers = self._transfers, self._transfers + 1
            self._bytes += len(data)
            where = None
            if self._cut is not None and self._cut[0] == number:
                where, self._cut = self._cut[1], None
                if self._cut_everything:
                    self._refusing = True
        if self._delay:
            self._closing.wait(self._delay)
        if not connection.flowing.is_set():
            self.held.set()
            connection.flowing.wait()
        if connection.cut_off.is_set():
            return False
        passing = data[: len(data) // 2] if where == "in the middle" else b"" if where == "before" else data
        if where is not None:
            connection.cut_off.set()  # first, so that no answer slips through
        try:
            target.sendall(passing)
        finally:
            if where is not None:
                self._strike(connection)
        return where is None

    def _strike(self, connection: _Connection) -> None:
        if self._cut_everything:
            self.cut()
        else:
            connection.cut()
        self.struck.set()

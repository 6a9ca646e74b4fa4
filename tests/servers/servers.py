"""The servers that the fault tests start for themselves, stop, freeze and fill, behind one set of names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from servers.process import ServerProcess
from support.proxy import Proxy, Upstream
from turnkeeper.stores import Store

__all__ = ["Server"]


class Server(ABC):
    """One server of the tests' own, with data that outlive a restart."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._process = ServerProcess()

    @property
    @abstractmethod
    def upstream(self) -> Upstream:
        """Where it listens, for a proxy."""

    @abstractmethod
    def url(self, name: str, proxy: Proxy | None = None, *, password: str = "") -> str:
        """Return the URL of a place of its own on this server, such as a schema or a prefix; or by way of a proxy."""

    @abstractmethod
    def store(self, name: str, *, clock: Callable[[], float]) -> Store:
        """Return a store object on such a place, with a clock of the test's."""

    @abstractmethod
    def stop(self) -> None:
        """Have it end in order, and wait for that."""

    def kill(self) -> None:
        """End it at once, without a chance to write anything."""
        self._process.kill()

    @abstractmethod
    def start(self) -> None:
        """Start it on its data, and wait until it answers."""

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        self._process.freeze()

    def thaw(self) -> None:
        """Let them go on."""
        self._process.thaw()

    @abstractmethod
    def close(self) -> None:
        """End it for good."""

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process.running

    def mend(self) -> None:
        """Have it run as at first, whatever a test that failed has left."""
        if self.running:
            self.thaw()
        else:
            self.start()

    @abstractmethod
    def use_up_connections(self) -> None:
        """Let nobody in any more; those who are in stay."""

    @abstractmethod
    def free_connections(self) -> None:
        """Let others in again."""

    @abstractmethod
    def make_read_only(self) -> None:
        """Refuse every write from now on, as a replica does."""

    @abstractmethod
    def make_writable(self) -> None:
        """Take writes again."""

    @abstractmethod
    def fill_up(self) -> None:
        """Have no more room."""

    @abstractmethod
    def make_room(self) -> None:
        """Have room again."""

    @abstractmethod
    def remember(self) -> None:
        """Keep a copy of all data as they are now; cuts all connections."""

    @abstractmethod
    def fall_back(self) -> None:
        """Be a server that has only what was there at `remember`, as a replica that takes over; all are cut off."""

    @abstractmethod
    def lose_everything(self) -> None:
        """Be a new server without any data; all are cut off."""

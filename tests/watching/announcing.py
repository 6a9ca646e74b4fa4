"""A store on a file that several runtimes share, and that tells the others of commits at once."""

from __future__ import annotations

import threading
from pathlib import Path

from turnkeeper.errors import StoreUnavailableError
from turnkeeper.stores import SQLiteStore


class Hub:
    """Passes notices on between the stores of one process, and counts what is asked of it.

    Attributes:
        announced: how many announcements were made.
        listened: how many times somebody listened.
        listening: how many do right now.
        fails: whether both fail.
        gate: announcements wait for it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stores: list[AnnouncingStore] = []
        self.announced = self.listened = self.listening = 0
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()


class AnnouncingStore(SQLiteStore):
    """Announces through a hub."""

    def __init__(self, path: Path, hub: Hub) -> None:
        super().__init__(path, shared=True)
        self.announces = True
        self.hub = hub
        self.heard = True
        hub.stores.append(self)

    def announce(self) -> None:
        hub = self.hub
        with hub.changed:
            hub.announced += 1
            if hub.fails:
                raise StoreUnavailableError("no notices")
        assert hub.gate.wait(20)
        with hub.changed:
            for store in hub.stores:
                store.heard = store.heard or store is not self
            hub.changed.notify_all()

    def listen(self, timeout: float) -> bool:
        hub = self.hub
        with hub.changed:
            hub.listened += 1
            if hub.fails:
                self.heard = True
                raise StoreUnavailableError("no notices")
            hub.listening += 1
            assert hub.listening <= len(hub.stores), "two threads of one store listen"
            hub.changed.wait_for(lambda: self.heard, timeout)
            hub.listening -= 1
            heard, self.heard = self.heard, False
            return heard

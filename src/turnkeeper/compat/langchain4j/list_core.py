"""A runtime for stores of the user's own."""

from __future__ import annotations

from typing import Any, Final, Unpack

from turnkeeper.compat.langchain4j.list_actor import ListActor
from turnkeeper.config import RuntimeOptions, Settings
from turnkeeper.lane import Job, Lane
from turnkeeper.names import MemoryName
from turnkeeper.residency import Residency
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import InMemoryStore

__all__ = ["ListCore"]

_LANES: Final = 8
"""Threads for blocking stores: as many calls of offloading memories may be under way at once."""


class _Nothing(InMemoryStore):
    """What a runtime has for a store whose actors have other ones."""

    def describe(self) -> str:
        """Say what this is."""
        return "chat memory stores"


class ListCore(RuntimeCore):
    """A runtime whose actors serve lists in stores of the user's own.

    Args:
        options: as for `open_runtime`; a read has `load_timeout`, a write `commit_timeout`.
    """

    def __init__(self, **options: Unpack[RuntimeOptions]) -> None:
        """Open nothing yet."""
        super().__init__(_Nothing(), Settings.of(options))
        self._threads: tuple[Lane, ...] = ()

    def _prepare(self) -> None:
        super()._prepare()
        services = self._services
        late: dict[MemoryName, Job[Any]] = {}
        self._threads = tuple([Lane(f"turnkeeper chat memory store {number}") for number in range(_LANES)])
        services.residency = self._residency = Residency(
            self.settings, lambda name: ListActor(name, services, self._threads, late)
        )

    async def close(self) -> None:
        """Close the runtime and end its threads; one that is held by a store is left behind, as a daemon."""
        try:
            await super().close()
        finally:
            for thread in self._threads:
                thread.stop()

"""The versions that were seen: which row in the store is which of the model's."""

from __future__ import annotations

from collections.abc import Callable

from statemachine.states import Stamp, State
from turnkeeper import Version


class Versions:
    """Learns the store's row numbers as they are seen; `seen` are the versions looked at, in order."""

    def __init__(self) -> None:
        self.seen: list[Version] = []
        self._mids: dict[int, int] = {}

    def note(self, version: Version, state: State) -> None:
        if state.row is not None and state.n:
            self._mids[state.row] = version.mid
        if not self.seen or self.seen[-1] != version:
            self.seen.append(version)

    def agrees(self, version: Version, stamp: Stamp) -> bool:
        if version.n != stamp.n:
            return False
        if stamp.row is None or stamp.n == 0:
            return True
        if stamp.row in self._mids:
            return self._mids[stamp.row] == version.mid
        return version.mid > max(self._mids.values(), default=0)

    def fits(self, version: Version | None) -> Callable[[State], bool]:
        """Return what tells whether a state is at a version, or None was given."""
        return lambda state: version is None or self.agrees(version, state.stamp)

"""What a batch of requests comes to: entries to commit, and the answers that may go out once they are."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from turnkeeper.compactable import Compactable
from turnkeeper.forking import Fork
from turnkeeper.log import (
    Entry,
    Lease,
    NewMeta,
    Receipt,
    Removed,
    Slice,
    Version,
)
from turnkeeper.metadata import Metadata
from turnkeeper.names import MemoryName
from turnkeeper.requests import (
    Request,
)
from turnkeeper.state import Log
from turnkeeper.stats import MemoryStats
from turnkeeper.windows import LimitedWindow, Messages, Unbounded, Window

__all__ = ["EVERYTHING", "Plan"]

EVERYTHING: Final = Unbounded()
"""Needs the whole state."""


class Plan:
    """What a batch comes to: entries to commit, and the answers that may go out once they are.

    Attributes:
        entries: to be committed in one slice.
        writers: the requests behind the entries, one each.
        deletes: the request that removes the memory, when that is what the plan does; then there are no entries.
        meta: new metadata to commit.
        answers: (request, result or exception) in order.
        consumed: how many requests of the batch the plan covers.
        pruning: the window of the last request that prunes.
        prune: number of the entry before which all but the current system message goes from the store; 0: none.
        base: number of the entry that starts the state because of that; 0: as the log says.
        begins: what the first entry has to say of the state before it (`Details.begins`); None: nothing.
        lacking: the window, and its limit, for which the next request of the batch needs older messages.
    """

    __slots__ = (
        "answers",
        "base",
        "begins",
        "consumed",
        "deletes",
        "entries",
        "lacking",
        "meta",
        "prune",
        "pruning",
        "writers",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.writers: list[Request] = []
        self.deletes: Request | None = None
        self.answers: list[tuple[Request, Any]] = []
        self.consumed: int = 0
        self.meta: NewMeta | None = None
        self.pruning: LimitedWindow | None = None
        self.prune: int = 0
        self.base: int = 0
        self.begins: tuple[int, int] | None = None
        self.lacking: tuple[Window, int | None] | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.writers)

    def slice(
        self,
        name: MemoryName,
        log: Log,
        expected: int,
        expires_after: float,
        turn_id: bytes = b"",
        base_was: int = -1,
    ) -> Slice:
        """Return what to commit; `log` already holds the entries, `expected` and `base_was` are those before them.

        With the turn that holds the store's lease, which is given back by the turn's last commit.
        """
        last = self.writers[-1]
        gives_back = turn_id and last.ends and last.turn is not None and last.turn.id == turn_id
        return Slice(
            name,
            log.mid,
            expected,
            tuple(self.entries),
            self.base or log.base,
            log.system,
            self.deletes is not None,
            log.updated_at,
            self.prune,
            turn_id,
            Lease(turn_id, 0.0) if gives_back else None,
            self.meta,
            expires_after,
            self.deletes is not None and self.deletes.about is not None,
            base_was,
        )

    def settle(self, log: Log) -> None:
        """Give the answers the row's number, which a new memory gets only when it is committed."""
        self.answers = [(request, _settled(answer, log)) for request, answer in self.answers]


def _settled(answer: Any, log: Log) -> Any:
    if isinstance(answer, Metadata):
        known = log.head
        return replace(answer, created_at=known.created_at, updated_at=known.updated_at, expires_at=known.expires_at)
    if isinstance(answer, Compactable):
        return replace(answer, mid=log.mid)
    if not isinstance(answer, (Messages, MemoryStats, Receipt, Removed, Fork)) or answer.version.n == 0:
        return answer  # of no row: there was no memory yet
    version = Version(log.mid, answer.version.n)
    if isinstance(answer, Messages):
        return log.renamed(answer, version)
    if isinstance(answer, MemoryStats):
        return replace(answer, version=version, created_at=log.created_at, updated_at=log.updated_at)
    return replace(answer, version=version)

"""The store, which remembers what was really committed, whatever anybody was told of it."""

from __future__ import annotations

from collections.abc import Sequence

from statemachine.states import Batch
from stores.building import Clock
from turnkeeper.log import Committed, Held, Outcome, Slice
from turnkeeper.stores import Store
from turnkeeper.testing import FaultStore
from turnkeeper.testing.faults import Call, When

FOR_LONG = 1_000.0
"""Seconds; longer than any lease."""


class Witness(FaultStore):
    """A store that misbehaves where told, and remembers the entries of each slice that it committed.

    Who holds a lease here and is not the one who asks is gone: then time passes until it has run out.

    Attributes:
        written: the entries, in order.
        doubtful: a commit has failed, so that a lease may not have been given back.
        kept_out: how often somebody was kept out by a lease that should have been given back.
    """

    def __init__(self, store: Store, clock: Clock, *, inline: bool) -> None:
        super().__init__(store, inline=None if inline else False)
        self.clock = clock
        self.written: list[tuple[str, Batch]] = []
        self.doubtful = False
        self.kept_out = 0

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        def commit() -> list[Outcome]:
            outcomes = self.wrapped.commit(slices, receipt_ttl=receipt_ttl)
            for slice_, outcome in zip(slices, outcomes, strict=True):
                if isinstance(outcome, Committed) and slice_.name.id == "m":
                    self._note(slice_)
                elif isinstance(outcome, Held):
                    self.kept_out += not self.doubtful
                    self.doubtful = True
                    self.pass_time()
            return outcomes

        return self._pass_on("commit", commit, [slice_.name for slice_ in slices])

    def disturb(self, faults: Sequence[tuple[Call, When, int]]) -> None:
        """Fail so many of these calls."""
        for call, when, times in faults:
            self.doubtful = self.doubtful or call == "commit"
            (self.fail_before if when == "before" else self.fail_after)(times, on=call)

    def pass_time(self) -> None:
        """Let leases run out that nobody gives back."""
        if self.doubtful:
            self.clock.now += FOR_LONG

    def _note(self, slice_: Slice) -> None:
        if slice_.delete:
            self.written.append(("delete", ()))
        for entry in slice_.entries:
            self.written.append((entry.op, tuple(message.to_dict() for message in entry.messages)))

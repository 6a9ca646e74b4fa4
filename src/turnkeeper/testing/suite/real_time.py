"""Lifetimes by a clock that nobody can set: short ones, waited for."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from turnkeeper.log import Held, Lease, Slice
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import SuitePart, needs
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS
from turnkeeper.testing.suite.words import add, committed, entry, head_of, name, outcome_of, texts

__all__ = ["RealTime"]

M = name()
SHORT = 0.2


def wait_until(store: Store, at: int) -> None:
    """Wait until the store's clock is past a time, in microseconds since the epoch."""
    never = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.02)):
        if store.now() > at:
            return
        never.wait(0.02)
    raise AssertionError("the store's clock stands still")


class RealTime(SuitePart):
    """Receipts, leases and memories live as long as was said, by the store's own clock."""

    @pytest.fixture
    def timed(self, store: Store) -> Store:
        """Return an open store whose clock can't be set."""
        if self.settable_clock:
            pytest.skip("the store's clock can be set: other tests do")
        return store

    def test_a_short_receipt_expires(self, timed: Store) -> None:
        mid = committed(timed, add(M, 0, 0, entry("a", key="k")), ttl=SHORT)
        wait_until(timed, head_of(timed, M).updated_at + int(SHORT * 1e6))
        assert timed.receipts([(M, "k")]) == [None]
        committed(timed, add(M, mid, 1, entry("again", key="k")))
        assert timed.receipts([(M, "k")]) != [None]

    def test_a_short_lease_runs_out(self, timed: Store) -> None:
        if not timed.shared:
            pytest.skip("one runtime owns this store")
        mid = committed(timed, add(M, 0, 0, "a"))
        committed(timed, Slice(M, mid, 1, (), lease=Lease(b"o" * 16, SHORT)))
        wait_until(timed, timed.now() + int(SHORT * 1e6))
        late = replace(add(M, mid, 1, replace(entry("late"), turn_id=b"o" * 16)), turn_id=b"o" * 16)
        assert outcome_of(timed, late) == Held()
        committed(timed, add(M, mid, 1, "others go on"))
        assert texts(timed, M) == ["a", "others go on"]

    def test_a_short_lived_memory_expires(self, timed: Store) -> None:
        needs(timed, "expired")
        committed(timed, replace(add(M, 0, 0, "a"), expires_after=SHORT))
        committed(timed, replace(add(name("later"), 0, 0, "a"), expires_after=3600.0))
        wait_until(timed, head_of(timed, M).expires_at)
        assert timed.expired(9) == [M]

    def test_now_is_about_the_time_of_commits(self, timed: Store) -> None:
        before = timed.now()
        committed(timed, add(M, 0, 0, "a"))
        assert before - 1_000_000 <= head_of(timed, M).created_at <= timed.now() + 1_000_000

"""Idempotency keys and the receipts they leave."""

from __future__ import annotations

import pytest

from turnkeeper.log import Committed, Duplicate, Version
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart
from turnkeeper.testing.suite.words import (
    TTL,
    add,
    clearing,
    commit,
    committed,
    delete,
    entry,
    load,
    name,
    outcome_of,
    texts,
)

__all__ = ["Receipts"]

M = name()


class Receipts(SuitePart):
    """A key that was used leaves a receipt in the same commit, and a request repeated with it writes nothing."""

    def test_a_key_leaves_a_receipt_with_version_count_and_digest(self, store: Store) -> None:
        keyed = entry("b", "c", key="k")
        mid = committed(store, add(M, 0, 0, "a", keyed))
        (found,) = store.receipts([(M, "k")])
        assert found is not None
        assert keyed.key is not None
        assert (found.receipt.version, found.receipt.count) == (Version(mid, 2), 2)
        assert found.digest == keyed.key.digest

    def test_a_used_key_is_a_duplicate_and_the_whole_slice_writes_nothing(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        outcome = outcome_of(store, add(M, mid, 1, "b", entry("c", key="new"), entry("a", key="k")))
        assert isinstance(outcome, Duplicate)
        assert (outcome.index, outcome.stored.receipt.version) == (2, Version(mid, 1))
        assert texts(store, M) == ["a"]
        assert store.receipts([(M, "new")]) == [None]

    def test_a_duplicate_is_told_before_a_conflict(self, store: Store) -> None:
        """A retry carries the version it knew then: it has to get the receipt, not an argument about versions."""
        mid = committed(store, add(M, 0, 0, entry("a", key="k"), "b"))
        assert isinstance(outcome_of(store, add(M, mid, 0, entry("a", key="k"))), Duplicate)

    def test_a_duplicate_in_a_group_harms_no_other_slice(self, store: Store) -> None:
        committed(store, add(M, 0, 0, entry("a", key="k")))
        outcomes = commit(
            store, add(name("1"), 0, 0, "x"), add(M, 0, 0, entry("a", key="k")), add(name("2"), 0, 0, "y")
        )
        assert [type(outcome) for outcome in outcomes] == [Committed, Duplicate, Committed]

    def test_keys_belong_to_their_memory(self, store: Store) -> None:
        committed(store, add(name("bc", "a"), 0, 0, entry("1", key="k")))
        committed(store, add(name("c", "ab"), 0, 0, entry("2", key="k")))
        assert store.receipts([(name("abc"), "k"), (name("abc", ""), "K")]) == [None, None]
        (found,) = store.receipts([(name("c", "ab"), "k")])
        assert found is not None

    def test_receipts_expire_by_the_stores_clock(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        clock.now += TTL - 1
        assert store.receipts([(M, "k")]) != [None]
        clock.now += 2
        assert store.receipts([(M, "k")]) == [None]
        committed(store, add(M, mid, 1, entry("again", key="k")))
        assert texts(store, M) == ["a", "again"]
        (found,) = store.receipts([(M, "k")])
        assert found is not None
        assert found.receipt.version == Version(mid, 2)

    def test_receipts_outlive_clear_and_delete(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        committed(store, add(M, mid, 1, clearing(), base=2))
        committed(store, delete(M, mid, 2))
        outcome = outcome_of(store, add(M, 0, 0, entry("a", key="k")))
        assert isinstance(outcome, Duplicate)
        assert outcome.stored.receipt.version == Version(mid, 1)
        assert load(store, M).head is None, "a replay creates nothing"

    def test_expired_receipts_are_removed_as_new_ones_come(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, *[entry(str(n), key=f"old-{n}") for n in range(10)]))
        if self.receipts_held(store) is None:
            pytest.skip("nobody says how many receipts the store holds (receipts_held)")
        assert self.receipts_held(store) == 10
        clock.now += TTL + 1
        for n in range(5):
            committed(store, add(M, mid, 10 + n, entry("new", key=f"new-{n}")))
        assert self.receipts_held(store) == 5

    def test_a_key_that_is_used_again_and_again_does_not_keep_the_others(self, store: Store, clock: StoreClock) -> None:
        """A nightly job with one key: the receipts of the day have to go, whoever came first."""
        mid = committed(store, add(M, 0, 0, entry("job", key="nightly")))
        version = 1
        for day in range(4):
            for n in range(10):
                committed(store, add(M, mid, version, entry("x", key=f"{day}-{n}")))
                version += 1
            clock.now += TTL + 1
            committed(store, add(M, mid, version, entry("job", key="nightly")))
            version += 1
        held = self.receipts_held(store)
        if held is None:
            pytest.skip("nobody says how many receipts the store holds (receipts_held)")
        assert held <= 20, "receipts pile up"

    def test_looking_up_keeps_the_order_of_the_questions(self, store: Store) -> None:
        committed(store, add(M, 0, 0, entry("a", key="1"), entry("b", key="2")))
        found = store.receipts([(M, "2"), (M, "none"), (M, "1"), (name("other"), "1")])
        assert [receipt and receipt.receipt.version.n for receipt in found] == [2, None, 1, None]

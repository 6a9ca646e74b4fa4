"""Heads compared and set, slices whole or not at all, deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnkeeper.log import Committed, Conflict
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import OpenStore, SuitePart
from turnkeeper.testing.suite.words import (
    add,
    clearing,
    commit,
    committed,
    delete,
    entry,
    head_of,
    listed,
    load,
    log,
    name,
    outcome_of,
    setting,
    texts,
)

__all__ = ["CompareAndSet", "Deleting", "Lifetime"]

M = name()


class CompareAndSet(SuitePart):
    """Every commit is a compare-and-set on the memory's head, and a slice is written whole or not at all."""

    def test_a_slice_takes_the_head_as_far_as_it_has_entries(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b", "c"))
        head = head_of(store, M)
        assert (head.mid, head.version, head.base, head.system) == (mid, 3, 0, 0)
        assert log(store, M) == [(1, "add"), (2, "add"), (3, "add")]
        assert texts(store, M) == ["a", "b", "c"]

    def test_the_next_slice_goes_on_where_the_head_is(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        assert committed(store, add(M, mid, 1, "b")) == mid
        assert texts(store, M) == ["a", "b"]

    @pytest.mark.parametrize("expected", [0, 1, 3, 7])
    def test_another_version_than_the_heads_is_a_conflict_and_writes_nothing(self, store: Store, expected: int) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, add(M, mid, expected, "no")) == [Conflict()]
        assert texts(store, M) == ["a", "b"]
        assert log(store, M) == [(1, "add"), (2, "add")]

    def test_creating_what_is_there_is_a_conflict(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "a"))
        assert commit(store, add(M, 0, 0, "no")) == [Conflict()]
        assert texts(store, M) == ["a"]

    def test_writing_to_what_is_not_there_is_a_conflict(self, store: Store) -> None:
        assert commit(store, add(M, 7, 3, "no")) == [Conflict()]
        assert commit(store, delete(M, 7, 3)) == [Conflict()]
        assert load(store, M).head is None
        assert listed(store) == []

    def test_the_state_starts_where_the_slice_says(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, add(M, mid, 1, setting("b"), "c", base=2))
        assert texts(store, M) == ["b", "c"]
        committed(store, add(M, mid, 3, clearing(), base=4))
        assert texts(store, M) == []
        assert log(store, M) == [(1, "add"), (2, "set"), (3, "add"), (4, "clear")]

    def test_a_conflict_in_a_group_harms_no_other_slice(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        outcomes = commit(
            store,
            add(name("before"), 0, 0, "1"),
            add(M, mid, 0, "stale", entry("keyed", key="k")),
            add(name("behind"), 0, 0, "2"),
        )
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Committed]
        assert [texts(store, name(each)) for each in ("before", "m", "behind")] == [["1"], ["a"], ["2"]]
        assert store.receipts([(M, "k")]) == [None]

    def test_an_empty_group_is_nothing(self, store: Store) -> None:
        assert commit(store) == []

    def test_memories_of_one_id_in_two_namespaces_are_two(self, store: Store) -> None:
        commit(store, add(name("m", "tenant-1"), 0, 0, "a"), add(name("m", "tenant-2"), 0, 0, "b"))
        assert texts(store, name("m", "tenant-1")) == ["a"]
        assert texts(store, name("m", "tenant-2")) == ["b"]
        assert texts(store, M) == []

    def test_many_memories_are_committed_in_one_group(self, store: Store) -> None:
        outcomes = commit(store, *[add(name(f"{n}"), 0, 0, f"a {n}", f"b {n}") for n in range(100)])
        mids = [outcome.mid for outcome in outcomes if isinstance(outcome, Committed)]
        assert len(set(mids)) == 100, "each memory has a row of its own"
        assert [texts(store, name(f"{n}")) for n in (0, 57, 99)] == [[f"a {n}", f"b {n}"] for n in (0, 57, 99)]


class Deleting(SuitePart):
    """A delete removes a memory with all its entries, and its `mid` is never used again."""

    def test_a_delete_removes_head_and_entries(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        committed(store, delete(M, mid, 2))
        assert load(store, M).head is None
        assert store.entries(mid, after=0, limit=10) == []
        assert listed(store) == []

    def test_a_delete_takes_with_it_what_the_same_group_has_added(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        outcomes = commit(store, add(M, mid, 1, "b"), delete(M, mid, 2), add(name("other"), 0, 0, "c"))
        assert [type(outcome) for outcome in outcomes] == [Committed] * 3
        assert load(store, M).head is None
        assert store.entries(mid, after=0, limit=10) == []
        assert texts(store, name("other")) == ["c"]

    def test_a_delete_at_another_version_is_a_conflict(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, delete(M, mid, 1)) == [Conflict()]
        assert texts(store, M) == ["a", "b"]

    def test_a_mid_is_never_used_again(self, store: Store) -> None:
        mids = []
        for _ in range(5):
            mids.append(committed(store, add(M, 0, 0, "a")))
            committed(store, delete(M, mids[-1], 1))
        assert sorted(set(mids)) == mids
        assert min(mids) > 0, "0 stands for no row"

    def test_a_mid_is_never_used_again_after_the_highest_is_gone_and_the_store_reopened(
        self, open_store: OpenStore
    ) -> None:
        if not self.durable:
            pytest.skip("the store keeps nothing (durable)")
        store = open_store()
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, delete(M, mid, 1))
        store.close()
        assert committed(open_store(), add(M, 0, 0, "b")) > mid

    def test_a_stale_writer_can_not_hit_the_successor(self, store: Store) -> None:
        old = committed(store, add(M, 0, 0, "x"))
        committed(store, delete(M, old, 1))
        committed(store, add(M, 0, 0, "y"))
        assert commit(store, add(M, old, 1, "no")) == [Conflict()]
        assert commit(store, delete(M, old, 1)) == [Conflict()]
        assert texts(store, M) == ["y"]


class Lifetime(SuitePart):
    """What was committed is there again for whoever opens the store next."""

    def test_closing_twice_is_harmless(self, store: Store) -> None:
        store.close()
        store.close()

    def test_closing_what_was_never_opened_is_harmless(self, place: Path) -> None:
        self.make_store(place, None).close()

    def test_it_says_what_it_is(self, store: Store) -> None:
        assert store.describe()

    def test_what_was_committed_is_there_after_reopening(self, open_store: OpenStore) -> None:
        if not self.durable:
            pytest.skip("the store keeps nothing (durable)")
        store = open_store()
        mid = committed(store, add(M, 0, 0, "a", entry("b", key="k")))
        committed(store, add(M, mid, 2, setting("c"), "d", base=3))
        before = load(store, M)
        store.close()
        again = open_store()
        assert load(again, M) == before
        assert outcome_of(again, add(M, mid, 2, "stale")) == Conflict()
        assert store_receipt(again) == 2
        committed(again, add(M, mid, 4, "e", base=3))
        assert texts(again, M) == ["c", "d", "e"]


def store_receipt(store: Store) -> int | None:
    """Return the version number in the receipt of the key "k"."""
    (found,) = store.receipts([(M, "k")])
    return found.receipt.version.n if found else None

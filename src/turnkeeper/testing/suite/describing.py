"""Metadata, compared and set on their own; memories that expire."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from turnkeeper.log import Committed, Conflict, Lease, NewMeta, Unknown
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart, needs
from turnkeeper.testing.suite.words import (
    add,
    commit,
    committed,
    delete,
    describing,
    head_of,
    listed,
    load,
    name,
    pruning,
    setting,
    texts,
)

__all__ = ["Expiry", "Metadata", "MetadataFirst", "SettlingChanges"]

M = name()


class Metadata(SuitePart):
    """Metadata are compared and set by a revision of their own, and change neither the log nor its time."""

    def test_a_memory_that_was_never_described_has_none(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "a"))
        head = head_of(store, M)
        assert (head.meta_version, head.meta, head.expires_at) == (0, None, 0)

    def test_metadata_come_back_as_they_went_in_and_each_change_counts(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        for revision, data in enumerate((b'{"title":"first"}', b"", b"\x00\xff")):
            committed(store, describing(M, mid, 1, revision, data))
            head = head_of(store, M)
            assert (head.meta_version, head.meta) == (revision + 1, data)
            (found,) = store.names(namespace=None, after=None, limit=9)
            assert found.head == head

    def test_metadata_change_neither_the_log_nor_its_time(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, "a", setting("b"), base=2))
        before = head_of(store, M)
        clock.now += 10
        committed(store, describing(M, mid, 2, 0))
        head = head_of(store, M)
        assert (head.version, head.base, head.updated_at) == (2, 2, before.updated_at)
        assert texts(store, M) == ["b"]

    @pytest.mark.parametrize("revision", [0, 2])
    def test_another_revision_than_the_heads_is_a_conflict_and_writes_nothing(
        self, store: Store, revision: int
    ) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, describing(M, mid, 1, 0, b"kept"))
        with_entry = replace(add(M, mid, 1, "no"), meta=NewMeta(revision, b"no"))
        assert commit(store, describing(M, mid, 1, revision, b"no"), with_entry) == [Conflict(), Conflict()]
        assert (head_of(store, M).meta, texts(store, M)) == (b"kept", ["a"])

    def test_metadata_for_another_version_are_a_conflict_as_well(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, describing(M, mid, 1, 0), describing(M, 0, 0, 0)) == [Conflict(), Conflict()]
        assert head_of(store, M).meta_version == 0

    def test_metadata_may_come_with_entries(self, store: Store) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a"), meta=NewMeta(0, b"1")))
        committed(store, replace(add(M, mid, 1, "b"), meta=NewMeta(1, b"2")))
        head = head_of(store, M)
        assert (head.version, head.meta_version, head.meta, texts(store, M)) == (2, 2, b"2", ["a", "b"])


class MetadataFirst(SuitePart):
    """Metadata may come before the first entry; they make a row at version 0."""

    def test_metadata_alone_make_a_row_at_version_0(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0, b"early"))
        head = head_of(store, M)
        assert (head.mid, head.version, head.meta_version, head.meta) == (mid, 0, 1, b"early")
        assert listed(store) == [M]

    def test_metadata_make_a_row_only_where_none_is_and_from_revision_0(self, store: Store) -> None:
        assert commit(store, describing(M, 0, 0, 1)) == [Conflict()]
        committed(store, describing(M, 0, 0, 0, b"first"))
        assert commit(store, describing(M, 0, 0, 0, b"second")) == [Conflict()]
        assert head_of(store, M).meta == b"first"

    def test_entries_go_into_the_row_that_metadata_made(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0, b"early"))
        assert committed(store, add(M, mid, 0, "a")) == mid
        assert (head_of(store, M).meta, texts(store, M)) == (b"early", ["a"])

    def test_a_row_of_metadata_alone_can_be_deleted(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0))
        committed(store, delete(M, mid, 0))
        assert listed(store) == []

    def test_a_turn_that_gives_its_lease_back_leaves_the_metadata(self, shared: Store) -> None:
        ours = b"o" * 16
        lease = replace(describing(M, 0, 0, 0), meta=None, lease=Lease(ours, 30.0))
        mid = committed(shared, lease)
        committed(shared, replace(describing(M, mid, 0, 0, b"kept"), turn_id=ours))
        committed(shared, replace(lease, mid=mid, lease=Lease(ours, 0.0), turn_id=ours))
        assert head_of(shared, M).meta == b"kept"
        committed(shared, add(M, mid, 0, "nobody is kept out"))


class SettlingChanges(SuitePart):
    """What became of a change of metadata or a pruning is told truly, and not at all where nobody can tell."""

    def test_a_change_of_metadata_is_settled_by_revision_and_content(self, store: Store) -> None:
        early = describing(M, 0, 0, 0, b"early")
        assert store.settle([early]) == [None]
        mid = committed(store, early)
        later = describing(M, mid, 0, 1, b"later")
        found, missing, foreign = store.settle([early, later, describing(M, 0, 0, 0, b"another's")])
        assert isinstance(found, Committed)
        assert (found.mid, missing, foreign) == (mid, None, None)
        committed(store, later)
        assert store.settle([early]) == [Unknown()], "nobody can tell whose change came first"

    def test_a_pruning_is_settled_by_what_is_left(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abcde"))
        slice_ = pruning(M, mid, 5, 4, base=4, system=2)
        assert store.settle([slice_]) == [None]
        committed(store, slice_)
        (found,) = store.settle([slice_])
        assert isinstance(found, Committed)
        committed(store, add(M, mid, 5, "f", base=4))
        assert store.settle([pruning(M, mid, 5, 5, base=5)]) == [None]

    def test_a_change_of_another_row_is_not_settled(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0))
        committed(store, delete(M, mid, 0))
        committed(store, describing(M, 0, 0, 0))
        assert store.settle([describing(M, mid, 0, 0), pruning(M, mid, 0, 1)]) == [None, None]


class Expiry(SuitePart):
    """A memory may be removed when it was not changed for its time, by the store's clock, and not before."""

    @pytest.fixture
    def expiring(self, store: Store) -> Store:
        """Return an open store that tells what has expired."""
        needs(store, "expired")
        return store

    def test_a_memory_expires_so_long_after_its_last_change(self, expiring: Store, clock: StoreClock) -> None:
        mid = committed(expiring, replace(add(M, 0, 0, "a"), expires_after=10.0))
        assert head_of(expiring, M).expires_at == int((clock.now + 10) * 1e6)
        clock.now += 9
        assert expiring.expired(9) == []
        committed(expiring, replace(add(M, mid, 1, "b"), expires_after=10.0))
        clock.now += 9
        assert expiring.expired(9) == []
        committed(expiring, replace(describing(M, mid, 2, 0), expires_after=10.0))
        clock.now += 9
        assert expiring.expired(9) == []
        clock.now += 1
        assert expiring.expired(9) == expiring.expired(9) == [M]

    def test_a_change_without_a_time_clears_it(self, expiring: Store, clock: StoreClock) -> None:
        mid = committed(expiring, replace(add(M, 0, 0, "a"), expires_after=10.0))
        committed(expiring, add(M, mid, 1, "b"))
        assert head_of(expiring, M).expires_at == 0
        committed(expiring, replace(describing(M, mid, 2, 0), expires_after=10.0))
        committed(expiring, describing(M, mid, 2, 1))
        clock.now += 100
        assert (head_of(expiring, M).expires_at, expiring.expired(9)) == (0, [])

    def test_pruning_does_not_put_expiry_off(self, expiring: Store, clock: StoreClock) -> None:
        mid = committed(expiring, replace(add(M, 0, 0, "a", "b"), expires_after=10.0))
        clock.now += 10
        committed(expiring, replace(pruning(M, mid, 2, 2, base=2), expires_after=10.0))
        assert expiring.expired(9) == [M]

    def test_those_that_expired_first_come_first_as_many_as_wanted(self, expiring: Store, clock: StoreClock) -> None:
        for each, seconds in (("late", 30.0), ("early", 10.0), ("never", 0.0), ("middle", 20.0)):
            committed(expiring, replace(add(name(each), 0, 0, "a"), expires_after=seconds))
        clock.now += 25
        assert [one.id for one in expiring.expired(9)] == ["early", "middle"]
        assert [one.id for one in expiring.expired(1)] == ["early"]
        mid = head_of(expiring, name("late")).mid
        committed(expiring, replace(add(name("late"), mid, 1, "b"), expires_after=1.0))  # sooner than before
        mid = head_of(expiring, name("early")).mid
        committed(expiring, replace(add(name("early"), mid, 1, "b"), expires_after=2.0))
        clock.now += 2
        assert [one.id for one in expiring.expired(9)] == ["middle", "late", "early"]

    def test_what_is_deleted_or_made_anew_has_not_expired(self, expiring: Store, clock: StoreClock) -> None:
        for each in ("gone", "anew"):
            mid = committed(expiring, replace(add(name(each), 0, 0, "a"), expires_after=10.0))
            committed(expiring, delete(name(each), mid, 1))
        committed(expiring, replace(add(name("anew"), 0, 0, "a"), expires_after=50.0))
        clock.now += 20
        assert expiring.expired(9) == []

    def test_only_what_has_expired_is_deleted_when_that_is_wanted(self, expiring: Store, clock: StoreClock) -> None:
        mid = committed(expiring, replace(add(M, 0, 0, "a"), expires_after=10.0))
        other = committed(expiring, add(name("forever"), 0, 0, "a"))
        slice_ = replace(delete(M, mid, 1), only_expired=True)
        forever = replace(delete(name("forever"), other, 1), only_expired=True)
        assert commit(expiring, slice_, forever) == [Conflict(), Conflict()]
        clock.now += 10
        (outcome, again) = commit(expiring, slice_, forever)
        assert isinstance(outcome, Committed)
        assert again == Conflict()
        assert load(expiring, M).head is None

    def test_now_is_the_time_of_the_stores_clock(self, expiring: Store, clock: StoreClock) -> None:
        assert expiring.now() == int(clock.now * 1e6)

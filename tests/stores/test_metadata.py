"""What every store promises of metadata, which are compared and set on their own, and of memories that expire."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stores.building import (
    Clock,
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
from stores.kinds import SHARED
from turnkeeper.log import Committed, Conflict, Lease, NewMeta, Unknown
from turnkeeper.stores import Store

M = name()


class TestMetadata:
    def test_a_memory_that_was_never_described_has_none(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "a"))
        head = head_of(store, M)
        assert (head.meta_version, head.meta, head.expires_at) == (0, None, 0)

    def test_they_come_back_as_they_went_in_and_each_change_counts(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        for revision, data in enumerate((b'{"title":"first"}', b"", b"\x00\xff")):
            committed(store, describing(M, mid, 1, revision, data))
            head = head_of(store, M)
            assert (head.meta_version, head.meta) == (revision + 1, data)
            (found,) = store.names(namespace=None, after=None, limit=9)
            assert found.head == head

    def test_they_change_neither_the_log_nor_its_time(self, store: Store, clock: Clock) -> None:
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

    def test_another_version_is_a_conflict_as_well(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, describing(M, mid, 1, 0), describing(M, 0, 0, 0)) == [Conflict(), Conflict()]
        assert head_of(store, M).meta_version == 0

    def test_they_may_come_with_entries(self, store: Store) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a"), meta=NewMeta(0, b"1")))
        committed(store, replace(add(M, mid, 1, "b"), meta=NewMeta(1, b"2")))
        head = head_of(store, M)
        assert (head.version, head.meta_version, head.meta, texts(store, M)) == (2, 2, b"2", ["a", "b"])


class TestBeforeTheFirstEntry:
    def test_they_make_a_row_at_version_0(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0, b"early"))
        head = head_of(store, M)
        assert (head.mid, head.version, head.meta_version, head.meta) == (mid, 0, 1, b"early")
        assert listed(store) == [M]

    def test_only_where_none_is_and_from_revision_0(self, store: Store) -> None:
        assert commit(store, describing(M, 0, 0, 1)) == [Conflict()]
        committed(store, describing(M, 0, 0, 0, b"first"))
        assert commit(store, describing(M, 0, 0, 0, b"second")) == [Conflict()]
        assert head_of(store, M).meta == b"first"

    def test_entries_go_into_that_row(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0, b"early"))
        assert committed(store, add(M, mid, 0, "a")) == mid
        assert (head_of(store, M).meta, texts(store, M)) == (b"early", ["a"])

    def test_it_can_be_deleted(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0))
        committed(store, delete(M, mid, 0))
        assert listed(store) == []

    @pytest.mark.parametrize("store", SHARED, indirect=True)
    def test_a_turn_that_gives_its_lease_back_leaves_it(self, store: Store) -> None:
        ours = b"o" * 16
        lease = replace(describing(M, 0, 0, 0), meta=None, lease=Lease(ours, 30.0))
        mid = committed(store, lease)
        committed(store, replace(describing(M, mid, 0, 0, b"kept"), turn_id=ours))
        committed(store, replace(lease, mid=mid, lease=Lease(ours, 0.0), turn_id=ours))
        assert head_of(store, M).meta == b"kept"
        committed(store, add(M, mid, 0, "nobody is kept out"))


class TestSettlingChanges:
    def test_metadata_are_found_by_revision_and_content(self, store: Store) -> None:
        early = describing(M, 0, 0, 0, b"early")
        assert store.settle([early]) == [None]
        mid = committed(store, early)
        later = describing(M, mid, 0, 1, b"later")
        found, missing, foreign = store.settle([early, later, describing(M, 0, 0, 0, b"another's")])
        assert isinstance(found, Committed)
        assert (found.mid, missing, foreign) == (mid, None, None)
        committed(store, later)
        assert store.settle([early]) == [Unknown()], "nobody can tell whose change came first"

    def test_a_pruning_is_found_by_what_is_left(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abcde"))
        slice_ = pruning(M, mid, 5, 4, base=4, system=2)
        assert store.settle([slice_]) == [None]
        committed(store, slice_)
        (found,) = store.settle([slice_])
        assert isinstance(found, Committed)
        committed(store, add(M, mid, 5, "f", base=4))
        assert store.settle([pruning(M, mid, 5, 5, base=5)]) == [None]

    def test_of_another_row_nothing_is_found(self, store: Store) -> None:
        mid = committed(store, describing(M, 0, 0, 0))
        committed(store, delete(M, mid, 0))
        committed(store, describing(M, 0, 0, 0))
        assert store.settle([describing(M, mid, 0, 0), pruning(M, mid, 0, 1)]) == [None, None]


class TestExpiry:
    def test_a_memory_expires_so_long_after_its_last_change(self, store: Store, clock: Clock) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a"), expires_after=10.0))
        assert head_of(store, M).expires_at == int((clock.now + 10) * 1e6)
        clock.now += 9
        assert store.expired(9) == []
        committed(store, replace(add(M, mid, 1, "b"), expires_after=10.0))
        clock.now += 9
        assert store.expired(9) == []
        committed(store, replace(describing(M, mid, 2, 0), expires_after=10.0))
        clock.now += 9
        assert store.expired(9) == []
        clock.now += 1
        assert store.expired(9) == store.expired(9) == [M]

    def test_a_change_without_it_clears_it(self, store: Store, clock: Clock) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a"), expires_after=10.0))
        committed(store, add(M, mid, 1, "b"))
        assert head_of(store, M).expires_at == 0
        committed(store, replace(describing(M, mid, 2, 0), expires_after=10.0))
        committed(store, describing(M, mid, 2, 1))
        clock.now += 100
        assert (head_of(store, M).expires_at, store.expired(9)) == (0, [])

    def test_pruning_does_not_put_it_off(self, store: Store, clock: Clock) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a", "b"), expires_after=10.0))
        clock.now += 10
        committed(store, replace(pruning(M, mid, 2, 2, base=2), expires_after=10.0))
        assert store.expired(9) == [M]

    def test_the_oldest_come_first_as_many_as_wanted(self, store: Store, clock: Clock) -> None:
        for each, seconds in (("late", 30.0), ("early", 10.0), ("never", 0.0), ("middle", 20.0)):
            committed(store, replace(add(name(each), 0, 0, "a"), expires_after=seconds))
        clock.now += 25
        assert [one.id for one in store.expired(9)] == ["early", "middle"]
        assert [one.id for one in store.expired(1)] == ["early"]
        mid = head_of(store, name("late")).mid
        committed(store, replace(add(name("late"), mid, 1, "b"), expires_after=1.0))  # sooner than before
        mid = head_of(store, name("early")).mid
        committed(store, replace(add(name("early"), mid, 1, "b"), expires_after=2.0))
        clock.now += 2
        assert [one.id for one in store.expired(9)] == ["middle", "late", "early"]

    def test_what_is_deleted_or_made_anew_is_none_of_them(self, store: Store, clock: Clock) -> None:
        for each in ("gone", "anew"):
            mid = committed(store, replace(add(name(each), 0, 0, "a"), expires_after=10.0))
            committed(store, delete(name(each), mid, 1))
        committed(store, replace(add(name("anew"), 0, 0, "a"), expires_after=50.0))
        clock.now += 20
        assert store.expired(9) == []

    def test_only_what_has_expired_is_deleted_when_that_is_wanted(self, store: Store, clock: Clock) -> None:
        mid = committed(store, replace(add(M, 0, 0, "a"), expires_after=10.0))
        other = committed(store, add(name("forever"), 0, 0, "a"))
        slice_ = replace(delete(M, mid, 1), only_expired=True)
        forever = replace(delete(name("forever"), other, 1), only_expired=True)
        assert commit(store, slice_, forever) == [Conflict(), Conflict()]
        clock.now += 10
        (outcome, again) = commit(store, slice_, forever)
        assert isinstance(outcome, Committed)
        assert again == Conflict()
        assert load(store, M).head is None

    def test_the_time_is_the_stores(self, store: Store, clock: Clock) -> None:
        assert store.now() == int(clock.now * 1e6)

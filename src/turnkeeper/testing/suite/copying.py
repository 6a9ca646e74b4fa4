"""Memories taken in as they lie in another store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from turnkeeper.log import Committed, Conflict, Duplicate, Held, Lease, NewMeta, Outcome, Slice, StoredEntry, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import KeptReceipt, Store, Transfer
from turnkeeper.testing.suite.base import StoreClock, SuitePart, needs, needs_changes
from turnkeeper.testing.suite.words import (
    TTL,
    add,
    committed,
    delete,
    describing,
    entry,
    head_of,
    load,
    name,
    outcome_of,
    pruning,
    setting,
    texts,
)

__all__ = ["Copying", "ReceiptsOf"]

M = name()
COPY = name("copy", "elsewhere")


def everything_of(store: Store, memory: MemoryName) -> tuple[StoredEntry, ...]:
    """Return all entries of a memory."""
    return tuple(store.entries(head_of(store, memory).mid, after=0, limit=1000))


def whole(store: Store, memory: MemoryName = M) -> Transfer:
    """Return a memory as it lies in a store, to be written under another name."""
    receipts = tuple(store.receipts_of(memory, after="", limit=1000))
    return Transfer(COPY, 0, 0, head_of(store, memory), everything_of(store, memory), receipts)


def adopted(store: Store, transfer: Transfer) -> int:
    """Write a transfer that has to succeed, and return its `mid`."""
    outcome = adopt(store, transfer)
    assert isinstance(outcome, Committed), "this transfer is right, so it has to be written"
    return outcome.mid


def adopt(store: Store, transfer: Transfer) -> Outcome:
    """Write a transfer."""
    (outcome,) = store.adopt([transfer])
    return outcome


class Copying(SuitePart):
    """A memory from another store is written as it lay there, part by part, each whole or not at all."""

    @pytest.fixture
    def taking(self, store: Store) -> Store:
        """Return an open store that takes in copies."""
        needs(store, "adopt")
        needs(store, "receipts_of")
        return store

    @pytest.fixture
    def source(self, taking: Store) -> Transfer:
        """Return a memory with a history, metadata and receipts."""
        mid = committed(taking, replace(add(M, 0, 0, "a", entry("b", key="k1")), meta=NewMeta(0, b"\x00meta")))
        committed(taking, describing(M, mid, 2, 1, b"{}"))
        committed(taking, replace(add(M, mid, 2, setting("c"), entry("d", "e", key="k2"), base=3), expires_after=900.0))
        return whole(taking)

    def test_a_copy_has_the_heads_and_the_entries_of_its_source(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        assert head_of(taking, COPY) == replace(source.head, mid=mid)
        assert everything_of(taking, COPY) == source.entries
        assert texts(taking, COPY) == texts(taking, M) == ["c", "d", "e"]
        assert mid != head_of(taking, M).mid

    def test_a_copy_goes_on_like_any_memory(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        committed(taking, add(COPY, mid, 4, "f", base=3))
        assert texts(taking, COPY) == ["c", "d", "e", "f"]
        assert texts(taking, M) == ["c", "d", "e"]
        committed(taking, delete(COPY, mid, 5))
        assert load(taking, COPY).head is None
        assert texts(taking, M) == ["c", "d", "e"]

    def test_a_copys_keys_are_used(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        outcome = outcome_of(taking, add(COPY, mid, 4, entry("d", "e", key="k2")))
        assert isinstance(outcome, Duplicate)
        assert (outcome.stored.receipt.version, outcome.stored.receipt.count) == (Version(mid, 4), 2)
        assert [each.expires_at for each in taking.receipts_of(COPY, after="", limit=9)] == [
            each.expires_at for each in source.receipts
        ]

    def test_a_receipt_of_an_earlier_memory_stays_one(self, taking: Store, source: Transfer) -> None:
        receipts = tuple(replace(each, version=Version(0, each.version.n)) for each in source.receipts)
        adopted(taking, replace(source, receipts=receipts))
        assert [each.version for each in taking.receipts_of(COPY, after="", limit=9)] == [
            each.version for each in receipts
        ]

    def test_a_copy_may_come_in_parts(self, taking: Store, source: Transfer) -> None:
        mid, expected = 0, 0
        for each in source.entries:
            head = replace(source.head, version=each.version)
            mid = adopted(taking, Transfer(COPY, mid, expected, head, (each,)))
            expected = each.version
        adopted(taking, Transfer(COPY, mid, expected, source.head, (), source.receipts))
        assert head_of(taking, COPY) == replace(source.head, mid=mid)
        assert everything_of(taking, COPY) == source.entries
        assert len(taking.receipts_of(COPY, after="", limit=9)) == 2

    def test_entries_that_were_pruned_are_missing_in_the_copy_as_well(self, taking: Store, source: Transfer) -> None:
        committed(taking, pruning(M, source.head.mid, 4, 4, base=3))
        pruned = whole(taking)
        assert [each.version for each in pruned.entries] == [3, 4]
        adopted(taking, pruned)
        assert [each.version for each in everything_of(taking, COPY)] == [3, 4]
        assert texts(taking, COPY) == ["c", "d", "e"]

    def test_a_row_without_entries_can_be_copied(self, taking: Store) -> None:
        committed(taking, describing(M, 0, 0, 0, b"early"))
        mid = adopted(taking, whole(taking))
        assert head_of(taking, COPY) == replace(head_of(taking, M), mid=mid)
        committed(taking, add(COPY, mid, 0, "a"))

    def test_a_copy_to_another_version_or_to_what_is_there_is_a_conflict(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        for transfer in (
            source,
            replace(source, mid=mid, expected=3),
            replace(source, mid=mid + 1000, expected=4),
            replace(source, name=name("none"), mid=mid, expected=4),
            replace(source, mid=mid, expected=4, entries=(), base_was=0),
            replace(source, mid=mid, expected=4, entries=(), meta_was=1),
        ):
            assert adopt(taking, transfer) == Conflict()
        assert everything_of(taking, COPY) == source.entries
        assert load(taking, name("none")).head is None

    def test_a_copy_that_conflicts_harms_no_other_in_its_group(self, taking: Store, source: Transfer) -> None:
        others = [replace(source, name=name(each)) for each in ("before", "behind")]
        outcomes = taking.adopt([others[0], replace(source, name=M), others[1]])
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Committed]
        assert [texts(taking, name(each)) for each in ("before", "behind")] == [["c", "d", "e"]] * 2

    def test_the_row_alone_can_be_copied_again(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        head = replace(source.head, expires_at=0, meta_version=3, meta=b"later")
        known = {"base_was": source.head.base, "meta_was": source.head.meta_version}
        adopted(taking, replace(Transfer(COPY, mid, 4, head, ()), **known))
        assert head_of(taking, COPY) == replace(head, mid=mid)
        assert everything_of(taking, COPY) == source.entries, "entries that are there stay"

    def test_receipts_that_are_there_are_replaced(self, taking: Store, source: Transfer) -> None:
        mid = adopted(taking, source)
        later = replace(source.receipts[0], count=7, expires_at=source.receipts[0].expires_at + 5_000_000)
        adopted(taking, Transfer(COPY, mid, 4, source.head, (), (later,)))
        first, second = taking.receipts_of(COPY, after="", limit=9)
        assert (first.count, first.expires_at, second.count) == (7, later.expires_at, source.receipts[1].count)

    def test_nothing_is_copied_past_a_lease(self, shared: Store) -> None:
        needs(shared, "adopt")
        mid = committed(shared, add(M, 0, 0, "a"))
        committed(shared, Slice(M, mid, 1, (), lease=Lease(b"o" * 16, 30.0)))
        new = replace(everything_of(shared, M)[0], version=2)
        head = replace(head_of(shared, M), version=2)
        assert adopt(shared, Transfer(M, mid, 1, head, (new,))) == Held()
        assert texts(shared, M) == ["a"]

    def test_watchers_are_told_of_copies(self, taking: Store, source: Transfer) -> None:
        needs_changes(taking)
        cursor = taking.changes(None, 1).cursor
        adopted(taking, source)
        assert COPY in [memory for memory, _ in taking.changes(cursor, 100).changed]


class ReceiptsOf(SuitePart):
    """The receipts of a memory can be listed, by key in byte order, as long as they live."""

    @pytest.fixture
    def keeping(self, store: Store) -> Store:
        """Return an open store that lists receipts."""
        needs(store, "receipts_of")
        return store

    def test_receipts_are_listed_by_key_in_byte_order(self, keeping: Store) -> None:
        keys = ["b", "a", "B", "ä", "a%", "🙂", "\uffff", "aa"]
        made = [entry(key, key=key) for key in keys]
        mid = committed(keeping, add(M, 0, 0, *made))
        committed(keeping, add(name("other"), 0, 0, entry("x", key="foreign")))
        found = pages(keeping, 3)
        assert [each.key for each in found] == sorted(keys, key=str.encode)
        for each in found:
            place = keys.index(each.key)
            key = made[place].key
            assert key is not None
            assert (each.version, each.count, each.digest) == (Version(mid, place + 1), 1, key.digest)

    @pytest.mark.parametrize("page", [1, 2, 100])
    def test_pages_of_receipts_miss_and_repeat_nothing(self, keeping: Store, page: int) -> None:
        committed(keeping, add(M, 0, 0, *[entry("x", key=f"{n}") for n in range(5)]))
        assert [each.key for each in pages(keeping, page)] == ["0", "1", "2", "3", "4"]

    def test_receipts_of_a_deleted_memory_are_still_listed(self, keeping: Store) -> None:
        mid = committed(keeping, add(M, 0, 0, entry("a", key="k")))
        committed(keeping, delete(M, mid, 1))
        assert [each.key for each in pages(keeping, 9)] == ["k"]

    def test_expired_receipts_are_not_listed(self, keeping: Store, clock: StoreClock) -> None:
        committed(keeping, add(M, 0, 0, entry("a", key="k")))
        (found,) = pages(keeping, 9)
        assert found.expires_at == int((clock.now + TTL) * 1e6)
        clock.now += TTL + 1
        assert pages(keeping, 9) == []


def pages(store: Store, page: int) -> Sequence[KeptReceipt]:
    """List the receipts of the memory, page by page."""
    found: list[KeptReceipt] = []
    while part := store.receipts_of(M, after=found[-1].key if found else "", limit=page):
        assert len(part) <= page, "a page has at most as many receipts as its limit"
        found += part
    return found

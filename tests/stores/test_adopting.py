"""Memories come from another store as they lie there: byte for byte, whole or not at all, and over nobody's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from stores.building import Clock, add, commit, committed, delete, describing, entry, head_of, load, log, name, pruning
from stores.kinds import ALL, SHARED
from turnkeeper.log import Committed, Conflict, Head, Held, Lease, Outcome, Slice, StoredEntry, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import KeptReceipt, LoadQuery, Store, Transfer

Make = Callable[[Path, Clock], Store]

ODD = b'{"messages":[{"role":"user","content":"\\ud83d \xc3\xa9 \\u0000"}]}'


def stored(version: int, payload: bytes = ODD, op: str = "add") -> StoredEntry:
    return StoredEntry(version, op, version.to_bytes(16, "big"), payload, 777_000_000 + version)


def head(version: int, base: int = 0, system: int = 0, **fields: object) -> Head:
    made = Head(0, version, base, system, 777_000_000, 777_000_000 + version)
    return replace(made, **fields)


def receipt(key: str, n: int, *, mid: int = 5, until: int = 2_000_000_000_000_000) -> KeptReceipt:
    return KeptReceipt(key, sha256(key.encode()).digest(), Version(mid, n), 1, until)


def adopt(store: Store, *transfers: Transfer) -> list[Outcome]:
    return store.adopt(transfers)


def adopted(store: Store, transfer: Transfer) -> int:
    (outcome,) = store.adopt([transfer])
    assert isinstance(outcome, Committed)
    return outcome.mid


def entries(store: Store, mid: int) -> list[StoredEntry]:
    return store.entries(mid, after=0, limit=1000)


class TestAMemoryFromElsewhere:
    def test_is_there_byte_for_byte(self, store: Store) -> None:
        wanted = [stored(1), stored(2, b'{"sealed":"\x00\xff"}', op="of another version"), stored(3)]
        there = head(3, 2, 1, expires_at=999_000_000_000, meta_version=7, meta=b'{"title":"T"}')
        mid = adopted(store, Transfer(name(), 0, 0, there, tuple(wanted)))
        assert entries(store, mid) == wanted
        assert head_of(store, name()) == replace(there, mid=mid)

    def test_may_come_in_parts(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(2), (stored(1), stored(2))))
        assert adopted(store, Transfer(name(), mid, 2, head(4), (stored(3), stored(4)))) == mid
        assert entries(store, mid) == [stored(1), stored(2), stored(3), stored(4)]
        assert head_of(store, name()) == replace(head(4), mid=mid)

    def test_may_lack_what_was_pruned(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(8, 7, 2), (stored(2), stored(7), stored(8))))
        assert [each.version for each in entries(store, mid)] == [2, 7, 8]
        (loaded,) = store.load([LoadQuery(name())])
        assert (loaded.entries, loaded.system) == ((stored(7), stored(8)), stored(2))

    def test_may_lack_something_between_two_parts(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(3), (stored(1), stored(2), stored(3))))
        adopted(store, Transfer(name(), mid, 3, head(9, 8), (stored(8), stored(9))))
        assert [each.version for each in entries(store, mid)] == [1, 2, 3, 8, 9]
        assert [each.version for each in load(store, name()).entries] == [8, 9]
        assert commit(store, pruning(name(), mid, 9, 8, base=8, system=2))
        assert [each.version for each in entries(store, mid)] == [2, 8, 9]

    def test_may_have_lost_its_last_entries(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(9, 9), (stored(4),)))
        assert head_of(store, name()).version == 9
        assert entries(store, mid) == [stored(4)]
        assert committed(store, add(name(), mid, 9, "next", base=9)) == mid
        assert [each.version for each in entries(store, mid)] == [4, 10]

    def test_goes_on_as_any_other(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(2), (stored(1), stored(2))))
        assert committed(store, add(name(), mid, 2, "next")) == mid
        assert [each.version for each in load(store, name()).entries] == [1, 2, 3]
        assert commit(store, add(name(), mid, 2, "late")) == [Conflict()]

    def test_may_have_metadata_and_nothing_else(self, store: Store) -> None:
        there = head(0, meta_version=2, meta=b"{}", updated_at=777_000_000)
        mid = adopted(store, Transfer(name(), 0, 0, there, ()))
        assert head_of(store, name()) == replace(there, mid=mid)

    def test_gets_a_row_that_was_never_used(self, store: Store) -> None:
        old = committed(store, add(name(), 0, 0, "old"))
        committed(store, delete(name(), old, 1))
        assert adopted(store, Transfer(name(), 0, 0, head(1), (stored(1),))) > old

    def test_is_listed_and_expires_as_told(self, store: Store, clock: Clock) -> None:
        until = int(clock.now * 1e6) + 5_000_000
        adopted(store, Transfer(name("b"), 0, 0, head(1, expires_at=until), (stored(1),)))
        adopted(store, Transfer(name("a"), 0, 0, head(1), (stored(1),)))
        assert [listed.name.id for listed in store.names(namespace=None, after=None, limit=9)] == ["a", "b"]
        assert store.expired(9) == []
        clock.now += 5
        assert store.expired(9) == [name("b")]

    def test_comes_in_company(self, store: Store) -> None:
        taken = committed(store, add(name("b"), 0, 0, "own"))
        made = [Transfer(name(one), 0, 0, head(1), (stored(1),)) for one in "abc"]
        first, second, third = adopt(store, *made)
        assert (isinstance(first, Committed), second, isinstance(third, Committed)) == (True, Conflict(), True)
        assert log(store, name("c")) == [(1, "add")]
        assert head_of(store, name("b")).mid == taken


class TestOverNobodysWork:
    @pytest.fixture
    def mid(self, store: Store) -> int:
        return committed(store, add(name(), 0, 0, "one", "two"))

    @pytest.fixture
    def unchanged(self, store: Store, mid: int) -> Iterator[None]:
        before = head_of(store, name()), entries(store, mid)
        yield
        assert (head_of(store, name()), entries(store, mid)) == before

    @pytest.mark.usefixtures("unchanged")
    def test_a_memory_that_is_there_is_not_made(self, store: Store) -> None:
        transfer = Transfer(name(), 0, 0, head(1), (stored(1),), (receipt("k", 1),))
        assert adopt(store, transfer) == [Conflict()]
        assert store.receipts_of(name(), after="", limit=9) == []

    @pytest.mark.usefixtures("unchanged")
    @pytest.mark.parametrize("expected", [1, 3])
    def test_another_version_is_a_conflict(self, store: Store, mid: int, expected: int) -> None:
        assert adopt(store, Transfer(name(), mid, expected, head(4), (stored(4),))) == [Conflict()]

    @pytest.mark.usefixtures("unchanged")
    def test_another_row_is_a_conflict(self, store: Store, mid: int) -> None:
        assert adopt(store, Transfer(name(), mid + 1, 2, head(3), (stored(3),))) == [Conflict()]
        assert adopt(store, Transfer(name("n"), mid, 2, head(3), (stored(3),))) == [Conflict()]

    def test_one_that_was_pruned_meanwhile_is_a_conflict_where_it_matters(self, store: Store, mid: int) -> None:
        committed(store, pruning(name(), mid, 2, 2, base=2))
        transfer = Transfer(name(), mid, 2, head(3), (stored(3),), base_was=0)
        assert adopt(store, transfer) == [Conflict()]
        assert adopted(store, replace(transfer, head=head(3, 2), base_was=2)) == mid

    def test_metadata_changed_meanwhile_are_a_conflict_where_it_matters(self, store: Store, mid: int) -> None:
        committed(store, describing(name(), mid, 2, 0))
        transfer = Transfer(name(), mid, 2, head(3), (stored(3),), meta_was=0)
        assert adopt(store, transfer) == [Conflict()]
        assert adopted(store, replace(transfer, meta_was=1)) == mid

    def test_the_same_again_is_a_conflict(self, store: Store) -> None:
        transfer = Transfer(name("new"), 0, 0, head(1), (stored(1),))
        mid = adopted(store, transfer)
        assert adopt(store, transfer) == [Conflict()]
        assert adopt(store, replace(transfer, mid=mid)) == [Conflict()]

    def test_a_row_alone_may_be_written_again(self, store: Store, mid: int) -> None:
        transfer = Transfer(name(), mid, 2, head(2, meta_version=3, meta=b"{}"), ())
        assert [adopted(store, transfer), adopted(store, transfer)] == [mid, mid]
        assert head_of(store, name()) == replace(transfer.head, mid=mid)
        assert len(entries(store, mid)) == 2


class TestReceipts:
    def test_come_with_it_and_lead_to_its_row(self, store: Store) -> None:
        transfer = Transfer(name(), 0, 0, head(2), (stored(1), stored(2)), (receipt("b", 2), receipt("a", 1)))
        mid = adopted(store, transfer)
        wanted = [receipt("a", 1, mid=mid), receipt("b", 2, mid=mid)]
        assert store.receipts_of(name(), after="", limit=9) == wanted
        (found,) = store.receipts([(name(), "b")])
        assert found is not None
        assert (found.receipt.version, found.receipt.count, found.digest) == (Version(mid, 2), 1, wanted[1].digest)

    def test_of_an_earlier_memory_lead_nowhere(self, store: Store) -> None:
        adopted(store, Transfer(name(), 0, 0, head(1), (stored(1),), (receipt("old", 9, mid=0),)))
        assert store.receipts_of(name(), after="", limit=9) == [receipt("old", 9, mid=0)]

    def test_take_the_place_of_those_under_their_keys(self, store: Store) -> None:
        mid = adopted(store, Transfer(name(), 0, 0, head(1), (stored(1),), (receipt("k", 1), receipt("l", 1))))
        adopted(store, Transfer(name(), mid, 1, head(1), (), (receipt("k", 1, mid=0),)))
        assert store.receipts_of(name(), after="", limit=9) == [receipt("k", 1, mid=0), receipt("l", 1, mid=mid)]

    def test_are_listed_in_pages_in_byte_order(self, store: Store) -> None:
        keys = ["a", "b", "Z", "é", "\U0001f600", "\uffff", "a b"]
        adopted(store, Transfer(name(), 0, 0, head(1), (stored(1),), tuple([receipt(key, 1) for key in keys])))
        found: list[str] = []
        while page := store.receipts_of(name(), after=found[-1] if found else "", limit=2):
            assert len(page) <= 2
            found += [kept.key for kept in page]
        assert found == sorted(keys, key=str.encode)

    def test_are_those_that_commits_leave_also_of_a_memory_that_is_gone(self, store: Store) -> None:
        old = committed(store, add(name(), 0, 0, entry("one", "two", key="k")))
        committed(store, add(name("other"), 0, 0, entry("three", key="k")))
        (kept,) = store.receipts_of(name(), after="", limit=9)
        assert (kept.key, kept.version, kept.count) == ("k", Version(old, 1), 2)
        committed(store, delete(name(), old, 1))
        assert store.receipts_of(name(), after="", limit=9) == [kept]
        assert store.receipts_of(name("nobody"), after="", limit=9) == []

    def test_that_expired_are_not_listed(self, store: Store, clock: Clock) -> None:
        now = int(clock.now * 1e6)
        kept = (receipt("gone", 1, until=now), receipt("going", 1, until=now + 3_000_000), receipt("stays", 1))
        adopted(store, Transfer(name(), 0, 0, head(1), (stored(1),), kept))
        assert [each.key for each in store.receipts_of(name(), after="", limit=9)] == ["going", "stays"]
        clock.now += 3
        assert [each.key for each in store.receipts_of(name(), after="", limit=9)] == ["stays"]
        assert store.receipts([(name(), "gone"), (name(), "going")]) == [None, None]


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    made: Store = request.param(tmp_path, clock)
    made.open(durability="full")
    yield made
    made.close()


def leasing(memory: MemoryName, mid: int, expected: int, seconds: float) -> Slice:
    return Slice(memory, mid, expected, (), lease=Lease(b"t" * 16, seconds))


class TestWhereOthersWrite:
    def test_an_open_turn_holds_it_up(self, shared: Store, clock: Clock) -> None:
        mid = adopted(shared, Transfer(name(), 0, 0, head(1), (stored(1),)))
        committed(shared, leasing(name(), mid, 1, 10))
        more = Transfer(name(), mid, 1, head(2), (stored(2),), (receipt("k", 2),))
        assert adopt(shared, more, replace(more, expected=0)) == [Held(), Conflict()]
        assert adopt(shared, replace(more, entries=(), head=head(1))) == [Held()]
        assert (log(shared, name()), shared.receipts_of(name(), after="", limit=9)) == ([(1, "add")], [])
        clock.now += 10
        assert adopted(shared, more) == mid

    def test_a_row_that_a_lease_made_is_written_to(self, shared: Store, clock: Clock) -> None:
        mid = committed(shared, leasing(name(), 0, 0, 10))
        transfer = Transfer(name(), mid, 0, head(1), (stored(1),))
        assert adopt(shared, replace(transfer, mid=0), transfer) == [Conflict(), Held()]
        clock.now += 10
        assert adopted(shared, transfer) == mid
        assert head_of(shared, name()) == replace(head(1), mid=mid)

    def test_a_lease_that_is_over_may_still_be_given_back(self, shared: Store, clock: Clock) -> None:
        mid = adopted(shared, Transfer(name(), 0, 0, head(1), (stored(1),)))
        committed(shared, leasing(name(), mid, 1, 1))
        clock.now += 1
        adopted(shared, Transfer(name(), mid, 1, head(2), (stored(2),)))
        assert committed(shared, Slice(name(), mid, 2, (), turn_id=b"t" * 16, lease=Lease(b"t" * 16, 0))) == mid

    def test_new_entries_are_told_to_those_who_follow(self, shared: Store) -> None:
        cursor = shared.changes(None, 9).cursor
        mid = adopted(shared, Transfer(name(), 0, 0, head(3), (stored(2), stored(3))))
        changes = shared.changes(cursor, 9)
        assert changes.changed == ((name(), Version(mid, 3)),)
        adopted(shared, Transfer(name(), mid, 3, head(3, meta_version=1, meta=b"{}"), ()))
        assert shared.changes(changes.cursor, 9).changed == ()


@pytest.mark.parametrize("make_target", ALL)
def test_a_log_that_was_written_here_is_the_same_elsewhere(store: Store, tmp_path: Path, make_target: Make) -> None:
    mid = committed(store, add(name(), 0, 0, entry("one", key="k"), "two", "three"))
    committed(store, describing(name(), mid, 3, 0, b'{"title":"T"}'))
    committed(store, pruning(name(), mid, 3, 2, base=2))
    (tmp_path / "there").mkdir()
    target = make_target(tmp_path / "there", Clock())
    target.open(durability="full")
    there = head_of(store, name())
    kept = tuple(store.receipts_of(name(), after="", limit=9))
    copied = adopted(target, Transfer(name(), 0, 0, there, tuple(entries(store, mid)), kept))
    assert head_of(target, name()) == replace(there, mid=copied)
    assert load(target, name()).entries == load(store, name()).entries
    assert entries(target, copied) == entries(store, mid)
    (back,) = target.receipts_of(name(), after="", limit=9)
    assert back == replace(kept[0], version=Version(copied, 1))
    target.close()

"""What every store that several processes may write to promises of leases: one turn is alone, by the store's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stores.building import TTL, Clock, add, commit, committed, delete, entry, listed, load, log, name, texts
from turnkeeper.log import Committed, Conflict, Duplicate, Held, Lease, Outcome, Slice
from turnkeeper.stores import SQLiteStore, Store

M = name()
OURS = b"o" * 16
THEIRS = b"t" * 16
SECONDS = 30.0


def make_shared_sqlite(directory: Path, clock: Clock) -> Store:
    return SQLiteStore(directory / "shared.db", shared=True, clock=clock)


@pytest.fixture
def clock() -> Clock:
    """Return the store's clock."""
    return Clock()


@pytest.fixture(params=[pytest.param(make_shared_sqlite, id="sqlite-shared")])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """Return an open store that others may write to."""
    make: Callable[[Path, Clock], Store] = request.param
    made = make(tmp_path, clock)
    assert made.shared
    made.open(durability="full")
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["new", "existing"])
def place(request: pytest.FixtureRequest, store: Store) -> tuple[int, int]:
    """Return row and version of a memory that does not exist, or holds one entry."""
    return (committed(store, add(M, 0, 0, "before")), 1) if request.param else (0, 0)


def leasing(mid: int, expected: int, lease: Lease, turn_id: bytes = b"") -> Slice:
    """Make a slice that has a lease and no entries."""
    return Slice(M, mid, expected, (), lease=lease, turn_id=turn_id)


def take(store: Store, mid: int, expected: int, turn_id: bytes = OURS, *, steal: bool = False) -> int:
    return committed(store, leasing(mid, expected, Lease(turn_id, SECONDS, steal)))


def renewing(mid: int, expected: int, turn_id: bytes = OURS) -> Slice:
    return leasing(mid, expected, Lease(turn_id, SECONDS), turn_id)


def giving_back(mid: int, expected: int, turn_id: bytes = OURS) -> Slice:
    return leasing(mid, expected, Lease(turn_id, 0.0), turn_id)


def said(mid: int, expected: int, text: str = "said", turn_id: bytes = OURS, key: str | None = None) -> Slice:
    """Make the commit of a turn."""
    slice_ = add(M, mid, expected, replace(entry(text, key=key), turn_id=turn_id))
    return replace(slice_, turn_id=turn_id)


def one(store: Store, slice_: Slice) -> Outcome:
    (outcome,) = commit(store, slice_)
    return outcome


class TestWhileItLives:
    def test_nobody_else_writes_deletes_or_takes_it(self, store: Store, place: tuple[int, int], clock: Clock) -> None:
        before = log(store, M)
        mid, n = take(store, *place), place[1]
        clock.now += SECONDS - 1
        for slice_ in (
            add(M, mid, n, "no"),
            said(mid, n, turn_id=THEIRS),
            delete(M, mid, n),
            leasing(mid, n, Lease(THEIRS, SECONDS)),
            giving_back(mid, n, THEIRS),
        ):
            assert one(store, slice_) == Held()
        assert log(store, M) == before

    def test_its_turn_writes_and_what_comes_with_it_may_go_the_same_way(
        self, store: Store, place: tuple[int, int]
    ) -> None:
        mid, n = take(store, *place), place[1]
        committed(store, said(mid, n))
        committed(store, replace(add(M, mid, n + 1, "by the way"), turn_id=OURS))
        assert texts(store, M)[-2:] == ["said", "by the way"]

    def test_another_version_is_a_conflict_and_a_used_key_a_duplicate(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("keyed", key="k")))
        take(store, mid, 1)
        assert one(store, said(mid, 0)) == Conflict()
        assert isinstance(one(store, said(mid, 1, "keyed", key="k")), Duplicate)

    def test_the_last_commit_gives_it_back(self, store: Store, place: tuple[int, int]) -> None:
        mid, n = take(store, *place), place[1]
        committed(store, replace(said(mid, n), lease=Lease(OURS, 0.0)))
        committed(store, add(M, mid, n + 1, "at once"))

    def test_given_back_it_leaves_no_trace(self, store: Store, place: tuple[int, int]) -> None:
        head = load(store, M).head
        mid, n = take(store, *place), place[1]
        committed(store, giving_back(mid, n))
        assert load(store, M).head == head
        committed(store, add(M, place[0], n, "at once"))

    def test_a_renewal_makes_it_live_longer(self, store: Store, place: tuple[int, int], clock: Clock) -> None:
        mid, n = take(store, *place), place[1]
        for _ in range(3):
            clock.now += SECONDS - 1
            committed(store, renewing(mid, n))
            assert one(store, add(M, mid, n, "no")) == Held()
        committed(store, said(mid, n))


class TestWhenItIsOver:
    """Not one commit of a turn that slept too long is accepted, whether somebody came meanwhile or not."""

    def test_a_late_commit_is_refused_though_nobody_came(
        self, store: Store, place: tuple[int, int], clock: Clock
    ) -> None:
        before = log(store, M)
        mid, n = take(store, *place), place[1]
        clock.now += SECONDS
        assert one(store, said(mid, n)) == Held()
        assert one(store, replace(said(mid, n, key="k"), lease=Lease(OURS, 0.0))) == Held()
        assert log(store, M) == before
        assert store.receipts([(M, "k")]) == [None]

    def test_a_late_renewal_is_refused_though_nobody_came(
        self, store: Store, place: tuple[int, int], clock: Clock
    ) -> None:
        mid, n = take(store, *place), place[1]
        clock.now += SECONDS
        assert one(store, renewing(mid, n)) == Held()
        committed(store, add(M, mid, n, "nobody is kept out"))

    def test_others_go_on_and_its_turn_does_not(self, store: Store, place: tuple[int, int], clock: Clock) -> None:
        mid, n = take(store, *place), place[1]
        clock.now += SECONDS
        take(store, mid, n, THEIRS)
        for slice_ in (said(mid, n), renewing(mid, n), giving_back(mid, n)):
            assert one(store, slice_) == Held()
        committed(store, said(mid, n, turn_id=THEIRS))

    def test_it_can_be_given_back_late(self, store: Store, place: tuple[int, int], clock: Clock) -> None:
        head = load(store, M).head
        mid, n = take(store, *place), place[1]
        clock.now += SECONDS
        committed(store, giving_back(mid, n))
        assert load(store, M).head == head

    def test_given_back_or_stolen_and_given_back_its_turn_writes_no_more(
        self, store: Store, place: tuple[int, int]
    ) -> None:
        for thief in (OURS, THEIRS):
            mid, n = take(store, *place), place[1]
            if thief == THEIRS:
                take(store, mid, n, THEIRS, steal=True)
            committed(store, giving_back(mid, n, thief))
            for late in (said(place[0], n), renewing(place[0], n)):
                assert one(store, late) == Held()
        assert listed(store) == ([M] if n else []), "nothing came of it"

    def test_a_turn_whose_row_was_made_anew_is_too_late(self, store: Store) -> None:
        mid = take(store, 0, 0)
        committed(store, giving_back(mid, 0))
        again = take(store, 0, 0, THEIRS)
        assert one(store, said(mid, 0)) == Conflict()
        assert one(store, said(again, 0)) == Held()


class TestStealing:
    def test_the_thief_is_alone_at_once(self, store: Store, place: tuple[int, int]) -> None:
        mid, n = take(store, *place), place[1]
        take(store, mid, n, THEIRS, steal=True)
        assert one(store, said(mid, n)) == Held()
        committed(store, said(mid, n, turn_id=THEIRS))

    def test_it_learns_where_the_other_one_began(self, store: Store, place: tuple[int, int], clock: Clock) -> None:
        mid, n = take(store, *place), place[1]
        committed(store, said(mid, n, "1"))
        committed(store, said(mid, n + 1, "2"))
        outcome = one(store, leasing(mid, n + 2, Lease(THEIRS, SECONDS, steal=True)))
        assert isinstance(outcome, Committed)
        assert outcome.stolen_from == n
        clock.now += SECONDS
        outcome = one(store, leasing(mid, n + 2, Lease(OURS, SECONDS, steal=True)))
        assert isinstance(outcome, Committed)
        assert outcome.stolen_from == -1, "it had run out"


class TestSettling:
    def test_taken_and_given_back_are_found(self, store: Store, place: tuple[int, int]) -> None:
        taking = leasing(*place, Lease(OURS, SECONDS))
        assert store.settle([taking]) == [None]
        mid, n = committed(store, taking), place[1]
        (found,) = store.settle([taking])
        assert isinstance(found, Committed)
        assert found.mid == mid
        back = giving_back(mid, n)
        assert store.settle([back]) == [None]
        committed(store, back)
        (found,) = store.settle([back])
        assert isinstance(found, Committed)

    def test_of_two_in_a_group_the_second_waits(self, store: Store, place: tuple[int, int]) -> None:
        mid, n = take(store, *place), place[1]
        committed(store, giving_back(mid, n))
        first, second = (leasing(*place, Lease(turn_id, SECONDS)) for turn_id in (OURS, THEIRS))
        outcomes = store.commit([first, second], receipt_ttl=TTL)
        assert [type(outcome) for outcome in outcomes] in ([Committed, Held], [Committed, Conflict])

"""Leases of a store that several processes may write to: one turn is alone, by the store's clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from turnkeeper.log import Committed, Conflict, Duplicate, Held, Lease, Outcome, Slice
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart
from turnkeeper.testing.suite.words import (
    TTL,
    add,
    commit,
    committed,
    delete,
    entry,
    listed,
    load,
    log,
    name,
    texts,
)

__all__ = ["LeasesThatAreOver", "LivingLeases", "SettlingLeases", "StolenLeases"]

M = name()
OURS = b"o" * 16
THEIRS = b"t" * 16
SECONDS = 30.0


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


class _Leasing(SuitePart):
    @pytest.fixture(params=[False, True], ids=["new", "existing"])
    def spot(self, request: pytest.FixtureRequest, shared: Store) -> tuple[int, int]:
        """Return row and version of a memory that does not exist, or holds one entry."""
        return (committed(shared, add(M, 0, 0, "before")), 1) if request.param else (0, 0)


class LivingLeases(_Leasing):
    """While a turn holds a lease on a memory nobody else writes to it."""

    def test_while_a_lease_lives_nobody_else_writes_deletes_or_takes_it(
        self, shared: Store, spot: tuple[int, int], clock: StoreClock
    ) -> None:
        before = log(shared, M)
        mid, n = take(shared, *spot), spot[1]
        clock.now += SECONDS - 1
        for slice_ in (
            add(M, mid, n, "no"),
            said(mid, n, turn_id=THEIRS),
            delete(M, mid, n),
            leasing(mid, n, Lease(THEIRS, SECONDS)),
            giving_back(mid, n, THEIRS),
        ):
            assert one(shared, slice_) == Held()
        assert log(shared, M) == before

    def test_the_leases_turn_writes_and_what_comes_with_it_may_go_the_same_way(
        self, shared: Store, spot: tuple[int, int]
    ) -> None:
        mid, n = take(shared, *spot), spot[1]
        committed(shared, said(mid, n))
        committed(shared, replace(add(M, mid, n + 1, "by the way"), turn_id=OURS))
        assert texts(shared, M)[-2:] == ["said", "by the way"]

    def test_under_a_lease_another_version_is_a_conflict_and_a_used_key_a_duplicate(self, shared: Store) -> None:
        mid = committed(shared, add(M, 0, 0, entry("keyed", key="k")))
        take(shared, mid, 1)
        assert one(shared, said(mid, 0)) == Conflict()
        assert isinstance(one(shared, said(mid, 1, "keyed", key="k")), Duplicate)

    def test_the_last_commit_gives_a_lease_back(self, shared: Store, spot: tuple[int, int]) -> None:
        mid, n = take(shared, *spot), spot[1]
        committed(shared, replace(said(mid, n), lease=Lease(OURS, 0.0)))
        committed(shared, add(M, mid, n + 1, "at once"))

    def test_a_lease_given_back_leaves_no_trace(self, shared: Store, spot: tuple[int, int]) -> None:
        head = load(shared, M).head
        mid, n = take(shared, *spot), spot[1]
        committed(shared, giving_back(mid, n))
        assert load(shared, M).head == head
        committed(shared, add(M, spot[0], n, "at once"))

    def test_a_renewal_makes_a_lease_live_longer(self, shared: Store, spot: tuple[int, int], clock: StoreClock) -> None:
        mid, n = take(shared, *spot), spot[1]
        for _ in range(3):
            clock.now += SECONDS - 1
            committed(shared, renewing(mid, n))
            assert one(shared, add(M, mid, n, "no")) == Held()
        committed(shared, said(mid, n))


class LeasesThatAreOver(_Leasing):
    """Not one commit of a turn that slept too long is accepted, whether somebody came meanwhile or not."""

    def test_a_late_commit_is_refused_though_nobody_came(
        self, shared: Store, spot: tuple[int, int], clock: StoreClock
    ) -> None:
        before = log(shared, M)
        mid, n = take(shared, *spot), spot[1]
        clock.now += SECONDS
        assert one(shared, said(mid, n)) == Held()
        assert one(shared, replace(said(mid, n, key="k"), lease=Lease(OURS, 0.0))) == Held()
        assert log(shared, M) == before
        assert shared.receipts([(M, "k")]) == [None]

    def test_a_late_renewal_is_refused_though_nobody_came(
        self, shared: Store, spot: tuple[int, int], clock: StoreClock
    ) -> None:
        mid, n = take(shared, *spot), spot[1]
        clock.now += SECONDS
        assert one(shared, renewing(mid, n)) == Held()
        committed(shared, add(M, mid, n, "nobody is kept out"))

    def test_when_a_lease_is_over_others_go_on_and_its_turn_does_not(
        self, shared: Store, spot: tuple[int, int], clock: StoreClock
    ) -> None:
        mid, n = take(shared, *spot), spot[1]
        clock.now += SECONDS
        take(shared, mid, n, THEIRS)
        for slice_ in (said(mid, n), renewing(mid, n), giving_back(mid, n)):
            assert one(shared, slice_) == Held()
        committed(shared, said(mid, n, turn_id=THEIRS))

    def test_a_lease_can_be_given_back_late(self, shared: Store, spot: tuple[int, int], clock: StoreClock) -> None:
        head = load(shared, M).head
        mid, n = take(shared, *spot), spot[1]
        clock.now += SECONDS
        committed(shared, giving_back(mid, n))
        assert load(shared, M).head == head

    def test_with_its_lease_given_back_or_stolen_and_given_back_a_turn_writes_no_more(
        self, shared: Store, spot: tuple[int, int]
    ) -> None:
        for thief in (OURS, THEIRS):
            mid, n = take(shared, *spot), spot[1]
            if thief == THEIRS:
                take(shared, mid, n, THEIRS, steal=True)
            committed(shared, giving_back(mid, n, thief))
            for late in (said(spot[0], n), renewing(spot[0], n)):
                assert one(shared, late) == Held()
        assert listed(shared) == ([M] if n else []), "nothing came of it"

    def test_a_turn_whose_row_was_made_anew_is_too_late(self, shared: Store) -> None:
        mid = take(shared, 0, 0)
        committed(shared, giving_back(mid, 0))
        again = take(shared, 0, 0, THEIRS)
        assert one(shared, said(mid, 0)) == Conflict()
        assert one(shared, said(again, 0)) == Held()


class StolenLeases(_Leasing):
    """Who steals a lease is alone at once."""

    def test_the_thief_of_a_lease_is_alone_at_once(self, shared: Store, spot: tuple[int, int]) -> None:
        mid, n = take(shared, *spot), spot[1]
        take(shared, mid, n, THEIRS, steal=True)
        assert one(shared, said(mid, n)) == Held()
        committed(shared, said(mid, n, turn_id=THEIRS))

    def test_a_thief_learns_where_the_other_one_began(
        self, shared: Store, spot: tuple[int, int], clock: StoreClock
    ) -> None:
        mid, n = take(shared, *spot), spot[1]
        committed(shared, said(mid, n, "1"))
        committed(shared, said(mid, n + 1, "2"))
        outcome = one(shared, leasing(mid, n + 2, Lease(THEIRS, SECONDS, steal=True)))
        assert isinstance(outcome, Committed)
        assert outcome.stolen_from == n
        clock.now += SECONDS
        outcome = one(shared, leasing(mid, n + 2, Lease(OURS, SECONDS, steal=True)))
        assert isinstance(outcome, Committed)
        assert outcome.stolen_from == -1, "it had run out"


class SettlingLeases(_Leasing):
    """What became of a lease is told truly."""

    def test_a_lease_taken_and_given_back_is_settled(self, shared: Store, spot: tuple[int, int]) -> None:
        taking = leasing(*spot, Lease(OURS, SECONDS))
        assert shared.settle([taking]) == [None]
        mid, n = committed(shared, taking), spot[1]
        (found,) = shared.settle([taking])
        assert isinstance(found, Committed)
        assert found.mid == mid
        back = giving_back(mid, n)
        assert shared.settle([back]) == [None]
        committed(shared, back)
        (found,) = shared.settle([back])
        assert isinstance(found, Committed)

    def test_of_two_that_take_a_lease_in_a_group_the_second_waits(self, shared: Store, spot: tuple[int, int]) -> None:
        mid, n = take(shared, *spot), spot[1]
        committed(shared, giving_back(mid, n))
        first, second = (leasing(*spot, Lease(turn_id, SECONDS)) for turn_id in (OURS, THEIRS))
        outcomes = shared.commit([first, second], receipt_ttl=TTL)
        assert [type(outcome) for outcome in outcomes] in ([Committed, Held], [Committed, Conflict])

"""Several store objects on one place, as several processes have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from turnkeeper.errors import StoreError
from turnkeeper.folding import fold
from turnkeeper.log import Committed, Conflict, Duplicate, Head, Held, Lease, NotCommitted, Outcome, Slice, Unknown
from turnkeeper.stores import LoadQuery, Store
from turnkeeper.testing.suite.base import OpenStore, SuitePart
from turnkeeper.testing.suite.threads import in_threads
from turnkeeper.testing.suite.words import TTL, add, committed, delete, entry, listed, load, log, name, texts

__all__ = ["Sharing"]

M = name()
WRITERS = 4


def decided(store: Store, slice_: Slice) -> Outcome:
    """Commit a slice; where the store raised, ask it what became of that. `NotCommitted`: nothing."""
    try:
        (outcome,) = store.commit([slice_], receipt_ttl=TTL)
    except StoreError as error:
        (found,) = store.settle([slice_])
        return NotCommitted(error) if found is None else found
    assert not isinstance(outcome, Unknown), "a commit that returns knows what became of it"
    return outcome


def head_now(store: Store) -> Head | None:
    """Ask where the memory stands, and read nothing else."""
    (loaded,) = store.load([LoadQuery(M, newest=1)])
    return loaded.head


class Sharing(SuitePart):
    """Several processes may write to one store: nothing is lost, doubled or interleaved."""

    @pytest.fixture
    def stores(self, shared: Store, open_store: OpenStore) -> list[Store]:
        """Return several open store objects on one place."""
        return [shared, *[open_store() for _ in range(WRITERS - 1)]]

    def test_what_one_commits_the_others_read_and_go_on_from(self, stores: list[Store]) -> None:
        mid = 0
        for n, store in enumerate(stores * 2):
            mid = committed(store, add(M, mid, n, f"{n}"))
        for store in stores:
            assert texts(store, M) == [f"{n}" for n in range(2 * len(stores))]

    def test_what_one_deleted_is_gone_for_the_others(self, stores: list[Store]) -> None:
        one, other = stores[:2]
        mid = committed(one, add(M, 0, 0, entry("a", key="k")))
        assert texts(other, M) == ["a"]
        committed(other, delete(M, mid, 1))
        assert load(one, M).head is None
        assert decided(one, add(M, mid, 1, "late")) == Conflict()
        assert isinstance(decided(one, add(M, 0, 0, entry("a", key="k"))), Duplicate)

    def test_of_many_who_create_one_name_exactly_one_does(self, stores: list[Store]) -> None:
        outcomes = at_once(stores, 15, lambda turn, n: add(name(f"{turn}"), 0, 0, f"by {n}", "and more"))
        for turn, row in enumerate(outcomes):
            assert [type(outcome) for outcome in row].count(Committed) == 1, "one has to create it, and only one"
            winner = next(n for n, outcome in enumerate(row) if isinstance(outcome, Committed))
            assert texts(stores[0], name(f"{turn}")) == [f"by {winner}", "and more"]
        assert len(listed(stores[0])) == 15

    def test_of_many_who_write_to_one_version_exactly_one_does(self, stores: list[Store]) -> None:
        mid = committed(stores[0], add(M, 0, 0, "start"))
        winners: list[list[int]] = []
        for _ in range(15):
            (row,) = at_once(stores, 1, lambda _, n: add(M, mid, len(winners) + 1, f"{len(winners)} by {n}"))
            winners.append([n for n, outcome in enumerate(row) if isinstance(outcome, Committed)])
        assert [len(row) for row in winners] == [1] * 15, "one compare-and-set has to win, and only one"
        assert texts(stores[0], M) == ["start", *[f"{turn} by {row[0]}" for turn, row in enumerate(winners)]]

    def test_concurrent_writers_of_one_memory_lose_double_and_interleave_nothing(self, stores: list[Store]) -> None:
        rounds = 12

        def write(number: int, store: Store) -> None:
            for turn in range(rounds):
                while True:
                    head = head_now(store)
                    mid, version = (head.mid, head.version) if head else (0, 0)
                    new = add(M, mid, version, f"{number}.{turn}.0", f"{number}.{turn}.1")
                    if isinstance(decided(store, new), Committed):
                        break

        in_threads(*[partial(write, n, store) for n, store in enumerate(stores)])
        said = texts(stores[0], M)
        wanted = [f"{n}.{turn}.{part}" for n in range(WRITERS) for turn in range(rounds) for part in range(2)]
        assert sorted(said) == sorted(wanted), "entries were lost or doubled"
        assert [version for version, _ in log(stores[0], M)] == list(range(1, len(wanted) + 1))
        for n in range(WRITERS):
            mine = [text for text in said if text.startswith(f"{n}.")]
            assert mine == [text for text in wanted if text.startswith(f"{n}.")], "a writer's order was not kept"
        assert all(said[at][:-1] == said[at + 1][:-1] for at in range(0, len(said), 2)), "a slice was interleaved"

    def test_groups_of_the_same_memories_in_any_order_stop_nobody(self, stores: list[Store]) -> None:
        """P92: two groups that want the same heads in another order must not wait for each other for ever."""
        names = [name(f"{n}") for n in range(6)]
        mids = [committed(stores[0], add(each, 0, 0, "start")) for each in names]
        rounds = 8
        won = [[0] * len(names) for _ in stores]

        def write(number: int, store: Store) -> None:
            order = list(range(len(names)))
            if number % 2:
                order.reverse()
            for _ in range(rounds):
                loads = store.load([LoadQuery(names[each], newest=1) for each in order])
                slices = [
                    add(names[each], mids[each], loaded.head.version if loaded.head else 0, f"by {number}")
                    for each, loaded in zip(order, loads, strict=True)
                ]
                try:
                    outcomes = store.commit(slices, receipt_ttl=TTL)
                except StoreError:
                    outcomes = [found or Conflict() for found in store.settle(slices)]
                for each, outcome in zip(order, outcomes, strict=True):
                    won[number][each] += isinstance(outcome, Committed)

        in_threads(*[partial(write, n, store) for n, store in enumerate(stores)])
        for each, memory in enumerate(names):
            said = texts(stores[0], memory)[1:]
            for number in range(WRITERS):
                assert said.count(f"by {number}") == won[number][each], "what was told is not what is stored"

    def test_one_key_used_by_many_at_once_is_used_once(self, stores: list[Store]) -> None:
        outcomes = at_once(stores, 15, lambda turn, _: add(name(f"{turn}"), 0, 0, entry("a", key="k")))
        for turn, row in enumerate(outcomes):
            assert [type(outcome) for outcome in row].count(Committed) == 1
            assert texts(stores[0], name(f"{turn}")) == ["a"]
            again = decided(stores[0], add(name(f"{turn}"), 0, 0, entry("a", key="k")))
            assert isinstance(again, Duplicate)

    def test_deletes_beside_writes_take_all_or_nothing(self, stores: list[Store]) -> None:
        """A write lands before a delete or not at all; and no `mid` is given twice."""
        made: list[list[int]] = [[] for _ in stores]

        def churn(number: int, store: Store) -> None:
            for turn in range(15):
                head = head_now(store)
                if head is None:
                    outcome = decided(store, add(M, 0, 0, f"{number}.{turn}"))
                    if isinstance(outcome, Committed):
                        made[number].append(outcome.mid)
                elif number % 2:
                    decided(store, delete(M, head.mid, head.version))
                else:
                    decided(store, add(M, head.mid, head.version, f"{number}.{turn}"))

        in_threads(*[partial(churn, n, store) for n, store in enumerate(stores)])
        mids = [mid for row in made for mid in row]
        assert len(mids) == len(set(mids)), "a mid was given twice"
        loaded = load(stores[0], M)
        if loaded.head is not None:
            assert [stored.version for stored in loaded.entries] == list(range(1, loaded.head.version + 1))
            fold(loaded, M)
        for mid in mids:
            if loaded.head is None or mid != loaded.head.mid:
                assert stores[0].entries(mid, after=0, limit=9) == [], "a deleted memory left entries behind"

    def test_of_many_who_take_a_lease_exactly_one_gets_it(self, stores: list[Store]) -> None:
        turn_ids = [bytes([n + 1]) * 16 for n in range(WRITERS)]
        mids = [committed(stores[0], add(name(f"{turn}"), 0, 0, "a")) for turn in range(8)]

        def take(turn: int, n: int) -> Slice:
            return Slice(name(f"{turn}"), mids[turn], 1, (), lease=Lease(turn_ids[n], 60.0))

        for turn, row in enumerate(at_once(stores, 8, take)):
            assert [type(outcome) for outcome in row].count(Committed) == 1, "one turn is alone"
            for n, store in enumerate(stores):
                said = add(name(f"{turn}"), mids[turn], 1, replace(entry("x"), turn_id=turn_ids[n]))
                if not isinstance(row[n], Committed):
                    assert decided(store, replace(said, turn_id=turn_ids[n])) == Held()


def at_once(stores: list[Store], turns: int, make: Callable[[int, int], Slice]) -> list[list[Outcome]]:
    """Have each store object commit a slice of its own for each turn, all at once.

    Args:
        stores: store objects on one place.
        turns: how often.
        make: makes the slice of a turn for the store object of that number.

    Returns:
        For each turn what each store object was told.
    """
    outcomes: list[list[Outcome]] = [[Conflict() for _ in stores] for _ in range(turns)]

    def write(number: int, store: Store) -> None:
        for turn in range(turns):
            outcomes[turn][number] = decided(store, make(turn, number))

    in_threads(*[partial(write, n, store) for n, store in enumerate(stores)])
    return outcomes

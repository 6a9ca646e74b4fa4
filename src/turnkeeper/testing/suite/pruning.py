"""Entries that leave: all before a number, but for those that the state needs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from turnkeeper.log import Conflict, LoadQuery, NewMeta, Version
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart
from turnkeeper.testing.suite.words import (
    add,
    commit,
    committed,
    describing,
    entry,
    head_of,
    load,
    log,
    name,
    pruning,
    setting,
    texts,
)

__all__ = ["Pruning"]

M = name()


def held(store: Store) -> list[int]:
    return [version for version, _ in log(store, M)]


class Pruning(SuitePart):
    """Pruning removes the entries before a number for good, and nothing that the state needs."""

    def test_pruned_what_is_older_goes_but_for_base_and_system(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abcdefg"))
        committed(store, pruning(M, mid, 7, 6, base=5, system=2))
        assert held(store) == [2, 5, 6, 7]
        committed(store, pruning(M, mid, 7, 7, base=7, system=5))
        assert held(store) == [5, 7], "2 is needed no more"

    def test_pruning_goes_with_entries_and_without(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abc"))
        committed(store, replace(add(M, mid, 3, "d", base=3), prune=3))
        assert (held(store), texts(store, M)) == ([3, 4], ["c", "d"])
        committed(store, pruning(M, mid, 4, 4, base=4))
        assert (held(store), texts(store, M)) == ([4], ["d"])

    def test_pruned_without_entries_version_and_time_stay(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, *"abc"))
        before = head_of(store, M)
        clock.now += 10
        committed(store, pruning(M, mid, 3, 3, base=3))
        assert head_of(store, M) == replace(before, base=3)
        committed(store, add(M, mid, 3, "d", base=3))
        assert texts(store, M) == ["c", "d"]

    def test_pruned_history_before_the_state_goes_and_the_state_stays(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b", setting("c"), "d", base=3))
        committed(store, pruning(M, mid, 4, 2, base=3))
        assert (held(store), texts(store, M)) == ([2, 3, 4], ["c", "d"])

    def test_pruned_beyond_the_end_nothing_is_left_and_the_next_entry_goes_on(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abc"))
        committed(store, pruning(M, mid, 3, 100, base=3))
        assert held(store) == [3]
        committed(store, add(M, mid, 3, "d", base=3))
        assert held(store) == [3, 4]

    def test_pruning_by_a_smaller_number_than_before_takes_nothing_more(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abcdef"))
        committed(store, pruning(M, mid, 6, 5, base=5, system=2))
        committed(store, pruning(M, mid, 6, 3, base=5, system=2))
        assert held(store) == [2, 5, 6]

    def test_pruning_at_another_version_is_a_conflict(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *"abc"))
        assert commit(store, pruning(M, mid, 2, 2, base=2), pruning(M, 0, 0, 2)) == [Conflict(), Conflict()]
        assert (held(store), head_of(store, M).base) == ([1, 2, 3], 0)

    @pytest.mark.parametrize("with_meta", [False, True])
    def test_who_does_not_know_that_the_base_was_moved_writes_nothing(self, store: Store, with_meta: bool) -> None:
        """Pruning moves the base and leaves the version: comparing that would not find it."""
        mid = committed(store, add(M, 0, 0, *"abc"))
        committed(store, pruning(M, mid, 3, 3, base=3))
        meta = NewMeta(0, b"no") if with_meta else None
        stale = [
            replace(slice_, base_was=0, meta=meta) for slice_ in (add(M, mid, 3, "no"), pruning(M, mid, 3, 2, base=2))
        ]
        assert commit(store, *stale) == [Conflict(), Conflict()]
        head = head_of(store, M)
        assert (head.version, head.base, head.meta) == (3, 3, None)
        for known in (3, -1):
            committed(store, replace(add(M, mid, head_of(store, M).version, "d", base=3), base_was=known))
        committed(store, replace(describing(M, mid, 5, 0), base_was=0))  # which has nothing to do with the base

    @pytest.mark.parametrize("newest", [0, 1, 3])
    def test_what_pruning_left_can_be_loaded_and_paged_from_everywhere(self, store: Store, newest: int) -> None:
        mid = committed(store, add(M, 0, 0, *"abcdefgh"))
        committed(store, pruning(M, mid, 8, 6, base=6, system=2))
        (loaded,) = store.load([LoadQuery(M, newest=newest)])
        assert [each.version for each in loaded.entries] == list(range(9 - newest if newest else 6, 9))
        assert loaded.system is not None
        assert loaded.system.version == 2
        (loaded,) = store.load([LoadQuery(M, Version(mid, 7))])
        assert [each.version for each in loaded.entries] == [8]
        for after in range(9):
            for before in (0, *range(2, 10)):
                wanted = [each for each in (2, 6, 7, 8) if each > after and (not before or each < before)]
                for limit in (1, 2, 9):
                    found = store.entries(mid, after=after, before=before, limit=limit)
                    assert [each.version for each in found] == wanted[:limit]
                    found = store.entries(mid, after=after, before=before, limit=limit, newest=True)
                    assert [each.version for each in found] == wanted[-limit:]

    def test_pruning_leaves_what_another_memory_holds(self, store: Store) -> None:
        other = name("other")
        committed(store, add(other, 0, 0, *"xyz"))
        mid = committed(store, add(M, 0, 0, *"abc"))
        committed(store, pruning(M, mid, 3, 3, base=3))
        assert [version for version, _ in log(store, other)] == [1, 2, 3]

    def test_a_summary_that_stands_before_what_is_kept_is_loaded(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("summary", op="fork"), *"bcd", base=1))
        committed(store, pruning(M, mid, 4, 3, base=1))
        assert held(store) == [1, 3, 4]
        (loaded,) = store.load([LoadQuery(M, newest=2)])
        assert loaded.start is not None
        assert loaded.start.version == 1
        assert load(store, M).entries[0].version == 1

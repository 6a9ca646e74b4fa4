"""What every store promises of lists: names by prefix and by time, and which memories got entries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stores.building import Clock, add, clearing, commit, committed, delete, describing, name, pruning
from stores.kinds import ON_DISK
from turnkeeper.log import Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store
from turnkeeper.stores.ranges import end_of_prefix

M = name()
LAST = "\U0010ffff"
IDS = [
    "a",
    "a%",
    "a_",
    "aa",
    "ab",
    "b",
    "B",
    "é",
    "\ud7ff",
    "\ud7ffx",
    "\ue000",
    "\uffff",
    "🙂",
    LAST,
    LAST + "x",
    LAST * 2,
]


def found(store: Store, prefix: str, *, namespace: str | None = None, page: int = 100) -> Sequence[MemoryName]:
    names: list[MemoryName] = []
    while part := store.names(namespace=namespace, after=names[-1] if names else None, limit=page, prefix=prefix):
        names += [one.name for one in part]
    return names


class TestPrefix:
    @pytest.mark.parametrize("page", [1, 3, 100])
    @pytest.mark.parametrize("prefix", ["", "a", "a%", "b", "é", "\ud7ff", "\uffff", "🙂", LAST, LAST * 2, "none"])
    def test_it_is_compared_byte_for_byte(self, store: Store, prefix: str, page: int) -> None:
        everything = sorted(name(each, namespace) for namespace in ("", "n", "nn") for each in IDS)
        commit(store, *[add(each, 0, 0, "x") for each in everything])
        for namespace in (None, "", "n", "nn", "none"):
            wanted = [each for each in everything if each.id.startswith(prefix) and namespace in (None, each.namespace)]
            assert found(store, prefix, namespace=namespace, page=page) == wanted

    def test_a_page_may_start_before_it_and_behind_it(self, store: Store) -> None:
        commit(store, *[add(name(each), 0, 0, "x") for each in ("a", "b1", "b2", "c")])
        for after, wanted in (("a", ["b1", "b2"]), ("b1", ["b2"]), ("c", [])):
            names = store.names(namespace="", after=name(after), limit=9, prefix="b")
            assert [one.name.id for one in names] == wanted

    @given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
    @example("\ud7ff", "\ue000")
    @example(LAST, LAST)
    @example("a" + LAST, "b")
    def test_its_end_is_the_first_text_behind(self, prefix: str, text: str) -> None:
        end = end_of_prefix(prefix)
        inside = prefix.encode() <= text.encode() and (end is None or text.encode() < end.encode())
        assert inside == text.startswith(prefix)
        assert end is None or not end.startswith(prefix)


class TestUpdatedAfter:
    def test_only_those_with_a_later_entry(self, store: Store, clock: Clock) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, add(name("old"), 0, 0, "a"))
        then = store.now()
        clock.now += 10
        committed(store, add(name("new"), 0, 0, "a"))
        committed(store, add(M, mid, 1, "b"))
        committed(store, describing(name("old"), mid + 1, 1, 0))
        for limit, wanted in ((9, ["m", "new"]), (1, ["m"])):
            names = store.names(namespace=None, after=None, limit=limit, updated_after=then)
            assert [one.name.id for one in names] == wanted
        assert [one.name.id for one in store.names(namespace="", after=M, limit=9, updated_after=then)] == ["new"]
        assert store.names(namespace=None, after=None, limit=9, updated_after=then + 10_000_000) == []


@pytest.mark.parametrize("store", ON_DISK, indirect=True)
class TestChanges:
    def test_each_memory_that_got_entries_is_told_with_its_newest(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "before"))
        start = store.changes(None, 100)
        assert start.changed == ()
        mid = committed(store, add(name("x"), 0, 0, "a"))
        committed(store, add(M, 1, 1, "b"))
        committed(store, add(name("x"), mid, 1, "c", clearing(), base=3))
        told = store.changes(start.cursor, 100)
        assert told.changed == ((M, Version(1, 2)), (name("x"), Version(mid, 3)))
        assert store.changes(told.cursor, 100) == type(told)(told.cursor, ())

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_parts_miss_nothing(self, store: Store, limit: int) -> None:
        cursor = store.changes(None, limit).cursor
        commit(store, *[add(name(str(n)), 0, 0, "x", "y") for n in range(6)])
        newest: dict[MemoryName, int] = {}
        while (told := store.changes(cursor, limit)).cursor != cursor:
            assert len(told.changed) <= limit
            cursor = told.cursor
            newest.update((memory, version.n) for memory, version in told.changed)
        assert newest == {name(str(n)): 2 for n in range(6)}

    @pytest.mark.parametrize("gone", ["deleted", "pruned"])
    def test_when_the_newest_entries_go_none_that_follows_is_missed(self, store: Store, gone: str) -> None:
        """Their places in the order are not given to others."""
        cursor = store.changes(None, 100).cursor
        mid = committed(store, add(M, 0, 0, *map(str, range(10))))
        cursor = store.changes(cursor, 100).cursor
        committed(store, delete(M, mid, 10) if gone == "deleted" else pruning(M, mid, 10, 11, base=1))
        committed(store, add(name("next"), 0, 0, "a"))
        assert [memory.id for memory, _ in store.changes(cursor, 100).changed] == ["next"]

    def test_a_memory_that_was_deleted_since_stops_nobody(self, store: Store) -> None:
        cursor = store.changes(None, 1).cursor
        mid = committed(store, add(M, 0, 0, "a", "b"))
        committed(store, add(name("next"), 0, 0, "a"))
        committed(store, delete(M, mid, 2))
        assert store.changes(cursor, 100).changed == ((name("next"), Version(mid + 1, 1)),)

    def test_metadata_are_no_entries(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        cursor = store.changes(None, 1).cursor
        committed(store, describing(M, mid, 1, 0))
        assert store.changes(cursor, 9).changed == ()

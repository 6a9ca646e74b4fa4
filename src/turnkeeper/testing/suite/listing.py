"""Names: kept apart byte for byte, listed in order, by prefix and by time."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart
from turnkeeper.testing.suite.words import add, commit, committed, describing, listed, name, texts

__all__ = ["Names", "Prefixes", "UpdatedAfter"]

M = name()

_LAST: Final = "\U0010ffff"
_AWKWARD: Final = (
    *("a", "A", "aa", "a b", "a%", "a_", "a'", 'a"', "a\\", "a*", "a?[b]", "--", ";DROP TABLE head", "ä", "a\u0308"),
    *("é", "ﬀ", "漢字", "🙂", "🙂🙂", "\u200b", "\ufeff", "\uffff", _LAST, "0", "00", "0x1", "null"),
    *("x" * 512, "x" * 511, "{a}", "a:b", "a/b", "a{}b", "}{"),
)
_STEMS: Final = (
    *("a", "a%", "a_", "aa", "ab", "b", "B", "é", "\ud7ff", "\ud7ffx", "\ue000", "\uffff", "🙂"),
    *(_LAST, _LAST + "x", _LAST * 2),
)
_ALPHABET: Final = "aAb0%_'\\ :{}\u00e9\ud7ff\ue000\uffff🙂" + _LAST


class Names(SuitePart):
    """Names are compared byte for byte, and listed in that order, by pages that miss and repeat nothing."""

    def test_awkward_ids_are_kept_apart_and_listed_in_byte_order(self, store: Store) -> None:
        for each in _AWKWARD:
            committed(store, add(name(each), 0, 0, f"of {each}"))
        assert listed(store) == sorted((name(each) for each in _AWKWARD), key=lambda one: one.id.encode())
        for each in _AWKWARD:
            assert texts(store, name(each)) == [f"of {each}"]

    @pytest.mark.parametrize("page", [1, 2, 7])
    def test_pages_of_names_miss_and_repeat_nothing(self, store: Store, page: int) -> None:
        everything = sorted(
            [name(each, namespace) for each in _AWKWARD for namespace in ("", "n", "N", "n%", "nn", "🙂")],
            key=lambda one: (one.namespace.encode(), one.id.encode()),
        )
        commit(store, *[add(each, 0, 0, "x") for each in everything])
        assert listed(store, page=page) == everything

    def test_a_namespace_is_no_prefix(self, store: Store) -> None:
        commit(store, *[add(name("m", namespace), 0, 0, "x") for namespace in ("", "n", "n%", "n_", "nn", "N", "m")])
        for namespace in ("", "n", "n%", "n_", "nn", "N", "m"):
            assert listed(store, namespace=namespace) == [name("m", namespace)]
        assert listed(store, namespace="none") == []

    @pytest.mark.parametrize("page", [1, 3])
    def test_paging_within_a_namespace_ends_with_it(self, store: Store, page: int) -> None:
        commit(store, *[add(name(str(n), namespace), 0, 0, "x") for namespace in ("a", "b", "c") for n in range(5)])
        assert listed(store, namespace="b", page=page) == [name(str(n), "b") for n in range(5)]

    def test_a_page_may_start_behind_a_name_that_is_gone(self, store: Store) -> None:
        commit(store, *[add(name(each), 0, 0, "x") for each in "ace"])
        assert [one.name.id for one in store.names(namespace=None, after=name("b"), limit=9)] == ["c", "e"]
        assert [one.name.id for one in store.names(namespace="", after=name("c"), limit=9)] == ["e"]
        assert store.names(namespace="", after=name("zzz"), limit=9) == []
        assert store.names(namespace="", after=name("a", "later"), limit=9) == []

    def test_names_that_come_between_two_listings_are_seen(self, store: Store) -> None:
        committed(store, add(name("b"), 0, 0, "x"))
        assert listed(store) == [name("b")]
        committed(store, add(name("a"), 0, 0, "x"))
        assert listed(store) == [name("a"), name("b")]

    def test_a_listing_says_where_each_stands(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        (one,) = store.names(namespace=None, after=None, limit=9)
        assert (one.head.mid, one.head.version) == (mid, 2)

    @pytest.mark.parametrize("seed", range(8))
    def test_random_names_are_listed_in_byte_order(self, store: Store, seed: int) -> None:
        chance = Random(seed)

        def text(least: int) -> str:
            return "".join(chance.choices(_ALPHABET, k=chance.randint(least, 3)))

        wanted = sorted({name(text(1), text(0)) for _ in range(12)})
        commit(store, *[add(each, 0, 0, "x") for each in wanted])
        page = chance.randint(1, 4)
        assert listed(store, page=page) == wanted
        for namespace in {each.namespace for each in wanted}:
            inside = [each for each in wanted if each.namespace == namespace]
            assert listed(store, namespace=namespace, page=page) == inside


class Prefixes(SuitePart):
    """A prefix of ids is compared byte for byte and never read as a pattern."""

    @pytest.mark.parametrize("page", [1, 3, 100])
    def test_a_prefix_is_compared_byte_for_byte(self, store: Store, page: int) -> None:
        everything = sorted(name(each, namespace) for namespace in ("", "n", "nn") for each in _STEMS)
        commit(store, *[add(each, 0, 0, "x") for each in everything])
        for prefix in ("", "a", "a%", "b", "é", "\ud7ff", "\uffff", "🙂", _LAST, _LAST * 2, "none"):
            for namespace in (None, "", "n", "nn", "none"):
                wanted = [
                    each for each in everything if each.id.startswith(prefix) and namespace in (None, each.namespace)
                ]
                found = listed(store, namespace=namespace, prefix=prefix, page=page)
                assert found == wanted, f"prefix {prefix!r} in namespace {namespace!r}"

    def test_a_page_may_start_before_a_prefix_and_behind_it(self, store: Store) -> None:
        commit(store, *[add(name(each), 0, 0, "x") for each in ("a", "b1", "b2", "c")])
        for after, wanted in (("a", ["b1", "b2"]), ("b1", ["b2"]), ("c", [])):
            names = store.names(namespace="", after=name(after), limit=9, prefix="b")
            assert [one.name.id for one in names] == wanted


class UpdatedAfter(SuitePart):
    """Memories can be listed by the time of their last entry."""

    def test_updated_after_are_only_those_with_a_later_entry(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        old = committed(store, add(name("old"), 0, 0, "a"))
        then = store.now()
        clock.now += 10
        committed(store, add(name("new"), 0, 0, "a"))
        committed(store, add(M, mid, 1, "b"))
        committed(store, describing(name("old"), old, 1, 0))
        for limit, wanted in ((9, ["m", "new"]), (1, ["m"])):
            names = store.names(namespace=None, after=None, limit=limit, updated_after=then)
            assert [one.name.id for one in names] == wanted
        assert [one.name.id for one in store.names(namespace="", after=M, limit=9, updated_after=then)] == ["new"]
        assert store.names(namespace=None, after=None, limit=9, updated_after=then + 10_000_000) == []

"""What every store promises: heads compared and set, slices whole or not at all, receipts, tails, pages."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.building import (
    TTL,
    Clock,
    add,
    clearing,
    commit,
    committed,
    delete,
    entry,
    listed,
    load,
    log,
    name,
    setting,
    texts,
)
from turnkeeper.errors import MemoryCorruptError
from turnkeeper.folding import fold
from turnkeeper.log import Committed, Conflict, Duplicate, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, LoadQuery, SQLiteStore, Store

M = name()


class TestCompareAndSet:
    def test_a_slice_takes_the_head_as_far_as_it_has_entries(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b", "c"))
        head = load(store, M).head
        assert head is not None
        assert (head.mid, head.version, head.base, head.system) == (mid, 3, 0, 0)
        assert log(store, M) == [(1, "add"), (2, "add"), (3, "add")]
        assert texts(store, M) == ["a", "b", "c"]

    def test_the_next_slice_goes_on_where_the_head_is(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        assert committed(store, add(M, mid, 1, "b")) == mid
        assert texts(store, M) == ["a", "b"]

    @pytest.mark.parametrize("expected", [0, 1, 3, 7])
    def test_another_version_than_the_heads_is_a_conflict_and_writes_nothing(self, store: Store, expected: int) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, add(M, mid, expected, "no")) == [Conflict()]
        assert texts(store, M) == ["a", "b"]

    def test_creating_what_is_there_is_a_conflict(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "a"))
        assert commit(store, add(M, 0, 0, "no")) == [Conflict()]
        assert texts(store, M) == ["a"]

    def test_writing_to_what_is_not_there_is_a_conflict(self, store: Store) -> None:
        assert commit(store, add(M, 7, 3, "no")) == [Conflict()]
        assert commit(store, delete(M, 7, 3)) == [Conflict()]
        assert load(store, M).head is None
        assert listed(store) == []

    def test_the_state_starts_where_the_slice_says(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, add(M, mid, 1, setting("b"), "c", base=2))
        assert texts(store, M) == ["b", "c"]
        committed(store, add(M, mid, 3, clearing(), base=4))
        assert texts(store, M) == []
        assert log(store, M) == [(1, "add"), (2, "set"), (3, "add"), (4, "clear")]

    def test_a_conflict_in_a_group_harms_no_other_slice(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        outcomes = commit(
            store,
            add(name("before"), 0, 0, "1"),
            add(M, mid, 0, "stale", entry("keyed", key="k")),
            add(name("behind"), 0, 0, "2"),
        )
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Committed]
        assert [texts(store, name(each)) for each in ("before", "m", "behind")] == [["1"], ["a"], ["2"]]
        assert store.receipts([(M, "k")]) == [None]

    def test_an_empty_group_is_nothing(self, store: Store) -> None:
        assert commit(store) == []

    def test_memories_of_one_id_in_two_namespaces_are_two(self, store: Store) -> None:
        commit(store, add(name("m", "tenant-1"), 0, 0, "a"), add(name("m", "tenant-2"), 0, 0, "b"))
        assert texts(store, name("m", "tenant-1")) == ["a"]
        assert texts(store, name("m", "tenant-2")) == ["b"]
        assert texts(store, M) == []


class TestDelete:
    def test_it_removes_head_and_entries(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        committed(store, delete(M, mid, 2))
        assert load(store, M).head is None
        assert store.entries(mid, after=0, limit=10) == []
        assert listed(store) == []

    def test_at_another_version_it_is_a_conflict(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        assert commit(store, delete(M, mid, 1)) == [Conflict()]
        assert texts(store, M) == ["a", "b"]

    def test_a_mid_is_never_used_again(self, store: Store) -> None:
        mids = []
        for _ in range(5):
            mids.append(committed(store, add(M, 0, 0, "a")))
            committed(store, delete(M, mids[-1], 1))
        assert sorted(set(mids)) == mids

    def test_a_mid_is_never_used_again_after_the_highest_is_gone_and_the_store_reopened(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        store = SQLiteStore(tmp_path / "chats.db", clock=clock)
        store.open(durability="full")
        mid = committed(store, add(M, 0, 0, "a"))
        committed(store, delete(M, mid, 1))
        store.close()
        store.open(durability="full")
        assert committed(store, add(M, 0, 0, "b")) > mid
        store.close()

    def test_a_stale_writer_can_not_hit_the_successor(self, store: Store) -> None:
        old = committed(store, add(M, 0, 0, "x"))
        committed(store, delete(M, old, 1))
        committed(store, add(M, 0, 0, "y"))
        assert commit(store, add(M, old, 1, "no")) == [Conflict()]
        assert commit(store, delete(M, old, 1)) == [Conflict()]
        assert texts(store, M) == ["y"]


class TestReceipts:
    def test_a_key_leaves_a_receipt_with_version_count_and_digest(self, store: Store) -> None:
        keyed = entry("b", "c", key="k")
        mid = committed(store, add(M, 0, 0, "a", keyed))
        (found,) = store.receipts([(M, "k")])
        assert found is not None
        assert keyed.key is not None
        assert (found.receipt.version, found.receipt.count) == (Version(mid, 2), 2)
        assert found.digest == keyed.key.digest

    def test_a_used_key_is_a_duplicate_and_the_whole_slice_writes_nothing(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        (outcome,) = commit(store, add(M, mid, 1, "b", entry("c", key="new"), entry("a", key="k")))
        assert isinstance(outcome, Duplicate)
        assert (outcome.index, outcome.stored.receipt.version) == (2, Version(mid, 1))
        assert texts(store, M) == ["a"]
        assert store.receipts([(M, "new")]) == [None]

    def test_a_duplicate_is_told_before_a_conflict(self, store: Store) -> None:
        """A retry carries the version it knew then: it has to get the receipt, not an argument about versions."""
        mid = committed(store, add(M, 0, 0, entry("a", key="k"), "b"))
        (outcome,) = commit(store, add(M, mid, 0, entry("a", key="k")))
        assert isinstance(outcome, Duplicate)

    def test_a_duplicate_in_a_group_harms_no_other_slice(self, store: Store) -> None:
        committed(store, add(M, 0, 0, entry("a", key="k")))
        outcomes = commit(
            store, add(name("1"), 0, 0, "x"), add(M, 0, 0, entry("a", key="k")), add(name("2"), 0, 0, "y")
        )
        assert [type(outcome) for outcome in outcomes] == [Committed, Duplicate, Committed]

    def test_keys_belong_to_their_memory(self, store: Store) -> None:
        committed(store, add(name("bc", "a"), 0, 0, entry("1", key="k")))
        committed(store, add(name("c", "ab"), 0, 0, entry("2", key="k")))
        assert store.receipts([(name("abc"), "k"), (name("abc", ""), "K")]) == [None, None]

    def test_they_expire_by_the_stores_clock(self, store: Store, clock: Clock) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        clock.now += TTL - 1
        assert store.receipts([(M, "k")]) != [None]
        clock.now += 2
        assert store.receipts([(M, "k")]) == [None]
        committed(store, add(M, mid, 1, entry("again", key="k")))
        assert texts(store, M) == ["a", "again"]
        (found,) = store.receipts([(M, "k")])
        assert found is not None
        assert found.receipt.version == Version(mid, 2)

    def test_they_outlive_clear_and_delete(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, entry("a", key="k")))
        committed(store, add(M, mid, 1, clearing(), base=2))
        committed(store, delete(M, mid, 2))
        (outcome,) = commit(store, add(M, 0, 0, entry("a", key="k")))
        assert isinstance(outcome, Duplicate)
        assert outcome.stored.receipt.version == Version(mid, 1)
        assert load(store, M).head is None, "a replay creates nothing"

    def test_expired_ones_are_removed_as_new_ones_come(self, store: Store, clock: Clock) -> None:
        mid = committed(store, add(M, 0, 0, *[entry(str(n), key=f"old-{n}") for n in range(10)]))
        assert receipts_held(store) == 10
        clock.now += TTL + 1
        for n in range(5):
            committed(store, add(M, mid, 10 + n, entry("new", key=f"new-{n}")))
        assert receipts_held(store) == 5

    def test_a_key_that_is_used_again_and_again_does_not_keep_the_others(self, store: Store, clock: Clock) -> None:
        """A nightly job with one key: the receipts of the day have to go, whoever came first."""
        mid = committed(store, add(M, 0, 0, entry("job", key="nightly")))
        version = 1
        for day in range(4):
            for n in range(10):
                committed(store, add(M, mid, version, entry("x", key=f"{day}-{n}")))
                version += 1
            clock.now += TTL + 1
            committed(store, add(M, mid, version, entry("job", key="nightly")))
            version += 1
        assert receipts_held(store) <= 20, "receipts pile up"

    def test_looking_up_keeps_the_order_of_the_questions(self, store: Store) -> None:
        committed(store, add(M, 0, 0, entry("a", key="1"), entry("b", key="2")))
        found = store.receipts([(M, "2"), (M, "none"), (M, "1"), (name("other"), "1")])
        assert [receipt and receipt.receipt.version.n for receipt in found] == [2, None, 1, None]


def receipts_held(store: Store) -> int:
    """Count the receipts that take up room, expired or not."""
    if isinstance(store, InMemoryStore):
        return len(store._receipts)
    assert isinstance(store, SQLiteStore)
    assert store._reader is not None
    return int(store._reader.execute("SELECT count(*) FROM receipt").fetchone()[0])


class TestLoad:
    def test_a_memory_that_is_not_there_is_no_head(self, store: Store) -> None:
        loaded = load(store, M)
        assert (loaded.head, loaded.after, loaded.entries) == (None, 0, ())

    def test_what_is_known_is_not_read_again(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b", "c"))
        loaded = load(store, M, Version(mid, 2))
        assert loaded.after == 2
        assert [stored.version for stored in loaded.entries] == [3]
        assert load(store, M, Version(mid, 3)).entries == ()

    def test_what_is_known_of_another_mid_does_not_count(self, store: Store) -> None:
        old = committed(store, add(M, 0, 0, "x", "y"))
        committed(store, delete(M, old, 2))
        committed(store, add(M, 0, 0, "a", "b", "c"))
        loaded = load(store, M, Version(old, 2))
        assert loaded.after == 0
        assert [stored.version for stored in loaded.entries] == [1, 2, 3]

    def test_what_is_known_from_before_the_state_does_not_count(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        committed(store, add(M, mid, 2, setting("c"), "d", base=3))
        loaded = load(store, M, Version(mid, 2))
        assert loaded.after == 0
        assert [stored.version for stored in loaded.entries] == [3, 4]
        assert [stored.version for stored in load(store, M, Version(mid, 3)).entries] == [4]

    def test_many_are_read_at_once_in_the_order_of_the_questions(self, store: Store) -> None:
        commit(store, *[add(name(str(n)), 0, 0, f"text {n}") for n in range(5)])
        loads = store.load([LoadQuery(name(each)) for each in ("3", "none", "0", "3")])
        assert [loaded.head and len(loaded.entries) for loaded in loads] == [1, None, 1, 1]
        assert [fold(loaded, M).messages[0].content for loaded in loads if loaded.head] == [
            "text 3",
            "text 0",
            "text 3",
        ]

    def test_entries_come_back_as_they_went_in(self, store: Store) -> None:
        made = entry("a", "b")
        committed(store, add(M, 0, 0, made))
        (stored,) = load(store, M).entries
        assert (stored.version, stored.op, stored.entry_id) == (1, "add", made.entry_id)
        assert stored.payload == b'{"messages":[%b]}' % b",".join(message.raw for message in made.messages)


class TestSettle:
    def test_a_committed_slice_is_found_by_its_entry_ids(self, store: Store) -> None:
        slice_ = add(M, 0, 0, "a", "b")
        (outcome,) = commit(store, slice_)
        assert store.settle([slice_]) == [outcome]

    def test_it_is_found_when_others_wrote_after_it(self, store: Store) -> None:
        slice_ = add(M, 0, 0, "a")
        mid = committed(store, slice_)
        committed(store, add(M, mid, 1, "b"))
        (found,) = store.settle([slice_])
        assert isinstance(found, Committed)
        assert found.mid == mid

    def test_one_that_did_not_happen_is_not(self, store: Store) -> None:
        created = add(M, 0, 0, "a")
        assert store.settle([created]) == [None]
        mid = committed(store, add(M, 0, 0, "somebody else's"))
        assert store.settle([created, add(M, mid, 1, "b"), delete(M, mid, 1)]) == [None, None, None]

    def test_a_delete_is_settled_by_the_absence_of_its_row(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        removal = delete(M, mid, 1)
        committed(store, removal)
        committed(store, add(M, 0, 0, "successor"))
        (found,) = store.settle([removal])
        assert isinstance(found, Committed)

    def test_many_are_settled_at_once(self, store: Store) -> None:
        slices = [add(name(str(n)), 0, 0, str(n)) for n in range(4)]
        commit(store, slices[1], slices[3])
        assert [found is not None for found in store.settle(slices)] == [False, True, False, True]


class TestTime:
    def test_p64_a_clock_that_runs_backwards_reverses_nothing(self, store: Store, clock: Clock) -> None:
        """Entries are in order of version, and their times never go backwards."""
        mid = committed(store, add(M, 0, 0, "0"))
        for n in range(1, 5):
            clock.now -= 3600
            head = load(store, M).head
            assert head is not None
            committed(store, add(M, mid, n, str(n), not_before=head.updated_at))
        times = [stored.at for stored in load(store, M).entries]
        assert times == sorted(times)
        assert texts(store, M) == ["0", "1", "2", "3", "4"]
        head = load(store, M).head
        assert head is not None
        assert head.updated_at == times[-1]

    def test_times_are_microseconds_by_the_stores_clock(self, store: Store, clock: Clock) -> None:
        clock.now = 1234.5
        mid = committed(store, add(M, 0, 0, "a"))
        clock.now = 1240.25
        committed(store, add(M, mid, 1, "b"))
        head = load(store, M).head
        assert head is not None
        assert (head.created_at, head.updated_at) == (1_234_500_000, 1_240_250_000)

    def test_g1_g3_entries_of_one_instant_keep_their_order(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, *map(str, range(20))))
        committed(store, add(M, mid, 20, *map(str, range(20, 40))))
        assert len({stored.at for stored in load(store, M).entries}) == 1
        assert texts(store, M) == [str(n) for n in range(40)]


AWKWARD = [
    "a",
    "A",
    "aa",
    "a b",
    "a%",
    "a_",
    "a'",
    'a"',
    "a\\",
    "a*",
    "a?[b]",
    "--",
    ";DROP TABLE head",
    "ä",
    "a\u0308",
    "é",
    "ﬀ",
    "漢字",
    "🙂",
    "🙂🙂",
    "\u200b",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "0",
    "00",
    "0x1",
    "null",
    "x" * 512,
    "x" * 511,
]


class TestNames:
    def test_awkward_ids_are_kept_apart_and_listed_in_byte_order(self, store: Store) -> None:
        for each in AWKWARD:
            committed(store, add(name(each), 0, 0, f"of {each}"))
        assert listed(store) == sorted((name(each) for each in AWKWARD), key=lambda one: one.id.encode())
        for each in AWKWARD:
            assert texts(store, name(each)) == [f"of {each}"]

    @pytest.mark.parametrize("page", [1, 2, 7])
    def test_pages_miss_and_repeat_nothing(self, store: Store, page: int) -> None:
        everything = sorted(
            [name(each, namespace) for each in AWKWARD for namespace in ("", "n", "N", "n%", "nn", "🙂")],
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

    def test_it_says_where_each_stands(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        (one,) = store.names(namespace=None, after=None, limit=9)
        assert (one.head.mid, one.head.version) == (mid, 2)

    @settings(max_examples=50)
    @given(
        st.sets(
            st.tuples(
                st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=3),
                st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=3),
            ),
            max_size=12,
        ),
        st.integers(1, 4),
    )
    def test_both_stores_list_alike(self, names: set[tuple[str, str]], page: int) -> None:
        wanted = [MemoryName(*each) for each in names]
        with TemporaryDirectory() as directory:
            in_memory, sqlite = InMemoryStore(), SQLiteStore(Path(directory) / "chats.db")
            sqlite.open(durability="relaxed")
            try:
                for store in (in_memory, sqlite):
                    commit(store, *[add(memory, 0, 0, "x") for memory in wanted])
                assert listed(sqlite, page=page) == listed(in_memory, page=page) == sorted(wanted)
                for namespace, _ in names:
                    found = listed(sqlite, namespace=namespace, page=page)
                    assert found == listed(in_memory, namespace=namespace, page=page)
            finally:
                sqlite.close()


class TestEntries:
    @pytest.mark.parametrize("page", [1, 3, 10, 100])
    def test_pages_miss_and_repeat_nothing_also_before_the_state(self, store: Store, page: int) -> None:
        mid = committed(store, add(M, 0, 0, *map(str, range(7))))
        committed(store, add(M, mid, 7, setting("s"), "t", base=8))
        seen: list[int] = []
        while found := store.entries(mid, after=seen[-1] if seen else 0, limit=page):
            seen += [stored.version for stored in found]
        assert seen == list(range(1, 10))

    def test_an_unknown_mid_has_none(self, store: Store) -> None:
        assert store.entries(99, after=0, limit=10) == []


class TestLifetime:
    def test_closing_twice_is_harmless(self, store: Store) -> None:
        store.close()
        store.close()

    def test_it_says_what_it_is(self, store: Store) -> None:
        assert store.describe()


class TestFolding:
    """What a load that doesn't add up turns into; the stores' own damage tests are elsewhere."""

    def test_a_log_with_a_hole_is_corrupt(self, store: Store) -> None:
        committed(store, add(M, 0, 0, "a", "b", "c"))
        loaded = load(store, M)
        with pytest.raises(MemoryCorruptError, match="missing") as raised:
            fold(type(loaded)(loaded.head, 0, (loaded.entries[0], loaded.entries[2])), M)
        assert raised.value.version == 2

"""Loads, pages of entries, times; and what became of a commit."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from turnkeeper.folding import fold
from turnkeeper.log import Committed, LoadQuery, Version
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import StoreClock, SuitePart
from turnkeeper.testing.suite.threads import in_threads
from turnkeeper.testing.suite.words import (
    add,
    commit,
    committed,
    delete,
    entry,
    head_of,
    load,
    name,
    outcome_of,
    setting,
    texts,
)

__all__ = ["Entries", "Loading", "Settling", "Times"]

M = name()


class Loading(SuitePart):
    """A load shows a memory at one instant: its state, or what follows what is known."""

    def test_a_memory_that_is_not_there_has_no_head(self, store: Store) -> None:
        loaded = load(store, M)
        assert (loaded.head, loaded.after, loaded.entries) == (None, 0, ())

    def test_what_is_known_is_not_read_again(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b", "c"))
        loaded = load(store, M, Version(mid, 2))
        assert (loaded.after, loaded.continues) == (2, True)
        assert [stored.version for stored in loaded.entries] == [3]
        assert load(store, M, Version(mid, 3)).entries == ()

    def test_what_is_known_of_another_mid_does_not_count(self, store: Store) -> None:
        old = committed(store, add(M, 0, 0, "x", "y"))
        committed(store, delete(M, old, 2))
        committed(store, add(M, 0, 0, "a", "b", "c"))
        loaded = load(store, M, Version(old, 2))
        assert (loaded.after, loaded.continues) == (0, False)
        assert [stored.version for stored in loaded.entries] == [1, 2, 3]

    def test_what_is_known_from_before_the_state_does_not_count(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a", "b"))
        committed(store, add(M, mid, 2, setting("c"), "d", base=3))
        loaded = load(store, M, Version(mid, 2))
        assert (loaded.after, loaded.continues) == (0, False)
        assert [stored.version for stored in loaded.entries] == [3, 4]
        assert [stored.version for stored in load(store, M, Version(mid, 3)).entries] == [4]

    def test_many_are_read_at_once_in_the_order_of_the_questions(self, store: Store) -> None:
        commit(store, *[add(name(str(n)), 0, 0, f"text {n}") for n in range(5)])
        loads = store.load([LoadQuery(name(each)) for each in ("3", "none", "0", "3")])
        assert [loaded.head and len(loaded.entries) for loaded in loads] == [1, None, 1, 1]
        shown = [fold(loaded, M).messages[0].content for loaded in loads if loaded.head]
        assert shown == ["text 3", "text 0", "text 3"]

    @pytest.mark.parametrize("newest", [1, 2, 5, 9])
    def test_the_newest_entries_come_alone_with_the_system_message_where_it_is_older(
        self, store: Store, newest: int
    ) -> None:
        mid = committed(store, add(M, 0, 0, "old"))
        committed(store, replace(add(M, mid, 1, setting("system"), *"abcd", base=2), system=2))
        (loaded,) = store.load([LoadQuery(M, newest=newest)])
        first = max(2, 7 - newest)
        assert [stored.version for stored in loaded.entries] == list(range(first, 7))
        assert loaded.after == (first - 1 if first > 2 else 0)
        assert (loaded.system and loaded.system.version) == (2 if first > 2 else None)

    def test_a_load_is_a_picture_that_later_commits_do_not_change(self, store: Store) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        picture = load(store, M)
        committed(store, add(M, mid, 1, "b"))
        assert [stored.version for stored in picture.entries] == [1]
        assert picture.head is not None
        assert picture.head.version == 1

    def test_a_load_beside_commits_shows_one_instant(self, store: Store) -> None:
        """P93: one reader beside one writer. Head and entries agree, no slice is shown by halves, no time runs back."""
        if store.inline:
            pytest.skip("calls are made by one thread")
        done = threading.Event()
        first = committed(store, add(M, 0, 0, setting("0"), "0", "0", base=1))

        def write() -> None:  # commits only: one other thread reads
            mid, version = first, 3
            try:
                for n in range(1, 41):
                    new = add(M, mid, version, setting(f"{n}"), f"{n}", f"{n}", base=version + 1)
                    committed(store, new)
                    version += 3
                    if n % 10 == 0:
                        committed(store, delete(M, mid, version))
                        mid, version = committed(store, add(M, 0, 0, setting(f"{n}"), f"{n}", f"{n}", base=1)), 3
            finally:
                done.set()

        def read() -> None:
            newest = 0
            while True:
                last = done.is_set()
                loaded = load(store, M)
                if loaded.head is not None:
                    versions = [stored.version for stored in loaded.entries]
                    wanted = list(range(loaded.head.base, loaded.head.version + 1))
                    assert versions == wanted, "head and entries are of two instants"
                    shown = {message.text for message in fold(loaded, M).messages}
                    assert len(shown) == 1, "half a slice is shown"
                    (number,) = map(int, shown)
                    assert number >= newest, "a later load shows an earlier state"
                    newest = number
                if last:
                    return

        in_threads(write, read)


class Entries(SuitePart):
    """The log can be read in pages, and each entry comes back as it went in."""

    @pytest.mark.parametrize("page", [1, 3, 10, 100])
    def test_pages_of_entries_miss_and_repeat_nothing_also_before_the_state(self, store: Store, page: int) -> None:
        mid = committed(store, add(M, 0, 0, *map(str, range(7))))
        committed(store, add(M, mid, 7, setting("s"), "t", base=8))
        seen: list[int] = []
        while found := store.entries(mid, after=seen[-1] if seen else 0, limit=page):
            seen += [stored.version for stored in found]
        assert seen == list(range(1, 10))

    def test_an_unknown_mid_has_no_entries(self, store: Store) -> None:
        assert store.entries(99, after=0, limit=10) == []

    def test_entries_come_back_as_they_went_in(self, store: Store) -> None:
        made = entry("a", "b")
        mid = committed(store, add(M, 0, 0, made))
        (stored,) = load(store, M).entries
        assert (stored.version, stored.op, stored.entry_id) == (1, "add", made.entry_id)
        assert stored.payload == b'{"messages":[%b]}' % b",".join(message.raw for message in made.messages)
        assert store.entries(mid, after=0, limit=9) == [stored]

    def test_any_text_comes_back(self, store: Store) -> None:
        """G20: whatever the engine reads into a text."""
        said = ["", "\0", "'\"\\;--%_", "漢字 🙂 a\u0308", "\u2028", "x" * 100_000]
        committed(store, add(M, 0, 0, *said))
        assert texts(store, M) == said

    def test_a_sealed_payload_comes_back_byte_for_byte(self, store: Store) -> None:
        """A store looks at nothing in a payload: it may be encrypted."""
        sealed = bytes(range(256)) * 3
        mid = committed(store, add(M, 0, 0, replace(entry("a"), sealed=sealed), "b"))
        assert [stored.payload == sealed for stored in load(store, M).entries] == [True, False]
        assert store.entries(mid, after=0, limit=1)[0].payload == sealed

    def test_an_unknown_kind_of_entry_comes_back(self, store: Store) -> None:
        committed(store, add(M, 0, 0, entry("a", op="of-a-later-release")))
        assert load(store, M).entries[0].op == "of-a-later-release"


class Settling(SuitePart):
    """Whether a slice was committed can be told by its entry ids, and is told truly."""

    def test_a_committed_slice_is_found_by_its_entry_ids(self, store: Store) -> None:
        slice_ = add(M, 0, 0, "a", "b")
        outcome = outcome_of(store, slice_)
        assert store.settle([slice_]) == [outcome]

    def test_a_slice_is_found_when_others_wrote_after_it(self, store: Store) -> None:
        slice_ = add(M, 0, 0, "a")
        mid = committed(store, slice_)
        committed(store, add(M, mid, 1, "b"))
        (found,) = store.settle([slice_])
        assert isinstance(found, Committed)
        assert found.mid == mid

    def test_a_slice_that_was_not_committed_is_not_found(self, store: Store) -> None:
        created = add(M, 0, 0, "a")
        assert store.settle([created]) == [None]
        mid = committed(store, add(M, 0, 0, "somebody else's"))
        assert store.settle([created, add(M, mid, 1, "b"), delete(M, mid, 1)]) == [None, None, None]
        committed(store, add(M, mid, 1, "theirs"))
        assert store.settle([add(M, mid, 1, "ours")]) == [None], "somebody else's entry stands in its place"

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


class Times(SuitePart):
    """Entries are in order of version, whatever the clock does; times are microseconds by the store's clock."""

    def test_p64_a_clock_that_runs_backwards_reverses_nothing(self, store: Store, clock: StoreClock) -> None:
        """Entries are in order of version, and their times never go backwards."""
        mid = committed(store, add(M, 0, 0, "0"))
        for n in range(1, 5):
            clock.now -= 3600
            committed(store, add(M, mid, n, str(n), not_before=head_of(store, M).updated_at))
        times = [stored.at for stored in load(store, M).entries]
        assert times == sorted(times)
        assert texts(store, M) == ["0", "1", "2", "3", "4"]
        assert head_of(store, M).updated_at == times[-1]

    def test_times_are_microseconds_by_the_stores_clock(self, store: Store, clock: StoreClock) -> None:
        clock.now = 1234.5
        mid = committed(store, add(M, 0, 0, "a"))
        clock.now = 1240.25
        committed(store, add(M, mid, 1, "b"))
        head = head_of(store, M)
        assert (head.created_at, head.updated_at) == (1_234_500_000, 1_240_250_000)

    def test_times_never_precede_what_a_slice_says(self, store: Store) -> None:
        later = store.now() + 3_600_000_000
        outcome = outcome_of(store, add(M, 0, 0, "a", not_before=later))
        assert isinstance(outcome, Committed)
        assert outcome.at == load(store, M).entries[0].at == head_of(store, M).updated_at == later

    def test_g1_g3_entries_of_one_instant_keep_their_order(self, store: Store, clock: StoreClock) -> None:
        mid = committed(store, add(M, 0, 0, *map(str, range(20))))
        committed(store, add(M, mid, 20, *map(str, range(20, 40))))
        assert len({stored.at for stored in load(store, M).entries}) == 1
        assert texts(store, M) == [str(n) for n in range(40)]

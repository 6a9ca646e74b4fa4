"""Which memories got entries, and notices of that."""

from __future__ import annotations

import threading
import time

import pytest

from turnkeeper.log import Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import Changes as Told
from turnkeeper.stores import Cursor, Store
from turnkeeper.testing.suite.base import OpenStore, SuitePart, needs_changes
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS, in_threads
from turnkeeper.testing.suite.words import add, clearing, commit, committed, delete, describing, name, pruning

__all__ = ["Announcing", "Changes"]

M = name()


def everything(store: Store, cursor: Cursor, limit: int = 100) -> tuple[dict[MemoryName, Version], Cursor]:
    """Read all changes behind a place, part by part: each memory's last one, in order."""
    newest: dict[MemoryName, Version] = {}
    while (told := store.changes(cursor, limit)).cursor != cursor:
        assert len(told.changed) <= limit, "a part has at most as many changes as its limit"
        cursor = told.cursor
        for memory, version in told.changed:
            newest.pop(memory, None)
            newest[memory] = version
    return newest, cursor


class Changes(SuitePart):
    """Each change is told at least once, in the order in which the store took them, whoever commits meanwhile."""

    @pytest.fixture
    def feed(self, store: Store) -> Store:
        """Return an open store that tells of changes."""
        needs_changes(store)
        return store

    def test_each_memory_that_got_entries_is_told_with_its_newest(self, feed: Store) -> None:
        first = committed(feed, add(M, 0, 0, "before"))
        start = feed.changes(None, 100)
        assert start.changed == ()
        mid = committed(feed, add(name("x"), 0, 0, "a"))
        committed(feed, add(M, first, 1, "b"))
        committed(feed, add(name("x"), mid, 1, "c", clearing(), base=3))
        newest, cursor = everything(feed, start.cursor)
        assert newest == {M: Version(first, 2), name("x"): Version(mid, 3)}
        assert list(newest) == [M, name("x")], "this is not the order in which the store took them"
        assert feed.changes(cursor, 100) == Told(cursor, ())

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_parts_of_the_changes_miss_nothing(self, feed: Store, limit: int) -> None:
        cursor = feed.changes(None, limit).cursor
        commit(feed, *[add(name(str(n)), 0, 0, "x", "y") for n in range(6)])
        newest, _ = everything(feed, cursor, limit)
        assert {memory: version.n for memory, version in newest.items()} == {name(str(n)): 2 for n in range(6)}

    @pytest.mark.parametrize("gone", ["deleted", "pruned"])
    def test_when_the_newest_entries_go_no_change_that_follows_is_missed(self, feed: Store, gone: str) -> None:
        """Their places in the order are not given to others."""
        cursor = feed.changes(None, 100).cursor
        mid = committed(feed, add(M, 0, 0, *map(str, range(10))))
        cursor = feed.changes(cursor, 100).cursor
        committed(feed, delete(M, mid, 10) if gone == "deleted" else pruning(M, mid, 10, 11, base=1))
        committed(feed, add(name("next"), 0, 0, "a"))
        newest, _ = everything(feed, cursor)
        assert name("next") in newest

    def test_a_memory_that_was_deleted_since_stops_nobody(self, feed: Store) -> None:
        cursor = feed.changes(None, 1).cursor
        mid = committed(feed, add(M, 0, 0, "a", "b"))
        following = committed(feed, add(name("next"), 0, 0, "a"))
        committed(feed, delete(M, mid, 2))
        newest, _ = everything(feed, cursor)
        assert newest[name("next")] == Version(following, 1)

    def test_metadata_are_no_entries(self, feed: Store) -> None:
        mid = committed(feed, add(M, 0, 0, "a"))
        cursor = feed.changes(None, 1).cursor
        committed(feed, describing(M, mid, 1, 0))
        assert feed.changes(cursor, 9).changed == ()

    def test_a_cursor_holds_for_every_store_object(self, shared: Store, open_store: OpenStore) -> None:
        cursor = shared.changes(None, 1).cursor
        other = open_store()
        committed(other, add(M, 0, 0, "a"))
        assert list(everything(shared, cursor)[0]) == list(everything(other, cursor)[0]) == [M]

    def test_while_several_commit_no_change_is_missed(self, shared: Store, open_store: OpenStore) -> None:
        """A place is passed only when nothing can come before it any more, whoever commits first."""
        writers, rounds = 4, 25
        done = [threading.Event() for _ in range(writers)]
        start = shared.changes(None, 1).cursor
        newest: dict[MemoryName, Version] = {}

        def write(number: int, store: Store) -> None:
            try:
                mids: dict[int, int] = {}
                for turn in range(rounds):
                    for which in range(2):
                        memory = name(f"{number}-{which}")
                        mids[which] = committed(store, add(memory, mids.get(which, 0), turn, "x"))
            finally:
                done[number].set()

        def follow() -> None:
            cursor = start
            while True:
                last = all(each.is_set() for each in done)
                found, cursor = everything(shared, cursor, 3)
                newest.update(found)
                if last:
                    return

        stores = [open_store() for _ in range(writers)]
        in_threads(follow, *[lambda n=n, store=store: write(n, store) for n, store in enumerate(stores)])
        names = [name(f"{number}-{which}") for number in range(writers) for which in range(2)]
        assert sorted(newest) == names, "some memories were not told of"
        assert {memory: newest[memory].n for memory in names} == dict.fromkeys(names, rounds)


class Announcing(SuitePart):
    """Who listens in another process hears of what was announced."""

    @pytest.fixture
    def announcing(self, store: Store) -> Store:
        """Return an open store that announces."""
        if not store.announces:
            pytest.skip(f"{type(store).__name__} announces nothing")
        return store

    def test_who_listens_hears_what_another_store_object_announced(
        self, announcing: Store, open_store: OpenStore
    ) -> None:
        listener = open_store()
        assert listener.listen(0.0), "the first call may have missed something"
        announcing.announce()
        assert heard(listener), "a notice was not heard"

    def test_what_a_store_object_announced_itself_it_does_not_hear(
        self, announcing: Store, open_store: OpenStore
    ) -> None:
        listener = open_store()
        assert announcing.listen(0.0)
        assert listener.listen(0.0)
        announcing.announce()
        assert heard(listener), "a notice was not heard"
        assert not announcing.listen(0.0), "this notice was its own"

    def test_who_waits_for_a_notice_is_woken(self, announcing: Store, open_store: OpenStore) -> None:
        listener = open_store()
        assert listener.listen(0.0)
        in_threads(lambda: self._awoken(listener), announcing.announce)

    def _awoken(self, listener: Store) -> None:
        began = time.monotonic()
        assert listener.listen(PATIENCE_SECONDS / 2), "a notice was not heard"
        assert time.monotonic() - began < PATIENCE_SECONDS / 4, "it was found when the time was over, not when it came"

    def test_closing_ends_a_wait_for_notices(self, announcing: Store, open_store: OpenStore) -> None:
        listener = open_store()
        assert listener.listen(0.0)
        ended = threading.Event()

        def wait() -> None:
            try:
                listener.listen(PATIENCE_SECONDS * 2)
            except Exception:
                pass  # a closed store may say so
            finally:
                ended.set()

        in_threads(wait, listener.close)
        assert ended.is_set()


def heard(store: Store) -> bool:
    """Wait for a notice; a call may come back early without one."""
    until = time.monotonic() + PATIENCE_SECONDS / 4
    while time.monotonic() < until:
        if store.listen(0.5):
            return True
    return False

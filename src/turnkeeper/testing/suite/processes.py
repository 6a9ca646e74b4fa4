"""Other processes on the same place: one that is killed, and some that write at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from turnkeeper.folding import fold
from turnkeeper.log import Committed, Duplicate, Held, Lease, Slice
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store
from turnkeeper.testing.suite.base import OpenStore, StoreClock, SuitePart
from turnkeeper.testing.suite.sharing import decided, head_now
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS
from turnkeeper.testing.suite.words import add, committed, entry, head_of, load, log, name, texts

__all__ = ["Processes"]

M = name()

MakeStore = Callable[[Path, StoreClock | None], Store]


class Child:
    """A process that does with a store of its own what it is told to."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process: Any = context.Process(target=target, args=(there, *arguments), daemon=True)
        self.process.start()
        there.close()

    def hear(self) -> Any:
        """Return what the child says next."""
        assert self._here.poll(PATIENCE_SECONDS), "the other process says nothing"
        return self._here.recv()

    def say(self, word: Any) -> None:
        """Tell the child something."""
        self._here.send(word)

    def heard(self) -> list[Any]:
        """Return all that the child said before it ended."""
        found: list[Any] = []
        try:
            while True:
                found.append(self._here.recv())
        except (EOFError, ConnectionResetError):
            return found

    def kill(self) -> None:
        """Kill it as `kill -9` does, and wait until it is gone."""
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)

    def end(self) -> None:
        """Wait until it ends by itself, and well."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode == 0, "the other process failed: its error is in the output"

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)
        self._here.close()
        self.process.close()


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Start a process; when the test is over it is gone."""
    started = Child(target, *arguments)
    try:
        yield started
    finally:
        started.close()


def write_until_killed(parent: Connection, make_store: MakeStore, place: Path) -> None:
    """Commit batch after batch of two entries to two memories, and tell the parent of each that is committed."""
    store = make_store(place, None)
    store.open(durability="full")
    mids = {"0": 0, "1": 0}
    n = 0
    while True:
        for memory in mids:
            keyed = entry(f"{n}.1", key=f"k{n}")
            mids[memory] = committed(store, add(name(memory), mids[memory], 2 * n, f"{n}.0", keyed))
            parent.send((memory, n))
        n += 1


def take_a_lease(parent: Connection, make_store: MakeStore, place: Path) -> None:
    """Take a lease for an hour and wait to be killed."""
    store = make_store(place, None)
    store.open(durability="full")
    mid = head_of(store, M).mid
    committed(store, Slice(M, mid, 1, (), lease=Lease(b"c" * 16, 3600.0)))
    parent.send(os.getpid())
    parent.recv()


def append(parent: Connection, make_store: MakeStore, place: Path, sender: str, count: int) -> None:
    """Append entries to one memory, as often as it takes; begin when told."""
    store = make_store(place, None)
    store.open(durability="full")
    parent.send("ready")
    parent.recv()
    append_all(store, sender, count)
    store.close()


def append_all(store: Store, sender: str, count: int) -> None:
    """Append entries to one memory, as often as it takes."""
    for n in range(count):
        while True:
            head = head_now(store)
            mid, version = (head.mid, head.version) if head else (0, 0)
            new = add(M, mid, version, f"{sender}.{n}.0", f"{sender}.{n}.1")
            if isinstance(decided(store, new), Committed):
                break


class Processes(SuitePart):
    """What a process was told is committed is there for every other one, also when it is killed in between."""

    spawns: ClassVar[bool] = True
    """`make_store` can be called in another process (it is pickled, with the attributes of `self`)."""

    @pytest.fixture
    def elsewhere(self, place: Path) -> tuple[MakeStore, Path]:
        """Return what another process needs to make its store."""
        if not self.durable:
            pytest.skip("the store keeps nothing (durable)")
        if not self.spawns:
            pytest.skip("the store can't be made in another process (spawns)")
        return self.make_store, place

    def test_a_writer_killed_in_between_loses_nothing_that_it_was_told_and_leaves_nothing_by_halves(
        self, elsewhere: tuple[MakeStore, Path], open_store: OpenStore
    ) -> None:
        with child(write_until_killed, *elsewhere) as writer:
            told: dict[str, int] = {}
            for _ in range(30):
                memory, n = writer.hear()
                told[memory] = n
            writer.kill()
            told.update(writer.heard())
        store = open_store()
        for memory, last in told.items():
            said = texts(store, name(memory))
            batches = len(said) // 2
            assert said == [f"{n}.{part}" for n in range(batches) for part in range(2)], "half a slice is there"
            assert last + 1 <= batches <= last + 2, "an acknowledged commit is lost"
            (found, missing) = store.receipts([(name(memory), f"k{last}"), (name(memory), f"k{batches}")])
            assert found is not None, "an acknowledged commit's receipt is lost"
            assert missing is None
            head = head_of(store, name(memory))
            committed(store, add(name(memory), head.mid, head.version, "goes on"))
            assert isinstance(
                decided(store, add(name(memory), head.mid, head.version, entry("again", key=f"k{last}"))), Duplicate
            )

    def test_two_processes_that_write_to_one_memory_lose_double_and_interleave_nothing(
        self, elsewhere: tuple[MakeStore, Path], shared: Store
    ) -> None:
        count = 25
        with child(append, *elsewhere, "theirs", count) as other:
            assert other.hear() == "ready"
            other.say("go")
            append_all(shared, "ours", count)
            other.end()
        said = texts(shared, M)
        assert len(said) == 4 * count
        for sender in ("ours", "theirs"):
            wanted = [f"{sender}.{n}.{part}" for n in range(count) for part in range(2)]
            assert [text for text in said if text.startswith(sender)] == wanted, "entries were lost or reordered"
        assert all(said[at][:-1] == said[at + 1][:-1] for at in range(0, len(said), 2)), "a slice was interleaved"
        assert [version for version, _ in log(shared, M)] == list(range(1, 4 * count + 1))

    def test_changes_by_another_process_are_told(self, elsewhere: tuple[MakeStore, Path], shared: Store) -> None:
        cursor = shared.changes(None, 1).cursor
        with child(append, *elsewhere, "theirs", 3) as other:
            assert other.hear() == "ready"
            other.say("go")
            other.end()
        newest: dict[MemoryName, int] = {}
        while (told := shared.changes(cursor, 2)).cursor != cursor:
            cursor = told.cursor
            newest.update((memory, version.n) for memory, version in told.changed)
        assert newest == {M: 6}

    def test_a_lease_outlives_the_process_that_took_it_and_can_be_stolen(
        self, elsewhere: tuple[MakeStore, Path], shared: Store
    ) -> None:
        mid = committed(shared, add(M, 0, 0, "before"))
        with child(take_a_lease, *elsewhere) as holder:
            assert holder.hear() == holder.process.pid
            holder.kill()
        # It lived by the real time: an hour from then is not over by any clock of this test, which begins in 1970.
        assert decided(shared, add(M, mid, 1, "no")) == Held()
        thief = Slice(M, mid, 1, (), lease=Lease(b"t" * 16, 30.0, steal=True))
        assert isinstance(decided(shared, thief), Committed)
        assert fold(load(shared, M), M).messages[0].text == "before"

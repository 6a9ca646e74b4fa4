"""What was deleted can't be read in the SQLite store's files any more: all of their bytes are looked through."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stores.building import add, committed, delete, describing, name, pruning, texts
from turnkeeper import StoreUnavailableError
from turnkeeper.names import MemoryName
from turnkeeper.stores import SQLiteStore, sqlite_scrubbing
from turnkeeper.stores.base import SearchQuery

M = name()
LETTERS = string.ascii_letters + string.digits
TIMES = [1, 2, 5, 20, 60, 60, 60, 120, 400, 600, 1500, 12_000]
"""How often a message repeats its eight letters: in a corner of a page, in all of it, or in pages of its own."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the database goes."""
    return tmp_path / "chats.db"


@contextmanager
def opened(path: Path, *, shared: bool = False, durability: str = "full", wait: float = 10.0) -> Iterator[SQLiteStore]:
    """Open a store and close it."""
    store = SQLiteStore(path, shared=shared, busy_timeout=wait)
    store.open(durability=durability)
    try:
        yield store
    finally:
        store.close()


class Memories:
    """Memories of random content, and what of it has to be gone. Each piece repeats letters of its own."""

    def __init__(self, *stores: SQLiteStore, seed: int) -> None:
        self.random = random.Random(seed)
        self.stores = stores
        self.times = TIMES[: self.random.choice([5, 7, 9, 12])]
        self.mids: dict[MemoryName, int] = {}
        self.versions: dict[MemoryName, int] = {}
        self.bases: dict[MemoryName, int] = {}
        self.said: dict[MemoryName, list[str]] = {}
        self.described: dict[MemoryName, list[str]] = {}
        self.gone: set[str] = set()

    def letters(self) -> str:
        return "".join(self.random.choices(LETTERS, k=8))

    def content(self, letters: str) -> str:
        return letters * self.random.choice(self.times)

    def step(self) -> None:
        """Do something, mostly add, through one of the stores."""
        store = self.random.choice(self.stores)
        memory = self.random.choice(list(self.mids)) if self.mids else None
        chance = self.random.random()
        if memory is None or chance < 0.15:
            self.add(store, name(self.letters() * self.random.choice([1, 4, 9])))
        elif chance < 0.7:
            self.add(store, memory)
        elif chance < 0.8:
            self.describe(store, memory)
        elif chance < 0.9:
            self.delete(store, memory)
        else:
            self.prune(store, memory)

    def add(self, store: SQLiteStore, memory: MemoryName) -> None:
        letters, version = self.letters(), self.versions.get(memory, 0)
        slice_ = add(memory, self.mids.get(memory, 0), version, self.content(letters), base=self.bases.get(memory, 0))
        self.mids[memory] = committed(store, slice_)
        self.versions[memory] = version + 1
        self.said.setdefault(memory, []).append(letters)

    def describe(self, store: SQLiteStore, memory: MemoryName) -> None:
        letters, described = self.letters(), self.described.setdefault(memory, [])
        data = self.content(letters).encode()
        committed(store, describing(memory, self.mids[memory], self.versions[memory], len(described), data))
        self.gone.update(described)
        described.append(letters)

    def delete(self, store: SQLiteStore, memory: MemoryName) -> None:
        committed(store, delete(memory, self.mids.pop(memory), self.versions.pop(memory)))
        self.bases.pop(memory, None)
        self.gone.update([memory.id[:8], *self.said.pop(memory), *self.described.pop(memory, [])])

    def prune(self, store: SQLiteStore, memory: MemoryName) -> None:
        version, said = self.versions[memory], self.said[memory]
        self.bases[memory] = before = self.random.randint(self.bases.get(memory, 1), version)
        committed(store, pruning(memory, self.mids[memory], version, before, base=before))
        going = max(0, before - 1 - (version - len(said)))
        self.gone.update(said[:going])
        del said[:going]

    def check(self, path: Path) -> None:
        """Compare the files with what has to be there and what must not."""
        assert found(path, self.gone) == {}
        store = self.stores[0]
        assert store.integrity() == []
        for memory, said in self.said.items():
            assert [text[:8] for text in texts(store, memory)] == said


def found(path: Path, pieces: set[str]) -> dict[str, list[str]]:
    """Look through the bytes of all files beside a database."""
    contents = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    found = {each: [piece for piece in pieces if piece.encode() in content] for each, content in contents.items()}
    return {each: some for each, some in found.items() if some}


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_was_deleted_is_left_in_any_file(path: Path, shared: bool, durability: str, seed: int) -> None:
    """Small rows and overflow pages, metadata, rows that page splits moved, deletes among others, prunes."""
    with opened(path, shared=shared, durability=durability) as store:
        memories = Memories(store, seed=seed)
        for _ in range(3):
            for _ in range(100):
                memories.step()
            assert found(path, memories.gone), "there was nothing to do"
            assert store.scrub() is None
            memories.check(path)
        for memory in list(memories.mids):
            memories.delete(store, memory)
        assert store.scrub() is None
        memories.check(path)


@pytest.mark.parametrize("seed", range(2))
def test_what_another_process_has_in_its_cache_does_not_come_back(path: Path, seed: int) -> None:
    """Each connection holds pages from before the other one's scrub, and writes them again."""
    with opened(path, shared=True) as first, opened(path, shared=True) as second:
        memories = Memories(first, second, seed=seed)
        for n in range(6):
            for _ in range(50):
                memories.step()
            assert (first, second)[n % 2].scrub() is None
            memories.check(path)


@pytest.mark.parametrize("own", [True, False], ids=["own", "other's"])
def test_a_cached_page_does_not_bring_back_what_was_removed_from_the_file(path: Path, own: bool) -> None:
    """Copies that moving rows left in a page: whoever holds it from before the scrub must not write them again."""
    with opened(path, shared=True) as store, opened(path, shared=True) as other:
        memories = Memories(store, seed=7)
        own_writer, others_writer = store._writer, other._writer
        assert own_writer is not None
        assert others_writer is not None
        while not found(path, memories.gone):
            for _ in range(40):
                memories.step()
            own_writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        def read_in_the_gap(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":  # behind the checkpoint, before the lock
                others_writer.execute("SELECT sum(at) FROM entry NOT INDEXED").fetchone()
                others_writer.execute("SELECT sum(updated_at) FROM head NOT INDEXED").fetchone()

        own_writer.set_trace_callback(read_in_the_gap)
        assert store.scrub() is None
        own_writer.set_trace_callback(None)
        gone = set(memories.gone)
        assert found(path, gone) == {}
        writer = own_writer if own else others_writer
        writer.execute("UPDATE entry SET at = at + 1")  # which writes each page as it is in the cache
        writer.execute("UPDATE head SET updated_at = updated_at + 1")
        assert found(path, gone) == {}


def test_no_word_stays_in_the_search_index(path: Path) -> None:
    store = SQLiteStore(path, search=True)
    store.open(durability="relaxed")
    with closing(store):
        randomly = random.Random(1)
        words = ["".join(randomly.choices(string.ascii_lowercase, k=8)) for _ in range(200)]
        mids = [committed(store, add(name(f"m{n}"), 0, 0, word)) for n, word in enumerate(words)]
        for n, mid in enumerate(mids[:80]):
            committed(store, delete(name(f"m{n}"), mid, 1))
        assert store.scrub() is None
        # A word stands in the index without the letters that it shares with the one before.
        assert found(path, {word[3:] for word in words[:80]}) == {}
        assert found(path, {word[3:] for word in words[80:]})
        assert [one.name.id for one in store.search(SearchQuery(words[-1], None, "", 9, 0))] == ["m199"]


def test_a_reader_of_an_older_state_prevents_it_until_it_ends(path: Path) -> None:
    with opened(path, wait=0.05) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        mid = committed(store, add(M, 0, 0, "s3cret"))
        other.execute("BEGIN")
        other.execute("SELECT payload FROM entry").fetchone()
        committed(store, delete(M, mid, 1))
        blocked = store.scrub()
        assert blocked is not None
        assert "another connection" in blocked
        assert "s3cret" not in blocked
        assert found(path, {"s3cret"})
        committed(store, add(M, 0, 0, "commits go on"))
        other.execute("COMMIT")
        assert store.scrub() is None
        assert found(path, {"s3cret"}) == {}


def test_a_writer_prevents_it_until_it_ends(path: Path) -> None:
    with opened(path, wait=0.05) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "another connection" in (store.scrub() or "")
        other.execute("ROLLBACK")
        assert store.scrub() is None
        assert store.pragma("busy_timeout") == 50


def test_the_stores_own_reading_connection_does_not(path: Path) -> None:
    with opened(path, wait=0.0) as store:
        mid = committed(store, add(M, 0, 0, "a", "b", "c"))
        store.names(namespace=None, after=None, limit=1)
        store.entries(mid, after=0, limit=1)
        store.receipts([(M, "k")])
        store.expired(1)
        store.changes(None, 1)
        store.changes(0, 1)
        texts(store, M)
        assert store.scrub() is None


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from stores.test_scrubbing import Memories, SQLiteStore
store = SQLiteStore(Path(sys.argv[1]), shared=sys.argv[3] == "shared")
store.open(durability="full")
memories = Memories(store, seed=7)
for _ in range(200):
    memories.step()
print(" ".join(memories.gone), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_after_kill_9_the_next_one_removes_what_is_left(path: Path, kind: str) -> None:
    tests = str(Path(__file__).parents[1])
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), tests, kind], stdout=subprocess.PIPE, check=False)
    gone = set(killed.stdout.decode().split())
    assert killed.returncode == -signal.SIGKILL
    assert found(path, gone)
    with opened(path, shared=kind == "shared") as store:
        assert store.scrub() is None
        assert found(path, gone) == {}
        assert store.integrity() == []


def test_a_read_only_store_scrubs_nothing(path: Path) -> None:
    with opened(path) as store:
        committed(store, add(M, 0, 0, "a"))
    reading = SQLiteStore(path, read_only=True)
    reading.open(durability="full")
    with closing(reading), pytest.raises(StoreUnavailableError, match="read-only"):
        reading.scrub()


def test_a_descriptor_of_the_file_stays_open_while_any_store_of_the_process_uses_it(path: Path) -> None:
    """The first one closed would drop SQLite's locks of all of them."""
    with opened(path, shared=True) as second:
        with opened(path, shared=True) as first:
            first.scrub()
            (descriptor,) = sqlite_scrubbing._descriptors.values()
        os.fstat(descriptor)
        committed(second, add(M, 0, 0, "a"))
    assert sqlite_scrubbing._descriptors == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)

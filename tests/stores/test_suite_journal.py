"""The store of docs/writing-a-store.md keeps every promise of a store that one runtime owns."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from journal_store import FORMAT, JournalStore
from turnkeeper import StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.stores import Store
from turnkeeper.testing import StoreClock, StoreSuite
from turnkeeper.testing.suite.words import add, committed, name, texts

M = name()


class TestJournalStore(StoreSuite):
    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        return JournalStore(place / "chats.journal", clock=clock or time.time)


def opened(path: Path) -> JournalStore:
    store = JournalStore(path)
    store.open(durability="full")
    return store


@pytest.mark.parametrize("torn", [1, 7, 8, 9, 60])
def test_a_record_that_a_crash_left_unfinished_is_cut_off(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "chats.journal"
    store = opened(path)
    mid = committed(store, add(M, 0, 0, "a"))
    whole = path.stat().st_size
    committed(store, add(M, mid, 1, "b"))
    store.close()
    path.write_bytes(path.read_bytes()[: whole + torn])
    store = opened(path)
    assert (texts(store, M), path.stat().st_size) == (["a"], whole)
    committed(store, add(M, mid, 1, "c"))
    store.close()
    store = opened(path)
    assert texts(store, M) == ["a", "c"]
    store.close()


def test_a_second_runtime_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "chats.journal")
    with pytest.raises(StoreInUseError):
        opened(tmp_path / "chats.journal")
    store.close()
    opened(tmp_path / "chats.journal").close()


def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"something else, and longer than that")
    with pytest.raises(StoreFormatError):
        opened(tmp_path / "foreign")
    assert (tmp_path / "foreign").read_bytes() == b"something else, and longer than that"
    (tmp_path / "torn").write_bytes(FORMAT[:5])
    opened(tmp_path / "torn").close()


def test_what_could_not_be_written_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.journal"
    store = opened(path)
    mid = committed(store, add(M, 0, 0, "a"))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    lost = add(M, mid, 1, "b")
    with monkeypatch.context() as patched:
        patched.setattr("journal_store.os.fsync", fail)
        with pytest.raises(StoreUnavailableError, match="No space"):
            store.commit([lost], receipt_ttl=1.0)
    assert (texts(store, M), store.settle([lost])) == (["a"], [None])
    committed(store, add(M, mid, 1, "c"))
    store.close()
    store = opened(path)
    assert texts(store, M) == ["a", "c"]
    store.close()

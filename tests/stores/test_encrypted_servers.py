"""Encryption on the server stores: nothing readable there, keys rotated out, and a wrong key that opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.server_places import KINDS, server_place
from turnkeeper import DecryptionError, open_sync_runtime
from turnkeeper.names import MemoryName
from turnkeeper.rotating import rotate_store
from turnkeeper.stores import EncryptedStore, Keyring, LoadQuery, Store, store_from_url

OLD, NEW = b"o" * 32, b"n" * 32
PLACE = "sealed"
SECRET = "nobody may read this"
MakeStore = Callable[[], Store]


@pytest.fixture(params=KINDS)
def make_store(request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    """Return a maker of store objects on one place of a server."""
    with server_place(request.param, PLACE) as url:
        yield lambda: store_from_url(url)


def fill(store: Store, active: str) -> None:
    keys = Keyring({"old": OLD, "new": NEW}, active=active)
    with open_sync_runtime(EncryptedStore(store, keys)) as runtime:
        memory = runtime.memory("m")
        memory.add([{"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}])
        memory.set_metadata(title=SECRET)
        memory.set([{"role": "user", "content": f"{SECRET} {active}"}])


def payloads(store: Store) -> bytes:
    store.open(durability="full")
    try:
        (loaded,) = store.load([LoadQuery(MemoryName("", "m"))])
        assert loaded.head is not None
        entries = store.entries(loaded.head.mid, after=0, limit=100)
        assert len(entries) >= 2
        return b"".join([*[entry.payload for entry in entries], loaded.head.meta or b""])
    finally:
        store.close()


def test_nothing_that_was_said_lies_there(make_store: MakeStore) -> None:
    fill(make_store(), "old")
    assert SECRET.encode() not in payloads(make_store())


def test_another_key_opens_nothing_and_changes_nothing(make_store: MakeStore) -> None:
    fill(make_store(), "old")
    before = payloads(make_store())
    with open_sync_runtime(EncryptedStore(make_store(), Keyring({"old": NEW}, active="old"))) as runtime:
        with pytest.raises(DecryptionError):
            runtime.memory("m").messages()
        with pytest.raises(DecryptionError):
            runtime.memory("m").add({"role": "user", "content": "more"})
    assert payloads(make_store()) == before


def test_a_key_that_was_rotated_out_is_needed_no_more(make_store: MakeStore) -> None:
    fill(make_store(), "old")
    store = EncryptedStore(make_store(), Keyring({"old": OLD, "new": NEW}, active="new"))
    store.open(durability="full")
    try:
        rotation = rotate_store(store)
    finally:
        store.close()
    assert rotation.left == {}
    assert rotation.resealed >= 3
    with open_sync_runtime(EncryptedStore(make_store(), Keyring({"new": NEW}, active="new"))) as runtime:
        memory = runtime.memory("m")
        assert [message.text for message in memory.messages()] == [f"{SECRET} old"]
        assert memory.metadata().title == SECRET
        assert len(memory.history().entries) == 2

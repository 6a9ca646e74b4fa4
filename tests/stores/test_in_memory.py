"""What the in-memory store has of its own."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import turnkeeper
from stores.building import add, committed, entry, listed, load, name, texts
from turnkeeper.stores import InMemoryStore, store_from_url


def test_it_needs_no_thread_and_no_other_process_can_write() -> None:
    assert InMemoryStore.inline is True
    assert InMemoryStore().shared is False


def test_it_keeps_what_it_holds_from_one_runtime_to_the_next() -> None:
    store = InMemoryStore()
    store.open(durability="full")
    committed(store, add(name(), 0, 0, "a"))
    store.close()
    store.open(durability="full")
    assert texts(store, name()) == ["a"]


def test_two_stores_share_nothing() -> None:
    first, second = InMemoryStore(), InMemoryStore()
    committed(first, add(name(), 0, 0, entry("a", key="k")))
    assert listed(second) == []
    assert second.receipts([(name(), "k")]) == [None]


def test_a_load_is_a_picture_that_later_commits_do_not_change() -> None:
    store = InMemoryStore()
    mid = committed(store, add(name(), 0, 0, "a"))
    picture = load(store, name())
    committed(store, add(name(), mid, 1, "b"))
    assert [stored.version for stored in picture.entries] == [1]
    assert picture.head is not None
    assert picture.head.version == 1


def test_names_that_come_and_go_between_two_listings_are_seen() -> None:
    store = InMemoryStore()
    committed(store, add(name("b"), 0, 0, "x"))
    assert listed(store) == [name("b")]
    committed(store, add(name("a"), 0, 0, "x"))
    assert listed(store) == [name("a"), name("b")]


@pytest.mark.anyio
async def test_a_runtime_without_a_url_is_in_memory_and_says_so_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG, logger="turnkeeper"):
        async with turnkeeper.open_runtime() as runtime:
            await runtime.memory("m").add({"role": "user", "content": "a"})
            assert len(await runtime.memory("m").messages()) == 1
    assert [(record.levelname, record.name) for record in caplog.records] == [("INFO", "turnkeeper")]
    assert os.listdir(tmp_path) == []


@pytest.mark.anyio
async def test_one_store_serves_one_runtime_after_another() -> None:
    store = InMemoryStore()
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add({"role": "user", "content": "a"})
    async with turnkeeper.open_runtime(store) as runtime:
        assert [message.content for message in await runtime.memory("m").messages()] == ["a"]


def test_its_url_is_memory() -> None:
    assert isinstance(store_from_url("memory:"), InMemoryStore)

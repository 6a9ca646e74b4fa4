"""turnkeeper's stores looking like LangChain4j's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.langchain4j.own_stores import answer, call, result, system, texts, user
from turnkeeper import (
    InvalidArgumentError,
    InvalidMemoryIdError,
    InvalidMessageError,
    InvalidStoreURLError,
    SyncRuntime,
    open_runtime,
    open_sync_runtime,
)
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.langchain4j import ChatMemoryStore, MessageWindowChatMemory, StoreChatMemoryStore


@pytest.fixture
def runtime(store_url: str) -> Iterator[SyncRuntime]:
    with open_sync_runtime(store_url) as opened:
        yield opened


def test_it_is_a_chat_memory_store_with_twins(runtime: SyncRuntime) -> None:
    store = StoreChatMemoryStore(runtime=runtime)
    assert isinstance(store, ChatMemoryStore)
    for name in ("get_messages_async", "update_messages_async", "delete_messages_async"):
        assert inspect.iscoroutinefunction(getattr(store, name))


def test_get_update_delete(runtime: SyncRuntime) -> None:
    store = StoreChatMemoryStore(runtime=runtime)
    assert store.get_messages("m") == []
    said = [system("s1"), user("u1"), call("1"), result("1", "r1"), answer("a1")]
    store.update_messages("m", said)
    assert [message.to_dict() for message in store.get_messages("m")] == said
    store.update_messages("m", iter([user("u2")]))
    assert texts(store.get_messages("m")) == ["u2"]
    assert texts(runtime.memory("m").messages()) == ["u2"]
    store.update_messages("m", [])
    assert store.get_messages("m") == []
    store.delete_messages("m")
    store.delete_messages("m")
    assert store.get_messages("m") == []
    assert runtime.memory("m").stats().version.mid == 0, "memory and name are gone"


def test_what_it_is_given_comes_back_whatever_a_model_would_be_shown(runtime: SyncRuntime) -> None:
    store = StoreChatMemoryStore(runtime=runtime)
    said = [system("s1"), user("u1"), call("1"), user("u2"), system("s2"), {**user("u3"), "unknown": [None, "\ud800"]}]
    store.update_messages("m", said)
    assert [message.to_dict() for message in store.get_messages("m")] == said


@pytest.mark.anyio
async def test_the_twins_do_the_same_in_every_loop(store_url: str) -> None:
    with open_sync_runtime(store_url) as runtime:
        store = StoreChatMemoryStore(runtime=runtime)
        assert await store.get_messages_async("m") == []
        await store.update_messages_async("m", [user("u1")])
        assert texts(await store.get_messages_async("m")) == texts(store.get_messages("m")) == ["u1"]
        await store.update_messages_async("m", [])
        assert await store.get_messages_async("m") == []
        await store.update_messages_async("m", [user("u1")])
        await store.delete_messages_async("m")
        assert await store.get_messages_async("m") == []
    async with open_runtime("memory:") as own:
        store = StoreChatMemoryStore(runtime=own)
        await store.update_messages_async(("tenant", 7), [user("u1")])
        assert texts(await own.memory('tuple:["tenant",7]').messages()) == ["u1"]


@pytest.mark.parametrize("wrong", [None, "text", 3, {"role": "nobody"}])
def test_what_is_no_list_is_refused(runtime: SyncRuntime, wrong: Any) -> None:
    store = StoreChatMemoryStore(runtime=runtime)
    store.update_messages("m", [user("u1")])
    with pytest.raises(InvalidArgumentError, match="must be a list of messages"):
        store.update_messages("m", wrong)
    with pytest.raises(InvalidMessageError):
        store.update_messages("m", [user("u2"), wrong])
    assert texts(store.get_messages("m")) == ["u1"]


@pytest.mark.parametrize("memory_id", [None, "", True, 1.5])
def test_an_id_that_is_none_is_refused(runtime: SyncRuntime, memory_id: Any) -> None:
    store = StoreChatMemoryStore(runtime=runtime)
    for request in (
        store.get_messages,
        store.delete_messages,
        lambda given: store.update_messages(given, [user("u1")]),
    ):
        with pytest.raises(InvalidMemoryIdError):
            request(memory_id)


def test_the_callers_list_is_its_own(runtime: SyncRuntime) -> None:
    """FIELD D4."""
    store = StoreChatMemoryStore(runtime=runtime)
    given = [user("u1")]
    store.update_messages("m", given)
    given[0]["content"] = "changed"
    given.clear()
    store.get_messages("m").clear()
    assert texts(store.get_messages("m")) == ["u1"]


def test_namespaces_and_codecs(runtime: SyncRuntime) -> None:
    class Codec:
        def encode(self, memory_id: Any) -> str:
            return repr(memory_id)

        def decode(self, text: str) -> Any:
            return float(text)

    one = StoreChatMemoryStore(runtime=runtime, namespace="one", id_codec=Codec())
    one.update_messages(1.5, [user("u1")])
    MessageWindowChatMemory(5, id=1.5, chat_memory_store=one).add(user("u2"))
    assert texts(one.get_messages(1.5)) == ["u1", "u2"]
    assert StoreChatMemoryStore(runtime=runtime, namespace="two", id_codec=Codec()).get_messages(1.5) == []
    with pytest.raises(InvalidMemoryIdError, match="namespace"):
        StoreChatMemoryStore(runtime=runtime, namespace="\n")


def test_it_is_named_by_url_store_or_runtime(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    StoreChatMemoryStore(url).update_messages("m", [user("u1")])
    assert texts(StoreChatMemoryStore(url).get_messages("m")) == ["u1"]
    close_default_runtimes()
    with open_sync_runtime(url) as runtime:
        assert texts(runtime.memory("m").messages()) == ["u1"]
    StoreChatMemoryStore().update_messages("test_it_is_named", [user("u1")])
    assert texts(StoreChatMemoryStore("memory:").get_messages("test_it_is_named")) == ["u1"]
    StoreChatMemoryStore().delete_messages("test_it_is_named")
    with pytest.raises(InvalidStoreURLError):
        StoreChatMemoryStore("nosuch:")
    with open_sync_runtime("memory:") as runtime, pytest.raises(InvalidArgumentError, match="not both"):
        StoreChatMemoryStore("memory:", runtime=runtime)

"""`StoreHost`: a store whose actors live in the user's own loop, next to the connections that belong to it."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from functools import partial
from typing import Any

import anyio
import pytest

from compat.langchain4j.own_stores import OwnStore, TwinStore, texts, user
from compat.langchain4j.test_own_stores import memory_on
from turnkeeper import InvalidArgumentError, Message, RuntimeClosedError, RuntimeUsageError
from turnkeeper.compat.langchain4j import StoreHost

pytestmark = pytest.mark.anyio


class LoopBoundStore(TwinStore):
    """Works in the task tree in which its connection was opened, as drivers do."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = anyio.lowlevel.current_token()

    async def get_messages_async(self, memory_id: Hashable, /) -> list[Message] | None:
        assert anyio.lowlevel.current_token() == self.loop, "awaited in another loop"
        return await super().get_messages_async(memory_id)

    async def update_messages_async(self, memory_id: Hashable, messages: list[Message], /) -> None:
        assert anyio.lowlevel.current_token() == self.loop, "awaited in another loop"
        await super().update_messages_async(memory_id, messages)


async def test_the_twins_are_awaited_in_the_loop_that_hosts_the_store() -> None:
    store = LoopBoundStore()
    async with StoreHost(store):
        memory = memory_on(store, max_messages=200)
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(memory.add_async, user(str(number)))
        assert sorted(texts(await memory.messages_async()), key=int) == [str(number) for number in range(50)]
        assert not store.overlaps


async def test_other_threads_and_loops_are_served_by_it() -> None:
    store = LoopBoundStore()
    async with StoreHost(store):
        memory = memory_on(store)
        await memory.add_async(user("u1"))
        await anyio.to_thread.run_sync(memory.add, user("u2"))
        for backend in ("asyncio", "trio"):
            await anyio.to_thread.run_sync(partial(anyio.run, memory.add_async, user(backend), backend=backend))
        assert texts(await memory.messages_async()) == ["u1", "u2", "asyncio", "trio"]


async def test_a_blocking_call_in_that_loop_is_refused() -> None:
    store = TwinStore()
    async with StoreHost(store):
        memory = memory_on(store)
        with pytest.raises(RuntimeUsageError, match=r"await memory\.add_async"):
            memory.add(user("u1"))
        with pytest.raises(RuntimeUsageError, match=r"await memory\.messages_async"):
            memory.messages()


async def test_afterwards_the_store_waits_for_another_host() -> None:
    store = TwinStore()
    memory = memory_on(store)
    async with StoreHost(store):
        await memory.add_async(user("u1"))
    with pytest.raises(RuntimeClosedError):
        await memory.add_async(user("u2"))
    with pytest.raises(RuntimeClosedError):
        memory.add(user("u2"))
    async with StoreHost(store):
        assert texts(await memory.messages_async()) == ["u1"]


async def test_no_store_has_two_homes() -> None:
    used, hosted = TwinStore(), TwinStore()
    await memory_on(used).add_async(user("u1"))
    with pytest.raises(RuntimeUsageError, match="used without a host"):
        async with StoreHost(used):
            raise AssertionError("entered")
    async with StoreHost(hosted):
        with pytest.raises(RuntimeUsageError, match="has a host"):
            async with StoreHost(hosted):
                raise AssertionError("entered")
        await memory_on(hosted).add_async(user("u1"))
    await memory_on(used).add_async(user("u2"))
    assert texts(used.lists["m"]) == ["u1", "u2"]


async def test_it_is_left_by_the_task_that_entered() -> None:
    host: Any = StoreHost(TwinStore())
    await host.__aenter__()
    refused: list[BaseException] = []

    async def leave() -> None:
        with pytest.raises(RuntimeUsageError, match="another task") as refusal:
            await host.__aexit__(None, None, None)
        refused.append(refusal.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
    await host.__aexit__(None, None, None)
    assert refused


async def test_it_is_for_a_store_of_ones_own() -> None:
    with pytest.raises(InvalidArgumentError, match="ChatMemoryStore"):
        StoreHost("sqlite:///chats.db")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="belongs to its event loop"):
        pickle.dumps(StoreHost(OwnStore()))


async def test_a_blocking_store_may_be_hosted_as_well() -> None:
    store = OwnStore()
    async with StoreHost(store):
        memory = memory_on(store, offload_blocking_store=True)
        await memory.add_async(user("u1"))
        assert texts(await memory.messages_async()) == ["u1"]

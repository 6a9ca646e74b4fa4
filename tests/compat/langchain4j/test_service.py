"""The registry: one provider call for each id, however many ask, however slow or wrong the provider is."""

from __future__ import annotations

import copy
import gc
import logging
import threading
from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import Any

import anyio
import pytest

from compat.langchain4j.own_stores import texts, user
from compat.langchain4j.test_interface import Plain
from compat.langchain4j.test_own_stores import Background
from support.schedule import Gate, How, every_cancellation
from test_sync import in_threads
from turnkeeper import InvalidArgumentError, InvalidMemoryIdError, RuntimeUsageError
from turnkeeper.compat.langchain4j import (
    ChatMemory,
    ChatMemoryService,
    InMemoryChatMemoryStore,
    MessageWindowChatMemory,
)


class Provider:
    """Makes memories and counts; waits at a gate if there is one."""

    def __init__(self, store: InMemoryChatMemoryStore | None = None, gate: Gate | None = None) -> None:
        self.calls: Counter[Hashable] = Counter()
        self.store = store
        self.gate = gate
        self.errors: list[Exception] = []

    def __call__(self, memory_id: Hashable) -> ChatMemory:
        self.calls[memory_id] += 1
        if self.gate is not None:
            self.gate.stop_thread()
        if self.errors:
            raise self.errors.pop()
        return MessageWindowChatMemory(10, id=memory_id, chat_memory_store=self.store)


class AsyncProvider(Provider):
    async def __call__(self, memory_id: Hashable) -> ChatMemory:  # type: ignore[override]
        self.calls[memory_id] += 1
        if self.gate is not None:
            await self.gate.stop()
        await anyio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop()
        return MessageWindowChatMemory(10, id=memory_id, chat_memory_store=self.store)


# One call for each id


def test_threads_that_ask_at_once_get_one_memory_of_one_call() -> None:
    """FIELD C2: two memories are made for one id under load, and messages split."""
    with Gate() as gate:
        provider = Provider(gate=gate)
        service = ChatMemoryService(provider)
        found: list[ChatMemory] = []
        callers = [Background(lambda: found.append(service.get_or_create_chat_memory("m"))) for _ in range(16)]
        gate.arrival_in_thread(1)
        assert not found
        gate.open()
        assert [caller.join() for caller in callers] == [None] * 16
    assert provider.calls == {"m": 1}
    assert len(set(map(id, found))) == 1
    assert len(found) == 16


def test_a_slow_provider_holds_up_its_own_id_alone() -> None:
    with Gate() as gate:
        provider = Provider()
        service = ChatMemoryService(lambda memory_id: slow() if memory_id == "slow" else provider(memory_id))

        def slow() -> ChatMemory:
            gate.stop_thread()
            return Plain()

        waiting = Background(lambda: service.get_or_create_chat_memory("slow"))
        gate.arrival_in_thread(1)
        assert service.get_or_create_chat_memory("quick").id() == "quick"
        assert service.get_chat_memory("slow") is None
        assert service.evict_chat_memory("slow") is None
        assert service.get_chat_memory_ids() == ["quick"]
        gate.open()
        assert waiting.join() is None
    assert isinstance(service.get_chat_memory("slow"), Plain)


def test_a_provider_that_raises_lets_the_next_one_try() -> None:
    with Gate() as gate:
        provider = Provider(gate=gate)
        provider.errors = [KeyError("first"), KeyError("second")]
        service = ChatMemoryService(provider)
        callers = [Background(lambda: service.get_or_create_chat_memory("m")) for _ in range(5)]
        gate.open()
        errors = [caller.join() for caller in callers]
    assert sorted(type(error).__name__ for error in errors) == ["KeyError", "KeyError", *3 * ["NoneType"]]
    assert provider.calls == {"m": 3}
    assert service.get_chat_memory("m") is service.get_or_create_chat_memory("m")


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
async def test_tasks_that_ask_at_once_get_one_memory_of_one_call(kind: type[Provider]) -> None:
    """FIELD C2, for tasks."""
    with Gate() as gate:
        provider = kind(gate=gate if kind is AsyncProvider else None)
        service = ChatMemoryService(provider)
        found: list[ChatMemory] = []

        async def ask() -> None:
            found.append(await service.get_or_create_chat_memory_async("m"))

        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(ask)
            if kind is AsyncProvider:
                await gate.arrival(1)
                assert not found
            gate.open()
    assert provider.calls == {"m": 1}
    assert len(set(map(id, found))) == 1
    assert len(found) == 16


@pytest.mark.anyio
async def test_tasks_threads_and_other_loops_share_one_call() -> None:
    with Gate() as gate:
        provider = AsyncProvider(gate=gate)
        service = ChatMemoryService(provider)
        found: list[ChatMemory] = []

        async def ask() -> None:
            found.append(await service.get_or_create_chat_memory_async("m"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await gate.arrival(1)
            tasks.start_soon(ask)
            for backend in ("asyncio", "trio"):
                tasks.start_soon(anyio.to_thread.run_sync, partial(anyio.run, ask, backend=backend))
            blocking = Background(lambda: found.append(service.get_or_create_chat_memory("m")))
            gate.open()
        assert await anyio.to_thread.run_sync(blocking.join) is None
    assert provider.calls == {"m": 1}
    assert len(set(map(id, found))) == 1
    assert len(found) == 5


@pytest.mark.anyio
async def test_an_async_provider_that_raises_lets_the_next_one_try() -> None:
    provider = AsyncProvider()
    provider.errors = [KeyError("first")]
    service = ChatMemoryService(provider)
    results: list[str] = []

    async def ask() -> None:
        try:
            await service.get_or_create_chat_memory_async("m")
            results.append("memory")
        except KeyError:
            results.append("error")

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert Counter(results) == {"error": 1, "memory": 4}
    assert provider.calls == {"m": 2}


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["scope", "scope-late", "native", "native-late"])
async def test_a_caller_that_is_cancelled_leaves_the_next_one_to_try(how: How) -> None:
    provider = AsyncProvider()
    service = ChatMemoryService(provider)

    async def ask() -> ChatMemory:
        return await service.get_or_create_chat_memory_async("m")

    async for _ in every_cancellation(ask, how):
        memory = await service.get_or_create_chat_memory_async("m")
        assert service.get_chat_memory("m") is memory
        assert service.evict_chat_memory("m") is memory


def test_a_provider_that_asks_for_its_own_id_is_told_so() -> None:
    service: ChatMemoryService = ChatMemoryService(lambda memory_id: service.get_or_create_chat_memory(memory_id))
    with pytest.raises(RuntimeUsageError, match="further up"):
        service.get_or_create_chat_memory("m")

    def other(memory_id: Hashable) -> ChatMemory:
        return Plain() if memory_id == "base" else service.get_or_create_chat_memory("base")

    service = ChatMemoryService(other)
    assert service.get_or_create_chat_memory("m") is service.get_or_create_chat_memory("base")


@pytest.mark.anyio
async def test_what_would_wait_for_itself_is_told_so_in_tasks_as_well() -> None:
    async def recursive(memory_id: Hashable) -> ChatMemory:
        return await service.get_or_create_chat_memory_async(memory_id)

    service = ChatMemoryService(recursive)
    with pytest.raises(RuntimeUsageError, match="further up"):
        await service.get_or_create_chat_memory_async("m")

    with Gate() as gate:
        service = ChatMemoryService(AsyncProvider(gate=gate))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.get_or_create_chat_memory_async, "m")
            await gate.arrival(1)
            with pytest.raises(RuntimeUsageError, match="this very thread"):
                service.get_or_create_chat_memory("m")  # which would stop the loop that makes it
            gate.open()


def test_an_async_provider_needs_the_async_method() -> None:
    service = ChatMemoryService(AsyncProvider())
    with pytest.raises(RuntimeUsageError, match="get_or_create_chat_memory_async"):
        service.get_or_create_chat_memory("m")
    assert service.get_chat_memory("m") is None


@pytest.mark.parametrize("wrong", [None, "memory", object()])
def test_a_provider_has_to_return_a_memory(wrong: Any) -> None:
    service = ChatMemoryService(lambda _: wrong)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="not a ChatMemory"):
            service.get_or_create_chat_memory("m")
    assert service.get_chat_memory_ids() == []


# Looking, evicting, clearing


def test_each_id_has_its_memory() -> None:
    provider = Provider()
    service = ChatMemoryService(provider)
    one = service.get_or_create_chat_memory("a")
    assert service.get_or_create_chat_memory("a") is one
    assert service.get_chat_memory("a") is one
    assert service.get_or_create_chat_memory("b") is not one
    assert service.get_chat_memory("c") is None
    assert provider.calls == {"a": 1, "b": 1}
    assert service.get_chat_memory_ids() == ["a", "b"]
    assert [memory.id() for memory in service.get_chat_memories()] == ["a", "b"]


def test_ids_of_different_types_are_different() -> None:
    service = ChatMemoryService(lambda memory_id: MessageWindowChatMemory(10, id=memory_id))
    ids = [1, "1", True, 1.0, (1,), (True,), frozenset({1})]
    made = [service.get_or_create_chat_memory(memory_id) for memory_id in ids]
    assert len(set(map(id, made))) == len(ids)
    assert list(map(repr, service.get_chat_memory_ids())) == list(map(repr, ids))


@pytest.mark.parametrize("source", [Provider(), Plain()])
def test_none_is_no_id(source: Any) -> None:
    """FIELD C3, C13: no implicit shared id. H2: a null pointer in single-memory mode."""
    service = ChatMemoryService(source)
    for method in (service.get_or_create_chat_memory, service.get_chat_memory, service.evict_chat_memory):
        with pytest.raises(InvalidMemoryIdError, match="an id is required"):
            method(None)
        with pytest.raises(InvalidMemoryIdError, match="hashable"):
            method([])  # type: ignore[arg-type]

    async def ask() -> None:
        await service.get_or_create_chat_memory_async(None)

    with pytest.raises(InvalidMemoryIdError, match="an id is required"):
        anyio.run(ask)


def test_evicting_forgets_the_object_and_keeps_the_store() -> None:
    provider = Provider(InMemoryChatMemoryStore())
    service = ChatMemoryService(provider)
    memory = service.get_or_create_chat_memory("a")
    memory.add(user("u1"))
    assert service.evict_chat_memory("a") is memory
    assert service.evict_chat_memory("a") is None
    assert service.get_chat_memory("a") is None
    again = service.get_or_create_chat_memory("a")
    assert again is not memory
    assert texts(again.messages()) == ["u1"]
    memory.add(user("u2"))
    assert texts(again.messages()) == ["u1", "u2"], "the two are one conversation"


def test_clear_all_clears_and_forgets() -> None:
    provider = Provider(InMemoryChatMemoryStore())
    service = ChatMemoryService(provider)
    memories = [service.get_or_create_chat_memory(memory_id) for memory_id in "ab"]
    for memory in memories:
        memory.add(user("u1"))
    service.clear_all()
    assert service.get_chat_memory_ids() == []
    assert [memory.messages() for memory in memories] == [[], []]


def test_clear_all_that_fails_can_go_on() -> None:
    class Stubborn(Plain):
        willing = False

        def clear(self) -> None:
            if not self.willing:
                raise KeyError("not yet")
            super().clear()

    stubborn = Stubborn()
    service = ChatMemoryService(lambda memory_id: stubborn if memory_id == "b" else Plain())
    for memory_id in "abc":
        service.get_or_create_chat_memory(memory_id).add(user("u1"))
    with pytest.raises(KeyError):
        service.clear_all()
    assert service.get_chat_memory_ids() == ["b", "c"]
    stubborn.willing = True
    service.clear_all()
    assert service.get_chat_memory_ids() == []


def test_one_memory_for_every_id() -> None:
    """FIELD H2: asking such a service for a memory was a null pointer."""
    memory = Plain()
    service = ChatMemoryService(memory)
    assert service.get_or_create_chat_memory("x") is service.get_or_create_chat_memory(1) is memory
    assert service.get_chat_memory(ChatMemoryService.DEFAULT) is memory
    assert service.get_chat_memory("x") is None
    assert service.get_chat_memory_ids() == ["default"]
    assert service.get_chat_memories() == [memory]
    assert service.evict_chat_memory("x") is None
    assert service.evict_chat_memory("default") is None
    memory.add(user("u1"))
    service.clear_all()
    assert memory.messages() == []
    assert service.get_or_create_chat_memory("x") is memory


# The bound


def test_the_one_asked_for_longest_ago_goes() -> None:
    provider = Provider(InMemoryChatMemoryStore())
    service = ChatMemoryService(provider, max_memories=3)
    for memory_id in "abc":
        service.get_or_create_chat_memory(memory_id).add(user(memory_id))
    service.get_or_create_chat_memory("a")
    service.get_chat_memory("b")
    service.get_or_create_chat_memory("d")
    assert service.get_chat_memory_ids() == ["a", "b", "d"]
    gc.collect()
    again = service.get_or_create_chat_memory("c")
    assert texts(again.messages()) == ["c"], "its conversation went on"
    assert provider.calls["c"] == 2


def test_a_memory_without_a_store_ends_when_it_goes_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    service = ChatMemoryService(Provider(), max_memories=1)
    with caplog.at_level(logging.WARNING, "turnkeeper"):
        for memory_id in "abc":
            service.get_or_create_chat_memory(memory_id).add(user("secret"))
    gc.collect()
    assert service.get_or_create_chat_memory("a").messages() == []
    assert len(caplog.records) == 1
    assert "max_memories" in caplog.text
    assert "secret" not in caplog.text


def test_a_memory_that_somebody_holds_is_found_again() -> None:
    """FIELD C2: else its messages would split."""
    provider = Provider()
    service = ChatMemoryService(provider, max_memories=1)
    held = service.get_or_create_chat_memory("a")
    held.add(user("u1"))
    service.get_or_create_chat_memory("b")
    assert service.get_chat_memory_ids() == ["b"]
    assert service.get_chat_memory("a") is held
    assert service.get_or_create_chat_memory("a") is held
    assert service.get_chat_memory_ids() == ["a"]
    assert provider.calls == {"a": 1, "b": 1}
    service.get_or_create_chat_memory("b")
    assert service.evict_chat_memory("a") is held
    assert service.get_or_create_chat_memory("a") is not held


def test_those_let_go_are_cleared_as_well() -> None:
    service = ChatMemoryService(Provider(), max_memories=1)
    held = service.get_or_create_chat_memory("a")
    held.add(user("u1"))
    service.get_or_create_chat_memory("b")
    service.clear_all()
    assert held.messages() == []
    assert service.get_chat_memory("a") is None


def test_ram_stays_flat_with_ids_that_never_come_back() -> None:
    service = ChatMemoryService(lambda memory_id: Plain(), max_memories=10)
    for number in range(1_000):
        service.get_or_create_chat_memory(number)
    gc.collect()
    assert len(service.get_chat_memories()) == 10
    assert sum(isinstance(each, Plain) for each in gc.get_objects()) < 50


def test_no_bound_is_a_choice() -> None:
    service = ChatMemoryService(lambda memory_id: Plain(), max_memories=None)
    for number in range(20):
        service.get_or_create_chat_memory(number)
    assert len(service.get_chat_memories()) == 20


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10", True])
def test_a_bound_is_a_number_of_at_least_1(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_memories"):
        ChatMemoryService(Provider(), max_memories=wrong)


def test_it_is_made_of_a_provider_or_a_memory() -> None:
    for wrong in (None, "memory", 3):
        with pytest.raises(InvalidArgumentError, match="a service is for"):
            ChatMemoryService(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="belongs to its process"):
        copy.copy(ChatMemoryService(Plain()))
    assert repr(ChatMemoryService(Plain())) == "<ChatMemoryService memories=1>"


def test_many_threads_ids_and_evictions_never_split_a_conversation() -> None:
    """Whatever comes and goes: what is in the store is everything that was added."""
    provider = Provider(InMemoryChatMemoryStore())
    service = ChatMemoryService(
        lambda memory_id: MessageWindowChatMemory(2_000, id=memory_id, chat_memory_store=provider.store), max_memories=2
    )
    started = threading.Barrier(8)

    def work(number: int) -> None:
        started.wait()
        for turn in range(20):
            memory_id = (number + turn) % 5
            service.get_or_create_chat_memory(memory_id).add(user(f"{number}.{turn}"))
            if turn % 7 == 0:
                service.evict_chat_memory(memory_id)

    in_threads(8, work)
    shown = [text for memory_id in range(5) for text in texts(service.get_or_create_chat_memory(memory_id).messages())]
    assert Counter(shown) == {f"{number}.{turn}": 1 for number in range(8) for turn in range(20)}

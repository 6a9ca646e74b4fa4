"""The async twins: from every loop, cancelled at every point, and whatever happens to the other loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from compat.langchain4j.own_stores import OwnStore, TwinStore, texts, user
from compat.langchain4j.test_own_stores import Background, hosted, memory_on, wait_for_pending
from compat.langchain4j.ways import AWAITED, NATIVE, Way, on
from support.schedule import CANCELLATIONS, Gate, How, every_cancellation
from turnkeeper import (
    ConflictError,
    InvalidArgumentError,
    InvalidMessageError,
    NestedTurnError,
    OutcomeUnknownError,
    RuntimeClosedError,
    RuntimeUsageError,
    Unbounded,
    open_runtime,
    open_sync_runtime,
)
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.langchain4j import MessageWindowChatMemory, StoreChatMemoryStore, calling

pytestmark = pytest.mark.anyio


@on(*AWAITED)
async def test_each_method_has_a_twin(way: Way) -> None:
    memory = way.memory(3)
    await memory.add_async()
    await memory.add_async(None)
    await memory.add_async([])
    await memory.add_async(user("u1"))
    await memory.add_async(user("u2"), user("u3"))
    await memory.add_async([user("u4")])
    assert texts(await memory.messages_async()) == ["u2", "u3", "u4"]
    await memory.set_async([user("u5"), user("u6")])
    await memory.add_async(iter([user("u7")]))
    assert texts(memory.messages()) == texts(await memory.messages_async()) == ["u5", "u6", "u7"]
    nothings: list[tuple[Any, ...]] = [(), (None,), ([],)]
    for nothing in nothings:
        with pytest.raises(InvalidArgumentError, match="at least one message"):
            await memory.set_async(*nothing)
    with pytest.raises(InvalidMessageError):
        await memory.add_async([user("u8"), {"role": "nobody"}])
    fresh = await memory.messages_async()
    fresh.clear()
    assert texts(await memory.messages_async()) == ["u5", "u6", "u7"]
    await memory.clear_async()
    assert await memory.messages_async() == []


@on(*AWAITED)
async def test_an_error_comes_when_it_is_awaited_not_when_it_is_called(way: Way) -> None:
    memory = way.memory()
    promised = memory.add_async({"role": "nobody"})
    with pytest.raises(InvalidMessageError):
        await promised


@on("alone", *NATIVE)
async def test_versions_keys_and_windows_are_those_of_turnkeeper(way: Way) -> None:
    memory = way.memory(2, history="keep")
    for _ in range(2):
        await memory.add_async([user("u1"), user("u2"), user("u3")], idempotency_key="k")
    prompt = await memory.messages_async(window=Unbounded())
    assert texts(prompt) == ["u1", "u2", "u3"]
    await memory.set_async(user("u4"), if_version=prompt.version)
    with pytest.raises(ConflictError):
        await memory.set_async(user("u5"), if_version=prompt.version, idempotency_key="k2")


async def test_many_wait_without_a_thread_for_each() -> None:
    memory = MessageWindowChatMemory(2_000)
    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(memory.add_async, user(str(number)))
    assert sorted(texts(await memory.messages_async()), key=int) == [str(number) for number in range(200)]


@pytest.mark.parametrize("how", CANCELLATIONS)
async def test_a_cancelled_add_is_there_whole_or_not_at_all(how: How) -> None:
    memory = MessageWindowChatMemory(2_000)
    await memory.messages_async()  # the runtime is open
    batch = [user("a"), user("b")]
    seen = set()

    async def scenario() -> None:
        await memory.clear_async()
        await memory.add_async(batch)

    async for outcome in every_cancellation(scenario, how):
        shown = texts(await memory.messages_async())
        assert shown in ([], ["a", "b"])
        assert outcome.cancelled or shown == ["a", "b"]
        seen.add(len(shown))
        await memory.clear_async()
    assert 0 in seen


@pytest.mark.parametrize("how", CANCELLATIONS)
async def test_so_is_one_to_a_store_of_ones_own(how: How) -> None:
    store = TwinStore()
    memory = memory_on(store)

    async def scenario() -> None:
        await memory.add_async([user("a"), user("b")])

    async for outcome in every_cancellation(scenario, how):
        shown = texts(await memory.messages_async())
        assert shown in ([], ["a", "b"])
        assert outcome.cancelled or shown == ["a", "b"]
        await memory.clear_async()
    assert not store.overlaps


async def test_who_leaves_while_waiting_for_a_turn_has_changed_nothing() -> None:
    store = TwinStore()
    with hosted(store) as core, Gate() as gate:
        memory = memory_on(store)
        store.gates["m"] = gate
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(memory.add_async, user("first"))
            await gate.arrival(1)
            with anyio.CancelScope() as leaving:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(memory.add_async, user("left"))
                    await anyio.to_thread.run_sync(wait_for_pending, core, 2)
                    leaving.cancel()
            assert leaving.cancelled_caught
            await anyio.to_thread.run_sync(_wait_for_abandoned, core)
            gate.open()
        del store.gates["m"]
        assert texts(await memory.messages_async()) == ["first"]


def _wait_for_abandoned(core: Any) -> None:
    async def look() -> None:
        while core.stats().pending > 1:
            await anyio.lowlevel.checkpoint()

    core.portal.call(look)


async def test_who_leaves_later_has_changed_everything() -> None:
    store = TwinStore()
    with hosted(store), Gate() as gate:
        memory = memory_on(store)
        store.gates["m"] = gate
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(memory.add_async, [user("a"), user("b")])
                await gate.arrival(1)
                leaving.cancel()
        gate.open()
        del store.gates["m"]
        assert texts(await memory.messages_async()) == ["a", "b"]


async def test_in_the_runtimes_own_loop_the_twins_work_and_blocking_calls_are_refused() -> None:
    async with open_runtime("memory:") as runtime:
        memory = MessageWindowChatMemory(5, id="m", chat_memory_store=runtime)
        await memory.add_async(user("u1"))
        assert texts(await memory.messages_async()) == ["u1"]
        assert texts(await runtime.memory("m").messages()) == ["u1"]
        blocking: dict[str, Callable[[], object]] = {
            "add_async": lambda: memory.add(user("u2")),
            "set_async": lambda: memory.set(user("u2")),
            "messages_async": memory.messages,
            "clear_async": memory.clear,
        }
        for name, refused in blocking.items():
            with pytest.raises(RuntimeUsageError, match=f"await memory.{name}"):
                refused()
        store = StoreChatMemoryStore(runtime=runtime)
        with pytest.raises(RuntimeUsageError, match=r"await memory\.update_messages_async"):
            store.update_messages("m", [user("u2")])
        await anyio.to_thread.run_sync(memory.add, user("u3"))
        assert texts(await memory.messages_async()) == ["u1", "u3"]
    with pytest.raises(RuntimeClosedError):
        await memory.add_async(user("u4"))
    with pytest.raises(RuntimeClosedError):
        memory.add(user("u4"))


@on(*NATIVE)
async def test_inside_a_turn_of_the_memory_it_is_refused_instead_of_waiting_for_itself(way: Way) -> None:
    memory = way.memory()

    def in_a_thread() -> None:
        with memory.native.turn() as turn:
            turn.add(user("u1"))
            with pytest.raises(NestedTurnError):
                memory.add(user("u2"))
            with pytest.raises(NestedTurnError):
                anyio.run(memory.add_async, user("u2"))

    await anyio.to_thread.run_sync(in_a_thread)
    assert texts(await memory.messages_async()) == ["u1"]


# Whatever happens to the other loop


async def test_a_closed_runtime_says_so() -> None:
    with open_sync_runtime("memory:") as runtime:
        memory = MessageWindowChatMemory(5, id="m", chat_memory_store=runtime)
        await memory.add_async(user("u1"))
    for promised in (memory.add_async(user("u2")), memory.messages_async(), memory.clear_async()):
        with pytest.raises(RuntimeClosedError):
            await promised


async def test_after_the_default_runtimes_were_closed_it_goes_on() -> None:
    memory = MessageWindowChatMemory(5)
    await memory.add_async(user("u1"))
    await anyio.to_thread.run_sync(close_default_runtimes)
    await memory.add_async(user("u2"))
    assert texts(await memory.messages_async()) == ["u1", "u2"]


@contextmanager
def closing(store: OwnStore, **options: Any) -> Iterator[None]:
    """Close the store's runtime, in a thread, when the block is left."""
    host = hosted(store, **options)
    host.__enter__()
    closed: list[Background] = []
    try:
        yield
    finally:
        closed.append(Background(lambda: host.__exit__(None, None, None)))
        assert closed[0].join() is None


async def test_nobody_hangs_when_it_is_closed_with_requests_under_way() -> None:
    store = TwinStore()
    errors: list[BaseException] = []
    with Gate() as gate:
        memory = memory_on(store)
        store.gates["m"] = gate

        async def add(text: str) -> None:
            try:
                await memory.add_async(user(text))
            except Exception as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            with closing(store, close_timeout=0.05):
                tasks.start_soon(add, "u1")
                tasks.start_soon(add, "u2")
                await gate.arrival(1)
        assert [type(error) for error in errors] == [RuntimeClosedError, RuntimeClosedError]
    assert errors[0] is not errors[1]
    assert not store.lists


async def test_a_loop_that_is_gone_without_a_word_strands_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_LOOK_EVERY", 0.01)
    with open_sync_runtime("memory:") as runtime:
        line = await calling.line_to(runtime_for(runtime=runtime))
        lost: list[object] = []
        deaf = line._replace(post=lost.append)  # as when the loop ends between the post and its next pass
        monkeypatch.setattr(type(line.core), "closed", True)
        with pytest.raises(OutcomeUnknownError, match="whole or not at all"):
            await deaf.ask(anyio.lowlevel.checkpoint)
        monkeypatch.undo()
        assert len(lost) == 1


async def test_a_door_that_was_closed_from_outside_is_opened_again() -> None:
    with open_sync_runtime("memory:") as runtime:
        host = runtime_for(runtime=runtime)
        memory = MessageWindowChatMemory(5, id="m", chat_memory_store=runtime)
        await memory.add_async(user("u1"))
        line = await calling.line_to(host)
        line.door.closed = True
        assert await calling.line_to(host) is not line
        await memory.add_async(user("u2"))
        assert texts(await memory.messages_async()) == ["u1", "u2"]


async def test_a_call_whose_caller_left_on_its_way_is_not_made() -> None:
    made: list[str] = []

    async def function() -> None:
        made.append("call")

    call = calling.Call(function)
    call.leave()
    await call.run()
    await call.done.wait()
    assert not made
    with pytest.raises(OutcomeUnknownError):
        call.outcome()

"""What a summary replaces, what stays, and when it is abandoned."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from support.schedule import Gate
from turnkeeper import (
    ChatMemory,
    CompactionAbandonedError,
    CompactionError,
    ConflictError,
    InvalidArgumentError,
    Message,
    Receipt,
    SystemMessage,
    TurnInterruptedError,
    TurnWindow,
    UserMessage,
)
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore, unload
from windows.saying import Fields, answer, calls, result, spoken, system, user

pytestmark = pytest.mark.anyio


async def test_a_summary_takes_the_place_of_the_older_turns(memory: ChatMemory) -> None:
    await say(memory, system("s"), *turns(1, 3))
    model = Model()
    before = (await memory.messages()).version
    receipt = await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u1 a1 u2 a2", "")]
    assert isinstance(receipt, Receipt)
    assert receipt.count == 1
    view = await memory.messages()
    assert spoken(view) == "s S1 u3 a3"
    assert view.version == receipt.version > before


async def test_adds_and_reads_go_on_while_the_summariser_works(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory) as running:
        await say(memory, user("u4"), calls("1"), result("1", "r1"), answer("a4"))
        assert await line(memory) == "u1 a1 u2 a2 u3 a3 u4 call:1 r1 a4"
        await memory.add(turns(5, 5))
    assert running.returned
    assert running.model.calls == [("u1 a1 u2 a2", "")]
    assert await line(memory) == "S1 u3 a3 u4 call:1 r1 a4 u5 a5"


async def test_a_second_compaction_gets_the_first_summary(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2))
    model = Model()
    await memory.compact(model, keep=LAST_TURN)
    await say(memory, *turns(3, 4))
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u1 a1", ""), ("u2 a2 u3 a3", "S1")]
    assert await line(memory) == "S2 u4 a4"


async def test_the_first_summary_comes_from_the_store_too(runtime: turnkeeper.Runtime, memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2))
    model = Model()
    await memory.compact(model, keep=LAST_TURN)
    await say(memory, *turns(3, 4))
    assert unload(runtime, "m")
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls[1] == ("u2 a2 u3 a3", "S1")


async def test_without_older_turns_nobody_is_asked(memory: ChatMemory) -> None:
    model = Model()
    assert await memory.compact(model) is None
    await say(memory, *turns(1, 10))
    assert await memory.compact(model) is None
    assert await memory.compact(model, keep=TurnWindow(max_turns=10)) is None
    assert model.calls == []
    assert await memory.compact(model, keep=19) is not None
    assert model.calls == [("u1 a1", "")]


async def test_the_summariser_sees_synthetic_results_and_none_without_a_call(memory: ChatMemory) -> None:
    await say(memory, user("u1"), calls("1", "2"), result("2", "r2"), result("9", "r9"), *turns(2, 2))
    model = Model()
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u1 call:1,2 r2 ~1", "")]


SETS: list[Callable[[ChatMemory], Awaitable[object]]] = [
    lambda memory: memory.set(turns(1, 3)),
    lambda memory: memory.clear(),
    lambda memory: memory.delete(),
]


@pytest.mark.parametrize("change", SETS, ids=["set", "clear", "delete"])
async def test_it_is_abandoned_when_what_it_saw_was_replaced(
    change: Callable[[ChatMemory], Awaitable[object]], memory: ChatMemory
) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory) as running:
        await change(memory)
        await say(memory, *turns(4, 6))
        expected = await memory.messages()
    assert isinstance(running.error, CompactionAbandonedError)
    assert isinstance(running.error, ConflictError)
    assert "S1" not in str(running.error)
    view = await memory.messages()
    assert (view, view.version) == (expected, expected.version)
    assert await memory.compact(Model("again"), keep=LAST_TURN) is not None


async def half_a_turn(memory: ChatMemory, gate: Gate, *batches: list[Fields]) -> None:
    """Commit some of a turn, and stop in it until it is over."""
    with suppress(TurnInterruptedError):
        async with memory.turn(commit="each") as turn:
            for batch in batches:
                await turn.add(batch)
            await gate.stop()


async def test_it_is_abandoned_when_a_rollback_reaches_below_it(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2))
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(half_a_turn, memory, gate, turns(3, 3), turns(4, 4))
            await gate.arrival()
            async with compacting(memory) as running:
                assert running.model.calls == [("u1 a1 u2 a2 u3 a3", "")]
                async with memory.turn(on_busy="rollback") as second:
                    await second.add(turns(5, 5))
            gate.open()
    assert isinstance(running.error, CompactionAbandonedError)
    assert await line(memory) == "u1 a1 u2 a2 u5 a5"


async def test_a_rollback_above_it_changes_nothing_for_it(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(half_a_turn, memory, gate, turns(4, 4))
            await gate.arrival()
            async with compacting(memory, keep=TurnWindow(max_turns=2)) as running:
                assert running.model.calls == [("u1 a1 u2 a2", "")]
                async with memory.turn(on_busy="rollback") as second:
                    await second.add(turns(5, 5))
            gate.open()
    assert running.returned
    assert await line(memory) == "S1 u3 a3 u5 a5"


async def test_it_is_abandoned_when_a_late_result_comes_to_what_it_saw(memory: ChatMemory) -> None:
    await say(memory, user("u1"), calls("1"), *turns(2, 2))
    async with compacting(memory) as running:
        assert running.model.calls == [("u1 call:1 ~1", "")]
        await memory.add(result("1", "late"))
    assert isinstance(running.error, CompactionAbandonedError)
    assert await line(memory) == "u1 call:1 late u2 a2"
    model = Model()
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u1 call:1 late", "")]
    assert await line(memory) == "S1 u2 a2"


async def test_it_survives_that_the_memory_leaves_ram_meanwhile(
    runtime: turnkeeper.Runtime, memory: ChatMemory
) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory) as running:
        assert unload(runtime, "m")
        await memory.add(user("u4"))
        assert unload(runtime, "m")
    assert running.returned
    assert await line(memory) == "S1 u3 a3 u4"


async def test_a_memory_is_compacted_once_at_a_time(runtime: turnkeeper.Runtime, memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    other = runtime.memory("other")
    await say(other, *turns(1, 3))
    model = Model()
    async with compacting(memory) as running:
        with pytest.raises(CompactionError, match="under way"):
            await runtime.memory("m").compact(model, keep=LAST_TURN)
        assert model.calls == []
        assert await other.compact(model, keep=LAST_TURN) is not None
    assert running.returned
    await memory.add(turns(4, 4))
    assert await memory.compact(model, keep=LAST_TURN) is not None


async def test_the_originals_stay_in_the_log_of_the_store(runtime: turnkeeper.Runtime, memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2))
    before = (await memory.messages()).version
    await memory.compact(Model(), keep=LAST_TURN)
    store = runtime._core.store
    entries = store.entries(before.mid, after=0, limit=99)
    assert [(entry.op, len(json.loads(entry.payload)["messages"])) for entry in entries] == [
        *4 * [("add", 1)],
        ("compact", 1),
    ]
    texts = [message["content"] for entry in entries for message in json.loads(entry.payload)["messages"]]
    assert texts == ["u1", "a1", "u2", "a2", "S1"]


async def test_size_and_count_are_those_of_what_is_left(runtime: turnkeeper.Runtime, memory: ChatMemory) -> None:
    await say(memory, system("s"), *turns(1, 20))
    await memory.compact(Model(), keep=LAST_TURN)
    resident = await memory.stats()
    assert resident.message_count == 4
    unload(runtime, "m")
    reloaded = await memory.stats()
    assert (reloaded.message_count, reloaded.encoded_bytes) == (4, resident.encoded_bytes)
    assert runtime.stats().compactions == 1
    assert runtime.stats().compaction_failures == 0


# What a summariser may be, and return


def blocking(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
    return "sum"


async def asynchronous(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
    return "sum"


class Methods:
    def blocking(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        return blocking(messages, summary)

    async def asynchronous(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        return await asynchronous(messages, summary)


class Blocking:
    def __call__(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        return "sum"


class Asynchronous:
    async def __call__(self, messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        return "sum"


SUMMARISERS: dict[str, Any] = {
    "function": blocking,
    "async function": asynchronous,
    "method": Methods().blocking,
    "async method": Methods().asynchronous,
    "object": Blocking(),
    "async object": Asynchronous(),
    "partial": functools.partial(blocking),
    "partial of async": functools.partial(asynchronous),
    "lambda": lambda messages, summary: "sum",
    "lambda of async": lambda messages, summary: asynchronous(messages, summary),
}


@pytest.mark.parametrize("name", SUMMARISERS)
async def test_a_summariser_may_be_anything_that_can_be_called(name: str) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 2))
        await memory.compact(SUMMARISERS[name], keep=LAST_TURN)
        assert await line(memory) == "sum u2 a2"


RETURNED: dict[str, tuple[Any, str]] = {
    "text": ("sum", "sum"),
    "message": (UserMessage("sum"), "sum"),
    "mapping": ({"role": "assistant", "content": "sum"}, "sum"),
    "messages": ([user("q"), SystemMessage("sum")], "q sum"),
    "iterator": (map(user, ("q", "sum")), "q sum"),
    "exchange": ((user("q"), calls("1"), result("1", "r"), answer("sum")), "q call:1 r sum"),
}


@pytest.mark.parametrize("kind", RETURNED)
async def test_a_summary_may_be_a_text_a_message_or_several(kind: str, runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory(kind)
    reply, shown = RETURNED[kind]
    if kind == "iterator":
        reply = map(user, ("q", "sum"))  # a fresh one each time
    await say(memory, *turns(1, 2))
    receipt = await memory.compact(Model(reply), keep=LAST_TURN)
    assert receipt is not None
    assert receipt.count == len(shown.split())
    view = await memory.messages()
    assert spoken(view) == f"{shown} u2 a2"
    if kind == "text":
        assert view[0].role == "system"
    unload(runtime, kind)
    assert await memory.messages() == view


async def test_what_was_shown_may_be_given_back(memory: ChatMemory) -> None:
    """Nobody's messages change their id because a summariser picks some of what it was shown."""
    await say(memory, *turns(1, 4))
    before = await memory.messages()
    ids = [message.id for message in before]
    await memory.compact(lambda messages, _: messages[-2:], keep=LAST_TURN)
    assert await line(memory) == "u3 a3 u4 a4"
    assert [message.id for message in before] == ids


async def test_a_memory_may_be_compacted_in_the_step_that_makes_it() -> None:
    """Its row has no number yet when the summariser is told what to sum up."""
    store = FaultStore(InMemoryStore(), inline=False)
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        with store.stall("load") as stall:
            async with anyio.create_task_group() as tasks:

                async def add(said: list[Fields]) -> None:
                    await memory.add(said)

                async def compact() -> None:
                    assert await memory.compact(Model(), keep=LAST_TURN) is not None

                tasks.start_soon(add, turns(1, 1))
                await anyio.to_thread.run_sync(stall.entered.wait)
                tasks.start_soon(add, turns(2, 2))
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(compact)
                await anyio.wait_all_tasks_blocked()
                stall.release()
        assert await line(memory) == "S1 u2 a2"


@pytest.mark.parametrize("given", [None, "text", [user("u")]])
async def test_what_can_not_be_called_is_refused(given: Any, memory: ChatMemory) -> None:
    with pytest.raises(InvalidArgumentError):
        await memory.compact(given, keep=LAST_TURN)

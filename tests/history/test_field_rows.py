"""FIELD.md section 6, order, ids, persistence: each report as a test of the right behaviour.

G12 and G18 are also answered where LangChain4j's own stores are tried, in `compat/langchain4j/test_own_stores.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import ChatMemory, MessageWindow, Runtime, StoreUnavailableError, TurnWindow, open_runtime
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import FaultStore, check_prompt
from turns.tools import assistant, call, result, texts, unloaded, user

pytestmark = pytest.mark.anyio

MakeStore = Callable[..., Store]


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    def make(**options: Any) -> Store:
        return InMemoryStore(**options) if request.param == "memory" else SQLiteStore(tmp_path / "chats.db", **options)

    return make


async def test_p64_a_clock_that_runs_back_reverses_nothing(make_store: MakeStore) -> None:
    times = itertools.count(2_000_000_000, -60)
    async with open_runtime(make_store(clock=lambda: float(next(times)))) as runtime:
        memory = runtime.memory("m")
        for number in range(5):
            await memory.add(user(f"{number}"))
        await unloaded(runtime)
        assert await texts(memory) == ["0", "1", "2", "3", "4"]
        entries = (await memory.history()).entries
        assert [entry.messages[0].text for entry in entries] == ["0", "1", "2", "3", "4"]
        assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)


async def test_p65_the_newest_two_are_the_newest_two(memory: ChatMemory) -> None:
    for number in range(5):
        await memory.add(user(f"{number}"))
    page = await memory.history(limit=2, reverse=True)
    assert [entry.messages[0].text for entry in page.entries] == ["4", "3"]
    assert [message.text for message in await memory.messages(window=MessageWindow(2))] == ["3", "4"]


async def test_p66_memories_are_listed_in_the_documented_order(runtime: Runtime) -> None:
    for name in ("b", "c", "a"):
        await runtime.memory(name).add(user("1"))
    core = runtime._core
    listed = core.store.names(namespace=None, after=None, limit=9)
    assert [each.name.id for each in listed] == ["a", "b", "c"], "by id, in byte order"


async def test_p67_one_id_twice_in_one_batch_is_two_messages_also_after_a_clear(
    runtime: Runtime, memory: ChatMemory
) -> None:
    batch = [{**user("one"), "id": "1"}, {**user("two"), "id": "1"}]
    for _ in range(2):
        await memory.add(batch)
        assert (await memory.messages()).to_dicts() == batch
        await memory.edit("1", user("the latest is meant"))
        assert await texts(memory) == ["one", "the latest is meant"]
        await unloaded(runtime)
        assert await texts(memory) == ["one", "the latest is meant"]
        await memory.clear()


async def test_p68_a_loop_that_sends_again_adds_once(memory: ChatMemory) -> None:
    said = []
    for number in range(10):
        said.append(user(f"{number}"))
        for place, message in enumerate(said):  # all of it each time
            await memory.add(message, idempotency_key=f"message {place}")
    assert (await memory.messages()).to_dicts() == said
    entries = (await memory.history()).entries
    assert sum(len(entry.messages) for entry in entries) == 10, "what is stored grows with what was said"


async def test_p69_the_same_words_twice_are_two_messages(runtime: Runtime, memory: ChatMemory) -> None:
    for _ in range(2):
        await memory.add(user("yes"))
        await memory.add(assistant("sure?"))
    await unloaded(runtime)
    assert await texts(memory) == ["yes", "sure?", "yes", "sure?"]
    await memory.remove("1.0")
    assert await texts(memory) == ["sure?", "yes", "sure?"], "the one that was meant"


async def test_p70_a_compaction_neither_doubles_nor_drops_the_opening_message(
    runtime: Runtime, memory: ChatMemory
) -> None:
    opening = user("opening")
    await memory.add(opening, assistant("a"))
    await memory.add(user("2"), assistant("b"))
    before = await memory.messages()
    receipt = await memory.compact(lambda messages, summary: f"{len(messages)} summed up", keep=TurnWindow(max_turns=1))
    assert receipt is not None
    opening["content"] = "changed later"
    for _ in range(2):
        after = await memory.messages()
        assert [message.text for message in after] == ["2 summed up", "2", "b"]
        assert [message.id for message in after][1:] == [message.id for message in before][2:], "ids stay"
        assert await memory.messages(at=before.version) == before
        await unloaded(runtime)


async def test_p71_an_id_like_an_automatic_one_hides_nothing(runtime: Runtime, memory: ChatMemory) -> None:
    await memory.add({**user("own"), "id": "2.0"})
    await memory.add(user("automatic"))
    await memory.add({**user("1"), "id": "1"}, user("next"))
    await unloaded(runtime)
    assert await texts(memory) == ["own", "automatic", "1", "next"]
    assert (await memory.remove("2.0")).messages[0].text == "automatic", "the latest"
    assert (await memory.remove("2.0")).messages[0].text == "own"


async def test_g1_g4_many_entries_of_one_second_keep_their_order(make_store: MakeStore) -> None:
    async with open_runtime(make_store(clock=lambda: 2_000_000_000.0)) as runtime:
        memory = runtime.memory("m")
        for number in range(20):
            await memory.add(user(f"{number}"), call(f"{number}"), result(f"{number}", f"r{number}"))
        await unloaded(runtime)
        wanted = [text for number in range(20) for text in (f"{number}", None, f"r{number}")]
        assert await texts(memory) == wanted
        assert {entry.time for entry in (await memory.history()).entries} == {2_000_000_000.0}


async def test_g3_g9_a_batch_keeps_its_order_and_its_tool_messages(runtime: Runtime, memory: ChatMemory) -> None:
    batch = [user("1"), call("c"), result("c", "r"), assistant("a")]
    await memory.add(batch)
    await unloaded(runtime)
    assert (await memory.messages()).to_dicts() == batch
    check_prompt((await memory.messages()).to_dicts())


async def test_g6_saved_at_once_each_batch_stays_together(runtime: Runtime, memory: ChatMemory) -> None:
    async def save(number: int) -> None:
        await memory.add(user(f"{number}"), assistant(f"{number}"))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(save, number)
    await unloaded(runtime)
    found = await texts(memory)
    assert found[::2] == found[1::2]
    assert sorted(found[::2], key=int) == [f"{number}" for number in range(50)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_g7_a_replacement_that_fails_leaves_the_conversation(make_store: MakeStore, when: str) -> None:
    store = FaultStore(make_store())
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        if when == "before":
            store.fail_before()
            with pytest.raises(StoreUnavailableError):
                await memory.set(user("2"))
        else:
            store.fail_after()
            await memory.set(user("2"))
        await unloaded(runtime)
        assert await texts(memory) == (["1"] if when == "before" else ["2"])


async def test_g10_what_a_window_evicts_stays_and_is_not_written_again(make_store: MakeStore) -> None:
    async with open_runtime(make_store()) as runtime:
        memory = runtime.memory("m", window=MessageWindow(3, on_overflow="evict"))
        for number in range(100):
            await memory.add(user(f"{number}"))
        assert await texts(memory) == ["97", "98", "99"]
        page = await memory.history(limit=1000)
        assert [[message.text for message in entry.messages] for entry in page.entries] == [
            [f"{number}"] for number in range(100)
        ]


async def test_g11_what_is_replaced_is_not_appended(runtime: Runtime, memory: ChatMemory) -> None:
    said: list[dict[str, Any]] = []
    for number in range(3):
        said += [user(f"{number}"), assistant("a")]
        await memory.set(said)
        await unloaded(runtime)
    assert (await memory.messages()).to_dicts() == said


async def test_g12_a_turn_reads_the_store_at_most_once(make_store: MakeStore) -> None:
    store = FaultStore(make_store())
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("0"))
        await unloaded(runtime)
        loads = store.calls["load"]
        async with memory.turn() as turn:
            await turn.add(user("1"))
            await turn.messages()
            await turn.add(assistant("a"))
            await turn.messages()
        await memory.messages()
        assert store.calls["load"] == loads + 1


async def test_g13_what_is_streamed_is_stored_once_and_whole(runtime: Runtime, memory: ChatMemory) -> None:
    async def stream() -> AsyncIterator[str]:
        for chunk in ("It ", "is ", "42."):
            yield chunk

    async with memory.turn() as turn:
        await turn.add(user("1"))
        chunks = [chunk async for chunk in stream()]
        await turn.add(assistant("".join(chunks)))
    await unloaded(runtime)
    assert await texts(memory) == ["1", "It is 42."]
    assert len((await memory.history()).entries) == 1


async def test_g15_in_a_tool_loop_each_prompt_has_the_history_once(memory: ChatMemory) -> None:
    await memory.add(user("0"), assistant("a"))
    async with memory.turn() as turn:
        await turn.add(user("1"))
        for number in range(3):
            prompt = [message.text for message in await turn.messages()]
            assert prompt.count("0") == prompt.count("1") == 1
            await turn.add(call(f"{number}"))
            await turn.add(result(f"{number}"))
            check_prompt((await turn.messages()).to_dicts())
        await turn.add(assistant("b"))
    assert (await texts(memory)).count("0") == 1


async def test_g16_what_is_acknowledged_is_read(runtime: Runtime, memory: ChatMemory) -> None:
    for number in range(20):
        receipt = await memory.add(user(f"{number}"))
        if number % 3 == 0:
            await unloaded(runtime)
        shown = await memory.messages()
        assert (shown[-1].text, shown.version) == (f"{number}", receipt.version)
        newest = (await memory.history(limit=1, reverse=True)).entries[0]
        assert newest.version == receipt.version
        assert await memory.messages(at=receipt.version) == shown


async def test_g17_the_first_write_keeps_all_of_its_messages_also_after_a_delete(
    runtime: Runtime, memory: ChatMemory
) -> None:
    for _ in range(2):
        await memory.set(user("1"), assistant("a"))
        await unloaded(runtime)
        assert await texts(memory) == ["1", "a"]
        await memory.delete()


async def test_g18_a_window_that_shows_nothing_breaks_no_store(make_store: MakeStore) -> None:
    async with open_runtime(make_store()) as runtime:
        memory = runtime.memory("m", window=MessageWindow(2, on_overflow="evict"), history="window")
        await memory.add(user("1"))
        calls = {**call("1"), "tool_calls": [*call("1")["tool_calls"], *call("2")["tool_calls"]]}
        await memory.add(calls)
        await memory.add(result("1"))
        await memory.add(result("2"))
        assert await texts(memory) == []
        await memory.add(user("2"))
        await unloaded(runtime)
        assert await texts(memory) == ["2"]


async def test_g19_g20_what_a_provider_adds_and_tool_messages_come_back_as_they_were(
    runtime: Runtime, memory: ChatMemory
) -> None:
    thought = {"role": "assistant", "content": None, "thinking": {"text": "…", "signature": "EqQB/+=="}, "x": [1, None]}
    called = {**call("c"), "reasoning_details": [{"type": "encrypted", "data": "gAAA\u2028"}]}
    odd = result("c", '{"nested": "json", "quote": "\\"", "emoji": "🙂"}')
    batch = [user("1"), thought, called, odd]
    await memory.add(batch)
    await unloaded(runtime)
    assert (await memory.messages()).to_dicts() == batch
    await memory.edit("1.0", user("one"))
    fork = await memory.fork("f", history=True)
    assert (await fork.messages()).to_dicts() == [user("one"), *batch[1:]]


def test_each_row_of_the_section_has_a_test() -> None:
    rows = {f"p{number}" for number in range(64, 72)}
    rows |= {f"g{number}" for number in (1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20)}
    named = {word for name in globals() if name.startswith("test_") for word in name.split("_")}
    assert rows <= named

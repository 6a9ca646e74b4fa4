"""Any number of threads, tasks and loops at once: nothing is lost, doubled, torn or seen half."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from compat.langchain4j.own_stores import OwnStore, TwinStore, answer, call, result, texts, user
from compat.langchain4j.ways import ALL, AWAITED, NATIVE, OWN, Way, on
from conformance.translating import assert_valid
from support.schedule import Gate
from test_sync import in_threads
from turnkeeper import ConflictError, Unbounded
from turnkeeper.compat.langchain4j import MessageWindowChatMemory

LOOPS: list[tuple[str, dict[str, Any]]] = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]


def expect_all(shown: list[str], writers: int, each: int) -> None:
    """Each writer's messages are there, once, in its order."""
    by_writer: dict[str, list[int]] = {}
    for text in shown:
        writer, number = text.split(".")
        by_writer.setdefault(writer, []).append(int(number))
    assert by_writer == {str(writer): list(range(each)) for writer in range(writers)}


def memories(way: Way, count: int, max_messages: int) -> list[MessageWindowChatMemory]:
    """Return as many objects on one conversation as there can be."""
    if way.store is None:
        return [way.memory(max_messages)] * count
    return [way.memory(max_messages) for _ in range(count)]


def check_store(way: Way) -> None:
    if isinstance(way.store, OwnStore):
        assert not way.store.overlaps, "two calls for one id at once"


@on(*ALL)
def test_threads_lose_nothing(way: Way) -> None:
    """FIELD C1: LangChain4j keeps 1 400 of 1 600."""
    writers, each = (16, 100) if way.name in ("alone", "own, inline", "turnkeeper's, in memory") else (8, 20)
    shared = memories(way, writers, 2_000)

    def write(writer: int) -> None:
        for number in range(each):
            shared[writer].add(user(f"{writer}.{number}"))

    in_threads(writers, write)
    expect_all(texts(shared[0].messages()), writers, each)
    check_store(way)


@pytest.mark.anyio
@on(*AWAITED)
async def test_concurrent_add_async_on_one_id_keeps_all(way: Way) -> None:
    """LangChain4j's documentation: concurrent calls race, and "silently drop an update"."""
    writers, each = 16, 5
    shared = memories(way, writers, 2_000)

    async def write(writer: int) -> None:
        for number in range(each):
            await shared[writer].add_async([user(f"{writer}.{number}")])

    async with anyio.create_task_group() as tasks:
        for writer in range(writers):
            tasks.start_soon(write, writer)
    expect_all(texts(await shared[0].messages_async()), writers, each)
    check_store(way)


@on(*AWAITED)
def test_loops_of_all_kinds_and_threads_at_once(way: Way) -> None:
    each = 10
    shared = memories(way, 8, 2_000)

    async def write_async(writer: int) -> None:
        async def one(number: int) -> None:
            await shared[writer].add_async(user(f"{writer}.{number}"))

        for number in range(each):
            await one(number)

    def write(writer: int) -> None:
        if writer < 6:
            backend, options = LOOPS[writer % 3]
            anyio.run(write_async, writer, backend=backend, backend_options=options)
        else:
            for number in range(each):
                shared[writer].add(user(f"{writer}.{number}"))

    in_threads(8, write)
    expect_all(texts(shared[0].messages()), 8, each)
    check_store(way)


@on(*ALL)
def test_batches_are_never_torn(way: Way) -> None:
    shared = memories(way, 8, 2_000)
    seen: list[list[str]] = []

    def write(writer: int) -> None:
        for number in range(5):
            shared[writer].add([user(f"{writer}.{number}.{part}") for part in range(3)])
            seen.append(texts(shared[writer].messages()))

    in_threads(8, write)
    for shown in [*seen, texts(shared[0].messages())]:
        assert len(shown) % 3 == 0
        for start in range(0, len(shown), 3):
            batch = shown[start].rpartition(".")[0]
            assert shown[start : start + 3] == [f"{batch}.{part}" for part in range(3)]


SETS = [[user(f"{number}.{part}") for part in range(number + 1)] for number in range(4)]
"""Four states, of one to four messages."""
WHOLE = [[message["content"] for message in state] for state in SETS]


@on(*ALL)
def test_set_is_atomic_for_threads(way: Way) -> None:
    """Whoever reads meanwhile sees one state or another, never none and never half of one."""
    shared = memories(way, 8, 10)
    shared[0].set(SETS[0])
    seen: list[list[str]] = []
    done = threading.Event()

    def work(number: int) -> None:
        memory = shared[number]
        if number < 4:
            for _ in range(10):
                memory.set(SETS[number])
            done.set()
        else:
            while not done.is_set():
                seen.append(texts(memory.messages()))

    in_threads(8, work)
    assert seen
    assert [shown for shown in seen if shown not in WHOLE] == []
    check_store(way)


@pytest.mark.anyio
@on(*AWAITED)
async def test_set_is_atomic_for_tasks(way: Way) -> None:
    shared = memories(way, 8, 10)
    await shared[0].set_async(SETS[0])
    seen: list[list[str]] = []
    left = 4

    async def write(number: int) -> None:
        nonlocal left
        for _ in range(10):
            await shared[number].set_async(*SETS[number])
        left -= 1

    async def read(number: int) -> None:
        while left:
            seen.append(texts(await shared[number].messages_async()))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(write, number)
            tasks.start_soon(read, number + 4)
    assert seen
    assert [shown for shown in seen if shown not in WHOLE] == []
    check_store(way)


@on(*ALL)
def test_what_was_added_is_read_at_once(way: Way) -> None:
    """Read your writes, while others write."""
    shared = memories(way, 8, 2_000)

    def write(writer: int) -> None:
        for number in range(10):
            shared[writer].add(user(f"{writer}.{number}"))
            assert f"{writer}.{number}" in texts(shared[writer].messages())

    in_threads(8, write)


@on(*ALL)
def test_two_chats_with_tools_never_show_an_invalid_prompt(way: Way) -> None:
    """FIELD C1: two chats of one id interleave, and the provider refuses the memory."""
    shared = memories(way, 4, 40)

    def chat(number: int) -> None:
        memory = shared[number]
        for turn in range(5):
            name = f"{number}.{turn}"
            for message in (user(name), call(name), result(name, "r"), answer(name)):
                memory.add(message)
                assert_valid(memory.messages())

    in_threads(4, chat)
    assert len(shared[0].messages()) <= 40


@on("alone", *NATIVE)
def test_turns_keep_chats_apart(way: Way) -> None:
    """FIELD C1: serialise turns per id. The native handle has them."""
    memory = way.memory(2_000)

    def chat(number: int) -> None:
        for turn in range(3):
            name = f"{number}.{turn}"
            with memory.native.turn() as exclusive:
                for message in (user(name), call(name), result(name, "r"), answer(name)):
                    exclusive.add(message)

    in_threads(4, chat)
    shown = memory.messages()
    assert len(shown) == 4 * 3 * 4
    for start in range(0, len(shown), 4):
        assert [message.role for message in shown[start : start + 4]] == ["user", "assistant", "tool", "assistant"]
        assert shown[start].text == shown[start + 3].text


@on("own, offloaded")
def test_one_conversation_does_not_wait_for_another(way: Way) -> None:
    barrier = threading.Barrier(2, timeout=30)
    way.own.at_read = barrier.wait
    ids = _of_different_threads(way)
    in_threads(2, lambda number: way.memory(memory_id=ids[number]).add(user("u1")))
    assert way.own.peak == 2


def _of_different_threads(way: Way) -> list[int]:
    """Find two ids that are not served by the same one of the eight threads, which depends on their hashes."""
    found: dict[int, int] = {}
    memory_id = 0
    while len(found) < 2:
        way.own.threads.clear()
        at_read, way.own.at_read = way.own.at_read, lambda: None
        way.memory(memory_id=memory_id).messages()
        way.own.at_read = at_read
        found.setdefault(way.own.threads.pop(), memory_id)
        memory_id += 1
    return list(found.values())


@pytest.mark.anyio
async def test_one_awaited_conversation_does_not_wait_for_another() -> None:
    store = TwinStore()
    with Gate() as gate:
        store.gates = dict.fromkeys(range(20), gate)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                memory = MessageWindowChatMemory(10, id=number, chat_memory_store=store)
                tasks.start_soon(memory.add_async, user("u1"))
            await gate.arrival(20)
            gate.open()
    assert store.peak == 20
    assert not store.overlaps


@on(*OWN)
def test_many_memories_at_once(way: Way) -> None:
    """FIELD C2: also the first use of an id happens once."""

    def write(number: int) -> None:
        for memory_id in range(20):
            way.memory(50, memory_id).add(user(f"{number}.{memory_id}"))

    in_threads(8, write)
    for memory_id in range(20):
        shown = Counter(texts(way.memory(50, memory_id).messages()))
        assert shown == {f"{number}.{memory_id}": 1 for number in range(8)}
    check_store(way)


@on("alone", *NATIVE)
def test_a_rewrite_that_lost_the_race_is_refused(way: Way) -> None:
    """A counter kept by many through `if_version`: none of its steps is lost."""
    memory = way.memory(10)
    memory.set(user("0"))

    def count(_: int) -> None:
        for _ in range(10):
            while True:
                read = memory.messages()
                try:
                    memory.set(user(str(int(read[0].text) + 1)), if_version=read.version)
                    break
                except ConflictError:
                    continue

    in_threads(4, count)
    assert texts(memory.messages(window=Unbounded())) == ["40"]


@pytest.mark.anyio
async def test_a_blocking_call_in_a_task_holds_up_its_own_loop_only() -> None:
    """It works where a loop runs, and that of the memory is another one."""
    memory = MessageWindowChatMemory(10)
    await anyio.to_thread.run_sync(partial(memory.add, user("u1")))
    memory.add(user("u2"))
    await anyio.lowlevel.checkpoint()
    assert texts(memory.messages()) == ["u1", "u2"]

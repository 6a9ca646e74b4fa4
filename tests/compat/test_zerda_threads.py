"""Thread safety, which Zerda's document denies: nothing is lost, doubled or reordered, in threads and loops at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from support.schedule import How, every_cancellation
from turnkeeper import open_runtime
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.zerda import ConversationBufferMemory, ConversationBufferWindowMemory


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let go of the test's files."""
    yield
    close_default_runtimes()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def expect_16_times_100(memory: ConversationBufferMemory) -> None:
    by_writer: dict[int, list[int]] = {}
    for exchange in memory.chat_memory:
        writer, turn = exchange["input"]
        assert exchange["output"] == f"{writer}.{turn}"
        by_writer.setdefault(writer, []).append(turn)
    assert by_writer == {number: list(range(100)) for number in range(16)}
    stats = memory.get_memory_stats()
    assert stats["message_count"] == 1_600
    expected = sum(len(str(exchange["input"])) + len(exchange["output"]) for exchange in memory.chat_memory)
    assert stats["total_characters"] == expected


def test_16_threads_times_100_keep_all_1600_through_one_object(store_url: str) -> None:
    memory = ConversationBufferMemory(memory_id="one", store=store_url)
    memory.clear()

    def work(number: int) -> None:
        for turn in range(100):
            memory.save_context({"input": [number, turn]}, {"output": f"{number}.{turn}"})

    in_threads(16, work)
    expect_16_times_100(memory)
    memory.clear()


def test_16_threads_times_100_keep_all_1600_through_an_object_each(store_url: str) -> None:
    memories = [ConversationBufferMemory(memory_id="many", store=store_url) for _ in range(16)]
    memories[0].clear()

    def work(number: int) -> None:
        for turn in range(100):
            memories[number].save_context({"input": [number, turn]}, {"output": f"{number}.{turn}"})
            if turn % 20 == 0:
                memories[number].get_memory_stats()

    in_threads(16, work)
    for memory in memories:
        expect_16_times_100(memory)
    memories[0].clear()


@pytest.mark.anyio
async def test_tasks_of_this_loop_and_threads_share_one_memory() -> None:
    memory = ConversationBufferMemory()

    async def task(number: int) -> None:
        for turn in range(100):
            await memory.asave_context({"input": [number, turn]}, {"output": f"{number}.{turn}"})

    def thread(number: int) -> None:
        for turn in range(100):
            memory.save_context({"input": [number, turn]}, {"output": f"{number}.{turn}"})

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(task, number)
            group.start_soon(anyio.to_thread.run_sync, thread, number + 8)
    expect_16_times_100(memory)


def test_a_window_keeps_the_last_k_that_were_saved() -> None:
    """Also while threads overtake each other between the actor's answer and this object's knowing."""
    memory = ConversationBufferWindowMemory(16)

    def work(number: int) -> None:
        for turn in range(50):
            memory.save_context({"input": [number, turn]}, {"output": ""})
            assert len(memory.chat_memory) <= 16

    in_threads(8, work)
    last: dict[int, int] = {}
    for exchange in memory.chat_memory:
        writer, turn = exchange["input"]
        assert turn > last.get(writer, -1)
        last[writer] = turn
    read_natively = [message.text for message in memory.native.messages()][::2]
    assert [str(exchange["input"]) for exchange in memory.chat_memory] == read_natively
    stats = memory.get_memory_stats()
    assert (stats["message_count"], stats["total_characters"]) == (16, len("".join(read_natively)))


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["scope", "scope-late", "native", "native-late"])
async def test_a_cancelled_asave_context_has_saved_all_or_nothing(how: How) -> None:
    async with open_runtime("memory:") as runtime:
        memories: list[ConversationBufferMemory] = []

        async def scenario() -> None:
            memories.append(ConversationBufferMemory(runtime=runtime))
            await memories[-1].asave_context({"input": "a"}, {"output": "b"})

        async for outcome in every_cancellation(scenario, how):
            loaded: dict[str, Any] = await memories[-1].aload_memory_variables({})
            whole = "user: a\nassistant: b"
            assert loaded["history"] in ("", whole)
            assert outcome.cancelled or loaded["history"] == whole

"""Turns of the blocking facade: from threads, beside tasks, in plain scripts."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread

from support.schedule import Gate
from turnkeeper import (
    ChatMemory,
    NestedTurnError,
    Receipt,
    Runtime,
    RuntimeUsageError,
    SyncChatMemory,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnEndedError,
    TurnInterruptedError,
    open_runtime,
    open_sync_runtime,
)
from turns.tools import BOUND, Call, assistant, passes, pending, texts, user

THREADS, TURNS = 8, 20


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


async def in_a_thread(function: Callable[[], Any]) -> Any:
    with anyio.fail_after(BOUND):
        return await to_thread.run_sync(function)


def said(memory: SyncChatMemory) -> list[Any]:
    return [message["content"] for message in memory.messages().to_dicts()]


@pytest.mark.anyio
class TestFromAThread:
    async def test_it_is_what_the_async_one_is(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("before"))
        blocking = runtime.sync.memory("m")

        def work() -> Receipt | None:
            turn = blocking.turn(timeout=BOUND)
            assert turn.id == ""
            with pytest.raises(TurnEndedError):
                turn.add(user("early"))
            with turn:
                assert len(turn.id) == 32
                assert turn.add(user("1")) is None
                turn.add([assistant("2")])
                assert [message.text for message in turn.messages()] == ["before", "1", "2"]
                assert said(blocking) == ["before"]
                for write in (blocking.add, blocking.set):
                    with pytest.raises(NestedTurnError):
                        write(user("never"))
                for empty in (blocking.clear, blocking.delete):
                    with pytest.raises(NestedTurnError):
                        empty()
                with pytest.raises(NestedTurnError), blocking.turn(on_busy="interrupt"):
                    pytest.fail("inside twice")
            with pytest.raises(TurnEndedError):
                turn.messages()
            with pytest.raises(TurnEndedError), turn:
                pytest.fail("inside twice")
            blocking.add(user("outside"))
            return turn.receipt

        receipt = await in_a_thread(work)
        assert (receipt.version.n, receipt.count) == (2, 2)
        assert await texts(memory) == ["before", "1", "2", "outside"]

    async def test_an_error_leaves_no_trace_and_keeps_nobody_out(self, runtime: Runtime, memory: ChatMemory) -> None:
        def fail() -> None:
            with runtime.sync.memory("m").turn() as turn:
                turn.add(user("lost"))
                raise ZeroDivisionError

        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await in_a_thread(fail)
        with anyio.fail_after(BOUND):
            async with memory.turn() as turn:
                await turn.add(user("own"))
        assert await texts(memory) == ["own"]

    async def test_policies_and_keys(self, runtime: Runtime, memory: ChatMemory) -> None:
        blocking = runtime.sync.memory("m")

        def work() -> None:
            for on_busy in ("reject", "enqueue"):
                with pytest.raises(TurnBusyError), blocking.turn(on_busy=on_busy, timeout=0.02):
                    pytest.fail("inside")
            with blocking.turn(on_busy="rollback", idempotency_key="k") as turn:
                turn.add(user("new"))
            with pytest.raises(TurnAlreadyCommittedError) as caught, blocking.turn(idempotency_key="k"):
                pytest.fail("inside")
            assert caught.value.receipt == turn.receipt

        async with anyio.create_task_group() as group:
            with pytest.raises(TurnInterruptedError):
                async with memory.turn(commit="each") as turn:
                    await turn.add(user("lost"))
                    await Call(group, in_a_thread, work).result()
        assert await texts(memory) == ["new"]

    async def test_a_task_takes_the_place_of_a_thread(self, runtime: Runtime, memory: ChatMemory) -> None:
        with Gate() as gate:

            def hold() -> str:
                with pytest.raises(TurnInterruptedError) as caught, runtime.sync.memory("m").turn() as turn:
                    turn.add(user("lost"))
                    gate.stop_thread()
                    turn.add(user("late"))
                return caught.value.reason

            async with anyio.create_task_group() as group:
                holding = Call(group, in_a_thread, hold)
                await gate.arrival()
                async with memory.turn(on_busy="interrupt") as turn:
                    await turn.add(user("new"))
                gate.open()
                assert await holding.result() == "interrupt"
        assert await texts(memory) == ["new"]

    async def test_on_the_loops_own_thread_it_is_refused_with_the_async_name(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        with pytest.raises(RuntimeUsageError, match="async with"), runtime.sync.memory("m").turn():
            pytest.fail("inside")
        await memory.add(user("nobody is kept out"))

    async def test_a_turn_waits_for_a_threads_turn(self, runtime: Runtime, memory: ChatMemory) -> None:
        with Gate() as gate:

            def hold() -> None:
                with runtime.sync.memory("m").turn() as turn:
                    turn.add(user("q"))
                    gate.stop_thread()
                    turn.add(assistant("a"))

            async with anyio.create_task_group() as group:
                holding = Call(group, in_a_thread, hold)
                await gate.arrival()
                writing = Call(group, memory.add, user("waited"))
                await pending(runtime, 1)
                await passes()
                assert await texts(memory) == []
                gate.open()
                await holding.result()
                assert isinstance(await writing.result(), Receipt)
        assert await texts(memory) == ["q", "a", "waited"]


def take_turns(memory: SyncChatMemory, name: str, errors: list[BaseException]) -> None:
    try:
        for number in range(TURNS):
            with memory.turn() as turn:
                turn.add(user(f"{name} {number} q"))
                if number % 5 == 0:
                    assert turn.messages()[-1].text == f"{name} {number} q"
                turn.add(assistant(f"{name} {number} a"))
    except BaseException as error:
        errors.append(error)


def check_turns(stored: list[str], names: list[str]) -> None:
    assert len(stored) == 2 * TURNS * len(names)
    assert [text[:-1] for text in stored[::2]] == [text[:-1] for text in stored[1::2]], "no two interleave"
    for name in names:
        its = [text for text in stored if text.split()[0] == name]
        assert its == [f"{name} {number} {what}" for number in range(TURNS) for what in "qa"], "each in its order"


@pytest.mark.anyio
async def test_threads_beside_tasks_keep_their_order(runtime: Runtime, memory: ChatMemory) -> None:
    errors: list[BaseException] = []

    async def take(name: str) -> None:
        for number in range(TURNS):
            async with memory.turn() as turn:
                await turn.add(user(f"{name} {number} q"))
                await turn.add(assistant(f"{name} {number} a"))

    names = [*(f"thread-{number}" for number in range(4)), *(f"task-{number}" for number in range(4))]
    async with anyio.create_task_group() as group:
        for name in names[:4]:
            group.start_soon(to_thread.run_sync, take_turns, runtime.sync.memory("m"), name, errors)
        for name in names[4:]:
            group.start_soon(take, name)
    assert errors == []
    check_turns(await texts(memory), names)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_eight_threads_with_twenty_turns_keep_their_order(
    tmp_path: Any, backend: Literal["asyncio", "uvloop", "trio"], kind: str
) -> None:
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/chats.db"
    with open_sync_runtime(url, backend=backend) as runtime:
        memory = runtime.memory("m")
        errors: list[BaseException] = []
        names = [f"thread-{number}" for number in range(THREADS)]
        threads = [threading.Thread(target=take_turns, args=(memory, name, errors)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert errors == []
        check_turns(said(memory), names)
        assert runtime.stats().pending == 0

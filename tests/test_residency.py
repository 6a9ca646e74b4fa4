"""What is in RAM and what has a task, on virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import OutcomeUnknownError, RuntimeClosedError, open_runtime
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore, unload

virtual = pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
pytestmark = pytest.mark.anyio


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@virtual
async def test_an_idle_task_ends_after_its_linger_and_the_state_stays() -> None:
    async with open_runtime("memory:", linger=1.0, idle_timeout=300.0) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("a"))
        seen = await memory.messages()
        await anyio.sleep(0.9)
        assert (runtime.stats().running, runtime.stats().resident) == (1, 1)
        await anyio.sleep(1.2)
        assert (runtime.stats().running, runtime.stats().resident) == (0, 1)
        assert await memory.messages() is seen
        assert runtime.stats().running == 0  # a read of a quiescent memory starts no task
        await memory.add(user("b"))
        assert runtime.stats().running == 1
        assert [message.text for message in await memory.messages()] == ["a", "b"]


@virtual
async def test_requests_keep_a_task_alive() -> None:
    async with open_runtime("memory:", linger=1.0) as runtime:
        memory = runtime.memory("m")
        for turn in range(20):
            await memory.add(user(str(turn)))
            await anyio.sleep(0.9)
            assert runtime.stats().running == 1
        assert len(await memory.messages()) == 20


@virtual
async def test_an_idle_memory_leaves_ram_and_comes_back_as_it_was() -> None:
    async with open_runtime("memory:", linger=1.0, idle_timeout=60.0) as runtime:
        memory, busy = runtime.memory("m"), runtime.memory("busy")
        await memory.add(user("a"))
        seen = await memory.messages()
        for _ in range(8):
            await busy.messages()
            await anyio.sleep(10.0)
        stats = runtime.stats()
        assert (stats.resident, stats.unloads) == (1, 1)
        again = await memory.messages()
        assert again is not seen
        assert (again, again.version, again[0].id) == (seen, seen.version, seen[0].id)
        await anyio.sleep(600.0)
        assert (runtime.stats().resident, runtime.stats().resident_bytes) == (0, 0)


@virtual
async def test_without_an_idle_timeout_memories_stay() -> None:
    async with open_runtime("memory:", linger=1.0, idle_timeout=None, max_resident=None) as runtime:
        for number in range(100):
            await runtime.memory(str(number)).add(user("a"))
        await anyio.sleep(80_000.0)
        assert (runtime.stats().running, runtime.stats().resident) == (0, 100)


@virtual
async def test_an_idle_runtime_sleeps_without_a_timer() -> None:
    async with open_runtime("memory:", linger=1.0, idle_timeout=10.0) as runtime:
        await runtime.memory("m").messages()
        await anyio.sleep(30.0)
        assert runtime.stats().resident == 0
        # no sweep is due any more: with one, a year of virtual time would take a minute of real time
        await anyio.sleep(365 * 86_400.0)


@virtual
async def test_the_oldest_idle_memory_makes_room() -> None:
    async with open_runtime("memory:", max_resident=3) as runtime:
        for name in "abc":
            await runtime.memory(name).add(user(name))
        await runtime.memory("a").messages()  # b is the oldest now
        await runtime.memory("d").add(user("d"))
        assert (runtime.stats().resident, runtime.stats().unloads, runtime.stats().peak_resident) == (3, 1, 3)
        before = runtime.stats().reads
        await runtime.memory("a").messages()
        assert runtime.stats().reads == before
        await runtime.memory("b").messages()
        assert runtime.stats().reads == before + 1


@virtual
async def test_bytes_in_ram_are_bounded_and_counted() -> None:
    async with open_runtime("memory:", max_resident_bytes=10_000) as runtime:
        for number in range(20):
            await runtime.memory(str(number)).add(user("x" * 1_000))
            assert runtime.stats().resident_bytes <= 10_000
        held = runtime.stats()
        assert 8 <= held.resident <= 10
        for number in range(20):
            assert len(await runtime.memory(str(number)).messages()) == 1
        await runtime.memory("19").clear()
        await runtime.memory("18").delete()
        assert runtime.stats().resident_bytes <= 10_000


@virtual
@pytest.mark.parametrize("close_timeout", [0.1, 10.0])
async def test_closing_drains_what_is_pending_until_its_deadline(close_timeout: float) -> None:
    store = FaultStore(InMemoryStore())
    # a commit of unknown outcome: the store is asked four times, within three quarters of a second
    store.fail_after()
    store.fail_before(4, on="settle")
    outcomes: list[str] = []

    async def add() -> None:
        try:
            await runtime.memory("m").add(user("a"))
        except (OutcomeUnknownError, RuntimeClosedError) as error:
            outcomes.append(type(error).__name__)

    async with anyio.create_task_group() as group:
        async with open_runtime(store, close_timeout=close_timeout) as runtime:
            group.start_soon(add)
            await anyio.sleep(0.01)
            assert runtime.stats().pending == 1
            started = anyio.current_time()
        assert anyio.current_time() - started == pytest.approx(min(close_timeout, 0.74), abs=0.02)
    assert outcomes == ["OutcomeUnknownError"]
    assert (runtime.stats().pending, runtime.stats().failed_at_close) == (0, int(close_timeout < 0.74))


async def test_a_memory_with_pending_requests_is_never_unloaded() -> None:
    async with open_runtime("memory:", max_resident=1, mailbox_size=1) as runtime:

        async def sender(number: int) -> None:
            for turn in range(20):
                await runtime.memory(f"m{number % 5}").add(user(f"{number}.{turn}"))

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(sender, number)
        for memory in range(5):
            stored = [message.text for message in await runtime.memory(f"m{memory}").messages()]
            assert len(stored) == 200
            for number in range(memory, 50, 5):
                assert [text for text in stored if text.startswith(f"{number}.")] == [
                    f"{number}.{t}" for t in range(20)
                ]
        assert runtime.stats().resident <= 2


async def test_a_memory_is_not_unloaded_in_the_middle_of_a_load_that_nobody_waits_for() -> None:
    """Else its next request would start a second task beside the one that loads."""
    store = FaultStore(InMemoryStore(), inline=False)
    async with open_runtime(store) as runtime:
        with store.stall("load") as stall:
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.memory("m").messages)
                await anyio.to_thread.run_sync(stall.entered.wait)
                group.cancel_scope.cancel()
            assert runtime.stats().pending == 0
            assert not unload(runtime, "m")
        await runtime.memory("m").add(user("a"))
        assert [message.text for message in await runtime.memory("m").messages()] == ["a"]
        assert runtime.stats().running == 1


# asyncio's debug mode, which the other tests run in, makes a hundred thousand tasks ten times as slow
PLAIN_BACKENDS = [
    pytest.param(("asyncio", {}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]


@pytest.mark.slow
@pytest.mark.may_block_loop(10.0)  # the garbage collector goes through all that the in-memory store holds
@pytest.mark.parametrize("anyio_backend", PLAIN_BACKENDS)
async def test_100_000_conversations_pass_through_1_000_places() -> None:
    async with open_runtime("memory:", max_resident=1_000) as runtime:

        async def client(first: int) -> None:
            for number in range(first, 100_000, 50):
                await runtime.memory(f"conversation-{number}").add(user(str(number)), user(f"{number}!"))

        async with anyio.create_task_group() as group:
            for first in range(50):
                group.start_soon(client, first)
        stats = runtime.stats()
        assert stats.peak_resident <= 1_000 + 50
        assert stats.unloads >= 98_900
        for number in range(0, 100_000, 997):
            messages = await runtime.memory(f"conversation-{number}").messages()
            assert [message.text for message in messages] == [str(number), f"{number}!"]

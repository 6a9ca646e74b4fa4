"""What people who do this job report of stores on servers, as tests of the right behaviour; the rows are FIELD.md's.

The rows that hold for every store have their tests in `tests/test_field.py` and `tests/history/test_field_rows.py`.
Faults (P37, P44, P45, P49, G7) are in `test_cuts.py` and `test_restarts.py`, lost updates of several processes (P1 to
P4, P17, C5, P98) in `test_crowds.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from servers.faults import BOUND, LOOPS, in_thread, user
from servers.servers import Server
from support.proxy import Proxy
from turnkeeper import StoreError, open_runtime, open_sync_runtime
from turnkeeper.stores import store_from_url
from turnkeeper.testing import unload

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", LOOPS)]

CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    "provider_signature": "b3BhcXVl",
}
AWKWARD: list[dict[str, Any]] = [
    {"role": "system", "content": "\x00 at the beginning"},
    {"role": "user", "content": "a \x00 in the middle, \ud83d alone, \U0001f600 whole, \u202e turned, \r\n\t"},
    CALL,
    {"role": "tool", "tool_call_id": "c1", "content": '{"printed": "\\u0000"}', "extra": {"nested": [None, 1.5, True]}},
    {"role": "assistant", "content": [{"type": "text", "text": ""}, {"type": "unknown", "data": "\x00" * 3}]},
]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.upstream) as proxy:
        yield proxy


async def test_p75_p77_p78_g9_g19_g20_whatever_json_can_hold_comes_back_equal(server: Server, place: str) -> None:
    """NULs, lone surrogates, tool messages, signatures, unknown parts; also as id, key and metadata where allowed."""
    async with open_runtime(server.url(place)) as runtime:
        memory = runtime.memory("Ä\U0001f600 %_*?[]{}:'\"\\", "a:{b}\\")
        await memory.add(AWKWARD, idempotency_key="k'\"\\:{}%")
        await memory.set_metadata(title="\x00", data={"\x00": "\x00"})
        unload(runtime, memory.id, memory.namespace)
        assert (await memory.messages()).to_dicts() == AWKWARD
        assert (await memory.metadata()).data == {"\x00": "\x00"}


async def test_p79_a_large_message_is_stored_or_refused_and_harms_nobody(server: Server, place: str) -> None:
    async with open_runtime(server.url(place)) as runtime, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(runtime.memory(f"small {number}").add, user("small"))
        large = runtime.memory("large")
        try:
            await large.add(user("x" * 16_000_000))
            expected = 1
        except StoreError:
            expected = 0
        assert len(await large.messages()) == expected
    async with open_runtime(server.url(place)) as runtime:
        for number in range(5):
            assert len(await runtime.memory(f"small {number}").messages()) == 1


async def test_p7_p11_first_openings_of_a_new_place_at_once_all_succeed(server: Server, place: str) -> None:
    barrier = threading.Barrier(8)

    def first_add(number: int) -> None:
        barrier.wait()
        with open_sync_runtime(server.url(place)) as runtime:
            runtime.memory(f"m{number % 2}").add(user(str(number)))

    def all_at_once() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(first_add, range(8)))

    await in_thread(all_at_once)
    async with open_runtime(server.url(place)) as runtime:
        texts = [message.text for each in ("m0", "m1") for message in await runtime.memory(each).messages()]
    assert sorted(texts) == [str(number) for number in range(8)]


async def test_p86_p87_p94_connections_are_few_whatever_the_callers_and_go_with_the_runtime(
    server: Server, place: str, proxy: Proxy
) -> None:
    """Tasks and threads of any number share two or three; thirty runtimes one after another leave none behind."""
    async with open_runtime(server.url(place, proxy)) as runtime:
        memory = runtime.sync.memory("m")

        def from_threads() -> None:
            with ThreadPoolExecutor(16) as threads:
                list(threads.map(memory.add, [user(str(number)) for number in range(100)]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_thread, from_threads)
            for number in range(100):
                tasks.start_soon(runtime.memory(f"m{number % 7}").add, user(str(number)))
        assert len(await runtime.memory("m").messages()) == 100
        assert proxy.connections <= 4
    for _ in range(30):
        async with open_runtime(server.url(place, proxy)) as runtime:
            await runtime.memory("m").add(user("on"))
    assert await in_thread(proxy.left, BOUND)


async def test_p85_runtimes_of_several_loops_one_after_another_and_at_once(server: Server, place: str) -> None:
    """Nothing binds to a loop that is gone: each thread runs one of its own on the same data."""

    def one(number: int) -> None:
        async def main() -> None:
            async with open_runtime(server.url(place)) as runtime:
                await runtime.memory("m").add(user(str(number)))

        anyio.run(main, backend=("asyncio", "trio")[number % 2])

    def many() -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(one, range(8)))

    await in_thread(many)
    async with open_runtime(server.url(place)) as runtime:
        assert sorted(message.text for message in await runtime.memory("m").messages()) == list(map(str, range(8)))


async def test_h3_h4_a_store_that_stands_still_never_holds_up_the_loop(
    server: Server, place: str, proxy: Proxy
) -> None:
    """The loop's guard fails this test when the loop blocks for a second."""
    async with open_runtime(server.url(place, proxy)) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        proxy.hold()
        tasks.start_soon(memory.add, user("held up"))
        assert await in_thread(proxy.held.wait, BOUND)
        for _ in range(15):
            await anyio.sleep(0.1)
        proxy.flow()


async def test_p68_g10_an_add_sends_what_is_new_and_nothing_else(server: Server, place: str, proxy: Proxy) -> None:
    store = store_from_url(server.url(place, proxy))
    store.announces = False  # a notice comes when it likes, also while the next add is counted
    async with open_runtime(store, sweep_interval=3600) as runtime:
        memory = runtime.memory("m")
        costs = []
        for length in (1, 300):
            await memory.add(*[user("x" * 500)] * length)
            await memory.messages()
            proxy.count_anew()
            await memory.add(user("new"))
            costs.append(proxy.volume)
        assert costs[1] < costs[0] + 100


async def test_g12_an_add_is_one_round_trip_and_so_is_a_read(server: Server, place: str, proxy: Proxy) -> None:
    """Also a gathered read of many memories, where one or two groups travel before the rest have gathered."""
    store = store_from_url(server.url(place, proxy))
    store.announces = False  # a notice is a round trip of its own, beside the commit
    async with open_runtime(store, sweep_interval=3600) as runtime:
        memories = [runtime.memory(f"m{number}") for number in range(64)]
        for _ in range(6):  # the driver may prepare its statements after a few calls
            async with anyio.create_task_group() as tasks:
                for memory in memories:
                    tasks.start_soon(memory.add, user("x"))
            await memories[0].messages()
        for operate in (lambda: memories[0].add(user("x")), memories[0].messages):
            proxy.count_anew()
            await operate()
            assert proxy.transfers == 2
        proxy.count_anew()
        async with anyio.create_task_group() as tasks:
            for memory in memories:
                tasks.start_soon(memory.messages)
        assert proxy.transfers <= 8


async def test_g16_what_was_acknowledged_is_read_at_once_everywhere(server: Server, place: str) -> None:
    async with open_runtime(server.url(place)) as one, open_runtime(server.url(place)) as other:
        for number in range(20):
            writer, reader = (one, other) if number % 2 else (other, one)
            receipt = await writer.memory("m").add(user(str(number)))
            shown = await reader.memory("m").messages()
            assert (shown.version, len(shown)) == (receipt.version, number + 1)


async def test_p64_g1_g3_g4_g6_order_is_that_of_the_appends_whatever_the_clock_says(server: Server, place: str) -> None:
    """Within one instant and with a clock that goes back."""
    times = iter([5.0, 5.0, 4.0, 4.0, 3.0, 2.0, 1.0] + [1.0] * 1_000)
    lock = threading.Lock()

    def clock() -> float:
        with lock:
            return 1_700_000_000 + next(times, 1.0)

    async with open_runtime(server.store(place, clock=clock)) as runtime:
        memory = runtime.memory("m")
        for number in range(20):
            await memory.add(user(f"{number} a"), user(f"{number} b"))
        unload(runtime, "m")
        texts = [message.text for message in await memory.messages()]
        assert texts == [f"{number} {part}" for number in range(20) for part in "ab"]
        at = [entry.time for entry in (await memory.history(limit=100)).entries]
        assert at == sorted(at)

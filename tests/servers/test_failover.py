"""Another server takes over, and has less than this runtime saw acknowledged: said once, never silent, and then on."""

from __future__ import annotations

import anyio
import pytest

from servers.faults import BOUND, LOOPS, in_thread, texts_of, user
from servers.servers import Server
from turnkeeper import AcknowledgedDataLostError, ChatMemory, open_runtime

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", LOOPS)]


async def shown(memory: ChatMemory) -> list[str]:
    return [message.text for message in await memory.messages()]


@pytest.mark.parametrize("first", ["read", "write"])
async def test_to_an_earlier_state_it_is_said_once_and_the_memory_goes_on_from_there(
    server: Server, place: str, first: str
) -> None:
    async with open_runtime(server.url(place)) as runtime:
        memory, other = runtime.memory("m"), runtime.memory("other")
        for number in range(3):
            await memory.add(user(str(number)))
        await other.add(user("nothing of it is lost"))
        await in_thread(server.remember)
        with anyio.fail_after(BOUND):
            kept = (await memory.messages()).version
            lost = (await memory.add(user("lost"))).version
        await in_thread(server.fall_back)
        with anyio.fail_after(BOUND), pytest.raises(AcknowledgedDataLostError) as caught:
            await (memory.messages() if first == "read" else memory.add(user("refused")))
        error = caught.value
        assert (error.memory_id, error.known, error.found) == ("m", lost, kept)
        with anyio.fail_after(BOUND):
            assert await shown(memory) == ["0", "1", "2"]
            await memory.add(user("on"))
            assert await shown(memory) == ["0", "1", "2", "on"]
            assert await shown(other) == ["nothing of it is lost"]
        assert runtime.stats().acknowledged_lost == 1
    assert texts_of(server.url(place))["m"] == [["0"], ["1"], ["2"], ["on"]]


async def test_to_a_state_that_has_everything_nothing_is_said(server: Server, place: str) -> None:
    async with open_runtime(server.url(place)) as runtime:
        memory = runtime.memory("m")
        for number in range(3):
            await memory.add(user(str(number)))
        await in_thread(server.remember)
        await in_thread(server.fall_back)
        with anyio.fail_after(BOUND):
            assert await shown(memory) == ["0", "1", "2"]
            await memory.add(user("on"))
        assert runtime.stats().acknowledged_lost == 0


async def test_to_an_empty_server_it_is_said_and_the_runtime_needs_no_restart(server: Server, place: str) -> None:
    async with open_runtime(server.url(place)) as runtime:
        memory = runtime.memory("m")
        for number in range(3):
            await memory.add(user(str(number)))
        await in_thread(server.lose_everything)
        with anyio.fail_after(BOUND):
            said = 0
            while True:
                try:
                    await memory.add(user("on"))
                    break
                except AcknowledgedDataLostError:
                    said += 1
                    assert said == 1, "it is said more than once"
            assert await shown(memory) == ["on"]
        assert said == 1

"""The connection is cut at every boundary of every message of an operation, and in the middle of each.

Also between a commit and its answer. Whoever called gets an answer or an error that is true, everything acknowledged
is stored once, what had no answer once or not at all, and the next request works.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import anyio
import pytest

from servers.faults import BOUND, LOOPS, Points, at_every_point, texts_of, told, user
from servers.servers import Server
from support.proxy import Proxy
from turnkeeper import Runtime, open_runtime
from turnkeeper.stores import Store, store_from_url
from turnkeeper.testing import unload

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", LOOPS)]

Operation: TypeAlias = Callable[[Runtime, str], Awaitable[object]]


async def add(runtime: Runtime, text: str) -> object:
    """To a memory that is in RAM: one commit."""
    return await runtime.memory("m").add(user(text), user(f"{text} more"))


async def add_after_unloading(runtime: Runtime, text: str) -> object:
    """A load, then a commit."""
    unload(runtime, "m")
    return await add(runtime, text)


async def add_to_a_new_memory(runtime: Runtime, text: str) -> object:
    return await runtime.memory(f"new {text}").add(user(text), user(f"{text} more"))


async def add_with_a_key(runtime: Runtime, text: str) -> object:
    return await runtime.memory("m").add(user(text), user(f"{text} more"), idempotency_key=text)


async def run_a_turn(runtime: Runtime, text: str) -> object:
    """Taking a lease, then a commit that gives it back."""
    async with runtime.memory("m").turn() as turn:
        await turn.add(user(text))
        await turn.add(user(f"{text} more"))
    return turn.receipt


OPERATIONS: list[Operation] = [add, add_after_unloading, add_to_a_new_memory, add_with_a_key, run_a_turn]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.upstream) as proxy:
        yield proxy


def quiet(url: str) -> Store:
    """Return a store that tells nobody of changes: notices would travel whenever they like, and move the count."""
    store = store_from_url(url)
    store.announces = False
    return store


@pytest.fixture(params=[False, True], ids=["one connection", "all connections"])
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether all connections are cut, and the next one is refused."""
    everything: bool = request.param
    return everything


def check(points: Points, stored: dict[str, list[list[str]]]) -> None:
    """Hold what was told against what is stored; whatever else is there was written by nobody."""
    batches = [texts for log in stored.values() for texts in log]
    for name, said in [("uncut", "ok"), *points.told.items()]:
        times = batches.count([name, f"{name} more"])
        allowed = {"ok": (1,), "failed": (0,), "unknown": (0, 1)}[said]
        assert times in allowed, f"cut at {name!r}: the caller was told {said}, and it is stored {times} times"
        while [name, f"{name} more"] in batches:
            batches.remove([name, f"{name} more"])
    assert {text for texts in batches for text in texts} <= {"goes on"}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_caller_is_told_the_truth(
    server: Server, place: str, proxy: Proxy, operation: Operation, everything: bool
) -> None:
    async with open_runtime(quiet(server.url(place, proxy)), sweep_interval=3600) as runtime:
        await runtime.memory("m").add(user("goes on"))

        async def operate(text: str) -> None:
            await operation(runtime, text)

        points = await at_every_point(proxy, operate, everything=everything)
        with anyio.fail_after(BOUND):
            await runtime.memory("m").add(user("goes on"))
            assert (await runtime.memory("m").messages())[-1].text == "goes on"
        assert runtime.stats().pending == 0
    assert points.struck > 0.7 * len(points.told)
    # One cut is no reason to give up: the store reconnects and finds out.
    assert points.counts["ok"] == len(points.told), points.told
    check(points, texts_of(server.url(place)))


async def test_a_read_shows_what_is_there_or_fails(server: Server, place: str, proxy: Proxy, everything: bool) -> None:
    async with open_runtime(quiet(server.url(place, proxy)), sweep_interval=3600) as runtime:
        memory = runtime.memory("m")
        for number in range(3):
            await memory.add(user(str(number)))

        async def read(name: str) -> None:
            if name.startswith(("0", "2")):  # half of them load everything, half only check the head
                unload(runtime, "m")
            assert [message.text for message in await memory.messages()] == ["0", "1", "2"]

        points = await at_every_point(proxy, read, everything=everything)
        assert points.counts["ok"] == len(points.told), points.told


async def test_a_replacement_and_a_delete_happen_once_or_not_at_all(
    server: Server, place: str, proxy: Proxy, everything: bool
) -> None:
    async with open_runtime(quiet(server.url(place, proxy)), sweep_interval=3600) as runtime:
        memory = runtime.memory("m")

        async def replace(name: str) -> None:
            before = await memory.add(user("old"))
            said = await told(lambda: memory.set([user(name)], if_version=before.version))
            shown = [message.text for message in await memory.messages()]
            assert said == "ok"
            assert shown == [name]

        await at_every_point(proxy, replace, everything=everything)

        async def delete(name: str) -> None:
            await memory.add(user(name))
            assert await memory.delete()
            assert await memory.messages() == ()

        await at_every_point(proxy, delete, everything=everything)


@pytest.mark.slow
@pytest.mark.timeout_seconds(240)
async def test_opening_works_or_leaves_nothing_half(server: Server, place: str, proxy: Proxy, everything: bool) -> None:
    """The first opening of a new place makes everything there; later ones find it."""
    opened = 0

    async def open_and_add(name: str) -> None:
        nonlocal opened
        opened += 1
        async with open_runtime(quiet(server.url(f"{place}_{opened}", proxy))) as runtime:
            await runtime.memory("m").add(user(name))
            assert len(await runtime.memory("m").messages()) == 1

    points = await at_every_point(proxy, open_and_add, everything=everything)
    assert points.counts["ok"] >= 0.9 * len(points.told), points.told
    for number in range(1, opened + 1):
        async with open_runtime(server.url(f"{place}_{number}")) as runtime:
            await runtime.memory("m").add(user("goes on"))

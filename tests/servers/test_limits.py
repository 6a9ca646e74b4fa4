"""The server has no more connections, no more room, or takes no writes: said as it is, and over when it is over."""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Callable, Iterator

import anyio
import pytest

from servers.faults import BOUND, LOOPS, in_thread, texts_of, user
from servers.servers import Server
from support.proxy import Proxy
from turnkeeper import Runtime, StoreUnavailableError, open_runtime

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", LOOPS)]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.upstream) as proxy:
        yield proxy


async def refused(operate: Callable[[], object]) -> StoreUnavailableError:
    """Return the error that a caller gets, in bounds; it holds no content and no text of the driver's."""
    with anyio.fail_after(BOUND), pytest.raises(StoreUnavailableError) as caught:
        await operate()  # type: ignore[misc]
    assert caught.value.__cause__ is None
    assert "content" not in str(caught.value)
    return caught.value


class TestConnections:
    async def test_a_running_runtime_needs_no_new_ones(self, server: Server, place: str) -> None:
        async with open_runtime(server.url(place)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("content"))
            await memory.messages()
            await in_thread(server.use_up_connections)
            try:
                for _ in range(5):
                    await memory.add(user("content"))
                    await memory.messages()
            finally:
                await in_thread(server.free_connections)

    async def test_used_up_at_opening_is_said(self, server: Server, place: str) -> None:
        async with open_runtime(server.url(place)):
            pass
        await in_thread(server.use_up_connections)
        try:
            error = await refused(functools.partial(open_and_add, server.url(place)))
        finally:
            await in_thread(server.free_connections)
        assert "connections" in str(error) or "clients" in str(error)
        await open_and_add(server.url(place))

    async def test_used_up_when_one_was_lost_is_said_and_over_when_it_is_over(
        self, server: Server, place: str, proxy: Proxy
    ) -> None:
        async with open_runtime(server.url(place, proxy)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("content"))
            # Those of the proxy take up the places that are left: so cut first, and let nobody in until then.
            proxy.refuse()
            proxy.cut()
            await in_thread(server.use_up_connections)
            proxy.admit()
            try:
                await refused(memory.messages)
            finally:
                await in_thread(server.free_connections)
            with anyio.fail_after(BOUND):
                await memory.add(user("content"))
                assert len(await memory.messages()) == 2


async def open_and_add(url: str) -> None:
    async with open_runtime(url) as runtime:
        await runtime.memory("m").add(user("content"))


class TestNoWrites:
    async def test_read_only_is_said_reads_go_on_and_so_do_writes_when_it_is_over(
        self, server: Server, place: str
    ) -> None:
        """A replica that was a primary, or a database that an administrator has closed for writing."""
        async with open_runtime(server.url(place)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("content"))
            await in_thread(server.make_read_only)
            try:
                error = await refused(functools.partial(memory.add, user("refused")))
                assert "read-only" in str(error) or "replica" in str(error)
                assert [message.text for message in await memory.messages()] == ["content"]
            finally:
                await in_thread(server.make_writable)
            with anyio.fail_after(BOUND):
                await memory.add(user("after"))
        assert texts_of(server.url(place)) == {"m": [["content"], ["after"]]}

    async def test_full_is_said_reads_go_on_and_so_do_writes_when_there_is_room(
        self, server: Server, place: str
    ) -> None:
        async with open_runtime(server.url(place)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("content"))
            await in_thread(server.fill_up)
            try:
                written, error = await fill(runtime)
                assert any(word in str(error) for word in ("full", "memory", "space"))
                assert [message.text for message in await memory.messages()] == ["content"]
            finally:
                await in_thread(server.make_room)
            with anyio.fail_after(BOUND):
                await memory.add(user("after"))
        stored = texts_of(server.url(place))
        assert stored["m"] == [["content"], ["after"]]
        assert [len(text) for (text,) in stored.get("large", [])] == [LARGE] * written


LARGE = 200_000


async def fill(runtime: Runtime) -> tuple[int, StoreUnavailableError]:
    """Write until it is full; return how many were acknowledged, and the error."""
    for written in range(1_000):
        try:
            with anyio.fail_after(BOUND):
                await runtime.memory("large").add(user(secrets.token_hex(LARGE // 2)))
        except StoreUnavailableError as error:
            return written, error
    raise AssertionError("it is never full")


async def test_no_fault_puts_a_password_into_a_log(
    server: Server, place: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = server.url(place, proxy, password="a-secret-word")
    async with open_runtime(url) as runtime:
        memory = runtime.memory("m")
        for transfer in range(4):
            proxy.cut_at(transfer, "in the middle")
            await memory.add(user("content"))
            await memory.messages()
        proxy.refuse()
        proxy.cut()
        error = await refused(memory.messages)
        proxy.admit()
        assert "a-secret-word" not in f"{error} {error!r} {runtime!r}"
    assert "a-secret-word" not in caplog.text
    assert "content" not in caplog.text.replace("no content", "")

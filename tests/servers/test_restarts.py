"""The server goes away in the middle of a load, and comes back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator

import anyio
import pytest

from servers.faults import BOUND, LOOPS, in_thread, texts_of, told, user
from servers.loads import Load
from servers.servers import Server
from support.proxy import Proxy
from turnkeeper import OutcomeUnknownError, StoreUnavailableError, open_runtime

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", LOOPS)]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.upstream) as proxy:
        yield proxy


class TestARestart:
    @pytest.mark.parametrize("way", ["stop", "kill"])
    async def test_nothing_acknowledged_is_lost_and_all_go_on(self, server: Server, place: str, way: str) -> None:
        """Twice, as the second one meets connections that were made anew."""

        async def restart() -> None:
            for _ in range(2):
                await in_thread(getattr(server, way))
                await in_thread(server.start)

        async with open_runtime(server.url(place)) as runtime:
            load = Load(runtime)
            with anyio.fail_after(2 * BOUND):
                await load.during(restart)
            assert runtime.stats().pending == 0
        assert load.judge(server.url(place)) > 0
        assert load.told["ok"] > 150

    async def test_the_first_request_after_a_restart_in_a_quiet_moment_is_served(
        self, server: Server, place: str
    ) -> None:
        """Dead connections are found when they are used, and that is no reason to fail anybody."""
        async with open_runtime(server.url(place)) as runtime:
            memory = runtime.memory("m")
            for number in range(3):
                await memory.add(user(str(number)))
                await in_thread(server.stop)
                await in_thread(server.start)
                with anyio.fail_after(BOUND):
                    assert len(await memory.messages()) == number + 1
                await in_thread(server.stop)
                await in_thread(server.start)


class TestAway:
    async def test_while_it_is_away_callers_are_told_in_bounds_and_nothing_needs_a_restart(
        self, server: Server, place: str
    ) -> None:
        async with open_runtime(server.url(place), commit_timeout=3, load_timeout=3) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            await in_thread(server.stop)
            try:
                for operate in (functools.partial(memory.add, user("meanwhile")), memory.messages):
                    with anyio.fail_after(BOUND), pytest.raises((StoreUnavailableError, OutcomeUnknownError)) as caught:
                        await operate()
                    assert "meanwhile" not in str(caught.value)
            finally:
                await in_thread(server.start)
            with anyio.fail_after(BOUND):
                await memory.add(user("after"))
                texts = [message.text for message in await memory.messages()]
            assert [text for text in texts if text != "meanwhile"] == ["before", "after"]
            assert texts.count("meanwhile") <= 1

    async def test_a_server_that_is_down_at_opening_is_said_in_bounds(self, server: Server, place: str) -> None:
        await in_thread(server.stop)
        try:
            with anyio.fail_after(BOUND), pytest.raises(StoreUnavailableError) as caught:
                async with open_runtime(server.url(place)):
                    pass
            assert "secret" not in str(caught.value)
        finally:
            await in_thread(server.start)
        async with open_runtime(server.url(place)) as runtime:
            await runtime.memory("m").add(user("now"))


class TestTheNetwork:
    async def test_cut_again_and_again_in_a_load(self, server: Server, place: str, proxy: Proxy) -> None:
        async def cut() -> None:
            for transfer in range(0, 60, 3):
                proxy.cut_at(transfer, ("before", "in the middle", "after")[transfer % 9 // 3])
                assert await in_thread(proxy.struck.wait, BOUND)

        async with open_runtime(server.url(place, proxy)) as runtime:
            load = Load(runtime)
            with anyio.fail_after(2 * BOUND):
                await load.during(cut)
        load.judge(server.url(place))
        assert load.told["ok"] > 150

    async def test_gone_for_a_while_in_a_load(self, server: Server, place: str, proxy: Proxy) -> None:
        async def vanish() -> None:
            proxy.refuse()
            proxy.cut()
            assert await in_thread(proxy.refused.wait, BOUND)
            proxy.admit()

        async with open_runtime(server.url(place, proxy)) as runtime:
            load = Load(runtime)
            with anyio.fail_after(2 * BOUND):
                await load.during(vanish)
        load.judge(server.url(place))
        assert load.told["ok"] > 150

    async def test_a_slow_network_loses_and_reorders_nothing(self, server: Server, place: str, proxy: Proxy) -> None:
        async def slow() -> None:
            proxy.slow_down(0.03)

        async with open_runtime(server.url(place, proxy)) as runtime:
            load = Load(runtime)
            with anyio.fail_after(2 * BOUND):
                await load.during(slow)
            proxy.slow_down(0)
        load.judge(server.url(place))
        assert set(load.told) == {"ok"}

    @pytest.mark.parametrize("way", ["the network", "the server"])
    async def test_what_stands_still_is_told_in_bounds_and_goes_on_when_it_goes_on(
        self, server: Server, place: str, proxy: Proxy, way: str
    ) -> None:
        """Connections stay open and nothing comes: a route that is gone, a machine in a long pause."""
        freeze, thaw = (proxy.hold, proxy.flow) if way == "the network" else (server.freeze, server.thaw)
        async with open_runtime(server.url(place, proxy), commit_timeout=1, load_timeout=1) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            freeze()
            try:
                with anyio.fail_after(BOUND), pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                    await memory.add(user("meanwhile"))
                with anyio.fail_after(BOUND), pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                    await memory.messages()
            finally:
                thaw()
            await eventually(functools.partial(memory.add, user("after")))
            texts = [message.text for message in await memory.messages()]
            assert [text for text in texts if text != "meanwhile"] == ["before", "after"]
            assert texts.count("meanwhile") <= 1

    async def test_a_request_that_was_held_back_does_not_land_behind_what_its_caller_was_told(
        self, server: Server, place: str, proxy: Proxy
    ) -> None:
        """Old connections hang and new ones work; then what hung comes through all the same."""
        async with open_runtime(server.url(place, proxy), commit_timeout=3) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            proxy.hold(present=True)
            said = await told(functools.partial(memory.add, user("held back")))
            proxy.flow()
            await eventually(functools.partial(memory.add, user("after")))
        assert await in_thread(proxy.left, BOUND), "a connection of the store's is left"
        log = texts_of(server.url(place))["m"]
        assert [texts for texts in log if texts != ["held back"]] == [["before"], ["after"]]
        assert log.count(["held back"]) in {"ok": (1,), "failed": (0,), "unknown": (0, 1)}[said]

    async def test_a_runtime_closes_in_bounds_while_the_server_stands_still(
        self, server: Server, place: str, proxy: Proxy
    ) -> None:
        closed = threading.Event()
        try:
            with anyio.fail_after(BOUND):
                async with open_runtime(server.url(place, proxy), close_timeout=0.5) as runtime:
                    await runtime.memory("m").add(user("before"))
                    proxy.hold()
            closed.set()
        finally:
            proxy.flow()
        assert closed.is_set()


async def eventually(operate: Callable[[], object]) -> None:
    """Do it again until it works: a call that was stuck may have to end first."""
    with anyio.fail_after(BOUND):
        while True:
            try:
                await operate()  # type: ignore[misc]
                return
            except (StoreUnavailableError, OutcomeUnknownError):
                await anyio.sleep(0.05)

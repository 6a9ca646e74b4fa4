"""Notices: what another process commits is seen at once, by a thread that is there only while somebody watches."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import anyio
import pytest

from turnkeeper import TurnInterruptedError, open_runtime
from turns.tools import Call, until
from watching.announcing import AnnouncingStore, Hub
from watching.tools import BOUND, add, following, notices

pytestmark = pytest.mark.anyio

NEVER = 3600.0  # seconds between looks: what is seen in this test was told


def threads(name: str) -> int:
    return sum(thread.name == f"turnkeeper {name}" for thread in threading.enumerate())


@pytest.fixture
def hub() -> Hub:
    return Hub()


async def test_a_watcher_sees_at_once_what_another_runtime_commits(tmp_path: Path, hub: Hub) -> None:
    path = tmp_path / "chats.db"
    async with (
        open_runtime(AnnouncingStore(path, hub), watch_interval=NEVER) as here,
        open_runtime(AnnouncingStore(path, hub)) as there,
        here.memory("m").watch() as events,
        here.watch() as feed,
    ):
        for number in range(3):
            await add(there.memory("m"), str(number))
            assert await following(events, 1) == [str(number)]
            assert [(it.id, it.version.n) for it in await notices(feed, 1)] == [("m", number + 1)]
        await there.memory("m").delete()
        assert await following(events, 1) == ["reset 0.0"]


async def test_without_watchers_nobody_listens_and_the_thread_ends(tmp_path: Path, hub: Hub) -> None:
    path, before = tmp_path / "chats.db", threads("listen")
    async with open_runtime(AnnouncingStore(path, hub), watch_interval=NEVER) as here:
        await add(here.memory("m"), "1")
        assert hub.listened == 0
        async with here.memory("m").watch():
            await until(lambda: hub.listening == 1)
            assert threads("listen") == before + 1
        await until(lambda: threads("listen") == before)
        asked = hub.listened
        await add(here.memory("m"), "2")
        assert hub.listened == asked
        async with here.memory("m").watch():  # and again
            await until(lambda: hub.listened > asked)


async def test_who_leaves_and_comes_back_keeps_one_listener(tmp_path: Path, hub: Hub) -> None:
    path = tmp_path / "chats.db"
    async with (
        open_runtime(AnnouncingStore(path, hub), watch_interval=NEVER) as here,
        open_runtime(AnnouncingStore(path, hub)) as there,
    ):
        for number in range(5):
            async with here.memory("m").watch() as events:
                await until(lambda: hub.listening == 1)
                await add(there.memory("m"), str(number))
                assert await following(events, 1) == [str(number)]


async def test_closing_does_not_wait_for_who_listens(tmp_path: Path, hub: Hub) -> None:
    with anyio.fail_after(BOUND):
        store = AnnouncingStore(tmp_path / "chats.db", hub)
        async with open_runtime(store, watch_interval=NEVER) as here, here.memory("m").watch():
            await until(lambda: hub.listening == 1)
        assert hub.listening == 1, "it waited"


async def test_what_is_committed_meanwhile_is_told_once(tmp_path: Path, hub: Hub) -> None:
    async with open_runtime(AnnouncingStore(tmp_path / "chats.db", hub)) as here:
        hub.gate.clear()
        await add(here.memory("m"), "0")
        await until(lambda: hub.announced == 1)
        await add(here.memory("m"), *map(str, range(20)))  # none waits for a notice
        assert hub.announced == 1
        hub.gate.set()
        await until(lambda: hub.announced == 2)
    assert hub.announced == 2


async def test_reads_and_leases_tell_nothing(tmp_path: Path, hub: Hub) -> None:
    async with open_runtime(AnnouncingStore(tmp_path / "chats.db", hub)) as here:
        memory = here.memory("m")
        await memory.messages()
        async with memory.turn():
            pass
    assert hub.announced == 0


async def test_failing_notices_are_no_business_of_callers_and_watchers_go_on(
    tmp_path: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chats.db"
    hub.fails = True
    with caplog.at_level(logging.DEBUG, "turnkeeper"):
        async with (
            open_runtime(AnnouncingStore(path, hub), watch_interval=0.02) as here,
            open_runtime(AnnouncingStore(path, hub)) as there,
        ):
            async with here.memory("m").watch() as events:
                await add(there.memory("m"), "1")
                assert await following(events, 1) == ["1"]
            await until(lambda: hub.announced == 1 and hub.listened >= 1)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


async def test_listening_goes_on_when_the_store_can_again(tmp_path: Path, hub: Hub) -> None:
    path = tmp_path / "chats.db"
    async with (
        open_runtime(AnnouncingStore(path, hub), watch_interval=NEVER) as here,
        open_runtime(AnnouncingStore(path, hub)) as there,
    ):
        hub.fails = True
        async with here.memory("m").watch() as events:
            await until(lambda: hub.listened == 1)
            await add(there.memory("m"), "missed")
            hub.fails = False
            assert await following(events, 1) == ["missed"]


async def test_a_turn_learns_by_a_notice_that_another_process_took_its_place(tmp_path: Path, hub: Hub) -> None:
    path = tmp_path / "chats.db"
    async with (
        open_runtime(AnnouncingStore(path, hub), turn_lease=NEVER) as here,
        open_runtime(AnnouncingStore(path, hub), turn_lease=NEVER) as there,
        anyio.create_task_group() as tasks,
    ):
        turn, other = here.memory("m").turn(), there.memory("m").turn(on_busy="interrupt")
        await Call(tasks, turn.__aenter__).result()
        await Call(tasks, other.__aenter__).result()
        with anyio.fail_after(BOUND):  # much less than a third of turn_lease
            await turn.interrupted()
        await other.__aexit__(None, None, None)
        with pytest.raises(TurnInterruptedError) as caught:
            await turn.__aexit__(None, None, None)
        assert caught.value.reason == "lost"

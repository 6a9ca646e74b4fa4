"""Watching what others write: other runtimes and other processes, on one shared file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

import turnkeeper
from processes.remote import Remote, url_of
from turnkeeper import HistoryEntry, Reset, Version
from watching.tools import BOUND, add, following, nothing_left, notices, shown


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chats.db", shared=True)


@pytest.mark.anyio
class TestTwoRuntimes:
    async def test_each_sees_what_both_write_in_the_order_of_the_log(self, url: str) -> None:
        writers, each = 10, 10
        count = 2 * writers * each
        seen: list[list[HistoryEntry | Reset]] = [[], [], [], []]

        async def watch(memory: turnkeeper.ChatMemory, mine: list[HistoryEntry | Reset]) -> None:
            async with memory.watch(after=Version(0, 0)) as events:
                async for event in events:
                    mine.append(event)
                    if len(mine) == count:
                        return

        async with (
            turnkeeper.open_runtime(url, watch_interval=0.02) as here,
            turnkeeper.open_runtime(url, watch_interval=0.02) as there,
        ):
            memories = here.memory("m"), there.memory("m")
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for number, mine in enumerate(seen):
                        group.start_soon(watch, memories[number % 2], mine)
                    for number in range(writers):
                        for where, memory in enumerate(memories):
                            group.start_soon(add, memory, *[f"{where}.{number}.{part}" for part in range(each)])
            log = list((await memories[0].history(limit=10_000)).entries)
            assert len(log) == count
            assert all(mine == log for mine in seen)
            assert nothing_left(here)
            assert nothing_left(there)

    async def test_another_s_set_clear_turn_and_delete(self, url: str) -> None:
        async with (
            turnkeeper.open_runtime(url, watch_interval=0.02) as here,
            turnkeeper.open_runtime(url) as there,
        ):
            memory = there.memory("m")
            async with here.memory("m").watch() as events:
                await add(memory, "1")
                await memory.set({"role": "user", "content": "2"})
                async with memory.turn() as turn:  # takes a lease
                    await turn.add({"role": "user", "content": "3"})
                await memory.clear()
                assert await following(events, 4) == ["1", "set", "3", "clear"]
                await memory.delete()
                assert await following(events, 1) == ["reset 0.0"]
                await add(memory, "4")
                assert await following(events, 1) == ["4"]

    async def test_a_lease_alone_is_no_event(self, url: str) -> None:
        async with (
            turnkeeper.open_runtime(url, watch_interval=0.02) as here,
            turnkeeper.open_runtime(url) as there,
            here.memory("m").watch() as events,
        ):
            async with there.memory("m").turn():  # makes the row, and removes it
                pass
            await add(there.memory("m"), "1")
            assert await following(events, 1) == ["1"]

    async def test_notices_of_what_another_one_writes(self, url: str) -> None:
        async with (
            turnkeeper.open_runtime(url, watch_interval=0.02) as here,
            turnkeeper.open_runtime(url) as there,
        ):
            await add(there.memory("before"), "1")
            async with here.watch("tenant", "user-") as watch:
                for number in range(200):
                    await add(there.memory(f"user-{number % 50}", "tenant"), "1")
                await add(there.memory("other", "tenant"), "1")
                latest: dict[str, int] = {}
                with anyio.fail_after(BOUND):
                    async for notice in watch:
                        latest[notice.id] = notice.version.n
                        if len(latest) == 50 and set(latest.values()) == {4}:
                            break
                await add(here.memory("user-0", "tenant"), "1")
                assert [it.version.n for it in await notices(watch, 1)] == [5]


@pytest.fixture
def other(url: str) -> Iterator[Remote]:
    """Return another process, which takes its time to start."""
    with Remote(url) as remote:
        yield remote


@pytest.mark.anyio
async def test_what_another_process_writes_is_seen_and_gone_on_with(url: str, other: Remote) -> None:
    async with turnkeeper.open_runtime(url, watch_interval=0.02) as runtime:
        memory = runtime.memory("m")
        async with memory.watch() as events, runtime.watch() as watch:
            for number in range(5):
                await to_thread.run_sync(other.call, "add", "m", [str(number)])
                with anyio.fail_after(BOUND):
                    event = await anext(events)
                assert shown(event) == str(number)
                assert [it.id for it in await notices(watch, 1)] == ["m"]
        await to_thread.run_sync(other.call, "add", "m", ["missed"])
        await to_thread.run_sync(other.call, "clear", "m")
        async with memory.watch(after=event.version) as events:
            assert await following(events, 2) == ["missed", "clear"]
            await to_thread.run_sync(other.call, "delete", "m")
            assert await following(events, 1) == ["reset 0.0"]

"""Watching many memories: at least one notice of each change, one for each memory while nobody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from turnkeeper import (
    ChatMemory,
    InvalidArgumentError,
    InvalidMemoryIdError,
    Notice,
    Runtime,
    RuntimeUsageError,
    Version,
    open_runtime,
)
from watching.tools import BOUND, add, nothing_left, nothing_more, notices, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


async def version(memory: ChatMemory) -> Version:
    return (await memory.messages()).version


async def test_each_change_gives_a_notice(runtime: Runtime) -> None:
    a, b = runtime.memory("a"), runtime.memory("b", "tenant")
    async with runtime.watch() as watch:
        for memory in (a, b, a):
            await add(memory, "1")
            expected = Notice(memory.id, memory.namespace, await version(memory))
            assert await notices(watch, 1) == [expected]
        await a.delete()
        assert await notices(watch, 1) == [Notice("a", "", Version(0, 0))]
    assert nothing_left(runtime)


async def test_while_nobody_reads_a_memory_has_one_notice_in_the_order_of_the_first(runtime: Runtime) -> None:
    a, b = runtime.memory("a"), runtime.memory("b")
    async with runtime.watch() as watch:
        await add(a, "1", "2")
        await add(b, "1")
        await add(a, *map(str, range(20)))
        assert await notices(watch, 2) == [Notice("a", "", await version(a)), Notice("b", "", await version(b))]
        await nothing_more(watch)


async def test_only_what_was_asked_for(runtime: Runtime) -> None:
    async with (
        runtime.watch("t", "user-") as some,
        runtime.watch("t") as tenant,
        runtime.watch(prefix="user-") as prefix,
        runtime.watch() as everything,
    ):
        for namespace, name in (("", "user-1"), ("t", "user-2"), ("t", "other"), ("u", "other")):
            await add(runtime.memory(name, namespace), "1")
        for watch, expected in (
            (some, ["user-2"]),
            (tenant, ["user-2", "other"]),
            (prefix, ["user-1", "user-2"]),
            (everything, ["user-1", "user-2", "other", "other"]),
        ):
            assert [notice.id for notice in await notices(watch, len(expected))] == expected
            await nothing_more(watch)


async def test_fifty_memories_with_four_writers_each_are_all_told(runtime: Runtime) -> None:
    memories = [runtime.memory(str(number)) for number in range(50)]
    latest: dict[str, Version] = {}
    async with runtime.watch() as watch, anyio.create_task_group() as group:
        for memory in memories * 4:
            group.start_soon(memory.add, user("1"))
        with anyio.fail_after(BOUND):
            async for notice in watch:
                latest[notice.id] = notice.version
                if len(latest) == 50 and all(version.n == 4 for version in latest.values()):
                    break


async def test_bad_arguments_are_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidMemoryIdError):
        runtime.watch(namespace="\n")
    with pytest.raises(InvalidArgumentError, match="prefix"):
        runtime.watch(prefix=1)  # type: ignore[arg-type]


async def test_outside_of_its_block_it_is_refused(runtime: Runtime) -> None:
    watch = runtime.watch()
    with pytest.raises(RuntimeUsageError, match="async with"):
        await anext(watch)
    async with watch:
        with pytest.raises(RuntimeUsageError, match="once"):
            await watch.__aenter__()
    with pytest.raises(RuntimeUsageError, match="async with"):
        await anext(watch)
    assert repr(watch) == "<RuntimeWatch>"
    with pytest.raises(TypeError):
        watch.__reduce__()

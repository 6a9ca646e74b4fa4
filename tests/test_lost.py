"""A store that is behind what it had acknowledged, as after a failover: it is said once, and the memory goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import (
    AcknowledgedDataLostError,
    ChatMemory,
    ConflictError,
    OutcomeUnknownError,
    Reset,
    Version,
    open_runtime,
)
from turnkeeper.stores import SQLiteStore
from turnkeeper.testing import FaultStore

pytestmark = pytest.mark.anyio


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def texts(memory: ChatMemory) -> list[str]:
    return [message.text for message in await memory.messages()]


class File:
    """A store's file that falls back to what it once was."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chats.db"
        self.kept = folder / "kept.db"
        self.url = f"sqlite:///{self.path}?shared=true"

    def remember(self) -> None:
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(self.kept)) as target:
            source.backup(target)

    def fall_back(self) -> None:
        with closing(sqlite3.connect(self.kept)) as source, closing(sqlite3.connect(self.path)) as target:
            source.backup(target)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


@pytest.mark.parametrize("first", ["read", "write"])
async def test_an_earlier_state_is_said_once_and_then_worked_on(file: File, first: str) -> None:
    async with open_runtime(file.url) as runtime:
        memory = runtime.memory("m")
        kept = (await memory.add(user("kept"))).version
        file.remember()
        lost = (await memory.add(user("lost"))).version
        file.fall_back()
        with pytest.raises(AcknowledgedDataLostError) as caught:
            await (memory.messages() if first == "read" else memory.add(user("refused")))
        assert (caught.value.known, caught.value.found) == (lost, kept)
        assert "lost" not in str(caught.value).replace("is lost", "")
        assert await texts(memory) == ["kept"]
        await memory.add(user("on"))
        assert await texts(memory) == ["kept", "on"]
        assert runtime.stats().acknowledged_lost == 1


async def test_with_local_consistency_a_write_finds_it(file: File) -> None:
    async with open_runtime(file.url, consistency="local") as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        file.remember()
        await memory.add(user("lost"))
        file.fall_back()
        with pytest.raises(AcknowledgedDataLostError):
            await memory.add(user("refused"))
        assert await texts(memory) == ["kept"]


async def test_each_caller_that_waits_is_told(file: File) -> None:
    async with open_runtime(file.url) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        file.remember()
        await memory.add(user("lost"))
        file.fall_back()
        told: list[AcknowledgedDataLostError] = []

        async def ask() -> None:
            with pytest.raises(AcknowledgedDataLostError) as caught:
                await memory.add(user("refused"))
            told.append(caught.value)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
        assert len({id(error) for error in told}) == 5
        assert await texts(memory) == ["kept"]


@pytest.mark.parametrize("anew", [False, True], ids=["absent", "made anew"])
async def test_a_memory_that_is_gone_with_its_number(file: File, anew: bool) -> None:
    async with open_runtime(file.url) as runtime, open_runtime(file.url) as other:
        await other.memory("earlier").add(user("1"))
        file.remember()
        memory = runtime.memory("m")
        for _ in range(2):
            await memory.add(user("lost"))
        file.fall_back()
        if anew:
            await other.memory("m").add(user("new"))
        with pytest.raises(AcknowledgedDataLostError) as caught:
            await memory.add(user("refused"))
        assert caught.value.found == (Version(2, 1) if anew else Version(0, 0))
        assert await texts(memory) == ["new"] * anew
        await memory.add(user("on"))
        assert await texts(memory) == ["new"] * anew + ["on"]


@pytest.mark.parametrize("anew", [False, True], ids=["absent", "made anew"])
async def test_another_process_may_delete(file: File, anew: bool) -> None:
    async with open_runtime(file.url) as runtime, open_runtime(file.url) as other:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        await memory.add(user("2"))
        await other.memory("m").delete()
        if anew:
            await other.memory("m").add(user("new"))
        assert await texts(memory) == ["new"] * anew
        await memory.add(user("on"))
        assert await texts(memory) == ["new"] * anew + ["on"]
        assert runtime.stats().acknowledged_lost == 0


async def test_it_is_known_behind_an_unknown_outcome(file: File) -> None:
    """The way of a failover: the connection is lost first, and then another server answers."""
    store = FaultStore(SQLiteStore(file.path, shared=True))
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        file.remember()
        await memory.add(user("lost"))
        store.fail_before(on="commit")
        store.fail_before(None, on="settle")
        store.fail_before(on="load")
        with pytest.raises(OutcomeUnknownError):
            await memory.add(user("unknown"))
        store.heal()
        file.fall_back()
        with pytest.raises(AcknowledgedDataLostError):
            await memory.messages()
        assert await texts(memory) == ["kept"]


async def test_a_version_that_a_client_kept_tells_as_well(file: File) -> None:
    async with open_runtime(file.url) as runtime:
        await runtime.memory("m").add(user("kept"))
        file.remember()
        lost = (await runtime.memory("m").add(user("lost"))).version
    file.fall_back()
    async with open_runtime(file.url) as runtime:
        memory = runtime.memory("m")
        with pytest.raises(AcknowledgedDataLostError):
            await memory.set(user("x"), if_version=lost)
        with pytest.raises(AcknowledgedDataLostError):
            await memory.messages(at=lost)
        with pytest.raises(ConflictError):
            await memory.set(user("x"), if_version=Version(lost.mid + 1, 1))
        assert await texts(memory) == ["kept"]


async def test_with_local_consistency_a_version_of_another_process_is_no_loss(file: File) -> None:
    async with open_runtime(file.url, consistency="local") as runtime, open_runtime(file.url) as other:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        newer = (await other.memory("m").add(user("2"))).version
        await memory.set(user("3"), if_version=newer)
        assert await texts(memory) == ["3"]


async def test_a_watcher_gets_a_reset(file: File) -> None:
    async with open_runtime(file.url, watch_interval=0.02) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        file.remember()
        async with memory.watch() as events:
            await memory.add(user("lost"))
            assert (await anext(events)).version.n == 2
            file.fall_back()
            with anyio.fail_after(20):
                assert isinstance(await anext(events), Reset)


async def test_a_turn_that_was_open_is_told(file: File) -> None:
    async with open_runtime(file.url) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        file.remember()
        await memory.add(user("lost"))

        async def speak() -> None:
            async with memory.turn() as turn:
                await turn.add(user("refused"))
                file.fall_back()

        with pytest.raises(AcknowledgedDataLostError):
            await speak()
        assert await texts(memory) == ["kept"]
        async with memory.turn() as turn:
            await turn.add(user("on"))
        assert await texts(memory) == ["kept", "on"]


async def test_a_compaction_finds_it(file: File) -> None:
    async with open_runtime(file.url) as runtime:
        memory = runtime.memory("m")
        for number in range(4):
            await memory.add(user(f"kept {number}"))
        file.remember()
        await memory.add(user("lost"))
        file.fall_back()
        with pytest.raises(AcknowledgedDataLostError):
            await memory.compact(lambda messages, summary: "summary")
        assert len(await texts(memory)) == 4

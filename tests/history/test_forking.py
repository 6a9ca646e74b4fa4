"""`fork`, sentence by sentence."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import turnkeeper
from turnkeeper import (
    AcknowledgedDataLostError,
    ChatMemory,
    ConflictError,
    InvalidMemoryIdError,
    MemoryExistsError,
    MessageWindow,
    NestedTurnError,
    Runtime,
    TurnkeeperError,
    TurnWindow,
    Version,
)
from turns.tools import assistant, call, result, texts, unloaded, user

pytestmark = pytest.mark.anyio


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


async def ids(memory: ChatMemory) -> list[str | None]:
    return [message.id for message in await memory.messages()]


async def test_it_says_what_this_one_says_in_one_entry(runtime: Runtime, memory: ChatMemory) -> None:
    await memory.add(system("s"), user("1"))
    await memory.add(call("c"), {**result("c"), "id": "own"})
    await memory.edit("1.1", user("one"))
    fork = await memory.fork("f")
    assert type(fork) is ChatMemory
    assert (fork.id, fork.namespace) == ("f", "")
    for _ in range(2):
        assert (await fork.messages()).to_dicts() == (await memory.messages()).to_dicts()
        assert await ids(fork) == ["1.0", "1.1", "1.2", "own"]
        await unloaded(runtime, "f")
    page = await fork.history()
    assert [(entry.op, len(entry.messages)) for entry in page.entries] == [("fork", 4)]


async def test_both_are_independent_afterwards(runtime: Runtime, memory: ChatMemory) -> None:
    await memory.add(user("1"), assistant("a"))
    fork = await memory.fork("f")
    await memory.add(user("2"))
    await fork.edit("1.0", user("uno"))
    await fork.add(user("zwei"))
    assert await texts(memory) == ["1", "a", "2"]
    assert await texts(fork) == ["uno", "a", "zwei"]
    await memory.delete()
    await unloaded(runtime, "f")
    assert await texts(fork) == ["uno", "a", "zwei"]
    await fork.undo()
    await fork.undo()
    assert await texts(fork) == []


async def test_with_its_history_ids_stay_and_earlier_versions_can_be_read(runtime: Runtime, memory: ChatMemory) -> None:
    await memory.add(system("s"), user("1"))
    await memory.add(assistant("a"), user("2"))
    await memory.undo()
    await memory.edit("1.0", system("t"))
    await memory.compact(lambda messages, summary: "SUM", keep=TurnWindow(max_turns=1))
    await memory.add(user("3"))
    fork = await memory.fork("f", history=True)
    for _ in range(2):
        assert (await fork.messages()).to_dicts() == (await memory.messages()).to_dicts()
        assert await ids(fork) == await ids(memory)
        await unloaded(runtime, "f")
    old, new = (await memory.history()).entries, (await fork.history()).entries
    assert [(entry.op, entry.version.n, entry.messages) for entry in new] == [
        (entry.op, entry.version.n, entry.messages) for entry in old
    ]
    for before, after in zip(old, new, strict=True):
        assert await fork.messages(at=after.version) == await memory.messages(at=before.version)
    with pytest.raises(ConflictError):
        await fork.messages(at=old[0].version)
    await fork.add(user("4"))
    assert (await texts(fork))[-1] == "4"


@pytest.mark.parametrize("history", [False, True])
async def test_of_an_earlier_version(runtime: Runtime, memory: ChatMemory, history: bool) -> None:
    versions = [(await memory.add(user(f"{number}"))).version for number in range(4)]
    fork = await memory.fork("f", at=versions[1], history=history)
    assert await texts(fork) == ["0", "1"]
    await fork.add(user("other"))
    await unloaded(runtime, "f")
    assert await texts(fork) == ["0", "1", "other"]
    with pytest.raises(AcknowledgedDataLostError):
        await memory.fork("g", at=Version(versions[0].mid, 9), history=history)
    assert (await runtime.memory("g").stats()).version == Version(0, 0)


@pytest.mark.parametrize("history", [False, True])
async def test_a_compacted_memory_keeps_system_message_and_summary_apart(
    runtime: Runtime, memory: ChatMemory, history: bool
) -> None:
    for number in range(3):
        await memory.add(system(f"s{number}"), user(f"{number}"), assistant("a"))
    await memory.compact(lambda messages, summary: "SUM", keep=TurnWindow(max_turns=1))
    fork = await memory.fork("f", history=history)
    for _ in range(2):
        for window in (MessageWindow(3, on_overflow="evict"), TurnWindow(max_turns=1), turnkeeper.Unbounded()):
            seen = await fork.messages(window=window)
            assert seen.to_dicts() == (await memory.messages(window=window)).to_dicts()
        await unloaded(runtime, "f")
    await fork.undo()
    await memory.undo()
    assert await texts(fork) == await texts(memory)
    receipt = await fork.compact(lambda messages, summary: "NEW", keep=TurnWindow(max_turns=1))
    assert receipt is None, "nothing is left to sum up"


async def test_the_name_must_be_free(runtime: Runtime, memory: ChatMemory) -> None:
    await memory.add(user("1"))
    other = runtime.memory("other")
    await other.add(user("other"))
    for history in (False, True):
        for name in ("other", "m"):
            with pytest.raises(MemoryExistsError) as caught:
                await memory.fork(name, history=history)
            assert isinstance(caught.value, ConflictError)
    assert (await texts(other), await texts(memory)) == (["other"], ["1"])
    assert len((await other.history()).entries) == 1
    await other.delete()
    assert await texts(await memory.fork("other")) == ["1"]
    cleared = runtime.memory("cleared")
    await cleared.add(user("x"))
    await cleared.clear()
    with pytest.raises(MemoryExistsError):
        await memory.fork("cleared")


@pytest.mark.parametrize("bad", ["", "\0", "x" * 513])
async def test_names_that_are_none(memory: ChatMemory, bad: str) -> None:
    await memory.add(user("1"))
    with pytest.raises(InvalidMemoryIdError):
        await memory.fork(bad)
    if bad:
        with pytest.raises(InvalidMemoryIdError):
            await memory.fork("f", namespace=bad)


async def test_into_another_namespace(runtime: Runtime) -> None:
    memory = runtime.memory("m", namespace="a")
    await memory.add(user("1"))
    assert (await memory.fork("f")).namespace == "a"
    assert (await memory.fork("m", namespace="b")).namespace == "b"
    assert (await memory.fork("m", namespace="")).namespace == ""
    assert await texts(runtime.memory("m", namespace="b")) == ["1"]


async def test_the_handle_has_this_ones_window(runtime: Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(2, on_overflow="evict"), history="window")
    for number in range(4):
        await memory.add(user(f"{number}"))
    fork = await memory.fork("f")
    assert await texts(fork) == ["2", "3"]
    for number in range(9):
        await fork.add(user(f"{number}"))
    assert len((await fork.history()).entries) < 9, "it prunes as well"


@pytest.mark.parametrize("history", [False, True])
async def test_of_what_is_not_there_or_empty(runtime: Runtime, memory: ChatMemory, history: bool) -> None:
    fork = await memory.fork("f", history=history)
    assert await texts(fork) == []
    await fork.add(user("1"))
    await unloaded(runtime, "f")
    assert await texts(fork) == ["1"]
    await memory.add(user("1"))
    await memory.clear()
    again = await memory.fork("g", history=history)
    assert await texts(again) == []
    await again.add(user("2"))
    await unloaded(runtime, "g")
    assert await texts(again) == ["2"]


@pytest.mark.parametrize("history", [False, True])
async def test_of_many_to_one_name_exactly_one_wins(runtime: Runtime, history: bool) -> None:
    parents = [runtime.memory(f"p{number}") for number in range(8)]
    for number, parent in enumerate(parents):
        await parent.add(user(f"{number}"))
    outcomes: list[object] = []

    async def fork(parent: ChatMemory) -> None:
        try:
            outcomes.append(await parent.fork("f", history=history))
        except TurnkeeperError as error:
            outcomes.append(error)

    async with anyio.create_task_group() as group:
        for parent in parents:
            group.start_soon(fork, parent)
    assert sum(isinstance(outcome, ChatMemory) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, MemoryExistsError) for outcome in outcomes) == 7
    assert len((await runtime.memory("f").history()).entries) == 1


@pytest.mark.parametrize("history", [False, True])
async def test_among_adds_it_is_a_state_that_was(runtime: Runtime, memory: ChatMemory, history: bool) -> None:
    forks: list[ChatMemory] = []

    async def add(number: int) -> None:
        await memory.add(user(f"{number}"), assistant(f"{number}"))

    async def fork(number: int) -> None:
        forks.append(await memory.fork(f"f{number}", history=history))

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(add, number)
            if number % 8 == 4:
                group.start_soon(fork, number)
    whole = await texts(memory)
    for made in forks:
        found = await texts(made)
        assert found == whole[: len(found)]
        assert len(found) % 2 == 0, "no batch by halves"


async def test_inside_a_turn(memory: ChatMemory) -> None:
    await memory.add(user("1"))
    async with memory.turn() as turn:
        await turn.add(user("not committed"))
        fork = await memory.fork("f")
        assert await texts(fork) == ["1"]
        with pytest.raises(NestedTurnError):
            await memory.fork("m")


async def test_an_undo_in_a_fork_brings_back_the_system_message_that_was_before(runtime: Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(2, on_overflow="evict"))
    await memory.add(system("old"), user("1"))
    await memory.add(user("2"), system("new"))
    fork = await memory.fork("f")
    await fork.undo()
    for number in range(40):
        await fork.add(assistant(f"{number}"))
    assert await texts(fork) == ["old", "39"]
    await unloaded(runtime, "f")
    assert await texts(fork) == ["old", "39"]


def test_blocking_twin(store_url: str) -> None:
    with turnkeeper.open_sync_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        memory.add(user("1"))
        fork = memory.fork("f", namespace="n", history=True)
        assert (fork.id, fork.namespace, [message.text for message in fork.messages()]) == ("f", "n", ["1"])
        with pytest.raises(MemoryExistsError):
            memory.fork("f", namespace="n")


async def test_a_fork_that_is_refused_changes_nothing_not_even_the_parent_s_revision(runtime: Runtime) -> None:
    parent = runtime.memory("parent")
    await parent.add(user("1"))
    await runtime.memory("taken").add(user("2"))
    before = await parent.metadata()
    for name in ("taken", "parent"):
        with pytest.raises(MemoryExistsError):
            await parent.fork(name)
    assert await parent.metadata() == before

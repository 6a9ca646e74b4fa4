"""What the machine found, in the fewest words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import OutcomeUnknownError, StoreUnavailableError, Version, open_runtime
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore, unload
from windows.saying import answer, system, user

pytestmark = pytest.mark.anyio


async def elsewhere(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Call a function in a task of its own, so that ours is in no turn."""
    results: list[Any] = []

    async def call() -> None:
        results.append(await function(*arguments))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    return results[0]


async def test_a_delete_behind_the_add_that_made_the_memory_deletes_it(store_url: str) -> None:
    """They waited for the same turn, and so went into one batch."""
    results: dict[str, Any] = {}

    async def call(function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        results[function.__name__] = await function(*arguments)

    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        turn = memory.turn()
        await elsewhere(turn.__aenter__)
        async with anyio.create_task_group() as group:
            for function, arguments in ((memory.add, (user(),)), (memory.delete, ())):
                group.start_soon(call, function, *arguments)
                await memory.stats()  # in its turn: the write before it waits by now
                await memory.stats()
            await turn.__aexit__(None, None, None)
        assert results["delete"] is True
        assert await memory.messages() == ()


async def test_a_turn_on_an_empty_memory_shows_no_version_and_leaves_none(tmp_path: Path) -> None:
    """Its lease needs a row on a shared store, which is nobody else's business."""
    async with open_runtime(f"sqlite:///{tmp_path}/chats.db?shared=true") as runtime:
        memory = runtime.memory("m")
        turn = memory.turn()
        await elsewhere(turn.__aenter__)
        seen = await memory.messages()
        assert seen.version == (await memory.stats()).version == Version(0, 0)
        await turn.__aexit__(None, None, None)
        assert await memory.delete() is False
        assert (await memory.set(user(), if_version=seen.version)).version.n == 1


async def test_what_a_rolled_back_turn_said_does_not_take_the_system_message_along(store_url: str) -> None:
    """That stood before everything, because what was around it had been summed up."""
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        for said in ((system("first"), user("a")), (answer("b"), user("c")), (user("d"),)):
            await memory.add(said)
        await memory.compact(lambda messages, summary: "sum", keep=1)
        before = await memory.messages()
        assert [message.text for message in before] == ["first", "sum", "d"]
        turn = memory.turn(commit="each")
        await elsewhere(turn.__aenter__)
        await turn.add(system("second"))
        async with memory.turn(on_busy="rollback"):
            assert await memory.messages() == before
        unload(runtime, "m")
        assert await memory.messages() == before


async def test_what_changed_nothing_does_not_come_behind_writes_of_which_the_store_said_nothing() -> None:
    """They waited for the same turn: a clear of the empty memory, and adds."""
    results: dict[int, Any] = {}

    async def call(number: int, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        try:
            results[number] = await function(*arguments)
        except OutcomeUnknownError as error:
            results[number] = error

    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        turn = memory.turn()
        await elsewhere(turn.__aenter__)
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(call, number, *((memory.add, user(f"{number}")) if number else (memory.clear,)))
                await memory.stats()
                await memory.stats()
            store.fail_after()
            store.fail_before(9, on="settle")
            await turn.__aexit__(None, None, None)
        store.heal()
        assert results[0].version.n == 0
        assert [type(results[number]) for number in range(1, 5)] == [OutcomeUnknownError] * 4
        assert [message.text for message in await memory.messages()] == ["1", "2", "3", "4"]


async def test_what_a_rollback_could_not_take_back_yet_is_not_shown() -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        turn = memory.turn(commit="each")
        await elsewhere(turn.__aenter__)
        await turn.add(user("lost"))
        store.fail_before()
        with pytest.raises(ExceptionGroup) as caught:
            await elsewhere(memory.turn(on_busy="rollback").__aenter__)
        assert isinstance(caught.value.exceptions[0], StoreUnavailableError)
        assert not unload(runtime, "m"), "or nobody would know any more what is to be taken back"
        store.fail_before()
        with pytest.raises(StoreUnavailableError):
            await memory.messages()
        assert [message.text for message in await memory.messages()] == ["before"]
        assert unload(runtime, "m")
        assert [message.text for message in await memory.messages()] == ["before"]

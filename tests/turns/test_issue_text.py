"""Sentences of issue 5 about turns that no other module here proves as they stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio import to_thread

from turnkeeper import (
    ChatMemory,
    NestedTurnError,
    Runtime,
    Turn,
    TurnInterruptedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore
from turnkeeper.turnstile import ON_BUSY
from turns.tools import Call, assistant, entered, pending, texts, unloaded, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


async def say(memory: ChatMemory, text: str, **options: Any) -> None:
    async with memory.turn(**options) as turn:
        await turn.add(user(text))


class TestStreaming:
    """A turn owns no cancel scope (streaming endpoints yield inside it): it is fenced."""

    @pytest.mark.parametrize("commit", ["turn", "each"])
    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_taken_over_between_two_words_the_stream_ends_at_the_next_use_of_its_turn(
        self, runtime: Runtime, memory: ChatMemory, on_busy: str, commit: Any
    ) -> None:
        async def stream() -> AsyncIterator[str]:
            async with memory.turn(commit=commit) as turn:
                await turn.add(user("q"))
                yield "Good"
                yield " morning"
                await turn.add(assistant("Good morning"))

        words = stream()
        heard = [await anext(words)]
        async with anyio.create_task_group() as group:
            await Call(group, lambda: say(memory, "new", on_busy=on_busy)).result()
        heard.append(await anext(words))
        with pytest.raises(TurnInterruptedError) as caught:
            await anext(words)
        assert heard == ["Good", " morning"], "nothing stops its body"
        assert caught.value.reason == on_busy
        await unloaded(runtime)
        stays = ["q"] if (on_busy, commit) == ("interrupt", "each") else []
        assert await texts(memory) == [*stays, "new"]


class TestRunTurn:
    """`memory.run_turn(function)` runs the body in a scope; what is nested in it raises `NestedTurnError` at once."""

    async def test_nested_in_it_every_way_in_is_refused_also_in_its_children_and_threads(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        refused: list[str] = []

        async def attempt(name: str, way: Any) -> None:
            with pytest.raises(NestedTurnError):
                await way()
            refused.append(name)

        async def never(_turn: Turn) -> None:
            pytest.fail("inside twice")

        def in_thread() -> None:
            with runtime.sync.memory("m").turn():
                pytest.fail("inside twice")

        async def body(turn: Turn) -> str:
            async with anyio.create_task_group() as children:
                for on_busy in ON_BUSY:
                    children.start_soon(attempt, on_busy, lambda on_busy=on_busy: say(memory, "x", on_busy=on_busy))
                    children.start_soon(
                        attempt, f"run {on_busy}", lambda on_busy=on_busy: memory.run_turn(never, on_busy=on_busy)
                    )
                children.start_soon(attempt, "add", lambda: memory.add(user("x")))
                children.start_soon(attempt, "thread", lambda: to_thread.run_sync(in_thread))
            await turn.add(user("q"))
            assert await texts(memory) == [], "reading shows the committed view"
            return "done"

        assert await memory.run_turn(body) == "done"
        assert len(refused) == 10
        assert await texts(memory) == ["q"]


class TestCommitting:
    """An interruption meets a turn that is being committed: the whole of it is there, and who interrupts goes on."""

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_who_comes_while_it_commits_takes_nothing_back(self, on_busy: str) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            turn = memory.turn()
            await turn.__aenter__()
            await turn.add(user("q"), assistant("a"))
            with store.stall() as stall:
                leaving = Call(group, turn.__aexit__, None, None, None)
                await entered(stall)
                others = [Call(group, lambda: say(memory, "new", on_busy=on_busy)) for _ in range(3)]
                await pending(runtime, 4)
                assert not leaving.done
            assert await leaving.result() is None
            for other in others:
                await other.result()
            said = await texts(memory)
            assert said[:3] == ["before", "q", "a"]
            assert turn.receipt is not None

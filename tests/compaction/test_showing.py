"""The summary in every window, in RAM and from the store; what counts, and what is never swallowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from turnkeeper import (
    ChatMemory,
    MessageWindow,
    Runtime,
    SystemMessage,
    TokenWindow,
    TurnWindow,
    Unbounded,
    Window,
    WindowOverflowError,
    reader,
)
from turnkeeper.testing import unload
from windows.saying import Lengths, answer, spoken, system, user

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True, scope="module")
def _small_loads() -> Iterator[None]:
    """Load as few entries as can be: histories in here are short."""
    with patch.object(reader, "_FEWEST", 1):
        yield


class Own(Window):
    def view(self, messages: Any) -> Any:
        return messages


WINDOWS: dict[str, Callable[[Any], Window]] = {
    "messages": MessageWindow,
    "messages, system first": lambda limit: MessageWindow(limit, system_first=True),
    "messages, evicting": lambda limit: MessageWindow(limit, on_overflow="evict"),
    "messages, keeping": lambda limit: MessageWindow(limit, on_overflow="keep"),
    "tokens": lambda limit: TokenWindow(2 * limit + 1, Lengths()),
    "turns of messages": lambda limit: TurnWindow(max_messages=limit),
    "turns of tokens": lambda limit: TurnWindow(max_tokens=2 * limit + 1, counter=Lengths()),
}
EVERY: dict[str, Callable[[Any], Window]] = {
    **WINDOWS,
    "turns": lambda _: TurnWindow(max_turns=9),
    "unbounded": lambda _: Unbounded(),
    "own": lambda _: Own(),
}


@pytest.fixture(params=[False, True], ids=["resident", "reloaded"])
def reloading(request: pytest.FixtureRequest) -> bool:
    """Return whether the memory is dropped from RAM before each read."""
    return bool(request.param)


async def look(runtime: Runtime, window: Window, reloading: bool) -> turnkeeper.Messages:
    if reloading:
        unload(runtime, "m")
    return await runtime.memory("m").messages(window=window)


@pytest.mark.parametrize("name", EVERY)
async def test_every_window_shows_it_behind_the_system_message(name: str, reloading: bool) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, system("ss"), *turns(1, 3))
        await memory.compact(Model(), keep=LAST_TURN)
        view = await look(runtime, EVERY[name](4), reloading)
        assert (spoken(view), view.overflow) == ("ss S1 u3 a3", False)


@pytest.mark.parametrize("name", EVERY)
async def test_no_system_message_swallows_it(name: str, reloading: bool) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m", window=EVERY[name](9))
        await say(memory, *turns(1, 2))
        await memory.compact(Model([SystemMessage("S1"), SystemMessage("S1"), SystemMessage("S2")]), keep=LAST_TURN)
        await memory.add(system("S1"))
        await memory.add(system("ss"))
        await memory.add(user("u3"))
        shown = spoken(await look(runtime, EVERY[name](8), reloading))
        assert shown.split().count("S2") == 1
        assert "S1 S1 S2" in shown
        assert shown.split().count("ss") == 1


@pytest.mark.parametrize("name", WINDOWS)
async def test_it_counts_toward_the_limit(name: str, reloading: bool) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 4))
        await memory.compact(Model(), keep=TurnWindow(max_turns=3))
        assert spoken(await look(runtime, WINDOWS[name](7), reloading)) == "S1 u2 a2 u3 a3 u4 a4"
        view = await look(runtime, WINDOWS[name](5), reloading)
        assert (spoken(view), view.overflow) == ("S1 u3 a3 u4 a4", False)


@pytest.mark.parametrize("name", WINDOWS)
async def test_alone_above_the_limit_it_stays_and_overflow_says_so(name: str, reloading: bool) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 2))
        await memory.compact(Model([SystemMessage("S1"), SystemMessage("S2"), SystemMessage("S3")]), keep=LAST_TURN)
        view = await look(runtime, WINDOWS[name](2), reloading)
        assert view.overflow
        assert spoken(view[:3]) == "S1 S2 S3"
        current = {"messages, keeping": "u2 a2", "turns of messages": "u2 a2", "turns of tokens": "u2 a2"}
        assert spoken(view[3:]) == current.get(name, "")


async def test_an_add_that_has_no_room_beside_it_is_refused(memory: ChatMemory, runtime: Runtime) -> None:
    await say(memory, *turns(1, 2))
    await memory.compact(Model([SystemMessage("S1"), SystemMessage("S2")]), keep=LAST_TURN)
    before = await memory.messages()
    with pytest.raises(WindowOverflowError):
        await runtime.memory("m", window=MessageWindow(2)).add(user("u3"))
    assert await memory.messages() == before
    await runtime.memory("m", window=MessageWindow(3)).add(user("u3"))
    await runtime.memory("m", window=TurnWindow(max_messages=1)).add(user("u4"))
    assert await line(memory) == "S1 S2 u2 a2 u3 u4"


async def test_turns_are_counted_without_it(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 4))
    await memory.compact(Model([user("q"), answer("S1")]), keep=TurnWindow(max_turns=2))
    assert await line(memory, window=TurnWindow(max_turns=1)) == "q S1 u4 a4"
    assert await line(memory, window=TurnWindow(max_turns=2)) == "q S1 u3 a3 u4 a4"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("where", ["before", "kept", "after"])
async def test_a_small_window_on_a_long_log_shows_summary_and_system_message(
    name: str, where: str, store_url: str
) -> None:
    """However little of the log is loaded, whether the summary's entry is in it or not."""
    async with turnkeeper.open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await say(memory, *([system("ss")] if where == "before" else []), *turns(1, 2))
        await memory.add(user("u3"))
        if where == "kept":
            await memory.add(system("ss"))
        await say(memory, answer("a3"), *turns(4, 12))
        await memory.compact(Model(), keep=TurnWindow(max_turns=10))
        if where == "after":
            await memory.add(system("ss"))
        for number in range(13, 24):
            views = []
            for reloaded in (False, True):
                if reloaded:
                    assert unload(runtime, "m")
                views.append(await memory.messages(window=EVERY[name](4)))
            assert views[0] == views[1]
            assert (views[0].overflow, views[0].version) == (views[1].overflow, views[1].version)
            assert {"ss", "S1"} <= set(spoken(views[1]).split())
            assert "u1" not in spoken(views[1]).split()
            await say(memory, *turns(number, number))


async def test_it_is_there_after_reopening(durable_url: str) -> None:
    async with turnkeeper.open_runtime(durable_url) as runtime:
        memory = runtime.memory("m")
        await say(memory, system("s"), *turns(1, 3))
        async with compacting(memory):
            await say(memory, *turns(4, 4))
        before = await memory.messages()
    async with turnkeeper.open_runtime(durable_url) as runtime:
        memory = runtime.memory("m")
        view = await memory.messages()
        assert (view, view.version, [each.id for each in view]) == (
            before,
            before.version,
            [each.id for each in before],
        )
        assert spoken(view) == "s S1 u3 a3 u4 a4"
        model = Model()
        await memory.compact(model, keep=LAST_TURN)
        assert model.calls == [("u3 a3", "S1")]


async def test_a_set_and_a_clear_take_it_away(memory: ChatMemory, runtime: Runtime) -> None:
    for change in (memory.clear, lambda: memory.set(turns(9, 9))):
        await memory.clear()
        await say(memory, *turns(1, 2))
        await memory.compact(Model(), keep=LAST_TURN)
        await change()
        for _ in range(2):
            assert "S1" not in await line(memory)
            assert unload(runtime, "m")
        model = Model()
        await say(memory, *turns(5, 6))
        await memory.compact(model, keep=LAST_TURN)
        assert model.calls[0][1] == ""


@pytest.mark.parametrize("name", WINDOWS)
async def test_pruning_takes_nothing_that_is_shown(name: str, store_url: str) -> None:
    """`history="window"`: what the window evicts leaves the store; the summary does not, nor what stands beside it."""
    async with turnkeeper.open_runtime(store_url) as runtime:
        memory = runtime.memory("m", window=EVERY[name](5), history="window")
        everything = runtime.memory("m")
        await say(memory, system("ss"), *turns(1, 2))
        await memory.compact(Model(), keep=LAST_TURN)
        for number in range(3, 9):
            before = spoken(await everything.messages())
            await say(memory, *turns(number, number))
            views = [await memory.messages(), await everything.messages()]
            unload(runtime, "m")
            again = [await memory.messages(), await everything.messages()]
            assert again == views
            assert spoken(again[0]).startswith("ss S1 ")
            assert f"a{number}" in spoken(again[0])
            assert spoken(again[1]).startswith(before)


async def test_a_pruned_log_is_compacted_and_pruned_again_after_a_set(store_url: str) -> None:
    async with turnkeeper.open_runtime(store_url) as runtime:
        memory = runtime.memory("m", window=TurnWindow(max_turns=3), history="window")
        await say(memory, system("ss"), *turns(1, 6))
        model = Model()
        await memory.compact(model, keep=LAST_TURN)
        assert model.calls == [("u4 a4 u5 a5", "")]
        for _ in range(2):
            assert await line(memory) == "ss S1 u6 a6"
            assert unload(runtime, "m")
        await memory.set(turns(1, 1))
        await say(memory, *turns(2, 5))
        for _ in range(2):
            assert await line(memory, window=Unbounded()) == "u3 a3 u4 a4 u5 a5"
            assert unload(runtime, "m")


async def test_pruning_below_a_compaction_abandons_it(store_url: str) -> None:
    async with turnkeeper.open_runtime(store_url) as runtime:
        memory = runtime.memory("m", window=TurnWindow(max_turns=3), history="window")
        await say(memory, *turns(1, 3))
        async with compacting(memory) as running:
            await say(memory, *turns(4, 4))
        assert isinstance(running.error, turnkeeper.CompactionAbandonedError)
        assert await line(memory, window=Unbounded()) == "u2 a2 u3 a3 u4 a4"

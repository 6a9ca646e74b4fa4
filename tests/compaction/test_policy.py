"""Compaction by itself: when, how often, how many at once; time is virtual."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, line, say, turns
from support.schedule import Gate
from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    CompactionPolicy,
    InvalidArgumentError,
    Message,
    MessageWindow,
    Runtime,
    TokenWindow,
    TurnkeeperError,
    TurnWindow,
    Unbounded,
)
from turnkeeper.compaction import Compactor
from turnkeeper.testing import unload
from windows.saying import Lengths, user

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)]


SHORT = MessageWindow(4)


def opened(model: Any, *, when: Any = SHORT, keep: Any = LAST_TURN, timeout: Any = 120.0, **more: Any) -> Any:
    """Open a runtime that compacts by itself."""
    policy = CompactionPolicy(model, when=when, keep=keep, timeout=timeout)
    return turnkeeper.open_runtime("memory:", compaction=policy, idle_timeout=None, **more)


async def settled(runtime: Runtime, compactions: int = 0, failures: int = 0) -> None:
    """Wait for so many compactions and failures, and see that no more come."""
    await anyio.sleep(0.01)
    stats = runtime.stats()
    assert (stats.compactions, stats.compaction_failures) == (compactions, failures)


async def test_what_a_window_can_not_show_whole_is_compacted() -> None:
    model = Model()
    async with opened(model) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 2))
        await settled(runtime)
        await memory.add(user("u3"))
        await settled(runtime, 1)
        assert model.calls == [("u1 a1 u2 a2", "")]
        assert await line(memory) == "S1 u3"
        await say(memory, *turns(4, 4))
        await settled(runtime, 1)
        await memory.add(user("u5"))
        await settled(runtime, 2)
        assert model.calls[1] == ("u3 u4 a4", "S1")
        assert await line(memory) == "S2 u5"


@pytest.mark.parametrize(
    "when",
    [
        MessageWindow(4),
        TokenWindow(9, Lengths()),
        TurnWindow(max_turns=2),
        TurnWindow(max_messages=4),
        MessageWindow(lambda memory_id: 4 if memory_id == "m" else 99),
    ],
    ids=["messages", "tokens", "turns", "messages of turns", "by id"],
)
async def test_when_is_any_window_with_a_limit(when: Any) -> None:
    model = Model()
    async with opened(model, when=when) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 2))
        await settled(runtime)
        await say(memory, *turns(3, 3))
        await settled(runtime, 1)
        if callable(when.given_limit):
            await say(runtime.memory("other"), *turns(1, 9))
            await settled(runtime, 1)


async def test_what_was_not_loaded_is_not_taken_for_too_long() -> None:
    """A handle with a small window loads little: whether `when` shows everything has to be looked up."""
    model = Model()
    async with opened(model, when=MessageWindow(100), window=MessageWindow(2)) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 30))
        assert unload(runtime, "m")
        await memory.add(user("u31"))
        await settled(runtime)
        assert model.calls == []
        await say(memory, *turns(32, 51))
        await settled(runtime, 1)


async def test_what_was_not_loaded_is_found_to_be_too_long() -> None:
    model = Model()
    async with turnkeeper.open_runtime("memory:") as runtime:
        store = runtime._core.store
        await say(runtime.memory("m"), *turns(1, 60))
        stored = runtime._core.store
        assert stored is store
        policy = CompactionPolicy(model, when=MessageWindow(50), keep=LAST_TURN)
        compactor = Compactor(runtime._core, policy, 1)
        runtime._core._services.policy = compactor.look
        assert unload(runtime, "m")
        await runtime.memory("m", window=MessageWindow(2)).add(user("u61"))
        await anyio.sleep(0.01)
        assert compactor.done == 1
        assert await line(runtime.memory("m")) == "S1 u61"


async def test_what_is_short_again_when_its_time_comes_costs_no_summary() -> None:
    model = Model(gate=(gate := Gate()))
    with gate:
        async with opened(model, max_compactions=1) as runtime:
            for name in ("first", "second"):
                await say(runtime.memory(name), *turns(1, 3))
            await gate.arrival()
            await anyio.sleep(1)
            await runtime.memory("second").set(turns(7, 7))
            gate.open()
            await settled(runtime, 1)
            assert len(model.calls) == 1
            assert await line(runtime.memory("second")) == "u7 a7"


async def test_failures_back_off_and_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turnkeeper")
    model = Model(*9 * [ConnectionError("secret")])
    async with opened(model) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        for failed, wait in enumerate([1.0, 2.0, 4.0, 8.0, 16.0], 1):
            await settled(runtime, 0, failed)
            await anyio.sleep(wait - 0.1)
            await memory.add(user("early"))
            await settled(runtime, 0, failed)
            await anyio.sleep(0.1)
            await memory.add(user("in-time"))
        await settled(runtime, 0, 6)
        assert len(caplog.messages) == 6
        assert all("ConnectionError" in message and "secret" not in message for message in caplog.messages)
        assert len(model.calls) == 6
        assert (await line(memory)).startswith("u1 a1 u2 a2 u3 a3 ")


async def test_a_success_ends_the_back_off() -> None:
    model = Model(ConnectionError(), ConnectionError())
    async with opened(model) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        for _ in range(2):
            await anyio.sleep(5)
            await memory.add(user("u"))
        await settled(runtime, 1, 2)
        model.replies = [ConnectionError()]
        await say(memory, *turns(4, 5), user("u6"))
        await settled(runtime, 1, 3)
        await anyio.sleep(1)
        await memory.add(user("u7"))
        await settled(runtime, 2, 3)


async def test_a_back_off_is_at_most_five_minutes_however_often_it_failed() -> None:
    async with opened(Model()) as runtime:
        compactor, name = runtime._core.compactor, turnkeeper.names.memory_name("m", "")
        for _ in range(2_000):
            compactor._note_failure(name, ConnectionError())
        assert compactor._failed[name] == (2_000, anyio.current_time() + 300.0)


async def test_failures_of_many_memories_are_not_remembered_for_ever() -> None:
    async with opened(Model()) as runtime:
        compactor = runtime._core.compactor
        for number in range(10_100):
            compactor._note_failure(turnkeeper.names.memory_name(f"m{number}", ""), ConnectionError())
        assert len(compactor._failed) == 10_000
        assert turnkeeper.names.memory_name("m10099", "") in compactor._failed


async def test_a_back_off_is_one_memory_s_own() -> None:
    model = Model(ConnectionError())
    async with opened(model) as runtime:
        await say(runtime.memory("m"), *turns(1, 3))
        await settled(runtime, 0, 1)
        await say(runtime.memory("other"), *turns(1, 3))
        await settled(runtime, 1, 1)


@pytest.mark.parametrize("timeout", [60.0, timedelta(minutes=1)])
async def test_a_slow_summariser_is_given_up(timeout: Any, caplog: pytest.LogCaptureFixture) -> None:
    left: list[float] = []

    async def slow(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        try:
            await anyio.sleep(math.inf)
        finally:
            left.append(anyio.current_time())
        return ""

    async with opened(slow, timeout=timeout) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        await anyio.sleep(59.9)
        assert left == []
        await anyio.sleep(0.2)
        assert len(left) == 1
        await settled(runtime, 0, 1)
        assert "TimeoutError" in caplog.text
        assert await line(memory) == "u1 a1 u2 a2 u3 a3"


async def test_the_timeout_is_the_summariser_s_alone() -> None:
    """Neither waiting for others that are compacted, nor for an open turn, counts."""

    async def takes_a_minute(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        await anyio.sleep(60)
        return "S"

    async with opened(takes_a_minute, timeout=90.0, max_compactions=1) as runtime:
        memories = [runtime.memory(name) for name in "abc"]
        for memory in memories:
            await say(memory, *turns(1, 3))
        async with memories[0].turn() as turn:
            await anyio.sleep(300)
            await turn.add(user("u4"))
        await settled(runtime, 3)
        assert await line(memories[0]) == "S u3 a3 u4"


async def test_a_pool_bounds_how_many_are_compacted_at_once() -> None:
    at_once = most = 0

    async def slow(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.sleep(10)
        at_once -= 1
        return "S"

    async with opened(slow, max_compactions=2) as runtime:
        for name in "abcde":
            await say(runtime.memory(name), *turns(1, 3))
        await anyio.sleep(15)
        assert (at_once, most) == (2, 2)
        by_hand = runtime.memory("by hand")
        await by_hand.add(user("u1"))
        await by_hand.add(user("u2"))
        assert await by_hand.compact(slow, keep=LAST_TURN) is not None
        await anyio.sleep(50)
        await settled(runtime, 6)
        assert most == 2


async def test_what_waits_for_a_turn_to_end_holds_no_place_in_the_pool() -> None:
    model = Model()
    async with opened(model, max_compactions=1) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 2))
        async with memory.turn(commit="each") as turn:
            await turn.add(user("u3"))
            await settled(runtime)
            assert len(model.calls) == 1
            await say(runtime.memory("other"), *turns(1, 3))
            await settled(runtime, 1)
        await settled(runtime, 2)
        assert await line(memory) == "S1 u3"


async def test_one_at_a_time_for_a_memory_however_often_it_is_written() -> None:
    with Gate() as gate:
        model = Model(gate=gate)
        async with opened(model) as runtime:
            memory = runtime.memory("m")
            await say(memory, *turns(1, 9))
            await anyio.sleep(1)
            await say(memory, *turns(10, 12))
            await anyio.sleep(1)
            assert len(model.calls) == 1
            gate.open()
            await settled(runtime, 1)
            assert await line(memory) == "S1 u3 a3 u4 a4 u5 a5 u6 a6 u7 a7 u8 a8 u9 a9 u10 a10 u11 a11 u12 a12"
            await memory.add(user("u13"))
            await settled(runtime, 2)
            assert await line(memory) == "S2 u13"


async def test_an_abandoned_one_is_reported_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with Gate() as gate:
        model = Model(gate=gate)
        async with opened(model) as runtime:
            memory = runtime.memory("m")
            await say(memory, *turns(1, 3))
            await gate.arrival()
            await memory.set(user("new"))
            gate.open()
            await settled(runtime, 0, 1)
            assert "CompactionAbandonedError" in caplog.text
            assert await line(memory) == "new"
            await anyio.sleep(1)
            await say(memory, *turns(4, 6))
            await settled(runtime, 1, 1)


async def test_a_limit_that_fails_is_logged_and_harms_no_write(caplog: pytest.LogCaptureFixture) -> None:
    def fails(memory_id: str) -> int:
        raise ConnectionError("secret")

    async with opened(Model(), when=MessageWindow(fails)) as runtime:
        await say(runtime.memory("m"), *turns(1, 3))
        await settled(runtime)
        assert await line(runtime.memory("m")) == "u1 a1 u2 a2 u3 a3"
        assert "ConnectionError" in caplog.text
        assert "secret" not in caplog.text


async def test_a_summariser_that_raises_a_native_cancellation_harms_nobody(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("trio has no native cancellation")
    model = Model(asyncio.CancelledError())
    async with opened(model) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        await settled(runtime, 0, 1)
        await anyio.sleep(1)
        await memory.add(user("u4"))
        await settled(runtime, 1, 1)
        assert await line(memory) == "S2 u4"


async def test_closing_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turnkeeper")
    with Gate() as gate:
        async with opened(Model(gate=gate)) as runtime:
            await say(runtime.memory("m"), *turns(1, 3))
            await gate.arrival()
        assert runtime.stats().compaction_failures == 0
        assert caplog.messages == []


async def test_closing_waits_for_no_summary_that_waits_for_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turnkeeper")
    model = Model()
    opening = opened(model, close_timeout=10)
    runtime = await opening.__aenter__()
    memory = runtime.memory("m")
    await say(memory, *turns(1, 2))
    with suppress(TurnkeeperError):
        async with memory.turn(commit="each") as turn:
            await turn.add(user("u3"))
            await settled(runtime)
            assert len(model.calls) == 1
            closing = anyio.current_time()
            await opening.__aexit__(None, None, None)
            assert anyio.current_time() - closing < 1
    stats = runtime.stats()
    assert (stats.failed_at_close, stats.compactions, stats.compaction_failures) == (0, 0, 0)
    assert caplog.messages == []


async def test_a_policy_works_for_each_memory_of_each_namespace() -> None:
    async with opened(Model()) as runtime:
        for namespace in ("", "tenant"):
            await say(runtime.memory("m", namespace), *turns(1, 3))
        await settled(runtime, 2)
        assert await line(runtime.memory("m", "tenant")) in ("S1 u3 a3", "S2 u3 a3")


@pytest.mark.parametrize(
    "arguments",
    [
        {"when": Unbounded()},
        {"when": 10},
        {"when": None},
        {"keep": 0},
        {"keep": MessageWindow(3)},
        {"keep": True},
        {"summarizer": "text"},
        {"timeout": -1},
        {"timeout": "soon"},
    ],
)
async def test_a_policy_checks_its_arguments(arguments: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        CompactionPolicy(**{"summarizer": Model(), "when": MessageWindow(4), **arguments})


async def test_defaults() -> None:
    policy = CompactionPolicy(Model(), MessageWindow(100))
    assert (policy.keep, policy.timeout, policy.seconds) == (TurnWindow(max_messages=20), 120.0, 120.0)

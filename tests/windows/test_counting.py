"""What is counted, how often, and where."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import turnkeeper
from turnkeeper import Message, MessageWindow, TokenWindow, TurnWindow, Unbounded
from turnkeeper.testing import unload
from windows.saying import Lengths, answer, calls, log_of, result, spoken, user, view_of

pytestmark = pytest.mark.anyio


def turns(count: int) -> list[dict[str, Any]]:
    """Return turns with a call each; every text is unique."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        ids = f"{number}a", f"{number}b"
        made += [user(f"u{number}"), calls(*ids, text=f"c{number}"), *[result(one, f"r{one}") for one in ids]]
        made.append(answer(f"a{number}"))
    return made


async def test_each_message_is_counted_once_whatever_is_read_and_through_how_many_windows() -> None:
    counter = Lengths()
    async with turnkeeper.open_runtime("memory:", window=TokenWindow(30, counter, on_overflow="evict")) as runtime:
        memory = runtime.memory("m")
        others = [TokenWindow(50, counter), TurnWindow(max_tokens=40, counter=counter), MessageWindow(5), Unbounded()]
        said = turns(40)
        for message in said:
            await memory.add(message)
            await memory.messages()
            for other in others:
                await memory.messages(window=other)
        for limit in (5, 500, 50):
            await memory.messages(window=TokenWindow(limit, counter))
        assert Counter(counter.counted) == Counter(message["content"] for message in said)


async def test_equal_counters_are_one_counter_also_in_a_window_made_for_each_request() -> None:
    """Servers make a handle, and often its window, for every request."""
    counted: list[str] = []

    def tokens(text: str) -> int:
        counted.append(text)
        return len(text)

    async with turnkeeper.open_runtime("memory:") as runtime:
        for number in range(20):
            memory = runtime.memory("m", window=TokenWindow(500, tokens))
            await memory.add(user(f"u{number}"))
            await memory.messages()
            await memory.messages(window=TurnWindow(max_tokens=500, counter=tokens))
    assert Counter(counted) == Counter(f"u{number}" for number in range(20))


async def test_several_counters_count_each_message_once_each() -> None:
    one, two, three = Lengths(), Lengths(0), Lengths(2)
    async with turnkeeper.open_runtime("memory:", window=TokenWindow(900, one)) as runtime:
        memory = runtime.memory("m")
        ids = [str(number) for number in range(60)]
        said = [user("u"), calls(*ids, text="c"), *[result(one, f"r{one}") for one in ids], answer("a")]
        for message in said:
            await memory.add(message)
            await memory.messages()
            for other in (two, three):
                await memory.messages(window=TokenWindow(900, other))
        await memory.add(user("last"))
    for counter in (one, two, three):
        assert len(counter.counted) == len(said) + 1, "results of one exchange don't make its others be counted again"


def test_a_limit_that_changes_counts_nothing_again() -> None:
    counter = Lengths()
    log = log_of(*turns(20))
    window = TokenWindow(10, counter)
    view_of(log, window)
    counted = len(counter.counted)
    assert counted == 100
    for limit in (1, 100, 7, 10_000, 50):
        log.view(window, limit)
    assert len(counter.counted) == counted


async def test_after_a_reload_what_is_shown_is_counted_once_more_and_little_else() -> None:
    counter = Lengths()
    async with turnkeeper.open_runtime("memory:", window=TokenWindow(20, counter, on_overflow="evict")) as runtime:
        memory = runtime.memory("m")
        for message in turns(100):
            await memory.add(message)
        unload(runtime, "m")
        counter.counted.clear()
        await memory.messages()
        assert len(counter.counted) == len(set(counter.counted)) <= 32
        await memory.messages()
        await memory.add(user("new"))
        assert len(counter.counted) == len(set(counter.counted)) <= 33


async def test_counting_happens_in_the_callers_thread_and_for_what_is_loaded_in_the_readers(tmp_path: Path) -> None:
    threads: list[str] = []

    class Where(Lengths):
        def count(self, message: Message) -> int:
            threads.append(threading.current_thread().name)
            return super().count(message)

    window = TokenWindow(1_000, Where())
    async with turnkeeper.open_runtime(f"sqlite:///{tmp_path}/chats.db") as runtime:

        def add() -> str:
            runtime.sync.memory("m", window=window).add([user("1"), user("2")])
            return threading.current_thread().name

        caller = await anyio.to_thread.run_sync(add)
        assert threads == [caller] * 2
        threads.clear()
        memory = runtime.memory("m", window=window)
        await memory.messages()
        assert threads == [], "they are counted already"
        unload(runtime, "m")
        await memory.messages()
        assert threads == ["turnkeeper read"] * 2, "a cold read counts off the event loop"


async def test_a_count_that_failed_in_a_read_is_estimated_once() -> None:
    class Broken(Lengths):
        def count(self, message: Message) -> int:
            super().count(message)
            raise OSError("no network")

    counter = Broken()
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await memory.add([user("1"), user("2")])
        for limit in (1_000, 1_001, 1_002, 1_003, 1_004, 1_000):
            assert spoken(await memory.messages(window=TokenWindow(limit, counter))) == "1 2"
        assert len(counter.counted) == 2

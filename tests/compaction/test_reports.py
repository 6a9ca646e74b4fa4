"""What people who do this job report about replacing and compacting: rows of FIELD.md, section 4, and their kin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from turnkeeper import (
    ChatMemory,
    CompactionPolicy,
    InvalidArgumentError,
    Message,
    MessageWindow,
    Runtime,
    StoreUnavailableError,
    TokenWindow,
    TurnWindow,
    Unbounded,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore, store_from_url
from turnkeeper.testing import FaultStore, unload
from turnkeeper.testing.prompts import Provider, check_prompt
from windows.saying import Lengths, answer, calls, result, spoken, system, user

pytestmark = pytest.mark.anyio

PROVIDERS: tuple[Provider, ...] = get_args(Provider)


async def test_p50_a_store_that_fails_in_a_replacement_takes_nothing_away(store_url: str) -> None:
    store = FaultStore(store_from_url(store_url))
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        replacing: list[Callable[[], Awaitable[object]]] = [
            lambda: memory.set(user("new")),
            lambda: memory.compact(Model(), keep=LAST_TURN),
        ]
        for replace in replacing:
            store.fail_before(1)
            with pytest.raises(StoreUnavailableError):
                await replace()
            unload(runtime, "m")
            assert await line(memory) == "u1 a1 u2 a2 u3 a3"


async def test_p51_what_is_added_while_the_summary_is_in_flight_stays(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory):
        await say(memory, *turns(4, 5))
    assert await line(memory) == "S1 u3 a3 u4 a4 u5 a5"


async def test_p52_a_small_window_compacts_and_deletes_nothing_it_did_not_sum_up(
    runtime: Runtime, memory: ChatMemory
) -> None:
    small = runtime.memory("m", window=MessageWindow(10))
    await say(memory, *turns(1, 50))
    unload(runtime, "m")
    model = Model()
    await small.compact(model, keep=4)
    seen = model.calls[0][0].split()
    assert len(seen) == 96
    assert await line(memory, window=Unbounded()) == "S1 u49 a49 u50 a50"
    entries = runtime._core.store.entries((await memory.messages()).version.mid, after=0, limit=999)
    assert len(entries) == 101


async def test_p53_a_clear_takes_the_summary_along(memory: ChatMemory, runtime: Runtime) -> None:
    await say(memory, *turns(1, 2))
    await memory.compact(Model(), keep=LAST_TURN)
    await memory.clear()
    unload(runtime, "m")
    assert await line(memory) == ""
    await say(memory, *turns(3, 4))
    model = Model("again")
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u3 a3", "")]
    assert await line(memory) == "again u4 a4"


@pytest.mark.parametrize("window", [TurnWindow(max_messages=1), TokenWindow(2, Lengths(0), on_overflow="evict")])
async def test_p54_limits_hold_over_every_store(window: Any, store_url: str) -> None:
    async with turnkeeper.open_runtime(store_url, window=window, history="window") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 9))
        unload(runtime, "m")
        assert await line(memory) == ("u9 a9" if isinstance(window, TurnWindow) else "a9")
        assert await line(memory, window=Unbounded()) == await line(memory)


async def test_p54_a_policy_trims_over_every_store(store_url: str) -> None:
    policy = CompactionPolicy(Model(), when=MessageWindow(6), keep=LAST_TURN)
    async with turnkeeper.open_runtime(store_url, compaction=policy) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 4))
        while runtime.stats().compactions == 0:
            await anyio.lowlevel.checkpoint()
        unload(runtime, "m")
        assert (await line(memory)).startswith("S1 u4")


async def test_p55_blocking_and_async_code_compact_by_the_same_rule(memory: ChatMemory, runtime: Runtime) -> None:
    other = runtime.sync.memory("other")

    def in_a_thread() -> str:
        for each in turns(1, 10):
            other.add(each)
        other.compact(lambda messages, summary: "S1", keep=4)
        return spoken(other.messages())

    await say(memory, *turns(1, 10))
    await memory.compact(Model(), keep=4)
    assert await anyio.to_thread.run_sync(in_a_thread) == await line(memory) == "S1 u9 a9 u10 a10"


async def test_d3_to_replace_by_nothing_is_refused(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2))
    before = await memory.messages()
    nothing: list[Any] = [[], (), iter(())]
    for given in nothing:
        with pytest.raises(InvalidArgumentError):
            await memory.set(given)
    with pytest.raises(turnkeeper.CompactionError):
        await memory.compact(Model([]), keep=LAST_TURN)
    assert await memory.messages() is before


async def test_d4_nobody_s_list_is_kept(memory: ChatMemory) -> None:
    given: list[dict[str, Any]] = turns(1, 1)
    await memory.set(given)
    await memory.add(user("u2"))
    summary = [system("S1")]
    await memory.compact(Model(summary), keep=LAST_TURN)
    given.clear()
    summary[0]["content"] = "changed"
    summary.clear()
    assert await line(memory) == "S1 u2"
    (await memory.messages()).to_dicts().clear()
    assert await line(memory) == "S1 u2"


async def test_d10_a_cut_is_never_in_calls_that_are_open_or_come_meanwhile(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 2), user("u3"), calls("1", "2"), result("1", "r1"))
    async with compacting(memory) as running:
        assert running.model.calls == [("u1 a1 u2 a2", "")]
        await say(memory, result("2", "r2"), calls("3"), result("3", "r3"), answer("a3"))
    view = await memory.messages()
    assert spoken(view) == "S1 u3 call:1,2 r1 r2 call:3 r3 a3"
    for provider in PROVIDERS:
        check_prompt(view[1:], provider)


async def test_d10_a_parallel_batch_that_is_not_answered_stays_whole(memory: ChatMemory) -> None:
    await say(memory, user("u1"), calls("1", "2", "3"), result("2", "r2"))
    assert await memory.compact(Model(), keep=1) is None
    assert await line(memory) == "u1 call:1,2,3 r2"


async def test_a6_what_is_left_behind_the_summary_has_no_result_without_its_call(memory: ChatMemory) -> None:
    said = [user("u1"), calls("1"), result("1", "r1"), calls("2"), result("2", "r2"), answer("a1"), *turns(2, 2)]
    for keep in range(1, 9):
        await memory.set(system("s"))
        await say(memory, *said)
        await memory.compact(Model(), keep=keep)
        assert await line(memory) in ("s S1 u2 a2", "s u1 call:1 r1 call:2 r2 a1 u2 a2")


async def test_a8_a_summary_never_splits_a_pair(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 1), user("u2"), calls("1"), result("1", "r1"), answer("a2"), *turns(3, 3))
    model = Model()
    await memory.compact(model, keep=TurnWindow(max_messages=5))
    assert model.calls == [("u1 a1 u2 call:1 r1 a2", "")]
    assert await line(memory) == "S1 u3 a3"


async def test_p35_summary_and_cut_are_one_entry(tmp_path: Path) -> None:
    """There is no flag that could be stored without the summary: one commit has both, or neither is there."""
    store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        commits = store.calls["commit"]
        await memory.compact(Model(), keep=LAST_TURN)
        assert store.calls["commit"] == commits + 1
    async with turnkeeper.open_runtime(SQLiteStore(tmp_path / "chats.db")) as runtime:
        assert await line(runtime.memory("m")) == "S1 u3 a3"


async def test_b12_an_orphaned_call_does_not_freeze_the_cut(memory: ChatMemory) -> None:
    await say(
        memory, user("u1"), calls("1", "2"), result("2", "r2"), user("u2"), result("9", "of no call"), *turns(3, 4)
    )
    model = Model()
    await memory.compact(model, keep=LAST_TURN)
    assert model.calls == [("u1 call:1,2 r2 ~1 u2 u3 a3", "")]
    assert await line(memory) == "S1 u4 a4"


async def test_c8_c10_a_prompt_that_was_read_stays_as_it_is_and_appends_are_not_lost(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    prompt = await memory.messages()
    async with compacting(memory) as running:
        await memory.add(user("u4"))
    assert running.returned
    assert spoken(prompt) == "u1 a1 u2 a2 u3 a3"
    with pytest.raises(turnkeeper.ConflictError):
        await memory.set(user("from the old prompt"), if_version=prompt.version)
    assert await line(memory) == "S1 u3 a3 u4"


async def test_c11_calls_and_results_that_arrive_during_a_compaction_are_kept_together() -> None:
    store = InMemoryStore()
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))

        async def takes_minutes(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            await say(memory, user("u4"), calls("1", "2"), result("2", "r2"))
            unload(runtime, "m")
            return "S1"

        await memory.compact(takes_minutes, keep=LAST_TURN)
        await memory.add(result("1", "r1"))
        unload(runtime, "m")
        assert await line(memory) == "S1 u3 a3 u4 call:1,2 r2 r1"

"""Compaction and turns: neither tears the other, and nobody waits for a summariser."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, compacting, line, say, turns
from support.schedule import Gate
from turnkeeper import (
    ChatMemory,
    CompactionError,
    CompactionPolicy,
    IdempotencyMismatchError,
    Message,
    MessageWindow,
    NestedTurnError,
    Runtime,
    TurnAlreadyCommittedError,
    TurnInterruptedError,
)
from turnkeeper.testing import unload
from turns.tools import BOUND, until
from windows.saying import answer, spoken, user

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("commit", ["turn", "each"])
async def test_a_turn_is_written_while_the_summariser_works(commit: str, memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory) as running:
        async with memory.turn(commit=commit) as turn:  # type: ignore[arg-type]
            await turn.add(user("u4"))
            await turn.add(answer("a4"))
        assert turn.receipt is not None
    assert running.returned
    assert await line(memory) == "S1 u3 a3 u4 a4"


@pytest.mark.parametrize("commit", ["turn", "each"])
async def test_the_summary_waits_for_the_open_turn(commit: str, runtime: Runtime, memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    model = Model()
    async with anyio.create_task_group() as tasks:
        with Gate() as gate:

            async def in_a_turn() -> None:
                async with memory.turn(commit=commit) as turn:  # type: ignore[arg-type]
                    await turn.add(user("u4"))
                    await gate.stop()
                    assert (await turn.messages())[0].text == "u1"
                    await turn.add(answer("a4"))

            async def compact() -> None:
                assert await memory.compact(model, keep=LAST_TURN) is not None

            tasks.start_soon(in_a_turn)
            await gate.arrival()
            tasks.start_soon(compact)
            while not model.calls:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert (await line(memory)).startswith("u1 a1 u2 a2 u3 a3")
            assert runtime.stats().compactions == 0
            gate.open()
    shown = "S1 u3 a3 u4 a4" if commit == "turn" else "S1 u4 a4"
    assert await line(memory) == shown


async def test_a_turn_that_fails_leaves_the_summary(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    async with compacting(memory) as running:
        with suppress(ZeroDivisionError):
            async with memory.turn() as turn:
                await turn.add(user("u4"))
                raise ZeroDivisionError
    assert running.returned
    assert await line(memory) == "S1 u3 a3"


async def test_a_turn_that_opens_after_the_summary_shows_it_and_its_own(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    await memory.compact(Model(), keep=LAST_TURN)
    async with memory.turn() as turn:
        await turn.add(user("u4"))
        assert [each.text for each in await turn.messages()] == ["S1", "u3", "a3", "u4"]
    assert await line(memory) == "S1 u3 a3 u4"


async def test_a_rolled_back_turn_leaves_summary_and_system_message(memory: ChatMemory, runtime: Runtime) -> None:
    await say(memory, {"role": "system", "content": "s"}, *turns(1, 3))
    await memory.compact(Model(), keep=LAST_TURN)
    with Gate() as gate:
        async with anyio.create_task_group() as tasks:

            async def to_be_rolled_back() -> None:
                with suppress(TurnInterruptedError):
                    async with memory.turn(commit="each") as turn:
                        await turn.add({"role": "system", "content": "other"}, user("gone"))
                        await gate.stop()
                        await turn.messages()

            tasks.start_soon(to_be_rolled_back)
            await gate.arrival()
            async with memory.turn(on_busy="rollback") as turn:
                await turn.add(user("u4"))
            gate.open()
    for _ in range(2):
        assert await line(memory) == "s S1 u3 a3 u4"
        unload(runtime, "m")


async def test_inside_a_turn_it_is_refused_at_once() -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, *turns(1, 3))
        async with memory.turn() as turn:
            await turn.add(user("u4"))
            with anyio.move_on_after(0.2):
                with pytest.raises(NestedTurnError):
                    await memory.compact(Model(), keep=LAST_TURN)
                return
        pytest.fail("it waits for its own turn")


async def test_a_summariser_may_say_something_in_a_turn_of_the_same_memory(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))

    async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        async with memory.turn() as turn:
            await turn.add(turns(4, 4))
            assert spoken(await turn.messages()) == "u1 a1 u2 a2 u3 a3 u4 a4"
        return "S1"

    with anyio.fail_after(10):
        await memory.compact(summarise, keep=LAST_TURN)
    assert await line(memory) == "S1 u3 a3 u4 a4"


async def test_a_compaction_of_the_same_memory_in_a_summariser_is_refused_at_once(memory: ChatMemory) -> None:
    await say(memory, *turns(1, 3))
    inner = Model()

    async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        with pytest.raises(CompactionError, match="under way"):
            await memory.compact(inner, keep=LAST_TURN)
        return "S1"

    with anyio.fail_after(10):
        await memory.compact(summarise, keep=LAST_TURN)
    assert await line(memory) == "S1 u3 a3"
    assert inner.calls == []


async def conversations(runtime: Runtime, *ids: str) -> list[ChatMemory]:
    memories = [runtime.memory(memory_id) for memory_id in ids]
    for memory in memories:
        await say(memory, *turns(1, 3))
    return memories


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_summariser_may_compact_another_memory_where_there_is_room(at_once: int, blocking: bool) -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=at_once) as runtime:
        ours, others = await conversations(runtime, "ours", "others")
        refused: list[str] = []

        async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            try:
                await others.compact(Model(), keep=LAST_TURN)
            except CompactionError as error:
                refused.append(str(error))
            return "S"

        def summarise_in_thread(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            try:
                runtime.sync.memory("others").compact(lambda messages, summary: "S1", keep=LAST_TURN)
            except CompactionError as error:
                refused.append(str(error))
            return "S"

        with anyio.fail_after(BOUND):
            await ours.compact(summarise_in_thread if blocking else summarise, keep=LAST_TURN)
        assert await line(ours) == "S u3 a3"
        if at_once == 1:
            assert len(refused) == 1
            assert "max_compactions=1" in refused[0]
        assert await line(others) == ("u1 a1 u2 a2 u3 a3" if at_once == 1 else "S1 u3 a3")


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_policy_s_summariser_may_compact_another_memory_where_there_is_room(at_once: int) -> None:
    compacted: list[bool] = []

    async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        try:
            await others.compact(Model(), keep=LAST_TURN)
        except CompactionError:
            compacted.append(False)
        else:
            compacted.append(True)
        return "S"

    policy = CompactionPolicy(summarise, when=MessageWindow(lambda name: 6 if name == "ours" else 99), keep=LAST_TURN)
    async with turnkeeper.open_runtime("memory:", compaction=policy, max_compactions=at_once) as runtime:
        ours, others = await conversations(runtime, "ours", "others")
        await ours.add(user("u4"))
        await until(lambda: runtime.stats().compactions == at_once)
        assert compacted == [at_once == 2]
        assert runtime.stats().compaction_failures == 0
        assert await line(ours) == "S u4"


async def test_summarisers_that_compact_each_other_s_neighbours_never_wait_for_each_other() -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=2) as runtime:
        memories = await conversations(runtime, "0", "1", "2", "3")
        refused = 0

        def summariser(number: int) -> Any:
            async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
                nonlocal refused
                await both.stop()
                try:
                    await memories[number].compact(Model(), keep=LAST_TURN)
                except CompactionError:
                    refused += 1
                return "S"

            return summarise

        with Gate() as both, anyio.fail_after(BOUND):
            async with anyio.create_task_group() as tasks:

                async def compact(number: int) -> None:
                    await memories[number].compact(summariser(number + 2), keep=LAST_TURN)

                for number in range(2):
                    tasks.start_soon(compact, number)
                await both.arrival(2)
                both.open()
        assert refused >= 1
        assert [await line(memory) for memory in memories[:2]] == ["S u3 a3", "S u3 a3"]


async def test_what_a_summariser_has_started_waits_in_line_once_it_is_over() -> None:
    async with turnkeeper.open_runtime("memory:", max_compactions=1) as runtime:
        first, second, third = await conversations(runtime, "first", "second", "third")
        with Gate() as gate:
            async with anyio.create_task_group() as tasks:

                async def later() -> None:
                    await gate.arrival()
                    await second.compact(Model(), keep=LAST_TURN)

                async def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
                    tasks.start_soon(later)
                    return "S"

                async def compact_third() -> None:
                    await third.compact(Model(gate=gate), keep=LAST_TURN)

                await first.compact(summarise, keep=LAST_TURN)
                tasks.start_soon(compact_third)
                await gate.arrival()
                await until(lambda: runtime._core.compactor._places.statistics().tasks_waiting == 1)
                gate.open()
        assert await line(second) == "S1 u3 a3"


async def test_keys_survive_it(runtime: Runtime, memory: ChatMemory) -> None:
    """What a retry stands for may be summed up by now: it is not said again."""
    first = await memory.add(turns(1, 1), idempotency_key="of an add")
    async with memory.turn(idempotency_key="of a turn") as turn:
        await turn.add(turns(2, 2))
    await say(memory, *turns(3, 3))
    await memory.compact(Model(), keep=LAST_TURN)
    unload(runtime, "m")
    assert await memory.add(turns(1, 1), idempotency_key="of an add") == first
    with pytest.raises(IdempotencyMismatchError):
        await memory.add(turns(4, 4), idempotency_key="of an add")
    with pytest.raises(TurnAlreadyCommittedError) as caught:
        await memory.turn(idempotency_key="of a turn").__aenter__()
    assert caught.value.receipt == turn.receipt
    assert await line(memory) == "S1 u3 a3"

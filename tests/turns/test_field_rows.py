"""FIELD.md sections 1 and 3, as far as turns and retries answer them: each report as a test of the right behaviour.

The rows that need no turn are in `tests/test_field.py`, those about dead processes in `tests/processes/test_turns.py`.
"""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from turnkeeper import (
    ChatMemory,
    ConflictError,
    Receipt,
    Runtime,
    StoreUnavailableError,
    Turn,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnConflictError,
    TurnInterruptedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, check_prompt
from turns.tools import BOUND, Call, assistant, call, passes, pending, result, texts, unloaded, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


class ModelError(Exception):
    """The provider refused, or could not be reached."""


async def agent(memory: ChatMemory, name: str, rounds: int = 1, **options: Any) -> None:
    """Answer a question as an agent does: a call, its result, and so on, then the answer; each prompt is checked."""
    async with memory.turn(**options) as turn:
        await turn.add(user(f"question {name}"))
        for number in range(rounds):
            check_prompt((await turn.messages()).to_dicts())
            await passes(3)
            await turn.add(call(f"{name}.{number}"))
            await passes(3)
            await turn.add(result(f"{name}.{number}"))
        check_prompt((await turn.messages()).to_dicts())
        await turn.add(assistant(f"answer {name}"))


async def shown(memory: ChatMemory) -> list[dict[str, Any]]:
    return (await memory.messages()).to_dicts()


class TestRaces:
    async def test_p1_p14_c1_c4_c12_runs_started_together_are_stored_one_after_the_other(
        self, memory: ChatMemory
    ) -> None:
        async with anyio.create_task_group() as group:
            for name in "abcde":
                group.start_soon(agent, memory, name, 2)
        stored = await shown(memory)
        assert len(stored) == 5 * 6
        for start in range(0, 30, 6):
            name = stored[start]["content"].removeprefix("question ")
            roles = [message["role"] for message in stored[start : start + 6]]
            assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
            assert stored[start + 5]["content"] == f"answer {name}"
        check_prompt([*stored, user("next")])

    async def test_p2_a_turn_held_across_a_slow_model_call_overwrites_nothing(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        async with anyio.create_task_group() as group:
            async with memory.turn() as turn:
                await turn.add(user("slow"))
                saving = Call(group, memory.add, user("saved meanwhile"))
                await pending(runtime, 1)
                await turn.add(assistant("answer"))
            assert isinstance(await saving.result(), Receipt)
        assert await texts(memory) == ["slow", "answer", "saved meanwhile"]

    async def test_c5_parallel_saves_lose_no_update(self, runtime: Runtime) -> None:
        """Each reads, changes and replaces the whole; one that comes too late is told, and does it again."""

        async def save(name: str) -> None:
            memory = runtime.memory("m")
            while True:
                prompt = await memory.messages()
                await passes(2)
                try:
                    await memory.set([*prompt, user(name)], if_version=prompt.version)
                except ConflictError:
                    continue
                return

        async def save_in_turn(name: str) -> None:
            async with runtime.memory("m").turn() as turn:
                await passes(2)
                await turn.add(user(f"{name} after {len(await turn.messages())}"))

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(save, f"save {number}")
                group.start_soon(save_in_turn, f"turn {number}")
        stored = await texts(runtime.memory("m"))
        assert {text.partition(" after")[0] for text in stored} == {
            f"{how} {n}" for how in ("save", "turn") for n in range(8)
        }
        assert len(stored) == 16
        for place, text in enumerate(stored):
            if text.startswith("turn"):
                assert text.endswith(f" after {place}"), "nobody else wrote while it was open"

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_p4_of_two_writers_one_is_told_and_gets_its_messages_back(self, tmp_path: Any, commit: Any) -> None:
        """The lease is taken away by another runtime: paid work is not lost, and nothing is unreachable."""
        one, two = (SQLiteStore(tmp_path / "chats.db", shared=True) for _ in range(2))
        async with open_runtime(one) as first, open_runtime(two) as second, anyio.create_task_group() as group:
            mine, other = first.memory("m"), second.memory("m")
            await mine.add(user("before"))
            turn = mine.turn(commit=commit)
            await turn.__aenter__()
            if commit == "turn":
                await turn.add(user("q"), assistant("paid for"))
            await Call(group, lambda: agent(other, "other", on_busy="interrupt")).result()
            with pytest.raises(TurnConflictError) as caught:
                if commit == "each":
                    await turn.add(user("q"), assistant("paid for"))
                await turn.__aexit__(None, None, None)
            assert caught.value.messages == [user("q"), assistant("paid for")]
            await turn.__aexit__(ValueError, None, None)
            await mine.add(caught.value.messages)
            assert (await texts(other))[-2:] == ["q", "paid for"]

    async def test_p14_c4_or_the_second_submit_is_rejected(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group, memory.turn() as turn:
            await turn.add(user("first"))
            second = Call(group, lambda: agent(memory, "second", on_busy="reject"))
            assert isinstance(await second.result(), TurnBusyError)
        assert await texts(memory) == ["first"]

    async def test_c11_what_is_said_while_a_turn_lasts_is_queued_and_not_lost(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        async with anyio.create_task_group() as group:
            async with memory.turn() as turn:
                await turn.add(user("q"), call("c"))
                delivered = [Call(group, memory.add, user(f"delivered {number}")) for number in range(3)]
                await pending(runtime, 3)
                await turn.add(result("c"), assistant("a"))
            for each in delivered:
                assert isinstance(await each.result(), Receipt)
        stored = await shown(memory)
        assert [message["role"] for message in stored] == ["user", "assistant", "tool", "assistant", *["user"] * 3]


class TestInterrupted:
    @pytest.mark.parametrize("how", ["cancel", "interrupt", "error"])
    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_p37_p41_stopped_while_a_tool_runs_the_session_stays_usable(
        self, runtime: Runtime, memory: ChatMemory, how: str, commit: Any
    ) -> None:
        for number in range(3):  # dangling calls do not pile up either
            async with anyio.create_task_group() as group:
                in_tool = anyio.Event()

                async def stopped(number: int = number, in_tool: anyio.Event = in_tool) -> None:
                    async with memory.turn(commit=commit) as turn:
                        await turn.add(user(f"q{number}"), call(f"c{number}"))
                        in_tool.set()
                        if how == "error":
                            raise TurnBusyError("the tool's")
                        await turn.interrupted()

                running = Call(group, stopped)
                await in_tool.wait()
                if how == "cancel":
                    running.scope.cancel()
                    await running.result()
                await Call(group, lambda: agent(memory, "next", on_busy="interrupt")).result()
                await running.result()
        await unloaded(runtime)
        prompt = await shown(memory)
        check_prompt([*prompt, user("go on")])
        questions = [message["content"] for message in prompt if message["role"] == "user"]
        kept = ["q0", "question next", "q1", "question next", "q2", "question next"]
        assert questions == (kept if commit == "each" else kept[1::2])

    async def test_p39_a_session_is_repaired_on_load_also_its_last_message_and_ids_that_do_not_match(
        self, durable_url: str
    ) -> None:
        """The process is gone after a call, and after a result of another id: no copy of the session is changed."""
        async with open_runtime(durable_url) as runtime:
            with pytest.raises(ModelError):
                async with runtime.memory("m").turn(commit="each") as turn:
                    await turn.add(user("q1"), call("c1"))
                    await turn.add(result("other", "for nobody"))
                    await turn.add(call("c2"))
                    raise ModelError
        for _ in range(2):
            async with open_runtime(durable_url) as runtime:
                memory = runtime.memory("m")
                async with memory.turn() as turn:
                    await turn.add(user("q2"))
                    prompt = (await turn.messages()).to_dicts()
                    check_prompt(prompt)
                    assert prompt[-1] == user("q2")
                    assert prompt[0] == user("q1")
                    assert {each.get("tool_call_id") for each in prompt} == {None, "c1", "c2"}
                check_prompt([*await shown(memory), user("q3")])

    async def test_p42_a_write_that_failed_after_a_tool_is_tried_again_before_the_next_model_call(self) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            async with memory.turn(commit="each") as turn:
                await turn.add(user("q"), call("c"))
                store.fail_before()
                with pytest.raises(StoreUnavailableError):
                    await turn.add(result("c"))
                check_prompt((await turn.messages(window=None)).to_dicts()[:1])
                await turn.add(result("c"))
                check_prompt((await turn.messages()).to_dicts())
                await turn.add(assistant("a"))
            assert len(await shown(memory)) == 4

    async def test_p43_b2_both_halves_of_an_exchange_are_written_with_the_turn_or_not_at_all(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        """The tool's name is unknown, its arguments are malformed, the limit of rounds is reached: the turn fails."""
        with pytest.raises(LookupError):
            async with memory.turn() as turn:
                await turn.add(user("q"), call("missing"))
                raise LookupError("no such tool")
        assert await shown(memory) == []
        await agent(memory, "next")
        assert len(await shown(memory)) == 4

    @pytest.mark.parametrize("key", [None, "request-1"])
    async def test_b3_b4_a_model_error_and_a_retry_store_the_question_once(
        self, memory: ChatMemory, key: str | None
    ) -> None:
        failures = 2

        async def attempt() -> None:
            nonlocal failures
            async with memory.turn(idempotency_key=key) as turn:
                await turn.add(user("q"))
                if failures:
                    failures -= 1
                    raise ModelError
                await turn.add(assistant("a"))

        for _ in range(2):
            with pytest.raises(ModelError):
                await attempt()
        await attempt()
        assert await texts(memory) == ["q", "a"]
        if key is not None:
            with pytest.raises(TurnAlreadyCommittedError):
                await attempt()
            assert await texts(memory) == ["q", "a"]

    async def test_b5_an_unwanted_turn_is_kept_out(self, memory: ChatMemory) -> None:
        class RefusedByPolicyError(Exception):
            pass

        async def guarded(turn: Turn) -> None:
            await turn.add(user("something unwanted"), assistant("an answer"))
            raise RefusedByPolicyError

        with pytest.raises(RefusedByPolicyError):
            await memory.run_turn(guarded)
        assert await shown(memory) == []

    async def test_b6_b7_the_rounds_of_a_stream_stay_messages_of_their_own(self, durable_url: str) -> None:
        """A call arrives in chunks in round one, a text in round two: two messages, no call lost, none in the text."""
        rounds: list[list[dict[str, Any]]] = [
            [
                {"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": ""}}]},
                {"tool_calls": [{"function": {"arguments": '{"city": '}}]},
                {"tool_calls": [{"function": {"arguments": '"Oslo"}'}}]},
            ],
            [{"content": "It "}, {"content": "rains."}],
        ]

        async def streamed(memory: ChatMemory) -> AsyncIterator[dict[str, Any]]:
            async with memory.turn() as turn:
                await turn.add(user("q"))
                for chunks in rounds:
                    check_prompt((await turn.messages()).to_dicts())
                    said: dict[str, Any] = {"role": "assistant", "content": None}
                    for chunk in chunks:
                        yield chunk
                        if "content" in chunk:
                            said["content"] = (said["content"] or "") + chunk["content"]
                        for call_ in chunk.get("tool_calls", ()):
                            calls = said.setdefault(
                                "tool_calls", [{"id": call_.get("id"), "function": {"arguments": ""}}]
                            )
                            function = calls[0]["function"]
                            function.setdefault("name", call_["function"].get("name"))
                            function["arguments"] += call_["function"]["arguments"]
                    await turn.add(said)
                    for call_ in said.get("tool_calls", ()):
                        await turn.add(result(call_["id"], "rain"))

        async with open_runtime(durable_url) as runtime:
            chunks = [chunk async for chunk in streamed(runtime.memory("m"))]
            assert chunks == [*rounds[0], *rounds[1]]
        async with open_runtime(durable_url) as runtime:
            stored = await shown(runtime.memory("m"))
        check_prompt([*stored, user("next")])
        assert [message["role"] for message in stored] == ["user", "assistant", "tool", "assistant"]
        assert stored[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"city": "Oslo"}'}
        assert stored[1]["content"] is None
        assert stored[3] == assistant("It rains.")

    async def test_b8_a_tool_that_ends_the_turn_is_a_success(self, memory: ChatMemory) -> None:
        async def immediate() -> str:
            async with memory.turn() as turn:
                await turn.add(user("q"), call("c"))
                await turn.add(result("c", "returned as it is"))
                return "returned as it is"

        assert await immediate() == "returned as it is"
        assert [message["role"] for message in await shown(memory)] == ["user", "assistant", "tool"]

    async def test_b9_what_the_turn_said_survives_its_tool_loop(self, memory: ChatMemory) -> None:
        async with memory.turn() as turn:
            await turn.add(user("q"))
            for number in range(3):
                await turn.add(call(str(number)), result(str(number)))
                assert len(await turn.messages()) == 3 + 2 * number
        assert len(await shown(memory)) == 7

    async def test_b10_a_conversation_that_ends_with_a_result_is_resumed(self, durable_url: str) -> None:
        """A human approved the call after a restart: the next turn goes on where the last one stopped."""
        async with open_runtime(durable_url) as runtime, runtime.memory("m").turn() as turn:
            await turn.add(user("q"), call("c"))
        async with open_runtime(durable_url) as runtime:
            memory = runtime.memory("m")
            async with memory.turn() as turn:
                await turn.add(result("c", "approved"))
                prompt = (await turn.messages()).to_dicts()
                check_prompt(prompt)
                assert prompt == [user("q"), call("c"), result("c", "approved")]
                await turn.add(assistant("a"))
            assert [message["role"] for message in await shown(memory)] == ["user", "assistant", "tool", "assistant"]

    async def test_b11_a_turn_starts_with_nothing_of_an_earlier_one(self, memory: ChatMemory) -> None:
        await agent(memory, "first")
        with pytest.raises(ModelError):
            async with memory.turn() as turn:
                await turn.add(user("lost"), call("open"))
                raise ModelError
        async with memory.turn() as turn:
            assert (await turn.messages())[-1].text == "answer first"
            await turn.add(user("second"))
        assert (await texts(memory))[-1] == "second"

    async def test_b3_a_client_that_times_out_and_sends_again_is_answered_exactly_once(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        """The first attempt still runs when the second one comes; then that one finds the receipt."""
        models = 0

        async def serve() -> object:
            nonlocal models
            try:
                async with memory.turn(idempotency_key="request-1", timeout=BOUND) as turn:
                    await turn.add(user("q"))
                    models += 1
                    await passes(10)
                    await turn.add(assistant("a"))
            except TurnAlreadyCommittedError as committed:
                return committed.receipt
            return turn.receipt

        async with anyio.create_task_group() as group:
            attempts = [Call(group, serve) for _ in range(3)]
            receipts = {(await attempt.result()).version for attempt in attempts}
        assert (models, len(receipts)) == (1, 1)
        assert await texts(memory) == ["q", "a"]

    async def test_p37_an_interrupted_turn_does_not_come_back(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            opened, go_on = anyio.Event(), anyio.Event()

            async def late() -> None:
                async with memory.turn() as turn:
                    await turn.add(user("late question"))
                    opened.set()
                    await go_on.wait()
                    await turn.add(assistant("late answer"))

            running = Call(group, late)
            await opened.wait()
            await Call(group, lambda: agent(memory, "new", on_busy="rollback")).result()
            go_on.set()
            assert isinstance(await running.result(), TurnInterruptedError)
        assert len(await shown(memory)) == 4

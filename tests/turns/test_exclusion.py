"""One turn at a time: it commits one entry, writes wait in order, reads never do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    InvalidArgumentError,
    InvalidMessageError,
    MessageWindow,
    OverloadedError,
    Receipt,
    Runtime,
    Turn,
    TurnBusyError,
    TurnWindow,
    WindowOverflowError,
    open_runtime,
)
from turnkeeper.testing import check_prompt
from turns.tools import (
    BOUND,
    Call,
    assistant,
    call,
    passes,
    pending,
    result,
    start_outside,
    texts,
    unloaded,
    until,
    user,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


class TestOneEntry:
    async def test_it_commits_what_it_added_in_one_entry(self, runtime: Runtime, memory: ChatMemory) -> None:
        before = await memory.add(user("before"))
        async with memory.turn() as turn:
            assert await turn.add(user("1")) is None
            assert await turn.add([assistant("2"), user("3")]) is None
            assert turn.receipt is None
        assert turn.receipt is not None
        assert (turn.receipt.version.n, turn.receipt.count) == (before.version.n + 1, 3)
        for _ in range(2):
            assert await texts(memory) == ["before", "1", "2", "3"]
            assert (await memory.messages()).version == turn.receipt.version
            await unloaded(runtime)

    async def test_of_a_memory_that_does_not_exist_it_makes_one(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with memory.turn() as turn:
            await turn.add(user("1"))
        assert turn.receipt is not None
        assert turn.receipt.version.n == 1
        assert turn.receipt.version.mid > 0
        assert await texts(memory) == ["1"]

    @pytest.mark.parametrize("exists", [False, True])
    async def test_adding_nothing_it_writes_nothing(self, runtime: Runtime, memory: ChatMemory, exists: bool) -> None:
        if exists:
            await memory.add(user("1"))
        before = await memory.stats()
        async with memory.turn() as turn:
            await turn.add()
        assert turn.receipt is None
        await unloaded(runtime)
        after = await memory.stats()
        assert (after.version.n, after.message_count) == (before.version.n, before.message_count)
        assert (after.version.mid == 0) is not exists

    async def test_each_add_is_an_entry_with_commit_each(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with memory.turn(commit="each") as turn:
            first = await turn.add(user("1"))
            assert isinstance(first, Receipt)
            assert await texts(memory) == ["1"], "committed, so everybody sees it"
            second = await turn.add(assistant("2"), user("3"))
            assert isinstance(second, Receipt)
            assert (second.version.n, second.count) == (first.version.n + 1, 2)
        assert turn.receipt == second
        await unloaded(runtime)
        assert await texts(memory) == ["1", "2", "3"]

    async def test_with_commit_each_several_tasks_of_it_may_add_at_once(self, memory: ChatMemory) -> None:
        """Tools that run in parallel, each of which stores its result."""
        async with memory.turn(commit="each") as turn:
            await turn.add(user("q"))
            async with anyio.create_task_group() as tools:
                for number in range(5):
                    tools.start_soon(turn.add, assistant(str(number)))
        stored = await texts(memory)
        assert stored[0] == "q"
        assert sorted(stored[1:]) == ["0", "1", "2", "3", "4"]

    async def test_several_tasks_of_it_may_add_at_once(self, memory: ChatMemory) -> None:
        async with memory.turn() as turn, anyio.create_task_group() as tools:
            for number in range(5):
                tools.start_soon(turn.add, user(str(number)))
        assert sorted(await texts(memory)) == ["0", "1", "2", "3", "4"]
        assert (await memory.messages()).version.n == 1

    async def test_an_invalid_message_adds_nothing_and_the_turn_goes_on(self, memory: ChatMemory) -> None:
        async with memory.turn() as turn:
            await turn.add(user("1"))
            with pytest.raises(InvalidMessageError):
                await turn.add(user("2"), {"role": "user", "content": object()})
            await turn.add(user("3"))
        assert await texts(memory) == ["1", "3"]

    async def test_its_id_is_its_own(self, memory: ChatMemory) -> None:
        ids = set()
        for _ in range(3):
            turn = memory.turn()
            assert turn.id == ""
            async with turn:
                assert len(bytes.fromhex(turn.id)) == 16
                ids.add(turn.id)
        assert len(ids) == 3

    @pytest.mark.parametrize(
        "options",
        [
            {"on_busy": "wait"},
            {"commit": "all"},
            {"timeout": -1},
            {"max_duration": -1},
            {"idempotency_key": ""},
            {"idempotency_key": "k", "commit": "each"},
        ],
    )
    async def test_bad_arguments_are_refused_before_anything(self, memory: ChatMemory, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            memory.turn(**options)


class TestReads:
    async def test_the_turn_sees_the_committed_view_and_its_own(self, memory: ChatMemory) -> None:
        await memory.add(user("before"))
        async with memory.turn() as turn:
            assert await texts(turn) == ["before"]
            await turn.add(user("own"))
            seen = await turn.messages()
            assert [message["content"] for message in seen.to_dicts()] == ["before", "own"]
            assert seen.version.n == 1, "of the committed part"
            assert await texts(memory) == ["before"]
            assert await texts(turn) == ["before", "own"]
        assert await texts(memory) == ["before", "own"]

    async def test_others_see_the_committed_view_as_the_same_object(self, store_url: str) -> None:
        async with open_runtime(store_url, consistency="local") as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"), call("c"), result("c"))
            view, small = await memory.messages(), await memory.messages(window=TurnWindow(max_messages=2))
            async with memory.turn() as turn:
                await turn.add(assistant("own"), call("d"), result("d"), user("next"))
                await turn.messages()
                await turn.messages(window=MessageWindow(1))
                assert await memory.messages() is view
                assert await memory.messages(window=TurnWindow(max_messages=2)) == small
                await turn.messages()
                assert await memory.messages() is view

    async def test_its_view_is_that_of_the_window_with_its_own_in_it(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=MessageWindow(3))
        await memory.add(*map(user, "abc"))
        async with memory.turn() as turn:
            await turn.add(user("d"))
            assert await texts(turn) == ["b", "c", "d"]
            assert await texts(memory) == ["a", "b", "c"]
            assert len(await turn.messages(window=MessageWindow(10))) == 4
        assert await texts(memory) == ["b", "c", "d"]

    async def test_an_open_exchange_in_it_is_shown_to_the_model(self, memory: ChatMemory) -> None:
        async with memory.turn() as turn:
            await turn.add(user("q"), call("c"))
            await turn.add(result("c"))
            check_prompt((await turn.messages()).to_dicts())

    @pytest.mark.parametrize("cold", [False, True])
    async def test_they_never_wait_while_hundreds_of_writers_do(self, store_url: str, cold: bool) -> None:
        async with open_runtime(store_url, mailbox_size=4) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m", window=TurnWindow(max_messages=5))
            await memory.add(user("before"))
            if cold:
                await unloaded(runtime)
            async with memory.turn() as turn:
                writers = [Call(group, memory.add, user(str(number))) for number in range(300)]
                await pending(runtime, 300)
                with anyio.fail_after(BOUND):
                    assert await texts(memory) == ["before"]
                    assert len(await memory.messages(window=MessageWindow(1))) == 1
                    assert (await memory.stats()).message_count == 1
                    assert await texts(turn) == ["before"]
                    await turn.add(assistant("own"))
                assert not any(writer.done for writer in writers)
            for writer in writers:
                assert isinstance(await writer.result(), Receipt)
            written = [message.text for message in await runtime.memory("m").messages()]
            assert written[:2] == ["before", "own"]
            assert sorted(written[2:], key=int) == [str(number) for number in range(300)]

    async def test_the_mailbox_holds_them_up_no_more_than_it_does_without_a_turn(self, store_url: str) -> None:
        """A mailbox of one, writers in front of it, and reads among them that have to go through it."""
        async with open_runtime(store_url, mailbox_size=1, consistency="strong") as runtime:
            memory = runtime.memory("m")
            async with anyio.create_task_group() as group, memory.turn() as turn:
                await turn.add(user("own"))
                reads = []
                for number in range(20):
                    start_outside(group, memory.add, user(str(number)))
                    reads.append(Call(group, texts, memory))
                for read in reads:
                    assert await read.result() == []
            assert len(await texts(memory)) == 21


class TestWritesWait:
    async def test_all_kinds_wait_and_go_on_in_the_order_of_their_arrival(self, store_url: str) -> None:
        async with open_runtime(store_url) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            done: dict[str, int] = {}

            async def write(name: str, *arguments: Any) -> None:
                receipt = await getattr(memory, name)(*arguments)
                done[f"{name} {len(done)}" if name == "add" else name] = receipt.version.n if receipt is not True else 9

            async def own_turn() -> None:
                async with memory.turn() as other:
                    assert await texts(other) == ["replaced", "after"]
                    await passes()
                    await other.add(user("of another turn"))
                assert other.receipt is not None
                done["turn"] = other.receipt.version.n

            async with memory.turn() as turn:
                start_outside(group, write, "add", user("1"))
                await pending(runtime, 1)
                start_outside(group, write, "clear")
                await pending(runtime, 2)
                start_outside(group, write, "set", user("replaced"))
                await pending(runtime, 3)
                start_outside(group, write, "add", user("after"))
                await pending(runtime, 4)
                start_outside(group, own_turn)
                await pending(runtime, 5)
                start_outside(group, write, "delete")
                await pending(runtime, 6)
                await turn.add(user("own"))
                await passes()
                assert done == {}
            await pending(runtime, 0)
            await passes()
            assert sorted(done.values()) == [2, 3, 4, 5, 6, 9]
            assert (done["clear"], done["set"], done["turn"], done["delete"]) == (3, 4, 6, 9)
            assert await texts(memory) == []

    async def test_each_can_leave_the_line(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            async with memory.turn() as turn:
                writers = []
                for number in range(5):
                    writers.append(Call(group, memory.add, user(str(number))))
                    await pending(runtime, number + 1)
                for number in (1, 3):
                    writers[number].scope.cancel()
                    await writers[number].result()
                    assert writers[number].scope.cancelled_caught
                assert runtime.stats().pending == 3, "at once"
                await turn.add(user("own"))
            for number in (0, 2, 4):
                assert isinstance(await writers[number].result(), Receipt)
        assert await texts(memory) == ["own", "0", "2", "4"]

    async def test_a_turn_that_left_the_line_keeps_nobody_out(self, runtime: Runtime, memory: ChatMemory) -> None:
        async def other() -> None:
            async with memory.turn() as turn:
                await turn.add(user("never"))

        async with anyio.create_task_group() as group:
            async with memory.turn():
                leaving = Call(group, other)
                await pending(runtime, 1)
                staying = Call(group, memory.add, user("stays"))
                await pending(runtime, 2)
                leaving.scope.cancel()
                await leaving.result()
            assert isinstance(await staying.result(), Receipt)
        assert await texts(memory) == ["stays"]
        await pending(runtime, 0)

    async def test_questions_and_answers_of_two_runs_do_not_interleave(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        """Two concurrent runs on one session of OpenAI's agents store question, question, answer, answer."""

        async def run(name: str) -> None:
            async with memory.turn() as turn:
                await turn.add(user(f"question {name}"))
                prompt = await texts(turn)
                assert len(prompt) % 2 == 1, "one question is open, its own"
                await passes()  # the model thinks
                await turn.add(assistant(f"answer {name}"))

        async with anyio.create_task_group() as group:
            for number in range(10):
                start_outside(group, run, str(number))
        stored = await texts(memory)
        assert len(stored) == 20
        for question, answer in zip(stored[::2], stored[1::2], strict=True):
            assert question.removeprefix("question ") == answer.removeprefix("answer ")

    async def test_one_turn_at_a_time(self, runtime: Runtime, memory: ChatMemory) -> None:
        inside = most = 0

        async def run(number: int) -> None:
            nonlocal inside, most
            async with memory.turn(commit="each" if number % 2 else "turn") as turn:
                inside += 1
                most = max(most, inside)
                await turn.add(user(f"{number} a"))
                await passes(3)
                await turn.add(user(f"{number} b"))
                inside -= 1

        async with anyio.create_task_group() as group:
            for number in range(20):
                start_outside(group, run, number)
        assert most == 1
        stored = await texts(memory)
        assert [text[:-2] for text in stored[::2]] == [text[:-2] for text in stored[1::2]]
        assert len(stored) == 40

    async def test_other_memories_are_not_concerned(self, runtime: Runtime, memory: ChatMemory) -> None:
        other = runtime.memory("m", namespace="another tenant's")
        with anyio.fail_after(BOUND):
            async with memory.turn() as turn, other.turn() as its:
                await its.add(user("its"))
                await turn.add(user("own"))
                await runtime.memory("n").add(user("third"))
        assert (await texts(memory), await texts(other)) == (["own"], ["its"])


class TestBounds:
    async def test_mailbox_size_turns_wait_and_the_next_is_refused(self, runtime: Runtime, store_url: str) -> None:
        async with open_runtime(mailbox_size=3) as small, anyio.create_task_group() as group:
            memory = small.memory("m")

            async def run() -> None:
                async with memory.turn() as turn:
                    await turn.add(user("waited"))

            async with memory.turn():
                waiting = [Call(group, run) for _ in range(3)]
                await pending(small, 3)
                refused = Call(group, run)
                assert isinstance(await refused.result(), OverloadedError)
                waiting[0].scope.cancel()
                await waiting[0].result()
                late = Call(group, run)
                await pending(small, 3)
                await passes()
                assert not late.done, "there is room again"
            await late.result()
            assert late.outcome is None
            await pending(small, 0)
            assert await texts(memory) == ["waited"] * 3

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_a_full_mailbox_and_a_full_runtime_do_not_hold_up_its_own_commit(
        self, store_url: str, commit: Any
    ) -> None:
        async with open_runtime(store_url, mailbox_size=1, max_pending=3) as runtime:
            memory = runtime.memory("m")
            with anyio.fail_after(BOUND):
                async with anyio.create_task_group() as group, memory.turn(commit=commit) as turn:
                    for number in range(20):
                        start_outside(group, memory.add, user(str(number)))
                    await pending(runtime, 3)
                    await until(lambda: runtime.stats().waiting == 17)
                    await turn.add(user("own 1"))
                    await turn.add(user("own 2"))
                    assert await texts(turn) == ["own 1", "own 2"]
            stored = await texts(memory)
            assert stored[:2] == ["own 1", "own 2"]
            assert len(stored) == 22
            assert runtime.stats().pending == 0

    @pytest.mark.parametrize("on_overload", ["wait", "reject"])
    async def test_a_runtime_full_of_those_who_wait_does_not_hold_up_reads(
        self, store_url: str, on_overload: Any
    ) -> None:
        async with open_runtime(store_url, mailbox_size=1, max_pending=3, on_overload=on_overload) as runtime:
            memory, other = runtime.memory("m"), runtime.memory("n")
            await memory.add(user("before"))
            async with anyio.create_task_group() as group, memory.turn() as turn:
                waiting = [Call(group, memory.add, user(str(number))) for number in range(5)]
                await until(lambda: runtime.stats().waiting + runtime.stats().overloaded == 2)
                with anyio.fail_after(BOUND):
                    for _ in range(5):
                        assert await texts(memory) == ["before"]
                        assert (await memory.stats()).message_count == 1
                        assert await texts(other) == []
                assert runtime.stats().pending == 3
                await turn.add(user("own"))
            assert sum(isinstance(each.outcome, Receipt) for each in waiting) == (5 if on_overload == "wait" else 3)

    async def test_it_may_be_larger_than_what_may_be_pending(self, store_url: str) -> None:
        async with open_runtime(store_url, max_pending_bytes=100) as runtime:
            memory = runtime.memory("m")
            with anyio.fail_after(BOUND):
                async with anyio.create_task_group() as group, memory.turn() as turn:
                    start_outside(group, memory.add, user("x" * 90))
                    await pending(runtime, 1)
                    await turn.add(user("y" * 500))
            assert [text[0] for text in await texts(memory)] == ["y", "x"]
            assert runtime.stats().pending_bytes == 0

    async def test_what_overflows_the_window_is_refused_when_it_is_added(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=MessageWindow(2, on_overflow="error"))
        async with memory.turn() as turn:
            await turn.add(user("1"))
            with pytest.raises(WindowOverflowError):
                await turn.add(result("never called"))
            await turn.add(user("2"))
            assert await texts(turn) == ["1", "2"]
        assert await texts(memory) == ["1", "2"]


@pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
class TestDeadlines:
    @pytest.mark.parametrize("seconds", [0, 3])
    async def test_a_turn_waits_for_its_timeout_and_no_longer(self, seconds: float) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")

            async def run() -> float:
                start = anyio.current_time()
                with pytest.raises(TurnBusyError, match="timeout"):
                    async with memory.turn(timeout=seconds):
                        pytest.fail("it was not its turn")
                return anyio.current_time() - start

            async with memory.turn() as turn:
                waiting = Call(group, run)
                assert await waiting.result() == pytest.approx(seconds, abs=0.01)
                await turn.add(user("own"))
            await memory.add(user("after"))
            assert await texts(memory) == ["own", "after"]
            assert runtime.stats().pending == 0

    async def test_the_timeout_counts_the_waiting_and_not_the_turn(self) -> None:
        async with open_runtime() as runtime:
            memory = runtime.memory("m")
            async with memory.turn(timeout=1) as turn:
                await anyio.sleep(100)
                await turn.add(user("own"))
            assert await texts(memory) == ["own"]

    async def test_each_writer_has_a_deadline_of_its_own(self) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")

            async def write(text: str, seconds: float) -> str:
                with anyio.move_on_after(seconds):
                    await memory.add(user(text))
                    return "written"
                return "left"

            async with memory.turn():
                writers = [Call(group, write, "a", 1), Call(group, write, "b", 100), Call(group, write, "c", 2)]
                await anyio.sleep(10)
            assert [await writer.result() for writer in writers] == ["left", "written", "left"]
            assert await texts(memory) == ["b"]


async def test_what_several_tasks_of_a_turn_add_at_once_is_judged_as_if_one_after_the_other() -> None:
    calls = [{"id": f"c{number}", "function": {"name": "f", "arguments": "{}"}} for number in range(2)]
    async with open_runtime() as runtime:
        memory = runtime.memory("m", window=MessageWindow(2))
        refused: list[int] = []

        async def add(turn: Turn, number: int) -> None:
            try:
                await turn.add(result(f"c{number}"))
            except WindowOverflowError:
                refused.append(number)

        async with memory.turn() as turn:
            await turn.add({"role": "assistant", "content": None, "tool_calls": calls})
            async with anyio.create_task_group() as tools:
                for number in range(2):
                    tools.start_soon(add, turn, number)
        assert len(refused) == 1
        assert turn.receipt is not None
        assert turn.receipt.count == 2

"""`undo`, `pop`, `edit` and `remove`, sentence by sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import turnkeeper
from turnkeeper import (
    AcknowledgedDataLostError,
    ChatMemory,
    CompactionAbandonedError,
    ConflictError,
    InvalidArgumentError,
    InvalidMessageError,
    Message,
    MessageNotFoundError,
    NestedTurnError,
    Runtime,
    SyncChatMemory,
    TurnWindow,
    UserMessage,
    Version,
)
from turns.tools import Call, assistant, call, result, texts, unloaded, user

pytestmark = pytest.mark.anyio


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


async def ops(memory: ChatMemory) -> list[str]:
    return [entry.op for entry in (await memory.history()).entries]


async def both(runtime: Runtime, memory: ChatMemory) -> list[Any]:
    """Read what is shown, from RAM and loaded anew, which is the same."""
    held = await texts(memory)
    await unloaded(runtime, memory.id)
    assert await texts(memory) == held
    return held


class TestUndo:
    async def test_it_takes_back_user_messages_and_all_that_came_since_in_one_entry(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        await memory.add(system("s"), user("1"), assistant("a"))
        await memory.add(user("2"))
        await memory.add(call("c"), result("c", "r"))
        before = await memory.add(assistant("b"))
        removed = await memory.undo()
        assert [message.role for message in removed.messages] == ["user", "assistant", "tool", "assistant"]
        assert [message.id for message in removed.messages] == ["2.0", "3.0", "3.1", "4.0"]
        assert removed.version == (await memory.messages()).version
        assert removed.version.n == before.version.n + 1
        assert await both(runtime, memory) == ["s", "1", "a"]
        assert await ops(memory) == ["add", "add", "add", "add", "undo"]

    async def test_of_fewer_turns_all_are_taken_back_and_what_stood_before_them_stays(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        await memory.add(system("s"), assistant("hello"), user("1"), assistant("a"), user("2"))
        assert [message.text for message in (await memory.undo(99)).messages] == ["1", "a", "2"]
        assert await both(runtime, memory) == ["s", "hello"]

    async def test_several_turns(self, memory: ChatMemory) -> None:
        for number in range(5):
            await memory.add(user(f"{number}"), assistant("a"))
        assert len((await memory.undo(turns=3)).messages) == 6
        assert await texts(memory) == ["0", "a", "1", "a"]

    async def test_where_there_is_no_turn_nothing_is_written(self, memory: ChatMemory) -> None:
        assert await memory.undo() == turnkeeper.Removed(Version(0, 0), ())
        receipt = await memory.add(assistant("hello"))
        removed = await memory.undo()
        assert (removed.version, removed.messages) == (receipt.version, ())
        assert (await memory.stats()).version == receipt.version
        assert await ops(memory) == ["add"]

    @pytest.mark.parametrize("start", ["clear", "set"])
    async def test_never_past_what_starts_anew(self, memory: ChatMemory, start: str) -> None:
        await memory.add(user("secret"), assistant("a"))
        if start == "clear":
            await memory.clear()
        else:
            await memory.set(assistant("new"))
        now = await texts(memory)
        assert (await memory.undo(9)).messages == ()
        assert await texts(memory) == now
        if start == "clear":
            assert await memory.pop() is None
        assert await texts(memory) == now

    async def test_a_user_message_in_the_middle_of_a_batch_leaves_what_came_before_it(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        await memory.add(user("1"), assistant("a"), user("2"), assistant("b"))
        assert [message.id for message in (await memory.undo()).messages] == ["1.2", "1.3"]
        assert await both(runtime, memory) == ["1", "a"]
        await memory.add(user("3"))
        assert await both(runtime, memory) == ["1", "a", "3"]

    async def test_a_system_message_goes_with_its_turn_and_the_one_before_is_current_again(
        self, runtime: Runtime
    ) -> None:
        memory = runtime.memory("m", window=turnkeeper.MessageWindow(2, on_overflow="evict"))
        await memory.add(system("old"))
        await memory.add(user("1"), system("new"), assistant("a"))
        assert await texts(memory) == ["new", "a"]
        await memory.undo()
        await memory.add(assistant("b"))
        assert await both(runtime, memory) == ["old", "b"]
        for number in range(5):
            await memory.add(assistant(f"{number}"))
        assert await both(runtime, memory) == ["old", "4"]

    @pytest.mark.parametrize("turns", [0, -1, 1.5, "1", None, True])
    async def test_turns_is_a_whole_number(self, memory: ChatMemory, turns: Any) -> None:
        await memory.add(user("1"))
        with pytest.raises(InvalidArgumentError):
            await memory.undo(turns)
        assert await texts(memory) == ["1"]

    async def test_a_summary_stays(self, runtime: Runtime, memory: ChatMemory) -> None:
        for number in range(4):
            await memory.add(system(f"s{number}"), user(f"{number}"), assistant("a"))
        await memory.compact(lambda messages, summary: "SUM", keep=TurnWindow(max_turns=1))
        assert [message.text for message in (await memory.undo(9)).messages] == ["3", "a"]
        found = await both(runtime, memory)
        assert "SUM" in found
        assert "3" not in found
        assert await memory.pop() is not None, "the system message that came before the turn"
        assert await memory.pop() is None
        assert await both(runtime, memory) == ["s2", "SUM"]


class TestPop:
    async def test_it_takes_the_last_message_and_returns_it(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("1"), call("c"), result("c", "r"))
        assert await memory.add(system("s")) is not None
        popped = [await memory.pop() for _ in range(5)]
        assert [message and (message.role, message.id) for message in popped] == [
            ("system", "2.0"),
            ("tool", "1.2"),
            ("assistant", "1.1"),
            ("user", "1.0"),
            None,
        ]
        assert await both(runtime, memory) == []
        assert await ops(memory) == ["add", "add", "pop", "pop", "pop", "pop"]

    async def test_without_its_result_a_call_is_open_again(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("1"), call("c"), result("c", "old"))
        await memory.pop()
        await memory.add(result("c", "new"))
        assert await both(runtime, memory) == ["1", None, "new"]

    async def test_where_there_is_nothing_nothing_is_written(self, memory: ChatMemory) -> None:
        assert await memory.pop() is None
        assert (await memory.stats()).version == Version(0, 0)
        await memory.add(user("1"))
        await memory.clear()
        assert await memory.pop() is None
        assert await ops(memory) == ["add", "clear"]

    async def test_a_result_that_no_view_shows_is_popped_as_well(self, memory: ChatMemory) -> None:
        await memory.add(user("1"), result("nobody", "r"))
        popped = await memory.pop()
        assert popped is not None
        assert popped.text == "r"


class TestEdit:
    async def test_it_takes_the_place_and_keeps_the_id(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("1"), assistant("a"))
        await memory.add({**user("2"), "id": "own"})
        receipt = await memory.edit("1.0", UserMessage("one"))
        assert (receipt.count, receipt.version.n) == (1, 3)
        await memory.edit("own", user("two"))
        assert await both(runtime, memory) == ["one", "a", "two"]
        shown = await memory.messages()
        assert [message.id for message in shown] == ["1.0", "1.1", "own"]
        assert shown[2].to_dict()["id"] == "own", "its own id is still its own"
        assert "id" not in shown[0].to_dict(), "an automatic one is not written into the message"
        await memory.edit("1.0", {**user("uno"), "id": "1.0"})
        assert "id" not in (await memory.messages())[0].to_dict()
        (first, *_, last) = (await memory.history()).entries
        assert (first.messages[0].text, first.messages[0].id) == ("1", "1.0"), "the history has both"
        assert (last.op, last.messages[0].text, last.messages[0].id) == ("edit", "uno", "1.0")

    async def test_an_equal_one_is_a_no_op(self, memory: ChatMemory) -> None:
        before = await memory.add({"content": "1", "role": "user"})
        receipt = await memory.edit("1.0", {"role": "user", "content": "1"})
        assert (receipt.version, receipt.count) == (before.version, 0)
        assert await ops(memory) == ["add"]

    @pytest.mark.parametrize(
        ("message_id", "new"),
        [
            ("1.0", assistant("a")),
            ("1.0", {**user("x"), "id": "other"}),
            ("1.1", call("other")),
            ("1.1", assistant("no calls")),
            ("1.2", result("other")),
            ("1.3", system("s")),
            ("1.3", {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}),
        ],
    )
    async def test_role_calls_and_id_stay(self, memory: ChatMemory, message_id: str, new: dict[str, Any]) -> None:
        await memory.add(user("1"), call("c"), result("c"), assistant("a"))
        before = (await memory.messages()).to_dicts()
        with pytest.raises(InvalidMessageError):
            await memory.edit(message_id, new)
        assert (await memory.messages()).to_dicts() == before
        assert await ops(memory) == ["add"]

    async def test_the_arguments_of_a_call_and_the_text_of_a_result_may_change(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        await memory.add(user("1"), call("c"), result("c", "old"))
        changed = call("c")
        changed["tool_calls"][0]["function"]["arguments"] = '{"x": 1}'
        await memory.edit("1.1", changed)
        await memory.edit("1.2", result("c", "new"))
        await unloaded(runtime)
        assert (await memory.messages()).to_dicts() == [user("1"), changed, result("c", "new")]

    @pytest.mark.parametrize(
        "message_id", ["9.9", "nobody's", "1", "1.", "1.00", "01.0", "1.0.0", "²." + "0", "9" * 25]
    )
    async def test_an_unknown_id_changes_nothing(self, memory: ChatMemory, message_id: str) -> None:
        await memory.add(user("1"))
        with pytest.raises(MessageNotFoundError) as caught:
            await memory.edit(message_id, user("x"))
        assert isinstance(caught.value, LookupError)
        with pytest.raises(MessageNotFoundError):
            await memory.remove(message_id)
        assert await ops(memory) == ["add"]

    @pytest.mark.parametrize("message_id", ["", None, 7])
    async def test_what_is_no_id(self, memory: ChatMemory, message_id: Any) -> None:
        with pytest.raises(InvalidArgumentError):
            await memory.edit(message_id, user("x"))
        with pytest.raises(InvalidArgumentError):
            await memory.remove(message_id)

    async def test_what_is_no_message(self, memory: ChatMemory) -> None:
        await memory.add(user("1"))
        for nothing in ("text", None, 5, {"role": "robot"}, [], [user("1"), user("2")]):
            with pytest.raises(InvalidArgumentError):
                await memory.edit("1.0", nothing)  # type: ignore[arg-type]
        assert await ops(memory) == ["add"]

    async def test_of_several_with_one_id_the_latest(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add({**user("1"), "id": "x"}, {**user("2"), "id": "x"})
        await memory.add({**user("3"), "id": "1.0"}, user("4"))
        await memory.edit("x", user("two"))
        await memory.edit("1.0", user("three"))
        assert await both(runtime, memory) == ["1", "two", "three", "4"]
        assert [message.text for message in (await memory.remove("x")).messages] == ["two"]
        assert [message.text for message in (await memory.remove("x")).messages] == ["1"]
        assert await both(runtime, memory) == ["three", "4"]

    async def test_a_system_message_far_back(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=turnkeeper.MessageWindow(2, on_overflow="evict"))
        await memory.add(system("s"))
        for number in range(40):
            await memory.add(user(f"{number}"))
        await unloaded(runtime)
        await memory.edit("1.0", system("t"))
        assert await both(runtime, memory) == ["t", "39"]
        for number in range(40):
            await memory.add(user(f"{number}"))
        assert await both(runtime, memory) == ["t", "39"]
        assert (await memory.messages())[0].id == "1.0"

    async def test_what_was_summed_up_or_replaced_has_no_id_any_more_and_a_summary_has_none(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        for number in range(3):
            await memory.add(user(f"{number}"), assistant("a"))
        receipt = await memory.compact(lambda messages, summary: "SUM", keep=TurnWindow(max_turns=1))
        assert receipt is not None
        with pytest.raises(MessageNotFoundError):
            await memory.edit("1.0", user("x"))
        with pytest.raises(MessageNotFoundError):
            await memory.edit(f"{receipt.version.n}.0", system("x"))
        with pytest.raises(MessageNotFoundError):
            await memory.remove(f"{receipt.version.n}.0")
        assert await both(runtime, memory) == ["SUM", "2", "a"]
        await memory.set(user("new"))
        with pytest.raises(MessageNotFoundError):
            await memory.remove("3.0")


class TestRemove:
    @pytest.mark.parametrize("message_id", ["2.0", "3.0", "3.2"])
    async def test_calls_and_results_go_together(self, runtime: Runtime, memory: ChatMemory, message_id: str) -> None:
        await memory.add(user("1"))
        await memory.add({**call("c"), "tool_calls": [*call("c")["tool_calls"], *call("d")["tool_calls"]]})
        await memory.add(result("c", "r"), user("between"), result("d", "q"))
        removed = await memory.remove(message_id)
        assert [message.id for message in removed.messages] == ["2.0", "3.0", "3.2"]
        assert removed.version == (await memory.messages()).version
        assert await both(runtime, memory) == ["1", "between"]
        assert await ops(memory) == ["add", "add", "add", "remove"]

    async def test_also_when_the_call_is_not_in_ram(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=turnkeeper.MessageWindow(1, on_overflow="evict"))
        await memory.add(user("1"), call("c"))
        for number in range(40):
            await memory.add(user(f"{number}"))
        await memory.add(result("c", "late"))
        await memory.add(user("last"))
        await unloaded(runtime)
        assert await texts(memory) == ["last"]
        removed = await memory.remove("42.0")
        assert [message.id for message in removed.messages] == ["1.1", "42.0"]

    async def test_other_pairs_of_the_same_call_id_stay(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(user("1"), call("c"), result("c", "first"), call("c"), result("c", "second"))
        assert [message.id for message in (await memory.remove("1.1")).messages] == ["1.1", "1.2"]
        assert await both(runtime, memory) == ["1", None, "second"]

    async def test_the_only_message(self, runtime: Runtime, memory: ChatMemory) -> None:
        await memory.add(system("s"))
        assert [message.text for message in (await memory.remove("1.0")).messages] == ["s"]
        assert await both(runtime, memory) == []
        assert await memory.pop() is None


CHANGES: dict[str, Callable[..., Awaitable[object]]] = {
    "undo": lambda memory, **options: memory.undo(**options),
    "pop": lambda memory, **options: memory.pop(**options),
    "edit": lambda memory, **options: memory.edit("1.0", user("edited"), **options),
    "remove": lambda memory, **options: memory.remove("1.0", **options),
}


@pytest.mark.parametrize("change", CHANGES)
class TestEachOfThem:
    async def test_only_if_the_memory_is_at_that_version(self, memory: ChatMemory, change: str) -> None:
        first = await memory.add(user("1"))
        second = await memory.add(assistant("a"))
        for wrong in (first.version, Version(first.version.mid + 1, 2), Version(0, 0)):
            with pytest.raises(ConflictError):
                await CHANGES[change](memory, if_version=wrong)
        with pytest.raises(AcknowledgedDataLostError):  # no such version was ever given out by what is there
            await CHANGES[change](memory, if_version=Version(first.version.mid, 3))
        assert await ops(memory) == ["add", "add"]
        await CHANGES[change](memory, if_version=second.version)
        assert await ops(memory) == ["add", "add", change]

    async def test_if_version_is_a_version(self, memory: ChatMemory, change: str) -> None:
        await memory.add(user("1"))
        for wrong in ("1.1", 1, object()):
            with pytest.raises(InvalidArgumentError):
                await CHANGES[change](memory, if_version=wrong)

    async def test_inside_an_open_turn_it_is_refused(self, memory: ChatMemory, change: str) -> None:
        await memory.add(user("1"))
        async with memory.turn():
            with pytest.raises(NestedTurnError):
                await CHANGES[change](memory)
        assert await ops(memory) == ["add"]

    async def test_it_waits_for_an_open_turn_of_others(self, memory: ChatMemory, change: str) -> None:
        await memory.add(user("1"))
        async with anyio.create_task_group() as group:
            async with memory.turn() as turn:
                waiting = Call(group, CHANGES[change], memory)
                await anyio.wait_all_tasks_blocked()
                assert not waiting.done
                await turn.add(assistant("of the turn"))
            await waiting.result()
        assert await ops(memory) == ["add", "add", change]

    async def test_a_deleted_memory_stays_deleted(self, runtime: Runtime, memory: ChatMemory, change: str) -> None:
        await memory.add(user("1"))
        await memory.delete()
        if change in ("edit", "remove"):
            with pytest.raises(MessageNotFoundError):
                await CHANGES[change](memory)
        else:
            await CHANGES[change](memory)
        assert (await memory.stats()).version == Version(0, 0)

    async def test_what_is_being_summed_up_is_not_summed_up_then(self, memory: ChatMemory, change: str) -> None:
        for number in range(3):
            await memory.add(user(f"{number}"), assistant("a"))

        async def summarise(messages: tuple[Message, ...], before: tuple[Message, ...]) -> str:
            if change == "undo":
                await memory.undo(3)
            else:
                for _ in range(4 if change == "pop" else 1):
                    await CHANGES[change](memory)
            return "SUM"

        with pytest.raises(CompactionAbandonedError):
            await memory.compact(summarise, keep=TurnWindow(max_turns=1))
        assert "compact" not in await ops(memory)


def test_blocking_twins(store_url: str) -> None:
    with turnkeeper.open_sync_runtime(store_url) as runtime:
        memory: SyncChatMemory = runtime.memory("m")
        memory.add([user("1"), assistant("a"), user("2"), call("c"), result("c")])
        assert [message.role for message in memory.undo(if_version=memory.messages().version).messages] == [
            "user",
            "assistant",
            "tool",
        ]
        assert memory.edit("1.0", user("one")).count == 1
        popped = memory.pop()
        assert popped is not None
        assert popped.text == "a"
        assert [message.text for message in memory.remove("1.0").messages] == ["one"]
        with pytest.raises(MessageNotFoundError):
            memory.remove("1.0")
        with pytest.raises(ConflictError):
            memory.pop(if_version=Version(1, 1))
        with pytest.raises(InvalidArgumentError):
            memory.undo(0)
        assert [entry.op for entry in memory.history().entries] == ["add", "undo", "edit", "pop", "remove"]
        with memory.turn(), pytest.raises(NestedTurnError):
            memory.undo()

"""Promises of `chat_memory`: a list whose reads show the present and whose changes go through the actor."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import pprint
import threading
from collections import deque
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest

from turnkeeper import RuntimeClosedError, open_sync_runtime
from turnkeeper.compat.zerda import ConversationBufferMemory, ConversationBufferWindowMemory


def filled(*texts: Any, **options: Any) -> ConversationBufferMemory:
    memory = ConversationBufferMemory(**options)
    for text in texts:
        memory.save_context({"input": text}, {"output": text})
    return memory


def inputs(memory: ConversationBufferMemory) -> list[Any]:
    return [exchange["input"] for exchange in memory.chat_memory]


def entry(text: Any) -> dict[str, Any]:
    return {"input": text, "output": text}


class TestReads:
    def test_they_show_what_another_object_wrote(self) -> None:
        memory = filled("a")
        other = ConversationBufferMemory(memory_id=memory.memory_id)
        history = memory.chat_memory
        assert len(other.chat_memory) == 1
        other.save_context({"input": "b"}, {"output": "b"})
        assert len(history) == 2
        other.chat_memory[0]["input"] = "changed"
        assert history[0]["input"] == "changed"
        other.clear()
        assert not history

    def test_they_show_what_the_native_handle_wrote(self) -> None:
        memory = filled("a")
        history = memory.chat_memory
        memory.native.set({"role": "user", "content": "b"}, {"role": "assistant", "content": "B"})
        assert [(exchange["input"], exchange["output"]) for exchange in history] == [("b", "B")]
        memory.native.delete()
        assert history == []
        memory.native.add({"role": "user", "content": "c"})
        assert [exchange["input"] for exchange in history] == ["c"]

    def test_each_way_to_read_does(self) -> None:
        reads: list[Callable[[Any], Any]] = [
            len,
            bool,
            list,
            tuple,
            repr,
            str,
            json.dumps,
            lambda history: json.dumps(history, indent=2),
            lambda history: history[0],
            lambda history: history[-1:],
            lambda history: [*history],
            lambda history: [*reversed(history)],
            lambda history: list(history) in ([], [history[0]]),
            lambda history: history.copy(),
            lambda history: history.count(history[0]),
            lambda history: history.index(history[0]),
            lambda history: history + [],  # noqa: RUF005
            lambda history: [] + history,  # noqa: RUF005
            lambda history: history * 2,
            lambda history: 2 * history,
            lambda history: history == [history[0]],
            lambda history: history != [],
            lambda history: history > [],
            lambda history: history >= [history[0]],
            lambda history: history < [history[0], 1],
            lambda history: history <= [],
            lambda history: f"{history}",
            lambda history: sorted(history, key=str),
            lambda history: max(history, key=str),
            lambda history: list(enumerate(history)),
            lambda history: [].__iadd__(history),
            copy,
            deepcopy,
            lambda history: pickle.loads(pickle.dumps(history)),
            pprint.pformat,
        ]
        for read in reads:
            memory = ConversationBufferMemory()
            history = memory.chat_memory
            assert len(history) == 0
            ConversationBufferMemory(memory_id=memory.memory_id).chat_memory.append(entry("a"))
            assert read(history) == read([entry("a")])

    def test_it_is_a_list_that_prints_and_dumps_like_one(self) -> None:
        history = filled("a", None, 1).chat_memory
        assert isinstance(history, list)
        assert repr(history) == str(history) == repr([dict(exchange) for exchange in history])
        assert json.loads(json.dumps(history)) == history
        assert json.loads(json.dumps({"history": history}, indent=1))["history"] == history

    def test_bare_storage_is_the_present_for_the_one_who_writes(self) -> None:
        """What C code sees that knows the insides of lists."""
        memory = filled("a", "b")
        history = memory.chat_memory
        history.append(entry("c"))
        del history[0]
        history[0]["input"] = "changed"
        assert [exchange["input"] for exchange in list.copy(history)] == ["changed", "c"]
        memory.clear()
        assert list.__len__(history) == 0

    def test_iterating_walks_through_one_instant(self) -> None:
        memory = filled("a", "b")
        for exchange in memory.chat_memory:
            memory.save_context({"input": exchange["input"]}, {"output": "again"})
        assert inputs(memory) == ["a", "b", "a", "b"]

    def test_copies_are_plain_and_independent(self) -> None:
        memory = filled("a")
        makes: list[Callable[[Any], Any]] = [deepcopy, lambda known: pickle.loads(pickle.dumps(known))]
        for make in makes:
            copied = make(memory.chat_memory)
            assert (type(copied), type(copied[0])) == (list, dict)
            copied[0]["input"] = "changed"
            copied.clear()
        exchange = memory.chat_memory[0]
        for make in [*makes, copy, dict, lambda known: known.copy()]:
            copied = make(exchange)
            assert type(copied) is dict
            copied["input"] = "changed"
        assert inputs(memory) == ["a"]

    def test_the_same_exchange_is_the_same_object_however_the_memory_changed(self) -> None:
        memory = filled("a", "b", "c")
        exchange = memory.chat_memory[1]
        other = ConversationBufferMemory(memory_id=memory.memory_id)
        del other.chat_memory[0]
        other.chat_memory.append(entry("d"))
        other.chat_memory[0]["output"] = "changed"
        assert memory.chat_memory[0] is exchange
        assert exchange["output"] == "changed"


class TestChanges:
    def test_a_nested_change_goes_through_the_actor(self) -> None:
        memory = filled("a", "b")
        memory.chat_memory[0]["input"] = "changed"
        assert [message.content for message in memory.native.messages()] == ["changed", "a", "b", "b"]
        for exchange in memory.get_messages():
            exchange["note"] = exchange.pop("timestamp") > 0
        assert ConversationBufferMemory(memory_id=memory.memory_id).chat_memory == [
            {"input": "changed", "output": "a", "note": True},
            {"input": "b", "output": "b", "note": True},
        ]

    def test_each_way_to_change_an_exchange_does(self) -> None:
        changes: list[Callable[[Any], Any]] = [
            lambda exchange: exchange.__setitem__("output", [1]),
            lambda exchange: exchange.__delitem__("output"),
            lambda exchange: exchange.update({"input": 1}, output=2),
            lambda exchange: exchange.update(note="x"),
            lambda exchange: exchange.__ior__({"note": None}),
            lambda exchange: exchange.setdefault("note", 5),
            lambda exchange: exchange.setdefault("input", 5),
            lambda exchange: exchange.pop("input"),
            lambda exchange: exchange.pop("nothing", None),
            lambda exchange: exchange.popitem(),
            lambda exchange: exchange.clear(),
            lambda exchange: exchange.__setitem__(1, "a key that is no text"),
        ]
        for change in changes:
            memory, expected = filled("a"), dict(filled("a").chat_memory[0])
            expected["timestamp"] = memory.chat_memory[0]["timestamp"]
            result, right = change(memory.chat_memory[0]), change(expected)
            assert result == right
            assert memory.chat_memory[0] == expected
            assert ConversationBufferMemory(memory_id=memory.memory_id).chat_memory[0] == expected

    def test_errors_are_those_of_a_list_and_of_a_dict_and_change_nothing(self) -> None:
        memory = filled("a")
        history = memory.chat_memory
        version = memory.native.stats().version
        wrong: list[tuple[type[Exception], Callable[[], object]]] = [
            (IndexError, lambda: history[1]),
            (IndexError, lambda: history.pop(1)),
            (IndexError, lambda: history.__delitem__(5)),
            (ValueError, lambda: history.remove(entry("x"))),
            (ValueError, lambda: history.index(entry("x"))),
            (ValueError, lambda: history.__setitem__(slice(None, None, 2), [])),
            (TypeError, lambda: history.append("text")),  # type: ignore[arg-type]
            (TypeError, lambda: history.extend([entry("b"), 5])),  # type: ignore[list-item]
            (TypeError, lambda: history.insert(0, None)),  # type: ignore[arg-type]
            (KeyError, lambda: history[0].pop("nothing")),
            (KeyError, lambda: history[0].__delitem__("nothing")),
            (TypeError, lambda: history[0].__setitem__([], 1)),
        ]
        for kind, attempt in wrong:
            with pytest.raises(kind):
                attempt()
        assert memory.native.stats().version == version

    def test_what_changes_nothing_writes_nothing(self) -> None:
        memory = filled("a")
        version = memory.native.stats().version
        memory.chat_memory.reverse()
        memory.chat_memory.extend([])
        memory.chat_memory[5:] = []
        memory.chat_memory += []
        memory.chat_memory = memory.chat_memory
        assert memory.native.stats().version == version

    def test_assigning_replaces_everything_in_one_entry(self) -> None:
        memory = filled("a", "b")
        history = memory.chat_memory
        version = memory.native.stats().version
        memory.chat_memory = [entry("c")]
        assert memory.native.stats().version.n == version.n + 1
        assert memory.chat_memory is history
        assert inputs(memory) == ["c"]

    def test_an_exchange_that_left_is_a_plain_dict_of_its_own(self) -> None:
        memory = filled("a", "b", "c")
        removed, cleared = memory.chat_memory.pop(0), memory.chat_memory[0]
        removed["input"] = "changed"
        assert removed["input"] == "changed"
        memory.clear()
        cleared["input"] = "changed"
        cleared.update(note=1)
        assert cleared["input"] == "changed"
        assert memory.native.messages() == ()
        orphan = filled("a").chat_memory[0]
        gc.collect()
        orphan["input"] = "changed"
        assert orphan["input"] == "changed"

    def test_what_is_put_in_is_copied_and_an_exchange_is_there_once(self) -> None:
        """Listed: there, the list holds the dict itself, twice if you like."""
        memory = ConversationBufferMemory()
        mine = entry("a")
        memory.chat_memory.append(mine)
        mine["input"] = "changed"
        assert inputs(memory) == ["a"]
        memory.chat_memory.append(memory.chat_memory[0])
        memory.chat_memory[1]["input"] = "b"
        assert inputs(memory) == ["a", "b"]
        memory.chat_memory *= 2
        assert inputs(memory) == ["a", "b", "a", "b"]

    def test_what_was_said_natively_stays_when_exchanges_around_it_change(self) -> None:
        memory = ConversationBufferMemory()
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        said: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
            {"role": "assistant", "content": "It is 42."},
            {"role": "user", "content": "and?"},
            {"role": "system", "content": "Be polite."},
        ]
        memory.native.add(said)
        memory.chat_memory.append(entry("last"))
        memory.chat_memory[0]["output"] = "It was 42."
        roles = [message.role for message in memory.native.messages()]
        # The window shows the current system message only.
        assert roles == ["user", "assistant", "tool", "assistant", "user", "system", "user", "assistant"]
        memory.chat_memory[1]["output"] = "That's all."
        assert [exchange["output"] for exchange in memory.chat_memory] == ["It was 42.", "That's all.", "last"]
        del memory.chat_memory[:2]
        assert [message.content for message in memory.native.messages()] == ["Be polite.", "last", "last"]
        memory.chat_memory.clear()
        assert [message.content for message in memory.native.messages()] == ["Be polite."]


class TestTogether:
    def test_changes_at_once_are_all_there(self) -> None:
        """Each change is a compare-and-set of what its thread saw, made again until it fits."""
        memory = filled(*range(8))

        def work(number: int) -> None:
            for turn in range(5):
                memory.chat_memory[number][f"note {turn}"] = turn
                memory.save_context({"input": f"{number}.{turn}"}, {"output": ""})
                memory.chat_memory.insert(8, entry(f"inserted {number}.{turn}"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        history = memory.get_messages()
        assert len(history) == 8 + 8 * 5 * 2
        assert [history[number]["note 4"] for number in range(8)] == [4] * 8
        for number in range(8):
            saved = [exchange["input"] for exchange in history if str(exchange["input"]).startswith(f"{number}.")]
            assert saved == [f"{number}.{turn}" for turn in range(5)]

    def test_emptying_never_takes_what_was_not_seen(self) -> None:
        """`pop` of the last exchange, while others save: what is popped and what stays is all that was saved."""
        memory = ConversationBufferMemory()
        popped: list[Any] = []
        going = True

        def pop() -> None:
            while going or memory.chat_memory:
                with contextlib.suppress(IndexError):
                    popped.append(memory.chat_memory.pop(0)["input"])

        thread = threading.Thread(target=pop)
        thread.start()
        for number in range(300):
            memory.save_context({"input": number}, {"output": number})
        going = False
        thread.join()
        assert popped == list(range(300))

    def test_a_reader_sees_whole_states_only(self) -> None:
        memory = ConversationBufferMemory()
        window = ConversationBufferWindowMemory(4)
        going = True

        def write() -> None:
            number = 0
            while going:
                for known in (memory, window):
                    known.chat_memory.extend([entry(number), entry(number)])
                if number % 20 == 0:
                    memory.clear()
                number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(300):
                for known in (memory, window):
                    seen = [exchange["input"] for exchange in known.chat_memory]
                    assert len(seen) % 2 == 0
                    assert seen[::2] == seen[1::2] == sorted(set(seen))
                    stats = known.get_memory_stats()
                    assert stats["message_count"] % 2 == 0
                    assert stats["total_characters"] % 4 == 0
        finally:
            going = False
            thread.join()

    def test_a_list_whose_runtime_is_closed_says_so(self) -> None:
        with open_sync_runtime("memory:") as runtime:
            memory = filled("a", runtime=runtime, memory_id="m")
            assert memory.chat_memory == deque(memory.chat_memory)
        with pytest.raises(RuntimeClosedError):
            len(memory.chat_memory)

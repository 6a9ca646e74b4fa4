"""What Zerda's document says of BaseMemory and ConversationBufferMemory, sentence by sentence; and what we add."""

from __future__ import annotations

import gc
import inspect
import pickle
import time
import weakref
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import InvalidMessageError, open_runtime, open_sync_runtime
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.zerda import BaseMemory, ConversationBufferMemory


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let go of the test's files."""
    yield
    close_default_runtimes()


class Color(Enum):
    RED = 1


class Thing:
    def __str__(self) -> str:
        return "a thing"


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("not me")


JSON_VALUES: list[Any] = ["", "text", "\ud800", None, True, 0, -(2**70), 1.5, -0.0, [1, [2]], {"a": {"b": None}}]
ODD_VALUES: list[Any] = [
    (1, 2),
    b"bytes",
    {1: "key"},
    {"a": (1,)},
    float("nan"),
    float("inf"),
    Decimal("1.50"),
    datetime(2026, 1, 1),
    Color.RED,
    {1, 2},
    10**5000,
    Thing(),
    Unprintable(),
    type("Text", (str,), {})("text"),
    type("Number", (int,), {})(7),
]


def same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and (found == expected or found is expected)


class TestBaseMemory:
    def test_it_is_abstract_in_three_methods(self) -> None:
        assert BaseMemory.__abstractmethods__ == {"save_context", "load_memory_variables", "clear"}
        with pytest.raises(TypeError):
            BaseMemory()  # type: ignore[abstract]

    def test_its_stats_are_the_class_name_and_0(self) -> None:
        class Mine(BaseMemory):
            def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None: ...

            def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
                return {}

            def clear(self) -> None: ...

        assert Mine().get_memory_stats() == {"type": "Mine", "size": 0}


class TestConstructor:
    def test_the_parameters_are_zerdas_and_ours_are_keywords(self) -> None:
        parameters = inspect.signature(ConversationBufferMemory).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        assert defaults == {
            "return_messages": False,
            "input_key": "input",
            "output_key": "output",
            "memory_key": "history",
            "memory_id": None,
            "store": None,
            "runtime": None,
        }
        ours = {"memory_id", "store", "runtime"}
        assert {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY} == ours

    def test_chat_memory_starts_as_an_empty_list(self) -> None:
        memory = ConversationBufferMemory()
        assert memory.chat_memory == []
        assert isinstance(memory.chat_memory, list)

    def test_arguments_are_attributes_that_may_be_changed(self) -> None:
        memory = ConversationBufferMemory(True, "question", "answer", "chat")
        assert (memory.return_messages, memory.input_key) == (True, "question")
        assert (memory.output_key, memory.memory_key) == ("answer", "chat")
        memory.return_messages, memory.input_key, memory.memory_key = False, "prompt", "log"
        memory.save_context({"prompt": "a"}, {"answer": "b"})
        assert memory.load_memory_variables({}) == {"log": "user: a\nassistant: b"}


class TestSaveContext:
    def test_it_appends_input_output_and_the_time(self) -> None:
        memory = ConversationBufferMemory()
        before = time.time()
        assert memory.save_context({"input": "Hi"}, {"output": "Hello!"}) is None  # type: ignore[func-returns-value]
        (exchange,) = memory.chat_memory
        assert list(exchange) == ["input", "output", "timestamp"]
        assert (exchange["input"], exchange["output"]) == ("Hi", "Hello!")
        assert before <= exchange["timestamp"] <= time.time()
        assert isinstance(exchange["timestamp"], float)

    def test_a_missing_key_stores_none_and_raises_nothing(self) -> None:
        memory = ConversationBufferMemory()
        memory.save_context({}, {"output": "..."})
        memory.save_context({"input": "x"}, {"answer": "y"})
        assert [(exchange["input"], exchange["output"]) for exchange in memory.get_messages()] == [
            (None, "..."),
            ("x", None),
        ]

    def test_other_keys_are_not_kept(self) -> None:
        memory = ConversationBufferMemory(input_key="question", output_key="answer")
        memory.save_context({"question": "q", "input": "i"}, {"answer": "a", "output": "o"})
        assert memory.load_memory_variables({})["history"] == "user: q\nassistant: a"

    @pytest.mark.parametrize("value", JSON_VALUES + ODD_VALUES, ids=lambda value: type(value).__name__)
    def test_in_memory_values_are_the_callers_own_objects(self, value: Any) -> None:
        memory = ConversationBufferMemory()
        memory.save_context({"input": value}, {"output": value})
        other = ConversationBufferMemory(memory_id=memory.memory_id)
        for known in (memory, other):
            exchange = known.chat_memory[0]
            assert same(exchange["input"], value)
            assert same(exchange["output"], value)
            if not isinstance(value, (str, int, float, type(None))):
                assert exchange["input"] is exchange["output"] is value

    @pytest.mark.parametrize("value", JSON_VALUES, ids=lambda value: type(value).__name__)
    def test_in_a_store_values_keep_type_and_value(self, value: Any, durable_url: str) -> None:
        memory = ConversationBufferMemory(memory_id="m", store=durable_url)
        memory.save_context({"input": value}, {"output": value})
        close_default_runtimes()
        (exchange,) = ConversationBufferMemory(memory_id="m", store=durable_url).chat_memory
        assert same(exchange["input"], value)
        assert same(exchange["output"], value)
        assert exchange == memory.chat_memory[0]

    @pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: type(value).__name__)
    def test_a_store_refuses_what_json_cant_carry_and_nothing_is_changed(self, value: Any, tmp_path: Path) -> None:
        memory = ConversationBufferMemory(memory_id="m", store=f"sqlite:///{tmp_path}/chats.db")
        memory.save_context({"input": "a"}, {"output": "b"})
        before = memory.get_messages()
        first = memory.chat_memory[0]
        key = value if isinstance(value, tuple) else 1
        changes: list[Callable[[], object]] = [
            lambda: memory.save_context({"input": value}, {}),
            lambda: memory.save_context({}, {"output": value}),
            lambda: memory.chat_memory.append({"input": "a", "output": "b", "note": value}),
            lambda: memory.chat_memory.insert(0, {"input": value, "output": "b"}),
            lambda: first.__setitem__("input", value),
            lambda: first.update({"output": value}),
            lambda: first.__setitem__(key, "a key that is no text"),
        ]
        for change in changes:
            with pytest.raises(InvalidMessageError) as caught:
                change()
            assert "zerda" in str(caught.value)
        assert memory.get_messages() == before
        assert first == {"input": "a", "output": "b", "timestamp": first["timestamp"]}
        assert len(memory.native.messages()) == 2

    def test_in_a_store_a_value_is_what_it_was_when_it_was_saved(self, durable_url: str) -> None:
        """Listed: what is changed inside a value is kept when it is assigned."""
        memory = ConversationBufferMemory(store=durable_url)
        value = [1]
        memory.save_context({"input": value}, {"output": "b"})
        value.append(2)
        memory.chat_memory[0]["output"] = "c"
        other = ConversationBufferMemory(memory_id=memory.memory_id, store=durable_url)
        memory.chat_memory[0]["input"] = [*other.chat_memory[0]["input"], 3]
        assert other.chat_memory[0]["input"] == [1, 3]


class TestNativeForm:
    def test_an_exchange_is_one_atomic_user_and_assistant_batch(self) -> None:
        with open_sync_runtime("memory:") as runtime:
            memory = ConversationBufferMemory(memory_id="m", runtime=runtime)
            memory.save_context({"input": "Hi"}, {"output": "Hello!"})
            handle = runtime.memory("m")
            assert handle.stats().version.n == 1
            question, answer = handle.messages()
            assert (question.role, question.content, answer.role, answer.content) == (
                "user",
                "Hi",
                "assistant",
                "Hello!",
            )
            assert question.to_dict()["zerda"]["timestamp"] == memory.chat_memory[0]["timestamp"]

    def test_what_is_no_text_stands_there_as_text_and_rides_along_as_json(self) -> None:
        memory = ConversationBufferMemory()
        memory.save_context({"input": [1, None]}, {})
        question, answer = memory.native.messages()
        assert (question.content, answer.content) == ("[1, None]", "None")
        assert question.to_dict()["zerda"]["input"] == [1, None]
        assert answer.to_dict()["zerda"] == {"output": None}

    def test_what_cant_be_printed_is_kept_all_the_same(self) -> None:
        memory = ConversationBufferMemory()
        value = Unprintable()
        memory.save_context({"input": value}, {"output": 10**5000})
        assert memory.chat_memory[0]["input"] is value
        assert [message.content for message in memory.native.messages()] == ["<Unprintable>", "<int>"]

    def test_what_others_said_is_read_as_far_as_it_goes(self) -> None:
        memory = ConversationBufferMemory()
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        parts = [{"type": "text", "text": "this one?"}]
        memory.native.add({"role": "system", "content": "Be brief."})
        memory.native.add(
            {"role": "user", "content": "look"}, {"role": "assistant", "content": None, "tool_calls": [call]}
        )
        memory.native.add({"role": "tool", "tool_call_id": "c", "content": "42"})
        memory.native.add({"role": "assistant", "content": "It is 42."})
        memory.native.add({"role": "user", "content": parts})
        assert memory.chat_memory == [
            {"input": "look", "output": "It is 42.", "timestamp": None},
            {"input": parts, "output": None, "timestamp": None},
        ]
        memory.native.add({"role": "assistant", "content": "Yes."})
        assert memory.chat_memory[1]["output"] == "Yes."

    def test_a_field_of_the_same_name_that_is_not_ours_does_no_harm(self) -> None:
        memory = ConversationBufferMemory()
        for strange in (5, {"exchange": 5}, {"exchange": "e", "without": 3, "more": 4, "objects": "x"}, None):
            memory.native.add(
                {"role": "user", "content": "a", "zerda": strange}, {"role": "assistant", "content": "b", "zerda": []}
            )
        assert [(exchange["input"], exchange["output"]) for exchange in memory.chat_memory] == [("a", "b")] * 4


class TestLoadMemoryVariables:
    def test_text_joins_user_and_assistant_by_lines(self) -> None:
        memory = ConversationBufferMemory()
        assert memory.load_memory_variables({}) == {"history": ""}
        memory.save_context({"input": "Hi"}, {"output": "Hello!"})
        memory.save_context({}, {"output": 5})
        expected = "user: Hi\nassistant: Hello!\nuser: None\nassistant: 5"
        assert memory.load_memory_variables({}) == {"history": expected}

    def test_return_messages_gives_the_list_itself(self) -> None:
        memory = ConversationBufferMemory(return_messages=True, memory_key="chat")
        loaded = memory.load_memory_variables({})
        assert list(loaded) == ["chat"]
        assert loaded["chat"] is memory.chat_memory
        memory.save_context({"input": "Hi"}, {"output": "Hello!"})
        assert loaded["chat"][0]["input"] == "Hi"

    def test_its_argument_is_ignored(self) -> None:
        memory = ConversationBufferMemory()
        memory.save_context({"input": "Hi"}, {"output": "Hello!"})
        ignored: list[Any] = [{}, {"input": "x"}, None, 5]
        assert len({memory.load_memory_variables(argument)["history"] for argument in ignored}) == 1

    def test_a_subclass_may_have_a_text_form_of_its_own(self) -> None:
        class Mine(ConversationBufferMemory):
            def _format_messages_as_text(self) -> str:
                return " / ".join(f"{exchange['input']}>{exchange['output']}" for exchange in self.chat_memory)

        memory = Mine()
        memory.save_context({"input": "a"}, {"output": "b"})
        memory.save_context({"input": "c"}, {"output": "d"})
        assert memory.load_memory_variables({})["history"] == "a>b / c>d"
        assert memory.get_memory_stats()["type"] == "ConversationBufferMemory"


class TestClear:
    def test_it_empties_the_memory(self) -> None:
        memory = ConversationBufferMemory(return_messages=True)
        history = memory.load_memory_variables({})["history"]
        memory.clear()
        memory.save_context({"input": "a"}, {"output": "b"})
        memory.clear()
        assert history == []
        assert memory.get_messages() == []
        assert memory.native.messages() == ()

    def test_nothing_of_it_stays_behind(self) -> None:
        memory = ConversationBufferMemory()
        thing = Thing()
        alive = weakref.ref(thing)
        memory.save_context({"input": thing}, {"output": "b"})
        del thing
        assert alive() is not None
        memory.clear()
        gc.collect()
        assert alive() is None


class TestStats:
    def test_they_count_exchanges_characters_and_tokens(self) -> None:
        memory = ConversationBufferMemory()
        assert memory.get_memory_stats() == {
            "type": "ConversationBufferMemory",
            "message_count": 0,
            "total_characters": 0,
            "estimated_tokens": 0,
        }
        memory.save_context({"input": "Hi"}, {"output": "Hello!"})
        memory.save_context({}, {"output": 12345})
        stats = memory.get_memory_stats()
        assert (stats["message_count"], stats["total_characters"], stats["estimated_tokens"]) == (2, 17, 4)

    def test_they_follow_a_value_that_changes(self) -> None:
        memory = ConversationBufferMemory()
        value = [1]
        memory.save_context({"input": value}, {"output": ""})
        value.append(2)
        assert memory.get_memory_stats()["total_characters"] == len("[1, 2]")
        assert memory.load_memory_variables({})["history"] == "user: [1, 2]\nassistant: "


class TestGetMessages:
    def test_nothing_none_and_0_give_all(self) -> None:
        memory = self.filled()
        for messages in (memory.get_messages(), memory.get_messages(None), memory.get_messages(limit=0)):
            assert [exchange["input"] for exchange in messages] == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("limit", "expected"), [(2, [2, 3]), (10, [0, 1, 2, 3]), (-1, [1, 2, 3]), (-3, [3]), (-10, []), (True, [3])]
    )
    def test_n_gives_the_last_n_and_a_negative_number_slices(self, limit: int, expected: list[int]) -> None:
        assert [exchange["input"] for exchange in self.filled().get_messages(limit)] == expected

    def test_a_float_is_a_type_error(self) -> None:
        with pytest.raises(TypeError):
            self.filled().get_messages(1.5)  # type: ignore[arg-type]

    def test_it_is_a_shallow_copy(self) -> None:
        memory = self.filled()
        messages = memory.get_messages()
        assert type(messages) is list
        messages.clear()
        assert len(memory.chat_memory) == 4
        memory.get_messages(1)[0]["input"] = "changed"
        assert memory.chat_memory[3]["input"] == "changed"

    @staticmethod
    def filled() -> ConversationBufferMemory:
        memory = ConversationBufferMemory()
        for number in range(4):
            memory.save_context({"input": number}, {"output": number})
        return memory


class TestCosts:
    def test_saving_and_stats_read_nothing_and_look_at_nothing_old(self) -> None:
        """What saving and stats touch does not grow: they never ask for messages, nor visit the exchanges."""
        memory = ConversationBufferMemory()
        asked: list[str] = []
        chat = memory.chat_memory
        real = chat.handle

        class Watched:
            def __init__(self, handle: Any) -> None:
                self._handle = handle

            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return getattr(self._handle, name)

        cls: Any = type(
            "Watching", (type(chat),), {"__slots__": (), "handle": lambda self, *given: Watched(real(*given))}
        )
        chat.__class__ = cls
        for number in range(100):
            memory.save_context({"input": number}, {"output": number})
            assert memory.get_memory_stats()["message_count"] == number + 1
        assert set(asked) == {"add", "stats"}
        assert len(asked) == 200

    def test_objects_that_others_cleared_away_are_let_go(self) -> None:
        """Nobody reads, so nobody notices that they are gone; still they don't pile up."""
        memory = ConversationBufferMemory()
        alive: weakref.WeakSet[Thing] = weakref.WeakSet()
        for number in range(1_000):
            thing = Thing()
            alive.add(thing)
            memory.save_context({"input": thing}, {"output": number})
            del thing
            if number % 10 == 9:
                memory.native.clear()
        assert len(alive) < 300


class TestObjects:
    def test_they_refuse_pickle_and_copy_and_say_what_to_do(self) -> None:
        memory = ConversationBufferMemory()
        for attempt in (pickle.dumps, copy, deepcopy):
            with pytest.raises(TypeError, match="extend its chat_memory"):
                attempt(memory)
        other = ConversationBufferMemory()
        memory.save_context({"input": "a"}, {"output": "b"})
        other.chat_memory.extend(memory.chat_memory)
        assert other.chat_memory == memory.chat_memory
        memory.clear()
        assert len(other.chat_memory) == 1

    def test_their_repr_says_nothing_of_what_was_said(self) -> None:
        memory = ConversationBufferMemory(memory_id="m")
        memory.save_context({"input": "secret"}, {"output": "secret"})
        assert repr(memory) == "<ConversationBufferMemory memory_id='m'>"
        memory.clear()

    @pytest.mark.anyio
    async def test_async_calls_are_the_blocking_ones_in_a_thread_also_for_a_subclass(self) -> None:
        class Audited(ConversationBufferMemory):
            saved = 0

            def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
                super().save_context(inputs, outputs)
                self.saved += 1

        async with open_runtime("memory:") as runtime:
            memory = Audited(runtime=runtime)
            assert await memory.asave_context({"input": "a"}, {"output": "b"}) is None  # type: ignore[func-returns-value]
            assert memory.saved == 1
            assert await memory.aload_memory_variables({}) == {"history": "user: a\nassistant: b"}

"""The same random operations on the memories of zerda 0.1.0 and on ours come to the same, in every result.

What differs on purpose is not among the operations; `docs/zerda.md` lists it with a test each.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat import zerda as ours
from turnkeeper.compat.zerda import buffer

pytest.importorskip("zerda", reason="in the extra 'test'")
theirs = pytest.importorskip("zerda.memory", exc_type=ImportError)
zerda_buffer: Any = importlib.import_module("zerda.memory.memories.buffer_memory")

KEYS = ("input", "output", "timestamp")
LISTS_ONLY = (
    "slice",
    "set slice",
    "delete slice",
    "plus",
    "sort",
    "print",
    "json",
    "pop(",
    "get_messages(",
    "times",
    "assign",
)

texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
odd_values = st.sampled_from([(1, 2), b"bytes", Decimal("1.50"), datetime(2026, 1, 1), {3}, {1: 2}, float("nan")])
indexes = st.integers(-4, 4)
slices = st.builds(slice, st.none() | indexes, st.none() | indexes)

Operation = tuple[str, Callable[[Any], Any]]


def op(name: str, function: Callable[..., Any], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    """Describe an operation on a memory; what it puts in is new for each of the two, the values in it are the same."""

    def bind(drawn: tuple[Any, ...]) -> Operation:
        return f"{name}{drawn}", lambda memory: function(memory, *[fresh(argument) for argument in drawn])

    return st.tuples(*arguments).map(bind)


def fresh(argument: Any) -> Any:
    if isinstance(argument, list):
        return [fresh(item) for item in argument]
    return dict(argument) if isinstance(argument, dict) else argument


def on_list(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return op(name, lambda memory, *given: getattr(memory.chat_memory, name)(*given), *arguments)


def change(memory: Any, index: int, key: str, value: Any) -> None:
    memory.chat_memory[index][key] = value


def assign(memory: Any, name: str, value: Any) -> None:
    setattr(memory, name, value)


def add_in_place(memory: Any, more: list[Any]) -> None:
    memory.chat_memory += more


def mutate_value(memory: Any, index: int, value: Any) -> None:
    """Values are kept by reference: who changes one changes the memory."""
    said = memory.chat_memory[index]["input"]
    if isinstance(said, list):
        said.append(value)


class Operations:
    """What one can do with a memory.

    Args:
        values: what is said and answered.
        fields: what an exchange has.
    """

    def __init__(self, values: st.SearchStrategy[Any], *, fields: Sequence[str] = KEYS) -> None:
        keys = st.sampled_from([*fields, "note"])
        contexts = st.dictionaries(st.sampled_from(["input", "output", "question"]), values, max_size=3)
        entries = st.builds(
            lambda said, answered, more: {"input": said, "output": answered, **more}, values, values, contexts
        )
        some = st.lists(entries, max_size=3)
        self.save = op("save_context", lambda memory, *given: memory.save_context(*given), contexts, contexts)
        self.common = [
            self.save,
            self.save,
            op("load_memory_variables", lambda memory: memory.load_memory_variables({})),
            op("get_memory_stats", lambda memory: memory.get_memory_stats()),
            op("clear", lambda memory: memory.clear()),
            op(
                "input_key",
                lambda memory, key: assign(memory, "input_key", key),
                st.sampled_from(["input", "question"]),
            ),
            op(
                "memory_key",
                lambda memory, key: assign(memory, "memory_key", key),
                st.sampled_from(["history", "chat"]),
            ),
            op("len", lambda memory: len(memory.chat_memory)),
            op("bool", lambda memory: bool(memory.chat_memory)),
            op("list", lambda memory: list(memory.chat_memory)),
            op("reversed", lambda memory: list(reversed(memory.chat_memory))),
            op("getitem", lambda memory, index: memory.chat_memory[index], indexes),
            op("setitem", lambda memory, *given: memory.chat_memory.__setitem__(*given), indexes, entries),
            op("delitem", lambda memory, index: memory.chat_memory.__delitem__(index), indexes),
            op("contains", lambda memory, entry: entry in memory.chat_memory, entries),
            op("in place", add_in_place, some),
            op("change", change, indexes, keys, values),
            op("drop key", lambda memory, index, key: memory.chat_memory[index].pop(key), indexes, keys),
            op("delete key", lambda memory, index: memory.chat_memory[index].__delitem__("note"), indexes),
            op("update", lambda memory, index, entry: memory.chat_memory[index].update(entry), indexes, entries),
            op(
                "default", lambda memory, index, new: memory.chat_memory[index].setdefault("note", new), indexes, values
            ),
            op("remove", lambda memory, index: memory.chat_memory.remove(dict(memory.chat_memory[index])), indexes),
            op("index", lambda memory, index: memory.chat_memory.index(dict(memory.chat_memory[index])), indexes),
            on_list("append", entries),
            on_list("extend", some),
            on_list("insert", indexes, entries),
            on_list("remove", entries),
            on_list("count", entries),
            on_list("pop"),
            on_list("clear"),
            on_list("reverse"),
            on_list("copy"),
        ]
        self.for_buffers = [
            op("return_messages", lambda memory, on: assign(memory, "return_messages", on), st.booleans()),
            op("get_messages", lambda memory: memory.get_messages()),
        ]
        self.for_lists = [
            op("get_messages", lambda memory, limit: memory.get_messages(limit), st.none() | indexes | st.just(1.5)),
            op("slice", lambda memory, part: memory.chat_memory[part], slices),
            op("set slice", lambda memory, *given: memory.chat_memory.__setitem__(*given), slices, some),
            op("delete slice", lambda memory, part: memory.chat_memory.__delitem__(part), slices),
            op("plus", lambda memory, new: memory.chat_memory + new, some),
            op("plus from the left", lambda memory, new: new + memory.chat_memory, some),
            op("times", lambda memory, times: memory.chat_memory * times, st.integers(-1, 2)),
            op("sort", lambda memory: memory.chat_memory.sort(key=lambda entry: str(entry.get("input")), reverse=True)),
            op("print", lambda memory: str(memory.chat_memory)),
            op("json", lambda memory: json.dumps(memory.chat_memory)),
            op("json, indented", lambda memory: json.dumps(memory.chat_memory, indent=1, default=str)),
            op("copy", lambda memory: copy.copy(memory.chat_memory)),
            op("assign", lambda memory, new: assign(memory, "chat_memory", new), some),
            on_list("pop", indexes),
            on_list("sort"),
        ]
        self.for_windows = [
            op("get_window_info", lambda memory: memory.get_window_info()),
            op("maxlen", lambda memory: memory.chat_memory.maxlen),
            op("k", lambda memory, k: assign(memory, "k", k), st.integers(1, 4)),
            on_list("appendleft", entries),
            on_list("extendleft", some),
            on_list("popleft"),
            on_list("rotate", indexes),
        ]
        self.for_summaries = [
            op("get_summary", lambda memory: memory.get_summary()),
            op("force_summarize", lambda memory: memory.force_summarize()),
            op("summary", lambda memory, text: assign(memory, "summary", text), texts),
            op("limit", lambda memory, limit: assign(memory, "max_token_limit", limit), st.integers(0, 60)),
        ]
        self.by_reference = [op("mutate", mutate_value, indexes, values)]

    def any_of(self, *kinds: list[st.SearchStrategy[Operation]]) -> st.SearchStrategy[list[Operation]]:
        """Return sequences that begin with something to work on."""
        some = st.lists(st.one_of(*[operation for kind in kinds for operation in kind]), max_size=15)
        return st.builds(lambda first, then: first + then, st.lists(self.save, max_size=4), some)


anything = Operations(json_values | odd_values)
storable = Operations(json_values)
said = Operations(texts, fields=KEYS[:2])


@pytest.fixture(autouse=True, scope="module")
def clocks() -> Iterator[None]:
    """Give both the same times."""
    with pytest.MonkeyPatch.context() as patch:
        for module, attribute in ((zerda_buffer, "time"), (buffer, "time")):
            ticks = partial(next, count(1000.5))
            patch.setattr(module, attribute, SimpleNamespace(time=ticks) if module is zerda_buffer else ticks)
        yield


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a store, closed at the end."""
    yield f"sqlite:///{tmp_path_factory.mktemp('differential')}/chats.db"
    close_default_runtimes()


def plain(value: Any) -> Any:
    """Return what both can be compared by: a window is a deque there and a list here."""
    if isinstance(value, (list, deque)):
        return [dict(item) if isinstance(item, dict) else item for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def outcome(call: Callable[[Any], Any], memory: Any) -> Any:
    try:
        return plain(call(memory))
    except Exception as error:
        return type(error)


def compare(their_memory: Any, our_memory: Any, operations: list[Operation]) -> None:
    for name, call in operations:
        expected, found = outcome(call, their_memory), outcome(call, our_memory)
        assert repr(found) == repr(expected), name
        assert plain(our_memory.chat_memory) == plain(their_memory.chat_memory), name
        assert outcome(lambda memory: memory.get_memory_stats(), our_memory) == outcome(
            lambda memory: memory.get_memory_stats(), their_memory
        ), name


class Model:
    """Says something that tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def generate(self, prompt: str, max_tokens: int) -> str:
        self.asked.append((prompt, max_tokens))
        return f" summary {len(self.asked)} of {len(prompt)} characters\n"


@given(operations=anything.any_of(anything.common, anything.for_buffers, anything.for_lists, anything.by_reference))
def test_a_buffer(operations: list[Operation]) -> None:
    compare(theirs.ConversationBufferMemory(), ours.ConversationBufferMemory(), operations)


@given(
    operations=anything.any_of(anything.common, anything.for_buffers, anything.for_windows, anything.by_reference),
    k=st.integers(1, 4),
)
def test_a_window(operations: list[Operation], k: int) -> None:
    compare(theirs.ConversationBufferWindowMemory(k), ours.ConversationBufferWindowMemory(k), operations)


@given(operations=said.any_of(said.common, said.for_lists[1:], said.for_summaries), limit=st.integers(0, 60))
def test_a_summary(operations: list[Operation], limit: int) -> None:
    template = "{previous_summary}|{new_conversation}"
    their_model, our_model = Model(), Model()
    compare(
        theirs.ConversationSummaryMemory(their_model, limit, summary_prompt_template=template),
        ours.ConversationSummaryMemory(our_model, limit, summary_prompt_template=template),
        operations,
    )
    assert our_model.asked == their_model.asked


@given(operations=storable.any_of(storable.common, storable.for_buffers, storable.for_lists), k=st.integers(1, 4))
@settings(max_examples=30)
def test_a_buffer_and_a_window_in_a_file(operations: list[Operation], k: int, url: str) -> None:
    for_windows = [(name, call) for name, call in operations if not name.startswith(LISTS_ONLY)]
    compare(theirs.ConversationBufferMemory(), ours.ConversationBufferMemory(store=url), operations)
    compare(theirs.ConversationBufferWindowMemory(k), ours.ConversationBufferWindowMemory(k, store=url), for_windows)

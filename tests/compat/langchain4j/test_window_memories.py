"""The two memories: LangChain4j's rules, the same whatever is under them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from compat.langchain4j.own_stores import answer, call, result, system, texts, user
from compat.langchain4j.ways import ALL, NATIVE, OWN, WITH_STORE, Way, on
from turnkeeper import (
    BpeCounter,
    ConflictError,
    IdempotencyMismatchError,
    InvalidArgumentError,
    InvalidMemoryIdError,
    InvalidMessageError,
    Message,
    MessageWindow,
    SystemMessage,
    TurnkeeperError,
    Unbounded,
    UserMessage,
    open_sync_runtime,
)
from turnkeeper.compat.langchain4j import (
    ChatMemory,
    InMemoryChatMemoryStore,
    MessageList,
    MessageWindowChatMemory,
    StoreChatMemoryStore,
    TokenWindowChatMemory,
    UnsupportedByStoreError,
)


def words(text: str) -> int:
    return len(text.split())


@on(*ALL)
def test_the_newest_messages_stay(way: Way) -> None:
    memory = way.memory(3)
    assert memory.messages() == []
    memory.add(user("u1"))
    memory.add(UserMessage("u2"), user("u3"))
    memory.add([user("u4")])
    memory.add(iter([user("u5")]))
    assert texts(memory.messages()) == ["u3", "u4", "u5"]


@on(*ALL)
def test_none_and_nothing_add_nothing(way: Way) -> None:
    memory = way.memory()
    memory.add()
    memory.add(None)
    memory.add([])
    assert memory.messages() == []


@on(*ALL)
def test_a_batch_is_there_whole_or_not_at_all(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"))
    with pytest.raises(InvalidMessageError, match="message 1"):
        memory.add([user("u2"), {"role": "nobody"}])
    with pytest.raises(InvalidMessageError):
        memory.set([user("u2"), "text"])  # type: ignore[list-item]
    assert texts(memory.messages()) == ["u1"]


@on(*ALL)
def test_messages_returns_a_fresh_list(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"))
    first = memory.messages()
    assert type(first) is MessageList
    first.append(UserMessage("mine"))
    first[0] = UserMessage("mine")
    assert texts(memory.messages()) == ["u1"]
    assert memory.messages() is not memory.messages()


@on(*ALL)
def test_set_replaces_everything_by_the_same_rules(way: Way) -> None:
    memory = way.memory(3)
    memory.add(system("s1"), user("u1"))
    memory.set(user("u2"), answer("a2"))
    assert texts(memory.messages()) == ["u2", "a2"]
    memory.set([system("s2"), user("u3"), answer("a3"), user("u4")])
    assert texts(memory.messages()) == ["s2", "a3", "u4"]
    memory.set(iter([user("u5")]))
    assert texts(memory.messages()) == ["u5"]


@on(*ALL)
def test_set_refuses_none_and_nothing(way: Way) -> None:
    """FIELD D3: LangChain4j's contract says refuse, and its window memories become empty."""
    memory = way.memory()
    memory.add(user("u1"))
    refused: list[tuple[Any, ...]] = [(), (None,), ([],), (iter(()),)]
    for given in refused:
        with pytest.raises(InvalidArgumentError, match="at least one message"):
            memory.set(*given)
    assert texts(memory.messages()) == ["u1"]


@on(*ALL)
def test_the_callers_list_is_never_kept(way: Way) -> None:
    """FIELD D4: save a list, change it, read."""
    memory = way.memory()
    nested = {"role": "user", "content": [{"type": "text", "text": "u1"}]}
    given: list[dict[str, Any]] = [nested]
    memory.set(given)
    nested["content"] = "changed"
    given.clear()
    memory.add(given := [user("u2")])
    given[0]["content"] = "changed"
    assert texts(memory.messages()) == ["u1", "u2"]


@on(*ALL)
def test_clear_empties_and_may_be_repeated(way: Way) -> None:
    memory = way.memory()
    memory.clear()
    memory.add(user("u1"))
    memory.clear()
    memory.clear()
    assert memory.messages() == []
    memory.add(user("u2"))
    assert texts(memory.messages()) == ["u2"]


@on(*ALL)
def test_the_system_message_stays_and_is_one(way: Way) -> None:
    memory = way.memory(3)
    memory.add(system("s1"), user("u1"), user("u2"), user("u3"))
    assert texts(memory.messages()) == ["s1", "u2", "u3"]
    memory.add(system("s1"))
    assert texts(memory.messages()) == ["s1", "u2", "u3"]
    memory.add(SystemMessage("s2"))
    assert texts(memory.messages()) == ["u2", "u3", "s2"]


@on(*ALL)
def test_the_system_message_may_come_first_always(way: Way) -> None:
    memory = way.memory(3, always_keep_system_message_first=True)
    memory.add(user("u1"), system("s1"))
    assert texts(memory.messages()) == ["s1", "u1"]
    memory.add(user("u2"), system("s2"))
    assert texts(memory.messages()) == ["s2", "u1", "u2"]


@on(*ALL)
def test_a_call_leaves_with_its_results(way: Way) -> None:
    memory = way.memory(3)
    memory.add(user("u1"), call("1"), result("1", "r1"))
    assert [message.role for message in memory.messages()] == ["user", "assistant", "tool"]
    memory.add(answer("a1"))
    assert [message.role for message in memory.messages()] == ["assistant", "tool", "assistant"]
    memory.add(user("u2"))
    assert texts(memory.messages()) == ["a1", "u2"]


@on(*ALL)
def test_a_result_stands_behind_the_call_of_its_id(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"), call("1"), system("s1"), user("u2"), result("1", "r1"), result("9", "of no call"))
    assert [message.role for message in memory.messages()] == ["user", "assistant", "tool", "system", "user"]


@on(*ALL)
def test_a_call_without_a_result_is_closed_in_the_view_alone(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"), call("1"), user("u2"))
    assert [message.synthetic for message in memory.messages()] == [False, False, True, False]
    memory.add(result("1", "late"))
    assert texts(memory.messages()) == ["u1", "", "late", "u2"]
    assert not any(message.synthetic for message in memory.messages())


@on(*ALL)
def test_a_limit_may_be_a_function_of_the_id_as_it_was_given(way: Way) -> None:
    limits = {("tenant", 7): 2}
    memory = way.memory(limits.__getitem__, ("tenant", 7))
    memory.add(user("u1"), user("u2"), user("u3"))
    assert texts(memory.messages()) == ["u2", "u3"]
    limits["tenant", 7] = 1
    assert texts(memory.messages()) == ["u3"]
    limits["tenant", 7] = 3
    memory.add(user("u4"))
    assert texts(memory.messages())[-2:] == ["u3", "u4"]


@on(*ALL)
@pytest.mark.parametrize("wrong", [0, -1, "3", None, True])
def test_a_limits_function_that_fails_fails_its_own_request(way: Way, wrong: Any) -> None:
    limits = {"m": 3}
    memory = way.memory(limits.__getitem__)
    memory.add(user("u1"))
    limits["m"] = wrong
    refused: list[Callable[[], object]] = [memory.messages, lambda: memory.add(user("u2"))]
    for request in refused:
        with pytest.raises(InvalidArgumentError, match="limit"):
            request()
    del limits["m"]
    with pytest.raises(KeyError):
        memory.set(user("u3"))
    limits["m"] = 3
    assert texts(memory.messages()) == ["u1"]


@pytest.mark.parametrize("wrong", [0, -1, None, "10", 1.5, True])
def test_a_limit_is_a_number_of_at_least_1(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_messages"):
        MessageWindowChatMemory(wrong)
    with pytest.raises(InvalidArgumentError, match="max_messages"):
        MessageWindowChatMemory.with_max_messages(wrong)
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        TokenWindowChatMemory(wrong, words)
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        TokenWindowChatMemory.with_max_tokens(wrong, words)


def test_the_short_ways_to_make_one() -> None:
    few = MessageWindowChatMemory.with_max_messages(2)
    few.add(user("u1"), user("u2"), user("u3"))
    assert texts(few.messages()) == ["u2", "u3"]
    short = TokenWindowChatMemory.with_max_tokens(3 + 2 * 5, words)  # the list, and two of a word each
    short.add(user("u1"), user("u2"), user("u3"))
    assert texts(short.messages()) == ["u2", "u3"]
    assert (type(few), few.id()) == (MessageWindowChatMemory, "default")
    assert (type(short), short.id()) == (TokenWindowChatMemory, "default")


class Sizes:
    """A `TokenCountEstimator` as people have it for LangChain4j."""

    def estimate_token_count_in_message(self, message: Message) -> int:
        return len(message.text)

    def estimate_token_count_in_messages(self, messages: Iterable[Message]) -> int:
        return 2 + sum(map(self.estimate_token_count_in_message, messages))


@on(*ALL)
@pytest.mark.parametrize("estimator", [Sizes(), BpeCounter(len), len], ids=["estimator", "counter", "function"])
def test_tokens_may_be_counted_in_three_ways(way: Way, estimator: Any) -> None:
    overhead, each = (2, 2) if isinstance(estimator, Sizes) else (3, 6)
    memory = TokenWindowChatMemory(overhead + 2 * each, estimator, id="m", **way.options)
    memory.add(user("u1"), user("u2"), user("u3"))
    assert texts(memory.messages()) == ["u2", "u3"]
    memory.add(user("far too long to stay"))
    assert memory.messages() == []


@on(*ALL)
def test_a_counter_that_fails_fails_one_add_and_no_read(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    def count(text: str) -> int:
        if text in failing:
            raise KeyError("no idea")
        return 1

    failing = {"u2"}
    memory = TokenWindowChatMemory(100, count, id="m", **way.options)
    memory.add(user("u1"))
    with pytest.raises(KeyError):
        memory.add(user("u2"))
    failing = {"u1"}
    memory.add(user("u3"))
    assert texts(memory.messages()) == ["u1", "u3"]
    assert "secret" not in caplog.text


def test_an_estimator_is_required() -> None:
    for nothing in (None, 3):
        with pytest.raises(InvalidArgumentError):
            TokenWindowChatMemory(10, nothing)  # type: ignore[arg-type]


def test_nothing_here_calls_set() -> None:
    """The document says it of LangChain4j: "never called automatically"."""

    class Watched(MessageWindowChatMemory):
        def set(self, *messages: Any, **options: Any) -> None:
            raise AssertionError("set was called")

    memory = Watched(2)
    memory.add(system("s1"), user("u1"), user("u2"))
    memory.add([call("1")])
    memory.messages()
    memory.clear()
    memory.add(None)


# Ids and stores


def test_without_a_store_each_object_is_a_memory_of_its_own() -> None:
    """FIELD C3, C13: two who give no id, or the same one, never meet."""
    one, two = MessageWindowChatMemory(5), MessageWindowChatMemory(5)
    three, four = MessageWindowChatMemory(5, id="u"), MessageWindowChatMemory(5, id="u")
    for memory in (one, two, three, four):
        memory.add(user(str(id(memory))))
        assert texts(memory.messages()) == [str(id(memory))]
    assert (one.id(), two.id(), three.id()) == ("default", "default", "u")
    assert one.volatile


@on(*WITH_STORE)
def test_with_a_store_an_id_is_required(way: Way) -> None:
    """FIELD C13: a forgotten id must not fall back to a shared default."""
    with pytest.raises(InvalidMemoryIdError, match="an id is required"):
        MessageWindowChatMemory(5, chat_memory_store=way.store)
    with pytest.raises(InvalidMemoryIdError, match="an id is required"):
        TokenWindowChatMemory(5, words, id=None, chat_memory_store=way.store)
    assert not way.memory(memory_id="default").volatile, "said on purpose it is an id like others"


@on(*WITH_STORE)
def test_memories_of_one_id_and_store_share_a_conversation(way: Way) -> None:
    first, second, other = way.memory(), way.memory(2), way.memory(memory_id="another")
    first.add(user("u1"))
    second.add(user("u2"))
    first.add(user("u3"))
    assert texts(second.messages()) == ["u2", "u3"]
    assert texts(first.messages())[-2:] == ["u2", "u3"]
    assert other.messages() == []
    second.clear()
    assert first.messages() == []


@on(*WITH_STORE)
def test_ids_of_different_types_are_different(way: Way) -> None:
    ids = [1, "1", ("1",), (1,), "int:1"]
    for memory_id in ids:
        way.memory(memory_id=memory_id).add(user(repr(memory_id)))
    for memory_id in ids:
        assert texts(way.memory(memory_id=memory_id).messages()) == [repr(memory_id)]


@on(*WITH_STORE)
def test_an_id_that_has_no_text_needs_a_codec(way: Way) -> None:
    class Codec:
        def encode(self, memory_id: Any) -> str:
            return repr(memory_id)

        def decode(self, text: str) -> Any:
            return text

    with pytest.raises(InvalidMemoryIdError, match="id_codec"):
        way.memory(memory_id=frozenset({1}))
    memory = way.memory(memory_id=frozenset({1}), id_codec=Codec())
    memory.add(user("u1"))
    assert texts(memory.messages()) == ["u1"]
    assert memory.id() == frozenset({1})


def test_without_a_store_an_id_is_anything_that_can_be_hashed() -> None:
    memory = MessageWindowChatMemory(5, id=frozenset({1}))
    assert memory.id() == frozenset({1})
    with pytest.raises(InvalidMemoryIdError, match="hashable"):
        MessageWindowChatMemory(5, id=[])  # type: ignore[arg-type]


def test_a_store_may_be_named_in_all_of_turnkeepers_ways() -> None:
    with open_sync_runtime("memory:") as runtime:
        MessageWindowChatMemory(5, id="user-42", chat_memory_store=runtime).add(user("u1"))
        assert texts(runtime.memory("user-42").messages()) == ["u1"]
        store = StoreChatMemoryStore(runtime=runtime, namespace="tenant")
        MessageWindowChatMemory(5, id="user-42", chat_memory_store=store).add(user("u2"))
        assert texts(runtime.memory("user-42", "tenant").messages()) == ["u2"]
        assert texts(runtime.memory("user-42").messages()) == ["u1"]
    with pytest.raises(InvalidArgumentError, match="chat_memory_store"):
        MessageWindowChatMemory(5, id="m", chat_memory_store=3)  # type: ignore[arg-type]


def test_a_url_names_the_same_store_everywhere(tmp_path: Any) -> None:
    from turnkeeper.compat import close_default_runtimes

    url = f"sqlite:///{tmp_path}/chats.db"
    MessageWindowChatMemory(5, id="m", chat_memory_store=url).add(user("u1"))
    again = MessageWindowChatMemory(5, id="m", chat_memory_store=url)
    assert texts(again.messages()) == ["u1"]
    close_default_runtimes()
    assert texts(again.messages()) == ["u1"], "it is opened again, and was durable"
    close_default_runtimes()


# What only turnkeeper's stores can do


@on("alone", *NATIVE)
def test_a_version_and_a_key_work_as_in_turnkeeper(way: Way) -> None:
    memory = way.memory(5)
    memory.add(user("u1"), idempotency_key="k")
    memory.add(user("u1"), idempotency_key="k")
    prompt = memory.messages()
    assert texts(prompt) == ["u1"]
    memory.add(user("u2"))
    with pytest.raises(ConflictError):
        memory.set(user("summary"), if_version=prompt.version)
    memory.set(user("summary"), if_version=memory.messages().version, idempotency_key="k2")
    assert texts(memory.messages()) == ["summary"]
    with pytest.raises(IdempotencyMismatchError):
        memory.add(user("another"), idempotency_key="k")


@on("alone", *NATIVE)
def test_another_window_and_a_history_work_as_in_turnkeeper(way: Way) -> None:
    memory = way.memory(2, history="keep")
    memory.add([user(f"u{number}") for number in range(5)])
    memory.add(user("u5"))
    assert texts(memory.messages()) == ["u4", "u5"]
    assert texts(memory.messages(window=MessageWindow(4))) == ["u2", "u3", "u4", "u5"]
    assert len(memory.messages(window=Unbounded())) == 6


@on("alone", *NATIVE)
def test_by_default_what_leaves_the_window_leaves_the_store(way: Way) -> None:
    memory = way.memory(2)
    for number in range(50):
        memory.add(user(f"u{number}"))
    assert texts(memory.messages(window=Unbounded())) == ["u48", "u49"]


@on(*OWN)
def test_a_store_of_ones_own_has_neither_versions_nor_keys_nor_history(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"))
    prompt = memory.messages()
    assert prompt.version is None
    with open_sync_runtime("memory:") as runtime:
        version = runtime.memory("m").add(user("u1")).version
    refused: dict[str, Callable[[], object]] = {
        "idempotency_key": lambda: memory.add(user("u2"), idempotency_key="k"),
        "if_version": lambda: memory.set(user("u2"), if_version=version),
        "window": lambda: memory.messages(window=Unbounded()),
        "history": lambda: way.memory(history="keep"),
    }
    for name, request in refused.items():
        with pytest.raises(UnsupportedByStoreError, match=name) as refusal:
            request()
        assert isinstance(refusal.value, (TurnkeeperError, ValueError))
    with pytest.raises(UnsupportedByStoreError, match="idempotency_key"):
        memory.set(user("u2"), idempotency_key="k")
    assert texts(memory.messages()) == ["u1"]


def test_an_unknown_history_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="history"):
        MessageWindowChatMemory(5, history="all")  # type: ignore[arg-type]


# The object


@on(*ALL)
def test_a_memory_says_nothing_of_what_was_said(way: Way) -> None:
    memory = way.memory(memory_id=("tenant", 1))
    memory.add(user("secret"))
    assert repr(memory) == "<MessageWindowChatMemory id=('tenant', 1)>"
    assert "secret" not in repr(memory.messages()[0])


def test_a_memory_belongs_to_its_process() -> None:
    memory = MessageWindowChatMemory(5)
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="belongs to its process"):
            move(memory)


@on(*ALL)
def test_what_was_read_can_be_pickled(way: Way) -> None:
    memory = way.memory()
    memory.add(user("u1"))
    read = pickle.loads(pickle.dumps(memory.messages()))
    assert (read, read.version, read.overflow) == (memory.messages(), memory.messages().version, False)


def test_both_are_chat_memories() -> None:
    for memory in (MessageWindowChatMemory(5), TokenWindowChatMemory(5, words)):
        assert isinstance(memory, ChatMemory)


@on(*OWN)
def test_what_a_store_of_ones_own_holds_is_the_window(way: Way) -> None:
    memory = way.memory(3)
    memory.add(system("s1"), call("1"), user("u1"), user("u2"))
    assert way.store is not None
    stored = way.store.get_messages("m")
    assert texts(stored) == ["s1", "u1", "u2"]
    memory.set(call("1"), user("u3"))
    assert [message.synthetic for message in memory.messages()] == [False, True, False]
    held = list(way.store.get_messages("m") or ())
    assert len(held) == 2, "what was made up is not stored"
    assert all(isinstance(message, Message) and message.id is None for message in held)


def test_a_message_of_a_store_of_ones_own_has_its_own_id_or_none() -> None:
    memory = MessageWindowChatMemory(5, id="m", chat_memory_store=InMemoryChatMemoryStore())
    memory.add({**user("u1"), "id": "mine"}, user("u2"))
    assert [message.id for message in memory.messages()] == ["mine", None]

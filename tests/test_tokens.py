"""Token counters: LangChain4j's arithmetic, a price for whatever is not text, and nothing that makes them raise."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper import (
    AssistantMessage,
    InvalidArgumentError,
    Message,
    MissingExtraError,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from turnkeeper import tokens as module
from turnkeeper.messages import encode_messages, restore_message
from turnkeeper.tokens import BpeCounter, CharacterCounter, PartCosts, TokenCounter

PAGE = Path(__file__).parents[1] / "docs" / "tokens.md"
AIRLINE = Path(__file__).parents[2] / "shared" / "data" / "airline.jsonl.gz"

COSTS = PartCosts(image=1_000, audio=2_000, video=3_000, file=4_000, unknown=5_000)
MEGABYTE = "A" * 1_000_000

needs_splintr = pytest.mark.skipif(find_spec("splintr") is None, reason="the extra 'tokens' is not installed")
needs_airline = pytest.mark.skipif(not AIRLINE.exists(), reason="the shared transcripts are not here")


def words(text: str) -> int:
    """Count a word as a token: small numbers that a reader can check."""
    return len(text.split())


def count(message: dict[str, Any] | Message, *, model: str = "", tokens: Callable[[str], int] = words) -> int:
    """Count one message by its words."""
    (encoded,) = encode_messages([message])
    return BpeCounter(tokens, model=model, part_costs=COSTS).count(encoded)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def calling(call: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def text_tokens(counter: BpeCounter | CharacterCounter, text: str) -> int:
    """Return what a text costs alone."""
    return counter.count(UserMessage(text)) - counter.count(UserMessage(""))


def named(encoding: str) -> BpeCounter:
    """Return the counter for the name of an encoding, known or not."""
    return BpeCounter(encoding)  # type: ignore[arg-type]


class TestLangChain4jArithmetic:
    """The table of conformance/README.md, section 3."""

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (SystemMessage("be very brief"), 4 + 3),
            (UserMessage(""), 4),
            (UserMessage("one two three"), 4 + 3),
            (UserMessage("one two three", name="Ann Lee"), 4 + 3 + 1 + 2),
            (AssistantMessage("one two"), 4 + 2),
            # lc4j.est.tool_result: neither the id nor the name counts.
            (ToolMessage("42", tool_call_id="an id of words", name="a name of words"), 5),
            # lc4j.est.single_call
            (AssistantMessage(tool_calls=[ToolCall("1", "f", " ".join("abcdefghijklm"))]), 24),
            (AssistantMessage("one two", tool_calls=[ToolCall("1", "f", "a")]), 4 + 2 + 5 + 2 + 1),
            (AssistantMessage(tool_calls=[ToolCall("1", "long name", "a b")]), 4 + 5 + 2 * 2 + 2),
            # lc4j.est.parallel_calls
            (AssistantMessage(tool_calls=[ToolCall("1", "f", '{"a":"x","b":"y"}')] * 2), 57),
            (AssistantMessage(tool_calls=[ToolCall("1", "f", "{}")] * 3), 4 + 21 + 3 * (7 + 1)),
            (
                AssistantMessage(tool_calls=[ToolCall("1", "f", "{}"), ToolCall("2", "g h", '{"a key": "of a b"}')]),
                4 + 21 + (7 + 1) + (7 + 2 + (2 + 2 + 3)),
            ),
        ],
        ids=str,
    )
    def test_a_message_costs_what_the_table_says(self, message: Message, expected: int) -> None:
        assert count(message) == expected

    def test_a_list_costs_three_more(self) -> None:
        """lc4j.est.list"""
        counter = BpeCounter(words)
        assert counter.list_overhead == 3
        assert counter.count_all([]) == 3
        assert counter.count_all([UserMessage("one")]) == 8
        assert counter.count_all(UserMessage("one") for _ in range(3)) == 3 + 3 * 5

    @pytest.mark.parametrize("model", ["o", "o1", "o1-mini", "o3", "o4-mini"])
    def test_a_list_for_the_o_series_costs_two_more(self, model: str) -> None:
        """lc4j.est.o_models"""
        assert BpeCounter(words, model=model).count_all([UserMessage("a b c d e f")]) == 12

    @pytest.mark.parametrize("model", ["", "gpt-4o", "openai/gpt-4o", "O1"])
    def test_other_models_are_no_o_series(self, model: str) -> None:
        assert BpeCounter(words, model=model).list_overhead == 3

    def test_the_o4_family_pays_two_for_an_assistant_message(self) -> None:
        """lc4j.est.o_models"""
        answer, question = AssistantMessage("a b c d e f"), UserMessage("a b c d e f")
        assert count(answer, model="o4-mini") == 12
        assert count(answer, model="o3") == count(answer) == count(question, model="o4-mini") == 10

    def test_content_that_is_no_text_has_a_price_and_does_not_fail(self) -> None:
        """lc4j.est.unsupported_content, inverted"""
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        assert count(user({"type": "text", "text": "what is this"}, image)) == 4 + 3 + 1_000

    @pytest.mark.parametrize("arguments", ["a b c", '{"a": 1', "[1, 2, 3]", '"a b c"', "1 2 3", "NaN x x"])
    def test_parallel_arguments_that_are_no_object_count_as_they_are(self, arguments: str) -> None:
        """lc4j.est.bad_parallel_arguments, inverted"""
        bad, good = ToolCall("1", "f", arguments), ToolCall("2", "g", "{}")
        assert count(AssistantMessage(tool_calls=[bad, good])) == 4 + 21 + (7 + 1 + words(arguments)) + (7 + 1)

    def test_a_single_call_with_bad_arguments_counts_them_as_they_are(self) -> None:
        """lc4j.est.bad_parallel_arguments, as it is"""
        assert count(AssistantMessage(tool_calls=[ToolCall("1", "f", "{no JSON at all")])) == 15

    @pytest.mark.parametrize(
        ("value", "tokens"),
        [("a b c", 3), (12.5, 4), (True, 4), (None, 4), ({"k": [1, "é"]}, 13), ([], 2)],
    )
    def test_a_value_counts_as_its_text_or_compact_json(self, value: Any, tokens: int) -> None:
        measure = words if isinstance(value, str) else len
        calls = [ToolCall("1", "", json.dumps({"": value})), ToolCall("2", "", "{}")]
        assert count(AssistantMessage(tool_calls=calls), tokens=measure) == 4 + 21 + 2 * 7 + 2 + tokens


class TestWhatAMessageHolds:
    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"role": "user"}, 4),
            ({"role": "user", "content": None}, 4),
            ({"role": "user", "content": []}, 4),
            ({"role": "user", "content": 42}, 4 + 5_000),
            ({"role": "user", "content": {"type": "text", "text": "a b"}}, 4 + 2),
            ({"role": "developer", "content": "a b"}, 4 + 2),
            ({"role": "system", "content": "a b", "name": "ops team"}, 4 + 2 + 1 + 2),
            ({"role": "assistant", "content": "a b", "name": "bot"}, 4 + 2 + 1 + 1),
            ({"role": "user", "content": "a b", "name": None}, 4 + 2),
            ({"role": "assistant", "content": None, "refusal": "I can't do that"}, 4 + 4),
            ({"role": "assistant", "content": "a", "refusal": None, "annotations": ["b c"]}, 4 + 1),
            ({"role": "assistant", "content": "a", "reasoning_content": "b c"}, 4 + 1 + 2),
            ({"role": "assistant", "content": "a", "reasoning_content": "b c", "reasoning": "b"}, 4 + 1 + 2),
            ({"role": "assistant", "content": "a", "reasoning_content": {"b": 1}, "reasoning": "b c"}, 4 + 1 + 2),
            ({"role": "assistant", "content": None, "audio": {"id": "a1", "data": MEGABYTE}}, 4 + 2_000),
            ({"role": "assistant", "content": "a", "audio": None}, 4 + 1),
            ({"role": "user", "content": "a", "id": "b c", "metadata": {"d": "e f"}, "note": "g h"}, 4 + 1),
            ({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a b c"}]}, 4 + 3),
            ({"role": "function", "name": "f g", "content": "a b"}, 4 + 2),
            ({"role": "assistant", "function_call": {"name": "f", "arguments": "a b"}}, 4 + 5 + 2 + 2),
            ({"role": "assistant", "tool_calls": None, "function_call": None}, 4),
            ({"role": "assistant", "tool_calls": []}, 4),
            (calling({"id": "1", "type": "custom", "custom": {"name": "f", "input": "a b"}}), 4 + 5 + 2 + 2),
            (calling({"id": "1", "function": {"name": "f", "arguments": "a b"}}), 4 + 5 + 2 + 2),
            (calling({"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}), 4 + 5 + 2 + 1),
            (calling({"id": "1", "name": "f", "args": {"a": "b c"}}), 4 + 5 + 2 + 2),
            (calling({"id": "1", "name": "f", "arguments": None, "input": {"a": "b c"}}), 4 + 5 + 2 + 2),
            (calling({"id": "1", "type": ["x"], "function": {"name": 7}}), 4 + 5),
            ({**calling({"id": "1"}), "function_call": {"name": "f", "arguments": "a b"}}, 4 + 21 + 7 + 7 + 1 + 2),
        ],
        ids=lambda value: str(value)[:80],
    )
    def test_every_field_that_the_model_reads_counts(self, message: dict[str, Any], expected: int) -> None:
        assert count(message) == expected

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            ("a b", 2),
            ({"type": "text", "text": "a b"}, 2),
            ({"type": "input_text", "text": "a b"}, 2),
            ({"type": "refusal", "refusal": "a b"}, 2),
            ({"type": "thinking", "thinking": "a b", "signature": MEGABYTE}, 2),
            ({"text": "a b"}, 2),
            ({"type": "quote", "text": "a b", "source": MEGABYTE}, 2),
            ({"type": "image_url", "image_url": "https://example.org/a.png"}, 1_000),
            ({"type": "image_url", "image_url": {"url": "x", "detail": "low"}, "text": "a b"}, 1_000),
            ({"type": "input_image", "image_url": "x"}, 1_000),
            ({"type": "image", "source": {"type": "base64", "data": MEGABYTE}}, 1_000),
            ({"type": "input_audio", "input_audio": {"data": MEGABYTE, "format": "wav"}}, 2_000),
            ({"type": "audio", "audio": {"url": "x"}}, 2_000),
            ({"type": "video", "video": [MEGABYTE]}, 3_000),
            ({"type": "video_url", "video_url": {"url": "x"}}, 3_000),
            ({"type": "input_video", "video": "x"}, 3_000),
            ({"type": "file", "file": {"file_data": MEGABYTE}}, 4_000),
            ({"type": "input_file", "file_id": "x"}, 4_000),
            ({"type": "document", "source": {"type": "base64", "data": MEGABYTE}}, 4_000),
            ({"type": "hologram", "hologram": MEGABYTE}, 5_000),
            ({"type": ["text"], "depth": 1}, 5_000),
            ({"type": "text", "text": None}, 5_000),
            ({}, 5_000),
            (None, 5_000),
            (3, 5_000),
            (["a"], 5_000),
            ({"type": "tool_use", "id": "1", "name": "f g", "input": {"a": "b c"}}, 7 + 2 + 2),
            ({"type": "tool_result", "tool_use_id": "1", "content": "a b"}, 2),
            ({"type": "tool_result", "tool_use_id": "1"}, 0),
            ({"type": "tool_result", "content": [{"type": "text", "text": "a b"}, {"type": "image"}]}, 2 + 1_000),
        ],
        ids=lambda value: str(value)[:60],
    )
    def test_a_part_costs_its_text_or_its_price(self, part: Any, expected: int) -> None:
        assert count(user(part)) == 4 + expected
        assert count(user("x", part, part)) == 4 + 1 + 2 * expected

    def test_the_default_prices(self) -> None:
        assert PartCosts() == PartCosts(image=765, audio=300, video=2_630, file=2_048, unknown=256)
        assert CharacterCounter().part_costs == BpeCounter(words).part_costs == PartCosts()


class TestFieldReports:
    """Rows of FIELD.md, section 5."""

    @pytest.mark.parametrize("counter", [CharacterCounter(), BpeCounter(words)], ids=["characters", "function"])
    @pytest.mark.parametrize("kind", ["audio", "video", "file", "image"])
    def test_p57_media_cost_the_same_whatever_their_length(self, counter: TokenCounter, kind: str) -> None:
        short, long = (counter.count(UserMessage([{"type": kind, kind: {"data": data}}])) for data in ("A", MEGABYTE))
        assert short == long < 4_000

    @pytest.mark.parametrize("counter", [CharacterCounter(), BpeCounter(words)], ids=["characters", "function"])
    def test_p60_f1_names_and_arguments_of_calls_count(self, counter: TokenCounter) -> None:
        arguments = json.dumps({"letter": "word " * 500})
        one, another = (ToolCall(str(number), "write_letter", arguments) for number in range(2))
        assert counter.count(AssistantMessage(tool_calls=[one])) > 500
        assert counter.count(AssistantMessage(tool_calls=[one, another])) > 1_000

    @pytest.mark.parametrize("counter", [CharacterCounter(), BpeCounter(words)], ids=["characters", "function"])
    def test_f3_an_image_or_audio_does_not_raise(self, counter: TokenCounter) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        assert counter.count(UserMessage([image, audio])) == 4 + 765 + 300


class TestCharacterCounter:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("й" * 4, 2), ("中" * 4, 3), ("👍" * 4, 4), ("\ud83d", 1)],
    )
    def test_a_token_is_four_bytes_begun_ones_included(self, text: str, tokens: int) -> None:
        assert text_tokens(CharacterCounter(), text) == tokens

    def test_the_number_of_characters_can_be_set(self) -> None:
        assert text_tokens(CharacterCounter(2.5), "a" * 10) == 4
        assert text_tokens(CharacterCounter(0.1), "a") == 10
        assert text_tokens(CharacterCounter(1_000), "a" * 1_001) == 2

    @given(st.text(), st.text(st.characters(max_codepoint=127), min_size=1))
    def test_more_text_never_costs_less(self, text: str, more: str) -> None:
        before, after = (text_tokens(CharacterCounter(), longer) for longer in (text, text + more))
        assert before <= after
        assert text_tokens(CharacterCounter(), text + more * 4) > before


@needs_splintr
class TestVocabularies:
    @pytest.mark.parametrize(
        ("text", "o200k", "cl100k"),
        [
            ("", 0, 0),
            ("tiktoken is great!", 6, 6),
            ("antidisestablishmentarianism", 6, 6),
            ("お誕生日おめでとう", 8, 9),
            ("<|endoftext|>", 7, 7),  # as one special token it would be 1
            ("<|im_start|>system", 7, 7),
            ("nul \x00", 3, 4),
            ("👨‍👩‍👧", 8, 13),
        ],
    )
    def test_a_text_has_the_tokens_of_its_encoding(self, text: str, o200k: int, cl100k: int) -> None:
        assert text_tokens(BpeCounter(), text) == o200k
        assert text_tokens(BpeCounter("cl100k_base"), text) == cl100k

    @pytest.mark.parametrize("text", ["\ud83d", "a \udc00 b", "\udfff\ud800"])
    def test_a_lone_surrogate_counts_as_a_question_mark(self, text: str) -> None:
        replaced = re.sub("[\ud800-\udfff]", "?", text)
        assert text_tokens(BpeCounter(), text) == text_tokens(BpeCounter(), replaced) > 0

    def test_a_vocabulary_is_loaded_once_and_before_the_first_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded: dict[str, Any] = {}
        monkeypatch.setattr(module, "_vocabularies", loaded)
        BpeCounter()
        first = dict(loaded)
        BpeCounter().count(UserMessage("a"))
        BpeCounter(model="o4-mini").count(UserMessage("a"))
        assert loaded == first
        assert list(loaded) == ["o200k_base"]

    def test_threads_that_meet_at_the_first_use_share_one_vocabulary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_vocabularies", {})
        barrier = Barrier(8)

        def count_text(number: int) -> tuple[int, list[int]]:
            barrier.wait(10)
            vocabulary = module._vocabulary("o200k_base")
            return id(vocabulary), [vocabulary.count(f"{word} {number % 2}") for word in range(500)]

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(count_text, range(8)))
        assert len({vocabulary for vocabulary, _ in answers}) == 1
        assert all(counts == [3] * 500 for _, counts in answers)

    def test_the_words_it_remembers_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_vocabularies", {})
        monkeypatch.setattr(module, "_CACHED_CHARACTERS", 1_000)
        counter = BpeCounter()
        tokenizer = module._vocabulary("o200k_base")._tokenizer
        most = 0
        for number in range(200):
            counter.count(UserMessage("supercalifragilistic" + "xyz"[number % 3] * number))
            most = max(most, tokenizer.cache_len)
        assert 10 < most < 60

    @pytest.mark.parametrize("counter", ["BpeCounter()", "BpeCounter('cl100k_base', model='o1')"])
    def test_a_pickled_counter_counts_in_another_process(self, counter: str) -> None:
        program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).count_all([]))"
        pickled = pickle.dumps(eval(counter))
        ran = subprocess.run(
            [sys.executable, "-c", program], input=pickled, capture_output=True, timeout=60, check=True
        )
        assert int(ran.stdout) == (2 if "o1" in counter else 3)


class TestFunctions:
    def test_what_it_raises_comes_out(self) -> None:
        class BrokenError(Exception): ...

        def broken(text: str) -> int:
            raise BrokenError

        with pytest.raises(BrokenError):
            BpeCounter(broken).count(UserMessage("a"))

    def test_one_that_returns_the_tokens_themselves_is_found_out(self) -> None:
        with pytest.raises(TypeError, match="interpreted as an integer"):
            BpeCounter(str.split).count(UserMessage("a"))  # type: ignore[arg-type]

    def test_one_that_can_not_encode_a_surrogate_gets_it_replaced(self) -> None:
        assert count(UserMessage("a \ud83d"), tokens=lambda text: len(text.encode())) == 4 + 3
        assert count(UserMessage("a \ud83d"), tokens=len) == 4 + 3

    def test_one_that_fails_to_encode_anything_is_no_loop(self) -> None:
        with pytest.raises(UnicodeEncodeError):
            count(UserMessage("é"), tokens=lambda text: len(text.encode("ascii")))


class TestValues:
    @pytest.mark.parametrize(
        "text",
        [
            "CharacterCounter()",
            "CharacterCounter(characters_per_token=3.5)",
            "CharacterCounter(model='o1', part_costs=PartCosts(image=85))",
            "BpeCounter(encoding=len)",
            "PartCosts()",
            "PartCosts(image=0, unknown=1)",
            pytest.param("BpeCounter()", marks=needs_splintr),
            pytest.param("BpeCounter(encoding='cl100k_base', model='gpt-4')", marks=needs_splintr),
        ],
    )
    def test_equal_by_arguments_hashable_picklable_and_shown_as_made(self, text: str) -> None:
        one, another = eval(text), eval(text)
        assert one == another
        assert hash(one) == hash(another)
        assert pickle.loads(pickle.dumps(one)) == one
        assert {one: 1}[another] == 1
        assert repr(one) == text.replace("=len", "=<built-in function len>")

    def test_unequal_where_an_argument_or_the_kind_differs(self) -> None:
        counters = [
            CharacterCounter(),
            CharacterCounter(3),
            CharacterCounter(model="o1"),
            CharacterCounter(part_costs=PartCosts(file=1)),
            BpeCounter(len),
            BpeCounter(words),
            BpeCounter(words, model="o1"),
        ]
        assert len(set(counters)) == len(counters)
        assert not any(one == another for one in counters for another in counters if one is not another)
        assert CharacterCounter(3) == CharacterCounter(3.0)

    @pytest.mark.parametrize("value", [CharacterCounter(), BpeCounter(words), PartCosts()], ids=type)
    def test_nothing_can_be_set(self, value: Any) -> None:
        for name in (*value.__struct_fields__, "new"):
            with pytest.raises(AttributeError):
                setattr(value, name, 1)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: CharacterCounter(0),
            lambda: CharacterCounter(-4),
            lambda: CharacterCounter(float("nan")),
            lambda: CharacterCounter(float("inf")),
            lambda: CharacterCounter(1_001),
            lambda: CharacterCounter(True),
            lambda: CharacterCounter("4"),  # type: ignore[arg-type]
            lambda: CharacterCounter(model=None),  # type: ignore[arg-type]
            lambda: CharacterCounter(part_costs=85),  # type: ignore[arg-type]
            lambda: BpeCounter(words, model=b"o1"),  # type: ignore[arg-type]
            lambda: BpeCounter(words, part_costs=None),  # type: ignore[arg-type]
            lambda: named("p50k_base"),
            lambda: BpeCounter(None),  # type: ignore[arg-type]
            lambda: BpeCounter(Unhashable()),
            lambda: PartCosts(image=-1),
            lambda: PartCosts(video=1.5),  # type: ignore[arg-type]
            lambda: PartCosts(unknown=True),
        ],
    )
    def test_a_wrong_argument_is_refused(self, make: Callable[[], object]) -> None:
        with pytest.raises(InvalidArgumentError):
            make()

    def test_ours_and_others_are_token_counters(self) -> None:
        class Own:
            list_overhead = 0

            def count(self, message: Message) -> int:
                return 1

        counters: list[TokenCounter] = [CharacterCounter(), BpeCounter(words), Own()]
        assert all(isinstance(counter, TokenCounter) for counter in counters)
        assert not isinstance("text", TokenCounter)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, text: str) -> int:
        return 0


class TestTheExtra:
    @pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
    def test_a_missing_one_is_named_with_its_install_line(self, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "splintr", None)
        monkeypatch.setattr(module, "_vocabularies", {})
        with pytest.raises(MissingExtraError, match=re.escape("pip install 'turnkeeper[tokens]'")):
            named(encoding)
        assert count(UserMessage("a function still works")) == 8

    def test_it_is_imported_when_it_is_needed(self) -> None:
        program = "import sys, turnkeeper.tokens as t; t.CharacterCounter(); print('splintr' in sys.modules)"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert ran.stdout.strip() == "False"


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
KINDS = st.sampled_from(
    ["text", "refusal", "thinking", "image_url", "file", "tool_use", "tool_result", "function", "custom", "hologram"]
)
KEYS = st.sampled_from(
    ["type", "text", "content", "name", "input", "arguments", "args", "function", "custom", "refusal", "thinking"]
)
JSON = st.recursive(
    SCALARS | TEXTS | KINDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXTS, inner, max_size=5),
    max_leaves=20,
)
FIELDS = st.dictionaries(
    st.sampled_from(["content", "name", "refusal", "reasoning_content", "reasoning", "audio", "function_call"]) | TEXTS,
    JSON,
    max_size=5,
)
ARGUMENTS = TEXTS | JSON.map(json.dumps) | JSON
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": TEXTS}, optional={"type": JSON, "function": JSON, "name": JSON, "arguments": ARGUMENTS}
    )
    | ARGUMENTS.map(lambda arguments: {"id": "1", "function": {"name": "f", "arguments": arguments}}),
    max_size=3,
)
COUNTERS = [CharacterCounter(), CharacterCounter(0.1, model="o4-mini"), BpeCounter(lambda text: len(text.encode()))]
if find_spec("splintr") is not None:
    COUNTERS += [BpeCounter(), BpeCounter("cl100k_base")]
DEEP = "[" * 100_000


class TestNothingMakesOursRaise:
    @given(st.sampled_from(["system", "user", "assistant", "tool"]), FIELDS, CALLS)
    @example("assistant", {}, [{"id": str(n), "function": {"name": "f", "arguments": DEEP}} for n in range(2)])
    @example("assistant", {}, [{"id": str(n), "function": {"name": "f", "arguments": "1" * 5_000}} for n in range(2)])
    @example(
        "assistant", {}, [{"id": str(n), "function": {"name": "f", "arguments": '{"a": 1e999}'}} for n in range(2)]
    )
    @example("assistant", {"function_call": {"arguments": '{"\\ud800": "\\ud800"}'}}, [{"id": "1"}])
    def test_any_content_counts(self, role: str, fields: dict[str, Any], calls: list[dict[str, Any]]) -> None:
        message = {**fields, "role": role, "tool_call_id": "1", "tool_calls": calls}
        (encoded,) = encode_messages([message])
        for counter in COUNTERS:
            assert counter.count(encoded) >= 4

    @pytest.mark.parametrize("role", ["user", "assistant"])
    def test_calls_that_are_none_cost_nothing(self, role: str) -> None:
        raw = json.dumps({"role": role, "content": "a", "tool_calls": "abc" if role == "user" else [{"id": "1"}]})
        assert BpeCounter(words).count(restore_message(raw.encode())) == (5 if role == "user" else 10)

    def test_content_as_deep_as_a_message_can_be(self) -> None:
        content: Any = "a"
        while True:
            deeper = [{"type": "tool_result", "content": content}]
            try:
                message = UserMessage(deeper)
            except InvalidArgumentError:
                break
            content = deeper
        assert json.dumps(content).count("tool_result") > 60
        assert all(counter.count(UserMessage(content)) >= 5 for counter in COUNTERS)
        assert all(counter.count(message) >= 4 for counter in COUNTERS)


def part_of_the_page(name: str) -> str:
    """Return what docs/tokens.md has between the marks of a measured part."""
    page = PAGE.read_text(encoding="utf-8")
    return page.partition(f"<!-- measured by tests/test_tokens.py: {name} -->\n")[2].partition("<!-- end of")[0].strip()


def texts() -> dict[str, str]:
    """Return the texts at the end of docs/tokens.md by their names."""
    return dict(re.findall(r"^```text (\S+)\n(.*?)\n```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))


def off(estimate: float, truth: int) -> str:
    """Return a relative error as the page shows it."""
    return f"{estimate / truth - 1:+.0%}".replace("-", "\N{MINUS SIGN}").replace("%", " %")


def table(*lines: Iterable[object]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    spaced = "{:,}".format
    head, *rows = (
        [spaced(cell).replace(",", " ") if isinstance(cell, int) else str(cell) for cell in line] for line in lines
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *rows))


def conversations() -> tuple[Message, ...]:
    """Return the messages of the shared transcripts."""
    with gzip.open(AIRLINE, "rt", encoding="utf-8") as lines:
        return encode_messages(message for line in lines for message in json.loads(line)["messages"])


@needs_splintr
class TestTheDocumentedError:
    """What docs/tokens.md says is measured here; a failure prints what belongs there."""

    def test_of_the_texts(self) -> None:
        counters = (BpeCounter(), BpeCounter("cl100k_base"), CharacterCounter())
        rows = []
        for name, text in texts().items():
            o200k, cl100k, estimate = (text_tokens(counter, text) for counter in counters)
            errors = [off(size, truth) for size in (estimate, len(text) / 4) for truth in (o200k, cl100k)]
            rows.append((name, len(text), o200k, cl100k, estimate, *errors))
        head = (
            "Text",
            "Characters",
            "o200k",
            "cl100k",
            "Estimate",
            *("error, o200k", "error, cl100k"),
            *("/4, o200k", "/4, cl100k"),
        )
        assert len(rows) == 16
        assert part_of_the_page("texts") == table(head, *rows)

    @needs_airline
    def test_of_whole_conversations(self) -> None:
        totals: dict[str, Counter[str]] = {}
        for message in conversations():
            for role in (message.role, "all"):
                totals.setdefault(role, Counter()).update(
                    messages=1,
                    o200k=BpeCounter().count(message),
                    cl100k=BpeCounter("cl100k_base").count(message),
                    estimate=CharacterCounter().count(message),
                )
        rows = [
            (role, *total.values(), off(total["estimate"], total["o200k"]), off(total["estimate"], total["cl100k"]))
            for role, total in sorted(totals.items(), key=lambda item: item[1]["messages"])
        ]
        head = "Role", "Messages", "o200k", "cl100k", "Estimate", "error, o200k", "error, cl100k"
        assert part_of_the_page("conversations") == table(head, *rows)

    def test_the_advised_numbers_of_characters_are_never_too_few_tokens(self) -> None:
        for text in texts().values():
            assert text_tokens(CharacterCounter(3.1), text) >= text_tokens(BpeCounter(), text)
            assert text_tokens(CharacterCounter(1.9), text) >= text_tokens(BpeCounter("cl100k_base"), text)
        for encoding, characters in (("o200k_base", 3.3), ("cl100k_base", 2.0)):
            assert any(
                text_tokens(CharacterCounter(characters), text) < text_tokens(named(encoding), text)
                for text in texts().values()
            )

    @needs_airline
    def test_the_advised_number_of_characters_for_tool_results(self) -> None:
        results = [message for message in conversations() if message.role == "tool"]
        needed = [sum(map(counter.count, results)) for counter in (BpeCounter(), BpeCounter("cl100k_base"))]
        assert sum(map(CharacterCounter(2.7).count, results)) >= max(needed)
        assert sum(map(CharacterCounter(2.9).count, results)) < min(needed)

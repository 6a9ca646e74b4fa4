"""What a provider refuses is found, in the message that is wrong; what it accepts is not. The page says the same."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper import InvalidArgumentError, InvalidMessageError, TurnkeeperError
from turnkeeper.messages import encode_messages
from turnkeeper.testing.prompts import (
    PROVIDER_RULES,
    PromptRefusedError,
    Provider,
    check_prompt,
    prompt_problems,
)

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "prompts.md"
AIRLINE = REPOSITORY.parent / "shared" / "data" / "airline.jsonl.gz"
PROVIDERS: tuple[Provider, ...] = get_args(Provider)

Dict = dict[str, Any]

S: Dict = {"role": "system", "content": "Be kind."}
U: Dict = {"role": "user", "content": "Hi"}
A: Dict = {"role": "assistant", "content": "Hello"}
IMAGE: Dict = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}


def said(role: str, content: object, **fields: object) -> Dict:
    return {"role": role, "content": content, **fields}


def text(*texts: str) -> list[Dict]:
    return [{"type": "text", "text": one} for one in texts]


def call(*ids: str, content: object = None) -> Dict:
    functions = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def result(call_id: str, content: object = "42") -> Dict:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


class Case(NamedTuple):
    """A smallest prompt that breaks one rule, and the nearest that breaks none."""

    provider: Provider
    rule: str
    refused: list[Dict]
    accepted: list[Dict]
    ready: bool = False


R1, R2 = result("1"), result("2")
CASES = [
    Case("openai", "not-empty", [], [S], ready=True),
    Case("openai", "calls-answered", [U, call("1"), U], [U, call("1"), R1, U]),
    Case("openai", "calls-answered", [U, call("1"), A], [U, call("1"), R1, A]),
    Case("openai", "calls-answered", [U, call("1", "2"), R1, S], [U, call("1", "2"), R1, R2, S]),
    Case("openai", "calls-answered", [U, call("1", "2"), R1], [U, call("1", "2"), R1, R2], ready=True),
    Case("openai", "results-called", [U, R1], [U, call("1"), R1]),
    Case("openai", "results-called", [U, call("1"), R1, A, R1], [U, call("1"), R1, A, call("1"), R1]),
    Case("openai", "results-once", [U, call("1"), R1, R1], [U, call("1", "2"), R1, R2]),
    Case("openai", "calls-listed", [U, A | {"tool_calls": []}], [U, A | {"tool_calls": None}]),
    Case("openai", "content-given", [said("user", None)], [said("user", "")]),
    Case("openai", "content-given", [said("user", [])], [said("user", text(""))]),
    Case("openai", "content-given", [U, said("assistant", None)], [U, said("assistant", None, refusal="No.")]),
    Case("openai", "content-given", [said("user", 5)], [said("user", "5")]),
    Case("openai", "content-given", [call("1"), result("1", None)], [call("1"), result("1", "")]),
    Case("anthropic", "not-empty", [S], [S, U], ready=True),
    Case("anthropic", "calls-answered", [U, call("1"), U], [U, call("1"), R1, U]),
    Case("anthropic", "calls-answered", [U, call("1", "2"), R1], [U, call("1", "2"), S, R1, R2], ready=True),
    Case("anthropic", "calls-answered", [U, call("1", "2"), R1, U], [U, call("1", "2"), R1, R2, U]),
    Case("anthropic", "calls-last", [U, call("1"), A, R1], [U, A, call("1"), R1]),
    Case("anthropic", "calls-last", [U, call("1"), call("2", content="Wait.")], [U, call("1"), call("2", content="")]),
    Case("anthropic", "results-called", [R1, U], [call("1"), R1, U]),
    Case("anthropic", "results-called", [U, R1], [U, call("1"), R1]),
    Case("anthropic", "results-first", [U, call("1"), U, R1], [U, call("1"), R1, U]),
    Case("anthropic", "results-once", [U, call("1"), R1, R1], [U, call("1", "2"), R2, R1]),
    Case("anthropic", "ids-unique", [U, call("1"), R1, call("1"), R1], [U, call("1"), R1, call("2"), R2]),
    Case("anthropic", "text-not-all-blank", [said("user", "")], [said("user", "0")]),
    Case("anthropic", "text-not-all-blank", [said("user", text("", "Hi"))], [said("user", text("\n", "Hi"))]),
    Case("anthropic", "text-not-all-blank", [said("user", text(" "))], [said("user", [*text(" "), IMAGE])]),
    Case("anthropic", "text-not-all-blank", [said("system", " "), U], [said("system", "-"), U]),
    Case("anthropic", "text-not-all-blank", [U, said("assistant", None)], [U, call("1", content="")]),
    Case("anthropic", "ends-to-answer", [U, A], [U, A, U], ready=True),
    Case("gemini", "not-empty", [said("developer", "Be kind.")], [U], ready=True),
    Case("gemini", "starts-without-call", [S, call("1"), R1], [S, A, U, call("1"), R1]),
    Case("gemini", "starts-without-call", [A, call("1"), R1], [U, A, call("1"), R1]),
    Case("gemini", "results-next", [U, call("1"), U], [U, call("1"), R1, U]),
    Case("gemini", "results-next", [U, R1], [U, call("1"), R1]),
    Case("gemini", "results-counted", [U, call("1"), R1, R1], [U, call("1", "2"), R1, R1]),
    Case("gemini", "results-counted", [U, call("1", "2"), R1, A], [U, call("1", "2"), R1, R2, A]),
    Case("gemini", "text-not-empty", [said("user", "")], [said("user", " ")]),
    Case("gemini", "text-not-empty", [U, said("assistant", []), U], [U, A, U]),
    Case("gemini", "ends-to-answer", [U, A], [U, call("1"), R1], ready=True),
    Case("mistral", "not-empty", [], [S], ready=True),
    Case("mistral", "starts-without-call", [call("1"), R1], [U, call("1"), R1]),
    Case("mistral", "system-early", [U, A, S], [U, S, A]),
    Case("mistral", "system-early", [U, call("1"), R1, S], [U, call("1"), R1, U, S]),
    Case("mistral", "calls-answered", [U, call("1", "2"), R1, A], [U, call("1", "2"), R1, R2, A]),
    Case("mistral", "results-called", [U, call("1"), R1, R2], [U, call("1", "2"), R1, R2]),
    Case("mistral", "results-once", [U, call("1"), R1, R1], [U, call("1"), R1]),
    Case("mistral", "ids-unique-in-turn", [U, call("1", "1"), R1], [U, call("1"), R1, call("1"), R1]),
    Case("mistral", "answer-given", [U, said("assistant", "")], [U, said("assistant", " ")]),
    Case("mistral", "ends-to-answer", [U, A], [U, A, U], ready=True),
    Case("bedrock", "starts-with-user", [S, A, U], [S, U, A, U]),
    Case("bedrock", "starts-with-user", [S], [S, U], ready=True),
    Case("bedrock", "calls-answered", [U, call("1"), U], [U, call("1"), R1, U]),
    Case("bedrock", "results-called", [U, call("1"), R1, R2], [U, call("1", "2"), R1, R2]),
    Case("bedrock", "results-first", [U, call("1"), U, R1], [U, call("1"), R1, U]),
    Case("bedrock", "results-once", [U, call("1"), R1, R1], [U, call("1"), R1]),
    Case("bedrock", "ids-unique-in-turn", [U, call("1"), call("1"), R1], [U, call("1"), R1, call("1"), R1]),
    Case("bedrock", "text-not-blank", [said("user", text(" ", "Hi"))], [said("user", text("Hi"))]),
    Case("bedrock", "ends-to-answer", [U, A], [U, A, U], ready=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.provider}-{case.rule}")
class TestARule:
    def test_it_refuses_the_smallest_prompt_that_breaks_it(self, case: Case) -> None:
        problems = prompt_problems(case.refused, case.provider, ready=case.ready)
        assert {problem.rule.name for problem in problems} == {case.rule}
        with pytest.raises(PromptRefusedError, match=f"breaks '{case.rule}'"):
            check_prompt(case.refused, case.provider, ready=case.ready)

    def test_it_lets_the_nearest_valid_prompt_pass(self, case: Case) -> None:
        check_prompt(case.accepted, case.provider, ready=case.ready)

    def test_what_waits_for_ready_is_no_problem_before(self, case: Case) -> None:
        if case.ready:
            check_prompt(case.refused, case.provider)


def test_each_rule_of_each_provider_is_seen_to_refuse() -> None:
    assert {(case.provider, case.rule) for case in CASES} == {
        (provider, rule.name) for provider, rules in PROVIDER_RULES.items() for rule in rules
    }


CONVERSATION = [
    S,
    U,
    call("1", "2", content="Wait."),
    R2,
    R1,
    A,
    U,
    call("3"),
    result("3", ""),
    call("4"),
    result("4"),
    A,
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("count", range(len(CONVERSATION) + 1))
def test_a_conversation_is_valid_at_any_time(provider: Provider, count: int) -> None:
    check_prompt(CONVERSATION[:count], provider)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_calls_may_be_open_only_as_long_as_the_model_need_not_answer(provider: Provider) -> None:
    for messages in ([U, call("1")], [U, call("1", "2"), R2]):
        check_prompt(messages, provider)
        problems = prompt_problems(messages, provider, ready=True)
        assert problems[0].index == 1
        assert not prompt_problems([*messages, R1], provider, ready=True)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_messages_of_the_old_function_role_pair_with_nothing(provider: Provider) -> None:
    asked = said("assistant", None, function_call={"name": "look", "arguments": "{}"})
    check_prompt(
        [said("function", "42", name="look"), asked, said("function", "42", name="look")], provider, ready=True
    )
    check_prompt([U, asked, said("function", None, name="look")], "openai")


def test_the_default_provider_is_openai() -> None:
    assert prompt_problems([U, R1]) == prompt_problems([U, R1], "openai")
    with pytest.raises(PromptRefusedError, match="openai"):
        check_prompt([U, R1])


@pytest.mark.parametrize("provider", ["OpenAI", "", None])
def test_an_unknown_provider_is_refused_by_name(provider: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'openai', 'anthropic', 'gemini', 'mistral', 'bedrock'"):
        check_prompt([U], provider)


def test_what_is_no_message_is_refused_as_everywhere() -> None:
    with pytest.raises(InvalidMessageError, match="message 1, field 'role'"):
        check_prompt([U, {"content": "Hi"}])


class TestTheError:
    PROMPT = (S, U, call("lost", content="secret"), said("user", "secret"), result("stray", "secret"))

    def test_it_names_message_role_call_rule_and_source(self) -> None:
        with pytest.raises(PromptRefusedError) as caught:
            check_prompt(self.PROMPT, "openai")
        assert caught.value.provider == "openai"
        found = [(problem.index, problem.role, problem.call_id) for problem in caught.value.problems]
        assert found == [(2, "assistant", "lost"), (4, "tool", "stray")]
        lines = str(caught.value).splitlines()
        assert lines[0] == "openai would refuse this prompt:"
        assert lines[1].startswith("  message 2 (assistant), call 'lost' breaks 'calls-answered': the next turn has")
        assert lines[1].endswith("see https://github.com/BerriAI/litellm/issues/10083")

    def test_its_problems_are_in_the_order_of_the_messages(self) -> None:
        problems = prompt_problems([said("user", None), R1, U, said("assistant", None)])
        assert [(problem.index, problem.rule.name) for problem in problems] == [
            (0, "content-given"),
            (1, "results-called"),
            (3, "content-given"),
        ]

    def test_it_speaks_of_the_prompt_where_no_message_is_at_fault(self) -> None:
        (problem,) = prompt_problems([], "gemini", ready=True)
        assert (problem.index, problem.role, problem.call_id) == (None, None, None)
        assert str(problem).startswith("the prompt breaks 'not-empty': ")

    def test_it_says_the_role_that_was_given(self) -> None:
        (problem,) = prompt_problems([U, A, said("developer", "Be kind.")], "mistral")
        assert (problem.index, problem.role) == (2, "developer")

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_it_holds_no_content(self, provider: Provider) -> None:
        with pytest.raises(PromptRefusedError) as caught:
            check_prompt(self.PROMPT, provider)
        assert "secret" not in f"{caught.value} {caught.value!r} {caught.value.problems}"

    def test_it_is_a_failed_check_and_an_error_of_this_library(self) -> None:
        assert issubclass(PromptRefusedError, AssertionError)
        assert issubclass(PromptRefusedError, TurnkeeperError)

    def test_it_survives_pickling(self) -> None:
        with pytest.raises(PromptRefusedError) as caught:
            check_prompt([U, R1])
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.provider, copy.problems) == (caught.value.provider, caught.value.problems)


ids = st.sampled_from(["1", "2", "3"])
texts = st.sampled_from(["", " ", "Hi", "\ud800"])
contents: st.SearchStrategy[Any] = (
    texts
    | st.sampled_from([None, [], 0, {}, [IMAGE], [None, "Hi"], [{"type": "text"}]])
    | st.builds(text, texts, texts)
)
anything = st.one_of(
    st.builds(said, st.sampled_from(["system", "developer", "user", "assistant"]), contents),
    st.builds(lambda one, content: call(*one, content=content), st.lists(ids, max_size=3, unique=True), contents),
    st.builds(result, ids, contents),
    st.builds(lambda content: said("function", content, name="look"), contents),
    st.builds(lambda content: said("assistant", content, function_call={"name": "look"}, tool_calls=None), contents),
)
likely = st.one_of(
    st.sampled_from([[S], [U], [A], [R1]]),
    st.lists(ids, min_size=1, unique=True).map(lambda one: [call(*one), *map(result, one)]),
    st.lists(ids, min_size=2, unique=True).map(lambda one: [call(*one), *map(result, one[1:])]),
    st.lists(ids, min_size=1, unique=True).map(lambda one: [call(*one)]),
)
conversations = st.lists(anything) | st.lists(likely).map(lambda blocks: [one for block in blocks for one in block])


def mended(messages: Sequence[Dict], provider: Provider) -> list[Dict]:
    """Append the results that lack, and a question."""
    lifts = provider not in ("openai", "mistral")
    sent = [one for one in messages if not (lifts and one["role"] in ("system", "developer"))]
    results = list(takewhile(lambda one: one["role"] == "tool", reversed(sent)))
    answers = takewhile(lambda one: one["role"] == "assistant", reversed(sent[: len(sent) - len(results)]))
    current = islice(answers, None if lifts else 1)
    calls = [each["id"] for one in current for each in one.get("tool_calls") or ()]
    answered = {one["tool_call_id"] for one in results}
    lacking = calls[len(results) :] if provider == "gemini" else [one for one in calls if one not in answered]
    return [*messages, *map(result, lacking), U]


@pytest.mark.parametrize("provider", PROVIDERS)
class TestAnyMessages:
    @given(messages=conversations, ready=st.booleans())
    def test_the_error_is_raised_when_there_are_problems_and_no_other(
        self, provider: Provider, messages: list[Dict], ready: bool
    ) -> None:
        problems = prompt_problems(messages, provider, ready=ready)
        if not problems:
            check_prompt(iter(messages), provider, ready=ready)
            return
        with pytest.raises(PromptRefusedError) as caught:
            check_prompt(iter(messages), provider, ready=ready)
        assert list(caught.value.problems) == problems

    @given(messages=conversations, ready=st.booleans())
    def test_mappings_and_messages_are_judged_alike(
        self, provider: Provider, messages: list[Dict], ready: bool
    ) -> None:
        own = encode_messages(messages)
        assert prompt_problems(messages, provider, ready=ready) == prompt_problems(own, provider, ready=ready)

    @given(messages=conversations)
    def test_to_be_ready_takes_more(self, provider: Provider, messages: list[Dict]) -> None:
        assert set(prompt_problems(messages, provider)) <= set(prompt_problems(messages, provider, ready=True))

    @given(messages=conversations, more=st.lists(anything, min_size=1, max_size=3))
    @example(messages=[U, call("1"), U], more=[R1])
    @example(messages=[U, call("1", "2"), R1, U], more=[R2])
    def test_what_is_refused_by_default_nothing_appended_can_mend(
        self, provider: Provider, messages: list[Dict], more: list[Dict]
    ) -> None:
        if prompt_problems(messages, provider):
            assert prompt_problems([*messages, *more], provider)

    @given(messages=conversations)
    @example(messages=[])
    @example(messages=[S])
    @example(messages=[U, call("1", "2"), R2])
    @example(messages=[U, call("1"), call("2"), R2])
    def test_what_is_accepted_by_default_can_be_made_ready(self, provider: Provider, messages: list[Dict]) -> None:
        while prompt_problems(messages, provider):
            messages = messages[:-1]
        assert prompt_problems(mended(messages, provider), provider, ready=True) == []


@cache
def airline() -> list[list[Dict]]:
    with gzip.open(AIRLINE, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines]


@pytest.mark.skipif(not AIRLINE.exists(), reason="the real transcripts are not part of the repository")
class TestRealConversations:
    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_they_are_valid_but_for_ids_that_the_data_repeats(self, provider: Provider) -> None:
        assert len(airline()) == 160
        repeating = 0
        for messages in airline():
            calls = Counter(each["id"] for one in messages for each in one.get("tool_calls", ()))
            repeated = sum(count - 1 for count in calls.values()) if provider == "anthropic" else 0
            problems = prompt_problems(messages, provider, ready=True)
            assert [problem.rule.name for problem in problems] == ["ids-unique"] * repeated
            repeating += bool(repeated)
        assert repeating == (40 if provider == "anthropic" else 0)

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_they_are_valid_at_any_time(self, provider: Provider) -> None:
        for messages in airline()[:5]:
            for count in range(len(messages)):
                broken = {problem.rule.name for problem in prompt_problems(messages[:count], provider)}
                assert broken <= {"ids-unique"}


class TestThePage:
    ROW = re.compile(r"^\| `([\w-]+)` \| (.+?) \| <(\S+)> \|$", re.MULTILINE)

    def test_it_lists_every_rule_of_every_provider(self) -> None:
        parts = re.split(r"^### .*`\"(\w+)\"`\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        listed = {provider: self.ROW.findall(part) for provider, part in zip(parts[::2], parts[1::2], strict=True)}
        assert listed == {
            provider: [(rule.name, rule.why, rule.source) for rule in rules]
            for provider, rules in PROVIDER_RULES.items()
        }

    def test_it_says_which_rules_wait_for_ready(self) -> None:
        waiting = {case.rule for case in CASES if case.ready and case.rule != "calls-answered"}
        (line,) = re.findall(r"^Only with `ready=True`: (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        assert waiting == set(re.findall(r"`([\w-]+)`", line))

"""What would a provider refuse of these messages? Pure: no network, no client library.

Each provider is a tuple of rules. A rule looks at *turns*: the messages as that provider gets them, after what the
usual clients make of OpenAI's chat form. `docs/prompts.md` has both in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from turnkeeper.errors import InvalidArgumentError, TurnkeeperError
from turnkeeper.messages import MessageLike, encode_messages

__all__ = [
    "PROVIDER_RULES",
    "PromptProblem",
    "PromptRefusedError",
    "PromptRule",
    "Provider",
    "check_prompt",
    "prompt_problems",
]

Provider: TypeAlias = Literal["openai", "anthropic", "gemini", "mistral", "bedrock"]
"""OpenAI Chat Completions, Anthropic Messages, Gemini generateContent, Mistral chat, Amazon Bedrock Converse."""

_Place: TypeAlias = tuple[int | None, str | None]  # a message's index and a call's id, where it is about one
_Find: TypeAlias = "Callable[[_Prompt], Iterable[_Place]]"


@dataclass(frozen=True, slots=True)
class PromptRule:
    """Something that a provider demands.

    Attributes:
        name: its name, unique within a provider.
        why: what is demanded, as one clause.
        source: the address of the provider's documentation, or of a report that quotes its refusal.
    """

    name: str
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class PromptProblem:
    """A place where a prompt breaks a rule, without any content.

    Attributes:
        index: position of the message among those given, from 0; None: the prompt as a whole.
        role: the message's role.
        call_id: the id of the call, where it is about one.
        rule: the rule that it breaks.
    """

    index: int | None
    role: str | None
    call_id: str | None
    rule: PromptRule

    def __str__(self) -> str:
        place = "the prompt" if self.index is None else f"message {self.index} ({self.role})"
        call = "" if self.call_id is None else f", call {self.call_id!r}"
        return f"{place}{call} breaks {self.rule.name!r}: {self.rule.why}; see {self.rule.source}"


class PromptRefusedError(TurnkeeperError, AssertionError):
    """The provider would refuse the prompt.

    It is an `AssertionError` so that test runners report a failed check, not a broken test.

    Attributes:
        provider: who would refuse it.
        problems: all that is wrong, in the order of the messages.
    """

    def __init__(self, provider: str, problems: tuple[PromptProblem, ...]) -> None:
        super().__init__(provider, problems)
        self.provider = provider
        self.problems = problems

    def __str__(self) -> str:
        return "\n  ".join([f"{self.provider} would refuse this prompt:", *map(str, self.problems)])


def check_prompt(messages: Iterable[MessageLike], provider: Provider = "openai", *, ready: bool = False) -> None:
    """Check that a provider would not refuse `messages`.

    Without `ready` it finds what nothing that is appended can mend: what a view must be free of at any time. So calls
    of the last turn may be open as long as only results have followed, the last message may be anybody's, and there may
    be none. With `ready=True` it also finds what can be mended: what the model can't be called with now.

    Args:
        messages: messages, or mappings in OpenAI chat form, oldest first.
        provider: "openai", "anthropic", "gemini", "mistral" or "bedrock".
        ready: whether the model is to be called with exactly these messages, now.

    Raises:
        PromptRefusedError: it would; `problems` says where and why.
        InvalidMessageError: something among `messages` is no message.
        InvalidArgumentError: there is no such provider.
    """
    if problems := prompt_problems(messages, provider, ready=ready):
        raise PromptRefusedError(provider, tuple(problems))


def prompt_problems(
    messages: Iterable[MessageLike], provider: Provider = "openai", *, ready: bool = False
) -> list[PromptProblem]:
    """Return what `check_prompt` raises for the same arguments, in the order of the messages; empty: all is well.

    Raises:
        InvalidMessageError: something among `messages` is no message.
        InvalidArgumentError: there is no such provider.
    """
    if provider not in PROVIDER_RULES:
        raise InvalidArgumentError(f"provider must be one of {', '.join(map(repr, PROVIDER_RULES))}")
    given = [_Said(index, message.to_dict()) for index, message in enumerate(encode_messages(messages))]
    prompt = _FORMS[provider].translate(given, ready)
    found = [(place, rule) for rule in PROVIDER_RULES[provider] for place in _RULES[rule.name][0](prompt)]
    found.sort(key=lambda pair: -1 if pair[0][0] is None else pair[0][0])
    return [
        PromptProblem(index, None if index is None else given[index].fields["role"], call_id, rule)
        for (index, call_id), rule in found
    ]


@dataclass(frozen=True, slots=True)
class _Said:
    """A message as it was given."""

    index: int
    fields: dict[str, Any]

    @property
    def role(self) -> str:
        """The role, as the rules have it. A `function` message has no id, so it pairs with nothing."""
        role: str = self.fields["role"]
        return {"developer": "system", "function": "user"}.get(role, role)

    @property
    def parts(self) -> list[Any]:
        content = self.fields.get("content")
        return content if isinstance(content, list) else [] if content is None else [content]

    @property
    def texts(self) -> list[str]:
        texts = (part.get("text") if isinstance(part, dict) else part for part in self.parts)
        return [text for text in texts if isinstance(text, str)]

    @property
    def needs_content(self) -> bool:
        """Whether it holds nothing else. Results may be empty, and empty text beside calls is dropped on the way."""
        others = ("tool_calls", "function_call", "refusal", "audio")
        return self.role != "tool" and not (self.role == "assistant" and any(map(self.fields.get, others)))


@dataclass(frozen=True, slots=True)
class _Turn:
    """Messages that the provider gets as one."""

    role: str
    said: list[_Said]

    @property
    def calls(self) -> list[tuple[int, str]]:
        answers = [said for said in self.said if said.role == "assistant"]
        return [(said.index, call["id"]) for said in answers for call in said.fields.get("tool_calls") or ()]

    @property
    def results(self) -> list[tuple[int, str]]:
        return [(said.index, said.fields["tool_call_id"]) for said in self.said if said.role == "tool"]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """All messages, the turns, and the one turn whose calls may be open."""

    said: list[_Said]
    turns: list[_Turn]
    ready: bool

    @property
    def open(self) -> _Turn | None:
        last = 2 if self.turns and all(said.role == "tool" for said in self.turns[-1].said) else 1
        return None if self.ready or len(self.turns) < last else self.turns[-last]

    def steps(self) -> Iterator[tuple[_Turn, _Turn]]:
        """Return each turn with the next one; an empty one stands before the first and behind the last."""
        return pairwise([_Turn("", []), *self.turns, _Turn("", [])])


@dataclass(frozen=True, slots=True)
class _Form:
    """What a provider gets: is the system prompt apart, in whose turn are results, which neighbours become one."""

    lifts_system: bool
    results_are: str
    merges: tuple[str, ...]

    def translate(self, given: list[_Said], ready: bool) -> _Prompt:
        sent = [said for said in given if not (self.lifts_system and said.role == "system")]
        turns: list[_Turn] = []
        for said in sent:
            role = self.results_are if said.role == "tool" else said.role
            if turns and turns[-1].role == role and role in self.merges:
                turns[-1].said.append(said)
            else:
                turns.append(_Turn(role, [said]))
        return _Prompt(given, turns, ready)


def _nothing(prompt: _Prompt) -> Iterable[_Place]:
    return [(None, None)] if prompt.ready and not prompt.turns else []


def _starts_otherwise(prompt: _Prompt) -> Iterable[_Place]:
    return _nothing(prompt) or [(turn.said[0].index, None) for turn in prompt.turns[:1] if turn.role != "user"]


def _starts_with_call(prompt: _Prompt) -> Iterable[_Place]:
    return [call for turn in prompt.turns[:1] for call in turn.calls[:1]]


def _ends_with_answer(prompt: _Prompt) -> Iterable[_Place]:
    return [(turn.said[-1].index, None) for turn in prompt.turns[-1:] if prompt.ready and turn.role == "assistant"]


def _late_system(prompt: _Prompt) -> Iterable[_Place]:
    for before, turn in prompt.steps():
        if turn.role == "system" and before.role in ("assistant", "tool"):
            yield turn.said[0].index, None


def _unanswered(prompt: _Prompt) -> Iterable[_Place]:
    for turn, after in prompt.steps():
        answered = {call_id for _, call_id in after.results}
        yield from (call for call in turn.calls if call[1] not in answered and turn is not prompt.open)


def _uncalled(prompt: _Prompt) -> Iterable[_Place]:
    for before, turn in prompt.steps():
        called = {call_id for _, call_id in before.calls}
        yield from (result for result in turn.results if result[1] not in called)


def _behind_text(prompt: _Prompt) -> Iterable[_Place]:
    for before, turn in prompt.steps():
        texts = [said.index for said in turn.said if before.calls and said.role != "tool"]
        yield from (result for result in turn.results if texts and result[0] > texts[0])


def _apart(prompt: _Prompt) -> Iterable[_Place]:
    for turn, after in prompt.steps():
        if turn.calls and after.role == "user":
            yield turn.calls[0]
        if after.role == "tool" and not turn.calls:
            yield after.results[0]


def _uneven(prompt: _Prompt) -> Iterable[_Place]:
    for turn, after in prompt.steps():
        missing = len(turn.calls) - len(after.results)
        if turn.calls and after.role != "user" and (missing < 0 or (missing > 0 and turn is not prompt.open)):
            yield turn.calls[0][0], None


def _before_text(prompt: _Prompt) -> Iterable[_Place]:
    for turn in prompt.turns:
        later = [said for said in turn.said if turn.calls and said.index > turn.calls[0][0]]
        yield from ((said.index, None) for said in later if any(part != "" for part in said.parts))


def _answered_twice(prompt: _Prompt) -> Iterable[_Place]:
    return [again for turn in prompt.turns for again in _repeated(turn.results)]


def _id_twice(prompt: _Prompt) -> Iterable[_Place]:
    return [again for turn in prompt.turns for again in _repeated(turn.calls)]


def _id_ever_again(prompt: _Prompt) -> Iterable[_Place]:
    return _repeated(call for turn in prompt.turns for call in turn.calls)


def _repeated(ids: Iterable[tuple[int, str]]) -> Iterable[_Place]:
    seen: set[str] = set()
    for index, call_id in ids:
        if call_id in seen:
            yield index, call_id
        seen.add(call_id)


def _each(is_bad: Callable[[_Said], bool]) -> _Find:
    return lambda prompt: [(said.index, None) for said in prompt.said if is_bad(said)]


def _lists_no_calls(said: _Said) -> bool:
    return said.role == "assistant" and said.fields.get("tool_calls") == []


def _lacks_content(said: _Said) -> bool:
    if said.parts:
        return not isinstance(said.fields["content"], str | list)
    return said.role == "tool" or (said.needs_content and said.fields["role"] != "function")


def _says_nothing(said: _Said) -> bool:
    return said.role == "assistant" and said.needs_content and all(part == "" for part in said.parts)


def _has_empty_text(said: _Said) -> bool:
    return said.needs_content and (not said.parts or "" in said.texts)


def _has_blank_text(said: _Said) -> bool:
    return said.needs_content and (not said.parts or any(not text.strip() for text in said.texts))


def _is_blank(said: _Said) -> bool:
    only_blank = len(said.texts) == len(said.parts) and not "".join(said.texts).strip()
    return said.needs_content and ("" in said.texts or only_blank)


_RULES: Final[Mapping[str, tuple[_Find, str]]] = {
    "not-empty": (_nothing, "there is a message, besides a system prompt that is sent apart"),
    "starts-with-user": (_starts_otherwise, "the first turn is the user's"),
    "starts-without-call": (_starts_with_call, "a turn with calls is not the first one"),
    "ends-to-answer": (_ends_with_answer, "when the model is called, the last turn is not the assistant's"),
    "system-early": (_late_system, "no system message stands directly behind the assistant's or a result"),
    "calls-answered": (_unanswered, "the next turn has results of all calls"),
    "calls-last": (_before_text, "calls stand behind all else in their turn"),
    "results-called": (_uncalled, "a result answers a call of the turn before"),
    "results-first": (_behind_text, "results stand before all else in their turn"),
    "results-once": (_answered_twice, "no two results of a turn answer one call"),
    "results-next": (_apart, "results follow directly on a turn with calls, and nothing but results does"),
    "results-counted": (_uneven, "there are as many results as calls"),
    "ids-unique": (_id_ever_again, "no two calls of the prompt share an id"),
    "ids-unique-in-turn": (_id_twice, "no two calls of a turn share an id"),
    "calls-listed": (_each(_lists_no_calls), "a message without calls has no empty list of them"),
    "content-given": (_each(_lacks_content), "content is text or parts; null only beside calls, a refusal or audio"),
    "answer-given": (_each(_says_nothing), "the assistant's message has content or calls"),
    "text-not-empty": (_each(_has_empty_text), "a message has content, and no text is empty"),
    "text-not-blank": (_each(_has_blank_text), "a message has content, and no text is only white space"),
    "text-not-all-blank": (_each(_is_blank), "a message has more than white space, and no text is empty"),
}

_CLAUDE: Final = "https://platform.claude.com/docs/en/"
_MISTRAL: Final = "mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py"
_SOURCES: Final[Mapping[Provider, Mapping[str, str]]] = {
    "openai": {
        "not-empty": "CopilotKit/CopilotKit/issues/529",
        "calls-answered": "BerriAI/litellm/issues/10083",
        "results-called": "simonw/llm/issues/937",
        "results-once": "agno-agi/agno/issues/5116",
        "calls-listed": "openai/openai-python/issues/2061",
        "content-given": "https://developers.openai.com/api/reference/resources/chat/subresources/completions/methods/create",
    },
    "anthropic": {
        "not-empty": "devoxx/DevoxxGenieIDEAPlugin/issues/567",
        "calls-answered": f"{_CLAUDE}agents-and-tools/tool-use/handle-tool-calls",
        "calls-last": "BerriAI/litellm/issues/22946",
        "results-called": "anthropics/claude-code/issues/13460",
        "results-first": f"{_CLAUDE}agents-and-tools/tool-use/handle-tool-calls",
        "results-once": "BerriAI/litellm/pull/23104",
        "ids-unique": "NVIDIA-NeMo/Switchyard/issues/502",
        "text-not-all-blank": "LibreChat-AI/agents/pull/124",
        "ends-to-answer": f"{_CLAUDE}about-claude/models/whats-new-claude-4-6#prefill-removal",
    },
    "gemini": {
        "not-empty": "langchain-ai/langchain-google/pull/1298",
        "starts-without-call": "diegosouzapw/OmniRoute/pull/13573",
        "results-next": "langchain-ai/langchain/issues/27799",
        "results-counted": "google-gemini/gemini-cli/issues/4217",
        "text-not-empty": "router-for-me/CLIProxyAPI/issues/1292",
        "ends-to-answer": "pipecat-ai/pipecat/pull/5821",
    },
    "mistral": {
        "not-empty": _MISTRAL,
        "starts-without-call": _MISTRAL,
        "system-early": _MISTRAL,
        "calls-answered": _MISTRAL,
        "results-called": _MISTRAL,
        "results-once": _MISTRAL,
        "ids-unique-in-turn": _MISTRAL,
        "answer-given": "OpenHands/OpenHands/issues/8685",
        "ends-to-answer": _MISTRAL,
    },
    "bedrock": {
        "starts-with-user": "elastic/kibana/pull/246393",
        "calls-answered": "agno-agi/agno/issues/6698",
        "results-called": "strands-agents/harness-sdk/issues/1435",
        "results-first": "langchain-ai/langchain-aws/issues/451",
        "results-once": "BerriAI/litellm/issues/20047",
        "ids-unique-in-turn": "bvcyber/Cyber-AutoAgent-ng/issues/72",
        "text-not-blank": "OpenHands/OpenHands/issues/5339",
        "ends-to-answer": "microsoft/semantic-kernel/issues/10281",
    },
}
_FORMS: Final[Mapping[Provider, _Form]] = {
    "openai": _Form(lifts_system=False, results_are="tool", merges=("tool",)),
    "anthropic": _Form(lifts_system=True, results_are="user", merges=("user", "assistant")),
    "gemini": _Form(lifts_system=True, results_are="tool", merges=("user", "assistant", "tool")),
    "mistral": _Form(lifts_system=False, results_are="tool", merges=("tool",)),
    "bedrock": _Form(lifts_system=True, results_are="user", merges=("user", "assistant")),
}

PROVIDER_RULES: Final[Mapping[Provider, tuple[PromptRule, ...]]] = MappingProxyType(
    {
        provider: tuple(
            PromptRule(name, _RULES[name][1], source if "://" in source else f"https://github.com/{source}")
            for name, source in sources.items()
        )
        for provider, sources in _SOURCES.items()
    }
)
"""What each provider demands."""

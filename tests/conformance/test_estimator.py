"""LangChain4j's token arithmetic, around a tokenizer that counts words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.classes import of_class
from conformance.vectors import VECTORS, Given, Step, Vector
from turnkeeper import (
    AssistantMessage,
    BpeCounter,
    Message,
    PartCosts,
    TokenWindow,
    ToolCall,
    ToolMessage,
    UserMessage,
    open_runtime,
)

MODELS = {"o": "o1", "o4": "o4-mini"}
"""A model of each family."""

AS_IS = [vector for vector in of_class("holds") if vector.kind == "token_estimator"]
UNCOUNTABLE = [vector for vector in of_class("inverted") if vector.kind == "token_estimator"]
PER_MESSAGE = 4
"""What any message costs."""


def count_words(text: str) -> int:
    return len(text.split())


def words(count: int, first: str = "w") -> str:
    return " ".join([first, *["w"] * (count - 1)]) if count else ""


def call(number: int, given: dict[str, Any]) -> ToolCall:
    """Return a call whose name and arguments have as many tokens as asked for."""
    if "pairs" in given:
        pairs = {words(key, f"k{index}"): words(value) for index, (key, value) in enumerate(given["pairs"])}
        arguments = json.dumps(pairs)
    elif given.get("invalid_json"):
        arguments = words(given.get("args_tokens", 2))
    else:
        arguments = json.dumps({"k": words(given["args_tokens"] - 1)})
        assert count_words(arguments) == given["args_tokens"]
    return ToolCall(id=str(number), name=words(given["name_tokens"]), arguments=arguments)


def message(given: Given) -> Message:
    """Return a message whose texts have as many tokens as asked for."""
    text = words(given["text_tokens"]) or None
    match given["role"]:
        case "tool":
            return ToolMessage(text, tool_call_id="a b c", name=words(given["name_tokens"]))
        case "assistant":
            return AssistantMessage(text, tool_calls=[call(*each) for each in enumerate(given.get("calls", ()))])
        case "user":
            if "content_kinds" not in given:
                return UserMessage(text)
            assert given["content_kinds"] == ["text", "image"]
            image = {"type": "image_url", "image_url": {"url": "https://host.example/image.png"}}
            return UserMessage([{"type": "text", "text": text}, image])
    raise AssertionError(given["role"])


def estimate(step: Step) -> int:
    counter = BpeCounter(encoding=count_words, model=MODELS.get(step.get("model_family", ""), "gpt-4o"))
    if step["op"] == "estimate_list":
        return counter.count_all(map(message, step["input"]))
    assert step["op"] == "estimate_message"
    return counter.count(message(step["input"]))


@pytest.mark.parametrize("vector", AS_IS, ids=lambda vector: vector.id)
def test_the_arithmetic_is_langchain4js(vector: Vector) -> None:
    assert [estimate(step) for step in vector.steps] == [step["expect"]["tokens"] for step in vector.steps]


def test_content_that_is_no_text_has_a_price() -> None:
    (step,) = VECTORS["lc4j.est.unsupported_content"].steps
    assert estimate(step) == PER_MESSAGE + 3 + PartCosts().image
    cheap = BpeCounter(encoding=count_words, part_costs=PartCosts(image=7))
    assert cheap.count(message(step["input"])) == PER_MESSAGE + 3 + 7


def test_arguments_that_are_no_json_are_counted_as_text() -> None:
    parallel, single = VECTORS["lc4j.est.bad_parallel_arguments"].steps
    assert estimate(parallel) == PER_MESSAGE + 21 + (7 + 1 + 2) + (7 + 1)
    assert estimate(single) == single["expect"]["tokens"]


@pytest.mark.anyio
@pytest.mark.parametrize("vector", UNCOUNTABLE, ids=lambda vector: vector.id)
async def test_what_langchain4j_cannot_count_can_be_added_and_read(vector: Vector) -> None:
    said = message(vector.steps[0]["input"])
    async with open_runtime("memory:", window=TokenWindow(2_000, BpeCounter(encoding=count_words))) as runtime:
        await runtime.memory("m").add(said)
        assert await runtime.memory("m").messages() == (said,)


def test_every_vector_of_the_estimator_is_here() -> None:
    named = {"lc4j.est.unsupported_content", "lc4j.est.bad_parallel_arguments"}
    assert {vector.id for vector in UNCOUNTABLE} == named
    assert len(AS_IS) + len(UNCOUNTABLE) == sum(vector.kind == "token_estimator" for vector in VECTORS.values())

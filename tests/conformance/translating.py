"""Between the vectors' messages and ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.vectors import Given, Vector
from turnkeeper import Message


def ours(given: Given) -> list[dict[str, Any]]:
    """Return a vector's message as ours: bundled results come apart, and stand before the text they came with."""
    role, text = given["role"], given.get("text")
    bundled = given.get("tool_results")
    messages = [_result(result["id"], result["name"], result["text"]) for result in bundled or ()]
    if bundled and (role == "tool" or text is None):
        return messages
    if role == "tool":
        return [_result(given["tool_call_id"], given.get("name"), text)]
    message: dict[str, Any] = {"role": role, "content": text}
    if "media" in given:
        message["content"] = [{"type": "image_url", "image_url": {"url": image["uri"]}} for image in given["media"]]
    if "name" in given:
        message["name"] = given["name"]
    if calls := given.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    if "metadata" in given:
        message["metadata"] = given["metadata"]
    return [*messages, message]


def all_ours(given: Iterable[Given]) -> list[dict[str, Any]]:
    """Return the messages as ours, in order."""
    return [message for each in given for message in ours(each)]


def _result(call_id: str | None, name: str | None, text: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "tool", "tool_call_id": call_id, "content": text}
    return result if name is None else {**result, "name": name}


def label(message: Message) -> str:
    """Return a word for a message: its text, `call:1,2` for calls, `~1` for a result that we made up."""
    if message.synthetic:
        return f"~{message.tool_call_id}"
    calls = ",".join(call.id for call in message.tool_calls)
    return f"call:{calls}" if calls else message.text


def labels(messages: Iterable[Message]) -> str:
    """Return the messages' labels, separated by spaces."""
    return " ".join(map(label, messages))


def assert_valid(messages: Sequence[Message]) -> None:
    """Check what every view promises: results stand behind their call, and only the last exchange may be open."""
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id in open_calls, f"a result without its call: {labels(messages)}"
            open_calls.remove(message.tool_call_id)
            continue
        assert not open_calls, f"a call without its result: {labels(messages)}"
        open_calls = [call.id for call in message.tool_calls]
    systems = [message for message in messages if message.role == "system"]
    assert len(systems) < 2, f"two system messages: {labels(messages)}"


class Costs:
    """A token counter that looks up what the vector says each of its messages costs."""

    def __init__(self, vector: Vector) -> None:
        self.list_overhead: int = vector.config["list_overhead"]
        self._costs: dict[str, int] = {}
        for given in vector.messages():
            if "tokens" in given:
                (message,) = ours(given)
                assert self._costs.setdefault(_key(message), given["tokens"]) == given["tokens"], "two costs"

    def count(self, message: Message) -> int:
        """Return the message's cost."""
        return self._costs[_key(message.to_dict())]


def _key(message: dict[str, Any]) -> str:
    return json.dumps(message, sort_keys=True)

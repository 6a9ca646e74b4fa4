"""Messages: whatever goes in comes out, and what is no message is refused by index and field."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper import (
    AssistantMessage,
    InvalidMessageError,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from turnkeeper.messages import encode_messages, place_message, restore_message

ROUND_TRIPS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be brief.", "name": "ops"},
    {"role": "user", "content": ""},
    {"role": "user", "content": None},
    {"role": "user"},
    {"role": "user", "content": "lone \ud83d surrogate", "note": "\udc00"},
    {"role": "user", "content": "nul \x00 and \x7f"},
    {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]},
    {
        "role": "user",
        "content": [{"type": "file", "file": {"file_id": "f"}}, {"type": "hologram", "depth": [1, [2.5]]}],
    },
    {"role": "user", "content": "x" * 10_000_000},
    {"role": "user", "content": "hi", "id": "m-1", "metadata": {"big": 2**80, "small": -0.0, "yes": True, "no": None}},
    {"role": "assistant", "content": None, "refusal": "I can't."},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "assistant", "tool_calls": None, "content": "none called"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "index": 0},
            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "free text"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"ok": true}', "name": "f"},
    {"role": "tool", "tool_call_id": "", "content": [{"type": "text", "text": "part"}]},
    {"role": "function", "name": "f", "content": "legacy"},
]


@pytest.mark.parametrize("message", ROUND_TRIPS, ids=lambda message: f"{message['role']}-{len(str(message))}")
def test_every_field_round_trips(message: dict[str, Any]) -> None:
    (encoded,) = encode_messages([message])
    assert encoded.to_dict() == message
    assert encoded.role == message["role"]
    assert restore_message(encoded.raw) == encoded
    assert restore_message(encoded.raw).raw == encoded.raw


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), json_values)
def test_any_json_round_trips(fields: dict[str, Any], content: Any) -> None:
    message = {**fields, "role": "user", "content": content}
    (encoded,) = encode_messages([message])
    assert encoded.to_dict() == message


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_round_trips_with_lone_surrogates(text: str) -> None:
    (encoded,) = encode_messages([{"role": "user", "content": text}])
    assert restore_message(encoded.raw).content == text


def cyclic() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user"}
    message["self"] = message
    return message


def deep() -> dict[str, Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return {"role": "user", "content": inner}


def nested(levels: int) -> dict[str, Any]:
    inner: Any = "x"
    for _ in range(levels - 1):
        inner = [inner]
    return {"role": "user", "content": inner}


def test_what_is_stored_can_be_read_by_whoever_reads_it() -> None:
    (encoded,) = encode_messages([nested(128)])
    assert encoded.to_dict() == nested(128)
    with pytest.raises(InvalidMessageError, match="128"):
        encode_messages([nested(129)])
    wide = {"role": "user", "content": [[] for _ in range(1000)]}
    assert encode_messages([wide])[0].to_dict() == wide


class Model:
    """Stands for a client library's message object."""


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (None, None),
        (5, None),
        ("text", None),
        (["role", "user"], None),
        (Model(), None),
        ({}, "role"),
        ({"content": "x"}, "role"),
        ({"role": None}, "role"),
        ({"role": 5}, "role"),
        ({"role": ["user"]}, "role"),
        ({"role": "robot"}, "role"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": 7}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": None}, "tool_call_id"),
        ({"role": "function", "content": "x"}, "name"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": ["c"]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}, {"type": "function"}]}, "tool_calls[1].id"),
        ({"role": "user", "content": float("nan")}, "content"),
        ({"role": "user", "content": [1.0, float("inf")]}, "content[1]"),
        ({"role": "user", "content": b"bytes"}, "content"),
        ({"role": "user", "content": {"deep": [{"er": {1, 2}}]}}, "content.*[0].*"),
        ({"role": "user", "at": Model()}, "at"),
        ({"role": "user", "meta": {1: "integer key"}}, "meta"),
        ({"role": "user", 5: "x"}, None),
        ({"role": "user", "at": MappingProxyType({})}, "at"),
        (cyclic(), None),
        (deep(), None),
    ],
)
def test_what_is_no_message_is_refused_by_index_and_field(bad: object, field: str | None) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_messages([{"role": "user", "content": "fine"}, bad])
    assert (caught.value.index, caught.value.field) == (1, field)
    assert "message 1" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_p72_p74_a_date_is_refused_not_stored_as_text() -> None:
    import datetime

    with pytest.raises(InvalidMessageError) as caught:
        encode_messages([{"role": "user", "at": datetime.datetime(2026, 1, 1)}])
    assert (caught.value.field, caught.value.reason) == ("at", "is a datetime, which JSON can't carry")


def test_tuples_count_as_lists_and_any_mapping_is_a_message() -> None:
    (encoded,) = encode_messages([MappingProxyType(OrderedDict(role="user", content=("a", ("b",))))])
    assert encoded.to_dict() == {"role": "user", "content": ["a", ["b"]]}


def test_what_was_given_can_change_and_what_is_stored_does_not() -> None:
    part = {"type": "text", "text": "before"}
    message = {"role": "user", "content": [part]}
    (encoded,) = encode_messages([message])
    part["text"] = "after"
    message["role"] = "system"
    assert encoded.text == "before"
    handed_out = encoded.to_dict()
    handed_out["content"][0]["text"] = "after"
    content = encoded.content
    assert isinstance(content, list)
    content.clear()
    assert encoded.text == "before"


def test_messages_are_immutable() -> None:
    message = UserMessage("hi")
    for name in ("role", "raw", "content", "anything"):
        with pytest.raises(AttributeError):
            setattr(message, name, "x")
        with pytest.raises(AttributeError):
            delattr(message, name)


def test_our_types_are_the_dicts_they_stand_for() -> None:
    call = ToolCall("c1", "f", '{"a": 1}')
    pairs: list[tuple[Message, dict[str, Any]]] = [
        (SystemMessage("be"), {"role": "system", "content": "be"}),
        (SystemMessage("be", role="developer"), {"role": "developer", "content": "be"}),
        (UserMessage("hi", name="Ana", id="m1"), {"role": "user", "content": "hi", "name": "Ana", "id": "m1"}),
        (AssistantMessage("hello"), {"role": "assistant", "content": "hello"}),
        (
            AssistantMessage(tool_calls=[call, {"id": "c2"}]),
            {"role": "assistant", "content": None, "tool_calls": [call.to_dict(), {"id": "c2"}]},
        ),
        (ToolMessage("ok", tool_call_id="c1"), {"role": "tool", "tool_call_id": "c1", "content": "ok"}),
    ]
    for ours, theirs in pairs:
        (encoded,) = encode_messages([theirs])
        assert ours == encoded
        assert type(ours) is type(encoded)
        assert hash(ours) == hash(encoded)


def test_accessors_read_the_fields() -> None:
    (call,) = encode_messages([ROUND_TRIPS[15]])
    assert call.tool_calls == (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "free text", "custom"))
    (result,) = encode_messages([{"role": "tool", "tool_call_id": "c1", "content": "ok", "name": "f"}])
    assert (result.tool_call_id, result.name, result.text, result.tool_calls) == ("c1", "f", "ok", ())
    parts = UserMessage([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}])
    assert (parts.text, UserMessage(None).text, UserMessage({"no": "text"}).text) == ("ab", "", "")
    (odd,) = encode_messages([{"role": "assistant", "tool_calls": [{"id": "x", "function": {"arguments": {"a": 1}}}]}])
    assert odd.tool_calls == (ToolCall("x", "", '{"a":1}'),)


def test_a_message_has_its_own_id_or_its_place_in_the_log() -> None:
    own, placed = encode_messages([{"role": "user", "id": "mine"}, {"role": "user"}])
    assert (own.id, placed.id) == ("mine", None)
    place_message(own, 7, 0)
    place_message(placed, 7, 1)
    assert (own.id, placed.id) == ("mine", "7.1")


def test_equality_ignores_the_order_of_keys_and_agrees_with_hash() -> None:
    one, other = encode_messages([{"role": "user", "content": "x", "n": 1}, {"n": 1.0, "content": "x", "role": "user"}])
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, UserMessage("y")}) == 2
    assert one != {"role": "user", "content": "x", "n": 1}


@pytest.mark.parametrize("message", [ROUND_TRIPS[5], ROUND_TRIPS[15]])
def test_messages_pickle(message: dict[str, Any]) -> None:
    (encoded,) = encode_messages([message])
    place_message(encoded, 3, 2)
    copy = pickle.loads(pickle.dumps(encoded))
    assert (copy, copy.id, type(copy)) == (encoded, "3.2", type(encoded))


def test_repr_shows_no_content() -> None:
    assert repr(UserMessage("secret")) == "<UserMessage role='user' bytes=34>"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b'{"role":"robot"}', b'{"content":"x"}', b"\xff"])
def test_what_is_no_encoded_message_is_not_restored(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        restore_message(raw)

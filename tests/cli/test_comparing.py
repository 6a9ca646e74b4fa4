"""What is stored is compared by value and type, and a difference is named by place and kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.cli.comparing import Difference, first_difference
from turnkeeper.messages import Message, encode_messages


def messages(*contents: Any) -> tuple[Message, ...]:
    return encode_messages([{"role": "user", "content": content} for content in contents])


def raws(*contents: Any) -> list[bytes | None]:
    return [message.raw for message in messages(*contents)]


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (["a", "b", "c"], None),
        (["a", "b"], Difference("x", 3, "missing")),
        ([], Difference("x", 1, "missing")),
        (["a", "b", "c", "d"], Difference("x", 4, "extra")),
        (["a", "B", "c"], Difference("x", 2, "different")),
        (["a", "c", "b"], Difference("x", 2, "different")),
        (["a", "a", "b", "c"], Difference("x", 2, "different")),
    ],
)
def test_the_first_difference_is_named(found: list[str], difference: Difference | None) -> None:
    assert first_difference("x", messages("a", "b", "c"), raws(*found)) == difference


def test_what_cannot_be_read_is_a_difference() -> None:
    assert first_difference("x", messages("a", "b"), [*raws("a"), None]) == Difference("x", 2, "unreadable")


def test_a_live_conversation_need_only_begin_like_the_input() -> None:
    expected = messages("a", "b", "c")
    assert first_difference("x", expected, raws("a"), at_least=0) is None
    assert first_difference("x", expected, raws("a"), at_least=1) is None
    assert first_difference("x", expected, raws("a"), at_least=2) == Difference("x", 2, "missing")


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.0), (None, ""), ("1", 1), ({}, []), ([], "")])
def test_types_count_unlike_in_python(one: object, other: object) -> None:
    assert first_difference("x", messages(one), raws(other)) == Difference("x", 1, "different")


def test_the_order_of_keys_does_not() -> None:
    expected = encode_messages([{"role": "user", "content": {"a": 1, "b": [2]}}])
    assert first_difference("x", expected, [b'{"content":{"b":[2],"a":1}, "role":"user"}']) is None


@given(st.text(st.characters()) | st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_the_same_is_the_same(content: object) -> None:
    expected = messages(content)
    assert first_difference("x", expected, [json.dumps(expected[0].to_dict()).encode()]) is None


def test_a_difference_is_told_without_content() -> None:
    assert str(Difference("a'b", 3, "extra")) == 'conversation "a\'b", message 3: extra'

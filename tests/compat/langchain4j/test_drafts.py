"""What a batch of requests makes of a store's list, without a store."""

from __future__ import annotations

from typing import Any

import pytest

from compat.langchain4j.own_stores import call, result, system, texts, user
from turnkeeper.compat.langchain4j.drafts import Draft
from turnkeeper.log import ADD, CLEAR, SET
from turnkeeper.messages import encode_messages
from turnkeeper.requests import READ, Request
from turnkeeper.windows import MessageWindow


def window(limit: Any) -> MessageWindow:
    return MessageWindow(limit, on_overflow="evict")


def request(op: str, *messages: Any, limit: Any = 3) -> Request:
    return Request(op, encode_messages(messages), window=window(limit))


def read(*messages: Any) -> Draft:
    draft = Draft()
    draft.read(encode_messages(messages))
    return draft


def test_only_what_depends_on_the_list_needs_it() -> None:
    for op, needs in ((ADD, True), (READ, True), (SET, False), (CLEAR, False)):
        assert Draft().needs(request(op, user("u1"))) == needs
        assert not read().needs(request(op, user("u1")))
    draft = Draft()
    draft.apply(request(CLEAR), "m")
    assert not draft.needs(request(ADD, user("u1"))), "after a clear it is known"
    assert draft.given is None


def test_a_batch_is_applied_in_order_and_written_once() -> None:
    draft = read(user("u1"), user("u2"))
    assert draft.apply(request(ADD, user("u3"), user("u4")), "m") is None
    shown = draft.apply(request(READ), "m")
    assert texts(shown) == ["u2", "u3", "u4"]
    draft.apply(request(SET, user("u5")), "m")
    draft.apply(request(ADD, user("u6")), "m")
    assert draft.changed
    assert texts(draft.stored()) == ["u5", "u6"]
    draft.apply(request(CLEAR), "m")
    assert draft.stored() == ()


def test_what_changes_nothing_is_not_written() -> None:
    draft = read(system("s1"))
    draft.apply(request(ADD, system("s1")), "m")
    draft.apply(request(READ), "m")
    assert not draft.changed


def test_one_window_does_not_bring_back_what_another_let_go() -> None:
    draft = read()
    draft.apply(request(ADD, user("u1"), user("u2"), user("u3"), limit=2), "m")
    assert texts(draft.apply(request(READ, limit=9), "m")) == ["u2", "u3"]
    draft.apply(request(ADD, user("u4"), limit=9), "m")
    assert texts(draft.stored()) == ["u2", "u3", "u4"]
    assert texts(draft.apply(request(READ, limit=1), "m")) == ["u4"]
    assert texts(draft.stored()) == ["u2", "u3", "u4"], "reading lets nothing go"


def test_what_a_window_makes_up_is_not_stored() -> None:
    draft = read(user("u1"), call("1"))
    draft.apply(request(ADD, user("u2"), limit=9), "m")
    shown = draft.apply(request(READ, limit=9), "m")
    assert shown is not None
    assert [message.synthetic for message in shown] == [False, False, True, False]
    assert [message.synthetic for message in draft.stored()] == [False, False, False]
    draft.apply(request(ADD, result("1", "late"), limit=9), "m")
    assert texts(draft.stored()) == ["u1", "", "late", "u2"]


def test_what_is_stored_has_no_place_in_a_log() -> None:
    draft = read(user("u1"))
    draft.apply(request(ADD, {**user("u2"), "id": "own"}), "m")
    assert [message.id for message in draft.stored()] == [None, "own"]


def test_a_limit_that_fails_changes_nothing() -> None:
    def fail(_: str) -> int:
        raise KeyError("no limit")

    draft = read(user("u1"))
    for op in (ADD, SET, READ):
        with pytest.raises(KeyError):
            draft.apply(request(op, user("u2"), limit=fail), "m")
    assert not draft.changed
    assert texts(draft.stored()) == ["u1"]

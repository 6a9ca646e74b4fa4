"""An exchange in the log: a user message, an assistant message, and what else others may have said around them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

from turnkeeper.compat.zerda.exchanges import Exchange
from turnkeeper.compat.zerda.references import Hold, References
from turnkeeper.errors import InvalidMessageError
from turnkeeper.messages import AssistantMessage, Message, UserMessage, place_of

__all__ = ["Turn", "Written", "is_fixed", "new_id", "read_turn", "split_turns", "token_of", "write_exchange"]

INPUT: Final = "input"
OUTPUT: Final = "output"

_FIELD: Final = "zerda"
_DEEPEST: Final = 100
"""Levels of nesting in a value; with the message around it that stays below what a message may have."""
_LARGEST: Final = 10**4_000
"""Python refuses to print, and so to store, numbers that are much longer."""


class Turn(NamedTuple):
    """A user message and what follows it, up to the next one.

    Attributes:
        messages: in order; the first is the user's.
        answer: index of the first assistant message that calls no tools; 0 without one.
    """

    messages: tuple[Message, ...]
    answer: int

    @property
    def place(self) -> tuple[int, int]:
        """Where the exchange's two messages stand in the log."""
        return place_of(self.messages[0]), place_of(self.messages[self.answer]) if self.answer else -1


class Written(NamedTuple):
    """An exchange on its way into the log.

    Attributes:
        exchange: what it will be.
        question: the user message.
        answer: the assistant message.
    """

    exchange: Exchange
    question: dict[str, Any]
    answer: dict[str, Any]


def new_id() -> str:
    """Name an exchange."""
    return os.urandom(8).hex()


def split_turns(messages: Iterable[Message]) -> tuple[list[Message], list[Turn]]:
    """Return what comes before the first user message, and the turns."""
    head: list[Message] = []
    turns: list[Turn] = []
    collected = head
    for message in messages:
        if isinstance(message, UserMessage):
            if collected is not head:
                turns.append(_turn(collected))
            collected = []
        collected.append(message)
    if collected is not head:
        turns.append(_turn(collected))
    return head, turns


def _turn(messages: list[Message]) -> Turn:
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and not message.tool_calls:
            return Turn(tuple(messages), index)
    return Turn(tuple(messages), 0)


def write_exchange(exchange_id: str, values: Mapping[Any, Any], hold: Hold | None) -> Written:
    """Put an exchange into messages.

    Texts are the messages' content. What is no text stands there as `str(value)`; the value itself rides in the field
    `zerda`, as JSON, and where memories end with the process also by reference.

    Args:
        exchange_id: names it.
        values: what it holds.
        hold: keeps values by reference; None: there is nothing that could.

    Raises:
        InvalidMessageError: JSON can't carry a value, and it can't be kept by reference.
    """
    for_question: dict[str, Any] = {"exchange": exchange_id}
    for_answer: dict[str, Any] = {}
    more: dict[str, Any] = {}
    by_reference: dict[Any, Any] = {}
    kept = dict(values)
    for key, value in values.items():
        in_json = type(key) is str and _carried(value, _DEEPEST)
        if not in_json and hold is None:
            raise _refusal(key, value)
        if not in_json or isinstance(value, (list, dict)):
            by_reference[key] = value
            if hold is None:
                kept[key] = deepcopy(value)  # what the store has: the caller's may change
        if not in_json:
            continue
        if key == OUTPUT:
            if type(value) is not str:
                for_answer[key] = value
        elif key == INPUT:
            if type(value) is not str:
                for_question[key] = value
        elif key == "timestamp":
            for_question[key] = value
        else:
            more[key] = value
    if more:
        for_question["more"] = more
    if without := [key for key in (INPUT, OUTPUT) if key not in values]:
        for_question["without"] = without
    token = 0
    if by_reference and hold is not None:
        token = for_question["objects"] = hold(by_reference)
    question: dict[str, Any] = {"role": "user", "content": _text(values.get(INPUT)), _FIELD: for_question}
    answer: dict[str, Any] = {"role": "assistant", "content": _text(values.get(OUTPUT))}
    if for_answer:
        answer[_FIELD] = for_answer
    return Written(Exchange(kept, exchange_id, token), question, answer)


def read_turn(turn: Turn, references: References | None, *, timestamps: bool) -> Exchange:
    """Read an exchange from messages; also from those that others wrote, as far as it goes.

    Args:
        turn: its messages.
        references: where values may be kept by reference.
        timestamps: whether an exchange without a timestamp gets None for one.
    """
    question = turn.messages[0].to_dict()
    answer = turn.messages[turn.answer].to_dict() if turn.answer else {}
    for_question, for_answer = _extra(question), _extra(answer)
    values: dict[Any, Any] = {
        INPUT: for_question.get(INPUT, question.get("content")),
        OUTPUT: for_answer.get(OUTPUT, answer.get("content")),
    }
    exchange_id = for_question.get("exchange")
    if not isinstance(exchange_id, str):
        if timestamps:
            values["timestamp"] = None
        return Exchange(values, None)
    if "timestamp" in for_question:
        values["timestamp"] = for_question["timestamp"]
    more, without, token = (for_question.get(key) for key in ("more", "without", "objects"))
    if isinstance(more, dict):
        values.update(more)
    if isinstance(without, list):
        for key in (INPUT, OUTPUT):
            if key in without:
                del values[key]
    if references is None or not isinstance(token, int):
        return Exchange(values, exchange_id)
    values.update(references.get(token))
    return Exchange(values, exchange_id, token)


def token_of(turn: Turn) -> int:
    """Return the number under which a turn's values are kept by reference; 0: none are."""
    token = _extra(turn.messages[0].to_dict()).get("objects")
    return token if isinstance(token, int) else 0


def is_fixed(value: object) -> bool:
    """Tell whether `str(value)` is there and will always be the same."""
    kind = type(value)
    return value is None or kind in (str, bool, float) or (kind is int and abs(value) <= _LARGEST)  # type: ignore[arg-type]


def _extra(message: Mapping[str, Any]) -> dict[str, Any]:
    extra = message.get(_FIELD)
    return extra if isinstance(extra, dict) else {}


def _carried(value: object, levels: int) -> bool:
    """Tell whether JSON carries a value so that type and value come back; a tuple, for one, would be a list."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return abs(value) <= _LARGEST  # type: ignore[arg-type]
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if levels == 0:
        return False  # or it holds itself
    if isinstance(value, list) and kind is list:
        return all(_carried(item, levels - 1) for item in value)
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and _carried(item, levels - 1) for key, item in value.items())
    return False


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # the value's own, or a number that Python does not print; it is kept all the same
        return f"<{type(value).__name__}>"


def _refusal(key: object, value: object) -> InvalidMessageError:
    if type(key) is not str:
        return InvalidMessageError(0, _FIELD, f"has a key that is no string (a {type(key).__name__})")
    field = key if key in (INPUT, OUTPUT, "timestamp") else "more.*"
    return InvalidMessageError(
        int(key == OUTPUT),
        f"{_FIELD}.{field}",
        f"is or holds what JSON can't carry unchanged (a {type(value).__name__})",
    )

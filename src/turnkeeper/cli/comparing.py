"""Comparing what is stored with what was meant to be: the first difference, by place and kind, never by content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from turnkeeper.messages import Message
from turnkeeper.wire import decode

__all__ = ["Difference", "DifferenceError", "Kind", "first_difference", "same_json"]

Kind = Literal["missing", "extra", "different", "unreadable"]


class Difference(NamedTuple):
    """Where a conversation is not what it should be.

    Attributes:
        id: the conversation.
        position: the message's number, from 1.
        kind: "missing", "extra", "different", or "unreadable" for what can't be decoded.
    """

    id: str
    position: int
    kind: Kind

    def __str__(self) -> str:
        return f"conversation {self.id!r}, message {self.position}: {self.kind}"


class DifferenceError(Exception):
    """A difference was seen while the conversations were live."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def first_difference(
    memory_id: str, expected: Sequence[Message], found: Iterable[bytes | None], *, at_least: int | None = None
) -> Difference | None:
    """Compare messages with the encoded ones that were found, in order, and return the first difference.

    Args:
        memory_id: names the conversation.
        expected: all of its messages.
        found: JSON of each message found, None for one that can't be read; consumed only as far as needed.
        at_least: how many of the expected ones must be there; None: all.
    """
    count = 0
    for raw in found:
        count += 1
        if raw is None:
            return Difference(memory_id, count, "unreadable")
        if count > len(expected):
            return Difference(memory_id, count, "extra")
        if not same_json(expected[count - 1].raw, raw):
            return Difference(memory_id, count, "different")
    if count < (len(expected) if at_least is None else at_least):
        return Difference(memory_id, count + 1, "missing")
    return None


def same_json(one: bytes, other: bytes) -> bool:
    """Compare JSON: the order of keys is free, but 1, 1.0 and true are three things, unlike Python's `==` has it."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(data: bytes) -> str:
    return json.dumps(decode(data), sort_keys=True)

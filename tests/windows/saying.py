"""Messages, views and counters in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from turnkeeper import Message, MessageWindow, TokenWindow, TurnWindow, Window
from turnkeeper.log import Head
from turnkeeper.messages import encode_messages
from turnkeeper.state import Log
from turnkeeper.windows import LimitedWindow, Messages
from windows.model import Rules

Fields = dict[str, Any]


def user(text: str = "u", **fields: Any) -> Fields:
    return {"role": "user", "content": text, **fields}


def answer(text: str = "a", **fields: Any) -> Fields:
    return {"role": "assistant", "content": text, **fields}


def system(text: str = "s", **fields: Any) -> Fields:
    return {"role": "system", "content": text, **fields}


def calls(*ids: str, text: str | None = None, arguments: str = "{}") -> Fields:
    made = [{"id": call, "type": "function", "function": {"name": "f", "arguments": arguments}} for call in ids]
    return {"role": "assistant", "content": text, "tool_calls": made}


def result(call: str, text: str = "r") -> Fields:
    return {"role": "tool", "tool_call_id": call, "content": text}


def label(message: Message) -> str:
    """Name a message as the model does: by its id, or the call it was made up for."""
    if not message.synthetic:
        return str(message.id)
    name = message.to_dict().get("name")
    return f"lost function {name}" if message.role == "function" else f"lost {message.tool_call_id}"


def labels(view: Iterable[Message]) -> list[str]:
    return [label(message) for message in view]


def spoken(view: Iterable[Message]) -> str:
    """Put a view into one line: `u1 call:1,2 r1 ~2` is text, calls, a result's text, and a result that was made up."""
    return " ".join(_spoken(message) for message in view)


def _spoken(message: Message) -> str:
    if message.synthetic:
        return f"~{message.tool_call_id}"
    if message.tool_calls:
        return "call:" + ",".join(call.id for call in message.tool_calls)
    return message.text


class Lengths:
    """A counter: a message costs as many tokens as its text has characters, one that was made up 2.

    Attributes:
        counted: the ids of what was counted, or the texts of what is in no log yet, in order.
    """

    def __init__(self, list_overhead: int = 1) -> None:
        self.overhead = list_overhead
        self.counted: list[str] = []

    @property
    def list_overhead(self) -> int:
        return self.overhead

    def count(self, message: Message) -> int:
        self.counted.append(message.text)
        return 2 if message.synthetic else len(message.text)


def length(fields: Fields | None) -> int:
    """Count as `Lengths` does."""
    return 2 if fields is None else len(fields["content"] or "")


def rules_of(window: Window) -> Rules:
    """Say in the model's words what a window was asked to be."""
    if not isinstance(window, LimitedWindow):
        return Rules(on_unanswered=window.on_unanswered)
    cost, overhead = _one, 0
    if isinstance(window, TokenWindow) or (isinstance(window, TurnWindow) and window.max_tokens is not None):
        assert isinstance(window.counter, Lengths)
        cost, overhead = length, window.counter.overhead
    elif isinstance(window, TurnWindow) and window.max_turns is not None:
        cost = _one_if_user
    whole = isinstance(window, TurnWindow)
    first = whole or (isinstance(window, MessageWindow | TokenWindow) and window.system_first)
    return Rules(cost, overhead, whole, first, window.on_overflow, window.on_unanswered)


def _one(fields: Fields | None) -> int:
    return 1


def _one_if_user(fields: Fields | None) -> int:
    return int(fields is not None and fields["role"] == "user")


def log_of(*entries: Fields | Sequence[Fields]) -> Log:
    """Return a log with an entry for each message, or list of messages."""
    log = Log(Head(3, 0, 0, 0, 1, 1))
    for entry in entries:
        log.append(encode_messages([entry] if isinstance(entry, dict) else entry))
    log.begin()
    return log


def view_of(log: Log, window: Window) -> Messages:
    """Look at a log that is held whole."""
    view = log.view(window, window.limit("m"))
    assert view is not None
    return view


def shown(window: Window, *entries: Fields | Sequence[Fields]) -> str:
    """Say what a window shows of a log, in one line."""
    return spoken(view_of(log_of(*entries), window))

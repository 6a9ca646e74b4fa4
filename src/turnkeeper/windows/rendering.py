"""Units as messages: what becomes of a call without a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turnkeeper.messages import Message
from turnkeeper.windows.base import Unbounded, Window
from turnkeeper.windows.transcript import Exchange, Unit

__all__ = ["render", "rendered"]

_CLOSING: Final = Unbounded()


def render(unit: Message | Exchange, current: bool, window: Window, into: list[Message]) -> None:
    """Add a unit's messages to a list; `current`: only its results have followed."""
    if not isinstance(unit, Exchange):
        into.append(unit)
        return
    if unit.missing and not current and window.on_unanswered == "drop":
        return
    into.append(unit.call)
    into.extend(unit.results)
    if unit.missing and not current and window.on_unanswered == "close":
        into.extend(unit.lost())


def rendered(units: Sequence[Unit], without: Message | None) -> list[Message]:
    """Return the messages of units that are not current, valid by themselves, but for one of them."""
    messages: list[Message] = []
    for unit in units:
        if unit is not without:
            render(unit, False, _CLOSING, messages)
    return messages

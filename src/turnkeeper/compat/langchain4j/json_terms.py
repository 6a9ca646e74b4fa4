"""What the modules about LangChain4j's JSON have in common."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

__all__ = ["MADE_UP", "OURS", "THEIRS", "Fields", "Unfit"]


Fields: TypeAlias = dict[str, Any]


OURS: Final = "turnkeeper"
"""The key among LangChain4j's attributes that holds what has no other place there."""


THEIRS: Final = "langchain4j"
"""The field of our messages, parts and calls that holds what has no other place here."""


MADE_UP: Final = "langchain4j:"
"""Begins the id of a call that has none in LangChain4j; the tool's name follows."""


class Unfit(Exception):  # noqa: N818 (it never leaves this module)
    """What is wrong, and where: becomes an error with the message's index."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

"""What the model is shown."""

from turnkeeper.windows.base import HISTORIES, Messages, OnOverflow, OnUnanswered, Unbounded, Window
from turnkeeper.windows.limited import Limit, LimitedWindow, MessageWindow, TokenWindow, TurnWindow

__all__ = [
    "HISTORIES",
    "Limit",
    "LimitedWindow",
    "MessageWindow",
    "Messages",
    "OnOverflow",
    "OnUnanswered",
    "TokenWindow",
    "TurnWindow",
    "Unbounded",
    "Window",
]

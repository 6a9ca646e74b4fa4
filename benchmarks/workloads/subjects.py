"""Who is measured in RAM, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import floors
import ours
from floors import ChatMessage, Conversations

__all__ = ["ACTORS", "BARE", "LOCK", "MESSAGE", "OURS", "SUBJECTS", "Subject"]

Subject = Callable[[int], AbstractAsyncContextManager[Conversations]]

LOCK: Final = "lock + list"
BARE: Final = "bare actor"
OURS: Final = "turnkeeper"

SUBJECTS: Final[Mapping[str, Subject]] = {LOCK: floors.locked_lists, BARE: floors.bare_actors, OURS: ours.memories}
ACTORS: Final[Mapping[str, Subject]] = {BARE: floors.bare_actors, OURS: ours.memories}

MESSAGE: Final[ChatMessage] = {
    "role": "user",
    "content": "Could you move my flight from Boston to Denver to the next morning, and keep the aisle seat?",
}

"""A process that talks and compacts until it is killed; its script."""

from __future__ import annotations

import json
import sys
from typing import Any

import turnkeeper
from turnkeeper import CompactionPolicy, Message, MessageWindow, TurnWindow


def keep_every_word(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
    return " ".join(message.text for message in (*summary, *messages))


def talk(url: str, first: int, by_itself: bool, options: dict[str, Any]) -> None:
    """Add one turn after the other, and say so when each is acknowledged."""
    keep = TurnWindow(max_turns=2)
    policy = CompactionPolicy(keep_every_word, when=MessageWindow(6), keep=keep) if by_itself else None
    with turnkeeper.open_sync_runtime(url, compaction=policy, **options) as runtime:
        memory = runtime.memory("m")
        number = first
        while True:
            memory.add({"role": "user", "content": f"u{number}"}, {"role": "assistant", "content": f"a{number}"})
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            number += 1
            if not by_itself and number % 2:
                memory.compact(keep_every_word, keep=keep)


if __name__ == "__main__":
    talk(*json.loads(sys.argv[1]))

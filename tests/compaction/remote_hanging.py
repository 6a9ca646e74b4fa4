"""A process that ends while a summariser hangs for ever; its script."""

from __future__ import annotations

import sys
import threading

import anyio
import anyio.lowlevel

import turnkeeper
from turnkeeper import CompactionPolicy, Message, MessageWindow, TurnWindow

asked = threading.Event()


def hang(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
    asked.set()
    threading.Event().wait()
    return "never"


async def main() -> None:
    policy = CompactionPolicy(hang, when=MessageWindow(2), keep=TurnWindow(max_turns=1))
    async with turnkeeper.open_runtime("memory:", compaction=policy) as runtime:
        memory = runtime.memory("m")
        for number in range(3):
            await memory.add({"role": "user", "content": f"u{number}"}, {"role": "assistant", "content": "a"})
        while not asked.is_set():
            await anyio.lowlevel.checkpoint()
    sys.stdout.write("closed\n")


if __name__ == "__main__":
    if sys.argv[1] == "uvloop":
        anyio.run(main, backend_options={"use_uvloop": True})
    else:
        anyio.run(main, backend=sys.argv[1])

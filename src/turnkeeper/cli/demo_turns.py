"""The part of `turnkeeper demo` that sends a second message before the first is answered, under each policy."""

from __future__ import annotations

from typing import Final, Literal

import anyio

from turnkeeper.cli.claims import require
from turnkeeper.errors import TurnBusyError, TurnInterruptedError
from turnkeeper.memory import ChatMemory
from turnkeeper.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from turnkeeper.opening import Runtime

__all__ = ["double_message"]

_PATIENCE: Final = 5.0
"""Seconds until a second message that should not have to wait counts as stuck."""

_PAUSE: Final = 0.02
"""Seconds in which a second message that should wait could come through."""

_Policy = Literal["enqueue", "reject", "interrupt", "rollback"]

_EXPECTED: Final[dict[_Policy, str]] = {
    "enqueue": "Q1 call result A1 Q2 A2",
    "reject": "Q1 call result A1",
    "interrupt": "Q1 call (closed) Q2 A2",
    "rollback": "Q2 A2",
}


async def double_message(runtime: Runtime) -> str:
    """Send a second message while the first one's tool is at work, under each policy."""
    shown = {}
    for on_busy, expected in _EXPECTED.items():
        memory = runtime.memory(f"double-message-{on_busy}")
        fates = await _two_turns(memory, on_busy)
        require(fates == _fates(on_busy), f"{on_busy}: one of the two turns was not told what became of it")
        shown[on_busy] = " ".join(["(closed)" if each.synthetic else each.text for each in await memory.messages()])
        require(shown[on_busy] == expected, f"{on_busy}: what is stored is not what the policy says")
    return (
        "a second message, Q2, came while the tool of the first, Q1, was at work. What the model is shown then: "
        f"enqueue: {shown['enqueue']}; reject: {shown['reject']}, Q2 was refused at once; interrupt: "
        f"{shown['interrupt']}; rollback: {shown['rollback']}, no trace of Q1"
    )


def _fates(on_busy: _Policy) -> tuple[str, str]:
    return {"enqueue": ("done", "done"), "reject": ("done", "busy")}.get(on_busy, ("interrupted", "done"))


async def _two_turns(memory: ChatMemory, on_busy: _Policy) -> tuple[str, str]:
    at_tool, met, tool_done = anyio.Event(), anyio.Event(), anyio.Event()
    fates = {}

    async def first() -> None:
        try:
            async with memory.turn(commit="each") as turn:
                await turn.add(UserMessage("Q1"))
                await turn.add(AssistantMessage("call", tool_calls=[ToolCall("c1", "book", "{}")]))
                at_tool.set()
                await tool_done.wait()
                await turn.add(ToolMessage("result", tool_call_id="c1"))
                await turn.add(AssistantMessage("A1"))
            fates["first"] = "done"
        except TurnInterruptedError:
            fates["first"] = "interrupted"

    async def second() -> None:
        try:
            async with memory.turn(on_busy=on_busy) as turn:
                met.set()
                await turn.add(UserMessage("Q2"), AssistantMessage("A2"))
            fates["second"] = "done"
        except TurnBusyError:
            met.set()
            fates["second"] = "busy"

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await at_tool.wait()
        group.start_soon(second)
        with anyio.move_on_after(_PAUSE if on_busy == "enqueue" else _PATIENCE):
            await met.wait()
        tool_done.set()
    return fates["first"], fates["second"]

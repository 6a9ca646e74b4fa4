"""What the tests of turns share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from turnkeeper import ChatMemory, Runtime, Turn, TurnkeeperError
from turnkeeper.testing import Stall, unload

BOUND = 5.0  # seconds in which everybody must have an answer, on the busiest of machines


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def result(call_id: str, text: str = "42") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


async def texts(source: ChatMemory | Turn) -> list[Any]:
    """Read the contents of what is shown."""
    return [message["content"] for message in (await source.messages()).to_dicts()]


def start_outside(group: TaskGroup, function: Callable[..., Any], *args: Any) -> None:
    """Start a task that is inside no turn: one started from inside inherits it, as it would wait for its parent."""
    start: Callable[..., Any] = group.start_soon
    Context().run(start, function, *args)


class Call:
    """A call in a task of its own, outside of all turns, and what came of it: its result, or its error if it is ours.

    Cancelling `scope` makes its caller leave.
    """

    def __init__(self, group: TaskGroup, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        self.outcome: Any = None
        self.scope = anyio.CancelScope()
        self._function = function
        self._args = args
        self._done = anyio.Event()
        start_outside(group, self._run)

    async def _run(self) -> None:
        try:
            with self.scope:
                self.outcome = await self._function(*self._args)
        except TurnkeeperError as error:
            self.outcome = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def result(self) -> Any:
        with anyio.fail_after(BOUND):
            await self._done.wait()
        return self.outcome


async def entered(stall: Stall) -> None:
    """Wait until a call hangs."""
    with anyio.fail_after(BOUND):
        assert await to_thread.run_sync(stall.entered.wait, BOUND)


async def pending(runtime: Runtime, count: int) -> None:
    """Wait until so many requests are under way."""
    await until(lambda: runtime.stats().pending == count)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(BOUND):
        while not condition():
            await checkpoint()


async def unloaded(runtime: Runtime, memory_id: str = "m") -> None:
    """Drop a memory from RAM, once nothing is under way: on a shared store, when the lease was given back."""
    await until(lambda: unload(runtime, memory_id))


async def passes(count: int = 30) -> None:
    """Let everybody run who can."""
    for _ in range(count):
        await checkpoint()

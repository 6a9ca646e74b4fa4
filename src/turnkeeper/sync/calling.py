"""How a thread calls into the runtime's event loop and waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from typing import Any, Final, TypeVar

from turnkeeper.errors import OutcomeUnknownError, RuntimeClosedError, RuntimeUsageError
from turnkeeper.runtime import RuntimeCore

__all__ = ["call", "in_loop"]

T = TypeVar("T")

_LOOK_EVERY: Final = 1.0
"""Seconds between looks at whether the event loop is still there to answer."""


def in_loop(function: Callable[[], T]) -> Callable[[], Any]:
    """Make an async function of one that has to run in the loop's thread."""

    async def call() -> T:
        return function()

    return call


def call(core: RuntimeCore, instead: str, function: Callable[[], Any]) -> Any:
    """Run an async function in the runtime's loop and wait for it in this thread."""
    core.check_reachable()
    if core.on_loop_thread():
        raise RuntimeUsageError(f"a blocking call on the event loop's own thread would never return; use '{instead}'")
    failure: list[Exception] = []

    async def run() -> Any:
        try:
            return await function()
        except Exception as error:  # kept apart from the portal's own errors
            failure.append(error)

    try:
        future = core.portal.start_task_soon(run)
        while not future.done() and not (wait([future], timeout=_LOOK_EVERY).done or core.closed):
            pass  # a Ctrl-C in the loop's thread can strike just as the answer is handed on, and then none comes
        result = future.result(timeout=_LOOK_EVERY)
    except (CancelledError, TimeoutError):
        raise OutcomeUnknownError(
            "the event loop was torn down while the call was under way: it happened whole or not at all"
        ) from None
    except RuntimeError:
        raise RuntimeClosedError("the runtime is closed; nothing was changed") from None
    if failure:
        raise failure.pop()
    return result

"""Asking the user's model from whatever thread a memory is used in."""

from __future__ import annotations

import atexit
from collections.abc import Awaitable
from contextlib import nullcontext
from inspect import isawaitable, iscoroutine
from typing import Any, Final

import anyio
import anyio.from_thread

from turnkeeper.compat.default_runtime import Process, process
from turnkeeper.compat.loop_thread import LoopThread

__all__ = ["ask_model"]

_STOP_SECONDS: Final = 2.0

_loops: Final[dict[Process, LoopThread[None]]] = {}


def ask_model(llm: Any, prompt: str, max_tokens: int) -> str:
    """Return what `llm.generate(prompt, max_tokens=…)` says, stripped; it may be async.

    An async one runs in the event loop that this thread works for (`asave_context`), where the model's client is at
    home; without one in a loop that all blocking callers share, because clients stick to the first loop they see. The
    loops of memories' runtimes are never used: a model that blocks would hold up all of them.

    Raises:
        ValueError: it says nothing.
    """
    answer = llm.generate(prompt, max_tokens=max_tokens)
    if isawaitable(answer):
        answer = _wait_for(answer)
    text: str = answer.strip()
    if not text:
        raise ValueError("the model said nothing")
    return text


def _wait_for(answer: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await answer

    try:
        if _works_for_a_loop():
            return anyio.from_thread.run(wait)
        return _shared_loop().portal.call(wait)
    finally:
        if iscoroutine(answer):
            answer.close()  # the loop may have been gone


def _works_for_a_loop() -> bool:
    try:
        anyio.from_thread.check_cancelled()
    except anyio.NoEventLoopError:
        return False
    except BaseException:  # cancelled: the loop will say so where that is expected
        return True
    return True


def _shared_loop() -> LoopThread[None]:
    with process().lock:
        loop = _loops.get(process())
        if loop is None:
            _loops.clear()  # a parent's thread is not here
            loop = _loops[process()] = LoopThread("turnkeeper model", nullcontext)
        return loop


def _at_exit() -> None:
    for known, loop in list(_loops.items()):
        if known is process():
            loop.stop(_STOP_SECONDS)


atexit.register(_at_exit)

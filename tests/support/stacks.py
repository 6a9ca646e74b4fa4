"""Threads and tasks as text, for the message of a test that blocks or hangs."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType

FRAMES_SHOWN = 25
TASKS_SHOWN = 50


def format_frame(frame: FrameType) -> str:
    """Return the innermost calls that led to `frame`."""
    return "".join(traceback.format_stack(frame, FRAMES_SHOWN))


def format_threads(interrupted: FrameType | None = None) -> str:
    """Return the stack of each thread; in a signal handler, the calling thread's from the `interrupted` frame."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    if interrupted is not None:
        frames[threading.get_ident()] = interrupted
    return "\n".join(
        f"-- thread {names.get(ident, '?')} ({ident})\n{format_frame(frame)}" for ident, frame in frames.items()
    )


def format_tasks(tasks: Iterable[tuple[str, object]]) -> str:
    """Return where each task, given as name and coroutine, waits."""
    listed = list(tasks)
    parts = [
        f"-- task {name}\n{''.join(traceback.StackSummary.extract(_await_frames(coroutine)).format())}"
        for name, coroutine in listed[:TASKS_SHOWN]
    ]
    if len(listed) > TASKS_SHOWN:
        parts.append(f"-- and {len(listed) - TASKS_SHOWN} more tasks")
    return "\n".join(parts)


def _await_frames(waiting: object) -> Iterator[tuple[FrameType, int]]:
    """Follow what `waiting` awaits: coroutine, generator or async generator, each with its own attribute names."""
    while waiting is not None:
        for frame_name, next_name in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            if hasattr(waiting, frame_name):
                frame: FrameType | None = getattr(waiting, frame_name)
                waiting = getattr(waiting, next_name)
                break
        else:
            return
        if frame is not None:
            yield frame, frame.f_lineno

"""Ctrl-C and SIGTERM of a command that runs without an event loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["status_of", "terminated_as_interrupted"]


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a command that was ended by a signal."""
    return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end it in order, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

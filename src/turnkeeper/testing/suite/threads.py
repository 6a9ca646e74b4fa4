"""Several threads at once, and the first thing that went wrong in one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["PATIENCE_SECONDS", "in_threads"]

PATIENCE_SECONDS: Final = 60.0
"""Longest wait for anybody, on the busiest of machines."""


def in_threads(*functions: Callable[[], object]) -> None:
    """Call each function in a thread of its own, all at once, and raise the first error of one of them."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        try:
            together.wait(PATIENCE_SECONDS)
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a call to the store hangs"

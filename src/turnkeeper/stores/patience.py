"""How long a store behind a network is tried again: a few times, at growing and random distances, and then no more."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

__all__ = ["ATTEMPTS", "patiently", "waits"]

T = TypeVar("T")

ATTEMPTS: Final = 8
"""With the waits between them, about three seconds: as long as a server takes to restart."""

_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0


def waits(attempts: int = ATTEMPTS) -> Iterator[float]:
    """Yield the seconds between `attempts` attempts: each about twice the one before.

    They are random, so that the clients of a server that comes back don't all come back at once.
    """
    longest = _FIRST_WAIT
    for _ in range(attempts - 1):
        yield random.uniform(longest / 2, longest)
        longest = min(2 * longest, _LONGEST_WAIT)


def patiently(
    attempt: Callable[[], T],
    *,
    again: Callable[[Exception], bool],
    attempts: int = ATTEMPTS,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Return what `attempt()` returns. While it raises what `again` says may pass, try again; raise the last error.

    Blocking: for the store's own threads.
    """
    for wait in waits(attempts):
        try:
            return attempt()
        except Exception as error:
            if not again(error):
                raise
        sleep(wait)
    return attempt()

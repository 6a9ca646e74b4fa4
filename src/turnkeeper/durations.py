"""Durations as they are given: seconds, or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from turnkeeper.errors import InvalidArgumentError

__all__ = ["Duration", "seconds"]

Duration = float | timedelta
"""Seconds, or a `timedelta`."""

_LONGEST: Final = 1_000_000_000
"""Thirty years in seconds: added to a time, it fits every store's integers."""


def seconds(name: str, value: object) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidArgumentError: it is none.
    """
    duration = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(duration, (int, float)) or isinstance(duration, bool) or not 0 <= duration <= _LONGEST:
        raise InvalidArgumentError(f"{name} must be a duration from 0 to {_LONGEST} s: seconds or a timedelta")
    return float(duration)

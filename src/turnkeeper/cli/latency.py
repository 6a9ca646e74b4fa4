"""Latencies as a sketch: percentiles to one percent, in memory that does not grow with the number of samples."""

from __future__ import annotations

from typing import Final

from ddsketch import LogCollapsingLowestDenseDDSketch

__all__ = ["Latencies", "format_seconds"]

_ACCURACY: Final = 0.01
_BINS: Final = 2048
"""Enough for 1 µs to 10^11 s at this accuracy; more would collapse into the lowest bin."""

_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Latencies:
    """Durations in seconds, added one at a time.

    Attributes:
        count: how many were added.
        longest: the longest of them, exactly.
    """

    __slots__ = ("_sketch", "count", "longest")

    def __init__(self) -> None:
        self._sketch = LogCollapsingLowestDenseDDSketch(relative_accuracy=_ACCURACY, bin_limit=_BINS)
        self.count: int = 0
        self.longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Take one duration."""
        self._sketch.add(seconds)
        self.count += 1
        if seconds > self.longest:
            self.longest = seconds

    def percentile(self, percent: float) -> float:
        """Return the duration that `percent` (0 to 100) of all don't exceed, within 1 %; 0.0 when there is none."""
        value = self._sketch.get_quantile_value(percent / 100)
        return 0.0 if value is None else min(float(value), self.longest)

    def __str__(self) -> str:
        if not self.count:
            return "none"
        shown = [f"p{percent:g} {format_seconds(self.percentile(percent))}" for percent in _PERCENTILES]
        return "  ".join([*shown, f"max {format_seconds(self.longest)}"])


def format_seconds(seconds: float) -> str:
    """Write a duration with three digits and a fitting unit."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"

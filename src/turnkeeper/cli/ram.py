"""How much memory this process took at its peak."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import resource
except ImportError:  # a platform without getrusage
    resource = None  # type: ignore[assignment]

__all__ = ["peak_ram"]


def peak_ram() -> int | None:
    """Return the largest resident size so far, in bytes; None where the platform doesn't tell."""
    # Linux hands ru_maxrss on from the process that started this one, even over exec: its own number is in /proc.
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, kilobytes elsewhere

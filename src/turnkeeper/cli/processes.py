"""Starting this package in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["child_command", "child_environment"]


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules with the same Python."""
    # -P: a file in the working directory must not pass for one of the standard library's.
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment(**more: str) -> Mapping[str, str]:
    """Return this process's environment, with pipes that carry UTF-8 and nothing held back in them."""
    return {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONUNBUFFERED": "1", **more}

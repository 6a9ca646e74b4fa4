"""How long `import turnkeeper` takes in a fresh interpreter, beside the libraries that it can't do without.

Bytecode is compiled beforehand, into a directory of this run's own, as it is in any installed package.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from typing import Final

import measure
from measure import Result, Target

__all__ = ["LIMIT", "median", "run"]

NEEDED: Final = "anyio, msgspec, sqlite3"
OURS: Final = "turnkeeper"

LIMIT: Final = 150.0
"""Milliseconds."""


def run(*, rounds: int) -> list[Result]:
    """Measure wall time."""
    imported = {NEEDED: "anyio, anyio.from_thread, msgspec, sqlite3", OURS: "turnkeeper"}
    with tempfile.TemporaryDirectory() as bytecode:
        subjects = {name: partial(_seconds, names, bytecode) for name, names in imported.items()}
        for compile_once in subjects.values():
            compile_once()
        samples = measure.interleaved(subjects, max(rounds, 5))
    in_ms = {name: [seconds * 1e3 for seconds in values] for name, values in samples.items()}
    return [Result("imports", "import", "", "ms wall", in_ms, NEEDED, (Target(OURS, None, LIMIT),))]


def median() -> float:
    """Return milliseconds of `import turnkeeper`, the median of five."""
    return statistics.median(run(rounds=5)[0].samples[OURS])


def _seconds(names: str, bytecode: str) -> float:
    code = f"import time; start = time.perf_counter(); import {names}; print(time.perf_counter() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)

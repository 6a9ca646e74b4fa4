"""Promises that need several processes: what a kill leaves, who owns a file, how many can share one.

`remote` is a runtime in another process, driven step by step from the test; `crowd` is the script of a process that
works on its own.
"""

import sys
from pathlib import Path

# The kill benchmark is a script outside the tests; its function runs here with fewer rounds.
_BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if _BENCHMARKS not in sys.path:
    sys.path.append(_BENCHMARKS)

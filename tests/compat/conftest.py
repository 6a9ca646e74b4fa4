"""Scripts in processes of their own, where the end of the interpreter and forks can be looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., str]

PRELUDE = """
import gc, os, sys, threading, time
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.zerda import *
from turnkeeper.compat.zerda import ConversationBufferMemory as Buffer, ConversationBufferWindowMemory as Window

def texts(memory):
    return [exchange["input"] for exchange in memory.chat_memory]

def child(work):
    \"\"\"Run work() in a forked child, and return what it printed there; raise unless it ended well.\"\"\"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(writing, 1)
        work()
        sys.exit()
    os.close(writing)
    with os.fdopen(reading) as output:
        printed = output.read()
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
    return printed.strip()
"""


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Return what runs a script in the temporary folder, expects it to end well and quietly, and returns its output."""

    def run(source: str, *, expect: int = 0, quiet: bool = True, seconds: float = 60) -> str:
        script = tmp_path / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(source), encoding="utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE"))
        }
        # From Python 3.12 on, forking with threads warns; that it works all the same is what is tested.
        warnings = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
        ran = subprocess.run(
            [sys.executable, *warnings, str(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert ran.returncode == expect, ran.stdout + ran.stderr
        assert not quiet or not ran.stderr, ran.stderr
        return ran.stdout.strip() if quiet else ran.stderr

    return run

"""Virtual environments for subjects whose packages are not ours: made once, kept, one for each set of packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

from turnkeeper.bench.subjects import Description
from turnkeeper.errors import TurnkeeperError

__all__ = ["EnvironmentFailedError", "python_for"]

_READY = "ready"


class EnvironmentFailedError(TurnkeeperError):
    """A subject's packages could not be installed; the run of the others goes on."""


def default_home() -> Path:
    """Return where the environments are kept: beside other caches of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnkeeper" / "bench"


def python_for(adapter: Description, home: Path | None = None) -> str:
    """Return the Python that a subject runs on; makes its environment when there is none yet.

    Raises:
        EnvironmentFailedError: the packages can't be installed.
    """
    if not adapter.packages:
        return sys.executable
    ours = _ourselves()
    wanted = "\n".join([sys.version, *ours, *sorted(adapter.packages)])
    place = (home or default_home()) / f"{adapter.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / _READY).exists():
        venv.create(place, with_pip=True, clear=True)
        _install(python, *ours, "trio", "uvloop; sys_platform != 'win32'", *adapter.packages)
        (place / _READY).write_text(wanted, encoding="utf-8")
    return str(python)


def _ourselves() -> tuple[str, ...]:
    """Return what pip is to install to get this very package: the checkout that it runs from, or its version."""
    root = Path(__file__).parents[3]
    if (root / "pyproject.toml").exists():
        return "--editable", f"{root}[cli]"
    return (f"turnkeeper[cli]=={version('turnkeeper')}",)


def _install(python: Path, *requirements: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EnvironmentFailedError(f"pip could not install {', '.join(requirements)}: {last}")

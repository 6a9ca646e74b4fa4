"""The command line: `turnkeeper demo`, `replay`, `inspect`, `doctor`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say which extra is missing and exit with 2."""
    try:
        from turnkeeper.cli.commands import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "ddsketch"):
            raise
        sys.stderr.write(f"turnkeeper's command line needs {error.name}: pip install 'turnkeeper[cli]'\n")
        sys.exit(2)
    cli()

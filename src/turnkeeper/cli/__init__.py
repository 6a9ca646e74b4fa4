"""The command line: `turnkeeper demo`, `replay`, `import`, `export`, `inspect`, `doctor`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say which extra is missing and exit with 2."""
    try:
        from turnkeeper.cli.commands import cli
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("click", "rich", "ddsketch"):
            raise
        sys.stderr.write(f"turnkeeper's command line needs {missing}: pip install 'turnkeeper[cli]'\n")
        sys.exit(2)
    except KeyboardInterrupt:  # while loading, before there is a command that could say more
        sys.exit(130)
    cli(prog_name="turnkeeper")  # also when it is run as `python -m turnkeeper`

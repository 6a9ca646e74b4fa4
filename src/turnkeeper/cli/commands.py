"""The `turnkeeper` command: its subcommands, and one place where every error becomes a line and an exit status."""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import click

import turnkeeper
from turnkeeper.cli.bench import bench
from turnkeeper.cli.copying import copy
from turnkeeper.cli.demo import demo
from turnkeeper.cli.doctor import doctor
from turnkeeper.cli.exporting import export
from turnkeeper.cli.importing import import_
from turnkeeper.cli.inspect import inspect
from turnkeeper.cli.replay import replay
from turnkeeper.cli.replay_check import replay_check
from turnkeeper.cli.rotating import rotate
from turnkeeper.cli.terminal import Stop, clean, complain, tolerate_any_encoding, without_passwords
from turnkeeper.errors import TurnkeeperError

__all__ = ["cli"]

_INTERRUPTED: Final = 130
_INTERNAL: Final = 70


class _Commands(click.Group):
    """A group whose commands end with one line on stderr, never with a traceback that shows values."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        tolerate_any_encoding()
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # What was typed comes back in these, and a URL in the wrong place may hold a password.
            raise click.UsageError(without_passwords(clean(error.format_message())), error.ctx) from None
        except click.ClickException:
            raise
        except Stop as stop:
            if stop.message:
                complain(stop.message)
            ctx.exit(stop.status)
        except TurnkeeperError as error:
            complain(str(error))
            ctx.exit(2)
        except KeyboardInterrupt:
            complain("interrupted")
            ctx.exit(_INTERRUPTED)
        except (click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader left, as `head` does: click ends quietly
            complain(f"{error.strerror or type(error).__name__}: {error.filename or 'no file'}")
            ctx.exit(2)
        except Exception as error:
            _report_internal(error)
            ctx.exit(_INTERNAL)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(turnkeeper.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Memory for agents: conversations as actors, durable and race-free.

    Exit status: 0 done; 1 what was looked at is not as it should be; 2 it can't be done as asked; 130 interrupted.
    """


for _command in (bench, copy, demo, doctor, export, import_, inspect, replay, replay_check, rotate):
    cli.add_command(_command)


def _report_internal(error: BaseException) -> None:
    """Say where a bug struck: places in the code only, since an exception's text may hold what somebody wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    where = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-5:])
    complain(f"internal error, please report it: {type(error).__name__} at {where} (Python {sys.version.split()[0]})")

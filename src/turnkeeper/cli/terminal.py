"""What reaches the user's screen: cleaned of terminal controls, plain when piped, and the errors that end a command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = [
    "Stop",
    "clean",
    "clean_line",
    "complain",
    "is_terminal",
    "say",
    "say_block",
    "say_table",
    "spinning",
    "tolerate_any_encoding",
    "without_passwords",
]

# A control string's body ends at the first control character, so that no text is scanned twice.
_SEQUENCES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*+(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*+[0-~]"  # all others
)
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb]"  # bidirectional and annotation controls
)
_SEPARATORS: Final = re.compile("[\u2028\u2029]")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_PASSWORD: Final = re.compile(r"(:/{1,2})[^/\s]*@")  # one slash: what pathlib makes of a URL


class Stop(Exception):  # noqa: N818 (it ends a command, which need not be an error)
    """Ends a command with one line on stderr and an exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def clean(text: str) -> str:
    """Strip escape sequences, control characters and bidirectional controls; line feeds and tabs stay.

    Lone surrogates, which no terminal can be sent, become U+FFFD.
    """
    text = _CONTROLS.sub("", _SEQUENCES.sub("", text))
    return _SURROGATES.sub("\ufffd", _SEPARATORS.sub("\n", text))


def clean_line(text: str) -> str:
    """Clean a text that has to stay on one line."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def without_passwords(text: str) -> str:
    """Hide what stands before the host of any URL in a text."""
    return _PASSWORD.sub(r"\1***@", text)


def tolerate_any_encoding() -> None:
    """Let characters that stdout and stderr can't show be written as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_terminal(stream: TextIO) -> bool:
    """Tell whether somebody looks at the stream."""
    return stream.isatty()


def say(line: str = "", *, style: str = "") -> None:
    """Write a line to stdout; styled only on a terminal."""
    if is_terminal(sys.stdout):
        _console(sys.stdout).print(Text(clean(line), style=style))
    else:
        click.echo(clean(line))


def say_block(text: str, *, indent: int = 4, style: str = "") -> None:
    """Write a text of many lines to stdout, every one of them indented, so that none can pass for ours."""
    text = clean(text)
    if is_terminal(sys.stdout):
        _console(sys.stdout).print(Padding(Text(text, style=style), (0, 0, 0, indent)))
    else:
        click.echo("\n".join(" " * indent + line for line in text.split("\n")))


def say_table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), styles: Sequence[str] = ()) -> None:
    """Write rows to stdout: aligned on a terminal, separated by tabs when piped, so that no cell is ever cut.

    Args:
        rows: the cells of each.
        header: titles of the columns, if they have any.
        styles: one for each row, or none at all.
    """
    if not is_terminal(sys.stdout):
        for row in (header, *rows) if header else rows:
            click.echo("\t".join(clean_line(cell) for cell in row))
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    if header:
        table.add_row(*header, style="bold")
    for number, row in enumerate(rows):
        table.add_row(*[Text(clean_line(cell)) for cell in row], style=styles[number] if styles else None)
    for column in table.columns:
        column.overflow = "fold"
    _console(sys.stdout).print(table)


def complain(message: str) -> None:
    """Write one line to stderr, without passwords."""
    click.echo(f"turnkeeper: {without_passwords(clean_line(message))}", err=True)


@contextmanager
def spinning(what: str) -> Iterator[None]:
    """Show on stderr that something goes on, when that is a terminal."""
    if not is_terminal(sys.stderr):
        yield
        return
    with _console(sys.stderr).status(clean_line(what)):
        yield


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, markup=False, emoji=False)

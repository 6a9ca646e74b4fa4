"""How far a long command is, shown on stderr when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from turnkeeper.cli.terminal import complain, is_terminal

__all__ = ["CountMeter", "Meter", "count_meter", "meter"]


class Meter(NamedTuple):
    """How far it is: `advance` by bytes of input and the conversations there; `complain` without spoiling the view."""

    advance: Callable[[int, int], None] = lambda _, __: None
    complain: Callable[[str], None] = complain


@contextmanager
def meter(path: Path) -> Iterator[Meter]:
    """Show how much of a file was read."""
    if not is_terminal(sys.stderr):
        yield Meter()
        return
    known = path.is_file() and path.suffix != ".gz"
    columns = (TextColumn("importing"), BarColumn(), TextColumn("{task.fields[there]} conversations"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=path.stat().st_size if known else None, there=0)
        yield Meter(lambda size, there: progress.update(task, advance=size, there=there), _aside(progress))


class Counted(Protocol):
    """What is shown of a command whose end nobody knows."""

    memories: int
    entries: int


class CountMeter:
    """How many there are so far: `show` it, and `complain` without spoiling the view."""

    def __init__(self, counts: Counted) -> None:
        self.counts: Counted = counts

    def show(self) -> None:
        """Show the counts as they are now."""

    def complain(self, message: str) -> None:
        """Write one line."""
        complain(message)


class _Shown(CountMeter):
    def __init__(self, counts: Counted, progress: Progress, doing: str) -> None:
        super().__init__(counts)
        self._progress = progress
        self._task = progress.add_task(doing, total=None, memories=counts.memories, entries=counts.entries)

    def show(self) -> None:
        self._progress.update(self._task, memories=self.counts.memories, entries=self.counts.entries)

    def complain(self, message: str) -> None:
        _aside(self._progress)(message)


@contextmanager
def count_meter(doing: str, counts: Counted) -> Iterator[CountMeter]:
    """Show counts of which nobody knows how far they go."""
    if not is_terminal(sys.stderr):
        yield CountMeter(counts)
        return
    text = TextColumn("{task.description}: {task.fields[memories]} memories, {task.fields[entries]} entries")
    columns = (SpinnerColumn(), text, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Shown(counts, progress, doing)


def _aside(progress: Progress) -> Callable[[str], None]:
    def aside(message: str) -> None:
        progress.stop()
        complain(message)
        progress.start()

    return aside

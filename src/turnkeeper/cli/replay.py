"""`turnkeeper replay`: play recorded conversations into a store as live ones, then prove that all of it is there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnkeeper.cli.comparing import DifferenceError
from turnkeeper.cli.copies import Survey, refuse_existing, replayable_store, survey
from turnkeeper.cli.live import LiveReplay
from turnkeeper.cli.loops import BACKENDS, require_backend, run_on, watch_signals
from turnkeeper.cli.ram import peak_ram
from turnkeeper.cli.replay_check import check_in_fresh_process
from turnkeeper.cli.terminal import Stop, is_terminal, say, say_table, spinning
from turnkeeper.errors import TurnkeeperError
from turnkeeper.names import memory_name
from turnkeeper.opening import open_runtime

__all__ = ["replay"]

DEFAULT_STORE: Final = "sqlite:///turnkeeper-replay.db"
"""A file of its own in the working directory: nobody's conversations are mixed with a replay by leaving out --store,
and what was written can be looked at afterwards."""

DEFAULT_CLIENTS: Final = 100
"""As many conversations as a busy agent server has under way; groups are large enough to see them commit together."""


@click.command(epilog="Exit status: 0 all there; 1 a difference was found; 2 not done as asked; 130 interrupted.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--store", default=DEFAULT_STORE, show_default=True, help="URL of the store to write to.")
@click.option("--namespace", default="", help="Namespace to write to; the unnamed one by default.")
@click.option(
    "--clients",
    default=DEFAULT_CLIENTS,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Conversations live at the same time.",
)
@click.option("--backend", default="asyncio", show_default=True, type=click.Choice(BACKENDS), help="Event loop.")
@click.option(
    "--copies",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Replay each conversation N times.",
)
@click.option("--replace", is_flag=True, help="Delete conversations of the same ids first, each when its turn comes.")
def replay(
    files: tuple[Path, ...], store: str, namespace: str, clients: int, backend: str, copies: int, replace: bool
) -> None:
    """Replay transcripts as live conversations, then check every stored log.

    FILES are JSON Lines (also .gz), one conversation a line: {"id": …, "messages": […]} or a bare list of messages;
    or one JSON array of them. --clients conversations are live at the same time and written message by message,
    while readers look at them. With --copies each is replayed N times: under its id, and with #1, #2, … behind it.

    When the runtime is closed, a new process with a connection of its own compares every stored log, not a view of
    it, with the input.
    """
    require_backend(backend)
    memory_name("any", namespace)
    described = replayable_store(store, read_only=True).describe()
    with spinning("reading the input"):
        wanted = survey(files, copies)
        if not replace:
            refuse_existing(store, namespace, wanted)
    _Replay(files, store, namespace, wanted, clients=clients, replace=replace).run(backend, described)


class _Replay:
    """One replay, from the open store to the report."""

    def __init__(
        self, files: Sequence[Path], store: str, namespace: str, wanted: Survey, *, clients: int, replace: bool
    ) -> None:
        self._files = files
        self._store = store
        self._namespace = namespace
        self._wanted = wanted
        self._clients = min(clients, wanted.conversations)
        self._replace = replace
        self._signal: int | None = None
        # Those that have ended are not needed any more: what is in RAM does not grow with the input.
        self._runtime = open_runtime(store, max_resident=2 * self._clients + 16)
        self._live: LiveReplay | None = None

    def run(self, backend: str, described: str) -> None:
        """Play, report, check.

        Raises:
            Stop: with the status to exit with, unless all went well.
        """
        try:
            run_on(backend, self._play)
        except KeyboardInterrupt:
            self._signal = signal.SIGINT
        except DifferenceError as error:
            raise Stop(f"while the conversations were live: {error.difference}", status=1) from None
        except TurnkeeperError as error:
            raise Stop(f"{error}; {self._so_far()}") from None
        if self._signal is not None:
            raise Stop(f"interrupted; {self._so_far()}", status=128 + self._signal)
        self._report(backend, described)
        try:
            with spinning("a new process checks what was stored"):
                line = check_in_fresh_process(
                    self._files, self._store, namespace=self._namespace, copies=self._wanted.copies
                )
        except KeyboardInterrupt:
            raise Stop(f"interrupted while checking; {self._so_far()}", status=128 + signal.SIGINT) from None
        say(line, style="green")

    async def _play(self) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as watching:
                await watching.start(watch_signals, self._heard, scope)
                async with self._runtime:
                    with _progress(self._wanted.messages) as advance:
                        self._live = LiveReplay(
                            self._runtime,
                            namespace=self._namespace,
                            clients=self._clients,
                            replace=self._replace,
                            on_progress=advance,
                        )
                        await self._live.run(self._files, self._wanted.copies)
                watching.cancel_scope.cancel()

    def _heard(self, number: signal.Signals) -> None:
        self._signal = number

    def _so_far(self) -> str:
        live = self._live
        if live is None:
            return "nothing was written"
        return (
            f"what was stored is whole: {live.acknowledged} of {self._wanted.messages} messages acknowledged, "
            f"{live.finished} of {self._wanted.conversations} conversations complete"
        )

    def _report(self, backend: str, described: str) -> None:
        live, stats = self._live, self._runtime.stats()
        assert live is not None
        rate = live.acknowledged / live.seconds if live.seconds else 0.0
        mean = stats.commits / stats.commit_groups if stats.commit_groups else 0.0
        ram = peak_ram()
        rows = [
            ("store", described),
            ("conversations", f"{live.finished}, {self._clients} at a time on {backend}"),
            ("messages", f"{live.acknowledged} in {live.seconds:.2f} s"),
            ("throughput", f"{rate:.0f} messages/s"),
            ("add", str(live.adds)),
            ("read", f"{live.reads}  ({live.reads.count} reads beside the writers)"),
            ("group size", f"mean {mean:.1f}, peak {stats.peak_commit_group} (slices in one transaction)"),
            ("peak RAM", "not known here" if ram is None else f"{ram / 2**20:.0f} MiB"),
        ]
        if self._replace:
            rows.insert(2, ("replaced", f"{live.deleted} conversations were there before"))
        say_table(rows)


@contextmanager
def _progress(messages: int) -> Iterator[Callable[[], None]]:
    """Show on stderr how far it is, when that is a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda: None
        return
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TextColumn("messages"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=messages)
        yield lambda: progress.advance(task)

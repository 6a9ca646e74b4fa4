"""`turnkeeper import`: put conversations into a store, each whole or not at all, and read them back.

What is in the store decides what is left to do, not a note of how far it was: so any interrupted import is gone on with
by running it again, on any machine, however long after.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import anyio
import click
from anyio import to_thread

from turnkeeper.cli.export_reading import Exported
from turnkeeper.cli.import_sources import FORMATS, Item, Source
from turnkeeper.cli.import_writing import Writer
from turnkeeper.cli.loops import run_on, watch_signals
from turnkeeper.cli.meter import Meter, meter
from turnkeeper.cli.terminal import Stop, complain, say, say_table
from turnkeeper.cli.transcripts import Transcript, TranscriptError
from turnkeeper.errors import TurnkeeperError
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.opening import open_runtime
from turnkeeper.stores import InMemoryStore, Store, store_from_url

__all__ = ["import_"]

_AT_ONCE: Final = 32
"""Conversations under way: so many share one sync of the disk, and only they are in RAM."""


@click.command(
    "import",
    epilog="Exit status: 0 all is there; 1 something is not; 2 it can't be done as asked; 130 or 143 interrupted.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("url", metavar="STORE_URL")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    help="Of messages; openai by default. An export of ours is recognised.",
)
@click.option(
    "--namespace", help="Namespace to write to; by default the unnamed one, and of an export those that it names."
)
@click.option("--id-field", default="id", show_default=True, metavar="NAME", help="The field with a conversation's id.")
@click.option("--id", "memory_id", metavar="ID", help="FILE is one conversation, an array of messages: store it as ID.")
@click.option("--append", is_flag=True, help="Add to conversations that exist with other messages.")
@click.option("--strict", is_flag=True, help="Stop at the first conversation that can't be imported.")
def import_(
    file: Path,
    url: str,
    format_name: str | None,
    namespace: str | None,
    id_field: str,
    memory_id: str | None,
    append: bool,
    strict: bool,
) -> None:
    """Import conversations into a store, and compare what is stored with the input.

    FILE is JSON Lines (also .gz; - reads standard input), one conversation a line: {"id": …, "messages": […]}. Each is
    stored whole or not at all. One that is there already, also with more behind it, is left alone, so the same command
    goes on where an interrupted one ended. One that is there with other messages is refused. With --append, what is
    missing of it is added, or else all of it behind what is there, once.

    An export of turnkeeper, which its first line says it is, is restored entry for entry, with history and metadata.
    Nothing is mixed: a memory that is there must have the first entries of the exported one, or it is refused.

    --format says what the messages are: "openai" is OpenAI's chat form; "langchain4j" is the array that LangChain4j's
    ChatMessageSerializer writes, or its text as a string.
    """
    memory_name("any" if memory_id is None else memory_id, namespace or "")
    if isinstance(store_from_url(url), InMemoryStore):
        raise Stop("a store in memory is gone with this process: name a file, such as sqlite:///chats.db")
    path = Path("/dev/stdin") if str(file) == "-" else file
    given = {"--format": format_name, "--id": memory_id, "--append": append}
    source = Source(path, FORMATS[format_name or "openai"], id_field, memory_id)
    source.only_transcripts = next((option for option, value in given.items() if value), None)
    _Import(source, url, namespace, append=append, strict=strict).run()


class _Import:
    """One import, from the open store to the report."""

    def __init__(self, source: Source, url: str, namespace: str | None, *, append: bool, strict: bool) -> None:
        self._source = source
        self._strict = strict
        self._signal: int | None = None
        self._meter = Meter()
        # Made here, so that what is wrong with the URL is said before anything happens.
        self._runtime = open_runtime(url, max_resident=2 * _AT_ONCE + 16)
        self._reader: Store = store_from_url(url, read_only=True)
        self._writer = Writer(self._runtime, self._reader, namespace, append=append)
        self._counts = self._writer.counts

    def run(self) -> None:
        """Import, report.

        Raises:
            Stop: with the status to exit with, unless all is there.
        """
        started = perf_counter()
        try:
            run_on("asyncio", self._run)
        except KeyboardInterrupt:
            self._signal = signal.SIGINT
        except Stop as stop:
            raise Stop(f"{stop.message}; {self._so_far()}", stop.status) from None
        except TurnkeeperError as error:
            raise Stop(f"{error}; {self._so_far()}") from None
        if self._signal is not None:
            self._end_interrupted(self._signal)
        self._report(perf_counter() - started)

    def _end_interrupted(self, number: int) -> None:
        stop = Stop(f"interrupted; {self._so_far()}", status=128 + number)
        if not self._source.path.is_file():
            # A thread still waits for input that may never come, and the interpreter would wait for the thread.
            complain(stop.message)
            sys.stderr.flush()
            os._exit(stop.status)
        raise stop

    async def _run(self) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as watching:
                await watching.start(watch_signals, self._heard, scope)
                async with self._runtime:
                    try:
                        open_reader = partial(self._reader.open, durability="full")
                        await to_thread.run_sync(open_reader)
                        with meter(self._source.path) as self._meter:
                            await self._import()
                    finally:
                        self._reader.close()
                watching.cancel_scope.cancel()

    def _heard(self, number: signal.Signals) -> None:
        self._signal = number

    async def _import(self) -> None:
        """Read, with some conversations under way; those of one id one after the other, in the order of the lines."""
        items = self._source.items()
        slots = anyio.Semaphore(_AT_ONCE)
        under_way: dict[MemoryName, anyio.Event] = {}

        async def store(item: Item, found: Transcript | Exported, name: MemoryName) -> None:
            reason = await self._writer.write(found)
            self._end(item, reason and f"conversation {name.id!r} {reason}")
            under_way.pop(name).set()
            slots.release()

        unreadable: TranscriptError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    try:
                        item = await to_thread.run_sync(next, items, None, abandon_on_cancel=True)
                    except TranscriptError as error:
                        unreadable = error  # those under way come to their end
                        break
                    if item is None:
                        break
                    found, name = item.found, self._name_of(item.found)
                    with ExitStack() as unused:
                        if isinstance(found, Exported):
                            unused.callback(found.close)
                        if isinstance(found, str) or isinstance(name, str):
                            self._end(item, str(name))
                            continue
                        await slots.acquire()
                        if (earlier := under_way.get(name)) is not None:
                            await earlier.wait()
                        under_way[name] = anyio.Event()
                        tasks.start_soon(store, item, found, name)
                        unused.pop_all()
        finally:
            with suppress(ValueError):  # where a thread still waits for input, it can't be closed
                items.close()
        if unreadable is not None:
            raise unreadable

    def _name_of(self, found: Transcript | Exported | str) -> MemoryName | str:
        """Return the name of the memory that something is for, or why there is none."""
        if isinstance(found, str):
            return found
        try:
            return self._writer.name_of(found)
        except ValueError as error:
            return str(error)

    def _end(self, item: Item, reason: str | None) -> None:
        if reason is not None:
            self._counts.failed += 1
            if self._strict:
                raise Stop(f"{item.place}: {reason}", status=1)
            self._meter.complain(f"{item.place}: {reason}")
        self._meter.advance(item.size, self._counts.there)

    def _so_far(self) -> str:
        counts = self._counts
        return (
            f"what was stored is whole: {counts.there} conversations are there, {counts.messages} messages were "
            "written; the same command goes on from here"
        )

    def _report(self, seconds: float) -> None:
        counts = self._counts
        total = counts.there + counts.failed
        if not total and not self._source.exported:
            raise Stop(f"no conversation in {self._source.path}")
        rows = [
            ("store", self._reader.describe()),
            ("imported", f"{counts.created} conversations"),
            ("extended", f"{counts.extended} conversations"),
            ("already there", f"{counts.present} conversations"),
            ("not imported", f"{counts.failed} conversations"),
            ("messages", f"{counts.messages} in {seconds:.2f} s"),
        ]
        if self._source.ignored:
            rows.append(("ignored fields", ", ".join(sorted(self._source.ignored))))
        say_table(rows)
        if counts.failed:
            raise Stop(f"{counts.failed} of {total} conversations were not imported", status=1)
        say(f"checked: {counts.there} conversations, each read back and equal to its input", style="green")

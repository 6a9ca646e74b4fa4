"""`turnkeeper export`: write memories to a file, beside a running server; whole, provable, and gone on with when cut.

A memory is written as it stood at one instant; different memories may be of different instants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click

from turnkeeper.cli.export_file import Progress, Sink, StandardOutput, Target
from turnkeeper.cli.export_format import ABANDONED, encode_header, ending_of, finale_line
from turnkeeper.cli.export_logs import (
    CONVERSATIONS,
    ChangedMeanwhileError,
    conversation_line,
    history_lines,
    state_lines,
)
from turnkeeper.cli.export_reading import read_memories
from turnkeeper.cli.interrupts import status_of, terminated_as_interrupted
from turnkeeper.cli.meter import CountMeter, count_meter
from turnkeeper.cli.terminal import Stop, complain, say, say_table, spinning
from turnkeeper.cli.walking import memories, store_to_look_at
from turnkeeper.errors import InvalidArgumentError, MemoryCorruptError, StoreError
from turnkeeper.names import memory_name
from turnkeeper.stores import Listed, Store

__all__ = ["export"]

_OURS: Final = "turnkeeper"

_ATTEMPTS: Final = 5
"""How often a memory is begun anew that is deleted or pruned while it is read."""


@click.command(
    epilog="Exit status: 0 all is in the file; 1 some memory is not; 2 it can't be done as asked; 130 or 143 "
    "interrupted."
)
@click.argument("url", metavar="STORE_URL")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--namespace", help="Only this one; all by default.")
@click.option("--prefix", default="", help="Only memories whose ids begin with it.")
@click.option(
    "--format",
    "format_name",
    default=_OURS,
    show_default=True,
    type=click.Choice([_OURS, *CONVERSATIONS]),
    help="Ours, which can be imported again with all history; or what is said now, in OpenAI's or LangChain4j's form.",
)
@click.option("--no-history", is_flag=True, help="Ours without the past: of each memory its present state alone.")
def export(url: str, file: Path, namespace: str | None, prefix: str, format_name: str, no_history: bool) -> None:
    """Export memories to FILE, also while a server uses the store.

    FILE is JSON Lines; - is standard output. It gets its name when it is whole and has been read back; until then it is
    FILE.part, and the same command goes on with it wherever it was interrupted.
    """
    if no_history and format_name != _OURS:
        raise click.UsageError(f"--no-history is for our own format: {format_name} holds no history anyway.")
    if namespace is not None or prefix:
        memory_name(prefix or "any", namespace or "")
    store = store_to_look_at(url)
    what = {
        "format": format_name,
        "history": format_name == _OURS and not no_history,
        "namespace": namespace,
        "prefix": prefix,
        "source": hashlib.sha256(store.describe().encode()).hexdigest()[:16],
    }
    try:
        store.open(durability="full")
        with terminated_as_interrupted():
            if str(file) == "-":
                _to_standard_output(store, what)
            else:
                _to_file(store, file, what)
    finally:
        store.close()


def _to_standard_output(store: Store, what: dict[str, Any]) -> None:
    complain("what goes to standard output can't be gone on with when it is interrupted: name a file for that")
    sink = StandardOutput()
    try:
        _Export(store, sink, what, CountMeter(sink.progress)).run()
        sink.finish()
    except KeyboardInterrupt as interrupt:
        raise Stop("interrupted; what was written ends early", status_of(interrupt)) from None
    progress = sink.progress
    complain(f"exported {progress.memories} memories, {sink.size} bytes, sha256 {sink.digest()}")
    _judge(progress)


def _to_file(store: Store, file: Path, what: dict[str, Any]) -> None:
    started = perf_counter()
    target = Target(file, what)
    try:
        if target.resumed:
            complain(
                f"going on with {target.part}: {target.progress.memories} memories of it are whole and as they were "
                "written"
            )
        try:
            with count_meter("exporting", target.progress) as meter:
                _Export(store, target, what, meter).run()
            target.seal()
            with spinning("reading the file back"):
                _verify(target, ours=what["format"] == _OURS)
        except KeyboardInterrupt as interrupt:
            target.save()
            raise Stop(f"interrupted; {_left(target)}", status_of(interrupt)) from None
        except OSError as error:
            with suppress(OSError):
                target.save()
            raise Stop(
                f"{error.strerror or type(error).__name__}: {error.filename or target.part}; {_left(target)}"
            ) from None
        except StoreError as error:
            target.save()
            raise Stop(f"{error}; {_left(target)}") from None
        target.rename()
    finally:
        target.close()
    _report(store, target, perf_counter() - started)


def _left(target: Target) -> str:
    return (
        f"{target.path} is not there; what is whole of it is in {target.part}, and the same command goes on from there"
    )


class _Export:
    """Writes memories to a sink, each whole or not at all."""

    def __init__(self, store: Store, sink: Sink, what: dict[str, Any], meter: CountMeter) -> None:
        self._store = store
        self._sink = sink
        self._what = what
        self._meter = meter
        self._ours: bool = what["format"] == _OURS

    def run(self) -> None:
        """Write what is not written yet.

        Raises:
            StoreError: the store can't be read any further.
            OSError: nothing can be written any more.
        """
        sink, what, progress = self._sink, self._what, self._sink.progress
        if self._ours and not sink.size:
            sink.write(encode_header({key: value for key, value in what.items() if key != "format"}))
            sink.settle()
        for listed in memories(self._store, namespace=what["namespace"], prefix=what["prefix"], after=progress.after):
            try:
                self._write(listed)
            except (MemoryCorruptError, InvalidArgumentError) as error:
                sink.take_back(ABANDONED)
                progress.failed += 1
                self._meter.complain(f"not exported: {self._reason(listed, error)}")
            progress.after = listed.name
            sink.settle()
            self._meter.show()
        if self._ours:
            sink.write(finale_line(progress.memories, progress.entries, sink.digest()))

    def _write(self, listed: Listed) -> None:
        sink, progress = self._sink, self._sink.progress
        for _ in range(_ATTEMPTS):
            written = False
            try:
                for line in self._lines(listed):
                    sink.write(line)
                    written = True
            except ChangedMeanwhileError:
                sink.take_back(ABANDONED)
                continue
            progress.memories += written
            progress.entries += self._entries if written else 0
            return
        raise StoreError(
            f"memory {listed.name.id!r} (namespace {listed.name.namespace!r}) is pruned faster than it can be read"
        )

    def _lines(self, listed: Listed) -> Iterator[bytes]:
        if not self._ours:
            self._entries = 1
            if line := conversation_line(self._store, listed, CONVERSATIONS[self._what["format"]]):
                yield line
            return
        lines = history_lines if self._what["history"] else state_lines
        last = b""
        for last in lines(self._store, listed):
            yield last
        ending = ending_of(last)
        self._entries = 0 if ending is None else ending.entries

    def _reason(self, listed: Listed, error: Exception) -> str:
        if isinstance(error, MemoryCorruptError):
            return f"{error}; 'turnkeeper inspect URL ID --raw' shows its entries"
        return f"memory {listed.name.id!r} (namespace {listed.name.namespace!r}): {error}"


def _verify(target: Target, *, ours: bool) -> None:
    """Read the file back: it must be what was written, and of our format every memory what its digest says."""
    digest = hashlib.sha256()

    def lines() -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(target.written(), 1):
            digest.update(line)
            yield number, line

    progress = target.progress
    if ours:
        found = Progress()
        for memory in read_memories(lines(), keep=False):
            found.memories += memory.problem is None
            found.entries += memory.count
        same = (found.memories, found.entries) == (progress.memories, progress.entries)
    else:
        same = sum(1 for _ in lines()) == progress.memories
    if not same or digest.hexdigest() != target.digest():
        raise Stop(f"{target.part} is not on the disk as it was written; it keeps this name: delete it, begin anew", 1)


def _report(store: Store, target: Target, seconds: float) -> None:
    progress = target.progress
    say_table(
        [
            ("store", store.describe()),
            ("file", str(target.path)),
            ("exported", f"{progress.memories} memories in {seconds:.2f} s"),
            ("entries", str(progress.entries)),
            ("not exported", f"{progress.failed} memories"),
            ("size", f"{target.size} bytes"),
            ("sha256", target.digest()),
        ]
    )
    _judge(progress)
    say("checked: the file was read back, and is what was written", style="green")


def _judge(progress: Progress) -> None:
    if progress.failed:
        raise Stop(f"{progress.failed} of {progress.failed + progress.memories} memories were not exported", status=1)

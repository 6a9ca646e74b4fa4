"""`turnkeeper replay-check`: compare stored logs with the transcripts they came from, in a process of its own.

Not in the list of commands: `turnkeeper replay` runs it when it has closed its runtime.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from turnkeeper.cli.comparing import Difference, first_difference
from turnkeeper.cli.copies import copied, replayable_store
from turnkeeper.cli.processes import child_command, child_environment
from turnkeeper.cli.terminal import Stop, complain, say
from turnkeeper.cli.transcripts import Transcript, read_transcripts
from turnkeeper.log import ADD, StoredEntry
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.stores import LoadQuery, Store
from turnkeeper.wire import decode, encode

__all__ = ["check_in_fresh_process", "replay_check"]

_PAGE: Final = 256
_STORE_VARIABLE: Final = "TURNKEEPER_REPLAY_CHECK_STORE"


@click.command("replay-check", hidden=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--store", required=True, envvar=_STORE_VARIABLE, help="URL of the store.")
@click.option("--namespace", default="", help="Where the conversations are.")
@click.option("--copies", default=1, type=click.IntRange(min=1), help="How often each was replayed.")
def replay_check(files: tuple[Path, ...], store: str, namespace: str, copies: int) -> None:
    """Compare every stored log with its input. Exit status 1 when one differs."""
    name = memory_name("any", namespace)
    opened = replayable_store(store, read_only=True)
    conversations = messages = different = 0
    first: Difference | None = None
    try:
        opened.open(durability="full")
        for transcript in read_transcripts(files):
            for one in copied(transcript, copies):
                conversations += 1
                messages += len(one.messages)
                if (found := _compare(opened, name._replace(id=one.id), one)) is not None:
                    different += 1
                    first = first or found
    finally:
        opened.close()
    if first is not None:
        raise Stop(f"{different} of {conversations} stored logs differ from the input; the first: {first}", status=1)
    say(f"checked by process {os.getpid()}: {conversations} logs with {messages} messages, each equal to its input")


def check_in_fresh_process(paths: Sequence[Path], store: str, *, namespace: str, copies: int) -> str:
    """Run the command in a new process, with a connection of its own, and return the line in which it agrees.

    Raises:
        Stop: a log differs (status 1), or the check could not be made (status 2).
    """
    command = child_command("turnkeeper", "replay-check", f"--namespace={namespace}", f"--copies={copies}", "--")
    # The URL travels in the environment, which other users can't list as they can a command line.
    done = subprocess.run(
        [*command, *map(os.path.abspath, paths)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=child_environment(**{_STORE_VARIABLE: store}),
        check=False,
    )
    complaint = done.stderr.strip().removeprefix("turnkeeper: ")
    if done.returncode == 0:
        if complaint:
            complain(complaint)
        return done.stdout.strip()
    if done.returncode == 1 and complaint:
        raise Stop(complaint, status=1)
    raise Stop(f"what was stored could not be checked: {complaint or f'the checking process gave {done.returncode}'}")


def _compare(store: Store, name: MemoryName, transcript: Transcript) -> Difference | None:
    return first_difference(transcript.id, transcript.messages, _logged(store, name))


def _logged(store: Store, name: MemoryName) -> Iterator[bytes | None]:
    """Yield every message in a memory's log, whether a view would show it or not; None for what can't be read."""
    head = store.load([LoadQuery(name)])[0].head
    if head is None:
        return
    version = 0
    while page := store.entries(head.mid, after=version, limit=_PAGE):
        for entry in page:
            version += 1
            # A gap, or an entry of a kind that no replay writes, is as wrong as one that can't be decoded.
            yield from _messages(entry) if (entry.version, entry.op) == (version, ADD) else [None]
    if version != head.version:
        yield None


def _messages(entry: StoredEntry) -> Iterator[bytes | None]:
    try:
        messages = [encode(message) for message in decode(entry.payload)["messages"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        yield None
        return
    yield from messages

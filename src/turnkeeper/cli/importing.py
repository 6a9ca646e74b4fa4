"""`turnkeeper import`: put conversations from elsewhere into a store, each whole or not at all, and read them back.

What is in the store decides what is left to do, not a note of how far it was: so any interrupted import is gone on with
by running it again, on any machine, however long after.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias

import anyio
import click
from anyio import to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from turnkeeper.cli.comparing import Difference, first_difference
from turnkeeper.cli.loops import run_on, watch_signals
from turnkeeper.cli.terminal import Stop, complain, is_terminal, say, say_table
from turnkeeper.cli.transcripts import Place, Transcript, TranscriptError, decode_json, lines_of, transcript_at
from turnkeeper.cli.walking import look_at
from turnkeeper.compat.langchain4j.serialization import messages_from_json, messages_from_values
from turnkeeper.errors import ConflictError, InvalidArgumentError, MemoryCorruptError, TurnkeeperError
from turnkeeper.log import Version
from turnkeeper.memory import ChatMemory
from turnkeeper.messages import Message, encode_messages, version_of
from turnkeeper.names import memory_name
from turnkeeper.opening import open_runtime
from turnkeeper.state import Log
from turnkeeper.stores import InMemoryStore, Store, store_from_url

__all__ = ["FORMATS", "import_"]

_AT_ONCE: Final = 32
"""Conversations under way: so many share one sync of the disk, and only they are in RAM."""

_ATTEMPTS: Final = 5
"""How often a conversation is judged anew when somebody else writes it at the same time."""


_Read: TypeAlias = Callable[[object], Sequence[Message]]


def _openai(messages: object) -> Sequence[Message]:
    return encode_messages(_list(messages))


def _langchain4j(messages: object) -> Sequence[Message]:
    """Read what `ChatMessageSerializer` wrote: the array, or its text, as a store's column may hold it."""
    return messages_from_json(messages) if isinstance(messages, str) else messages_from_values(_list(messages))


FORMATS: Final[dict[str, _Read]] = {"openai": _openai, "langchain4j": _langchain4j}
"""By name, what makes messages of a conversation's decoded `messages`, or raises `InvalidArgumentError`."""


def _list(messages: object) -> list[object]:
    if not isinstance(messages, list):
        raise InvalidArgumentError(f"'messages' is not a list: found {type(messages).__name__}")
    return messages


@click.command(
    "import",
    epilog="Exit status: 0 all is there; 1 something is not; 2 it can't be done as asked; 130 or 143 interrupted.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("url", metavar="STORE_URL")
@click.option(
    "--format",
    "format_name",
    default="openai",
    show_default=True,
    type=click.Choice(list(FORMATS)),
    help="Of messages.",
)
@click.option("--namespace", default="", help="Namespace to write to; the unnamed one by default.")
@click.option("--id-field", default="id", show_default=True, metavar="NAME", help="The field with a conversation's id.")
@click.option("--id", "memory_id", metavar="ID", help="FILE is one conversation, an array of messages: store it as ID.")
@click.option("--append", is_flag=True, help="Add to conversations that exist with other messages.")
@click.option("--strict", is_flag=True, help="Stop at the first conversation that can't be imported.")
def import_(
    file: Path,
    url: str,
    format_name: str,
    namespace: str,
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

    --format says what the messages are: "openai" is OpenAI's chat form; "langchain4j" is the array that LangChain4j's
    ChatMessageSerializer writes, or its text as a string.
    """
    name = memory_name("any" if memory_id is None else memory_id, namespace)
    if isinstance(store_from_url(url), InMemoryStore):
        raise Stop("a store in memory is gone with this process: name a file, such as sqlite:///chats.db")
    source = _Source(Path("/dev/stdin") if str(file) == "-" else file, FORMATS[format_name], id_field, memory_id)
    _Import(source, url, name.namespace, append=append, strict=strict).run()


class _Item(NamedTuple):
    """A conversation of the input, or why there is none, and how many bytes of input it is."""

    place: str
    found: Transcript | str
    size: int


@dataclass(slots=True)
class _Source:
    """The input, one conversation at a time.

    Attributes:
        path: the file.
        read: makes messages of what a conversation's `messages` hold.
        id_field: where its id is.
        memory_id: the id of the one conversation that the file is; None: it is JSON Lines.
        ignored: names of other fields that were seen.
    """

    path: Path
    read: _Read
    id_field: str
    memory_id: str | None
    ignored: set[str] = field(default_factory=set)

    def items(self) -> Iterator[_Item]:
        """Yield what the lines hold.

        Raises:
            TranscriptError: while iterating: the file can't be read, or not any further.
        """
        if self.memory_id is not None:
            data = b"".join(line for _, line in lines_of(self.path))
            yield _Item(str(self.path), self._found(data, Place(self.path, 1, "line")), len(data))
            return
        filled = ((number, line) for number, line in lines_of(self.path) if line.strip())
        for count, (number, line) in enumerate(filled):
            place = Place(self.path, number, "line")
            found = self._found(line, place)
            if count == 0 and not isinstance(found, Transcript) and line.lstrip().startswith(b"["):
                raise place.error(f"{found}; a file that is one array of messages needs --id")
            yield _Item(str(place), found, len(line))

    def _found(self, data: bytes, place: Place) -> Transcript | str:
        value, fault = decode_json(data)
        if fault is not None:
            return fault.reason
        try:
            return self._conversation(value, place)
        except TranscriptError as error:
            return error.reason
        except InvalidArgumentError as error:
            return str(error)

    def _conversation(self, value: object, place: Place) -> Transcript:
        own_id: object = self.memory_id
        if not isinstance(value, dict):
            if self.memory_id is None:
                raise place.error(f"is no object with 'id' and 'messages': found {type(value).__name__}")
            value = {"messages": value}
        elif self.memory_id is None:
            if self.id_field not in value:
                raise place.error(f"has no {self.id_field!r}")
            own_id = value[self.id_field]
        if "messages" not in value:
            raise place.error("has no 'messages'")
        self.ignored |= value.keys() - {"messages", self.id_field}
        return transcript_at(place, {"id": own_id, "messages": list(self.read(value["messages"]))})


class _Task(NamedTuple):
    """What is to be done for one conversation: nothing, create it, or add messages."""

    kind: str
    messages: Sequence[Message]


@dataclass(slots=True)
class _Counts:
    """How many conversations had which end, and the messages written."""

    created: int = 0
    extended: int = 0
    present: int = 0
    failed: int = 0
    messages: int = 0

    @property
    def there(self) -> int:
        """Conversations that are in the store as the input has them."""
        return self.created + self.extended + self.present


class _Import:
    """One import, from the open store to the report."""

    def __init__(self, source: _Source, url: str, namespace: str, *, append: bool, strict: bool) -> None:
        self._source = source
        self._namespace = namespace
        self._append = append
        self._strict = strict
        self._counts = _Counts()
        self._signal: int | None = None
        self._meter = _Meter()
        self._one_at_a_time = anyio.CapacityLimiter(1)
        # Made here, so that what is wrong with the URL is said before anything happens.
        self._runtime = open_runtime(url, max_resident=2 * _AT_ONCE + 16)
        self._reader: Store = store_from_url(url, read_only=True)

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
                        await to_thread.run_sync(open_reader, limiter=self._one_at_a_time)
                        with _meter(self._source.path) as self._meter:
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
        under_way: dict[str, anyio.Event] = {}

        async def store(item: _Item, transcript: Transcript) -> None:
            reason = await self._store(transcript)
            self._end(item, reason and f"conversation {transcript.id!r} {reason}")
            under_way.pop(transcript.id).set()
            slots.release()

        async with anyio.create_task_group() as tasks:
            while (item := await to_thread.run_sync(next, items, None, abandon_on_cancel=True)) is not None:
                if not isinstance(item.found, Transcript):
                    self._end(item, item.found)
                    continue
                await slots.acquire()
                if (earlier := under_way.get(item.found.id)) is not None:
                    await earlier.wait()
                under_way[item.found.id] = anyio.Event()
                tasks.start_soon(store, item, item.found)

    def _end(self, item: _Item, reason: str | None) -> None:
        if reason is not None:
            self._counts.failed += 1
            if self._strict:
                raise Stop(f"{item.place}: {reason}", status=1)
            self._meter.complain(f"{item.place}: {reason}")
        self._meter.advance(item.size, self._counts.there)

    async def _store(self, transcript: Transcript) -> str | None:
        """Do what is left to do for one conversation; return why it can't be done."""
        memory, wanted, counts = self._runtime.memory(transcript.id, self._namespace), transcript.messages, self._counts
        for _ in range(_ATTEMPTS):
            log = await self._look(memory)
            if isinstance(log, MemoryCorruptError):
                return f"can't be read in the store, at entry {log.version}: {log.reason}"
            task = _task(log, memory.id, wanted, append=self._append)
            if isinstance(task, str):
                return task
            if task.kind == "nothing":
                counts.present += 1
                return None
            try:
                if task.kind == "create":
                    receipt = await memory.set(task.messages, if_version=log.version)
                else:
                    key = _key(log.version.mid, task.messages)
                    receipt = await memory.add(task.messages, idempotency_key=key)
            except ConflictError:
                continue  # somebody else was first: judge what is there now
            if (difference := await self._read_back(memory, receipt.version, task.messages)) is not None:
                return f"is not in the store as it was written: message {difference.position} is {difference.kind}"
            counts.messages += receipt.count
            counts.created += task.kind == "create"
            counts.extended += task.kind == "add"
            return None
        return "is being written by somebody else"

    async def _look(self, memory: ChatMemory) -> Log | MemoryCorruptError:
        return await to_thread.run_sync(
            look_at, self._reader, memory_name(memory.id, memory.namespace), limiter=self._one_at_a_time
        )

    async def _read_back(self, memory: ChatMemory, version: Version, written: Sequence[Message]) -> Difference | None:
        """Compare what an entry holds with what was written, through a connection that did not write it."""
        log = await self._look(memory)
        found = [] if isinstance(log, MemoryCorruptError) or log.mid != version.mid else log.messages
        entry = (message.raw for message in found if version_of(message) == version.n)
        return first_difference(memory.id, written, entry)

    def _so_far(self) -> str:
        counts = self._counts
        return (
            f"what was stored is whole: {counts.there} conversations are there, {counts.messages} messages were "
            "written; the same command goes on from here"
        )

    def _report(self, seconds: float) -> None:
        counts = self._counts
        total = counts.there + counts.failed
        if not total:
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


def _task(log: Log, memory_id: str, wanted: Sequence[Message], *, append: bool) -> _Task | str:
    """Decide from what is there: a pure function, so that asking twice is as good as once."""
    stored = log.messages
    if not stored:
        return _Task("create", wanted)
    if _begins(memory_id, stored, wanted):
        return _Task("nothing", ())
    continues = _begins(memory_id, wanted, stored)
    if not append:
        if continues:
            return f"is there already with the first {len(stored)} of {len(wanted)} messages; --append adds the others"
        return "is there already with other messages; --append adds these behind them"
    if continues:
        return _Task("add", wanted[len(stored) :])
    entries: dict[int, list[Message]] = {}
    for message in stored:
        entries.setdefault(version_of(message), []).append(message)
    # An append is one entry: so it is known again, whatever was said since.
    if any(len(entry) == len(wanted) and _begins(memory_id, entry, wanted) for entry in entries.values()):
        return _Task("nothing", ())
    return _Task("add", wanted)


def _begins(memory_id: str, long: Sequence[Message], short: Iterable[Message]) -> bool:
    return first_difference(memory_id, long, (message.raw for message in short), at_least=0) is None


def _key(mid: int, messages: Sequence[Message]) -> str:
    """Return a key that keeps two imports at the same time from adding the same twice."""
    digest = hashlib.sha256(str(mid).encode())
    for message in messages:
        digest.update(b"\0" + message.raw)
    return f"turnkeeper-import-{digest.hexdigest()}"


class _Meter(NamedTuple):
    """How far it is: `advance` by bytes of input and the conversations there; `complain` without spoiling the view."""

    advance: Callable[[int, int], None] = lambda _, __: None
    complain: Callable[[str], None] = complain


@contextmanager
def _meter(path: Path) -> Iterator[_Meter]:
    """Show on stderr how far it is, when that is a terminal."""
    if not is_terminal(sys.stderr):
        yield _Meter()
        return
    known = path.is_file() and path.suffix != ".gz"
    columns = (TextColumn("importing"), BarColumn(), TextColumn("{task.fields[there]} conversations"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=path.stat().st_size if known else None, there=0)

        def aside(message: str) -> None:
            progress.stop()
            complain(message)
            progress.start()

        yield _Meter(lambda size, there: progress.update(task, advance=size, there=there), aside)

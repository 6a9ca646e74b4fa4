"""Writing conversations into a store: what is there decides what is left to do, and what was written is read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio
from anyio import to_thread

from turnkeeper.cli.comparing import Difference, first_difference
from turnkeeper.cli.export_reading import Exported
from turnkeeper.cli.restoring import Refused, Restorer
from turnkeeper.cli.transcripts import Transcript
from turnkeeper.cli.walking import look_at
from turnkeeper.errors import ConflictError, MemoryCorruptError
from turnkeeper.log import Version
from turnkeeper.memory import ChatMemory
from turnkeeper.messages import Message, version_of
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.opening import Runtime
from turnkeeper.state import Log
from turnkeeper.stores import Store

__all__ = ["Counts", "Writer"]

_ATTEMPTS: Final = 5
"""How often a conversation is judged anew when somebody else writes it at the same time."""


class _Task(NamedTuple):
    """What is to be done for one conversation: nothing, create it, or add messages."""

    kind: str
    messages: Sequence[Message]


@dataclass(slots=True)
class Counts:
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


class Writer:
    """Writes what was read, a conversation or an exported memory at a time.

    Args:
        runtime: an open one.
        reader: a store of the same URL that only reads: what was written is looked at through another connection.
        namespace: where conversations go; None: of an export, where each memory was.
        append: add to conversations that are there with other messages.

    Attributes:
        counts: what was done.
    """

    def __init__(self, runtime: Runtime, reader: Store, namespace: str | None, *, append: bool) -> None:
        self.counts: Counts = Counts()
        self._runtime = runtime
        self._reader = reader
        self._namespace = namespace
        self._append = append
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._restorer = Restorer(runtime._core, reader, self._one_at_a_time)

    def name_of(self, found: Transcript | Exported) -> MemoryName:
        """Return the name of the memory that this is for.

        Raises:
            ValueError: an exported one has none.
        """
        if isinstance(found, Exported):
            return found.describe(self._namespace).name
        return memory_name(found.id, self._namespace or "")

    async def write(self, found: Transcript | Exported) -> str | None:
        """Do what is left to do; return why it can't be done."""
        if isinstance(found, Transcript):
            return await self._store(found)
        counts = self.counts
        try:
            restored = await self._restorer.restore(found, found.describe(self._namespace))
        except Refused as refused:
            return str(refused)
        finally:
            found.close()
        counts.messages += restored.messages
        counts.created += restored.created
        counts.extended += not restored.created and restored.entries > 0
        counts.present += not restored.created and not restored.entries
        return None

    async def _store(self, transcript: Transcript) -> str | None:
        """Do what is left to do for one conversation; return why it can't be done."""
        memory = self._runtime.memory(transcript.id, self._namespace or "")
        wanted, counts = transcript.messages, self.counts
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

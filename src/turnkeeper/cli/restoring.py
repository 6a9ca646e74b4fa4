"""Writing the memories of an export into a store: entry for entry, in slices, and reading them back.

What the store has decides what is left to do: a memory that has the first entries of the exported log gets the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from turnkeeper.cli.comparing import same_json
from turnkeeper.cli.export_reading import Description, Exported, Written
from turnkeeper.cli.walking import log_entries
from turnkeeper.errors import ConflictError, InvalidArgumentError, MemoryCorruptError, OutcomeUnknownError
from turnkeeper.folding import content_of
from turnkeeper.forking import restore_request
from turnkeeper.log import Details, Entry, Head, Version
from turnkeeper.metadata import decode_metadata
from turnkeeper.names import MemoryName
from turnkeeper.requests import SET_METADATA, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import LoadQuery, Store, StoredEntry

__all__ = ["Refused", "Restored", "Restorer"]

T = TypeVar("T")

SLICE_ENTRIES: Final = 1000
SLICE_BYTES: Final = 2**20
"""What is written by one commit: a memory with more becomes whole in several. One entry at least."""

_ATTEMPTS: Final = 5


class Refused(Exception):  # noqa: N818 (it is told of one memory, the others go on)
    """A memory can't be restored; why."""


class Restored(NamedTuple):
    """What was done for one memory.

    Attributes:
        created: it was not there.
        entries: how many were written.
        messages: how many these have.
    """

    created: bool
    entries: int
    messages: int


class _There(NamedTuple):
    head: Head | None
    same: int
    """How many entries of the exported log the store has, from the first on."""


class Restorer:
    """Writes memories through a runtime.

    Args:
        core: the runtime.
        reader: a store of the same URL that only reads, on a connection of its own.
        limiter: lets one thread at a time use it.
    """

    def __init__(self, core: RuntimeCore, reader: Store, limiter: CapacityLimiter) -> None:
        self._core = core
        self._reader = reader
        self._limiter = limiter

    async def restore(self, exported: Exported, described: Description) -> Restored:
        """Do what is left to do for one memory, and compare what the store has then.

        Raises:
            Refused: it is not in the store as it was exported; what else is there was left alone.
        """
        name = described.name
        created, entries, messages = False, 0, 0
        for _ in range(_ATTEMPTS):
            there = await self._run(partial(_survey, self._reader, exported, name))
            created = created or there.head is None or (there.head.version == 0 and exported.count > 0)
            try:
                n, m = await self._write(exported, name, there)
            except (ConflictError, OutcomeUnknownError):
                continue  # somebody else was first, or nobody knows: judge what is there now
            except InvalidArgumentError:
                raise Refused("can't be written: its entries make no log") from None
            entries, messages = entries + n, messages + m
            written = await self._run(partial(_compare, self._reader, exported, name))
            if written.same != exported.count:
                raise Refused(f"is not in the store as it was written: entry {written.same + 1} is missing")
            if described.meta is not None and (written.head is None or written.head.meta is None):
                await self.write_metadata(name, described.meta)
            return Restored(created, entries, messages)
        raise Refused("is being written by somebody else")

    async def write_metadata(self, name: MemoryName, meta: bytes) -> None:
        """Give a memory the metadata that the export has of it; only where it has none."""
        stored = decode_metadata(meta)
        await self._core.submit(name, Request(SET_METADATA, about=(lambda _: stored, 0)))

    async def _write(self, exported: Exported, name: MemoryName, there: _There) -> tuple[int, int]:
        """Write the entries that are missing, a slice after the other; return how many, and their messages."""
        head = there.head
        at = Version(head.mid, head.version) if head is not None and head.version else Version(0, 0)
        entries = messages = 0
        slices = _slices(exported.entries(name), there.same)
        while there.same + entries < exported.count:
            batch = await self._run(partial(next, slices))
            receipt = await self._core.submit(name, restore_request(batch, at))
            at = receipt.version
            self._core.unload(name)  # however long the log is, only a slice of it is in RAM
            entries += len(batch)
            messages += sum([len(entry.messages) for entry in batch])
        return entries, messages

    async def _run(self, function: Callable[[], T]) -> T:
        return await to_thread.run_sync(function, limiter=self._limiter)


def _survey(store: Store, exported: Exported, name: MemoryName) -> _There:
    _check(exported, name)
    return _compare(store, exported, name)


def _check(exported: Exported, name: MemoryName) -> None:
    """Look at every entry before the first is written."""
    try:
        found = sum(1 for _ in exported.entries(name))
    except ValueError as error:
        raise Refused(str(error)) from None
    if found != exported.count:
        raise Refused(f"has {found} entries and says that it has {exported.count}")


def _slices(entries: Iterable[Written], skip: int) -> Iterator[tuple[Entry, ...]]:
    batch: list[Entry] = []
    size = 0
    for number, entry in enumerate(entries):
        if number < skip:
            continue
        if batch and (len(batch) == SLICE_ENTRIES or size + entry.size > SLICE_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        details = None if entry.details == Details() else entry.details
        batch.append(Entry(entry.op, os.urandom(16), entry.messages, None, details))
        size += entry.size
    if batch:
        yield tuple(batch)


def _compare(store: Store, exported: Exported, name: MemoryName) -> _There:
    """Find out how much of a log is in the store.

    Raises:
        Refused: something else is.
    """
    head = store.load([LoadQuery(name, newest=1)])[0].head
    if head is None or head.version == 0:
        return _There(head, 0)
    same = 0
    stored = log_entries(store, head.mid)
    for wanted in exported.entries(name):
        found = next(stored, None)
        if found is None:
            break
        if found.version != same + 1:
            raise Refused(
                "is there already, and its log was pruned, so that it can't be compared; import into another "
                "--namespace, or delete it first"
            )
        if not _same(found, wanted, name):
            raise Refused(
                f"is there already with another history, from entry {same + 1} on; nothing of it was changed: import "
                "into another --namespace, or delete it first"
            )
        same += 1
    if same < exported.count and same < head.version:
        raise Refused("is being deleted or pruned by somebody else")
    return _There(head, same)


def _same(found: StoredEntry, wanted: Written, name: MemoryName) -> bool:
    try:
        details, messages = content_of(found, name)
    except MemoryCorruptError as error:
        raise Refused(f"can't be read in the store, at entry {error.version}: {error.reason}") from None
    return (
        found.op == wanted.op
        and details == wanted.details
        and len(messages) == len(wanted.messages)
        and all(same_json(one.raw, other.raw) for one, other in zip(messages, wanted.messages, strict=True))
    )

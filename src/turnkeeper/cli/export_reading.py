"""Reading an export: memory by memory, each proven whole before anything is done with it.

A memory's lines are kept aside, in a file without a name when they are many, until its digest is found to be right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, Final, NamedTuple

from turnkeeper.cli.export_format import (
    ABANDONED,
    FORMAT_VERSION,
    Finale,
    begins_memory,
    ending_of,
    entries_in,
    finale_of,
    goes_on,
    header_of,
    memory_in,
)
from turnkeeper.errors import InvalidMemoryIdError, MemoryCorruptError
from turnkeeper.folding import content_of
from turnkeeper.log import ADD, CLEAR, COMPACT, EDIT, FORK, POP, REMOVE, SET, UNDO, Details
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName, memory_name

__all__ = ["Description", "EndsEarlyError", "Exported", "Written", "read_memories", "refuse_newer"]

_IN_RAM: Final = 2**20
"""Bytes of a memory's lines that are kept in RAM; larger ones go to a temporary file."""

_PLACES: Final = 2**24
_OPS: Final = frozenset((ADD, SET, CLEAR, COMPACT, UNDO, POP, EDIT, REMOVE, FORK))


class EndsEarlyError(Exception):
    """The input ends before the export does, or goes on behind it; the line's number, and what is wrong."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


class Written(NamedTuple):
    """One entry of a log, decoded."""

    op: str
    details: Details
    messages: tuple[Message, ...]
    size: int


class Description(NamedTuple):
    """What an export says of a memory besides its log; `meta` are its metadata as they were stored."""

    name: MemoryName
    fields: dict[str, Any]
    meta: bytes | None


@dataclass(slots=True)
class Exported:
    """A memory of an export, or what is wrong with it.

    Attributes:
        line: number of its first line.
        size: bytes of its lines.
        count: entries.
        problem: why it can't be used; None: its lines are as they were written.
    """

    line: int
    size: int = 0
    count: int = 0
    problem: str | None = None
    first: bytes = b""
    spool: Any = None

    def describe(self, namespace: str | None) -> Description:
        """Return what is said of it.

        Raises:
            ValueError: nothing that makes sense.
        """
        fields, meta = memory_in(self.first)
        try:
            name = memory_name(fields["id"], fields["namespace"] if namespace is None else namespace)
        except KeyError:
            raise ValueError("has no id and namespace") from None
        except InvalidMemoryIdError as error:
            raise ValueError(str(error)) from None
        return Description(name, fields, meta)

    def entries(self, name: MemoryName) -> Iterator[Written]:
        """Yield its log's entries, in order; as often as wanted.

        Raises:
            ValueError: one is none.
        """
        self.spool.seek(0)
        number = 0
        for line in self.spool:
            for entry in entries_in(line, number):
                number = entry.version
                try:
                    details, messages = content_of(entry, name)
                except MemoryCorruptError:
                    raise ValueError(f"entry {number} is none: it can't be decoded") from None
                if (reason := _fault(entry.op, details, messages, number)) is not None:
                    raise ValueError(f"entry {number} is none: {reason}")
                yield Written(entry.op, details, messages, len(entry.payload))

    def close(self) -> None:
        """Let go what was kept aside."""
        if self.spool is not None:
            self.spool.close()


def _fault(op: str, details: Details, messages: tuple[Message, ...], number: int) -> str | None:
    """Return what is wrong with an entry that can be decoded: it must speak only of those before it."""
    if op not in _OPS:
        return "it is of a kind that this version doesn't know"
    if op in (UNDO, POP, COMPACT) and not (0 <= details.to < number and 0 <= details.part < _PLACES):
        return "it goes back to no entry before it"
    if op == EDIT and not len(details.places) == len(messages) == 1:
        return "it edits not one message"
    if any(not (0 < n <= number and 0 <= index < _PLACES) for n, index in details.places):
        return "it changes what is not before it"
    if not 0 <= details.system <= number or not 0 <= details.leads + details.summary <= len(messages):
        return "what it says of its messages is not so"
    if len(messages) >= _PLACES:
        return "it has too many messages"
    return None


def refuse_newer(header: dict[str, Any]) -> str | None:
    """Return why an export with this header can't be read."""
    version = header.get("version")
    if isinstance(version, int) and 1 <= version <= FORMAT_VERSION:
        return None
    return (
        f"is an export of format {json.dumps(version)[:20]}, and this turnkeeper reads formats up to {FORMAT_VERSION}: "
        "use a newer one"
    )


def read_memories(lines: Iterable[tuple[int, bytes]], *, keep: bool = True) -> Iterator[Exported]:
    """Yield the memories of an export, and what is damaged of it.

    Args:
        lines: with their numbers, the header first.
        keep: keep the lines, so that entries can be read, until the memory is closed; otherwise only judge them.

    Raises:
        EndsEarlyError: while iterating: the end of the export is missing or not right. What came before counts.
    """
    return _Reading(keep).read(lines)


class _Reading:
    """Takes line after line."""

    def __init__(self, keep: bool) -> None:
        self._keep = keep
        self._memory: Exported | None = None  # under way
        self._digest = hashlib.sha256()
        self._lost = False  # a memory is damaged: what follows of it is lost as well
        self._memories = self._entries = self._problems = 0

    def read(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Exported]:
        everything = hashlib.sha256()
        number, finale = 0, None
        try:
            for number, line in lines:
                if finale is not None:
                    if line.strip():
                        raise EndsEarlyError(number, "follows the end of the export")
                    continue
                if (finale := finale_of(line)) is not None:
                    yield from self._give_up("breaks off: its last lines are missing")
                    found = Finale(self._memories, self._entries, everything.hexdigest())
                    if finale != found and not self._problems:
                        raise EndsEarlyError(number, "ends another export: lines are missing, or were changed")
                    continue
                everything.update(line)
                yield from self._take(number, line)
            if finale is None:
                yield from self._give_up("breaks off: the file ends there")
                raise EndsEarlyError(number, "the file ends early: the export's last line is missing")
        finally:
            if self._memory is not None:
                self._memory.close()

    def _take(self, number: int, line: bytes) -> Iterator[Exported]:
        if begins_memory(line):
            yield from self._give_up("breaks off: its last lines are missing")
            self._begin(number, line)
        elif line == ABANDONED:
            self._drop()
            self._lost = False
            return
        elif not goes_on(line) or self._memory is None:
            if line.strip() and header_of(line) is None:
                yield from self._lose(number, line)
            return
        yield from self._go_on(number, line)

    def _begin(self, number: int, line: bytes) -> None:
        spool = SpooledTemporaryFile(_IN_RAM) if self._keep else None  # noqa: SIM115 (who gets the memory closes it)
        self._memory = Exported(number, first=line if self._keep else b"", spool=spool)
        self._digest = hashlib.sha256()
        self._lost = False

    def _go_on(self, number: int, line: bytes) -> Iterator[Exported]:
        memory = self._memory
        assert memory is not None
        memory.size += len(line)
        if memory.spool is not None:
            memory.spool.write(line)
        ending = ending_of(line)
        self._digest.update(line if ending is None else line[: ending.covered])
        if ending is None:
            if not line.endswith(b"]}\n"):
                yield from self._lose(number, line)
            return
        memory.count = ending.entries
        if self._digest.hexdigest() != ending.digest:
            yield from self._give_up("is not as it was written: its digest is another")
            return
        self._memories += 1
        self._entries += ending.entries
        self._memory = None
        yield memory

    def _lose(self, number: int, line: bytes) -> Iterator[Exported]:
        if self._memory is not None:
            yield from self._give_up(f"is damaged in line {number}")
        elif not self._lost:
            self._problems += 1
            yield Exported(number, len(line), problem="is no line of an export")
        self._lost = True

    def _give_up(self, reason: str) -> Iterator[Exported]:
        memory = self._memory
        self._drop()
        if memory is not None:
            self._problems += 1
            yield Exported(memory.line, memory.size, problem=reason)

    def _drop(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory = None

"""The file that an export writes: it has its name only when it is whole, and an interrupted one is gone on with.

Until then there are FILE.part, and FILE.part.state, which says how much of it is whole, with the SHA-256 of that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from turnkeeper.cli.terminal import Stop
from turnkeeper.names import MemoryName
from turnkeeper.wire import decode, encode

try:
    import fcntl
except ImportError:  # a platform without flock: two exports to one file at once are not noticed there
    fcntl = None  # type: ignore[assignment]

__all__ = ["Progress", "Sink", "StandardOutput", "Target"]

CHECKPOINT_SECONDS: Final = 1.0
"""What a kill costs at most, beside the memory under way."""

_BUFFER: Final = 2**20


@dataclass(slots=True)
class Progress:
    """How far an export is, at the end of a memory.

    Attributes:
        after: the last memory that was dealt with; None: none yet.
        memories: how many were written.
        entries: how many entries, or messages, these have.
        failed: how many could not be.
    """

    after: MemoryName | None = None
    memories: int = 0
    entries: int = 0
    failed: int = 0


class Sink(Protocol):
    """Where lines go."""

    progress: Progress

    @property
    def size(self) -> int:
        """Bytes written."""
        ...

    def write(self, data: bytes) -> None:
        """Write a part of a memory, which does not count yet."""

    def settle(self) -> None:
        """Note that what was written so far is whole, and what `progress` says of it is so."""

    def take_back(self, instead: bytes) -> None:
        """Take back what was written since `settle`; where that can't be done, write something instead."""

    def digest(self) -> str:
        """Return the SHA-256 of what was written."""
        ...


class StandardOutput:
    """What reads it has to look for the last line: nothing is taken back, and nothing is gone on with."""

    def __init__(self) -> None:
        self.progress: Progress = Progress()
        self.size: int = 0
        self._hash = hashlib.sha256()
        self._dirty = False

    def write(self, data: bytes) -> None:
        """Write."""
        sys.stdout.buffer.write(data)
        self._hash.update(data)
        self.size += len(data)
        self._dirty = True

    def settle(self) -> None:
        """Go on."""
        self._dirty = False

    def take_back(self, instead: bytes) -> None:
        """Say that what began does not count."""
        if self._dirty:
            self.write(instead)
        self._dirty = False

    def digest(self) -> str:
        """Return the SHA-256 of what was written."""
        return self._hash.hexdigest()

    def finish(self) -> None:
        """Write what is held back."""
        sys.stdout.buffer.flush()


@dataclass(slots=True)
class _Whole:
    """What of the file counts."""

    size: int = 0
    hash: Any = field(default_factory=hashlib.sha256)
    progress: tuple[MemoryName | None, int, int, int] = (None, 0, 0, 0)


class Target:
    """FILE.part, open for writing, and its state.

    Each write goes to a place of its own in the file, so one that was interrupted can be done again.

    Args:
        path: FILE.
        what: what is exported; a file that was begun for something else is not gone on with.
    """

    def __init__(self, path: Path, what: dict[str, Any]) -> None:
        """Open, and read how far an earlier export came.

        Raises:
            Stop: FILE is there, or was begun by another command, or is being written, or was changed.
        """
        self.path: Path = path
        self.part: Path = path.with_name(path.name + ".part")
        self._state = path.with_name(path.name + ".part.state")
        self._what = what
        self.progress: Progress = Progress()
        self._whole = _Whole()
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._offset = 0
        self._hash = hashlib.sha256()
        self._saved_at = monotonic()
        if path.exists():
            raise Stop(f"{path} is there already; name another file, or delete that one")
        self._file = os.open(self.part, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._resume()
                    return
                raise Stop(f"{self.part} is being written by another export")
            self._resume()
        except BaseException:
            os.close(self._file)
            raise

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._offset + self._buffered

    @property
    def resumed(self) -> bool:
        """Whether an earlier export wrote a part of it."""
        return self._whole.size > 0

    def _resume(self) -> None:
        state = self._read_state()
        if state is None:
            os.ftruncate(self._file, 0)
            return
        if state.get("what") != self._what:
            raise Stop(
                f"{self.part} was begun by another command: run that one again, or delete {self.part} and {self._state}"
            )
        try:
            size, digest, after = int(state["bytes"]), str(state["sha256"]), state["after"]
            name = None if after is None else MemoryName(str(after[0]), str(after[1]))
            counts = int(state["memories"]), int(state["entries"]), int(state["failed"])
        except (LookupError, TypeError, ValueError):
            raise self._changed() from None
        found = hashlib.sha256()
        left = size
        while left and (data := os.pread(self._file, min(left, _BUFFER), size - left)):
            found.update(data)
            left -= len(data)
        if left or found.hexdigest() != digest:
            raise self._changed()
        self._hash, self._offset = found, size
        self._whole = _Whole(size, found.copy(), (name, *counts))
        self.progress = Progress(name, *counts)

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = decode(self._state.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._changed() from None
        if not isinstance(state, dict):
            raise self._changed()
        return state

    def _changed(self) -> Stop:
        return Stop(f"{self.part} is not as it was left: delete it and {self._state}, and begin anew")

    def write(self, data: bytes) -> None:
        """Write a part of a memory, which does not count yet."""
        self._buffer.append(data)
        self._buffered += len(data)
        self._hash.update(data)
        if self._buffered >= _BUFFER:
            self._flush()

    def settle(self) -> None:
        """Note that what was written so far is whole, and what `progress` says of it is so."""
        progress = self.progress
        self._whole = _Whole(
            self.size,
            self._hash.copy(),
            (progress.after, progress.memories, progress.entries, progress.failed),
        )
        if monotonic() - self._saved_at >= CHECKPOINT_SECONDS:
            self.save()

    def take_back(self, instead: bytes) -> None:
        """Take back what was written since `settle`."""
        whole = self._whole
        self._flush()
        self._offset, self._hash = whole.size, whole.hash.copy()

    def digest(self) -> str:
        """Return the SHA-256 of what was written."""
        return str(self._hash.hexdigest())

    def save(self) -> None:
        """Let what is whole so far survive the end of this process."""
        whole = self._whole
        self._flush()
        os.fsync(self._file)
        after, memories, entries, failed = whole.progress
        state = {
            "what": self._what,
            "bytes": whole.size,
            "sha256": whole.hash.hexdigest(),
            "after": after,
            "memories": memories,
            "entries": entries,
            "failed": failed,
        }
        new = self._state.with_name(self._state.name + ".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, encode(state))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.replace(self._state)
        self._saved_at = monotonic()

    def seal(self) -> None:
        """Bring all that was written to the disk, and end the file there."""
        self._flush()
        os.ftruncate(self._file, self._offset)
        os.fsync(self._file)

    def written(self) -> Iterator[bytes]:
        """Read the lines back."""
        with self.part.open("rb") as file:
            yield from file

    def rename(self) -> None:
        """Give the file its name."""
        self.part.rename(self.path)
        self._state.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a file system that can't sync directories
            directory = os.open(self.path.absolute().parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _flush(self) -> None:
        data = memoryview(b"".join(self._buffer))
        offset = self._offset
        while data:
            count = os.pwrite(self._file, data, offset)
            offset += count
            data = data[count:]
        self._buffer, self._buffered, self._offset = [], 0, offset

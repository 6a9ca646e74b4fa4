"""A store in one file: a journal of all that was committed, and dictionaries built from it."""

import fcntl
import os
import pickle
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from turnkeeper import StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.stores import (
    Committed,
    InMemoryStore,
    Listed,
    Loaded,
    LoadQuery,
    MemoryName,
    Outcome,
    Slice,
    Store,
    StoredEntry,
    StoredReceipt,
)

FORMAT = b"journal of conversations, 1\n"


class JournalStore(Store):
    """Keeps every memory in RAM, and on disk what it takes to build that again.

    Args:
        path: the file.
        clock: returns seconds since the epoch.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._replayed: float | None = None  # the time of the group that is being taken in
        self._lock = threading.Lock()  # commits and reads come from two threads
        self._state = InMemoryStore()
        self._file: BinaryIO | None = None
        self._end = 0  # what is behind this place in the file was never acknowledged
        self._sync = True

    def open(self, *, durability: str) -> None:
        """Take the file, and build the dictionaries."""
        self._sync = durability == "full"
        try:
            self._file = open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._replay(self._file)
        except BlockingIOError:
            self.close()
            raise StoreInUseError(f"{self.describe()} belongs to another runtime") from None
        except OSError as error:
            self.close()
            raise StoreUnavailableError(f"{self.describe()}: {error.strerror}") from None
        except StoreFormatError:
            self.close()
            raise

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Take the slices in, and write those that were taken to the file before anybody is told."""
        with self._lock:
            if self._file is None:
                raise StoreUnavailableError(f"{self.describe()} is not open")
            now = self._clock()
            outcomes = self._take_in(now, receipt_ttl, slices)
            taken = [slice_ for slice_, outcome in zip(slices, outcomes, strict=True) if isinstance(outcome, Committed)]
            if taken:
                try:
                    self._write(self._file, record((now, receipt_ttl, taken)))
                except OSError as error:
                    self._take_back(self._file)
                    raise StoreUnavailableError(f"{self.describe()}: {error.strerror}") from None
            return outcomes

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Look for the slices' entry ids: what is in RAM is in the file."""
        with self._lock:
            if self._file is None:
                raise StoreUnavailableError(f"{self.describe()} is not open")
            return self._state.settle(slices)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories, each at one instant: no commit is half done while this holds the lock."""
        with self._lock:
            return self._state.load(queries)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        with self._lock:
            return self._state.receipts(names_and_keys)

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories in byte order."""
        with self._lock:
            return self._state.names(
                namespace=namespace, after=after, limit=limit, prefix=prefix, updated_after=updated_after
            )

    def expired(self, limit: int) -> list[MemoryName]:
        """List memories whose time is over."""
        with self._lock:
            return self._state.expired(limit)

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        with self._lock:
            return self._state.entries(mid, after=after, limit=limit, before=before, newest=newest)

    def now(self) -> int:
        """Ask the clock."""
        return int(self._clock() * 1e6)

    def describe(self) -> str:
        """Name the file."""
        return f"journal {self._path}"

    def _take_in(self, now: float, receipt_ttl: float, slices: Sequence[Slice]) -> list[Outcome]:
        self._replayed = now
        try:
            return self._state.commit(slices, receipt_ttl=receipt_ttl)
        finally:
            self._replayed = None

    def _time(self) -> float:
        return self._clock() if self._replayed is None else self._replayed

    def _write(self, file: BinaryIO, data: bytes) -> None:
        file.seek(self._end)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if self._sync:
            os.fsync(file.fileno())
        self._end += len(data)

    def _take_back(self, file: BinaryIO) -> None:
        """Bring RAM and file back to what was acknowledged; where that fails too, refuse everything."""
        try:
            file.truncate(self._end)
            self._replay(file)
        except (OSError, StoreFormatError):
            self.close()

    def _replay(self, file: BinaryIO) -> None:
        """Build the dictionaries from the file, and cut off what a crash left unfinished at its end."""
        file.seek(0)
        data = file.read()
        self._state = InMemoryStore(clock=self._time)
        if len(data) < len(FORMAT) and FORMAT.startswith(data):
            self._end = 0
            self._write(file, FORMAT)
            sync_directory(self._path.parent)
            return
        if not data.startswith(FORMAT):
            raise StoreFormatError(f"{self.describe()} is no journal of this format")
        self._end = len(FORMAT)
        while (content := content_of(data, self._end)) is not None:
            now, receipt_ttl, slices = pickle.loads(content)  # runs code: read no file that others can write to
            self._take_in(now, receipt_ttl, slices)
            self._end += HEADER + len(content)
        file.truncate(self._end)


HEADER = 8  # bytes before each record's content: its length and its checksum


def record(group: tuple[float, float, list[Slice]]) -> bytes:
    """Return a group as it lies in the file."""
    content = pickle.dumps(group)
    return len(content).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big") + content


def content_of(data: bytes, start: int) -> bytes | None:
    """Return the content of the record that begins here; None when it is not there as a whole."""
    length, checksum = (int.from_bytes(data[at : at + 4], "big") for at in (start, start + 4))
    content = data[start + HEADER : start + HEADER + length]
    whole = content and len(content) == length and zlib.crc32(content) == checksum
    return content if whole else None


def sync_directory(directory: Path) -> None:
    """Make a new file's name survive a power cut."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""What `turnkeeper doctor` looks at; each check returns what it found and how bad that is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import turnkeeper
from turnkeeper.cli.walking import log_entries, look_at, memories
from turnkeeper.errors import DecryptionError, MemoryCorruptError, StoreError, StoreInUseError, StoreUnavailableError
from turnkeeper.names import MemoryName
from turnkeeper.sealed import check_payload
from turnkeeper.stores import Listed, SQLiteStore, Store, store_from_url
from turnkeeper.stores.sqlite import QUARANTINE
from turnkeeper.stores.sqlite_schema import SCHEMA, has_wal_bug

__all__ = [
    "Corrupt",
    "Finding",
    "check_durability",
    "check_file",
    "check_integrity",
    "check_versions",
    "find_corrupt",
    "quarantine",
]

_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

Level = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    found: str
    level: Level = "ok"


def check_versions() -> list[Finding]:
    """Report the versions of everything that takes part, and whether this SQLite has the WAL bug."""
    findings = [
        Finding("turnkeeper", turnkeeper.__version__),
        Finding("Python", f"{platform.python_version()} ({platform.python_implementation()}, {platform.platform()})"),
    ]
    for name in ("anyio", "msgspec", "trio", "uvloop"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            findings.append(Finding(name, importlib.metadata.version(name)))
    findings.append(Finding("SQLite", sqlite3.sqlite_version))
    major, minor, patch = sqlite3.sqlite_version_info[:3]
    if has_wal_bug((major, minor, patch)):
        findings.append(
            Finding(
                "SQLite's WAL bug",
                "this version has it (fixed in 3.51.3, 3.50.7 and 3.44.6): two connections that write or checkpoint "
                "at once can corrupt the file. turnkeeper lets only one at a time; don't write to its file with "
                "other programs",
                "note",
            )
        )
    else:
        findings.append(Finding("SQLite's WAL bug", "not in this version"))
    return findings


def check_file(store: SQLiteStore) -> Iterator[Finding]:
    """Report format, size and permissions of an open store's file.

    Raises:
        StoreError: it can't be read.
    """
    mode = str(store.pragma("journal_mode"))
    yield Finding("journal mode", mode, "ok" if mode == "wal" else "problem")
    yield Finding("schema", f"{store.pragma('user_version')} (this turnkeeper knows up to {SCHEMA})")
    for what, ending in (("file", ""), ("WAL file", "-wal"), ("shm file", "-shm")):
        with contextlib.suppress(FileNotFoundError):
            yield _permissions(store.path.with_name(store.path.name + ending), what)


def _permissions(path: Path, what: str) -> Finding:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    found = f"{stat.filemode(status.st_mode)} {mode:04o}, owner {_user(status.st_uid)}, {status.st_size} bytes"
    if mode & stat.S_IRWXO:
        return Finding(what, f"{found}: every user of this machine has access; chmod o-rwx", "problem")
    if mode & stat.S_IRWXG:
        return Finding(what, f"{found}: its group has access", "note")
    return Finding(what, found)


def _user(number: int) -> str:
    try:
        import pwd  # not on every platform

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def check_durability(url: str, readable: SQLiteStore) -> list[Finding]:
    """Open the file as a runtime would, for a moment, and read off what a commit waits for.

    `PRAGMA synchronous` belongs to a connection, so nobody else can see that of a running server.
    """
    if readable.pragma("user_version") != SCHEMA:
        return [Finding("durability", "not looked at: opening this schema for writing would change it", "note")]
    store = store_from_url(url)
    assert isinstance(store, SQLiteStore)
    try:
        store.open(durability="full")
        value = store.pragma("synchronous")
        fullfsync = store.pragma("fullfsync")
    except StoreInUseError as error:
        return [
            Finding("in use", str(error), "note"),
            Finding("durability", "can't be seen while a runtime has the file: it is what that one was opened with"),
        ]
    except StoreError as error:
        return [Finding("durability", f"can't be opened for writing by this user: {error}", "problem")]
    finally:
        store.close()
    full = value in (2, 3)
    name = _SYNCHRONOUS.get(value, "unknown") if isinstance(value, int) else "unknown"
    return [
        Finding("in use", "by nobody (just now)" if not store.shared else "shared"),
        Finding(
            "durability",
            f"synchronous={name}, fullfsync={'on' if fullfsync else 'off'}, as opened by default (durability='full')",
            "ok" if full else "problem",
        ),
    ]


def check_integrity(store: SQLiteStore) -> list[Finding]:
    """Run SQLite's check over the whole file."""
    try:
        found = store.integrity()
    except StoreError as error:
        found = [str(error)]
    return [Finding("integrity", line, "problem") for line in found] or [Finding("integrity", "ok")]


class Corrupt(NamedTuple):
    """Going through all memories.

    Attributes:
        memories: how many there are.
        quarantined: how many more were set aside earlier.
        errors: one for each that can't be read.
        closed: entries that do not open, besides those that `errors` names; also those that no state shows.
        cut_short: why the list of memories itself could not be read to its end, if so.
    """

    memories: int
    quarantined: int
    errors: list[MemoryCorruptError]
    closed: list[DecryptionError]
    cut_short: str | None = None

    def findings(self, shown: int) -> list[Finding]:
        """Return a line for each of the first `shown` corrupt memories, and the counts."""
        lines = [Finding("memories", f"{self.memories}, {len(self.errors)} of them corrupt")]
        if self.errors:
            lines = [lines[0]._replace(level="problem")]
        lines += _named("corrupt", self.errors, shown) + _named("closed", self.closed, shown)
        if self.cut_short is not None:
            lines.append(Finding("memories", f"the list can't be read to its end: {self.cut_short}", "problem"))
        if self.quarantined:
            lines.append(Finding("quarantined", f"{self.quarantined}, in namespace {QUARANTINE!r}", "note"))
        return lines


def _named(title: str, errors: Sequence[MemoryCorruptError], shown: int) -> list[Finding]:
    lines = [
        Finding(title, f"{error.memory_id!r} (namespace {error.namespace!r}), entry {error.version}: {error.reason}")
        for error in errors[:shown]
    ]
    if len(errors) > shown:
        lines.append(Finding(title, f"and {len(errors) - shown} more"))
    return [line._replace(level="problem") for line in lines]


def find_corrupt(store: Store) -> Corrupt:
    """Read every memory, except those in quarantine, and all of its log.

    Raises:
        StoreUnavailableError: the store can't be reached.
    """
    count = quarantined = 0
    errors: list[MemoryCorruptError] = []
    closed: list[DecryptionError] = []
    try:
        for listed in memories(store):
            if listed.name.namespace == QUARANTINE:
                quarantined += 1
                continue
            count += 1
            seen = look_at(store, listed.name)
            if isinstance(seen, MemoryCorruptError):
                errors.append(seen)
            named = seen.version if isinstance(seen, DecryptionError) else 0
            closed += [error for error in _closed(store, listed) if error.version != named]
    except StoreUnavailableError:
        raise
    except StoreError as error:
        return Corrupt(count, quarantined, errors, closed, str(error))
    return Corrupt(count, quarantined, errors, closed)


def _closed(store: Store, listed: Listed) -> Iterator[DecryptionError]:
    """Yield an error for each entry of a log that does not open; of one with damaged rows, of those before them."""
    entries = log_entries(store, listed.head.mid)
    while True:
        try:
            entry = next(entries, None)
        except StoreUnavailableError:
            raise
        except StoreError:
            return  # a damaged page; where the state needs it, the memory is told as corrupt
        if entry is None:
            return
        try:
            check_payload(entry.payload, listed.name, entry.version)
        except DecryptionError as error:
            yield error


def quarantine(url: str, errors: list[MemoryCorruptError]) -> Iterator[tuple[MemoryName, MemoryName]]:
    """Move corrupt memories aside; yield each with its new name. What only lacks its key stays where it opens.

    Raises:
        StoreInUseError: a runtime owns the file.
        StoreError: it can't be written.
    """
    store = store_from_url(url)
    assert isinstance(store, SQLiteStore)
    try:
        store.open(durability="full")
        for error in errors:
            if isinstance(error, DecryptionError):
                continue
            name = MemoryName(error.namespace, error.memory_id)
            # Somebody may have repaired or replaced it since.
            found = look_at(store, name)
            if isinstance(found, MemoryCorruptError) and not isinstance(found, DecryptionError):
                yield name, store.quarantine(name)
    finally:
        store.close()

"""Stores that are broken on purpose, each in one way: what the public suite has to find.

Each is a good store but for one mistake that somebody could make.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from msgspec.structs import replace

from journal_store import JournalStore
from turnkeeper.log import (
    Committed,
    Conflict,
    Loaded,
    LoadQuery,
    NewMeta,
    Outcome,
    Slice,
    StoredEntry,
    StoredReceipt,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import Changes, Cursor, InMemoryStore, KeptReceipt, Listed, SQLiteStore, Store, Transfer
from turnkeeper.testing import StoreClock

__all__ = ["BROKEN", "SOUND"]

Make: TypeAlias = Callable[[Path, StoreClock | None], Store]


class ForgetsToCompare(InMemoryStore):
    """The last writer wins."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        heads = [loaded.head for loaded in self.load([LoadQuery(slice_.name) for slice_ in slices])]
        slices = [
            replace(slice_, mid=head.mid, expected=head.version) if head and slice_.entries else slice_
            for slice_, head in zip(slices, heads, strict=True)
        ]
        return super().commit(slices, receipt_ttl=receipt_ttl)


class ComparesInTwoSteps(SQLiteStore):
    """Looks first and writes then: two processes that look at once both write."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        return [self._after_a_look(slice_, receipt_ttl) for slice_ in slices]

    def _after_a_look(self, slice_: Slice, receipt_ttl: float) -> Outcome:
        (looked,) = self.load([LoadQuery(slice_.name)])
        right = looked.head and (looked.head.mid, looked.head.version) == (slice_.mid, slice_.expected)
        time.sleep(0.01)  # as long as a network takes; without it the mistake is there as well, and seldom seen
        while True:
            (outcome,) = super().commit([slice_], receipt_ttl=receipt_ttl)
            (now,) = self.load([LoadQuery(slice_.name)])
            if outcome != Conflict() or not right or now.head is None:
                return outcome
            slice_ = replace(slice_, expected=now.head.version)


class GivesMidsAgain(InMemoryStore):
    """A rowid without AUTOINCREMENT."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        self._last_mid = max(self._by_mid, default=0)
        return outcomes


class IgnoresKeys(InMemoryStore):
    """Writes no receipts."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        bare = [replace(it, entries=tuple(replace(entry, key=None) for entry in it.entries)) for it in slices]
        return super().commit(bare, receipt_ttl=receipt_ttl)


class WritesHalfSlices(InMemoryStore):
    """Writes entry by entry, and stops where one is refused."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        return [self._one_by_one(slice_, receipt_ttl) for slice_ in slices]

    def _one_by_one(self, slice_: Slice, receipt_ttl: float) -> Outcome:
        if len(slice_.entries) < 2:
            return super().commit([slice_], receipt_ttl=receipt_ttl)[0]
        mid, outcome = slice_.mid, None
        for n, entry in enumerate(slice_.entries):
            part = replace(slice_, mid=mid, expected=slice_.expected + n, entries=(entry,))
            (outcome,) = super().commit([part], receipt_ttl=receipt_ttl)
            if not isinstance(outcome, Committed):
                return replace(outcome, index=n) if hasattr(outcome, "index") else outcome
            mid = outcome.mid
        assert outcome is not None
        return outcome


class StopsAtTheFirstConflict(InMemoryStore):
    """One that is refused takes those behind it along."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for slice_ in slices:
            refused = any(not isinstance(outcome, Committed) for outcome in outcomes)
            outcomes += [Conflict()] if refused else super().commit([slice_], receipt_ttl=receipt_ttl)
        return outcomes


class IgnoresLeases(SQLiteStore):
    """Says that a lease was taken, and lets everybody through."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for slice_ in slices:
            bare = replace(slice_, lease=None, turn_id=b"")
            if slice_.lease is not None and not slice_.entries and slice_.mid:
                outcomes.append(Committed(slice_.mid, self.now()))
            elif slice_.lease is not None and not slice_.entries:
                outcomes += super().commit([slice_], receipt_ttl=receipt_ttl)
            else:
                bare = replace(bare, entries=tuple(replace(entry, turn_id=b"") for entry in bare.entries))
                outcomes += super().commit([bare], receipt_ttl=receipt_ttl)
        return outcomes


class PrunesTheBase(InMemoryStore):
    """Removes all that is older, whether the state needs it or not."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        for row in self._rows.values():
            row.kept = ()
        return outcomes


class SettlesWithYes(InMemoryStore):
    """Takes whatever stands in a slice's place for the slice."""

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        heads = [loaded.head for loaded in self.load([LoadQuery(slice_.name) for slice_ in slices])]
        return [Committed(head.mid, 0) if head else None for head in heads]


class SettlesWithNo(InMemoryStore):
    """Never finds anything."""

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        return [None for _ in slices]


class SkipsChanges(SQLiteStore):
    """Takes places in the order when a commit begins, so that some come to light behind a reader's cursor."""

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        told = super().changes(after, limit)
        return Changes(told.cursor, told.changed[1:]) if len(told.changed) > 2 else told


class MixesTwoInstants(SQLiteStore):
    """Reads the head, and then the entries."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._changed = threading.Event()

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        self._changed.set()
        return outcomes

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        heads = super().load(queries)
        self._changed.clear()
        self._changed.wait(0.01)  # the window, made wide
        later = super().load(queries)
        return [replace(new, head=old.head) for old, new in zip(heads, later, strict=True)]


class TrustsItsCache(SQLiteStore):
    """Reads each memory once, and then only what it wrote itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cache: dict[MemoryName, Version] = {}

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        self._cache.clear()
        return super().commit(slices, receipt_ttl=receipt_ttl)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        answers = super().load(queries)
        for at, (query, loaded) in enumerate(zip(queries, answers, strict=True)):
            if loaded.head is None:
                continue
            version = Version(loaded.head.mid, loaded.head.version)
            cached = self._cache.setdefault(query.name, version)
            if query.known == cached != version:
                answers[at] = Loaded(replace(loaded.head, version=cached.n), cached.n, (), continues=True)
        return answers


class LosesEntriesBetweenPages(InMemoryStore):
    """Counts the last entry of a page twice."""

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        return super().entries(mid, after=after + 1 if after else 0, limit=limit, before=before, newest=newest)


class ReadsPrefixesAsPatterns(InMemoryStore):
    """Uses LIKE."""

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        found = super().names(namespace=namespace, after=after, limit=10_000, updated_after=updated_after)
        return [one for one in found if one.name.id.lower().startswith(prefix.lower())][:limit]


class JoinsNames(InMemoryStore):
    """Keys receipts by namespace and id, written one behind the other."""

    @staticmethod
    def _joined(name: MemoryName) -> MemoryName:
        return MemoryName("", name.namespace + name.id)

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        return super().commit([replace(it, name=self._joined(it.name)) for it in slices], receipt_ttl=receipt_ttl)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        return super().receipts([(self._joined(name), key) for name, key in names_and_keys])

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        return super().load([replace(query, name=self._joined(query.name)) for query in queries])


class KeepsReceiptsForEver(InMemoryStore):
    """Does not look at the time."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        return super().commit(slices, receipt_ttl=1e9)


class DropsReceiptsWithTheMemory(InMemoryStore):
    """Cleans up too well after a delete."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        gone = {slice_.name for slice_ in slices if slice_.delete and slice_.name not in self._rows}
        for name, key in list(self._receipts):
            if name in gone:
                del self._receipts[name, key]
        return outcomes


class TouchesPayloads(InMemoryStore):
    """Reads a payload and writes it anew."""

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        return [
            replace(loaded, entries=tuple(self._anew(stored) for stored in loaded.entries))
            for loaded in super().load(queries)
        ]

    @staticmethod
    def _anew(stored: StoredEntry) -> StoredEntry:
        return replace(stored, payload=json.dumps(json.loads(stored.payload)).encode())


class TakesAnyRevision(InMemoryStore):
    """Metadata of the last writer win."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        changed = []
        for slice_, loaded in zip(slices, self.load([LoadQuery(it.name) for it in slices]), strict=True):
            if slice_.meta is not None and loaded.head is not None:
                slice_ = replace(slice_, meta=NewMeta(loaded.head.meta_version, slice_.meta.data))
            changed.append(slice_)
        return super().commit(changed, receipt_ttl=receipt_ttl)


class LosesTheReceiptsOfCopies(InMemoryStore):
    """Takes in the entries alone."""

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        return super().adopt([replace(transfer, receipts=()) for transfer in transfers])

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        return super().receipts_of(name, after=after, limit=limit)


class AcknowledgesWithoutWriting(InMemoryStore):
    """Loses every third group, and says that it was committed."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock=clock)
        self._groups = 0

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        self._groups += 1
        if self._groups % 3 == 0 and all(slice_.mid for slice_ in slices):
            return [Committed(slice_.mid, self.now()) for slice_ in slices]
        return super().commit(slices, receipt_ttl=receipt_ttl)


class ForgetsAtClosing(SQLiteStore):
    """Writes to a file of its own for each store object."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path.with_name(f"{time.monotonic_ns()}.db"), **options)


class AnswersBeforeItWrites(JournalStore):
    """Gathers records, and writes them when it is closed."""

    _waiting = b""

    def _write(self, file: BinaryIO, data: bytes) -> None:
        self._waiting += data
        if self._end == 0:
            waiting, self._waiting = self._waiting, b""
            super()._write(file, waiting)

    def close(self) -> None:
        if self._file is not None and self._waiting:
            super()._write(self._file, self._waiting)
            self._waiting = b""
        super().close()


def in_memory(kind: Callable[..., Store]) -> Make:
    return lambda _, clock: kind(clock=clock or time.time)


def in_file(kind: Callable[..., Store], **options: Any) -> Make:
    return lambda place, clock: kind(place / "chats", clock=clock or time.time, **options)


SOUND: dict[str, Make] = {
    "memory": in_memory(InMemoryStore),
    "sqlite": in_file(SQLiteStore),
    "shared": in_file(SQLiteStore, shared=True),
    "journal": in_file(JournalStore),
}

# The broken store, how it is made, the sound one that it was made from, and the test that has to find it.
BROKEN: dict[str, tuple[Make, str, str]] = {
    kind.__name__: (in_memory(kind), "memory", test)
    for kind, test in (
        (ForgetsToCompare, "test_another_version_than_the_heads_is_a_conflict_and_writes_nothing"),
        (GivesMidsAgain, "test_a_mid_is_never_used_again"),
        (IgnoresKeys, "test_a_used_key_is_a_duplicate_and_the_whole_slice_writes_nothing"),
        (WritesHalfSlices, "test_a_used_key_is_a_duplicate_and_the_whole_slice_writes_nothing"),
        (StopsAtTheFirstConflict, "test_a_conflict_in_a_group_harms_no_other_slice"),
        (PrunesTheBase, "test_pruned_what_is_older_goes_but_for_base_and_system"),
        (SettlesWithYes, "test_a_slice_that_was_not_committed_is_not_found"),
        (SettlesWithNo, "test_a_commit_whose_reply_is_lost_is_found_and_not_done_again"),
        (LosesEntriesBetweenPages, "test_pages_of_entries_miss_and_repeat_nothing_also_before_the_state"),
        (ReadsPrefixesAsPatterns, "test_a_prefix_is_compared_byte_for_byte"),
        (JoinsNames, "test_keys_belong_to_their_memory"),
        (KeepsReceiptsForEver, "test_receipts_expire_by_the_stores_clock"),
        (DropsReceiptsWithTheMemory, "test_receipts_outlive_clear_and_delete"),
        (TouchesPayloads, "test_entries_come_back_as_they_went_in"),
        (TakesAnyRevision, "test_another_revision_than_the_heads_is_a_conflict_and_writes_nothing"),
        (LosesTheReceiptsOfCopies, "test_a_copys_keys_are_used"),
        (AcknowledgesWithoutWriting, "test_random_histories_are_linearizable"),
    )
} | {
    kind.__name__: (in_file(kind, **options), sound, test)
    for kind, sound, options, test in (
        (IgnoresLeases, "shared", {"shared": True}, "test_while_a_lease_lives_nobody_else_writes_deletes_or_takes_it"),
        (ComparesInTwoSteps, "shared", {"shared": True}, "test_of_many_who_write_to_one_version_exactly_one_does"),
        (SkipsChanges, "sqlite", {}, "test_parts_of_the_changes_miss_nothing"),
        (MixesTwoInstants, "sqlite", {}, "test_a_load_beside_commits_shows_one_instant"),
        (
            TrustsItsCache,
            "shared",
            {"shared": True},
            "test_strong_reads_show_what_the_other_runtime_committed",
        ),
        (ForgetsAtClosing, "sqlite", {}, "test_what_was_committed_is_there_after_reopening"),
        (
            AnswersBeforeItWrites,
            "journal",
            {},
            "test_a_writer_killed_in_between_loses_nothing_that_it_was_told_and_leaves_nothing_by_halves",
        ),
    )
}

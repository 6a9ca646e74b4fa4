"""What the in-memory store keeps of each memory, and of when it expires."""

from __future__ import annotations

from heapq import heappop, heappush

from turnkeeper.log import (
    COMPACT,
    FORK,
    Entry,
    Head,
    StoredEntry,
    encode_payload,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores.base import Transfer

__all__ = ["Expiries", "Row"]


class Row:
    """A memory: its head, and its entries as they were handed over, so that nothing is encoded twice."""

    __slots__ = (
        "base",
        "created_at",
        "entries",
        "expires_at",
        "kept",
        "meta",
        "meta_version",
        "mid",
        "pruned",
        "system",
        "times",
        "updated_at",
    )

    def __init__(self, mid: int, created_at: int) -> None:
        self.mid: int = mid
        self.base: int = 0
        self.system: int = 0
        self.created_at: int = created_at
        self.updated_at: int = created_at
        self.expires_at: int = 0
        self.meta_version: int = 0
        self.meta: bytes | None = None
        self.entries: list[Entry] = []
        self.times: list[int] = []
        self.pruned: int = 0  # entries removed before those held
        self.kept: tuple[StoredEntry, ...] = ()  # of the removed ones, those that the state needs

    @property
    def version(self) -> int:
        """Number of the last entry."""
        return self.pruned + len(self.entries)

    def head(self) -> Head:
        """Return the row as the contract's record."""
        return Head(
            self.mid,
            self.version,
            self.base,
            self.system,
            self.created_at,
            self.updated_at,
            self.expires_at,
            self.meta_version,
            self.meta,
        )

    def stored(self, first: int, last: int) -> tuple[StoredEntry, ...]:
        """Return the entries of these numbers that are there, both ends included."""
        kept = tuple([entry for entry in self.kept if first <= entry.version <= last])
        first = max(first, self.pruned + 1)
        return kept + tuple(
            StoredEntry(n, entry.op, entry.entry_id, encode_payload(entry), self.times[n - 1 - self.pruned])
            for n, entry in enumerate(self.entries[first - 1 - self.pruned : max(last - self.pruned, 0)], start=first)
        )

    def start(self) -> StoredEntry | None:
        """Return the entry that starts the state, if it has a summary to show."""
        place = self.base - 1 - self.pruned
        if not self.base or (place >= 0 and self.entries[place].op not in (COMPACT, FORK)):
            return None
        started = self.stored(self.base, self.base)
        return started[0] if started and started[0].op in (COMPACT, FORK) else None

    def adopt(self, transfer: Transfer) -> None:
        """Take over what another store's row says, and its entries behind those that are here."""
        head = transfer.head
        self.base, self.system, self.meta, self.meta_version = head.base, head.system, head.meta, head.meta_version
        self.created_at, self.updated_at, self.expires_at = head.created_at, head.updated_at, head.expires_at
        for entry in transfer.entries:
            self._skip_to(entry.version)
            self.entries.append(Entry(entry.op, entry.entry_id, (), sealed=entry.payload))
            self.times.append(entry.at)
        self._skip_to(head.version + 1)

    def _skip_to(self, version: int) -> None:
        """Let this be the next entry's number; those between were pruned in another store."""
        last = self.version
        if version > last + 1:
            self.kept = self.stored(1, last)
            self.entries, self.times, self.pruned = [], [], version - 1

    def reseal(self, version: int, old: bytes, new: bytes) -> bool:
        """Put other bytes into the place of an entry's payload, or of the metadata, if those are still there."""
        if not version:
            done = self.meta == old
            self.meta = new if done else self.meta
            return done
        found = self.stored(version, version)
        if not found or found[0].payload != old:
            return False
        if version > self.pruned:
            self.entries[version - 1 - self.pruned] = Entry(found[0].op, found[0].entry_id, (), sealed=new)
        else:
            sealed = StoredEntry(version, found[0].op, found[0].entry_id, new, found[0].at)
            self.kept = tuple([sealed if entry.version == version else entry for entry in self.kept])
        return True

    def prune(self, before: int) -> None:
        """Remove the entries before this one, but for those at `base` and `system`."""
        leaving = min(before - 1, self.version) - self.pruned
        stay = sorted({self.base, self.system})
        kept = [entry for entry in self.kept if entry.version >= before or entry.version in stay]
        for version in stay:
            if self.pruned < version <= self.pruned + leaving:
                kept += self.stored(version, version)
        self.kept = tuple(kept)
        if leaving > 0:
            del self.entries[:leaving]
            del self.times[:leaving]
            self.pruned += leaving


class Expiries:
    """Which memories expire when, the oldest first: a heap with about one item for each that does.

    An item is a time before which nothing has to be done; one that comes too early, because the memory was changed
    since, is put back with its present time when it comes up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, MemoryName]] = []
        self._noted: dict[int, int] = {}

    def note(self, mid: int, name: MemoryName, at: int) -> None:
        """Take note that a memory expires at a time; 0: never."""
        noted = self._noted.get(mid)
        if at and (noted is None or at < noted):
            self._noted[mid] = at
            heappush(self._heap, (at, mid, name))

    def over(self, now: int, limit: int, rows: dict[int, Row]) -> list[MemoryName]:
        """Return up to `limit` memories whose time is over, the oldest first."""
        found: list[tuple[int, int, MemoryName]] = []
        while len(found) < limit and self._heap and self._heap[0][0] <= now:
            at, mid, name = item = heappop(self._heap)
            if self._noted.get(mid) != at:
                continue  # noted for an earlier time since
            row = rows.get(mid)
            if row is not None and row.expires_at == at:
                found.append(item)
                continue
            del self._noted[mid]
            if row is not None:
                self.note(mid, name, row.expires_at)
        for item in found:  # they are over until somebody deletes them
            heappush(self._heap, item)
        return [name for _, _, name in found]

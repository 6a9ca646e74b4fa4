"""The store that forgets: dictionaries, called inline. It keeps the promises that don't outlive the process."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import ClassVar

from turnkeeper.log import (
    Committed,
    Conflict,
    Duplicate,
    Key,
    Loaded,
    LoadQuery,
    Outcome,
    Receipt,
    Slice,
    StoredEntry,
    StoredReceipt,
    Version,
    first_entry,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import deciding
from turnkeeper.stores.base import KeptReceipt, Listed, Reseal, Store, Transfer
from turnkeeper.stores.in_memory_rows import Expiries, Row
from turnkeeper.stores.ranges import end_of_prefix

__all__ = ["InMemoryStore"]

_CONFLICT = Conflict()


class InMemoryStore(Store):
    """Keeps everything in this process and loses it at its end.

    Args:
        clock: returns seconds since the epoch.
    """

    inline: ClassVar[bool] = True

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Start empty."""
        self._clock = clock
        self._rows: dict[MemoryName, Row] = {}
        self._receipts: dict[tuple[MemoryName, str], tuple[StoredReceipt, float]] = {}
        self._by_mid: dict[int, Row] = {}
        self._last_mid = 0
        self._expiries = Expiries()
        # Rows are appended to, so names are sorted only when somebody lists them.
        self._order: list[MemoryName] | None = None

    def open(self, *, durability: str) -> None:
        """Do nothing: there is nothing to open."""

    def close(self) -> None:
        """Do nothing: a store may be used by one runtime after another."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Commit each slice."""
        return [self._commit(slice_, receipt_ttl) for slice_ in slices]

    def _commit(self, slice_: Slice, receipt_ttl: float) -> Outcome:
        now = self._clock()
        keyed = [(index, entry.key) for index, entry in enumerate(slice_.entries) if entry.key is not None]
        for index, key in keyed:
            held = self._receipts.get((slice_.name, key.key))
            if held is not None and held[1] > now:
                return Duplicate(index, held[0])
        row = self._rows.get(slice_.name)
        if (row.mid if row else 0) != slice_.mid or (row and row.pruned + len(row.entries) != slice_.expected):
            return _CONFLICT
        if row and slice_.base_was not in (-1, row.base) and (slice_.entries or slice_.prune):
            return _CONFLICT
        meta, at = slice_.meta, max(int(now * 1e6), slice_.not_before)
        if meta is not None and meta.expected != (row.meta_version if row else 0):
            return _CONFLICT
        if slice_.delete:
            return self._delete(row, slice_, at, int(now * 1e6))
        if row is None:
            if not slice_.entries and meta is None:
                return _CONFLICT
            row = self._make_row(slice_.name, at)
        if slice_.entries:
            row.entries.extend(slice_.entries)
            row.times.extend([at] * len(slice_.entries))
            row.updated_at = at
        if slice_.entries or slice_.prune:
            row.base = slice_.base
            row.system = slice_.system
        if meta is not None:
            row.meta_version += 1
            row.meta = meta.data
        if slice_.expires_after or row.expires_at:
            self._expire(row, slice_, at)
        if slice_.prune:
            row.prune(slice_.prune)
        if keyed:
            self._keep_receipts(slice_, row.mid, keyed, now + receipt_ttl)
        return Committed(row.mid, at)

    def _delete(self, row: Row | None, slice_: Slice, at: int, now: int) -> Outcome:
        if slice_.only_expired and (row is None or not 0 < row.expires_at <= now):
            return _CONFLICT
        if row is not None:
            del self._rows[slice_.name], self._by_mid[row.mid]
            self._order = None
        return Committed(slice_.mid, at)

    def _expire(self, row: Row, slice_: Slice, at: int) -> None:
        if slice_.entries or slice_.meta is not None:
            row.expires_at = at + int(slice_.expires_after * 1e6) if slice_.expires_after else 0
            self._expiries.note(row.mid, slice_.name, row.expires_at)

    def _keep_receipts(self, slice_: Slice, mid: int, keyed: list[tuple[int, Key]], expires_at: float) -> None:
        for index, key in keyed:
            receipt = Receipt(Version(mid, slice_.expected + index + 1), len(slice_.entries[index].messages))
            self._receipts.pop((slice_.name, key.key), None)  # an expired one keeps no place in the order
            self._receipts[slice_.name, key.key] = StoredReceipt(receipt, key.digest), expires_at
        # Keys expire in the order in which they came (one runtime, one lifetime), so the oldest two pay for the new.
        # One from another store that lives longer keeps those behind it meanwhile; nobody finds them any more.
        now = self._clock()
        for _ in range(2 * len(keyed)):
            oldest = next(iter(self._receipts), None)
            if oldest is None or self._receipts[oldest][1] > now:
                break
            del self._receipts[oldest]

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Take in each transfer."""
        return [self._adopt(transfer) for transfer in transfers]

    def _adopt(self, transfer: Transfer) -> Outcome:
        name, now = transfer.name, self._clock()
        row = self._rows.get(name)
        if (row.mid if row else 0) != transfer.mid:
            return _CONFLICT
        if row and (
            row.version != transfer.expected
            or transfer.base_was not in (-1, row.base)
            or transfer.meta_was not in (-1, row.meta_version)
        ):
            return _CONFLICT
        if row is None:
            row = self._make_row(name, transfer.head.created_at)
        row.adopt(transfer)
        self._expiries.note(row.mid, name, row.expires_at)
        for kept in transfer.receipts:
            version = Version(row.mid if kept.version.mid else 0, kept.version.n)
            self._receipts.pop((name, kept.key), None)
            stored = StoredReceipt(Receipt(version, kept.count), kept.digest)
            self._receipts[name, kept.key] = stored, kept.expires_at / 1e6
        return Committed(row.mid, int(now * 1e6))

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Put each payload into the place of another."""
        rows = [self._rows.get(change.name) for change in changes]
        return [
            row is not None and row.mid == change.mid and row.reseal(change.version, change.old, change.new)
            for row, change in zip(rows, changes, strict=True)
        ]

    def _make_row(self, name: MemoryName, created_at: int) -> Row:
        self._last_mid += 1
        row = self._rows[name] = self._by_mid[self._last_mid] = Row(self._last_mid, created_at)
        self._order = None
        return row

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """Look for the slices' entry ids."""
        return [self._settle(slice_) for slice_ in slices]

    def _settle(self, slice_: Slice) -> Outcome | None:
        row = self._rows.get(slice_.name)
        if slice_.delete:
            return Committed(slice_.mid, 0) if row is None or row.mid != slice_.mid else None
        if row is None or (slice_.mid and row.mid != slice_.mid):
            return None
        if not slice_.entries:
            return self._settle_change(row, slice_)
        if row.version <= slice_.expected:
            return None
        place = slice_.expected - row.pruned
        found, at = (None, 0) if place < 0 else (row.entries[place].entry_id, row.times[place])
        return deciding.settled_entries(slice_, row.mid, row.version, found, at)

    def _settle_change(self, row: Row, slice_: Slice) -> Outcome | None:
        meta = slice_.meta
        if meta is not None:
            return deciding.settled_meta(row.head(), meta)
        left = [entry.version for entry in row.kept if entry.version < slice_.prune]
        done = row.base >= slice_.base and row.pruned >= min(slice_.prune - 1, slice_.expected)
        return Committed(row.mid, row.updated_at) if done and set(left) <= {slice_.base, slice_.system} else None

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read memories."""
        return [self._load(query) for query in queries]

    def _load(self, query: LoadQuery) -> Loaded:
        row = self._rows.get(query.name)
        if row is None:
            return Loaded(None, 0, ())
        known = query.known
        last = row.version
        if known is not None and known.mid == row.mid and row.base <= known.n:
            return Loaded(row.head(), known.n, row.stored(known.n + 1, last), continues=True)
        start = row.start()
        base = first_entry(start, row.base)
        first = max(base, last + 1 - query.newest) if query.newest else base
        system = row.stored(row.system, row.system)[0] if 0 < row.system < first else None
        if start is not None and start.version >= first:
            start = None  # it is among them
        return Loaded(row.head(), first - 1 if first > base else 0, row.stored(first, last), system, start=start)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        now = self._clock()
        held = [self._receipts.get(name_and_key) for name_and_key in names_and_keys]
        return [found[0] if found is not None and found[1] > now else None for found in held]

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Go through all receipts there are; a copy alone asks."""
        now = self._clock()
        found = [
            KeptReceipt(key, stored.digest, stored.receipt.version, stored.receipt.count, int(expires_at * 1e6))
            for (named, key), (stored, expires_at) in self._receipts.items()
            if named == name and key > after and expires_at > now
        ]
        return sorted(found, key=lambda kept: kept.key)[:limit]

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories; code points sort as their UTF-8 does."""
        if self._order is None:
            self._order = sorted(self._rows)
        order = self._order
        start, end = 0 if after is None else bisect_right(order, after), len(order)
        if namespace is not None:
            start = max(start, bisect_left(order, MemoryName(namespace, prefix)))
            behind = end_of_prefix(prefix)
            last = MemoryName(namespace + "\0", "") if behind is None else MemoryName(namespace, behind)
            end = bisect_left(order, last)
        listed: list[Listed] = []
        for place in range(start, end):
            if len(listed) == limit:
                break
            name = order[place]
            if name.id.startswith(prefix) and (row := self._rows[name]).updated_at > updated_after:
                listed.append(Listed(name, row.head()))
        return listed

    def expired(self, limit: int) -> list[MemoryName]:
        """List memories whose time is over."""
        return self._expiries.over(self.now(), limit, self._by_mid)

    def now(self) -> int:
        """Ask the clock."""
        return int(self._clock() * 1e6)

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        row = self._by_mid.get(mid)
        if row is None:
            return []
        last = min(row.version, before - 1) if before else row.version
        left = [entry for entry in row.kept if after < entry.version <= last]
        first = max(after, row.pruned) + 1
        if newest:
            return [*left, *row.stored(max(first, last + 1 - limit), last)][-limit:]
        return [*left, *row.stored(first, min(last, first + limit - 1))][:limit]

    def describe(self) -> str:
        """Say what this is."""
        return "memory:"

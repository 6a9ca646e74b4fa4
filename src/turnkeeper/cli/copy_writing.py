"""Copying one memory: part after part, each proven in the target before the next one is read."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from turnkeeper.cli.copy_checking import has_leftovers
from turnkeeper.cli.copy_judging import (
    NOTE_KEY,
    NOTHING,
    PRESENT,
    Place,
    Stores,
    is_untouched,
    judge,
    note_of,
    place_of,
    same,
)
from turnkeeper.cli.copy_reading import ChangedError, Part, RefusedError, look, parts
from turnkeeper.cli.copy_standing import Standing
from turnkeeper.cli.renumbering import isolated_before
from turnkeeper.log import Committed, Head, Held, Outcome, Slice, StoredEntry, Version
from turnkeeper.names import MemoryName
from turnkeeper.stores import KeptReceipt, Loaded, Transfer

__all__ = ["COPIED", "EXTENDED", "GONE", "REPLACED", "UPDATED", "Done", "Landed", "MemoryCopy"]

COPIED: Final = "copied"
EXTENDED: Final = "extended"
UPDATED: Final = "updated"
REPLACED: Final = "replaced"
GONE: Final = "gone"

_ATTEMPTS: Final = 5
"""How often a memory is looked at anew that is changed while it is copied."""

_RECEIPTS: Final = 1000
"""Receipts read, and sent, at once."""

_OTHER_TURN: Final = "is held by a turn in the target: copy again later"


class Landed(NamedTuple):
    """What became of a transfer: the store's word, and the row that is there then."""

    outcome: Outcome
    head: Head | None


class Done(NamedTuple):
    """What was done for one memory.

    Attributes:
        what: one of this module's constants, `PRESENT` or `AHEAD`.
        entries: how many were written.
        receipts: the same of receipts.
    """

    what: str
    entries: int = 0
    receipts: int = 0


Steps: TypeAlias = Generator[Transfer, Landed, Done]


class MemoryCopy:
    """The copying of one memory. `steps` yields what is to be written, and is told what became of it.

    Args:
        stores: where from and where to.
        name: the memory.
        replaces: something else under its name is deleted first.
        checks: what is there already is compared as a whole.
    """

    def __init__(self, stores: Stores, name: MemoryName, *, replaces: bool, checks: bool) -> None:
        self.name: MemoryName = name
        self._stores = stores
        self._replaces = replaces
        self._checks = checks
        self._entries = 0
        self._receipts = 0
        self._what = ""

    def steps(self, seen: Loaded, there: Loaded) -> Steps:
        """Copy what is missing of a memory, as it was found in the source and in the target.

        Raises:
            RefusedError: it is not in the target as it is in the source; what else is there was left alone.
        """
        for _ in range(_ATTEMPTS):
            try:
                head = seen.head
                if head is None or (head.version == 0 and head.meta is None):
                    return self._done(self._gone(there))
                place = self._checked(head, there.head, self._judge(seen, there))
                if isinstance(place, str):
                    return self._done(self._what or place)
                if not (yield from self._write(head, place)):
                    return self._done(self._what)
            except ChangedError:
                pass
            seen, there = self._look()
        if self._what:
            return self._done(self._what)  # the source goes on faster than this; what is there is a state that it had
        raise RefusedError("is changed faster than it can be copied: copy again later")

    def _done(self, what: str) -> Done:
        return Done(what, self._entries, self._receipts)

    def _look(self) -> tuple[Loaded, Loaded]:
        (seen,), (there,) = look(self._stores.source, [self.name]), look(self._stores.target, [self.name])
        if seen is None or there is None:
            raise RefusedError(f"can't be read in the {'source' if seen is None else 'target'}")
        return seen, there

    # What is there

    def _judge(self, seen: Loaded, there: Loaded) -> Place | str:
        try:
            place = judge(self._stores, self.name, seen, there)
        except RefusedError:
            if not self._replaces or self._what:
                raise
            place = Place(there.head.mid if there.head else 0, NOTHING.standing, there.head, remade=True)
        if isinstance(place, str) or not place.remade:
            return place
        assert place.head is not None
        self._delete(place.head)
        self._what = REPLACED
        return NOTHING

    def _checked(self, head: Head, there: Head | None, place: Place | str) -> Place | str:
        """Compare what is said to be there; what the source has pruned since makes it something to be written."""
        if self._checks and isinstance(place, str) and there is not None:
            leftovers = has_leftovers(self._stores, self.name, head, there)
            if leftovers and place == PRESENT and there.base <= head.base:
                return place_of(there, keeps_meta=there.meta_version > head.meta_version)
        return place

    def _delete(self, head: Head) -> None:
        slice_ = Slice(self.name, head.mid, head.version, (), delete=True)
        self._commit(slice_)

    def _commit(self, slice_: Slice) -> None:
        (outcome,) = self._stores.target.commit([slice_], receipt_ttl=1.0)
        self._check(outcome)

    def _check(self, outcome: Outcome) -> Committed:
        if isinstance(outcome, Committed):
            return outcome
        if isinstance(outcome, Held):
            raise RefusedError(_OTHER_TURN)
        raise ChangedError  # somebody else writes to it in the target

    def _gone(self, there: Loaded) -> str:
        """Take back what was copied of a memory that was deleted meanwhile."""
        if self._what and there.head is not None:
            (note,) = self._stores.target.receipts([(self.name, NOTE_KEY)])
            if is_untouched(self._stores, there.head, note):
                self._delete(there.head)
        self._entries = self._receipts = 0
        return GONE

    # Writing

    def _write(self, head: Head, place: Place) -> Generator[Transfer, Landed, bool]:
        """Write what is missing; return whether so much time has passed that another look is due."""
        stores, pending = self._stores, Part((), place.standing)
        sent = False
        for part in parts(stores.source, self.name, head, place.standing):
            if pending.entries:
                place = yield from self._send(head, place, pending.standing, pending.entries)
                sent = True
            pending = part
        place, kept = yield from self._write_receipts(head, place, pending)
        standing = pending.standing
        final = standing if head.base < standing.base else Standing(head.version, head.base, head.system)
        if self._has_leftovers(head, place, pending):
            # The row is not the source's before they are gone: whatever happens in between, the next run finds out.
            unfinished = replace(head, updated_at=head.updated_at - 1)
            place = yield from self._send(unfinished, place, standing, pending.entries, kept, whole=True)
            place = self._prune(head, place)
            yield from self._send(head, place, final, whole=True)
        else:
            yield from self._send(head, place, final, pending.entries, kept, whole=True)
        return sent

    def _send(
        self,
        head: Head,
        place: Place,
        standing: Standing,
        entries: tuple[StoredEntry, ...] = (),
        kept: tuple[KeptReceipt, ...] = (),
        *,
        whole: bool = False,
    ) -> Generator[Transfer, Landed, Place]:
        """Write a part, and read it back; return where the memory stands then."""
        row, was = self._row(head, place, standing, entries, whole=whole), place.head
        note = note_of(self._stores, head, standing.n, row.meta_version)
        transfer = Transfer(
            self.name,
            place.mid,
            place.standing.n,
            row,
            entries,
            (*kept, note),
            -1 if was is None else was.base,
            -1 if was is None else was.meta_version,
        )
        landed = yield transfer
        mid = self._check(landed.outcome).mid
        self._what = self._what or (UPDATED if not entries and was else EXTENDED if was and was.version else COPIED)
        self._verify(mid, transfer, landed.head)
        self._entries += len(entries)
        self._receipts += len(kept)
        return place_of(replace(row, mid=mid), keeps_meta=place.keeps_meta)

    def _row(
        self, head: Head, place: Place, standing: Standing, entries: tuple[StoredEntry, ...], *, whole: bool
    ) -> Head:
        was = place.head
        updated_at = head.updated_at
        if not whole:
            updated_at = entries[-1].at if entries else was.updated_at if was is not None else head.created_at
        row = replace(
            head, mid=0, version=standing.n, base=standing.base, system=standing.system, updated_at=updated_at
        )
        if was is not None and place.keeps_meta:
            row = replace(row, meta=was.meta, meta_version=was.meta_version)
            if was.version == standing.n:
                row = replace(row, expires_at=was.expires_at)
        return row

    def _verify(self, mid: int, transfer: Transfer, now: Head | None) -> None:
        """Compare what was written with what another connection finds."""
        reader, head, sent = self._stores.reader, transfer.head, transfer.entries
        if now is None or now.mid != mid:
            raise RefusedError("was deleted in the target meanwhile")
        if now.version < head.version:
            raise RefusedError(f"is not in the target as it was written: it ends at entry {now.version}")
        touched = now.version > head.version or now.meta_version > head.meta_version or now.base > head.base
        if not touched and not same(now, head):
            raise RefusedError(f"is not in the target as it was written: its row is another at entry {now.version}")
        found = {}
        if sent:
            last = sent[-1].version
            entries = reader.entries(mid, after=transfer.expected, before=last + 1, limit=len(sent) + 1)
            found = {entry.version: entry for entry in entries}
        for entry in sent:
            stored = found.pop(entry.version, None)
            if stored != entry and (stored is not None or now.base <= entry.version):  # it may have been pruned there
                raise RefusedError(f"is not in the target as it was written, at entry {entry.version}")
        if found:
            raise RefusedError(f"is not in the target as it was written: it has an entry {min(found)} more")
        receipts = reader.receipts([(self.name, kept.key) for kept in transfer.receipts])
        for kept, receipt in zip(transfer.receipts, receipts, strict=True):
            if receipt is None and kept.expires_at > reader.now():
                raise RefusedError(f"is not in the target as it was written: a receipt of entry {kept.version.n} lacks")
            wanted = Version(mid if kept.version.mid else 0, kept.version.n), kept.count, kept.digest
            if receipt is not None and wanted != (receipt.receipt.version, receipt.receipt.count, receipt.digest):
                raise RefusedError(f"is not in the target as it was written: a receipt of entry {kept.version.n}")

    def _write_receipts(
        self, head: Head, place: Place, pending: Part
    ) -> Generator[Transfer, Landed, tuple[Place, tuple[KeptReceipt, ...]]]:
        """Write receipts that need none of the entries still to come; return those that are to come with them.

        So a memory that looks whole has all of them.
        """
        held: list[KeptReceipt] = []
        after = ""
        while page := self._stores.source.receipts_of(self.name, after=after, limit=_RECEIPTS):
            after = page[-1].key
            early: list[KeptReceipt] = []
            for kept in page:
                n = kept.version.n
                if kept.key == NOTE_KEY:
                    continue
                if kept.version.mid != head.mid:
                    early.append(replace(kept, version=Version(0, n)))
                elif n <= place.standing.n:
                    early.append(kept)
                elif n <= head.version:  # others are of entries that came since
                    held.append(kept)
            if len(page) < _RECEIPTS and len(held) + len(early) <= _RECEIPTS:
                return place, (*early, *held)
            if early:
                place = yield from self._send(head, place, place.standing, (), tuple(early))
            if len(page) < _RECEIPTS:
                break
        return place, tuple(held)

    # Pruning as the source did

    def _has_leftovers(self, head: Head, place: Place, pending: Part) -> bool:
        """Tell whether the target has older entries that the source has pruned, or would have some with this part."""
        if place.standing.n:
            source, target = self._beginnings(head, place)
            return source != target or _has_gap(pending.entries)
        if not _has_gap(pending.entries):
            return False
        kept, first = isolated_before(self._stores.source, head)
        return [entry.version for entry in kept] != [
            entry.version for entry in pending.entries if entry.version < first
        ]

    def _beginnings(self, head: Head, place: Place) -> tuple[list[int], list[int]]:
        """Return with which entries the log begins in the source and in the target, up to where it is whole from."""
        found = []
        for store, mid in ((self._stores.source, head.mid), (self._stores.target, place.mid)):
            kept, first = isolated_before(store, replace(head, mid=mid))
            found.append([*[entry.version for entry in kept], first])
        return found[0], found[1]

    def _prune(self, head: Head, place: Place) -> Place:
        """Remove them, and where that leaves something else than the source has, let all be copied anew."""
        source, target = self._beginnings(head, place)
        was = place.standing
        if source == target:
            return place
        base, system = max((head.base, head.system), (was.base, was.system))
        self._commit(
            Slice(self.name, place.mid, was.n, (), base=base, system=system, prune=source[-1], base_was=was.base)
        )
        source, target = self._beginnings(head, place)
        assert place.head is not None
        if source[-1] == target[-1] and source != target:
            self._delete(place.head)
            raise ChangedError
        return place_of(replace(place.head, base=base, system=system), keeps_meta=place.keeps_meta)


def _has_gap(entries: tuple[StoredEntry, ...]) -> bool:
    return bool(entries) and entries[-1].version - entries[0].version + 1 != len(entries)

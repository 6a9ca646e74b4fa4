"""Comparing a memory with its copy down to the last byte, where both are at hand."""

from __future__ import annotations

from typing import Final

from turnkeeper.cli.copy_judging import NOTE_KEY, Stores
from turnkeeper.cli.copy_reading import RefusedError
from turnkeeper.cli.walking import log_entries
from turnkeeper.log import Head, Version
from turnkeeper.names import MemoryName

__all__ = ["has_leftovers"]

_RECEIPTS: Final = 1000


def has_leftovers(stores: Stores, name: MemoryName, source: Head, target: Head) -> bool:
    """Compare all that the source has of a memory with what the target has; tell whether that has older entries, too.

    Raises:
        RefusedError: something differs or is missing.
    """
    _compare_receipts(stores, name, source, target)
    leftovers = False
    wanted = log_entries(stores.source, source.mid, before=source.version + 1)
    there = log_entries(stores.reader, target.mid, before=source.version + 1)
    one, other = next(wanted, None), next(there, None)
    while one is not None or other is not None:
        if other is not None and (one is None or other.version < one.version):
            leftovers = True  # pruned in the source since
            other = next(there, None)
        elif one is not None and (other is None or one.version < other.version):
            if target.base <= one.version:
                raise RefusedError(f"is not the same in the target: entry {one.version} is missing")
            one = next(wanted, None)  # pruned in the target
        else:
            if one != other:
                raise RefusedError(f"is not the same in the target: entry {one.version if one else 0} differs")
            one, other = next(wanted, None), next(there, None)
    return leftovers


def _compare_receipts(stores: Stores, name: MemoryName, source: Head, target: Head) -> None:
    after = ""
    while page := stores.source.receipts_of(name, after=after, limit=_RECEIPTS):
        after = page[-1].key
        due = stores.reader.now() + 60_000_000  # others may expire while they are compared
        page = [kept for kept in page if kept.key != NOTE_KEY and kept.expires_at > due]
        for kept, found in zip(page, stores.reader.receipts([(name, kept.key) for kept in page]), strict=True):
            n, here = kept.version.n, kept.version.mid == source.mid
            if here and n > source.version:
                continue  # it came since
            wanted = Version(target.mid if here else 0, n), kept.count, kept.digest
            if found is None or (found.receipt.version, found.receipt.count, found.digest) != wanted:
                raise RefusedError(f"is not the same in the target: a receipt of entry {n} differs or is missing")

"""Going through all memories that are to be copied: pages of them are looked at, groups of parts written, together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from turnkeeper.cli.copy_judging import NOTE_KEY, PRESENT, Stores, is_untouched, same
from turnkeeper.cli.copy_reading import RefusedError, look
from turnkeeper.cli.copy_writing import GONE, Done, Landed, MemoryCopy, Steps
from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.log import Committed, Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.stores import Loaded, Transfer

__all__ = ["DELETED", "Copier", "Counts"]

DELETED: Final = "deleted"

_GROUP: Final = 256
_GROUP_BYTES: Final = 4 * 2**20
"""Parts of different memories that are written together, in one commit: so many at most, or of this size."""

_FIRST_PAGE: Final = 16
_LARGEST_PAGE: Final = 512
_PAGE_BYTES: Final = 4 * 2**20
"""Memories looked at together: as many as this leaves room for, by what their newest entries took so far."""


@dataclass(slots=True)
class Counts:
    """How far a copy is.

    Attributes:
        memories: how many are in the target as they are in the source.
        entries: how many entries were written.
        receipts: the same of receipts.
        failed: how many memories could not be copied.
        what: the memories by what was done.
    """

    memories: int = 0
    entries: int = 0
    receipts: int = 0
    failed: int = 0
    what: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Step:
    """A memory under way, and what it is told next."""

    name: MemoryName
    steps: Steps
    landed: Landed | StoreError | None = None


class Copier:
    """Copies memories from one store to another.

    Args:
        stores: where from and where to.
        counts: what was done is counted there.
        replaces: something else under a memory's name is deleted first.
        checks: what is there already is compared as a whole.
        tell: told why a memory is not copied.
        show: called whenever the counts have changed.
    """

    def __init__(
        self,
        stores: Stores,
        counts: Counts,
        *,
        replaces: bool,
        checks: bool,
        tell: Callable[[str], None],
        show: Callable[[], None],
    ) -> None:
        self._stores = stores
        self._counts = counts
        self._replaces = replaces
        self._checks = checks
        self._tell = tell
        self._show = show

    def run(self, *, namespace: str | None, prefix: str) -> None:
        """Copy all that are there, or those of a namespace, or with ids that begin with a prefix.

        Raises:
            StoreUnavailableError: one of the stores can't be reached any more.
        """
        source, after, limit = self._stores.source, None, _FIRST_PAGE
        while page := source.names(namespace=namespace, after=after, limit=limit, prefix=prefix):
            after = page[-1].name
            names = [listed.name for listed in page if listed.head.version or listed.head.meta is not None]
            seen, there = look(source, names), look(self._stores.target, names)
            self._drive(self._begin(names, seen, there))
            size = sum([_size(loaded) for loaded in (*seen, *there)])
            limit = max(1, min(_LARGEST_PAGE, 4 * limit, _PAGE_BYTES * len(names) // size if size else _LARGEST_PAGE))
            self._show()

    def delete_gone(self, *, namespace: str | None, prefix: str) -> None:
        """Delete the copies of what the source has deleted since, where nobody has touched them."""
        target, after = self._stores.target, None
        while page := target.names(namespace=namespace, after=after, limit=_LARGEST_PAGE, prefix=prefix):
            after = page[-1].name
            notes = target.receipts([(listed.name, NOTE_KEY) for listed in page])
            copies = [
                listed
                for listed, note in zip(page, notes, strict=True)
                if is_untouched(self._stores, listed.head, note)
            ]
            seen = look(self._stores.source, [listed.name for listed in copies])
            for listed, one in zip(copies, seen, strict=True):
                if one is None or one.head is not None:
                    continue
                slice_ = Slice(listed.name, listed.head.mid, listed.head.version, (), delete=True)
                if isinstance(target.commit([slice_], receipt_ttl=1.0)[0], Committed):
                    self._counts.what[DELETED] += 1

    def _begin(
        self, names: Sequence[MemoryName], seen: Sequence[Loaded | None], there: Sequence[Loaded | None]
    ) -> Iterator[_Step]:
        """Yield the memories for which something is left to do."""
        for name, one, other in zip(names, seen, there, strict=True):
            if one is None or other is None:
                self._fail(name, f"can't be read in the {'source' if one is None else 'target'}")
            elif _equal(one, other) and not self._checks:
                self._end(Done(PRESENT))
            else:
                copy = MemoryCopy(self._stores, name, replaces=self._replaces, checks=self._checks)
                yield _Step(name, copy.steps(one, other))

    def _drive(self, steps: Iterator[_Step]) -> None:
        """Bring memories to their ends: those that are under way first, so that few parts are in RAM at once."""
        under_way: deque[_Step] = deque()
        group: list[tuple[_Step, Transfer]] = []
        size = 0
        while True:
            step = under_way.popleft() if under_way else next(steps, None)
            if step is not None and (transfer := self._advance(step)) is not None:
                group.append((step, transfer))
                size += sum([len(entry.payload) for entry in transfer.entries])
            if group and (step is None or len(group) == _GROUP or size >= _GROUP_BYTES):
                self._write(group)
                under_way.extend([step for step, _ in group])
                group, size = [], 0
                self._show()
            elif step is None:
                return

    def _advance(self, step: _Step) -> Transfer | None:
        """Return what a memory wants to be written next; None: it has come to its end."""
        try:
            if isinstance(step.landed, Landed):
                return step.steps.send(step.landed)
            return next(step.steps) if step.landed is None else step.steps.throw(step.landed)
        except StopIteration as stop:
            self._end(stop.value)
        except RefusedError as refused:
            self._fail(step.name, str(refused))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            self._fail(step.name, f"can't be copied: {error}")
        return None

    def _write(self, group: Sequence[tuple[_Step, Transfer]]) -> None:
        """Write a group, and let another connection look at what became of it."""
        outcomes: list[Outcome | StoreError] = self._adopt([transfer for _, transfer in group])
        loaded = look(self._stores.reader, [step.name for step, _ in group])
        for (step, _), outcome, now in zip(group, outcomes, loaded, strict=True):
            if isinstance(outcome, StoreError):
                step.landed = outcome
            elif now is None:
                step.landed = StoreError("what was written can't be read")
            else:
                step.landed = Landed(outcome, now.head)

    def _adopt(self, transfers: Sequence[Transfer]) -> list[Outcome | StoreError]:
        try:
            return list(self._stores.target.adopt(transfers))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if len(transfers) == 1:
                return [error]
        return [self._adopt([transfer])[0] for transfer in transfers]  # one of them has a reason of its own: find it

    def _end(self, done: Done) -> None:
        counts = self._counts
        counts.what[done.what] += 1
        counts.memories += done.what != GONE
        counts.entries += done.entries
        counts.receipts += done.receipts

    def _fail(self, name: MemoryName, reason: str) -> None:
        self._counts.failed += 1
        self._tell(f"memory {name.id!r} (namespace {name.namespace!r}) {reason}")


def _equal(one: Loaded, other: Loaded) -> bool:
    return (
        one.head is not None
        and other.head is not None
        and same(one.head, other.head)
        and (one.entries == other.entries)
    )


def _size(loaded: Loaded | None) -> int:
    if loaded is None:
        return 0
    others = [entry for entry in (loaded.system, loaded.start) if entry is not None]
    return sum([len(entry.payload) for entry in (*loaded.entries, *others)])

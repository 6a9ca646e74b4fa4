"""A log of which the beginning was pruned, as one that begins with entry 1, so that it can be written anew. Pure.

What pruning left of the beginning, the current system message and a summary, becomes one entry, that of a fork. The
numbers in all that follows move with the entries they name; what they name no more is of no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from turnkeeper.folding import content_of, stated
from turnkeeper.log import (
    ADD,
    COMPACT,
    EDIT,
    FORK,
    POP,
    STARTING,
    UNDO,
    Details,
    Entry,
    Head,
    Place,
    StoredEntry,
    encode_payload,
)
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.stores import Store
from turnkeeper.windows.transcript import current_system

__all__ = ["isolated_before", "renumbered"]

_LEFT: Final = 2
"""Entries that pruning leaves before those it keeps: the system message's, and a summary's."""

_NOWHERE: Final[Place] = (1, 2**24 - 1)


def isolated_before(store: Store, head: Head) -> tuple[list[StoredEntry], int]:
    """Return what pruning left of the beginning, and the number of the entry from which on the log is whole."""
    oldest = store.entries(head.mid, after=0, before=head.version + 1, limit=_LEFT + 1)
    if not oldest:
        return [], head.version + 1
    first = 0
    for index, (entry, following) in enumerate(pairwise(oldest), 1):
        if following.version != entry.version + 1:
            first = index
    if head.base > oldest[first].version:
        base = store.entries(head.mid, after=head.base - 1, before=head.base + 1, limit=1)
        if base and base[0].op not in STARTING:
            # The state starts in the middle of the log: what is before is left over, also where no gap shows it.
            return store.entries(head.mid, after=0, before=head.base, limit=_LEFT), head.base
    return oldest[:first], oldest[first].version


def renumbered(
    entries: Iterable[StoredEntry], isolated: Sequence[StoredEntry], first: int, head: Head, name: MemoryName
) -> Iterator[StoredEntry]:
    """Yield the entries of a log that is whole from entry `first` on, the first one numbered 1.

    Raises:
        MemoryCorruptError: one can't be decoded.
    """
    opening, moved = _opening(isolated, name)
    if opening is not None:
        yield opening
    held = opening is not None
    shift = first - 1 - held
    for entry in entries:
        details, messages = content_of(entry, name)
        changed = _moved(entry.version, entry.op, details, first, shift, held, moved)
        payload = entry.payload
        if changed != details:
            payload = encode_payload(Entry(entry.op, b"", messages, None, changed))
        yield StoredEntry(entry.version - shift, entry.op, b"", payload, entry.at)


def _opening(isolated: Sequence[StoredEntry], name: MemoryName) -> tuple[StoredEntry | None, dict[Place, Place]]:
    """Return the entry that stands for what is left of the beginning, and where its messages were."""
    system: tuple[Message, Place] | None = None
    summary: list[tuple[Message, Place]] = []
    for entry in isolated:
        details, messages = content_of(entry, name)
        stays = stated(details)
        placed = [(message, (entry.version, index)) for index, message in enumerate(messages)]
        if entry.op in (COMPACT, FORK):
            leads = entry.op == FORK and details.leads
            summary = placed[leads : leads + details.summary] if entry.op == FORK else placed
            if leads:
                system = placed[0]
            placed = placed[leads + details.summary :] if entry.op == FORK else []
        if (current := current_system(tuple([message for message, _ in placed]))) >= 0:
            system = placed[current]
            if entry.op == EDIT and details.places:
                system = system[0], details.places[0]
        if stays is not None and details.stays is not None:
            system = stays, details.stays[:2]
    kept = summary if system is None else [system, *summary]
    if not kept:
        return None, {}
    payload = encode_payload(
        Entry(
            FORK,
            b"",
            tuple([message for message, _ in kept]),
            None,
            Details(leads=system is not None, summary=len(summary)),
        )
    )
    moved = {place: (1, index) for index, (_, place) in enumerate(kept)}
    return StoredEntry(1, FORK, b"", payload, isolated[-1].at), moved


def _moved(
    number: int, op: str, details: Details, first: int, shift: int, held: bool, moved: dict[Place, Place]
) -> Details:
    changed = details
    if op in (UNDO, POP, COMPACT):
        within = details.to >= first - 1
        changed = replace(changed, to=details.to - shift if within else int(held), part=details.part if within else 0)
    if details.places:
        places = [(n - shift, index) if n >= first else moved.get((n, index)) for n, index in details.places]
        kept = tuple([place for place in places if place is not None])
        changed = replace(changed, places=kept or (_NOWHERE,))
    if details.system >= first:
        changed = replace(changed, system=details.system - shift)
    elif details.system:
        # That there was one counts, but for an add; a number not before the entry's own is never looked up.
        changed = replace(changed, system=1 if held else 0 if op == ADD else number - shift)
    if details.begins is not None:
        base, system = details.begins
        system = system - shift if system >= first else -1 if system else 0
        # Behind the opening a state that begins with the first entry begins with both.
        changed = replace(changed, begins=(base - shift, system) if base > first else None)
    if details.stays is not None:
        n, index, text = details.stays
        n, index = (n - shift, index) if n >= first else moved.get((n, index), _NOWHERE)
        changed = replace(changed, stays=(n, index, text))
    return changed

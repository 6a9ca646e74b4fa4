"""What a rotation finds in an encrypted store, step by step: all that is not sealed with the active key."""

from __future__ import annotations

from typing import Final

import msgspec

from turnkeeper.names import MemoryName
from turnkeeper.sealed import PLAIN, sealed_of, shown_of, shown_of_meta
from turnkeeper.stores.base import Listed, Reseal, Store
from turnkeeper.stores.sealing import Place, Sealer, entry_place, meta_place

__all__ = ["RotationCursor", "RotationStep", "Unopened", "find_stale"]

_BYTES: Final = 2**20
"""Payloads that one step holds at most, but for a larger one alone."""

_PAGE: Final = 16


class RotationCursor(msgspec.Struct, frozen=True, gc=False):
    """How far a rotation has come: this entry of this memory, and all before."""

    name: MemoryName
    version: int


class Unopened(msgspec.Struct, frozen=True, gc=False):
    """An entry, or metadata (version 0), that no key here opens; key "": it is plain, and that is refused."""

    name: MemoryName
    version: int
    key_id: str


class RotationStep(msgspec.Struct, frozen=True, gc=False):
    """Some of what there is.

    Attributes:
        changes: what `Store.reseal` is to write.
        cursor: where the next step goes on; None: that was all.
        seen: how many entries and metadata were looked at, by the id of their key; "": plain ones.
        unopened: those that no key opens; they stay as they are.
    """

    changes: tuple[Reseal, ...]
    cursor: RotationCursor | None
    seen: dict[str, int]
    unopened: tuple[Unopened, ...]


class _Step:
    def __init__(self, sealer: Sealer, limit: int, *, allow_plain: bool) -> None:
        self.changes: list[Reseal] = []
        self.unopened: list[Unopened] = []
        self.seen: dict[str, int] = {}
        self.left = limit
        self.room = _BYTES
        self._sealer = sealer
        self._allow_plain = allow_plain

    @property
    def full(self) -> bool:
        return self.left <= 0 or self.room <= 0

    def take(self, listed: Listed, version: int, place: Place, payload: bytes, shown: bytes | None) -> None:
        """Look at a payload; `shown`: what is shown of it if it is plain."""
        self.left -= 1
        self.room -= len(payload)
        sealed = sealed_of(payload)
        key_id = PLAIN if sealed is None else sealed.key_id
        self.seen[key_id] = self.seen.get(key_id, 0) + 1
        if sealed is None:
            content = payload if self._allow_plain else None
        else:
            shown, content = sealed.shown, self._sealer.open(place, sealed)
        if content is None or shown is None:
            self.unopened.append(Unopened(listed.name, version, key_id))
        elif key_id != self._sealer.active:
            new = self._sealer.seal(place, shown, content)
            self.changes.append(Reseal(listed.name, listed.head.mid, version, payload, new))


def find_stale(
    store: Store, sealer: Sealer, after: RotationCursor | None, *, limit: int, allow_plain: bool
) -> RotationStep:
    """Look at about `limit` entries of a store behind a cursor; see `EncryptedStore.stale`."""
    step = _Step(sealer, limit, allow_plain=allow_plain)
    cursor = after
    if after is not None:
        # The memory itself again: there may be more of it.
        found = store.names(namespace=after.name.namespace, after=None, limit=1, prefix=after.name.id)
        if found and found[0].name == after.name:
            cursor = _look_at(store, step, found[0], after.version)
    while not step.full:
        page = store.names(namespace=None, after=None if cursor is None else cursor.name, limit=_PAGE)
        if not page:
            cursor = None
            break
        for listed in page:
            cursor = _look_at(store, step, listed, -1)
            if step.full:
                break
    return RotationStep(tuple(step.changes), cursor, step.seen, tuple(step.unopened))


def _look_at(store: Store, step: _Step, listed: Listed, after: int) -> RotationCursor:
    """Look at what one memory has behind an entry; -1: its metadata as well."""
    name, head = listed.name, listed.head
    if after < 0:
        after = 0
        if head.meta is not None:
            shown = None if sealed_of(head.meta) else shown_of_meta(head.meta)
            step.take(listed, 0, meta_place(name, head.meta_version), head.meta, shown)
        else:
            step.left -= 1  # a memory costs something, too
    while not step.full:
        found = store.entries(head.mid, after=after, limit=min(_PAGE, step.left))
        for entry in found:
            shown = None if sealed_of(entry.payload) else shown_of(entry)
            place = entry_place(name, entry.version, entry.op, entry.entry_id)
            step.take(listed, entry.version, place, entry.payload, shown)
            after = entry.version
            if step.full:
                break
        if not found:
            break
    return RotationCursor(name, after)

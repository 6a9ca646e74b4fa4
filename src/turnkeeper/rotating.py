"""Rotation of keys: all that an encrypted store holds is sealed with the active key, a step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import msgspec

from turnkeeper.errors import StoreError
from turnkeeper.opening import Runtime
from turnkeeper.sealed import PLAIN, sealed_of
from turnkeeper.stores import Reseal, Store

if TYPE_CHECKING:
    from turnkeeper.stores.encrypted import EncryptedStore
    from turnkeeper.stores.encrypted_rotation import RotationCursor, RotationStep, Unopened

__all__ = ["Rotation", "rotate", "rotate_store"]

_NAMED: Final = 100
_LONGEST_REST: Final = 0.1


class Rotation(msgspec.Struct, frozen=True):
    """How far a rotation is, or what came of it.

    Attributes:
        resealed: entries and metadata that were sealed anew.
        left: how many there are that the active key did not seal, by the id of their key; "": plain ones. At the end
            it is counted afresh: a key that is not in it any more can be dropped.
        unopened: some of those that no key here opens, 100 at most; they are counted in `left`, and stay as they are.
    """

    resealed: int
    left: dict[str, int]
    unopened: tuple[Unopened, ...]


Progress: TypeAlias = Callable[[Rotation], object]


async def rotate(runtime: Runtime, *, progress: Progress | None = None) -> Rotation:
    """Seal all that is there with the active key, beside the runtime's other work.

    Each step is small, goes between two commits, and rests as long as it took. Cancelled, or failing, it leaves
    everything readable: what was done is done, and the next call goes on with the rest.

    Args:
        runtime: an open one on an `EncryptedStore`. Every process that writes to the store has this active key.
        progress: called after each step, in the event loop.

    Raises:
        StoreError: the store is not encrypted, can't replace payloads, or failed.
    """
    core = runtime._core
    store = _encrypted(core.store)
    job = _Job(store)
    while not job.done:
        started = time.perf_counter()
        step = await core.look_up(partial(_look, store=store, after=job.cursor))
        changes = job.take(step)
        written = await core.reseal(changes) if changes else []
        job.note(changes, written, progress)
        await anyio.sleep(min(time.perf_counter() - started, _LONGEST_REST))
    return job.rotation


def rotate_store(store: Store, *, progress: Progress | None = None) -> Rotation:
    """Seal all that an open store holds with its active key; blocking, for a store that no runtime uses.

    Raises:
        StoreError: the store is not encrypted, can't replace payloads, or failed.
    """
    encrypted = _encrypted(store)
    job = _Job(encrypted)
    while not job.done:
        changes = job.take(encrypted.stale(job.cursor))
        job.note(changes, encrypted.reseal(changes) if changes else [], progress)
    return job.rotation


def _encrypted(store: Store) -> EncryptedStore:
    from turnkeeper.stores.encrypted import EncryptedStore  # needs cryptography, as whoever has such a store has

    if not isinstance(store, EncryptedStore):
        raise StoreError(f"{store.describe()} is not encrypted, so it has no keys to rotate")
    return store


def _look(_: Store, *, store: EncryptedStore, after: RotationCursor | None) -> RotationStep:
    return store.stale(after)


class _Job:
    """Three times through the store: count what is to do, do it, count what is left."""

    def __init__(self, store: EncryptedStore) -> None:
        self.cursor: RotationCursor | None = None
        self.done: bool = False
        self._active = store.active
        self._pass = 0
        self._resealed = 0
        self._left: dict[str, int] = {}
        self._unopened: list[Unopened] = []

    @property
    def rotation(self) -> Rotation:
        left = {key_id: count for key_id, count in sorted(self._left.items()) if count}
        return Rotation(self._resealed, left, tuple(self._unopened))

    def take(self, step: RotationStep) -> tuple[Reseal, ...]:
        """Take what a step found, and return what is to be written of it."""
        if self._pass != 1:
            for key_id, count in step.seen.items():
                if key_id != self._active:
                    self._left[key_id] = self._left.get(key_id, 0) + count
        if self._pass == 2:
            self._unopened.extend(step.unopened[: _NAMED - len(self._unopened)])
        self.cursor = step.cursor
        return step.changes if self._pass == 1 else ()

    def note(self, changes: tuple[Reseal, ...], written: list[bool], progress: Progress | None) -> None:
        """Note what was written, and tell."""
        for change, done in zip(changes, written, strict=True):
            if done:
                self._resealed += 1
                sealed = sealed_of(change.old)
                key_id = PLAIN if sealed is None else sealed.key_id
                self._left[key_id] = max(self._left.get(key_id, 0) - 1, 0)
        if self._pass and progress is not None:
            progress(self.rotation)
        if self.cursor is None:
            self._pass += 1
            if self._pass == 2:
                self._left.clear()
            self.done = self._pass == 3

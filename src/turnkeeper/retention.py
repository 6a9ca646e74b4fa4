"""What a runtime lets go by itself: memories that expired, and entries that no policy keeps. In small steps."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from turnkeeper.errors import RuntimeClosedError, StoreError, TurnkeeperError
from turnkeeper.history import first_kept
from turnkeeper.log import Head, message_count
from turnkeeper.metadata import decode_metadata
from turnkeeper.names import MemoryName
from turnkeeper.policies import RetentionPolicy
from turnkeeper.requests import DELETE, PRUNE, Request
from turnkeeper.stores import Store

if TYPE_CHECKING:
    from turnkeeper.runtime import RuntimeCore

__all__ = ["Keeper"]

_PAGE: Final = 200
"""Memories looked at in one step."""

_STEP: Final = 500
"""Entries pruned by one commit, and read at once: so few that nobody's commit waits long behind it."""

_SHARE: Final = 9
"""Rests so many times as long as a step took: the store is there for others."""

_LONGEST_WAIT: Final = 10.0
"""Seconds to wait for a memory whose turn is open; the next sweep comes by again."""


class Cut(msgspec.Struct, frozen=True, gc=False):
    """A memory of which something is to go: the entries before `cut`; `kept` is the first one there."""

    name: MemoryName
    cut: int
    kept: int


class Page(msgspec.Struct, frozen=True, gc=False):
    """What a step found: when, by the store's clock, where the next one goes on, what is to go, and for whom."""

    now: int
    last: MemoryName | None
    cuts: tuple[Cut, ...]
    own_policies: bool


class Keeper:
    """Deletes what has expired, and prunes what retention does not keep.

    Every change goes through the memory's actor, like anybody's: it waits for an open turn, loses against whoever
    writes first, and is there whole or not at all. Stopped at any point, it has done no harm and goes on at the next
    sweep.

    Attributes:
        expired: memories deleted because their time was over.
        pruned: memories of which entries were removed.
    """

    def __init__(self, core: RuntimeCore) -> None:
        settings = core.settings
        self._core = core
        self._interval = settings.sweep_interval
        self._policy = settings.history if isinstance(settings.history, RetentionPolicy) else None
        self._looks = True  # whether memories may have policies of their own; nobody knows before the first sweep
        self._looked_at = 0  # when the last whole sweep began: what was not changed since has not become longer
        self.expired: int = 0
        self.pruned: int = 0

    def expect_policies(self) -> None:
        """Note that a memory was given a policy of its own."""
        self._looks, self._looked_at = True, 0

    async def keep_for_ever(self) -> None:
        """Rest, sweep, and so on."""
        while True:
            await anyio.sleep(self._interval)
            with contextlib.suppress(StoreError):  # out of reach: who uses it hears of it
                await self.sweep()

    async def sweep(self) -> None:
        """Look at everything once."""
        await self._delete_expired()
        if self._policy is None and not self._looks:
            return
        began, found, after = 0, False, None
        while True:
            started = time.perf_counter()
            look = partial(_look, after=after, policy=self._policy, changed_after=self._looked_at)
            page = await self._core.look_up(look)
            began, found = began or page.now, found or page.own_policies
            for cut in page.cuts:
                await self._prune(cut)
            if page.last is None:
                break
            after = page.last
            await anyio.sleep(_SHARE * (time.perf_counter() - started))
        self._looks, self._looked_at = found, began

    async def _delete_expired(self) -> None:
        while names := await self._core.look_up(lambda store: store.expired(_PAGE)):
            gone = 0
            for name in names:
                if await self._submit(name, Request(DELETE, about=True)):
                    gone += 1
            self.expired += gone
            if not gone:
                return  # all of them were changed since, or are in use

    async def _prune(self, cut: Cut) -> None:
        kept = cut.kept
        while kept < cut.cut:
            pruned = await self._submit(cut.name, Request(PRUNE, about=(min(cut.cut, kept + _STEP), kept)))
            if not isinstance(pruned, int) or pruned <= kept:
                return
            if kept == cut.kept:
                self.pruned += 1
            kept = pruned

    async def _submit(self, name: MemoryName, request: Request) -> object:
        """Return the answer; None when there is none now."""
        try:
            with anyio.move_on_after(_LONGEST_WAIT):
                return await self._core.submit(name, request)
        except RuntimeClosedError:
            raise
        except TurnkeeperError:
            pass  # somebody was faster, the memory is corrupt, the store is away: another sweep will see
        return None


def _look(store: Store, after: MemoryName | None, policy: RetentionPolicy | None, changed_after: int) -> Page:
    """Look at some memories, in the store's reading thread."""
    now = store.now()
    listed = store.names(namespace=None, after=after, limit=_PAGE)
    cuts, own_policies = [], False
    for each in listed:
        own = decode_metadata(each.head.meta).retention if each.head.meta is not None else None
        own_policies = own_policies or own is not None
        if (applies := own or policy) is not None and each.head.version:
            kept = first_kept(store, each.head.mid)
            cut = max(
                _cut_by_age(store, each.head, applies, kept, now),
                # What was not changed since it was last counted has not become longer.
                _cut_by_count(store, each.head, applies) if each.head.updated_at >= changed_after else 0,
            )
            if cut > kept:
                cuts.append(Cut(each.name, cut, kept))
    return Page(now, listed[-1].name if len(listed) == _PAGE else None, tuple(cuts), own_policies)


def _cut_by_age(store: Store, head: Head, policy: RetentionPolicy, kept: int, now: int) -> int:
    """Return the number of the first entry that is young enough."""
    if policy.max_age_us is None:
        return 0
    oldest = now - policy.max_age_us
    low, high = kept, head.version + 1  # times never go back along the log
    while low < high:
        middle = (low + high) // 2
        found = store.entries(head.mid, after=middle - 1, limit=1)
        if found and found[0].at < oldest:
            low = middle + 1
        else:
            high = middle
            if middle == kept:
                break
    return low


def _cut_by_count(store: Store, head: Head, policy: RetentionPolicy) -> int:
    """Return the number of the first entry from which on there are not too many messages."""
    if policy.max_messages is None:
        return 0
    left, before = policy.max_messages, head.version + 1
    while found := store.entries(head.mid, after=0, before=before, limit=_STEP, newest=True):
        for entry in reversed(found):
            left -= message_count(entry)
            if left < 0:
                return entry.version + 1
        before = found[0].version
    return 0

"""What a runtime lets go by itself: memories that expired, and entries that no policy keeps. In small steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import msgspec

from turnkeeper.errors import RuntimeClosedError, StoreError, StoreUnavailableError, TurnkeeperError
from turnkeeper.history import first_kept
from turnkeeper.log import Head, StoredEntry, message_count
from turnkeeper.metadata import decode_metadata
from turnkeeper.names import MemoryName
from turnkeeper.policies import RetentionPolicy
from turnkeeper.requests import DELETE, PRUNE, Request
from turnkeeper.stores import Store

if TYPE_CHECKING:
    from turnkeeper.runtime import RuntimeCore

__all__ = ["Keeper"]

T = TypeVar("T")

_PAGE: Final = 200
"""Memories looked at in one step."""

_STEP: Final = 500
"""Entries pruned by one commit, and read at once: so few that nobody's commit or read waits long behind them."""

_AT_ONCE: Final = 8
"""Memories looked at and pruned at once."""

_NEWEST: Final = 16
"""Entries looked through for the beginning of the current turn, before the memory itself is asked."""

_SHARE: Final = 9
"""Rests so many times as long as a step took: the store is there for others."""

_LONGEST_REST: Final = 1.0
"""Seconds."""

_SHORTEST_INTERVAL: Final = 0.05
"""Seconds between two sweeps, at least."""

_PATIENCE: Final = 10.0
"""Seconds that one sweep waits in all for memories whose turns are open; the next sweep comes by again."""

_IMPATIENT: Final = 0.1
"""Seconds it waits for a memory when that is used up."""

_AFRESH: Final = 60
"""After so many sweeps nothing is taken as known: another process may have given a memory a policy of its own."""

_LATE: Final = 120_000_000
"""Microseconds that a commit may take from asking for the time to being seen."""

_REMEMBERED: Final = 10_000
"""Memories of which it is remembered that there is nothing to prune, though it looks so from outside."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A memory to which a policy applies, as it was found: something of it may have to go.

    Attributes:
        name: the memory.
        head: its row.
        policy: what applies to it.
        first: number of the first entry that is there.
        cut: the entries before this one are too old.
        counts: whether its messages have to be counted.
    """

    name: MemoryName
    head: Head
    policy: RetentionPolicy
    first: int
    cut: int
    counts: bool


class Page(msgspec.Struct, frozen=True, gc=False):
    """What a step found: when, by the store's clock, where the next one goes on, whom to look at, and whether memories
    have policies of their own, or expire.
    """

    now: int
    last: MemoryName | None
    found: tuple[Kept, ...]
    own_policies: bool
    expires: bool


class Count(msgspec.Struct, frozen=True, gc=False):
    """How far the messages of a memory are counted, from the newest back.

    Attributes:
        left: how many more may stay.
        before: the entries before this one are still to be counted.
        cut: the entries before this one are too many; 0: not known yet.
    """

    left: int
    before: int
    cut: int = 0


class Keeper:
    """Deletes what has expired, and prunes what retention does not keep.

    Every change goes through the memory's actor, like anybody's: it waits for an open turn, loses against whoever
    writes first, and is there whole or not at all. Stopped at any point, it has done no harm and goes on at the next
    sweep.

    Attributes:
        expired: memories deleted because their time was over.
        pruned: memories of which entries were removed.
        sweeps: how often everything was looked at.
    """

    def __init__(self, core: RuntimeCore) -> None:
        settings = core.settings
        self._core = core
        # Other processes may say what is to go, and what is said for all memories counts for those to come.
        self._always = (
            core.store.shared or isinstance(settings.history, RetentionPolicy) or settings.expires_after is not None
        )
        self._interval = max(settings.sweep_interval, _SHORTEST_INTERVAL)
        self._policy = settings.history if isinstance(settings.history, RetentionPolicy) else None
        # Whether memories may have policies of their own, or expire; nobody knows before the first sweep.
        self._looks = self._expires = True
        self._wake = anyio.Event()
        self._looked_at = 0  # when the last whole sweep began: what was not changed since has not become longer
        self._changed = False  # policies were, since this sweep began
        self._missed = False  # this sweep left something for the next
        self._patience = _PATIENCE
        self._settled: dict[int, tuple[int, ...]] = {}
        self.expired: int = 0
        self.pruned: int = 0
        self.sweeps: int = 0

    def expect_policies(self) -> None:
        """Note that a memory was given another policy, or a time of its own to expire."""
        self._looks, self._looked_at, self._changed = True, 0, True
        self._wake.set()

    async def keep_for_ever(self) -> None:
        """Rest, sweep, and so on; without a timer as long as there is nothing that may ever have to go."""
        while True:
            await anyio.sleep(self._interval)
            with contextlib.suppress(RuntimeClosedError):  # in the middle of a sweep
                await self.sweep()
            if not (self._always or self._looks or self._expires):
                self._wake = anyio.Event()
                await self._wake.wait()

    async def sweep(self) -> None:
        """Look at everything once; a store that is out of reach is left alone until the next sweep."""
        self._patience = _PATIENCE
        with contextlib.suppress(StoreError):  # who uses it hears of it
            await self._delete_expired()
        with contextlib.suppress(StoreError):
            await self._keep_policies()
        self.sweeps += 1

    # Expiry

    async def _delete_expired(self) -> None:
        while names := await self._core.look_up(lambda store: store.expired(_PAGE)):
            gone = 0
            for name in names:
                if await self._submit(name, Request(DELETE, about=True)):
                    gone += 1
                    self.expired += 1
            if not gone:
                return  # all of them were changed since, or are in use

    # Retention

    async def _keep_policies(self) -> None:
        if self.sweeps % _AFRESH == 0:
            self._looks, self._looked_at = True, 0
        if self._policy is None and not self._looks:
            return
        self._changed = self._missed = False
        changed_after, began, own_policies, expires, after = self._looked_at, 0, False, False, None
        while True:
            page = await self._step(partial(_look, after=after, policy=self._policy, changed_after=changed_after))
            began, own_policies = began or page.now, own_policies or page.own_policies
            expires = expires or page.expires
            await self._keep_all(page.found)
            if page.last is None:
                break
            after = page.last
        if not self._changed:
            self._looks, self._expires = own_policies, expires
            self._looked_at = changed_after if self._missed else max(began - _LATE, 0)

    async def _keep_all(self, found: Sequence[Kept]) -> None:
        """Look at several memories at once, so that what goes of them goes in one commit."""
        failures: list[TurnkeeperError] = []
        places = anyio.Semaphore(_AT_ONCE)

        async def keep(kept: Kept) -> None:
            async with places:
                try:
                    if not failures:
                        await self._keep(kept)
                except (StoreError, RuntimeClosedError) as failure:  # of one, and so for all
                    failures.append(failure)

        if found:
            await keep(found[0])  # a store that is out of reach is asked once, and not by all of them
        async with anyio.create_task_group() as tasks:
            for kept in () if failures else found[1:]:
                tasks.start_soon(keep, kept)
        if failures:
            raise failures[0]

    async def _keep(self, kept: Kept) -> None:
        """Find out what of one memory is to go, and let it go."""
        cut = kept.cut
        limit = kept.policy.max_messages
        if kept.counts and limit is not None:
            count = Count(limit, kept.head.version + 1)
            while count.before > max(cut, kept.first) and not count.cut:
                count = await self._step(partial(_count, kept=kept, count=count))
            cut = max(cut, count.cut)
        head = kept.head
        seen = head.version, head.base, head.system, head.meta_version, cut
        if cut <= kept.first or self._settled.get(head.mid) == seen:
            return
        cut = await self._step(partial(_without_current_turn, kept=kept, cut=cut))
        if cut > kept.first and not await self._prune(kept, cut):
            # It keeps more than can be seen from outside.
            if len(self._settled) >= _REMEMBERED:
                self._settled.clear()
            self._settled[head.mid] = seen

    async def _prune(self, kept: Kept, cut: int) -> bool:
        """Let entries go, step by step; False when the memory says that there are none to go."""
        first, head = kept.first, kept.head
        while first < cut:
            started = time.perf_counter()
            about = min(cut, first + _STEP), first, head.mid, head.meta_version
            pruned = await self._submit(kept.name, Request(PRUNE, about=about))
            if not isinstance(pruned, int):
                self._missed = True
                return True
            if pruned <= first:
                break
            if first == kept.first:
                self.pruned += 1
            first = pruned
            await _rest(started)
        return first > kept.first

    # Asking

    async def _step(self, job: Callable[[Store], T]) -> T:
        """Do a part of the reading, and rest."""
        started = time.perf_counter()
        found = await self._core.look_up(job)
        await _rest(started)
        return found

    async def _submit(self, name: MemoryName, request: Request) -> object:
        """Return the answer; None when there is none now.

        Raises:
            StoreUnavailableError: the store is out of reach, for all of them.
            RuntimeClosedError: the runtime closes.
        """
        patience = max(self._patience, _IMPATIENT)
        try:
            with anyio.move_on_after(patience):
                return await self._core.submit(name, request)
            self._patience -= patience
        except (RuntimeClosedError, StoreUnavailableError):
            raise
        except TurnkeeperError:
            pass  # somebody was faster, or the memory is corrupt: another sweep will see
        return None


async def _rest(started: float) -> None:
    """Leave the store to others for a while."""
    await anyio.sleep(min(_SHARE * (time.perf_counter() - started), _LONGEST_REST))


def _look(store: Store, after: MemoryName | None, policy: RetentionPolicy | None, changed_after: int) -> Page:
    """Look at some memories, in the store's reading thread."""
    now = store.now()
    listed = store.names(namespace=None, after=after, limit=_PAGE)
    found, own_policies, expires = [], False, False
    for each in listed:
        head = each.head
        own = decode_metadata(head.meta).retention if head.meta is not None else None
        own_policies, expires = own_policies or own is not None, expires or head.expires_at > 0
        if (applies := own or policy) is None or not head.version:
            continue
        # What was not changed since it was last counted has not become longer.
        counts = applies.max_messages is not None and head.updated_at >= changed_after
        oldest = 0 if applies.max_age_us is None else now - applies.max_age_us
        if counts or head.created_at < oldest:
            first = first_kept(store, head.mid)
            cut = _cut_by_age(store, head, first, oldest)
            if counts or cut > first:
                found.append(Kept(each.name, head, applies, first, cut, counts))
    return Page(now, listed[-1].name if len(listed) == _PAGE else None, tuple(found), own_policies, expires)


def _cut_by_age(store: Store, head: Head, first: int, oldest: int) -> int:
    """Return the number of the first entry that is young enough."""

    def is_old(version: int) -> bool:
        found = store.entries(head.mid, after=version - 1, limit=1)
        return bool(found) and found[0].at < oldest

    if head.created_at >= oldest or not is_old(first):
        return first
    low, high = first + 1, head.version + 1  # times never go back along the log
    while low < high:
        middle = (low + high) // 2
        if is_old(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _count(store: Store, kept: Kept, count: Count) -> Count:
    """Count the messages of some more entries."""
    left, before = count.left, count.before
    found = store.entries(kept.head.mid, after=kept.first - 1, before=before, limit=_STEP, newest=True)
    for entry in reversed(found):
        left -= message_count(entry)
        if left < 0:
            return Count(left, before, entry.version + 1)
    return Count(left, found[0].version if found else 0)


def _without_current_turn(store: Store, kept: Kept, cut: int) -> int:
    """Return less where the newest turn begins before, as far as that can be told from the newest entries.

    A memory at rest is spared being loaded that way, only to find that there is nothing to prune.
    """
    head, first = kept.head, kept.first
    if cut > head.version + 1 - _NEWEST:
        newest = store.entries(head.mid, after=first - 1, before=head.version + 1, limit=_NEWEST, newest=True)
        began = next((entry.version for entry in reversed(newest) if _begins_turn(entry)), None)
        # Where a turn was taken back, the current one began before.
        cut = cut if began is None else min(cut, began)
    removed = set(range(first, min(cut, first + 3))) - {head.system, head.base}
    return first if not removed and cut <= head.base else cut


class _Said(msgspec.Struct):
    role: str = ""


class _Entry(msgspec.Struct):
    messages: list[_Said] = []


_decode_roles: Final = msgspec.json.Decoder(_Entry).decode


def _begins_turn(entry: StoredEntry) -> bool:
    try:
        return any(said.role == "user" for said in _decode_roles(entry.payload).messages)
    except (msgspec.MsgspecError, ValueError):
        return False

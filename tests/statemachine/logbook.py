"""What can be done with the log: it is looked back at, watched, forked and pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio

from statemachine import revisions
from statemachine.driver import ALL
from statemachine.lifetime import PATIENCE
from statemachine.operations import NONE, Disturbance, Operation
from statemachine.states import Answer, Entries, Path, State
from statemachine.summaries import Summaries
from statemachine.views import view
from statemachine.witness import Witness
from statemachine.writes import from_outside, set_metadata
from turnkeeper import (
    ConflictError,
    HistoryEntry,
    HistoryPrunedError,
    MemoryWatch,
    Messages,
    Reset,
    RetentionPolicy,
    Version,
    Window,
)
from turnkeeper.log import LoadQuery
from turnkeeper.names import memory_name
from windows.saying import labels

MOST: Final = 7
"""Messages that the retention policy keeps."""

NOTHING: Final = Version(0, 0)


class Logbook(Summaries):
    """A driver that keeps the log, as the store committed it, and what the memory was at each version.

    Attributes:
        entries: all that this memory's row ever had, in order.
        gone: the numbers of those that were pruned.
        pasts: versions, and what was seen there.
    """

    def __init__(self, make_store: Callable[[], Witness], **options: Any) -> None:
        super().__init__(make_store, history=RetentionPolicy(max_messages=MOST), sweep_interval=1e9, **options)
        self.entries: list[tuple[str, Any]] = []
        self.gone: set[int] = set()
        self.pasts: list[tuple[Version, State]] = [(NOTHING, State())]
        self._watch: MemoryWatch | None = None
        self._watched = NOTHING
        self._dozes = False
        self._forks = 0
        self._swept = False

    # What is known

    @property
    def version(self) -> Version:
        """The present one, as it was last seen."""
        return self.versions.seen[-1] if self.state.n else NOTHING

    @property
    def kept(self) -> int:
        """Number of the entry behind which none was pruned."""
        return max(self.gone, default=0) + 1

    def _past(self, place: int) -> tuple[Version, State]:
        return self.pasts[-1 - place % len(self.pasts)]

    def _note(self, written: Entries) -> None:
        for op, batch in written:
            if op == "delete":
                self.entries.clear()
                self.gone.clear()
            else:
                self.entries.append((op, batch))
        assert len(self.entries) == self.state.n, self.report(self.entries)
        if self.pasts[-1][0] != self.version:
            self.pasts.append((self.version, self.state))

    # Looking

    async def look(self) -> None:
        await super().look()
        self._note(self.seen)
        with anyio.fail_after(PATIENCE):
            if self._swept and self.state.n:
                mid = self.version.mid
                there = await self.runtime._core.look_up(lambda store: store.entries(mid, after=0, limit=10_000))
                self.gone = set(range(1, self.state.n + 1)) - {entry.version for entry in there}
                query = LoadQuery(memory_name("m", ""), newest=1)
                head = (await self.runtime._core.look_up(lambda store: store.load([query])))[0].head
                fitting = [state for state in self.candidates if head and max(state.base, 1) == max(head.base, 1)]
                assert fitting, self.report(head)
                self.candidates = fitting
            self._swept = False
            await self.page(0, 10_000, reverse=len(self.pasts) % 2 == 0)
            await self.look_at(len(self.story), ALL)
            await self._follow()

    async def page(self, place: int, limit: int, *, reverse: bool) -> None:
        """Read all pages of the history, from a past version on (place 0: from the beginning)."""
        bound, past = self._past(place) if place else (None, self.state)
        pages = partial(self.memory().history, limit=limit, reverse=reverse)
        first, last = self.kept, self.state.n
        pruned = bound is not None and last > 0 and (past.n <= first > 1 if reverse else past.n + 1 < first)
        error: type[Exception] | None = HistoryPrunedError if pruned else None
        if bound is not None and past.n and past.row != self.state.row:
            error = ConflictError
        found: list[HistoryEntry] = []
        got: type[Exception] | None = None
        try:
            while True:
                page = await (pages(before=bound) if reverse else pages(after=bound))
                found += page.entries
                bound = page.cursor
                if bound is None:
                    break
        except (ConflictError, HistoryPrunedError) as raised:
            got = type(raised)
        assert got is error, self.report(f"history {place}, {limit}, {reverse}: {got}, not {error}")
        if error is not None:
            return
        if place:
            first, last = (first, past.n - 1) if reverse else (past.n + 1, last)
        wanted = self._wanted(first, last)
        assert [_told(entry) for entry in (reversed(found) if reverse else found)] == wanted, self.report(found)

    def _wanted(self, first: int, last: int) -> list[Any]:
        return [(n, op, list(batch)) for n, (op, batch) in enumerate(self.entries, start=1) if first <= n <= last]

    async def look_at(self, place: int, window: Window) -> None:
        """Look at the memory as it was at a past version."""
        version, past = self._past(place)
        wanted, lost = self._was(past)
        got: type[Exception] | None = None
        seen = Messages((), version)
        try:
            seen = await self.memory(window).messages(at=version)
        except (ConflictError, HistoryPrunedError) as raised:
            got = type(raised)
        if got is not None or isinstance(wanted, type):
            assert got is wanted or (lost and got is HistoryPrunedError), self.report(f"at {version}: {got} for {past}")
            return
        try:
            self.compare(wanted, seen, window)
        except AssertionError as failure:
            raise AssertionError(self.report(f"at {version}: {failure}; {past}")) from None

    def _was(self, past: State) -> tuple[State | type[Exception], bool]:
        """Say what is known of a past state, and whether its system message may be gone."""
        cut = self.state.cut
        if past.n == 0:
            return past, False
        if past.row != self.state.row:
            return ConflictError, False
        if past.n >= cut > max(past.first, past.base):
            pruned = revisions.prune(past, cut)
            return pruned, past.system not in pruned.said
        if past.first < self.kept or past.cut not in (0, cut):
            return HistoryPrunedError, False
        return past, past.cut > 0

    # Watching

    async def watch(self, after: int | None, *, dozes: bool) -> None:
        """Watch from now or from a past version on; who dozes reads nothing until it is told otherwise."""
        self.story.append(f"watch after={after} dozes={dozes}")
        if not dozes:
            await self._close_watch()
            version = None if after is None else self._past(after)[0]
            self._watch = self.memory().watch(after=version)
            self._watched = self.version if version is None else version
            await self._watch.__aenter__()
        self._dozes = dozes
        await self.look()

    async def wake(self) -> None:
        """Read what was missed."""
        self._dozes = False
        await self.look()

    async def _close_watch(self) -> None:
        if self._watch is not None:
            await self._watch.__aexit__(None, None, None)
            self._watch = None

    async def _follow(self) -> None:
        """Read the events up to now: they are the log behind the version that was watched from."""
        if self._watch is None:
            self._watch = self.memory().watch(after=self._watched)
            await self._watch.__aenter__()
        if self._dozes:
            return
        at, now = self._watched, self.version
        lost = at.n > 0 and at.mid != now.mid
        first = at.n + 1 if at.mid == now.mid else 1
        if not self.gone.isdisjoint(range(first, now.n + 1)):
            first, lost = max(first, self.kept), True
        wanted = self._wanted(first, now.n)
        if lost:
            wanted.insert(0, Reset(Version(now.mid, first - 1) if first > 1 else NOTHING))
        found: list[Any] = []
        try:
            while len(found) < len(wanted):
                event = await anext(self._watch)
                found.append(event if isinstance(event, Reset) else _told(event))
        except TimeoutError:
            pass
        assert found == wanted, self.report(f"watched {found}, not {wanted}")
        self._watched = now

    async def reopen(self) -> None:
        await self._close_watch()
        await super().reopen()

    async def stop(self) -> None:
        await self._close_watch()
        await super().stop()

    # Beside the log

    async def set_metadata(self, title: str, revision: int | None, disturbance: Disturbance) -> None:
        async def call() -> tuple[str | None, int]:
            known = await self.memory().set_metadata(title=title, if_revision=revision)
            return known.title, known.revision

        apply = partial(set_metadata, title=title, revision=revision)
        await self.step(Operation(f"title {title} if={revision}", call, apply), disturbance)

    async def fork(self, place: int | None, history: bool, disturbance: Disturbance) -> None:
        """Fork it off, now or from a past version, and compare the fork once it is there."""
        self._forks += 1
        name, at = f"fork {self._forks}", None if place is None else self._past(place)
        past, lost = (self.state, False) if at is None else self._was(at[1])
        if history and not isinstance(past, type) and past.n and self.gone:
            past, lost = HistoryPrunedError, False
        error = past if isinstance(past, type) else None

        def apply(state: State) -> list[Path]:
            listed = replace(state, revision=state.revision + 1) if state.n or state.revision else state
            taken = Path((state, listed), Answer())
            refused = Path((state,), Answer(error=HistoryPrunedError if lost else error))
            return [refused] if error is not None else [taken, refused] if lost else [taken]

        async def call() -> None:
            made = await self.memory().fork(name, at=at and at[0], history=history)
            assert not isinstance(past, type)
            seen = await made.messages()
            wanted = past if history else revisions.fork(past)
            assert (labels(seen), seen.overflow) == view(wanted, ALL), (seen, wanted)
            known = {said.id: said.fields for said in wanted.everything}
            assert all(one.synthetic or one.to_dict() == known[str(one.id)] for one in seen), (seen, wanted)
            entries = (await made.history()).entries
            if history:
                assert [_told(entry) for entry in entries] == self._wanted(1, past.n)
            else:
                assert [entry.op for entry in entries] == ["fork"]
            await made.delete()

        disturbance = Disturbance(passes=disturbance.passes, natively=disturbance.natively)
        disturbance = disturbance if disturbance.cancels else NONE
        await self.step(Operation(f"{name} at={at and at[0]} history={history}", call, apply), disturbance)

    async def sweep(self, disturbance: Disturbance) -> None:
        """Have retention prune what it does not keep."""
        if self.kept_out or self.state.held:
            return  # it would wait
        counts = {n: len(self.entries[n - 1][1]) for n in range(self.kept, self.state.n + 1)}

        def apply(state: State) -> list[Path]:
            pruned = revisions.prune(state, revisions.cut_of(state, counts, MOST)) if state.n else state
            paths = [Path((state, pruned), Answer())]
            return [*paths, Path((state,), Answer())] if disturbance.faults else paths

        before, kept, cut = self.gone, self.kept, revisions.cut_of(self.state, counts, MOST)
        self._swept = True
        await self.step(Operation("sweep", self.runtime._core.keeper.sweep, from_outside(apply)), disturbance)
        old = set(range(1, cut if cut > kept else 1))
        assert self.gone - before <= old, self.report(f"gone: {self.gone}; cut: {cut}")
        assert disturbance is not NONE or len(old - self.gone) <= 2, self.report(f"gone: {self.gone}; cut: {cut}")


def _told(entry: Any) -> tuple[int, str, list[Any]]:
    return entry.version.n, entry.op, [message.to_dict() for message in entry.messages]

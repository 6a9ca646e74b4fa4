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
from statemachine.states import Answer, Entries, Path, State, entry_of
from statemachine.summaries import Summaries
from statemachine.views import view
from statemachine.witness import Witness
from statemachine.writes import from_outside, set_metadata
from turnkeeper import (
    ChatMemory,
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
from windows.model import Said
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
        if self.pasts[-1][0] == self.version:
            self.pasts.pop()  # it may have been pruned since
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
        wanted = self._was(past)
        got: type[Exception] | None = None
        seen = Messages((), version)
        try:
            seen = await self.memory(window).messages(at=version)
        except (ConflictError, HistoryPrunedError) as raised:
            got = type(raised)
        if got is wanted:
            return
        if got is None and wanted is HistoryPrunedError and window is not ALL:
            wanted = past  # such a window does not show what is gone
        assert got is None, self.report(f"at {version}: {got}, not {wanted}, for {past}")
        assert isinstance(wanted, State), self.report(f"at {version}: not {wanted}, for {past}")
        try:
            self.compare(wanted, seen, window)
        except AssertionError as failure:
            raise AssertionError(self.report(f"at {version}: {failure}; {past}")) from None

    def _was(self, past: State) -> State | type[Exception]:
        """Say what is known of a past state."""
        if past.n == 0:
            return past
        if past.row != self.state.row:
            return ConflictError
        system = _entry_of(past, past.system)
        if past.first < self.kept or past.n < self.kept or system in self.gone:
            return HistoryPrunedError
        return replace(past, older=None) if _entry_of(past, past.older) in self.gone else past

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
        past: State | type[Exception] = self.state if at is None else self._was(at[1])
        if history and not isinstance(past, type) and past.n and (self.gone or past.cut == past.base > 1):
            past = HistoryPrunedError
        error = past if isinstance(past, type) else None

        def apply(state: State) -> list[Path]:
            if error is not None:
                return [Path((state,), Answer(error=error))]
            listed = replace(state, revision=state.revision + 1) if state.n or state.revision else state
            paths = [Path((state, listed), Answer())]
            return [*paths, Path((listed,), Answer())] if disturbance.faults else paths

        async def judge(made: ChatMemory, *, there: bool) -> None:
            seen = await made.messages()
            if not (seen.version.n or there):
                return
            assert not isinstance(past, type)
            wanted = past if history else revisions.fork(past)
            assert (labels(seen), seen.overflow) == view(wanted, ALL), (seen, wanted)
            known = {said.id: said.fields for said in wanted.everything}
            assert all(one.synthetic or one.to_dict() == known[str(one.id)] for one in seen), (seen, wanted)
            entries = (await made.history()).entries
            if history:
                assert [_told(entry) for entry in entries] == self._wanted(1, past.n)
            else:
                assert [entry.op for entry in entries] == ["fork"]
            # A fork that nobody knows can't be erased with its parent.
            assert (name, "") in (await self.memory().metadata()).forks or not past.n
            await made.delete()

        async def call() -> None:
            await judge(await self.memory().fork(name, at=at and at[0], history=history), there=True)

        operation = Operation(f"{name} at={at and at[0]} history={history}", call, apply)
        await self.step(operation, disturbance)
        if disturbance is not NONE:
            with anyio.fail_after(PATIENCE):
                await judge(self.runtime.memory(name), there=False)  # it may have been made all the same

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


def _entry_of(state: State, system: Said | None) -> int:
    """Return the number of the entry that has what a system message says; 0: there is none."""
    return 0 if system is None else dict(state.noted).get(system.id, entry_of(system))


def _told(entry: Any) -> tuple[int, str, list[Any]]:
    return entry.version.n, entry.op, [message.to_dict() for message in entry.messages]

"""Whatever changes a log, it is what the docstrings say: in RAM, loaded whole or in part, followed, looked back at.

Everything below the actor is real: requests are applied by `plan.apply`, committed to a store, and read back from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from history.model import RefusedError, Story, version_of
from turnkeeper import HistoryPrunedError, TurnkeeperError, TurnWindow, Version, Window, earlier, past, reader
from turnkeeper import state as state_module
from turnkeeper.applying import apply
from turnkeeper.compactable import Compactable
from turnkeeper.earlier import copied_entries, log_at
from turnkeeper.folding import extend
from turnkeeper.history import first_kept
from turnkeeper.log import ADD, CLEAR, COMPACT, FORK, SET, Committed, Details, LoadQuery, Removed
from turnkeeper.messages import encode_messages, restore_message
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import FORK_OFF, LOOK_BACK, PRUNE, Request
from turnkeeper.state import Log
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.windows import LimitedWindow
from turnkeeper.writes import edit_request, pop_request, remove_request, undo_request
from windows.histories import Step, histories, limited_windows, weighted, windows
from windows.model import Said
from windows.saying import Fields, answer, calls, labels, result, rules_of, system, user

_texts = st.sampled_from(["", "a", "bb"])
_ids = st.sampled_from("12")
_system = st.builds(system, st.sampled_from(["s", "t", "tt"]))
_message: st.SearchStrategy[Fields] = weighted(
    (5, st.builds(user, _texts)),
    (3, st.builds(result, _ids, _texts)),
    (3, st.lists(_ids, min_size=1, max_size=2).map(lambda ids: calls(*ids))),
    (2, st.builds(answer, _texts)),
    (4, _system),
)
_batch = weighted((2, st.tuples(_message).map(list)), (1, st.lists(_message, min_size=2, max_size=5)))
_place = st.integers(0, 30)
_summary: st.SearchStrategy[list[Fields]] = st.sampled_from([[system("S")], [user("q"), answer("SS")], [system("s")]])
_change = weighted(
    (14, st.tuples(st.just("add"), _batch)),
    (2, st.tuples(st.just("set"), _batch)),
    (1, st.tuples(st.just("clear"))),
    (3, st.tuples(st.just("undo"), st.integers(1, 3))),
    (5, st.tuples(st.just("pop"))),
    (3, st.tuples(st.just("edit"), _place, _texts)),
    (4, st.tuples(st.just("edit_system"), _place, _system)),
    (3, st.tuples(st.just("remove"), _place)),
    (3, st.tuples(st.just("remove_system"), _place)),
)
_step: st.SearchStrategy[Step] = weighted(
    (30, _change),
    (3, st.tuples(st.just("compact"), st.builds(TurnWindow, max_turns=st.integers(1, 2)), _summary)),
    (2, st.tuples(st.just("fork"), st.booleans(), _place)),
    (3, st.tuples(st.just("prune"), _batch, limited_windows(3))),
    (3, st.tuples(st.just("retain"), _place)),
    (4, st.tuples(st.just("tentative"), st.lists(_change, min_size=1, max_size=4))),
    (6, st.tuples(st.just("trim"))),
    (6, st.tuples(st.just("tail"), st.integers(1, 4))),
)
_steps = histories(_step)


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """Load as few entries as can be, look back in small steps, and let messages leave RAM at once."""
    with (
        patch.object(state_module, "_SLACK", 0),
        patch.object(reader, "_FEWEST", 1),
        patch.object(earlier, "_CHUNK", 2),
    ):
        yield


def said(log: Log) -> list[tuple[str | None, Fields]]:
    """Return all that a whole log holds."""
    before = log.transcript.system_before
    held = [*([before] if before else []), *log.transcript.summary, *log.messages]
    return [(message.id, message.to_dict()) for message in held]


def picture(log: Log) -> tuple[object, ...]:
    return log.version, log.base, log.after, log.system, log.size, log.count, said(log)


class World:
    """A memory in a store, the log in RAM that writes to it, one that follows it, and the story it should tell."""

    def __init__(self, store: Store, several: Sequence[Window]) -> None:
        self.store = store
        self.windows = several
        self.name = MemoryName("", "m0")
        self.log = Log()
        self.follower = Log()
        self.story = Story()
        self.past: list[Story] = [self.story]
        self.systems: dict[int, int] = {}  # the entry with the current system message, at each version
        self.cuts: set[int] = set()  # where pruning let a state begin

    # Changing

    def submit(self, request: Request, *, committed: bool = True) -> Any:
        """Apply a request as the actor does, loading what is lacking, and commit what comes of it."""
        for _ in range(3):
            log, version = self.log, self.log.n
            mark = log.begin() if committed else None
            plan = apply(log, [request], self.name, os.urandom, max_writers=9)
            if plan.lacking is None:
                break
            assert plan.consumed == 0
            if mark is None:
                raise LookupError("older messages are needed; the runtime begins anew then")
            assert log.n == version, "nothing is taken"
            self.log = self.load(*plan.lacking)
        ((_, outcome),) = plan.answers
        assert plan.writes or self.log.n == version
        if plan.writes and committed:
            slice_ = plan.slice(self.name, self.log, version, 0.0)
            (stored,) = self.store.commit([slice_], receipt_ttl=60.0)
            assert isinstance(stored, Committed)
            self.log.settle(stored.mid, stored.at)
            if plan.base:
                story = self.story
                self.log.prune(plan.base)
                if plan.base > max(story.base, 1):
                    self.cuts.add(plan.base)
                if plan.base >= story.base:  # also the same one: a system message that was replaced goes then
                    self.story = story.prune(plan.base)
                log = self.log if self.log.complete else self.load(EVERYTHING, None)
                before = log.transcript.system_before
                if before is not None and self.story.before is None:  # a later entry has it as well
                    assert before.id == getattr(story.system_before(plan.base), "id", None)
                    self.story = replace(self.story, before=story.system_before(plan.base))
        return outcome

    def load(self, window: Window, limit: int | None) -> Log:
        """Read as much as a window needs, as the runtime does."""
        (fetched,) = reader._read(self.store, [reader.Fetch(self.name, None, (window, limit))])
        assert isinstance(fetched.log, Log), fetched.log
        return fetched.log

    def run(self, step: Step, *, committed: bool = True) -> None:
        op, *rest = step
        getattr(self, "do_" + op)(*rest, committed)

    def tell(self, wanted: Story, request: Request, committed: bool, removed: list[Said] | None = None) -> None:
        """Make a request, and compare its answer with the story's next state."""
        count = len(request.messages) if wanted.n > self.story.n else 0
        self.story = wanted
        outcome = self.submit(request, committed=committed)
        assert not isinstance(outcome, Exception), outcome
        if removed is not None:
            assert isinstance(outcome, Removed)
            assert [(each.id, each.to_dict()) for each in outcome.messages] == [(it.id, it.fields) for it in removed]
        else:
            assert outcome.count == count
        assert outcome.version.n == wanted.n
        if committed and wanted.n == len(self.past):
            self.past.append(self.story)

    def do_add(self, batch: list[Fields], committed: bool) -> None:
        self.tell(self.story.add(batch), Request(ADD, encode_messages(batch), window=EVERYTHING), committed)

    def do_set(self, batch: list[Fields], committed: bool) -> None:
        self.tell(self.story.set(batch), Request(SET, encode_messages(batch), window=EVERYTHING), committed)

    def do_clear(self, committed: bool) -> None:
        if self.log.complete or self.story.everything:
            self.tell(self.story.clear(), Request(CLEAR, window=EVERYTHING), committed)

    def do_undo(self, turns: int, committed: bool) -> None:
        wanted, removed = self.story.undo(turns)
        self.tell(wanted, undo_request(turns, EVERYTHING, None), committed, removed)

    def do_pop(self, committed: bool) -> None:
        wanted, removed = self.story.pop()
        self.tell(wanted, pop_request(EVERYTHING, None), committed, removed)

    def _chosen(self, place: int, role: str | None) -> Said | None:
        them = [each for each in self.story.everything if role in (None, each.role)]
        return them[place % len(them)] if them else None

    def do_edit(self, place: int, text: str, committed: bool) -> None:
        old = self._chosen(place, None)
        label, fields = ("9.9", user(text)) if old is None else (old.id, {**old.fields, "content": text})
        self._edit(label, fields, committed)

    def do_edit_system(self, place: int, fields: Fields, committed: bool) -> None:
        old = self._chosen(place, "system")
        if old is not None:
            self._edit(old.id, fields, committed)

    def _edit(self, label: str, fields: Fields, committed: bool) -> None:
        request = edit_request(label, fields, EVERYTHING, None)
        try:
            wanted = self.story.edit(label, fields)
        except RefusedError as refused:
            self._refused(request, committed, refused)
        else:
            self.tell(wanted, request, committed)

    def _refused(self, request: Request, committed: bool, refused: RefusedError) -> None:
        outcome = self.submit(request, committed=committed)
        assert isinstance(outcome, TurnkeeperError)
        assert type(outcome).__name__ == str(refused)

    def do_remove(self, place: int, committed: bool) -> None:
        self._remove(place, None, committed)

    def do_remove_system(self, place: int, committed: bool) -> None:
        self._remove(place, "system", committed)

    def _remove(self, place: int, role: str | None, committed: bool) -> None:
        old = self._chosen(place, role)
        label = "9.9" if old is None else old.id
        try:
            wanted, removed = self.story.remove(label)
        except RefusedError as refused:
            self._refused(remove_request(label, EVERYTHING, None), committed, refused)
        else:
            self.tell(wanted, remove_request(label, EVERYTHING, None), committed, removed)

    def do_compact(self, keep: TurnWindow, summary: list[Fields], committed: bool) -> None:
        seen = self.submit(Request(LOOK_BACK, window=keep))
        if isinstance(seen, Compactable):
            request = Request(COMPACT, encode_messages(summary), window=keep, about=seen)
            self.tell(self.story.compact(seen.to, summary), request, committed)

    def do_fork(self, whole: bool, place: int, committed: bool) -> None:
        """Go on in a fork, of now or of an earlier version, with or without its history."""
        version = self.story.n if place % 2 else len(self.past) - 1 - place % min(3, len(self.past))
        if not self.story.n or not version:
            return
        at = Version(self.log.mid, version)
        name = MemoryName("", f"m{int(self.name.id[1:]) + 1}")
        try:
            if whole:
                request = Request(FORK, about=copied_entries(self.store, self.name, at))
            else:
                made = past._fork_at(self.store, self.name, at)
                if version == self.story.n:
                    now = self.submit(Request(FORK_OFF, window=EVERYTHING))
                    assert now == made
                copies = tuple([restore_message(message.raw) for message in made.messages])
                request = Request(FORK, copies, about=Details(leads=made.leads, summary=made.summary))
        except HistoryPrunedError:
            assert self._begins_in_the_middle(version) if whole else not self._is_there(version)
            return
        assert not self._begins_in_the_middle(version) if whole else self._is_there(version)
        story = self.past[version]
        if not whole:
            story = self._without_hidden(story, made.leads)
        self.name, self.log, self.follower = name, Log(), Log()
        if not whole:
            self.systems.clear()
            self.cuts.clear()
        self.past = self.past[:version] if whole else [Story()]
        self.story = story if whole else story.fork()
        outcome = self.submit(request)
        assert (outcome.version.n, outcome.count) == (self.story.n, len(self.story.everything))
        self.past.append(self.story)

    def do_prune(self, batch: list[Fields], window: LimitedWindow, committed: bool) -> None:
        """Add through a handle whose window prunes."""
        request = Request(ADD, encode_messages(batch), window=window, prunes=True)
        story = self.story
        self.story = story.add(batch)
        outcome = self.submit(request)
        if isinstance(outcome, Exception) or outcome.version.n == story.n:
            self.story = story  # refused, or an equal system message
        elif outcome.count != len(batch):
            kept = [message.to_dict() for message in request.messages]
            self.story = story
            assert kept
            self.story = self._without_equal(story, batch)
        if self.story.n == len(self.past):
            self.past.append(self.story)

    def _without_equal(self, story: Story, batch: list[Fields]) -> Story:
        current, kept = story.system.fields if story.system else None, []
        for fields in batch:
            if fields["role"] == "system":
                if fields == current:
                    continue
                current = fields
            kept.append(fields)
        wanted = story.add(kept)
        return wanted.prune(self.log.base) if self.log.base > wanted.base else wanted

    def do_retain(self, place: int, committed: bool) -> None:
        """Remove what is old, as far as that may go, as a policy does in the background."""
        if not self.story.n:
            return
        kept = first_kept(self.store, self.log.mid)
        cut = 1 + place % self.story.n
        first = self.submit(Request(PRUNE, about=(cut, kept, self.log.mid, self.log.meta_version)))
        users = [version_of(each) for each in self.story.rest if each.role == "user"]
        assert first <= max([kept, cut, *users[-1:]]), "the current turn stays"
        self.past[-1] = self.story

    def do_tentative(self, steps: Sequence[Step], committed: bool) -> None:
        """Do some steps and take them back, all or the later ones."""
        for window in self.windows:
            self.log.view(window, window.limit("m"))
        story, log, mark, was = self.story, self.log, self.log.begin(), picture(self.log)
        try:
            for step in steps:
                inner, then, here = self.log.mark(), self.story, picture(self.log)
                self.run(step, committed=False)
                self.log.rollback(inner)
                self.story = then
                assert picture(self.log) == here
                self.check(self.log)
                self.run(step, committed=False)
                self.check(self.log)
        except LookupError:
            pass
        log.rollback(mark)
        self.log, self.story = log, story
        assert picture(log) == was

    def do_trim(self, committed: bool) -> None:
        for window in self.windows:
            self.log.view(window, window.limit("m"))
        self.log.begin()
        self.log.trim()

    def do_tail(self, newest: int, committed: bool) -> None:
        """Go on with the newest entries alone in RAM."""
        if self.story.n:
            self.log = self.tail(newest)

    # Comparing

    def tail(self, newest: int) -> Log:
        (loaded,) = self.store.load([LoadQuery(self.name, None, newest)])
        log = reader._fetched(self.store, loaded, self.name).log
        assert isinstance(log, Log), log
        return log

    def check(self, log: Log, story: Story | None = None) -> None:
        """Compare a log with the story: all of it, or what of it is held."""
        story = self.story if story is None else story
        assert log.n == story.n
        assert log.base == story.base or max(log.base, story.base) == 1
        known = {each.id: each.fields for each in story.everything}
        current = None if story.system is None else (story.system.id, story.system.fields)
        held = log.transcript.system
        assert (None if held is None else (held.id, held.to_dict())) == current
        assert all(known[str(message.id)] == message.to_dict() for message in log.messages)
        if log.complete:
            assert said(log) == [(each.id, each.fields) for each in story.everything]
            assert log.count == len(story.everything)
            assert log.size == sum(len(message.raw) for message in log.messages) + sum(
                len(message.raw) for message in (*log.transcript.summary, *filter(None, [log.transcript.system_before]))
            )
        for window in self.windows:
            limit = window.limit("m")
            view = log.view(window, limit)
            if view is None:
                assert not log.complete
                continue
            assert (labels(view), view.overflow) == story.show(rules_of(window), limit)
            assert all(known[str(each.id)] == each.to_dict() for each in view if not each.synthetic)

    def compare(self) -> None:
        """Compare everything that can be read with the story."""
        self.check(self.log)
        if not self.story.n:
            return
        whole = self.load(EVERYTHING, None)
        assert whole.complete
        self.check(whole)
        assert whole.system == self.log.system
        (loaded,) = self.store.load([LoadQuery(self.name)])
        assert loaded.head is not None
        assert loaded.head.system == whole.system
        for newest in range(1, self.story.n + 2):
            self.check(self.tail(newest))
        for window in self.windows:
            read = self.load(window, window.limit("m"))
            assert read.view(window, window.limit("m")) is not None
            self.check(read)
        self.follow()
        self.systems[self.story.n] = self.log.system
        self.look_back()

    def follow(self) -> None:
        """Read what was committed since, as another process does."""
        fetch = reader.Fetch(self.name, self.follower.version, None, self.follower.before)
        (fetched,) = reader._read(self.store, [fetch])
        log = fetched.log if fetched.log is not None else extend(self.follower, fetched.loaded, self.name)
        assert isinstance(log, Log), log
        self.follower = log
        self.check(log)

    def look_back(self) -> None:
        """Look at each earlier version."""
        for n, story in enumerate(self.past):
            version = Version(self.log.mid, n)
            try:
                log = log_at(self.store, self.name, version)
            except HistoryPrunedError:
                assert 0 < n < self.story.n, "what is now can be read"
                assert not self._is_there(n), "nothing of it was pruned"
                continue
            assert not log.complete or self._is_there(n)
            self.check(log, self._without_hidden(story, log.transcript.system_before is not None))

    def _without_hidden(self, story: Story, leads: bool) -> Story:
        """Leave out the system message from before where it showed no more, and its entry may be gone."""
        hidden = story.before is not None and story.before is not story.system
        return replace(story, before=None) if hidden and not leads else story

    def _gone(self) -> set[int]:
        there = self.store.entries(self.log.mid, after=0, limit=10_000)
        return set(range(1, self.story.n + 1)) - {entry.version for entry in there}

    def _is_there(self, n: int) -> bool:
        """Tell whether all is in the store that the state at a version takes, behind the last entry that went."""
        gone = self._gone()
        return not n or (
            n >= max(gone, default=0) and gone.isdisjoint({self.systems.get(n, 0), *range(self.past[n].first, n + 1)})
        )

    def _begins_in_the_middle(self, n: int) -> bool:
        """Tell whether pruning took some of the log, or let the state at a version begin there."""
        story = self.past[n]
        return bool(self._gone()) or story.base in self.cuts


def compare(store: Store, several: Sequence[Window], steps: Sequence[Step]) -> None:
    world = World(store, several)
    for step in steps:
        world.run(step)
        world.compare()


_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""An example is long, and shrinking one would take longer than a test may."""


@given(st.lists(windows(4), min_size=1, max_size=3), _steps)
@settings(max_examples=60, phases=_PHASES)
def test_a_log_is_what_was_done_to_it_in_ram_and_in_the_store(several: Sequence[Window], steps: Sequence[Step]) -> None:
    compare(InMemoryStore(), several, steps)


@given(st.lists(windows(4), min_size=1, max_size=3), _steps)
@settings(max_examples=25, phases=_PHASES)
def test_and_so_it_is_in_sqlite(several: Sequence[Window], steps: Sequence[Step]) -> None:
    with TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "chats.db")
        store.open(durability="relaxed")
        try:
            compare(store, several, steps)
        finally:
            store.close()


_LED = [("add", [answer(""), system("s")]), ("add", [answer("a")]), ("retain", 1)]
"""A state that a system message leads from the entry before it, which had to stay."""


@pytest.mark.parametrize(
    "steps",
    [
        [("edit_system", 0, system("t"))],
        [("add", [system("t")]), ("pop",)],
        [("add", [system("t")]), ("retain", 1)],
        [("fork", True, 1), ("set", [answer("b")])],
    ],
)
def test_a_system_message_from_before_the_state_is_replaced(tmp_path: Path, steps: list[Step]) -> None:
    store = SQLiteStore(tmp_path / "chats.db")
    store.open(durability="relaxed")
    try:
        compare(store, [], [*_LED, *steps])
    finally:
        store.close()
    compare(InMemoryStore(), [], [*_LED, *steps])


def test_an_edit_of_a_system_message_that_shows_no_more_leaves_the_current_one_in_part_of_a_log() -> None:
    said = [system("t"), user(""), system("t")]
    steps: list[Step] = [("add", said), ("edit_system", 1, system("s")), ("edit_system", 1, system("t"))]
    compare(InMemoryStore(), [], [*steps, ("add", [system("s")]), ("edit_system", 0, system("s"))])


def test_what_shows_no_more_is_not_copied_though_its_entry_had_to_stay() -> None:
    world = World(InMemoryStore(), [])
    for step in _LED:
        world.run(step)
    with pytest.raises(HistoryPrunedError):
        copied_entries(world.store, world.name, None)

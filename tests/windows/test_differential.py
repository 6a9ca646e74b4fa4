"""The heart: whatever happens to a log, each window's view, kept up to date step by step, is what the model computes.

Batches added and replaced through windows that refuse, tentative entries taken back, limits that change between looks,
old messages leaving RAM, parts of logs loaded, other writers' entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings

from turnkeeper import MessageWindow, TokenWindow, TurnWindow, Unbounded, Window
from turnkeeper import state as state_module
from turnkeeper.folding import extend, fold
from turnkeeper.log import ADD, CLEAR, SET, Head, Loaded, StoredEntry
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.windows import LimitedWindow, Messages
from windows.histories import COUNTER, STEPS, Step, several
from windows.model import Said, Shown, accepts, show
from windows.saying import (
    Fields,
    answer,
    calls,
    labels,
    log_of,
    result,
    rules_of,
    system,
    user,
    view_of,
)

NAME = MemoryName("", "m")
FRESH = Head(3, 0, 0, 0, 1, 1)


@pytest.fixture(autouse=True, scope="module")
def _without_slack() -> Iterator[None]:
    """Let messages leave RAM at once: logs in here are short."""
    with patch.object(state_module, "_SLACK", 0):
        yield


class Both:
    """A log, what the store holds of it, and the model's list of the same messages."""

    def __init__(self, looking: Sequence[Window]) -> None:
        self.windows = looking
        self.limits: list[int | None] = [window.limit("m") for window in looking]
        self.log = Log(FRESH)
        self.said: list[Said] = []
        self.n = 0
        self.base = 0
        self.stored: list[StoredEntry] = []

    # Changing

    def change(self, op: str, batch: list[Fields], place: int | None = None) -> None:
        """Add or replace, through a window or without one; whether it is refused is compared."""
        window = limit = None
        judging = False
        if place is not None and isinstance(chosen := self.windows[place], LimitedWindow):
            window, limit = chosen, self.limits[place]
            judging = window.on_overflow == "error"
            if judging and op == ADD and not self.log.covers(window, limit):
                self.reach(window, limit)
        before, coming = self.coming(op, batch)
        wanted = True
        if judging:
            assert window is not None
            assert limit is not None
            wanted = accepts(before, coming, rules_of(window), limit)
        take = self.log.append if op == ADD else self.log.replace
        taken = take(encode_messages(batch), window, limit, judging=judging)
        if taken is None:
            assert not self.log.complete
            self.load(self.n)
            take = self.log.append if op == ADD else self.log.replace
            taken = take(encode_messages(batch), window, limit, judging=judging)
            assert taken is not None
        assert taken is wanted
        if taken:
            self.note(op, batch)
        assert (self.log.n, self.log.base, self.log.system) == (self.n, self.base, self.system())
        if self.log.complete:
            assert self.log.size == sum(len(message.raw) for message in self.log.messages)
            assert self.log.count == len(self.said)

    def coming(self, op: str, batch: list[Fields]) -> tuple[list[Said], list[Said]]:
        """Return what an entry leaves of the state, and what it adds."""
        return self.said if op == ADD else [], [Said(f"{self.n + 1}.{place}", said) for place, said in enumerate(batch)]

    def note(self, op: str, batch: list[Fields]) -> None:
        """Take an entry into the model and the store."""
        before, coming = self.coming(op, batch)
        self.n += 1
        self.base = self.base if op == ADD else self.n
        self.said = before + coming
        self.stored.append(StoredEntry(self.n, op, b"i" * 16, payload(batch), 1))

    def tentative(self, steps: Sequence[Step], looking: bool) -> None:
        """Do some steps and take them back; `looking`: at each window before and after."""
        for place in range(len(self.windows) * looking):
            self.look(place)
        mark = self.log.begin()
        then = self.n, self.base, self.said, len(self.stored), self.log.size, self.log.count, self.log.system
        log = self.log
        for step in steps:
            if self.log is not log:
                return  # older messages had to be loaded; the runtime begins anew then
            self.run(step)
        if self.log is log:
            self.log.rollback(mark)
            self.n, self.base, self.said = then[:3]
            del self.stored[then[3] :]
            assert (self.log.size, self.log.count, self.log.system) == then[4:]
            for place in range(len(self.windows) * looking):
                self.look(place)

    # Loading

    def head(self) -> Head:
        return Head(3, self.n, self.base, self.system(), 1, 1)

    def system(self) -> int:
        """Find the current system message's entry, as the model does."""
        current: Said | None = None
        for said in self.said:
            if said.role == "system" and (current is None or current.fields != said.fields):
                current = said
        return 0 if current is None else int(current.id.split(".")[0])

    def reach(self, window: Window, limit: int | None) -> None:
        """Load as far back as a window needs it."""
        newest = 1
        self.load(newest)
        while not self.log.covers(window, limit):
            assert not self.log.complete
            newest += 1
            self.load(newest)

    def load(self, newest: int) -> None:
        """Load the state's newest entries."""
        first = max(self.base, 1, self.n + 1 - newest)
        after = first - 1 if first > max(self.base, 1) else 0
        system = self.system()
        apart = self.stored[system - 1] if 0 < system < first else None
        self.log = fold(Loaded(self.head(), after, tuple(self.stored[first - 1 :]), apart), NAME)
        assert self.log.complete is (after == 0)

    def foreign(self, batches: Sequence[list[Fields] | None]) -> None:
        """Load what another process wrote."""
        log, known = self.log, self.n
        for batch in batches:
            self.note(CLEAR if batch is None else ADD, batch or [])
        entries = tuple(self.stored[known:])
        continues = self.base <= known
        if continues:
            self.log = extend(log, Loaded(self.head(), known, entries, continues=True), NAME)
            assert self.log is log
            log.begin()
        else:
            self.load(len(entries))

    # Looking

    def look(self, place: int) -> Shown:
        """Compare a view with the model's."""
        window, limit = self.windows[place], self.limits[place]
        rules = rules_of(window)
        wanted = show(self.said, rules, limit)
        view = self.log.view(window, limit)
        if view is None:
            held = {message.id for message in self.log.messages}
            first = next((index for index, said in enumerate(self.said) if said.id in held), len(self.said))
            users = any(said.role == "user" for said in self.said[first:])
            assert not self.log.complete
            assert first == 0 or first > wanted.room_for or not users, "it holds what proves that there is no room"
            self.reach(window, limit)
            view = self.log.view(window, limit)
            assert view is not None
        assert (labels(view), view.overflow) == (wanted.labels, wanted.overflow)
        assert view.version == self.log.version
        assert self.log.view(window, limit) is view, "the same object until something changes"
        check_promises(view, self.said, window, wanted, limit)
        return wanted

    def look_ahead(self, place: int, batch: list[Fields]) -> None:
        """Compare what a view would be with these messages at the end, which leaves no trace."""
        window, limit = self.windows[place], self.limits[place]
        self.look(place)
        seen = self.log.view(window, limit)
        ahead = self.log.view_with(encode_messages(batch), window, limit)
        if ahead is None:
            self.load(self.n)
            seen = self.log.view(window, limit)
            ahead = self.log.view_with(encode_messages(batch), window, limit)
            assert ahead is not None
        before, coming = self.coming(ADD, batch)
        wanted = show(before + coming, rules_of(window), limit)
        assert (labels(ahead), ahead.overflow, ahead.version) == (wanted.labels, wanted.overflow, self.log.version)
        assert self.log.view(window, limit) is seen

    def run(self, step: Step) -> None:
        """Do one step."""
        op, *rest = step
        if op == "look":
            self.look(rest[0] % len(self.windows))
        elif op == "ahead":
            self.look_ahead(rest[0] % len(self.windows), rest[1])
        elif op == "limit":
            place = rest[0] % len(self.windows)
            if self.limits[place] is not None:
                self.limits[place] = rest[1]
        elif op in (ADD, SET):
            self.change(op, rest[0], None if rest[1] is None else rest[1] % len(self.windows))
        elif op == CLEAR:
            self.change(CLEAR, [])
        elif op == "tentative":
            self.tentative(rest[0], rest[1])
        elif op == "trim":
            for place in range(len(self.windows) * rest[0]):
                self.look(place)
            self.log.begin()
            self.log.trim()
        elif op == "reload":
            self.load(rest[0])
        else:
            self.foreign(rest[0])


def payload(batch: list[Fields]) -> bytes:
    """Encode an entry as stores keep it."""
    return json.dumps({"messages": batch}).encode()


def check_promises(view: Messages, said: Sequence[Said], window: Window, wanted: Shown, limit: int | None) -> None:
    """Check what a view promises by itself, without asking the model what it should be."""
    known = {one.id: one for one in said}
    order = {one.id: index for index, one in enumerate(said)}
    own = [message for message in view if not message.synthetic]
    assert all(known[str(message.id)].fields == message.to_dict() for message in own), "nothing is rewritten"
    assert len({message.id for message in own}) == len(own), "nothing is shown twice"
    moved = [message for message in own if message.role not in ("tool", "function", "system", "developer")]
    places = [order[str(message.id)] for message in moved]
    assert places == sorted(places), "oldest first"

    open_calls: list[str] = []
    for position, message in enumerate(view):
        fields = message.to_dict()
        if message.role in ("tool", "function"):
            link = fields["name"] if message.role == "function" else fields["tool_call_id"]
            assert link in open_calls, "no result without its call, right behind it"
            open_calls.remove(link)
            continue
        assert not open_calls or window.on_unanswered == "keep", "no call without its result"
        open_calls = [call["id"] for call in fields.get("tool_calls") or []]
        if (function := fields.get("function_call")) is not None:
            open_calls.append(function["name"])
        if message.role in ("system", "developer") and isinstance(window, LimitedWindow):
            first = window.system_first or order[str(message.id)] < wanted.start
            assert not first or position == 0
    if open_calls and window.on_unanswered != "keep":
        last = max((index for index, one in enumerate(said) if one.role != "tool"), default=-1)
        calls = [message for message in view if message.role == "assistant"]
        assert calls[-1].id == said[last].id, "only the current exchange may wait for its results"
    if isinstance(window, LimitedWindow):
        systems = [message for message in view if message.role in ("system", "developer")]
        assert len(systems) <= 1
        cost = rules_of(window).cost
        assert cost is not None
        total = rules_of(window).overhead + sum(cost(None if one.synthetic else one.to_dict()) for one in view)
        assert limit is not None
        assert view.overflow is (total > limit and len(view) > 0)
        if view.overflow and not window.whole_turns and window.on_overflow != "keep":
            assert view == tuple(systems), "only a lone system message may exceed the limit"


@given(several(limit=5), STEPS)
@settings(max_examples=200)
def test_a_view_that_is_kept_up_to_date_is_the_one_computed_from_scratch(
    looking: list[Window], steps: Sequence[Step]
) -> None:
    both = Both(looking)
    for step in steps:
        both.run(step)
    for place, window in enumerate(looking):
        wanted = both.look(place)
        if isinstance(window, LimitedWindow):
            for limit in (wanted.total, wanted.total - 1, wanted.total + 1, 1, 1_000, wanted.total):
                both.limits[place] = max(limit, 1)
                both.look(place)


SAID = [
    *[user("u"), answer("aa"), calls("1"), calls("1", "2"), result("1", "r"), result("2", "rrr")],
    *[system("s"), system("tt")],
]
GROUPS: list[list[Window]] = [
    [
        Unbounded(),
        Unbounded(on_unanswered="drop"),
        MessageWindow(2, on_overflow="evict"),
        MessageWindow(3, on_overflow="keep", on_unanswered="drop", system_first=True),
    ],
    [
        TokenWindow(5, COUNTER, on_overflow="evict"),
        TurnWindow(max_messages=2),
        TurnWindow(max_turns=1, on_unanswered="drop"),
        TurnWindow(max_tokens=6, counter=COUNTER, on_unanswered="keep"),
    ],
]


@pytest.mark.parametrize("looking", GROUPS, ids=["first", "second"])
@pytest.mark.parametrize("at_every", [1, 2])
def test_every_history_of_four_messages_step_by_step_and_back(looking: list[Window], at_every: int) -> None:
    """Each is reached from the one before it and taken back again, with looks on the way, at each or every other."""
    log = log_of()
    said: list[Said] = []

    def explore(depth: int) -> None:
        seen: list[Messages] = []
        if depth % at_every == 0:
            for window in looking:
                wanted = show(said, rules_of(window), window.limit("m"))
                seen.append(view_of(log, window))
                assert (labels(seen[-1]), seen[-1].overflow) == (wanted.labels, wanted.overflow), said
        if depth == 4:
            return
        for message in SAID:
            mark = log.mark()
            log.append(encode_messages([message]))
            said.append(Said(f"{depth + 1}.0", message))
            explore(depth + 1)
            said.pop()
            log.rollback(mark)
            for window, view in zip(looking, seen, strict=False):
                assert labels(view_of(log, window)) == labels(view), said

    explore(0)

"""The turnstile: who passes, who waits, who is refused. No loop, no store."""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper import OverloadedError, TurnBusyError, TurnEndedError, TurnInterruptedError, Version
from turnkeeper.log import ADD
from turnkeeper.names import MemoryName
from turnkeeper.requests import ABANDONED, OPEN_TURN, Request
from turnkeeper.turnstile import ENDED, ON_BUSY, OPEN, OpenTurn, Turnstile


class Over:
    """An event without a loop."""

    def __init__(self) -> None:
        self.was_set = False

    def set(self) -> None:
        self.was_set = True


NAME = MemoryName("", "m")
SINCE = Version(7, 3)


def make_turn(max_duration: float = 10.0) -> OpenTurn:
    over: Any = Over()
    return OpenTurn(NAME, max_duration, over)


def opening(on_busy: str = "enqueue", max_duration: float = 10.0) -> Request:
    return Request(OPEN_TURN, turn=make_turn(max_duration), on_busy=on_busy)


def turn_of(request: Request) -> OpenTurn:
    assert request.turn is not None
    return request.turn


def write() -> Request:
    return Request(ADD)


def with_open_turn(most: int = 3, now: float = 0.0) -> tuple[Turnstile, OpenTurn]:
    stile = Turnstile(most)
    turn = make_turn()
    stile.turn = turn
    turn.begin(now, SINCE)
    return stile, turn


class TestNobodyInside:
    @pytest.mark.parametrize("on_busy", ON_BUSY)
    def test_everybody_passes(self, on_busy: str) -> None:
        stile = Turnstile(1)
        assert stile.meet(write(), 0.0) is True
        assert stile.meet(opening(on_busy), 0.0) is True
        assert not stile.held

    def test_who_comes_later_stands_behind_who_waits(self) -> None:
        stile, turn = with_open_turn()
        first, second = write(), write()
        stile.meet(first, 0.0)
        stile.release(turn)
        assert stile.meet(second, 0.0) is False
        assert [stile.next(0.0), stile.next(0.0), stile.next(0.0)] == [first, second, None]


class TestSomebodyInside:
    def test_writes_and_turns_wait_in_the_order_of_arrival(self) -> None:
        stile, turn = with_open_turn()
        waiting = [write(), opening(), write(), opening()]
        assert [stile.meet(request, 1.0) for request in waiting] == [False] * 4
        assert stile.next(1.0) is None
        stile.release(turn)
        assert [stile.next(1.0) for _ in waiting] == waiting

    def test_reject_is_refused_at_once_and_changes_nothing(self) -> None:
        stile, turn = with_open_turn()
        assert isinstance(stile.meet(opening("reject"), 1.0), TurnBusyError)
        assert (stile.turn, turn.state, list(stile.held)) == (turn, OPEN, [])

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    def test_who_takes_its_place_passes_everybody_who_waits(self, on_busy: str) -> None:
        stile, turn = with_open_turn()
        stile.meet(write(), 1.0)
        assert stile.meet(opening(on_busy), 1.0) is True
        assert (turn.state, turn.reason) == (ENDED, on_busy)
        over: Any = turn.over
        assert over.was_set

    def test_a_rollback_takes_back_what_was_committed_and_an_interruption_does_not(self) -> None:
        for on_busy, undo in (("rollback", (3, 5)), ("interrupt", None)):
            stile, turn = with_open_turn()
            turn.advance(Version(7, 5))
            request = opening(on_busy)
            stile.meet(request, 1.0)
            assert turn_of(request).undo == undo

    def test_a_rollback_of_a_turn_that_committed_nothing_takes_nothing_back(self) -> None:
        stile, _ = with_open_turn()
        request = opening("rollback")
        stile.meet(request, 1.0)
        assert turn_of(request).undo is None

    def test_who_takes_the_place_of_one_that_is_being_opened_takes_over_what_that_was_to_take_back(self) -> None:
        stile = Turnstile(1)
        opened = make_turn()
        opened.undo = 4, 6
        stile.turn = opened
        request = opening("interrupt")
        assert stile.meet(request, 0.0) is True
        assert turn_of(request).undo == (4, 6)

    def test_its_own_requests_pass_before_everything(self) -> None:
        stile, turn = with_open_turn()
        stile.meet(write(), 1.0)
        own = write()
        stile.urgent.append(own)
        assert stile.next(1.0) is own
        assert stile.next(1.0) is None
        stile.urgent.append(own)
        stile.release(turn)
        assert stile.next(1.0) is own

    def test_it_is_still_while_its_turn_asks_for_nothing(self) -> None:
        stile, turn = with_open_turn()
        assert stile.still
        stile.urgent.append(write())
        assert not stile.still
        stile.urgent.clear()
        stile.release(turn)
        assert not stile.still


class TestTheBound:
    def test_at_most_so_many_turns_wait_and_writes_do_not_count(self) -> None:
        stile, _ = with_open_turn(most=2)
        for _ in range(5):
            assert stile.meet(write(), 1.0) is False
        assert stile.meet(opening(), 1.0) is False
        assert stile.meet(opening(), 1.0) is False
        assert isinstance(stile.meet(opening(), 1.0), OverloadedError)
        assert len(stile.held) == 7

    def test_who_has_left_the_line_takes_no_place_in_it(self) -> None:
        stile, _ = with_open_turn(most=2)
        left = [opening(), opening()]
        for request in left:
            stile.meet(request, 1.0)
            request.state = ABANDONED
        assert stile.meet(opening(), 1.0) is False
        assert stile.meet(opening(), 1.0) is False
        assert isinstance(stile.meet(opening(), 1.0), OverloadedError)

    def test_the_line_does_not_grow_by_those_who_left_it(self) -> None:
        stile, turn = with_open_turn(most=2)
        first = write()
        stile.meet(first, 1.0)  # who stays in front of them
        for _ in range(1_000):
            request = write()
            stile.meet(request, 1.0)
            request.state = ABANDONED
        last = write()
        stile.meet(last, 1.0)
        assert len(stile.held) < 100
        stile.release(turn)
        staying = [each for each in (stile.next(1.0) for _ in range(len(stile.held))) if each in (first, last)]
        assert staying == [first, last]

    def test_who_left_the_line_makes_nobody_busy(self) -> None:
        stile, turn = with_open_turn()
        request = write()
        stile.meet(request, 1.0)
        request.state = ABANDONED
        stile.release(turn)
        assert stile.meet(opening("reject"), 1.0) is True


class TestTime:
    def test_a_turn_ends_at_its_deadline_when_somebody_comes(self) -> None:
        stile, turn = with_open_turn()
        assert stile.wake_at() == 10.0, "though nobody waits"
        assert stile.meet(write(), 9.9) is False
        assert stile.wake_at() == 10.0
        stile.expire(9.9)
        assert turn.state == OPEN
        stile.expire(10.0)
        assert (turn.state, turn.reason, stile.turn) == (ENDED, "expired", None)
        assert stile.next(10.0) is not None

    def test_who_comes_after_the_deadline_passes(self) -> None:
        stile, turn = with_open_turn()
        assert stile.meet(opening("reject"), 10.0) is True
        assert turn.reason == "expired"

    def test_nobody_inside_and_nobody_waits_nobody_wakes(self) -> None:
        stile, turn = with_open_turn()
        assert Turnstile(3).wake_at() is None
        stile.meet(write(), 1.0)
        stile.release(turn)
        assert stile.wake_at() == 0.0, "at once"

    def test_another_process_is_asked_for_again_after_ever_longer_pauses(self) -> None:
        stile = Turnstile(1)
        stile.held.append(write())
        pauses = []
        for _ in range(10):
            stile.close(100.0)
            assert stile.next(stile.closed_until - 0.001) is None
            pauses.append(stile.closed_until - 100.0)
        assert pauses == sorted(pauses)
        assert 0 < pauses[0] < 0.1
        assert pauses[-1] == 0.5
        stile.reopen()
        stile.close(100.0)
        assert stile.closed_until - 100.0 == pytest.approx(pauses[0])


class TestATurn:
    def test_it_ends_once(self) -> None:
        _, turn = with_open_turn()
        turn.end("interrupt")
        turn.end("expired")
        turn.end()
        assert turn.reason == "interrupt"

    def test_who_watches_is_not_told_that_it_was_left(self) -> None:
        _, turn = with_open_turn()
        turn.end()
        over: Any = turn.over
        assert not over.was_set

    @pytest.mark.parametrize("reason", ["interrupt", "rollback", "expired", "lost"])
    def test_its_refusal_says_why(self, reason: str) -> None:
        _, turn = with_open_turn()
        assert turn.refusal() is None
        turn.end(reason)
        refusal = turn.refusal()
        assert isinstance(refusal, TurnInterruptedError)
        assert refusal.reason == reason

    def test_left_or_not_entered_it_is_refused_as_ended(self) -> None:
        turn = make_turn()
        assert type(turn.refusal()) is TurnEndedError
        turn.begin(0.0, SINCE)
        turn.end()
        assert type(turn.refusal()) is TurnEndedError

    def test_it_follows_its_own_commits_only(self) -> None:
        _, turn = with_open_turn()
        assert turn.follows(SINCE)
        assert not turn.follows(Version(7, 4))
        assert not turn.follows(Version(8, 3)), "deleted and made again"
        turn.advance(Version(7, 4))
        assert turn.follows(Version(7, 4))
        assert not turn.follows(SINCE)

    def test_it_follows_the_row_that_it_makes(self) -> None:
        turn = make_turn()
        turn.begin(0.0, Version(0, 0))
        assert turn.follows(Version(0, 0))
        turn.advance(Version(9, 1))
        assert turn.follows(Version(9, 1))

    def test_ids_are_random(self) -> None:
        assert len({make_turn().id for _ in range(100)}) == 100
        assert len(make_turn().id) == 16

    def test_a_release_by_who_is_not_inside_changes_nothing(self) -> None:
        stile, turn = with_open_turn()
        stile.release(make_turn())
        assert stile.turn is turn

    def test_it_is_lost_with_its_task(self) -> None:
        stile, turn = with_open_turn()
        stile.drop()
        assert (turn.reason, stile.turn) == ("lost", None)
        stile.drop()


COMING = st.lists(st.tuples(st.sampled_from(("write", *ON_BUSY, "leave")), st.floats(0, 3)), max_size=40)


@given(COMING)
def test_one_at_a_time_and_nobody_is_forgotten(coming: list[tuple[str, float]]) -> None:
    """Whatever comes: one turn inside, writes pass when there is none, and who waits passes in order in the end."""
    stile = Turnstile(5)
    now, order = 0.0, itertools.count()
    arrival: dict[Request, int] = {}
    passed: list[Request] = []

    def let_pass(request: Request) -> None:
        assert stile.turn is None or stile.turn.state == ENDED
        passed.append(request)
        if request.turn is not None:
            stile.turn = request.turn
            request.turn.begin(now, SINCE)

    def drain() -> None:
        while (request := stile.next(now)) is not None:
            let_pass(request)

    for what, wait in coming:
        now += wait
        stile.expire(now)
        drain()
        if what == "leave":
            if stile.turn is not None:
                turn, stile_turn = stile.turn, stile.turn
                turn.end()
                stile.release(stile_turn)
            drain()
            continue
        request = write() if what == "write" else opening(what, max_duration=2.0)
        arrival[request] = next(order)
        met = stile.meet(request, now)
        if met is True:
            let_pass(request)
        elif isinstance(met, Exception):
            del arrival[request]
    for _ in arrival:
        now += 2.0
        stile.expire(now)
        drain()
    assert set(passed) == set(arrival)
    in_line = [request for request in passed if request.on_busy == "enqueue"]
    assert in_line == sorted(in_line, key=arrival.__getitem__)


def test_events_are_those_of_the_loop() -> None:
    """What `Over` stands for: the actor gives a turn an event of its loop."""
    assert hasattr(anyio.Event, "set")

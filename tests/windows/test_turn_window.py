"""Whole turns: what agents with tools should use."""

from __future__ import annotations

from typing import Any

import pytest

from turnkeeper import TurnWindow
from turnkeeper.messages import encode_messages
from windows.saying import Lengths, answer, calls, log_of, result, shown, spoken, system, user, view_of

TURNS = [
    *[user("u1"), calls("1"), result("1", "r1"), answer("a1")],
    *[user("u2"), answer("a2")],
    *[user("u3"), calls("2", "3"), result("2", "r2"), result("3", "r3")],
]
FLAT = Lengths(list_overhead=0)


def limited(kind: str, limit: int, **more: Any) -> TurnWindow:
    arguments: dict[str, Any] = {kind: limit, **more}
    return TurnWindow(**arguments, counter=FLAT if kind == "max_tokens" else None)


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("max_turns", [(1, 3), (2, 2), (3, 1), (9, 1)]),
        ("max_messages", [(4, 3), (5, 3), (6, 2), (9, 2), (10, 1), (99, 1)]),
        ("max_tokens", [(6, 3), (9, 3), (10, 2), (15, 2), (16, 1), (99, 1)]),
    ],
)
def test_turns_leave_whole(kind: str, limits: list[tuple[int, int]]) -> None:
    whole = shown(limited(kind, 99), *TURNS)
    assert whole == "u1 call:1 r1 a1 u2 a2 u3 call:2,3 r2 r3"
    for limit, first in limits:
        assert shown(limited(kind, limit), *TURNS) == whole[whole.index(f"u{first}") :], limit


@pytest.mark.parametrize(("kind", "enough"), [("max_messages", 5), ("max_tokens", 7)])
def test_the_current_turn_is_never_evicted_and_the_view_says_so(kind: str, enough: int) -> None:
    for limit in range(1, enough):
        view = view_of(log_of(system("s"), *TURNS), limited(kind, limit))
        assert (spoken(view), view.overflow) == ("s u3 call:2,3 r2 r3", True)
    fits = view_of(log_of(system("s"), *TURNS), limited(kind, enough))
    assert (spoken(fits), fits.overflow) == ("s u3 call:2,3 r2 r3", False)
    assert view_of(log_of(*TURNS), limited("max_turns", 1)).overflow is False


def test_it_opens_on_a_user_message_after_the_system_message_wherever_that_was_added() -> None:
    assert shown(TurnWindow(max_turns=1), system("s1"), user("u1"), answer("a1"), system("s2"), user("u2")) == "s2 u2"
    assert shown(TurnWindow(max_turns=2), user("u1"), answer("a1"), system("s"), user("u2")) == "s u1 a1 u2"
    assert shown(TurnWindow(max_turns=1), user("u1"), system("s"), calls("1")) == "s u1 call:1"


def test_what_came_before_the_first_user_message_is_not_shown() -> None:
    greeting = [answer("hello"), calls("0"), result("0", "r0")]
    for kind in ("max_turns", "max_messages", "max_tokens"):
        window = limited(kind, 99)
        assert shown(window, *greeting) == ""
        assert shown(window, system("s"), *greeting) == "s"
        assert shown(window, system("s"), *greeting, user("u")) == "s u"
        assert shown(window, calls("0"), user("u"), result("0", "r0")) == "u", "a late result stands behind its call"


def test_the_system_message_counts_but_is_no_turn() -> None:
    log = [system("s"), user("u1"), answer("a1"), user("u2"), answer("a2")]
    assert shown(TurnWindow(max_messages=4), *log) == "s u2 a2"
    assert shown(TurnWindow(max_messages=5), *log) == "s u1 a1 u2 a2"
    assert shown(TurnWindow(max_tokens=8, counter=FLAT), *log) == "s u2 a2"
    assert shown(TurnWindow(max_tokens=9, counter=FLAT), *log) == "s u1 a1 u2 a2"
    assert shown(TurnWindow(max_turns=1), *log) == "s u2 a2"
    assert shown(TurnWindow(max_turns=2), *log) == "s u1 a1 u2 a2"


def test_results_that_were_made_up_count_as_messages_and_tokens_but_not_as_turns() -> None:
    log = [user("u1"), calls("1"), user("u2")]
    assert shown(TurnWindow(max_messages=4), *log) == "u1 call:1 ~1 u2"
    assert shown(TurnWindow(max_messages=3), *log) == "u2"
    assert shown(TurnWindow(max_messages=3, on_unanswered="keep"), *log) == "u1 call:1 u2"
    assert shown(TurnWindow(max_tokens=6, counter=FLAT), *log) == "u1 call:1 ~1 u2"
    assert shown(TurnWindow(max_tokens=5, counter=FLAT), *log) == "u2"
    assert shown(TurnWindow(max_turns=2), *log) == "u1 call:1 ~1 u2"


def test_error_refuses_what_takes_the_current_turn_above_the_limit() -> None:
    window = TurnWindow(max_messages=3, on_overflow="error")
    log = log_of(user("u1"), answer("a1"))

    def takes(*batch: dict[str, Any]) -> bool:
        return log.append(encode_messages(batch), window, 3, judging=True) is True

    assert takes(user("u2"), calls("1"), result("1", "r1"))
    before = view_of(log, window)
    assert not takes(answer("a2"))
    assert not takes(user("u3"), calls("2"), result("2"), answer("a3"))
    assert not takes(system("s"))
    assert not takes(result("9"))
    after = view_of(log, window)
    assert (after, after.version) == (before, before.version)
    assert spoken(after) == "u2 call:1 r1"
    assert takes(user("u3"), answer("a3"))
    assert spoken(view_of(log, window)) == "u3 a3"


def test_a_turn_that_is_too_big_already_stays_in_a_window_that_refuses() -> None:
    view = view_of(log_of(*TURNS), TurnWindow(max_messages=2, on_overflow="error"))
    assert (spoken(view), view.overflow) == ("u3 call:2,3 r2 r3", True)

"""What each window shows, case by case: LangChain4j's rules, the limits, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from turnkeeper import InvalidArgumentError, MessageWindow, TokenWindow, TurnWindow, Unbounded, Window
from turnkeeper.messages import encode_messages
from turnkeeper.windows import LimitedWindow
from windows.saying import Fields, Lengths, answer, calls, log_of, result, shown, spoken, system, user, view_of

FLAT = Lengths(list_overhead=0)


def messages(limit: int, **more: Any) -> MessageWindow:
    return MessageWindow(limit, **more)


def tokens(limit: int, **more: Any) -> TokenWindow:
    """Return a TokenWindow in which the messages of these tests cost one token each, like in a MessageWindow."""
    return TokenWindow(limit, _Ones(), **more)


class _Ones(Lengths):
    def __init__(self) -> None:
        super().__init__(list_overhead=0)

    def count(self, message: Any) -> int:
        return 1


both = pytest.mark.parametrize("window", [messages, tokens])
Make = Callable[..., LimitedWindow]


@both
def test_the_newest_are_shown_oldest_first(window: Make) -> None:
    log = [user("u1"), answer("a1"), user("u2"), answer("a2")]
    assert [shown(window(limit), *log) for limit in range(1, 6)] == [
        "a2",
        "u2 a2",
        "a1 u2 a2",
        "u1 a1 u2 a2",
        "u1 a1 u2 a2",
    ]


@both
def test_one_system_message_is_kept_wherever_it_stands_and_it_counts(window: Make) -> None:
    log = [system("s"), *[user(f"u{n}") for n in range(1, 6)]]
    assert shown(window(3), *log) == "s u4 u5"
    assert shown(window(3), user("u0"), *log) == "s u4 u5"
    assert shown(window(1, on_overflow="evict"), *log) == "s"
    assert shown(window(9), user("u0"), system("s"), user("u1")) == "u0 s u1"


@both
def test_an_equal_system_message_is_ignored(window: Make) -> None:
    assert shown(window(9), system("s"), user("u1"), system("s"), user("u2")) == "s u1 u2"
    assert shown(window(9), system("s", name="n"), user("u1"), {"name": "n", **system("s")}) == "s u1"


@both
def test_a_different_system_message_replaces_it_and_goes_last(window: Make) -> None:
    assert shown(window(9), system("s1"), user("u1"), system("s2")) == "u1 s2"
    assert shown(window(9), system("s1"), user("u1"), system("s2"), user("u2")) == "u1 s2 u2"
    assert shown(window(9), system("s1"), user("u1"), system("s2"), user("u2"), system("s1")) == "u1 u2 s1"
    assert shown(window(9), system("s1"), user("u1"), {"role": "developer", "content": "s1"}) == "u1 s1"


@both
def test_or_first_with_system_first(window: Make) -> None:
    assert shown(window(9, system_first=True), user("u1"), system("s1"), user("u2")) == "s1 u1 u2"
    assert shown(window(9, system_first=True), system("s1"), user("u1"), system("s2"), user("u2")) == "s2 u1 u2"
    assert shown(window(2, system_first=True), user("u1"), system("s1"), user("u2")) == "s1 u2"


@both
def test_an_evicted_call_takes_its_results_along(window: Make) -> None:
    log = [user("u1"), calls("1", "2"), result("1", "r1"), result("2", "r2"), answer("a1"), user("u2")]
    assert [shown(window(limit), *log) for limit in range(1, 7)] == [
        "u2",
        "a1 u2",
        "a1 u2",
        "a1 u2",
        "call:1,2 r1 r2 a1 u2",
        "u1 call:1,2 r1 r2 a1 u2",
    ]


@both
def test_results_are_paired_by_id_not_by_position(window: Make) -> None:
    log = [calls("1"), calls("2"), result("1", "r1"), user("u1"), result("2", "r2"), user("u2")]
    assert shown(window(9), *log) == "call:1 r1 call:2 r2 u1 u2"
    assert shown(window(5), *log) == "call:2 r2 u1 u2"
    assert shown(window(9), calls("1"), system("s"), result("1", "r1")) == "call:1 r1 s"


@both
def test_ids_that_repeat_pair_with_the_latest_call_that_waits(window: Make) -> None:
    log = [calls("1"), result("1", "r1"), user("u1"), calls("1"), result("1", "r2")]
    assert shown(window(9), *log) == "call:1 r1 u1 call:1 r2"
    assert shown(window(2), *log) == "call:1 r2"
    assert shown(window(9), calls("1", "1"), result("1", "r1"), result("1", "r2")) == "call:1,1 r1 r2"
    assert shown(window(9), calls("1"), calls("1"), result("1", "r1"), result("1", "r2"), user("u")) == (
        "call:1 r2 call:1 r1 u"
    )


def test_the_oldest_leave_until_the_rest_fits_and_no_big_one_is_skipped() -> None:
    log = [user("1"), user("88888888"), user("22"), user("3")]
    assert shown(TokenWindow(4, FLAT), *log) == "22 3"
    assert shown(TokenWindow(11, FLAT), *log) == "88888888 22 3"
    assert shown(TokenWindow(12, FLAT), *log) == "1 88888888 22 3"
    assert shown(TokenWindow(12, Lengths(list_overhead=1)), *log) == "88888888 22 3", "a list has a price of its own"


def test_a_lone_system_message_stays_and_says_that_it_is_too_much() -> None:
    for window in (TokenWindow(2, FLAT, on_overflow="evict"), TokenWindow(2, FLAT, on_overflow="error")):
        view = view_of(log_of(user("u"), system("sss"), user("u")), window)
        assert (spoken(view), view.overflow) == ("sss", True)
    fits = view_of(log_of(system("ss"), user("u")), TokenWindow(2, FLAT))
    assert (spoken(fits), fits.overflow) == ("ss", False)


def test_an_empty_list_fits_any_limit() -> None:
    """Both that of an empty memory, and the one in which nothing fits. Source: conformance/README.md, section 3."""
    dear = Lengths(list_overhead=3)
    for window in (TokenWindow(2, dear, on_overflow="evict"), TurnWindow(max_tokens=2, counter=dear)):
        assert view_of(log_of(), window).overflow is False
    view = view_of(log_of(user("u")), TokenWindow(2, dear, on_overflow="evict"))
    assert (spoken(view), view.overflow) == ("", False)


def test_what_does_not_fit_leaves_or_the_current_turn_stays() -> None:
    log = [user("u1"), answer("a1"), user("u2"), calls("1", "2"), result("1", "r1"), result("2", "r2")]
    evicting = view_of(log_of(*log), MessageWindow(2, on_overflow="evict"))
    assert (spoken(evicting), evicting.overflow) == ("", False)
    keeping = view_of(log_of(*log), MessageWindow(2, on_overflow="keep"))
    assert (spoken(keeping), keeping.overflow) == ("u2 call:1,2 r1 r2", True)
    keeping = view_of(log_of(system("s"), *log), MessageWindow(5, on_overflow="keep"))
    assert (spoken(keeping), keeping.overflow) == ("s u2 call:1,2 r1 r2", False)
    nobody = view_of(log_of(answer("a1"), answer("a2")), MessageWindow(1, on_overflow="keep"))
    assert (spoken(nobody), nobody.overflow) == ("a2", False)
    lone = view_of(log_of(user("u1"), user("uuuuu")), TokenWindow(3, FLAT, on_overflow="keep"))
    assert (spoken(lone), lone.overflow) == ("uuuuu", True)


REFUSED: list[Any] = [
    *[lambda limit=limit: MessageWindow(limit) for limit in (0, -1, True, 1.5, "5", None)],
    *[lambda limit=limit: TokenWindow(limit) for limit in (0, -1, True, 1.5, "5", None)],
    *[lambda limit=limit: TurnWindow(max_turns=limit) for limit in (0, -1, True, 1.5, "5", None)],
    lambda: TurnWindow(max_messages=0),
    lambda: TurnWindow(max_tokens=0),
    lambda: TurnWindow(),
    lambda: TurnWindow(max_turns=1, max_tokens=1),
    lambda: TurnWindow(max_turns=1, max_messages=1),
    lambda: TurnWindow(max_turns=1, counter=Lengths()),
    lambda: TurnWindow(max_messages=1, counter=Lengths()),
    lambda: TurnWindow(max_turns=1, on_overflow="evict"),
    lambda: MessageWindow(1, on_overflow="ignore"),  # type: ignore[arg-type]
    lambda: TokenWindow(1, on_overflow="ignore"),  # type: ignore[arg-type]
    lambda: TurnWindow(max_turns=1, on_overflow="ignore"),  # type: ignore[arg-type]
    lambda: Unbounded(on_unanswered="ignore"),  # type: ignore[arg-type]
    lambda: MessageWindow(1, on_unanswered="ignore"),  # type: ignore[arg-type]
    lambda: TokenWindow(1, on_unanswered="ignore"),  # type: ignore[arg-type]
    lambda: TurnWindow(max_turns=1, on_unanswered="ignore"),  # type: ignore[arg-type]
    lambda: TokenWindow(1, 5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", REFUSED)
def test_limits_below_one_and_unknown_choices_are_refused(make: Callable[[], Window]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_the_defaults() -> None:
    """LangChain4j's order and pairs; nobody loses a message without a word; a provider never sees an open call."""
    for window in (MessageWindow(1), TokenWindow(1)):
        assert (window.on_overflow, window.on_unanswered, window.system_first) == ("error", "close", False)
    turns = TurnWindow(max_turns=1)
    assert (turns.on_overflow, turns.on_unanswered, turns.system_first) == ("keep", "close", True)
    assert Unbounded().on_unanswered == "close"


def test_windows_are_values() -> None:
    counter, limit = Lengths(), len
    pairs: list[tuple[Window, Window]] = [
        (Unbounded(), Unbounded()),
        (MessageWindow(limit), MessageWindow(limit)),
        (TokenWindow(5, counter), TokenWindow(5, counter)),
        (TokenWindow(5, len), TokenWindow(5, len)),
        (TokenWindow(5), TokenWindow(5)),
        (TurnWindow(max_turns=3), TurnWindow(max_turns=3)),
    ]
    for one, other in pairs:
        assert one == other
        assert hash(one) == hash(other)
        assert one is not other
    assert MessageWindow(5) != MessageWindow(5, on_overflow="evict")
    window: Window = MessageWindow(5)
    assert TokenWindow(5) != window
    assert TurnWindow(max_turns=3) != TurnWindow(max_messages=3)
    with pytest.raises(AttributeError):
        MessageWindow(5).max_messages = 6  # type: ignore[misc]


def test_a_limit_function_gets_the_memory_id_and_its_answer_is_checked() -> None:
    asked: list[str] = []

    def limit(memory_id: str) -> int:
        asked.append(memory_id)
        return 3

    windows: list[Window] = [MessageWindow(limit), TokenWindow(limit), TurnWindow(max_turns=limit)]
    assert [window.limit(str(number)) for number, window in enumerate(windows)] == [3, 3, 3]
    assert asked == ["0", "1", "2"]
    for wrong in (0, -5, None, "3", 2.0, True):
        with pytest.raises(InvalidArgumentError):
            MessageWindow(lambda _, wrong=wrong: wrong).limit("m")  # type: ignore[misc]


def test_a_batch_is_judged_message_by_message_and_refused_whole() -> None:
    window = MessageWindow(2)

    def takes(log: list[Fields], batch: list[Fields]) -> bool:
        held = log_of(*log)
        taken = held.append(encode_messages(batch), window, 2, judging=True) is True
        assert spoken(view_of(held, window)) == shown(window, *log, *(batch if taken else ()))
        assert held.n == len(log) + taken
        assert held.count == len(log) + len(batch) * taken
        return taken

    assert takes([], [user("1"), user("2"), user("3")]), "each was visible when it came"
    assert takes([user("1")], [calls("1"), result("1")])
    assert not takes([user("1")], [calls("1", "2"), result("1"), result("2")]), "the last result takes all with it"
    assert not takes([user("1")], [calls("1"), result("1"), result("1")]), "the second is shown nowhere"
    assert not takes([user("1")], [user("2"), result("9"), user("3")])
    assert not takes([calls("1"), user("1"), user("2")], [result("1")]), "its call is evicted"
    assert takes([user("1")], [system("s"), user("2")])
    assert not takes([system("s"), user("1")], [calls("1"), result("1")])


def test_a_set_is_judged_like_adds() -> None:
    window = MessageWindow(2)
    for batch, wanted in [([user("1"), user("2"), user("3")], True), ([result("1"), user("1")], False)]:
        log = log_of(user("0"), answer("0"))
        before = view_of(log, window)
        assert log.replace(encode_messages(batch), window, 2, judging=True) is wanted
        if not wanted:
            assert view_of(log, window) is before

"""Strategies: messages of every kind, windows of every kind, and what happens to a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from turnkeeper import MessageWindow, TokenWindow, TurnWindow, Unbounded, Window
from windows.saying import Fields, Lengths, answer, calls, result, system, user

COUNTER = Lengths()

_texts = st.sampled_from(["", "a", "bb", "ccc", "ddddd"])
_ids = st.sampled_from("123")


Choice = tuple[int, st.SearchStrategy[Any]]


def weighted(*choices: Choice) -> st.SearchStrategy[Any]:
    """Choose among strategies by their weights, which `one_of` has none of."""
    places = [place for place, (weight, _) in enumerate(choices) for _ in range(weight)]
    return st.sampled_from(places).flatmap(lambda place: choices[place][1])


_unanswered = st.sampled_from(["close", "drop", "keep"])
_overflow = st.sampled_from(["error", "keep", "evict"])
_first = st.booleans()
LIMITS = st.integers(1, 9)


def windows(limit: Any) -> st.SearchStrategy[Window]:
    """Return windows of every kind, with this limit."""
    return weighted((2, limited_windows(limit)), (1, st.builds(Unbounded, on_unanswered=_unanswered)))


def limited_windows(limit: Any) -> st.SearchStrategy[Window]:
    """Return windows of every kind that has a limit."""
    limited = {"on_unanswered": _unanswered, "on_overflow": _overflow, "system_first": _first}
    turns = {"on_unanswered": _unanswered, "on_overflow": st.sampled_from(["keep", "error"])}
    whole: list[st.SearchStrategy[Window]] = [
        st.builds(TurnWindow, max_messages=st.just(limit), **turns),
        st.builds(TurnWindow, max_tokens=st.just(limit), counter=st.just(COUNTER), **turns),
        st.builds(TurnWindow, max_turns=st.just(limit), **turns),
    ]
    return st.one_of(
        st.builds(MessageWindow, st.just(limit), **limited),
        st.builds(TokenWindow, st.just(limit), st.just(COUNTER), **limited),
        st.one_of(whole),
    )


def several(limit: int) -> st.SearchStrategy[list[Window]]:
    """Return a few windows with limits, under which logs leave RAM, or many of every kind."""
    return st.one_of(
        st.lists(limited_windows(limit), min_size=1, max_size=2), st.lists(windows(limit), min_size=1, max_size=6)
    )


Step = tuple[Any, ...]
"""What happens to a log: its name and arguments; a window is named by its place among those of the example."""


def histories(step: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Return histories long enough for something to be evicted, and short ones, so that a failure can shrink."""
    return st.one_of(st.lists(step, max_size=12), st.lists(step, min_size=20, max_size=80))


MESSAGES: st.SearchStrategy[Fields] = weighted(
    (5, st.builds(user, _texts)),
    (7, st.builds(result, _ids, _texts)),
    (4, st.lists(_ids, min_size=1, max_size=3).map(lambda ids: calls(*ids))),
    (3, st.builds(answer, _texts)),
    (1, st.builds(system, st.sampled_from(["s", "sss"]))),
    (
        1,
        st.sampled_from(
            [
                {"role": "developer", "content": "s"},
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "ff"},
                {**calls("1"), "function_call": {"name": "f", "arguments": "{}"}},
            ]
        ),
    ),
)
BATCHES = weighted((2, st.tuples(MESSAGES).map(list)), (1, st.lists(MESSAGES, min_size=2, max_size=5)))

_window = st.integers(0, 5)
_writing = st.one_of(st.none(), _window)
_changes: list[Choice] = [
    (40, st.tuples(st.just("add"), BATCHES, _writing)),
    (25, st.tuples(st.just("look"), _window)),
    (6, st.tuples(st.just("limit"), _window, LIMITS)),
    (4, st.tuples(st.just("ahead"), _window, BATCHES)),
    (2, st.tuples(st.just("set"), BATCHES, _writing)),
    (1, st.tuples(st.just("clear"))),
]
STEPS: st.SearchStrategy[Sequence[Step]] = histories(
    weighted(
        *_changes,
        (9, st.tuples(st.just("tentative"), st.lists(weighted(*_changes), min_size=1, max_size=5), st.booleans())),
        (12, st.tuples(st.just("trim"), st.booleans())),
        (8, st.tuples(st.just("reload"), st.integers(1, 8))),
        (3, st.tuples(st.just("foreign"), st.lists(weighted((9, BATCHES), (1, st.none())), min_size=1, max_size=3))),
    )
)

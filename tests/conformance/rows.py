"""Cases of README.md, section 6, that are not in the file: written from its rows."""

from __future__ import annotations

from typing import Any, Final

from conformance.outcomes import (
    CLOSED,
    INVALID,
    OVERFLOW,
    OVERSIZE,
    SAME_RULES,
    Ours,
    Run,
    Shown,
    adds,
    answer,
    calls,
    result,
    system,
    user,
)
from conformance.vectors import VECTORS, Given, Step, Vector


def _row(name: str, config: dict[str, Any], *steps: Step) -> Vector:
    return Vector(name, "", config["kind"], "memory", "", config, steps, frozenset({"hazard"}), {})


def _messages(limit: int) -> dict[str, Any]:
    return {"kind": "message_window", "max_messages": limit, "system_first": False}


def _spring(limit: int) -> dict[str, Any]:
    return {"kind": "spring_message_window", "max_messages": limit}


def _costing(tokens: int, message: Given) -> Given:
    return {**message, "tokens": tokens}


_RACE = VECTORS["lc4j.mw.x.lost_update"].steps
_LONG_TURN = adds(user("u1"), calls("1"), result("1", "r1"), calls("2"), result("2", "r2"), answer("a1"))
_TAKEN_BACK = {"op": "take_back", "expect": {"store_reads": 1, "store_writes": 1, "store_deletes": 0}}
_PARALLEL = adds(user("u1"), calls("1", "2"), result("1", "r1"), result("2", "r2"), user("u2"))

ROWS: Final[list[tuple[Vector, Ours]]] = [
    (
        _row("spring.mw.x.lost_update", _spring(5), *_RACE),
        Ours("Requests take their turn.", Run("turns", "u1", "u1 u2 u3")),
    ),
    (
        _row("lc4j.mw.x.set_null_list", _messages(3), *adds(user("u1")), {"op": "set", "messages": None}),
        Ours("A `set` to nothing is an invalid argument.", Run("error", "u1", INVALID)),
    ),
    (
        _row(
            "lc4j.mw.x.set_keeps_leading_orphan",
            _messages(5),
            {"op": "set", "messages": [result("1", "r1"), user("u1"), answer("a1")], "form": "list"},
        ),
        Ours(SAME_RULES, Run("error", OVERFLOW), Run("evict", "u1 a1"), Run("turns", "u1 a1")),
    ),
    (
        _row("spring.mw.x.tool_turn_bigger_than_window", _spring(3), *_LONG_TURN),
        Ours(
            OVERSIZE,
            Run(
                "turns",
                "u1",
                "u1 call:1",
                "u1 call:1 r1",
                Shown("u1 call:1 r1 call:2", over=True),
                Shown("u1 call:1 r1 call:2 r2", over=True),
                Shown("u1 call:1 r1 call:2 r2 a1", over=True),
            ),
            Run("turns or error", "u1", "u1 call:1", "u1 call:1 r1", OVERFLOW, steps=_LONG_TURN[:4]),
        ),
    ),
    (
        _row(
            "lc4j.store.x.window_vs_store_refusing_empty",
            _messages(2),
            *_PARALLEL,
            {"op": "clear"},
            {"op": "clear"},
        ),
        Ours("An empty view is no error.", Run("evict", "u1", "u1 call:1,2", "call:1,2 r1", "", "u2", "", "")),
    ),
    (
        _row(
            "lc4j.tw.x.big_tool_result_kills_exchange",
            {"kind": "token_window", "max_tokens": 60, "list_overhead": 3, "system_first": False},
            *adds(_costing(10, user("u1")), _costing(24, calls("1")), _costing(40, result("1", "r1"))),
        ),
        Ours(
            OVERSIZE,
            Run("evict", "u1", "u1 call:1", ""),
            Run("error", "u1", "u1 call:1", OVERFLOW),
            Run("turns", "u1", "u1 call:1", Shown("u1 call:1 r1", over=True)),
            Run("turns or error", "u1", "u1 call:1", OVERFLOW),
        ),
    ),
    (
        _row("lc4j.mw.x.max1_with_system", _messages(1), *adds(system("s1"), user("u1"), user("u2"))),
        Ours(OVERSIZE, Run("evict", "s1", "s1", "s1"), Run("error", "s1", OVERFLOW, OVERFLOW)),
    ),
    (
        _row(
            "lc4j.mw.x.system_between_call_and_result",
            _messages(3),
            *adds(user("u1"), calls("1"), system("s1"), result("1", "r1"), answer("a1")),
        ),
        Ours(
            "A result belongs to its call by id, not by position, and leaves with it.",
            Run("error", "u1", "u1 call:1", None, None, "s1 a1"),
            Run("turns", "u1", "u1 call:1", None, None, None),
        ),
    ),
    (
        _row("lc4j.guard.x.removal_is_not_atomic", _messages(10), *adds(user("u1"), answer("bad")), _TAKEN_BACK),
        Ours("What is left replaces all of it, in one entry.", Run("error", "u1", "u1 bad", "u1")),
    ),
    (
        _row("lc4j.tool.unknown_fails", _messages(10), *adds(user("u1"), calls("1"), user("u2"))),
        Ours(CLOSED, Run("error", "u1", "u1 call:1", "u1 call:1 ~1 u2")),
    ),
]

"""Calls without a result, results without a call: what a view makes of them, and that the log never changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import turnkeeper
from turnkeeper import MessageWindow, TokenWindow, TurnWindow, Unbounded, Window
from turnkeeper.messages import encode_messages
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import unload
from windows.saying import Lengths, answer, calls, log_of, result, shown, spoken, system, user, view_of

FLAT = Lengths(list_overhead=0)
OPEN = [user("u1"), calls("1", "2"), result("1", "r1")]
WINDOWS = [
    lambda **more: Unbounded(**more),
    lambda **more: MessageWindow(99, **more),
    lambda **more: TokenWindow(99, FLAT, **more),
    lambda **more: TurnWindow(max_messages=99, **more),
    lambda **more: TurnWindow(max_tokens=99, counter=FLAT, **more),
    lambda **more: TurnWindow(max_turns=99, **more),
]
every = pytest.mark.parametrize("window", WINDOWS)


@every
@pytest.mark.parametrize("on_unanswered", ["close", "drop", "keep"])
def test_calls_of_the_current_exchange_stay_open(window: Any, on_unanswered: str) -> None:
    made = window(on_unanswered=on_unanswered)
    assert shown(made, *OPEN[:2]) == "u1 call:1,2"
    assert shown(made, *OPEN) == "u1 call:1,2 r1"
    assert shown(made, *OPEN, result("9")) == "u1 call:1,2 r1", "a result of nobody ends nothing"


@every
def test_earlier_ones_are_closed_dropped_or_kept(window: Any) -> None:
    for following in (user("u2"), answer("u2"), calls("3", text="u2")):
        end = "call:3" if "tool_calls" in following else "u2"
        log = [*OPEN, following]
        assert shown(window(), *log) == f"u1 call:1,2 r1 ~2 {end}"
        assert shown(window(on_unanswered="close"), *log) == f"u1 call:1,2 r1 ~2 {end}"
        assert shown(window(on_unanswered="drop"), *log) == f"u1 {end}"
        assert shown(window(on_unanswered="keep"), *log) == f"u1 call:1,2 r1 {end}"


@every
def test_a_late_result_takes_the_place_of_the_one_made_up(window: Any) -> None:
    log = [*OPEN, user("u2"), answer("a2"), result("2", "r2"), user("u3")]
    for on_unanswered in ("close", "drop", "keep"):
        assert shown(window(on_unanswered=on_unanswered), *log) == "u1 call:1,2 r1 r2 u2 a2 u3"


@every
def test_further_results_and_those_of_nobody_are_not_shown(window: Any) -> None:
    log = [user("u1"), result("7", "x"), calls("1"), result("1", "r1"), result("1", "again"), result("8"), answer("a1")]
    assert shown(window(), *log) == "u1 call:1 r1 a1"
    assert shown(window(), *log, user("u2"), result("1", "late again")) == "u1 call:1 r1 a1 u2"
    assert shown(window(), user("u1"), result("1", "before its call"), calls("1"), user("u2")) == "u1 call:1 ~1 u2"


def test_what_was_made_up_is_a_marked_error_with_the_id_of_its_call() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    view = view_of(log_of(calls("1", "2"), old, user("u")), Unbounded())
    made_up = [message for message in view if message.synthetic]
    assert [message.synthetic for message in view] == [False, True, True, False, True, False]
    assert [message.to_dict() for message in made_up] == [
        {"role": "tool", "tool_call_id": "1", "content": made_up[0].text},
        {"role": "tool", "tool_call_id": "2", "content": made_up[0].text},
        {"role": "function", "name": "f", "content": made_up[0].text},
    ]
    assert made_up[0].text.startswith("Error")
    assert [message.id for message in made_up] == [None, None, None]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_was_made_up_counts(lost: int) -> None:
    ids = [str(number) for number in range(lost)]
    log = [user("u1"), calls(*ids), user("u2")]
    whole = 3 + lost
    made_up = " ".join(f"~{number}" for number in ids)
    assert shown(MessageWindow(whole), *log) == f"u1 call:{','.join(ids)} {made_up} u2"
    assert shown(MessageWindow(whole - 1), *log) == f"call:{','.join(ids)} {made_up} u2"
    assert shown(MessageWindow(whole - 2), *log) == "u2"
    assert shown(MessageWindow(3, on_unanswered="keep"), *log) == f"u1 call:{','.join(ids)} u2"
    assert shown(MessageWindow(2, on_unanswered="drop"), *log) == "u1 u2"
    tokens = 2 + 2 * lost + 2
    assert shown(TokenWindow(tokens, FLAT), *log) == f"u1 call:{','.join(ids)} {made_up} u2"
    assert shown(TokenWindow(tokens - 1, FLAT), *log) == f"call:{','.join(ids)} {made_up} u2"
    assert shown(TokenWindow(tokens - 3, FLAT), *log) == "u2"


def test_a_late_result_that_costs_less_makes_room_and_one_that_costs_more_takes_it() -> None:
    log = [user("u1"), calls("1"), user("u2")]
    for text, wanted in [("", "u1 call:1  u2"), ("r", "call:1 r u2"), ("rr", "call:1 rr u2"), ("rrr", "u2")]:
        held = log_of(*log)
        window = TokenWindow(4, FLAT)
        assert spoken(view_of(held, window)) == "call:1 ~1 u2"
        held.append(encode_messages([result("1", text)]))
        assert spoken(view_of(held, window)) == wanted == shown(window, *log, result("1", text))


class Recording(InMemoryStore):
    """Counts what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    def commit(self, slices: Any, *, receipt_ttl: float) -> Any:
        self.commits += 1
        return super().commit(slices, receipt_ttl=receipt_ttl)

    def payloads(self) -> list[list[dict[str, Any]]]:
        """Return the messages of each entry."""
        (row,) = self.names(namespace=None, after=None, limit=9)
        stored = self.entries(row.head.mid, after=0, limit=999)
        return [json.loads(entry.payload)["messages"] for entry in stored]


@pytest.fixture
def store() -> Recording:
    """Return an empty store."""
    return Recording()


@pytest.fixture
async def runtime(store: Recording) -> AsyncIterator[turnkeeper.Runtime]:
    """Return an open runtime."""
    async with turnkeeper.open_runtime(store) as opened:
        yield opened


@pytest.mark.anyio
@every
async def test_nothing_is_written_by_a_read_nor_repaired_on_load(
    window: Any, runtime: turnkeeper.Runtime, store: Recording
) -> None:
    memory = runtime.memory("m")
    log: list[dict[str, Any]] = [result("0"), *OPEN, system("s"), user("u2"), result("1", "again")]
    for message in log:
        await memory.add(message)
    commits = store.commits
    for on_unanswered in ("close", "drop", "keep"):
        made: Window = window(on_unanswered=on_unanswered)
        view = await memory.messages(window=made)
        assert unload(runtime, "m")
        again = await memory.messages(window=made)
        assert (again, [one.synthetic for one in again]) == (view, [one.synthetic for one in view])
    assert store.commits == commits
    assert store.payloads() == [[message] for message in log]


@pytest.mark.anyio
async def test_a_late_result_is_found_after_a_reload(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(9))
    for message in (*OPEN, user("u2")):
        await memory.add(message)
    assert spoken(await memory.messages()) == "u1 call:1,2 r1 ~2 u2"
    unload(runtime, "m")
    await memory.add(result("2", "r2"))
    assert spoken(await memory.messages()) == "u1 call:1,2 r1 r2 u2"
    unload(runtime, "m")
    assert spoken(await memory.messages()) == "u1 call:1,2 r1 r2 u2"


@pytest.mark.anyio
async def test_a_view_can_be_written_back(runtime: turnkeeper.Runtime) -> None:
    """What was made up becomes a message like others when somebody sets it: it is in the log then."""
    memory = runtime.memory("m")
    await memory.add([*OPEN, user("u2")])
    view = await memory.messages()
    await memory.set(view, if_version=view.version)
    again = await memory.messages()
    assert again.to_dicts() == view.to_dicts()
    assert [message.synthetic for message in again] == [False] * 5

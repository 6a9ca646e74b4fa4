"""Where a log is cut: whole turns and whole entries, closed exchanges, never in the current turn."""

from __future__ import annotations

import pytest

import turnkeeper
from compaction.summing import LAST_TURN, Model, line, say, turns
from turnkeeper import InvalidArgumentError, MessageWindow, TurnWindow
from turnkeeper.testing.prompts import check_prompt
from windows.saying import Fields, Lengths, answer, calls, result, system, user

pytestmark = pytest.mark.anyio

Entries = list[Fields | list[Fields]]

SAID = ["u1", "call:1,2", "r1", "r2", "a1"]
A_TURN: list[Fields] = [user("u1"), calls("1", "2"), result("1", "r1"), result("2", "r2"), answer("a1")]


async def cut(*entries: Fields | list[Fields], keep: TurnWindow | int = LAST_TURN) -> tuple[str | None, str]:
    """Return what there was to sum up, None when nobody was asked, and what is left."""
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        for entry in entries:
            await memory.add(entry)
        model = Model()
        receipt = await memory.compact(model, keep=keep)
        assert (receipt is None) == (model.calls == [])
        return model.calls[0][0] if model.calls else None, await line(memory)


async def test_a_turn_stays_whole_with_its_calls_and_results() -> None:
    assert await cut(*A_TURN, *turns(2, 2), keep=3) == ("u1 call:1,2 r1 r2 a1", "S1 u2 a2")
    assert await cut(*turns(1, 1), *A_TURN, keep=2) == ("u1 a1", "S1 u1 call:1,2 r1 r2 a1")


@pytest.mark.parametrize("said", range(1, 6))
async def test_it_never_cuts_in_the_current_turn(said: int) -> None:
    current = A_TURN[:said]
    seen, left = await cut(*turns(7, 8), *current, keep=1)
    assert seen == "u7 a7 u8 a8"
    assert left == " ".join(["S1", *SAID[:said]])
    assert await cut(*current, keep=1) == (None, " ".join(SAID[:said]))


async def test_an_entry_is_never_cut() -> None:
    assert await cut(turns(1, 3), keep=LAST_TURN) == (None, "u1 a1 u2 a2 u3 a3")
    assert await cut(turns(1, 1), turns(2, 3), turns(4, 4), keep=TurnWindow(max_turns=2)) == (
        "u1 a1",
        "S1 u2 a2 u3 a3 u4 a4",
    )


async def test_a_turn_is_never_torn_by_an_entry_that_ends_it_and_begins_the_next() -> None:
    joint: Entries = [user("u1"), [answer("a1"), user("u2")], answer("a2")]
    assert await cut(*joint) == (None, "u1 a1 u2 a2")
    assert await cut(*turns(0, 0), *joint) == ("u0 a0", "S1 u1 a1 u2 a2")
    assert await cut(*joint, *turns(3, 3)) == ("u1 a1 u2 a2", "S1 u3 a3")


async def test_results_in_the_entry_of_the_next_turn_go_with_their_call() -> None:
    entries: Entries = [user("u1"), calls("1"), [result("1", "r1"), user("u2")], answer("a2")]
    assert await cut(*entries) == ("u1 call:1 r1", "S1 u2 a2")


async def test_a_system_message_in_the_entry_of_a_turn_does_not_hold_the_cut_up() -> None:
    assert await cut(*turns(1, 1), [system("s"), user("u2")], answer("a2")) == ("u1 a1", "S1 s u2 a2")
    assert await cut([system("s"), *turns(1, 1)], [system("s"), user("u2")]) == ("u1 a1", "s S1 s u2")


async def test_what_stands_before_the_first_turn_goes_with_it() -> None:
    assert await cut(answer("boot"), *turns(1, 1)) == (None, "boot u1 a1")
    assert await cut(system("old"), system("s"), *turns(1, 1)) == (None, "old s u1 a1")
    assert await cut(answer("boot"), *turns(1, 2)) == ("boot u1 a1", "S1 u2 a2")


async def test_without_a_user_message_there_is_nothing_to_cut() -> None:
    assert await cut(*[answer(f"a{n}") for n in range(9)], keep=1) == (None, " ".join(f"a{n}" for n in range(9)))


async def test_the_current_system_message_survives_and_older_ones_are_summed_up() -> None:
    assert await cut(system("s1"), *turns(1, 1), system("s2"), *turns(2, 3)) == ("s1 u1 a1 u2 a2", "s2 S1 u3 a3")
    assert await cut(system("s1"), *turns(1, 2), system("s2")) == ("s1 u1 a1", "S1 u2 a2 s2")


async def test_open_calls_of_an_older_turn_are_closed_for_the_summariser() -> None:
    seen, left = await cut(user("u1"), calls("1", "2"), result("1", "r1"), *turns(2, 3), keep=TurnWindow(max_turns=2))
    assert (seen, left) == ("u1 call:1,2 r1 ~2", "S1 u2 a2 u3 a3")


async def test_a_result_that_came_too_late_for_the_cut_is_not_shown_without_its_call() -> None:
    seen, left = await cut(user("u1"), calls("1"), *turns(2, 2), result("1", "late"))
    assert (seen, left) == ("u1 call:1 late", "S1 u2 a2")


async def test_an_id_that_is_used_again_keeps_its_result() -> None:
    said = [user("u1"), calls("1"), result("1", "x"), user("u2"), calls("1"), result("1", "y"), answer("a2")]
    assert await cut(*said) == ("u1 call:1 x", "S1 u2 call:1 y a2")


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (TurnWindow(max_turns=2), "S1 u3 a3 u4 a4"),
        (TurnWindow(max_messages=5), "S1 u3 a3 u4 a4"),
        (TurnWindow(max_tokens=9, counter=Lengths()), "S1 u3 a3 u4 a4"),
        (4, "S1 u3 a3 u4 a4"),
        (3, "S1 u4 a4"),
        (1, "S1 u4 a4"),
    ],
)
async def test_keep_is_a_window_of_whole_turns_or_a_number_of_messages(keep: TurnWindow | int, left: str) -> None:
    assert (await cut(*turns(1, 4), keep=keep))[1] == left


async def test_keep_leaves_room_for_the_system_message_and_the_summary_before() -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, system("s"), *turns(1, 3))
        model = Model()
        await memory.compact(model, keep=4)
        assert await line(memory) == "s S1 u3 a3"
        await say(memory, *turns(4, 4))
        assert await memory.compact(model, keep=6) is None
        await memory.compact(model, keep=5)
        assert await line(memory) == "s S2 u4 a4"


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "20", None, MessageWindow(3)])
async def test_any_other_keep_is_refused(keep: object) -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        with pytest.raises(InvalidArgumentError):
            await runtime.memory("m").compact(Model(), keep=keep)  # type: ignore[arg-type]


async def test_what_is_left_is_a_valid_prompt() -> None:
    async with turnkeeper.open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await say(memory, system("s"), *A_TURN, *A_TURN, *A_TURN)
        await memory.compact(Model(user("Sum up."), answer("ok")), keep=LAST_TURN)
        check_prompt(await memory.messages(), "openai")

"""What people who do this job report about windows and counting: the rows of FIELD.md, sections 2 and 5.

Rows about counters have more tests in `test_tokens.py`. Rows about compaction (A6 to A8, P35) ask a window for what it
can give: views that can be cut or replaced anywhere and stay valid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest

import turnkeeper
from support.schedule import Gate
from turnkeeper import (
    BpeCounter,
    CharacterCounter,
    Message,
    MessageWindow,
    TokenWindow,
    TurnWindow,
    Unbounded,
    Window,
    WindowOverflowError,
)
from turnkeeper.testing import unload
from turnkeeper.testing.prompts import Provider, check_prompt
from turnkeeper.windows import Messages
from windows.saying import Fields, Lengths, answer, calls, result, spoken, system, user
from windows.watching import Watched

pytestmark = pytest.mark.anyio

PROVIDERS: tuple[Provider, ...] = get_args(Provider)
FLAT = Lengths(list_overhead=0)


@pytest.fixture
def store() -> Watched:
    """Return an empty store."""
    return Watched()


@pytest.fixture
async def runtime(store: Watched) -> AsyncIterator[turnkeeper.Runtime]:
    """Return an open runtime."""
    async with turnkeeper.open_runtime(store) as opened:
        yield opened


async def filled(runtime: turnkeeper.Runtime, *said: Fields, window: Window | None = None) -> turnkeeper.ChatMemory:
    """Return a memory in which all of this was said, one message at a time, and that is not in RAM."""
    writer = runtime.memory("m")
    for message in said:
        await writer.add(message)
    unload(runtime, "m")
    return writer if window is None else runtime.memory("m", window=window)


def check(view: Messages) -> None:
    """Check that no provider would refuse a view."""
    for provider in PROVIDERS:
        check_prompt(view, provider)


def check_pairs(view: Iterable[Message]) -> None:
    """Check that each call has its result right behind it, but for those at the end, and each result its call."""
    waiting: list[str] = []
    for message in view:
        if message.role == "tool":
            waiting.remove(str(message.tool_call_id))
        else:
            assert waiting == []
            waiting = [call.id for call in message.tool_calls]


TURNS = [
    *[system("s"), user("u1"), calls("1"), result("1", "r1"), answer("a1")],
    *[user("u2"), calls("2", "3"), result("2", "r2"), result("3", "r3"), answer("a2")],
    *[user("u3"), calls("4"), result("4", "r4"), calls("5"), result("5", "r5"), answer("a3")],
    *[user("u4"), calls("6"), result("6", "r6"), answer("a4")],
]
BY_TURNS: list[Any] = [
    lambda limit: TurnWindow(max_messages=limit),
    lambda limit: TurnWindow(max_tokens=limit, counter=FLAT),
    lambda limit: TurnWindow(max_turns=limit),
]
LANGCHAIN4J: list[Any] = [
    lambda limit: MessageWindow(limit, on_overflow="evict"),
    lambda limit: MessageWindow(limit, on_overflow="evict", system_first=True),
    lambda limit: TokenWindow(limit, FLAT, on_overflow="evict"),
    lambda limit: TokenWindow(limit, FLAT, on_overflow="evict", system_first=True),
]
TURN_IDS = ["turns of messages", "turns of tokens", "turns"]
turn_windows = pytest.mark.parametrize("make", BY_TURNS, ids=TURN_IDS)
all_windows = pytest.mark.parametrize(
    "make",
    [*BY_TURNS, *LANGCHAIN4J],
    ids=[*TURN_IDS, "messages", "messages, system first", "tokens", "tokens, system first"],
)


# 2 Windows: tool pairs, roles, the system message


async def test_p20_the_last_three_keep_no_result_without_its_call(runtime: turnkeeper.Runtime) -> None:
    said = [system("s"), user("u"), calls("1", "2"), result("1"), result("2"), answer("a")]
    memory = await filled(runtime, *said)
    assert spoken(await memory.messages(window=MessageWindow(3))) == "s a"
    assert spoken(await memory.messages(window=MessageWindow(5))) == "s call:1,2 r r a"
    kept = await memory.messages(window=TurnWindow(max_messages=3))
    assert (spoken(kept), kept.overflow) == ("s u call:1,2 r r a", True)


@pytest.mark.parametrize("make", BY_TURNS[:2])
async def test_p22_a_limit_below_the_last_turn_never_shows_nothing(make: Any, runtime: turnkeeper.Runtime) -> None:
    memory = await filled(runtime, *TURNS)
    for limit in (1, 2, 3):
        view = await memory.messages(window=make(limit))
        assert (spoken(view), view.overflow) == ("s u4 call:6 r6 a4", True)
    lone = await filled(runtime, user("far too long"))
    view = await lone.messages(window=make(1))
    assert view[-1].text == "far too long"


@turn_windows
async def test_p23_the_oldest_whole_turns_leave_never_the_middle(make: Any, runtime: turnkeeper.Runtime) -> None:
    said = [user("u1"), answer("a1"), user("u2"), calls("1"), result("1"), answer("a2"), user("u3")]
    memory = await filled(runtime, *said)
    for limit in range(1, 15):
        view = await memory.messages(window=make(limit))
        assert view.to_dicts() == said[len(said) - len(view) :]
        check(view)
    assert spoken(await memory.messages(window=TurnWindow(max_messages=6))) == "u2 call:1 r a2 u3"


@all_windows
async def test_p27_e7_e8_no_limit_takes_the_system_message(make: Any, runtime: turnkeeper.Runtime) -> None:
    memory = await filled(runtime, system("policy"), *[user(f"u{number}") for number in range(60)])
    for limit in (1, 2, 6, 12, 500):
        view = await memory.messages(window=make(limit))
        assert (view[0].role, view[0].text) == ("system", "policy")
        texts = [message.text for message in view[1:]]
        assert texts == [f"u{number}" for number in range(60)][60 - len(texts) :]
    assert (await memory.stats()).message_count == 61, "so how many are not shown can be told"
    handle = runtime.memory("m", window=make(20))
    for number in range(200):
        await handle.add(user(str(number % 10)))
    unload(runtime, "m")
    assert (await handle.messages())[0].text == "policy"


@turn_windows
async def test_p29_the_first_is_the_users_and_no_open_call_slips_through(
    make: Any, runtime: turnkeeper.Runtime
) -> None:
    memory = await filled(runtime, *TURNS, calls("7"), user("u5"), calls("8"))
    for limit in range(1, 40):
        view = await memory.messages(window=make(limit))
        assert [view[0].role, view[1].role] == ["system", "user"]
        check(view)


async def test_p30_the_window_holds_at_every_append_of_direct_calls(runtime: turnkeeper.Runtime) -> None:
    for window in (MessageWindow(12), MessageWindow(12, system_first=True), TurnWindow(max_messages=12)):
        memory = runtime.memory(repr(window), window=window)
        for number in range(20):
            for message in (user("u"), calls(str(number)), result(str(number)), answer("a")):
                await memory.add(message)
                assert len(await memory.messages()) <= 12
            assert await memory.add([user("u"), calls("x"), result("x"), answer("a")])
            assert len(await memory.messages()) <= 12


@all_windows
async def test_p31_what_is_shown_is_never_rewritten(make: Any, runtime: turnkeeper.Runtime) -> None:
    big = result("1", '{"json": [1, 2, {"deep": "✓"}], "number": 1.50}')
    said = [user("u1"), answer("a1"), user("u2"), {**calls("1"), "x_vendor": {"k": [None]}}, big, answer("a2")]
    memory = await filled(runtime, *said)
    for limit in range(1, 70):
        assert all(message.to_dict() in said for message in await memory.messages(window=make(limit)))
    assert (await memory.messages()).to_dicts() == said


@turn_windows
async def test_p34_turns_with_tools_open_on_the_users_question(make: Any, runtime: turnkeeper.Runtime) -> None:
    memory = await filled(runtime, *TURNS)
    seen = set()
    for limit in range(1, 60):
        shown = spoken(await memory.messages(window=make(limit))).split()
        seen.add(shown[1])
        assert shown[1].startswith("u")
        assert shown[-1] == "a4"
    assert seen == {"u1", "u2", "u3", "u4"}


async def test_p35_no_view_is_persisted_and_a_summary_and_what_it_replaces_change_together(
    runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = await filled(runtime, *TURNS)
    before = store.stored()
    for make in (*BY_TURNS, *LANGCHAIN4J):
        await memory.messages(window=make(2))
    assert store.stored() == before
    view = await memory.messages(window=TurnWindow(max_turns=1))
    await memory.set([system("s"), user("summary"), *view[1:]], if_version=view.version)
    assert store.stored()[:-1] == before
    assert store.stored()[-1][0] == "set"
    assert spoken(await memory.messages(window=TurnWindow(max_turns=2))) == "s summary u4 call:6 r6 a4"


async def test_a1_an_evicted_call_takes_its_result_along(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(2))
    shown = []
    for message in (user("u"), calls("1"), result("1"), answer("a")):
        await memory.add(message)
        shown.append(spoken(await memory.messages()))
    assert shown == ["u", "u call:1", "call:1 r", "a"]


async def test_a2_more_results_than_the_window_holds(runtime: turnkeeper.Runtime) -> None:
    ids = [str(number) for number in range(40)]
    turns = runtime.memory("turns", window=TurnWindow(max_messages=35))
    strict = runtime.memory("strict", window=MessageWindow(35))
    for memory in (turns, strict):
        await memory.add([user("u"), calls(*ids)])
    for place, call in enumerate(ids):
        await turns.add(result(call))
        view = await turns.messages()
        assert len(view) == 3 + place, "the current exchange stays whole"
        assert view.overflow is (place + 3 > 35)
        check(view)
        if place < 34:
            await strict.add(result(call))
        else:
            with pytest.raises(WindowOverflowError):
                await strict.add(result(call))
    assert len(await strict.messages()) == 35


@all_windows
async def test_a2_a_log_that_lost_its_beginning_shows_no_orphan(make: Any, runtime: turnkeeper.Runtime) -> None:
    memory = await filled(runtime, result("1"), result("2"), answer("a0"), user("u"), calls("1"), answer("a1"))
    for limit in (2, 5, 50):
        view = await memory.messages(window=make(limit))
        check_pairs(view)
        assert sum(message.synthetic for message in view) == sum(bool(message.tool_calls) for message in view)


async def test_a4_a_window_smaller_than_the_current_turn_keeps_it_whole(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=TurnWindow(max_messages=3))
    shown = []
    for message in (user("u"), calls("1"), result("1"), calls("2"), result("2")):
        await memory.add(message)
        view = await memory.messages()
        shown.append((spoken(view), view.overflow))
    assert shown[2:] == [("u call:1 r", False), ("u call:1 r call:2", True), ("u call:1 r call:2 r", True)]


async def test_a5_a_result_whose_call_fell_out_is_gone_and_text_stays(runtime: turnkeeper.Runtime) -> None:
    memory = await filled(runtime, calls("1", text="let me see"), result("1"), answer("a"))
    assert spoken(await memory.messages(window=MessageWindow(2))) == "a"
    assert [message.text for message in await memory.messages(window=MessageWindow(3))] == ["let me see", "r", "a"]


@all_windows
async def test_a6_a7_a8_a_cut_at_any_place_splits_no_pair(make: Any, runtime: turnkeeper.Runtime) -> None:
    """The window's part of compaction: any limit, and any number of messages behind a summary."""
    memory = await filled(runtime, *TURNS, calls("7", "8"), result("7", "r7"))
    for limit in range(1, 60):
        check_pairs(await memory.messages(window=make(limit)))
    whole = await memory.messages()
    for kept in range(1, len(whole)):
        compacted = runtime.memory("compacted")
        await compacted.set([user("summary"), *whole[-kept:]])
        for limit in (2, 6, 60):
            check_pairs(await compacted.messages(window=make(limit)))


@all_windows
async def test_a11_a_call_that_waits_for_approval_is_one_with_its_result(
    make: Any, runtime: turnkeeper.Runtime
) -> None:
    """OpenAI's chat form has no approvals: the question and the answer are messages between a call and its result."""
    said = [*TURNS, user("u5"), calls("7", "8"), result("7", "r7")]
    memory = await filled(runtime, *said)
    for limit in range(1, 60):
        view = await memory.messages(window=make(limit))
        check_pairs(view)
        assert not any(message.synthetic for message in view), "it may still be answered"
    await memory.add(answer("May I?"), user("Yes"), result("8", "r8"), answer("a5"))
    for limit in range(1, 60):
        view = await memory.messages(window=make(limit))
        check_pairs(view)
        assert {"r7", "r8"}.isdisjoint(one.text for one in view) or "call:7,8 r7 r8 May I? Yes a5" in spoken(view)


@all_windows
async def test_a12_the_limit_is_reached_in_the_middle_of_a_tool_round(make: Any, runtime: turnkeeper.Runtime) -> None:
    for limit in (1, 2, 3, 4, 5, 7, 10, 14, 20, 30):
        memory = runtime.memory(str(limit), window=make(limit))
        for message in TURNS:
            await memory.add(message)
            check_pairs(await memory.messages())


@turn_windows
async def test_e2_a_call_follows_the_user_or_a_result(make: Any, runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=make(4))
    for message in TURNS:
        await memory.add(message)
        view = await memory.messages()
        check(view)
        roles = [one.role for one in view]
        for place, one in enumerate(view):
            assert not one.tool_calls or roles[place - 1] in ("user", "tool")


@pytest.mark.parametrize(
    "window",
    [
        MessageWindow(9, system_first=True),
        TokenWindow(99, FLAT, system_first=True),
        TurnWindow(max_messages=9),
        TurnWindow(max_tokens=99, counter=FLAT),
        TurnWindow(max_turns=9),
    ],
)
async def test_e5_a_system_message_that_changes_stays_first(window: Window, runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=window)
    await memory.add([system("s1"), user("u"), answer("a")])
    await memory.add(system("s2"))
    assert spoken(await memory.messages()) == "s2 u a"
    unload(runtime, "m")
    assert spoken(await memory.messages()) == "s2 u a"
    check(await memory.messages())
    await memory.add(user("u2"))
    assert spoken(await memory.messages()) == "s2 u a u2"


@pytest.mark.parametrize(
    "window",
    [MessageWindow(4, system_first=True), TokenWindow(9, FLAT, system_first=True), *[make(3) for make in BY_TURNS]],
)
async def test_e6_the_system_message_is_first_in_each_round_of_a_tool_loop(
    window: Window, runtime: turnkeeper.Runtime
) -> None:
    memory = await filled(runtime, user("u0"), answer("a0"), window=window)
    await memory.add([system("s"), user("u1")])
    for number in range(5):
        await memory.add(calls(str(number)))
        assert (await memory.messages())[0].text == "s"
        await memory.add(result(str(number)))
        view = await memory.messages()
        assert [one.role for one in view].count("system") == 1
        assert view[0].text == "s"


@all_windows
async def test_e9_e10_the_system_message_is_first_in_the_first_read_and_after_a_load(
    make: Any, runtime: turnkeeper.Runtime
) -> None:
    memory = runtime.memory("m", window=make(30))
    await memory.add(system("s"))
    assert spoken(await memory.messages()) == "s"
    await memory.add(user("u1"))
    assert spoken(await memory.messages()) == "s u1"
    for number in range(40):
        await runtime.memory("m").add([user(f"u{number}"), answer("a")])
    unload(runtime, "m")
    assert (await memory.messages())[0].text == "s"


# 5 Counting


@pytest.mark.parametrize("counter", [CharacterCounter(), BpeCounter(len)])
async def test_p57_a_file_of_a_megabyte_does_not_drop_everything_else(
    counter: Any, runtime: turnkeeper.Runtime
) -> None:
    file = {"type": "file", "file": {"filename": "f.pdf", "file_data": "A" * 1_000_000}}
    for window in (TokenWindow(4_000, counter), TurnWindow(max_tokens=4_000, counter=counter)):
        memory = runtime.memory("m", window=window)
        await memory.set([system("s"), user("u1"), answer("a1"), {"role": "user", "content": [file]}])
        view = await memory.messages()
        assert (len(view), view.overflow) == (4, False)


@pytest.mark.parametrize("counter", [CharacterCounter(), BpeCounter(lambda text: len(text.split()))])
async def test_p60_f1_the_arguments_of_calls_count(counter: Any, runtime: turnkeeper.Runtime) -> None:
    long = calls("1", arguments='{"text": "' + "word " * 500 + '"}')
    memory = runtime.memory("m", window=TokenWindow(300, counter))
    await memory.add(user("u"))
    with pytest.raises(WindowOverflowError):
        await memory.add(long)
    await memory.add(calls("2", arguments='{"text": "word"}'))
    assert spoken(await memory.messages()) == "u call:2"


async def test_p61_a_thousand_messages_cost_a_thousand_counts(runtime: turnkeeper.Runtime) -> None:
    """Each is about 217 tokens, and all but the last 70 or so are evicted, one at a time."""
    counter = Lengths()
    memory = runtime.memory("m", window=TokenWindow(16_000, counter))
    for number in range(1_000):
        await memory.add(user(f"{number:04}" + "x" * 213))
        if number % 10 == 0:
            await memory.messages()
    assert len(await memory.messages()) == 73
    assert len(counter.counted) == 1_000


async def test_p62_reading_counts_nothing(runtime: turnkeeper.Runtime) -> None:
    counter = Lengths()
    memory = runtime.memory("m", window=TurnWindow(max_tokens=50, counter=counter))
    for message in TURNS:
        await memory.add(message)
    counter.counted.clear()
    for _ in range(100):
        await memory.messages()
        await memory.messages(window=TokenWindow(30, counter))
    assert counter.counted == []


async def test_f2_a_budget_smaller_than_one_message_has_a_defined_result(runtime: turnkeeper.Runtime) -> None:
    with pytest.raises(WindowOverflowError):
        await runtime.memory("error", window=TokenWindow(2)).add(user("u"))
    assert spoken(await runtime.memory("error").messages()) == ""
    evicting = runtime.memory("evict", window=TokenWindow(2, on_overflow="evict"))
    await evicting.add(user("u"))
    view = await evicting.messages()
    assert (spoken(view), view.overflow) == ("", False)
    for window in (TokenWindow(2, on_overflow="keep"), TurnWindow(max_tokens=2)):
        keeping = runtime.memory("keep", window=window)
        await keeping.add(user("u"))
        view = await keeping.messages()
        assert (view[-1].text, view.overflow) == ("u", True)
    assert (await runtime.memory("empty").messages(window=TokenWindow(2))).overflow is False


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "something of tomorrow", "value": 5},
        {"no": "type"},
    ],
)
async def test_f3_content_that_is_not_text_leaves_the_memory_readable(part: Any, runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=TokenWindow(8_000))
    said = [user("u1"), {"role": "user", "content": [part]}, answer("a")]
    for message in said:
        await memory.add(message)
    unload(runtime, "m")
    assert (await memory.messages()).to_dicts() == said


async def test_f5_a_counter_that_waits_for_the_loop_in_another_thread_does_not_stop_it(
    runtime: turnkeeper.Runtime,
) -> None:
    """The loop has to turn for the counter's answer to come: so no request may be counted on it."""
    with Gate() as gate:

        class Remote(Lengths):
            def count(self, message: Message) -> int:
                gate.stop_thread()
                return 1

        sync = runtime.sync.memory("m", window=TokenWindow(100, Remote()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, sync.add, user("u"))
            await gate.arrival()
            assert await runtime.memory("m").messages(window=Unbounded()) == ()
            gate.open()
        assert spoken(await runtime.memory("m").messages()) == "u"

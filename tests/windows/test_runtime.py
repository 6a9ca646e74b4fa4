"""Windows of a runtime, a handle and a read; what they cost the store and the RAM; whom their failures harm."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import turnkeeper
from turnkeeper import (
    IdempotencyMismatchError,
    InvalidArgumentError,
    Message,
    MessageWindow,
    TokenWindow,
    TurnWindow,
    Unbounded,
    UserMessage,
    Window,
    WindowOverflowError,
)
from turnkeeper.testing import unload
from windows.saying import Fields, Lengths, answer, calls, result, spoken, system, user
from windows.watching import Watched

pytestmark = pytest.mark.anyio

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


async def fill(memory: turnkeeper.ChatMemory, count: int, *, size: int = 1) -> None:
    """Add turns of a user message and an answer, one entry each, until there are so many messages."""
    for number in range(count // 2):
        await memory.add(user("u" * size))
        await memory.add(answer(f"a{number}"))


def message_bytes(text: str) -> bytes:
    """Return a user's message as it is held."""
    return UserMessage(text).raw


# Whose window


async def test_a_runtime_has_a_window_a_handle_may_have_its_own_and_a_read_computes_another(store: Watched) -> None:
    async with turnkeeper.open_runtime(store, window=MessageWindow(2, on_overflow="evict")) as runtime:
        memory, wide = runtime.memory("m"), runtime.memory("m", window=MessageWindow(3, on_overflow="evict"))
        await memory.add([user("u1"), answer("a1"), user("u2"), answer("a2")])
        assert spoken(await memory.messages()) == "u2 a2"
        assert spoken(await wide.messages()) == "a1 u2 a2"
        assert spoken(await memory.messages(window=TurnWindow(max_turns=2))) == "u1 a1 u2 a2"
        assert spoken(await memory.messages(window=MessageWindow(1))) == "a2"
        assert spoken(await memory.messages()) == "u2 a2"
    async with turnkeeper.open_runtime(store) as runtime:
        assert spoken(await runtime.memory("m").messages()) == "u1 a1 u2 a2", "the default shows everything"


async def test_nothing_stored_depends_on_a_window(runtime: turnkeeper.Runtime, store: Watched) -> None:
    history = [system("s"), user("u1"), calls("1", "2"), result("1", "r"), answer("a"), result("9"), user("u2")]
    windows: list[Window] = [
        Unbounded(),
        Unbounded(on_unanswered="drop"),
        MessageWindow(2, on_overflow="evict"),
        MessageWindow(2, on_overflow="keep", system_first=True),
        TokenWindow(3, FLAT, on_overflow="evict", on_unanswered="keep"),
        TurnWindow(max_turns=1),
    ]
    for number, window in enumerate(windows):
        memory = runtime.memory(str(number), window=window)
        for message in history:
            await memory.add(message)
            await memory.messages()
        await memory.set([user("u3"), calls("3"), user("u4")])
        await memory.clear()
    logs = [store.stored(str(number)) for number in range(len(windows))]
    assert logs[0] == [*[("add", [message]) for message in history], ("set", logs[0][-2][1]), ("clear", [])]
    assert all(log == logs[0] for log in logs)


async def test_a_window_that_is_none_is_refused(runtime: turnkeeper.Runtime) -> None:
    with pytest.raises(InvalidArgumentError):
        await runtime.memory("m").messages(window=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        runtime.memory("m", window="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        turnkeeper.open_runtime("memory:", window=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [MessageWindow(9), TokenWindow(99, FLAT)])
async def test_an_equal_system_message_makes_no_entry(
    window: Window, runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = runtime.memory("m", window=window)
    first = await memory.add(system("s"))
    seen = await memory.messages()
    commits = len(store.commits)
    again = await memory.add(system("s"))
    assert (again.version, again.count) == (first.version, 0)
    assert len(store.commits) == commits
    assert await memory.messages() is seen
    mixed = await memory.add([system("s"), user("u"), system("s")])
    assert (mixed.version.n, mixed.count) == (2, 1)
    unload(runtime, "m")
    assert (await memory.add(system("s"))).version == mixed.version, "also when the log has to be loaded to find out"
    assert store.stored() == [("add", [system("s")]), ("add", [user("u")])]
    assert (await memory.add([system("t"), system("s")])).count == 2
    assert spoken(await memory.messages()) == "u s"


async def test_an_equal_system_message_leaves_a_receipt_for_its_key(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(9))
    await memory.add(system("s"))
    first = await memory.add(system("s"), idempotency_key="k")
    await memory.add(user("u"))
    assert await memory.add(system("s"), idempotency_key="k") == first
    with pytest.raises(IdempotencyMismatchError):
        await memory.add(user("s"), idempotency_key="k")
    assert spoken(await memory.messages()) == "s u"


# What does not fit


@pytest.mark.parametrize(
    ("window", "before", "batch"),
    [
        (MessageWindow(2), [user("1")], [calls("1", "2"), result("1"), result("2")]),
        (MessageWindow(2), [calls("1"), user("1"), user("2")], [result("1")]),
        (MessageWindow(2), [user("1")], [user("2"), result("9")]),
        (MessageWindow(1), [system("s")], [user("1")]),
        (TokenWindow(4, FLAT), [user("1")], [user("22222")]),
        (TokenWindow(4, FLAT), [user("1"), calls("1")], [result("1", "rrrrr")]),
        (TurnWindow(max_messages=2, on_overflow="error"), [user("1"), answer("1")], [answer("2")]),
        (TurnWindow(max_tokens=4, counter=FLAT, on_overflow="error"), [user("1")], [answer("aaaa")]),
    ],
)
async def test_error_refuses_an_add_that_would_not_be_visible_and_changes_nothing(
    window: Window, before: list[Fields], batch: list[Fields], runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = runtime.memory("m", window=window)
    for message in before:
        await memory.add(message)
    then = await memory.messages(), await memory.stats(), store.stored()
    for refused in (memory.add(batch), memory.add(batch, idempotency_key="k")):
        with pytest.raises(WindowOverflowError) as caught:
            await refused
        assert "'m'" in str(caught.value)
        assert "11111" not in str(caught.value)
        assert "rrrrr" not in str(caught.value)
    now = await memory.messages()
    assert (now, now.version, now.overflow) == (then[0], then[0].version, then[0].overflow)
    assert (await memory.stats(), store.stored()) == then[1:]
    unload(runtime, "m")
    assert await memory.messages() == then[0]
    lenient = runtime.memory("m", window=MessageWindow(2, on_overflow="evict"))
    await lenient.add(batch, idempotency_key="k")
    assert store.stored() == [*then[2], ("add", batch)], "the key was not used up"


async def test_only_the_refused_of_many_at_once_fail(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=TokenWindow(10, FLAT))
    refused: list[int] = []

    async def add(number: int) -> None:
        try:
            await memory.add(user(str(number % 10) if number % 3 else "x" * 11))
        except WindowOverflowError:
            refused.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(add, number)
    assert sorted(refused) == list(range(0, 30, 3))
    kept = [message.text for message in await memory.messages(window=Unbounded())]
    assert sorted(kept) == sorted(str(number % 10) for number in range(30) if number % 3)


async def test_a_refused_set_keeps_what_was_there(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(2))
    await memory.add([user("1"), answer("2")])
    seen = await memory.messages()
    with pytest.raises(WindowOverflowError):
        await memory.set([user("3"), calls("1", "2"), result("1"), result("2")])
    assert await memory.messages() is seen
    await memory.set([user("3"), user("4"), user("5")])
    assert spoken(await memory.messages()) == "4 5"


async def test_a_late_result_for_an_evicted_turn_gets_one_answer(runtime: turnkeeper.Runtime) -> None:
    """Whether it is accepted must not hang on whether its call is in RAM by chance."""
    window = TurnWindow(max_turns=1, on_overflow="error")
    outcomes: list[BaseException | None] = []
    for unloading in (False, True):
        memory = runtime.memory(str(unloading), window=window)
        await memory.add([user("u1"), calls("1")])
        for number in range(100, 120):
            await memory.add([user(str(number)), answer("a")])
        if unloading:
            assert unload(runtime, memory.id)
        outcomes += await together(partial(memory.add, result("1")))
        assert spoken(await memory.messages()) == "119 a"
    assert type(outcomes[0]) is type(outcomes[1])


# The same object


async def test_without_a_change_each_window_returns_the_same_object(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m")
    await memory.add([system("s"), user("u1"), calls("1"), user("u2")])
    windows: list[Window] = [
        Unbounded(),
        MessageWindow(3),
        TokenWindow(5, FLAT),
        TurnWindow(max_turns=1),
    ]
    seen = [await memory.messages(window=window) for window in windows]
    for _ in range(3):
        for window, view in zip(windows, seen, strict=True):
            assert await memory.messages(window=window) is view
            copy: Window = pickle.loads(pickle.dumps(window)) if window != windows[2] else TokenWindow(5, FLAT)
            assert await runtime.memory("m", window=copy).messages() is view, "an equal window is the same window"
    receipt = await memory.add(result("9"))
    for window, view in zip(windows, seen, strict=True):
        after = await memory.messages(window=window)
        assert (after is view, list(after), after.version) == (False, list(view), receipt.version)
        assert await memory.messages(window=window) is after


@pytest.mark.parametrize("window", [Unbounded(), MessageWindow(3)])
async def test_also_when_it_was_read_together_with_the_first_write(window: Window, runtime: turnkeeper.Runtime) -> None:
    """A memory gets its number with its first commit, and a read behind that in the mailbox is answered then."""
    memory, views = runtime.memory("m", window=window), []

    async def read() -> None:
        views.append(await memory.messages())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(memory.add, user("u"))
        tasks.start_soon(read)
    again = await memory.messages()
    assert again.version.mid > 0
    if views[0]:  # on trio the read may have come first
        assert again is views[0]


async def test_a_read_with_another_window_leaves_the_object_alone(runtime: turnkeeper.Runtime) -> None:
    """Also when it needs messages that had left RAM."""
    memory = runtime.memory("m", window=MessageWindow(5, on_overflow="evict"))
    await memory.add([user("u")])
    for number in range(300):
        await memory.add(user(str(number)))
    seen = await memory.messages()
    assert len(await memory.messages(window=Unbounded())) == 301
    assert await memory.messages() is seen


@pytest.mark.parametrize("batch", [[result("9")], [user("u2"), result("9")]])
async def test_a_refused_add_leaves_the_object_alone(batch: list[Fields], runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(2))
    await memory.add([user("u"), calls("1")])
    seen = await memory.messages()
    with pytest.raises(WindowOverflowError):
        await memory.add(batch)
    assert await memory.messages() is seen


async def test_what_others_commit_is_seen_through_each_window(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db?shared=true"
    async with turnkeeper.open_runtime(url) as mine, turnkeeper.open_runtime(url) as other:
        memory, writer = mine.memory("m"), other.memory("m")
        windows = [Unbounded(), MessageWindow(3), TokenWindow(9, FLAT), TurnWindow(max_turns=1)]
        await memory.add([system("s"), user("u1"), calls("1")])
        for window in windows:
            assert await memory.messages(window=window) is await memory.messages(window=window)
        seen = [await memory.messages(window=window) for window in windows]
        receipt = await writer.add(result("9"))
        for window, view in zip(windows, seen, strict=True):
            after = await memory.messages(window=window)
            assert (after is view, list(after), after.version) == (False, list(view), receipt.version)
        await writer.add([user("u2"), system("t"), result("1", "r1")])
        wanted = ["s u1 call:1 r1 u2 t", "u2 t", "u1 call:1 r1 u2 t", "t u2"]
        assert [spoken(await memory.messages(window=window)) for window in windows] == wanted
        await writer.set([user("u3"), answer("a3")])
        assert [spoken(await memory.messages(window=window)) for window in windows] == ["u3 a3"] * 4


async def test_the_blocking_handle_takes_windows_too(runtime: turnkeeper.Runtime) -> None:
    def use() -> list[str]:
        memory = runtime.sync.memory("m", window=MessageWindow(2))
        memory.add([user("u1"), answer("a1"), user("u2")])
        with pytest.raises(WindowOverflowError):
            memory.add(result("9"))
        return [spoken(memory.messages()), spoken(memory.messages(window=TurnWindow(max_turns=1)))]

    assert await anyio.to_thread.run_sync(use) == ["a1 u2", "u2"]


async def test_a_view_never_changes_in_the_hands_of_its_reader(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(3))
    await memory.add([user("u1"), calls("1")])
    view = await memory.messages()
    await memory.add(user("u2"))
    await memory.add(result("1"))
    assert spoken(view) == "u1 call:1"
    with pytest.raises(AttributeError):
        view.overflow = True


# What is read, and what stays in RAM


async def test_a_cold_read_reads_only_what_the_view_needs(runtime: turnkeeper.Runtime, store: Watched) -> None:
    memory = runtime.memory("m")
    await memory.add(system("s"))
    await fill(memory, 2_000)
    windows: list[tuple[Window, int]] = [
        (MessageWindow(10), 10),
        (MessageWindow(40), 40),
        (TurnWindow(max_turns=5), 11),
        (TurnWindow(max_messages=10), 9),
        (TokenWindow(40, Lengths(0)), 16),
        (TurnWindow(max_tokens=40, counter=Lengths(0)), 15),
    ]
    for window, visible in windows:
        unload(runtime, "m")
        before = store.messages_read
        view = await memory.messages(window=window)
        assert view[0].text == "s", "a system message is found however old it is"
        assert abs(len(view) - visible) <= 1
        assert store.messages_read - before <= 3 * visible, window
    unload(runtime, "m")
    before = store.messages_read
    handle = runtime.memory("m", window=MessageWindow(10))
    await handle.add(user("new"))
    assert spoken(await handle.messages()).endswith("new")
    assert store.messages_read - before <= 30, "nor does an add through such a window read more"


async def test_when_what_was_read_just_fills_the_window_nothing_more_is_read(
    runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = runtime.memory("m")
    await fill(memory, 200)
    for window in (MessageWindow(40), TurnWindow(max_messages=40)):
        unload(runtime, "m")
        before = len(store.loads)
        assert len(await memory.messages(window=window)) == 40
        assert len(store.loads) - before == 1


@pytest.mark.parametrize(
    "window", [TokenWindow(16, FLAT), TurnWindow(max_tokens=16, counter=FLAT), TokenWindow(16, FLAT, system_first=True)]
)
async def test_messages_that_cost_nothing_are_found_beyond_a_full_window(
    window: Window, runtime: turnkeeper.Runtime
) -> None:
    memory = runtime.memory("m")
    said = [*[user("x")] * 30, *[user("")] * 3, *[user("x")] * 16]
    for message in said:
        await memory.add(message)
    assert len(await memory.messages(window=window)) == 19
    unload(runtime, "m")
    assert len(await memory.messages(window=window)) == 19


async def test_a_window_of_tokens_reads_by_what_its_messages_cost(runtime: turnkeeper.Runtime, store: Watched) -> None:
    """A window of 8 000 tokens over messages of 1 000 needs eight of them."""
    memory = runtime.memory("m")
    await fill(memory, 1_000, size=2_000)
    unload(runtime, "m")
    before = store.messages_read
    view = await memory.messages(window=TokenWindow(8_000, FLAT))
    assert 7 <= len(view) <= 9
    assert store.messages_read - before <= 10 * len(view)


async def test_long_exchanges_and_large_entries_are_read_as_far_as_needed(
    runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = runtime.memory("m")
    await fill(memory, 400)
    ids = [str(number) for number in range(60)]
    await memory.add(user("q"))
    await memory.add(calls(*ids))
    for call in ids:
        await memory.add(result(call))
    await memory.add(answer("done"))
    unload(runtime, "m")
    before = store.messages_read
    view = await memory.messages(window=TurnWindow(max_messages=5))
    assert (len(view), view.overflow, view[0].text) == (63, True, "q")
    assert store.messages_read - before <= 6 * 63
    unload(runtime, "m")
    assert len(await memory.messages(window=MessageWindow(70))) == 70
    unload(runtime, "m")
    assert spoken(await memory.messages(window=MessageWindow(61))) == "done"


@pytest.mark.parametrize(
    "window",
    [
        MessageWindow(5, on_overflow="evict"),
        MessageWindow(5, on_overflow="keep"),
        MessageWindow(5),
        MessageWindow(1, on_overflow="evict"),
        TokenWindow(12, Lengths()),
        TokenWindow(12, Lengths(), on_overflow="evict"),
        TurnWindow(max_turns=2),
        TurnWindow(max_messages=5),
        TurnWindow(max_tokens=12, counter=Lengths()),
    ],
)
async def test_what_no_window_reaches_leaves_ram_and_is_found_again(
    window: Window, runtime: turnkeeper.Runtime, store: Watched
) -> None:
    memory = runtime.memory("m", window=window)
    if not isinstance(window, TokenWindow):
        await memory.add(system("s"))
    peak = 0
    for number in range(150):
        await memory.add(user(f"u{number % 10}"))
        await memory.add([calls(str(number)), result(str(number), "r")])
        await memory.messages()
        peak = max(peak, runtime.stats().resident_bytes)
    assert peak < 90 * 200, "some 65 turns of 200 bytes may stay until it pays to let them go"
    reads = runtime.stats().reads
    last = await memory.messages()
    for _ in range(20):
        assert await memory.messages() is last
    assert runtime.stats().reads == reads, "what is shown is held: nothing has to be loaded for it"
    whole = await memory.messages(window=Unbounded())
    assert len(whole) == sum(len(messages) for _, messages in store.stored())


async def test_5000_adds_through_a_window_of_5_leave_little_in_ram(runtime: turnkeeper.Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(5, on_overflow="evict"))
    peak = 0
    for number in range(5_000):
        await memory.add(user(f"{number:04}"))
        peak = max(peak, runtime.stats().resident_bytes)
    assert peak <= 200 * len(message_bytes("0000"))
    assert runtime.stats().reads <= 20, "and adding needs no loads"
    assert [message.text for message in await memory.messages()] == ["4995", "4996", "4997", "4998", "4999"]
    assert [message.text for message in await memory.messages(window=Unbounded())] == [f"{n:04}" for n in range(5_000)]


@pytest.mark.parametrize("once", [MessageWindow(50), Unbounded(), TurnWindow(max_turns=20)])
async def test_a_window_that_was_used_once_does_not_hold_everything_for_ever(
    once: Window, runtime: turnkeeper.Runtime
) -> None:
    """Somebody looked at the memory through another window, and never again."""
    memory = runtime.memory("m", window=MessageWindow(5, on_overflow="evict"))
    await memory.add(user("0000"))
    await memory.messages(window=once)
    for number in range(600):
        await memory.add(user(f"{number:04}"))
        await memory.messages()
    assert runtime.stats().resident_bytes < 200 * len(message_bytes("0000"))


async def test_a_limit_that_rises_shows_older_messages_again(runtime: turnkeeper.Runtime) -> None:
    limit = 3
    memory = runtime.memory("m", window=MessageWindow(lambda _: limit, on_overflow="evict"))
    for number in range(400):
        await memory.add(user(str(number)))
    texts = [str(number) for number in range(400)]
    for limit in (3, 5, 2, 399, 400, 9_999, 1, 77):
        assert [message.text for message in await memory.messages()] == texts[-limit:]


# Whose failure


class Failing(Lengths):
    """Fails while it is told to, in one of its two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""

    @property
    def list_overhead(self) -> int:
        if self.fails == "list":
            raise OSError("no network")
        return 1

    def count(self, message: Message) -> int:
        if self.fails == "count":
            raise OSError("no network")
        return super().count(message)


async def test_a_counter_that_raises_fails_that_add_alone_and_never_a_read(runtime: turnkeeper.Runtime) -> None:
    counter = Failing()
    memory = runtime.memory("m", window=TokenWindow(100, counter))
    await memory.add(user("1"))
    counter.fails = "count"
    with pytest.raises(OSError, match="no network"):
        await memory.add(user("2"))
    with pytest.raises(OSError, match="no network"):
        await memory.set(user("2"))
    assert spoken(await memory.messages()) == "1"
    await runtime.memory("m").add([user("3"), calls("1"), user("4")])
    assert spoken(await memory.messages()) == "1 3 call:1 ~1 4", "not even one of messages that it has not counted"
    unload(runtime, "m")
    assert spoken(await memory.messages()) == "1 3 call:1 ~1 4"
    counter.fails = ""
    await memory.add(user("5"))
    assert spoken(await memory.messages()) == "1 3 call:1 ~1 4 5"


@pytest.mark.parametrize("wrong", [-1, None, 2.5, "3", True])
async def test_a_counter_that_returns_no_number_fails_that_add_alone(wrong: Any, runtime: turnkeeper.Runtime) -> None:
    class Wrong(Lengths):
        def count(self, message: Message) -> int:
            return wrong  # type: ignore[no-any-return]

    memory = runtime.memory("m", window=TokenWindow(100, Wrong()))
    with pytest.raises(InvalidArgumentError):
        await memory.add(user("1"))
    await runtime.memory("m").add(user("2"))
    assert spoken(await memory.messages()) == "2"


@pytest.mark.parametrize("window", ["tokens", "turns"])
async def test_a_counter_whose_list_overhead_raises_harms_nobody_else(window: str, runtime: turnkeeper.Runtime) -> None:
    counter = Failing()
    made = TokenWindow(100, counter) if window == "tokens" else TurnWindow(max_tokens=100, counter=counter)
    harmed, memory = runtime.memory("m", window=made), runtime.memory("m")
    await harmed.add(user("1"))
    counter.fails = "list"
    outcomes = await together(lambda: harmed.add(user("2")), lambda: memory.add(user("3")), harmed.messages)
    assert outcomes[1] is None
    counter.fails = ""
    assert "3" in [message.text for message in await harmed.messages()]


@pytest.mark.parametrize("kind", ["raises", "zero", "text"])
@pytest.mark.parametrize("window", [MessageWindow, TokenWindow, TurnWindow])
async def test_a_limit_function_that_fails_fails_its_own_request_only(
    window: Any, kind: str, runtime: turnkeeper.Runtime
) -> None:
    broken = True

    def limit(memory_id: str) -> Any:
        if broken and kind == "raises":
            raise KeyError(memory_id)
        return 99 if not broken else 0 if kind == "zero" else "9"

    error = KeyError if kind == "raises" else InvalidArgumentError
    broken_window = window(max_messages=limit) if window is TurnWindow else window(limit)
    mine = runtime.memory("m", window=broken_window)
    other = runtime.memory("m", window=MessageWindow(9))
    outcomes = await together(
        partial(mine.add, user("1")),
        partial(other.add, user("2")),
        mine.messages,
        partial(mine.set, user("3")),
        partial(other.add, user("4")),
        other.messages,
        partial(other.messages, window=broken_window),
    )
    assert [type(outcome) for outcome in outcomes] == [error, type(None), error, error, type(None), type(None), error]
    unload(runtime, "m")
    with pytest.raises(error):
        await mine.messages()
    with pytest.raises(error):
        await mine.add(user("5"))
    broken = False
    assert sorted(spoken(await mine.messages()).split()) == ["2", "4"]


class Fickle(Window):
    """A window of a user's own, which shows all and fails while it is told to."""

    fails = False

    def view(self, messages: Any) -> Any:
        if self.fails:
            raise OSError("no network")
        return iter(messages)


async def test_a_window_that_raises_fails_its_own_read_and_the_next_is_right(runtime: turnkeeper.Runtime) -> None:
    window = Fickle()
    memory = runtime.memory("m", window=window)
    await memory.add([user("1"), calls("1"), user("2")])
    for wanted in ("1 call:1 ~1 2", "1 call:1 r 2"):
        window.fails = True
        outcomes = await together(memory.messages, lambda: memory.messages(window=Unbounded()), memory.messages)
        assert [type(outcome) for outcome in outcomes] == [OSError, type(None), OSError]
        window.fails = False
        assert spoken(await memory.messages()) == wanted
        await memory.add(result("1", "r"))


async def together(*calls: Callable[[], Any]) -> list[BaseException | None]:
    """Make calls at once and return what each raised."""
    outcomes: list[BaseException | None] = [None] * len(calls)

    async def run(place: int) -> None:
        try:
            await calls[place]()
        except Exception as error:
            outcomes[place] = error

    async with anyio.create_task_group() as tasks:
        for place in range(len(calls)):
            tasks.start_soon(run, place)
    return outcomes


async def test_limit_functions_are_asked_at_every_operation(runtime: turnkeeper.Runtime) -> None:
    asked: list[str] = []

    def limit(memory_id: str) -> int:
        asked.append(memory_id)
        return 9

    for window in (MessageWindow(limit), TokenWindow(limit, FLAT), TurnWindow(max_turns=limit)):
        memory = runtime.memory("m", window=window)
        for operation in (partial(memory.add, user("u")), memory.messages, partial(memory.set, user("u"))):
            for _ in range(2):
                asked.clear()
                await operation()
                assert asked
                assert set(asked) == {"m"}


class Incomparable(MessageWindow):
    """A window whose author made a mistake."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise OSError("no network")


class IncomparableCounter:
    """The same for a counter."""

    list_overhead = 0

    def __eq__(self, other: object) -> bool:
        raise OSError("no network")

    def count(self, message: Message) -> int:
        return 1


async def test_windows_and_counters_that_can_not_be_compared_harm_nobody(runtime: turnkeeper.Runtime) -> None:
    windows: list[Window] = [Incomparable(5), Incomparable(5), TokenWindow(5, IncomparableCounter()), MessageWindow(5)]
    memories = [runtime.memory("m", window=window) for window in windows]
    for number, memory in enumerate(memories):
        await memory.add(user(str(number)))
    outcomes = await together(*[partial(memory.add, user("x")) for memory in memories], memories[3].messages)
    assert outcomes == [None] * 5
    for memory in memories:
        assert spoken(await memory.messages()) == "3 x x x x"

"""Every prefix of 160 real conversations, through every kind of window, as each provider would judge it.

Windows that count messages or tokens may open on an assistant message, as LangChain4j's do: of those the rules about
the first message are not asked. One conversation in ten uses an id of a call twice, which is its own affair.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

import turnkeeper
from turnkeeper import MessageWindow, TokenWindow, TurnWindow, Unbounded, Window
from turnkeeper.messages import encode_messages
from turnkeeper.testing import unload
from turnkeeper.testing.prompts import Provider, prompt_problems
from turnkeeper.windows import LimitedWindow, Messages
from windows.saying import Fields, log_of, user, view_of

AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline.jsonl.gz"
pytestmark = pytest.mark.skipif(not AIRLINE.exists(), reason="the shared transcripts are not here")

WINDOWS: list[Window] = [
    TurnWindow(max_messages=12),
    TurnWindow(max_tokens=3_000),
    TurnWindow(max_turns=3),
    MessageWindow(10, on_overflow="evict"),
    TokenWindow(3_000, system_first=True),
    Unbounded(),
]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
OPENINGS = {"starts-with-user", "starts-without-call"}
every_window = pytest.mark.parametrize("window", WINDOWS, ids=lambda window: repr(window).split(", counter")[0])


@cache
def conversations() -> list[list[Fields]]:
    """Read the conversations."""
    with gzip.open(AIRLINE, "rt") as lines:
        return [json.loads(line)["messages"] for line in lines]


def problems(view: Messages, window: Window, *providers: Provider) -> set[tuple[str, str]]:
    """Say what providers would refuse, but for what the window does not promise."""
    waived = {"ids-unique"} if isinstance(window, TurnWindow) else {"ids-unique", *OPENINGS}
    found = {(provider, problem.rule.name) for provider in providers for problem in prompt_problems(view, provider)}
    return {(provider, rule) for provider, rule in found if rule not in waived}


def test_the_conversations_are_what_they_are_said_to_be() -> None:
    assert len(conversations()) == 160
    assert sum(map(len, conversations())) == 4_184
    assert not any(
        problem.rule.name != "ids-unique"
        for said in conversations()
        for provider in PROVIDERS
        for problem in prompt_problems(said, provider)
    )


@every_window
def test_every_prefix_is_a_prompt_that_each_provider_takes(window: Window) -> None:
    hidden = overflowing = 0
    for said in conversations():
        log = log_of()
        for count, message in enumerate(said, start=1):
            log.append(encode_messages([message]))
            log.begin()
            view = view_of(log, window)
            assert problems(view, window, *PROVIDERS) == set(), (said[0], count)
            assert view[0].to_dict() == said[0], "the system message is first"
            if isinstance(window, TurnWindow) and len(view) > 1:
                assert view[1].role == "user"
            if isinstance(window, LimitedWindow):
                cost = window.overhead + sum(map(window.weigh, view))
                assert view.overflow is (cost > window.limit("m"))
                overflowing += view.overflow
            shown = [one.to_dict() for one in view]
            assert shown == [said[0], *said[count - len(shown) + 1 : count]], "the newest, word for word"
            hidden += count - len(shown)
    assert bool(hidden) is isinstance(window, LimitedWindow)
    assert not overflowing or isinstance(window, TurnWindow)


@every_window
@pytest.mark.parametrize("on_unanswered", ["close", "drop"])
def test_an_interruption_after_any_call_leaves_a_valid_prompt(window: Window, on_unanswered: str) -> None:
    """Somebody speaks before the result is there; then it comes after all, or never."""
    made = type(window)(**{**fields_of(window), "on_unanswered": on_unanswered})
    interrupted = 0
    for said in conversations()[::2]:
        log = log_of(said[0])
        for message, following in zip(said[1:], [*said[2:], None], strict=True):
            log.append(encode_messages([message]))
            if not message.get("tool_calls"):
                continue
            interrupted += 1
            before, mark = view_of(log, made), log.begin()
            log.append(encode_messages([user("Are you there?")]))
            alone = view_of(log, made)
            assert problems(alone, made, "openai", "gemini") == set()
            assert [one.synthetic for one in alone].count(True) <= (on_unanswered == "close")
            if following is not None:
                log.append(encode_messages([following]))
                late = view_of(log, made)
                assert problems(late, made, "openai", "gemini") == set()
                assert not any(one.synthetic for one in late)
            log.rollback(mark)
            after = view_of(log, made)
            assert (after, after.version, after.overflow) == (before, before.version, before.overflow)
    assert interrupted > 400


def fields_of(window: Window) -> dict[str, Any]:
    """Return the arguments that make an equal window."""
    arguments = {name: value for name, value in vars(window).items() if name not in ("system_first", "whole_turns")}
    return arguments if isinstance(window, TurnWindow) else dict(vars(window))


@pytest.mark.anyio
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_the_runtime_shows_the_same_with_and_without_unloading(store: str, tmp_path: Path) -> None:
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/chats.db"
    async with turnkeeper.open_runtime(url, durability="relaxed") as runtime:
        for number, said in enumerate(conversations()[:: 20 if store == "memory" else 80]):
            memory, log = runtime.memory(f"m{number}"), log_of()
            for count, message in enumerate(said):
                await memory.add(message)
                log.append(encode_messages([message]))
                for window in WINDOWS:
                    view, wanted = await memory.messages(window=window), view_of(log, window)
                    assert (view, view.overflow) == (wanted, wanted.overflow)
                    if count % 7 == 0:
                        assert unload(runtime, memory.id)

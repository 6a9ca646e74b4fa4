"""`turnkeeper copy` between SQLite files and servers, every way round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.server_places import server_place
from support.whole_stores import scribble, whole
from turnkeeper import open_sync_runtime
from turnkeeper.cli import copy_reading, copy_running

Invoke = Callable[..., Any]
MakeURL = Callable[[str], str]

KINDS = ("sqlite", "postgres", "redis")
PAIRS = [pair for pair in itertools.product(KINDS, repeat=2) if pair != ("sqlite", "sqlite")]

_numbers = itertools.count()


@pytest.fixture
def make_url(tmp_path: Path) -> Iterator[MakeURL]:
    """Return a maker of URLs of stores that nobody has used."""
    with ExitStack() as places:

        def make(kind: str) -> str:
            place = f"copied{next(_numbers)}"
            if kind == "sqlite":
                return f"sqlite:///{tmp_path}/{place}.db"
            return places.enter_context(server_place(kind, place))

        yield make


@pytest.fixture(params=PAIRS, ids="-to-".join)
def pair(request: pytest.FixtureRequest, make_url: MakeURL) -> tuple[str, str]:
    """Return a source in which everything has happened, and a target in which nothing has."""
    source, target = map(make_url, request.param)
    with open_sync_runtime(source) as runtime:
        scribble(runtime, 7, 150, "abAB")
    return source, target


def test_the_copy_is_the_same_down_to_the_last_byte(invoke: Invoke, pair: tuple[str, str]) -> None:
    source, target = pair
    ran = invoke("copy", source, target)
    assert (ran.status, ran.err) == (0, "")
    found = whole(source)
    assert whole(target) == found
    assert any(each.receipts for each in found.values())
    assert any(each.head.meta for each in found.values())


def test_a_second_run_brings_what_came_meanwhile(
    invoke: Invoke, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    monkeypatch.setattr(copy_reading, "PART_ENTRIES", 3)
    monkeypatch.setattr(copy_running, "_GROUP", 4)
    assert invoke("copy", source, target).status == 0
    with open_sync_runtime(source) as runtime:
        scribble(runtime, 9, 60, "abAB")
    assert invoke("copy", source, target).status == 0
    assert whole(target) == whole(source)
    with open_sync_runtime(source) as one, open_sync_runtime(target) as other:
        for memory_id in "abAB":
            assert list(other.memory(memory_id).messages()) == list(one.memory(memory_id).messages())


def test_a_target_that_is_something_else_is_left_alone(invoke: Invoke, pair: tuple[str, str]) -> None:
    source, target = pair
    with open_sync_runtime(target) as runtime:
        runtime.memory("a").add({"role": "user", "content": "mine"})
    before = whole(target)
    ran = invoke("copy", source, target)
    assert ran.status == 1
    after = whole(target)
    assert {name: after[name] for name in before} == before
    others = {name: one for name, one in whole(source).items() if name not in before}
    assert {name: after[name] for name in others} == others

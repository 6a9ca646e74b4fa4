"""The vectors of LangChain4j's level memory, store and registry through its names, on every loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from conformance.classes import VERDICTS
from conformance.naming import BlockingStore, CountingStore, MakeStore, NamedReplay, evicting, named
from conformance.outcomes import Run
from conformance.vectors import VECTORS, Step, Vector
from turnkeeper import TurnkeeperError, UserMessage, open_sync_runtime
from turnkeeper.compat.langchain4j import StoreChatMemoryStore

AS_THEY_ARE = [vector for vector in named() if VERDICTS[vector.id].name == "holds"]
WAYS = ("alone", "own store", "offloaded store", "memory", "sqlite")
"""Without a store; on one of the user's own, with async twins or called in threads; on turnkeeper's."""


@contextmanager
def stores(way: str, folder: Path) -> Iterator[MakeStore]:
    """Return what makes the store under the memories."""
    if way in ("memory", "sqlite"):
        with open_sync_runtime("memory:" if way == "memory" else f"sqlite:///{folder}/chats.db") as runtime:
            store = StoreChatMemoryStore(runtime=runtime)
            yield lambda: store
    else:
        yield {"alone": lambda: None, "own store": CountingStore, "offloaded store": BlockingStore}[way]


def ways(vector: Vector) -> tuple[str, ...]:
    """Return the ways of keeping messages that a vector says something about."""
    if vector.kind == "store_variant":
        return "memory", "sqlite"
    if vector.kind not in ("message_window", "token_window"):
        return ("alone",)  # they bring what they need
    if "store" in vector.window:
        return ("own store",)
    return ("alone",) if asks_for_the_default(vector) else WAYS


def asks_for_the_default(vector: Vector) -> bool:
    return vector.ops == {"id"} and "id" not in vector.config


def on_each_way(cases: Iterable[tuple[Vector, Any]]) -> list[Any]:
    return [pytest.param(*case, way, id=f"{case[0].id}-{way}") for case in cases for way in ways(case[0])]


@pytest.mark.anyio
@pytest.mark.parametrize(("vector", "expected", "way"), on_each_way((vector, None) for vector in AS_THEY_ARE))
async def test_it_is_what_langchain4j_shows(vector: Vector, expected: None, way: str, tmp_path: Path) -> None:
    with stores(way, tmp_path) as make_store:
        await NamedReplay(vector, make_store, offload=way == "offloaded store")()


@pytest.mark.anyio
@pytest.mark.parametrize(("vector", "run", "way"), on_each_way(evicting()))
async def test_what_is_not_wanted_is_not_shown(vector: Vector, run: Run, way: str, tmp_path: Path) -> None:
    with stores(way, tmp_path) as make_store:
        await NamedReplay(vector, make_store, offload=way == "offloaded store", expected=run.expected)()


@pytest.mark.parametrize("way", ["memory", "sqlite"])
def test_where_a_store_disagrees_with_the_others_ours_does_not(way: str, tmp_path: Path) -> None:
    assert {vector.id for vector in named() if VERDICTS[vector.id].name == "differs"} == {
        "lc4j.store.tablestore.get_empty_id",
        "lc4j.store.tablestore.update_empty_id",
        "lc4j.store.tablestore.delete_empty_id",
        "lc4j.store.tablestore.empty_list",
    }
    with stores(way, tmp_path) as make_store:
        store = make_store()
        assert store is not None
        assert store.get_messages("   ") == []
        store.update_messages("   ", [UserMessage("u1")])
        assert store.get_messages("   ") == [UserMessage("u1")]
        store.delete_messages("   ")
        assert store.get_messages("   ") == []
        store.update_messages("i", [UserMessage("u1")])
        store.update_messages("i", [])
        assert store.get_messages("i") == []


def test_every_vector_of_these_levels_runs_or_has_a_reason() -> None:
    levels = {vector.id for vector in VECTORS.values() if vector.level in ("memory", "store", "registry")}
    theirs = {vector_id for vector_id in levels if VECTORS[vector_id].system == "langchain4j"}
    run = {vector.id for vector in named()}
    assert {VERDICTS[vector_id].name for vector_id in theirs - run} == {"inverted"}
    assert all(VERDICTS[vector_id].why for vector_id in theirs if VERDICTS[vector_id].name != "holds")
    assert {VERDICTS[vector.id].name for vector in named()} == {"holds", "differs"}


@pytest.mark.parametrize("name", ["delete", "isolated", "replace", "round_trip", "set", "unknown"])
def test_of_a_store_the_essentials_hold(name: str) -> None:
    of_stores = [vector for vector in VECTORS.values() if vector.kind == "store_variant"]
    essential = {VERDICTS[vector.id].name for vector in of_stores if vector.id.endswith(f".{name}")}
    assert essential == {"holds"}


# The replay has teeth: whatever a vector expects, it fails when that is changed.

WRONG: dict[str, Any] = {
    "clear_called": False,
    "distinct_instances": 2,
    "error_names": "another",
    "evicted": None,
    "ids": ["another"],
    "input_unchanged": False,
    "provider_calls": 99,
    "results": 99,
    "store_reads": -1,
    "store_writes": -1,
    "store_deletes": -1,
    "total_tokens": 1,
    "value": "another",
    "requests": [],
}


def changed(step: Step) -> Iterator[Step]:
    """Return the step with another expectation."""
    expect: dict[str, Any] = step.get("expect", {})
    for name, given in expect.items():
        if name == "messages":
            yield {**step, "expect": {**expect, "messages": [*given, {"role": "user", "text": "more"}]}}
        elif name == "error":
            yield {**step, "expect": {"messages": []}}
        elif name == "instance":
            yield {**step, "expect": {**expect, "instance": "another" if given is None else None}}
        elif name == "evicted":
            yield {**step, "expect": {**expect, "evicted": not given}}
        elif name != "error_delivery":
            yield {**step, "expect": {**expect, name: WRONG[name]}}


def fails(vector: Vector, make_store: MakeStore) -> bool:
    async def replay() -> None:
        await NamedReplay(vector, make_store)()

    try:
        anyio.run(replay)
    except (AssertionError, TurnkeeperError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("vector", AS_THEY_ARE, ids=lambda vector: vector.id)
def test_a_changed_expectation_fails(vector: Vector) -> None:
    make_store: MakeStore = StoreChatMemoryStore if vector.kind == "store_variant" else CountingStore
    if asks_for_the_default(vector):
        make_store = lambda: None  # noqa: E731
    others = [
        replace(vector, steps=(*vector.steps[:number], other, *vector.steps[number + 1 :]))
        for number, step in enumerate(vector.steps)
        for other in changed(step)
    ]
    assert others
    assert [other.steps for other in others if not fails(other, make_store)] == []

"""Each vector about a log and its compaction, through `memory.compact`, actor and store, on every loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from conformance.classes import is_of_the_log, of_class
from conformance.compacting import INSTEAD, Compacting, as_ours
from conformance.vectors import Step, Vector
from turnkeeper import TurnkeeperError, open_runtime

VECTORS = [as_ours(vector) for vector in of_class("holds", "differs", "inverted") if is_of_the_log(vector)]
WAYS = [("memory", False), ("sqlite", False), ("sqlite", True)]


@pytest.mark.anyio
@pytest.mark.parametrize(("kind", "unloading"), WAYS, ids=["memory", "sqlite", "sqlite-unloading"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
async def test_a_compaction_leaves_what_was_promised(
    vector: Vector, kind: str, unloading: bool, tmp_path: Path
) -> None:
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/chats.db"
    async with open_runtime(url) as runtime:
        await Compacting(vector, runtime, unloading=unloading)()


def test_what_differs_says_how() -> None:
    assert {vector.id for vector in of_class("differs") if is_of_the_log(vector)} == set(INSTEAD)


# The replay has teeth: whatever a vector expects, it fails when that is changed.


def changed(step: Step) -> Iterator[Step]:
    """Return the step with another expectation."""
    expect: dict[str, Any] = step.get("expect", {})
    for name, given in expect.items():
        if name == "error":
            yield {**step, "expect": {"kept": [], "archived": []}}
        elif name == "applied":
            yield {**step, "expect": {"version_delta": 1, "applied": not given}}
        elif isinstance(given, list):
            yield {**step, "expect": {**expect, name: [*given, "more"]}}
        else:
            yield {**step, "expect": {**expect, name: given + 1}}


def fails(vector: Vector) -> bool:
    async def replay() -> None:
        async with open_runtime("memory:") as runtime:
            await Compacting(vector, runtime, unloading=False)()

    try:
        anyio.run(replay)
    except (AssertionError, TurnkeeperError, TypeError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_a_changed_expectation_fails(vector: Vector) -> None:
    others = [
        replace(vector, steps=(*vector.steps[:number], other, *vector.steps[number + 1 :]))
        for number, step in enumerate(vector.steps)
        for other in changed(step)
    ]
    assert others
    assert not fails(vector)
    assert [other.steps for other in others if not fails(other)] == []

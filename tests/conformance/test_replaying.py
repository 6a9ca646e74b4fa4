"""The replay has teeth: whatever a vector expects, it fails when that is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from conformance.outcomes import Exactly, Expected, From, Refused, Run, Shown
from conformance.replaying import Replay, replayed
from conformance.vectors import Step, Vector
from turnkeeper import StoreError, TurnkeeperError, open_runtime
from turnkeeper.stores import InMemoryStore
from turnkeeper.testing import FaultStore

RUNS = [pytest.param(vector, run, id=f"{vector.id}-{run.profile}") for vector, runs in replayed() for run in runs]


def changed(expected: Expected) -> Iterator[Expected]:
    """Return expectations that differ in one thing."""
    match expected:
        case Shown(view, over):
            yield Shown(f"{view} more".strip(), over)
            yield Shown(view, not over)
            if view:
                yield Shown(" ".join(view.split()[:-1]), over)
            yield Refused(TurnkeeperError)
        case From(index, over):
            yield From(index, not over)
            yield Refused(TurnkeeperError)
        case Exactly(messages):
            yield Exactly((*messages, {"role": "user", "content": "more"}))
            if messages:
                yield Exactly((*messages[:-1], {**messages[-1], "more": None}))
            yield Refused(TurnkeeperError)
        case Refused():
            yield Shown("")
            yield Refused(StoreError)


COUNTED = {"store_reads": -1, "store_writes": -1, "total_writes": 99, "total_tokens": 1}
"""What is compared beside the view -> what it can't be."""


def changed_step(step: Step) -> Iterator[Step]:
    """Return the step with another expectation of what is compared beside the view."""
    expect: dict[str, Any] = step.get("expect", {})
    for name, wrong in COUNTED.items():
        if name in expect:
            bounds = {"store_deletes": 0} if name == "store_writes" else {}
            yield {**step, "expect": {**expect, **bounds, name: wrong}}
    if "value" in expect:
        yield {**step, "expect": {**expect, "value": "another"}}
    if "provider_ids" in expect:
        yield {**step, "expect": {**expect, "provider_ids": ["another"]}}
    if "stored" in expect:
        yield {**step, "expect": {**expect, "stored": [*expect["stored"], {"role": "user", "text": "another"}]}}
    if "requests" in expect:
        yield {**step, "expect": {**expect, "requests": [*expect["requests"], []]}}
    if "store" in expect:
        yield {**step, "expect": {**expect, "store": {**expect["store"], "another": [{"role": "user", "text": "m"}]}}}
    if "last_stored" in expect:
        yield {**step, "expect": {**expect, "last_stored": {"role": "user", "text": "another"}}}
    if "error" in expect:
        yield {**step, "expect": {**expect, "error": "another"}}
    if "answer" in expect:
        yield {**step, "expect": {**expect, "answer": "another"}}
    for name in ("aggregated", "removal_requested"):
        if name in expect:
            yield {**step, "expect": {**expect, name: not expect[name]}}
    if "min_store_writes" in expect:
        yield {**step, "expect": {**expect, "min_store_writes": 1_000}}
    if "logged" in step:
        yield {**step, "logged": step["logged"] + 1}


def changed_runs(vector: Vector, run: Run) -> Iterator[tuple[Vector, Run]]:
    steps = list(vector.steps if run.steps is None else run.steps)
    for number, step in enumerate(steps):
        for expected in changed(run.expected[number]):
            others = [*run.expected[:number], expected, *run.expected[number + 1 :]]
            yield vector, Run(run.profile, *others, steps=run.steps, turn=run.turn)
        for other in () if isinstance(run.expected[number], Refused) else changed_step(step):
            given = (*steps[:number], other, *steps[number + 1 :])
            yield replace(vector, steps=given), Run(run.profile, *run.expected, turn=run.turn)


def fails(vector: Vector, run: Run) -> bool:
    async def replay() -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            await Replay(vector, run, runtime, store, unloading=False)()

    try:
        anyio.run(replay)
    except (AssertionError, TurnkeeperError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize(("vector", "run"), RUNS)
def test_a_changed_expectation_fails(vector: Vector, run: Run) -> None:
    others = list(changed_runs(vector, run))
    assert others
    assert not fails(vector, run)
    assert [other.expected for changed_vector, other in others if not fails(changed_vector, other)] == []

"""Each vector that says something about a memory, through handle, actor and store, on every loop.

Also with the memory dropped from RAM before each read: unloading never changes what is shown.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from conformance.classes import VERDICTS, is_named, of_class
from conformance.outcomes import OVERFLOW, Exactly, Expected, Run
from conformance.replaying import Replay, replayed, runs_of
from conformance.translating import all_ours, labels
from conformance.vectors import VECTORS, Vector
from turnkeeper import MessageWindow, TurnWindow, open_runtime
from turnkeeper.stores import store_from_url
from turnkeeper.testing import FaultStore

pytestmark = pytest.mark.anyio

WAYS = [
    pytest.param(("memory", False), id="memory"),
    pytest.param(("sqlite", False), id="sqlite"),
    pytest.param(("sqlite", True), id="sqlite-unloading"),
]
REPLAYED = [pytest.param(vector, runs, id=vector.id) for vector, runs in replayed()]
LANGCHAIN4J = [
    vector for vector in of_class("holds") if vector.kind in ("message_window", "token_window") and not is_named(vector)
]
EVICTED_ON_ARRIVAL = {
    "lc4j.mw.orphan_result_evicted_on_arrival",
    "lc4j.tw.every_message_too_big",
    "lc4j.tw.orphan_result_evicted_on_arrival",
}


async def replay(vector: Vector, run: Run, url: str, *, unloading: bool = False) -> None:
    store = FaultStore(store_from_url(url))
    async with open_runtime(store) as runtime:
        await Replay(vector, run, runtime, store, unloading=unloading)()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("vector", "runs"), REPLAYED)
async def test_a_read_shows_what_was_promised(
    vector: Vector, runs: tuple[Run, ...], way: tuple[str, bool], tmp_path: Path
) -> None:
    kind, unloading = way
    assert runs
    for number, run in enumerate(runs):
        url = f"sqlite:///{tmp_path}/{number}.db" if kind == "sqlite" else "memory:"
        try:
            await replay(vector, run, url, unloading=unloading)
        except BaseException as error:
            verdict = VERDICTS.get(vector.id)
            error.add_note(f"window {run.profile!r}, {verdict and verdict.name}: {vector.behaviour}")
            raise


def refusing(vector: Vector) -> Run:
    """Return a run as LangChain4j has it, up to the first message that it evicts at once: we refuse that one."""
    expected: list[Expected] = []
    for step, given in zip(vector.steps, runs_of(vector)[0].expected, strict=True):
        if step["op"] == "add" and isinstance(given, Exactly) and all_ours([step["message"]])[0] not in given.messages:
            expected.append(OVERFLOW)
            break
        expected.append(given)
    return Run("error", *expected, steps=vector.steps[: len(expected)])


@pytest.mark.parametrize("vector", LANGCHAIN4J, ids=lambda vector: vector.id)
async def test_by_default_an_add_is_refused_where_langchain4j_evicts_at_once(vector: Vector) -> None:
    run = refusing(vector)
    assert (OVERFLOW in run.expected) == (vector.id in EVICTED_ON_ARRIVAL)
    await replay(vector, run, "memory:")


@pytest.mark.parametrize("window", [MessageWindow(5), TurnWindow(max_messages=5)], ids=["messages", "turns"])
async def test_writers_at_once_lose_nothing(window: MessageWindow | TurnWindow) -> None:
    """Like lost_update, with the two as tasks that nobody keeps in order."""
    before, race = VECTORS["lc4j.mw.x.lost_update"].steps
    async with open_runtime("memory:") as runtime:
        await runtime.memory("m", window=window).add(all_ours([before["message"]]))

        async def write(actor: str) -> None:
            memory = runtime.memory("m", window=window)
            for line in race["script"]:
                if line["actor"] == actor:
                    await (memory.messages() if line["do"] == "read" else memory.add(all_ours([line["message"]])))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, "A")
            tasks.start_soon(write, "B")
        assert labels(await runtime.memory("m", window=window).messages()) in ("u1 u2 u3", "u1 u3 u2")

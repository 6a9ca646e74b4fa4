"""Unloading and reloading, at any point, changes no read and no answer.

Two memories go through the same: one is never unloaded, the other whenever the example says so. Several handles with
windows of their own write to both, limits change, and each read is also held against the model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import turnkeeper
from turnkeeper import MessageWindow, TurnWindow, Window, WindowOverflowError, reader
from turnkeeper import state as state_module
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import unload
from turnkeeper.windows import LimitedWindow, limited
from windows.histories import BATCHES, LIMITS, Step, histories, weighted, windows
from windows.model import Said, accepts, show
from windows.saying import Fields, calls, labels, result, rules_of, spoken, user

pytestmark = pytest.mark.anyio

_limits: list[int] = [6, 6, 6]
_several = st.tuples(*[windows(lambda _, place=place: _limits[place]) for place in range(3)])
_place = st.integers(0, 2)
_steps = histories(
    weighted(
        (10, st.tuples(st.just("add"), BATCHES, _place)),
        (8, st.tuples(st.just("look"), _place)),
        (6, st.tuples(st.just("unload"))),
        (2, st.tuples(st.just("limit"), _place, LIMITS)),
        (1, st.tuples(st.just("set"), BATCHES, _place)),
        (1, st.tuples(st.sampled_from(["clear", "clear", "delete"]), _place)),
    )
)


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """Load as few entries as can be, and let messages leave RAM at once: histories in here are short."""
    with (
        patch.object(state_module, "_SLACK", 0),
        patch.object(reader, "_FEWEST", 1),
        patch.object(limited, "_FEWEST", 1),
    ):
        yield


@pytest.fixture
async def runtime() -> AsyncIterator[turnkeeper.Runtime]:
    """Return an open runtime."""
    async with turnkeeper.open_runtime("memory:") as opened:
        yield opened


class Twins:
    """A memory that is unloaded, one that is not, and the model of both."""

    def __init__(self, runtime: turnkeeper.Runtime, several: Sequence[Window]) -> None:
        self.runtime = runtime
        self.windows = several
        self.handles = [[runtime.memory(name, window=window) for window in several] for name in ("unloaded", "held")]
        self.said: list[Said] = []
        self.n = 0

    async def run(self, step: Step) -> None:
        op, *rest = step
        if op == "unload":
            unload(self.runtime, "unloaded")
        elif op == "limit":
            _limits[rest[0]] = rest[1]
        elif op == "look":
            await self.look(rest[0])
        elif op in ("add", "set"):
            await self.write(op, *rest)
        else:
            outcomes = [await getattr(handles[rest[0]], op)() for handles in self.handles]
            if op == "delete":
                assert outcomes[0] is outcomes[1]
                self.n = 0
            else:
                assert outcomes[0].version.n == outcomes[1].version.n
                self.n = outcomes[0].version.n
            self.said = []

    async def write(self, op: str, batch: list[Fields], place: int) -> None:
        outcomes: list[Any] = []
        for handles in self.handles:
            try:
                receipt = await getattr(handles[place], op)(batch)
                outcomes.append((receipt.version.n, receipt.count))
            except WindowOverflowError:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1], "an answer depends on what was in RAM"
        window = self.windows[place]
        said = [] if op == "set" else self.said
        coming = batch
        if op == "add" and isinstance(window, LimitedWindow) and not isinstance(window, TurnWindow):
            coming = [batch[index] for index in _told(said, batch)]
        wanted = [Said(f"{self.n + 1}.{index}", fields) for index, fields in enumerate(coming)]
        judged = True
        if isinstance(window, LimitedWindow) and window.on_overflow == "error" and wanted:
            judged = accepts(said, wanted, rules_of(window), _limits[place])
        assert judged is (outcomes[0] is not None)
        if outcomes[0] is None:
            return
        self.n += bool(wanted)
        self.said = [*said, *wanted]
        assert outcomes[0] == (self.n, len(wanted))

    async def look(self, place: int) -> None:
        views = [await handles[place].messages() for handles in self.handles]
        window = self.windows[place]
        wanted = show(self.said, rules_of(window), _limits[place] if isinstance(window, LimitedWindow) else None)
        for view in views:
            assert (labels(view), view.overflow, view.version.n) == (wanted.labels, wanted.overflow, self.n)
            assert [one.to_dict() for one in view] == [one.to_dict() for one in views[0]]


def _told(said: Sequence[Said], batch: list[Fields]) -> list[int]:
    """Return which of a batch say something: not a system message that equals the current one."""
    kept = []
    current = None
    for fields in [one.fields for one in said if one.role == "system"]:
        current = fields
    for index, fields in enumerate(batch):
        if fields["role"] in ("system", "developer"):
            if fields == current:
                continue
            current = fields
        kept.append(index)
    return kept


async def compare(store: Store, several: Sequence[Window], steps: Sequence[Step]) -> None:
    """Run an example."""
    _limits[:] = [6, 6, 6]
    async with turnkeeper.open_runtime(store, durability="relaxed") as runtime:
        twins = Twins(runtime, several)
        for step in steps:
            await twins.run(step)
        for unloading in (True, False):
            for place in range(len(several)):
                if unloading:
                    await twins.run(("unload",))
                await twins.look(place)


@given(_several, _steps)
@settings(max_examples=100)
async def test_unloading_changes_nothing_in_memory(several: Sequence[Window], steps: Sequence[Step]) -> None:
    await compare(InMemoryStore(), several, steps)


@given(_several, _steps)
@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
async def test_unloading_changes_nothing_in_sqlite(several: Sequence[Window], steps: Sequence[Step]) -> None:
    with TemporaryDirectory() as folder:
        await compare(SQLiteStore(Path(folder) / "chats.db"), several, steps)


async def test_a_batch_that_brings_older_messages_back_gets_one_answer(runtime: turnkeeper.Runtime) -> None:
    """The first message of the batch makes room (an open exchange is dropped), the second answers what comes back."""
    window = MessageWindow(5, on_unanswered="drop")
    outcomes = []
    for unloading in (False, True):
        memory, writer = runtime.memory(str(unloading), window=window), runtime.memory(str(unloading))
        for message in (calls("9"), user("u0"), user("u1"), calls(*"abcd"), *map(result, "abc")):
            await writer.add(message)
        await memory.messages()
        if unloading:
            assert unload(runtime, memory.id)
        outcomes.append(await outcome(memory, [user("u3"), result("9", "r9")]))
    assert outcomes == [outcomes[0]] * 2
    assert spoken(await memory.messages()) == "call:9 r9 u0 u1 u3"


async def outcome(memory: turnkeeper.ChatMemory, batch: list[Fields]) -> str:
    """Add a batch and say what came of it."""
    try:
        await memory.add(batch)
    except WindowOverflowError:
        return "refused"
    return "accepted"

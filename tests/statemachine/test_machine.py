"""Promises 1 to 8 for one memory: whatever happens to it, it is what the model says, on every event loop and store.

Adds, sets, clears, deletes, turns with every `on_busy` and both ways of committing, compactions with changes in
between, repeated requests, unloads and reopened runtimes; callers are cancelled anywhere, and the store fails before,
after and without an answer. Nothing is half, what is resident is what is stored, and nobody waits for ever.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from statemachine.driver import ALL, NONE, Disturbance, Driver, no_error_logged
from statemachine.model import Batch
from support.backends import OPTIONS
from support.stores import STORES
from turnkeeper import MessageWindow, TurnWindow, Unbounded, Window, committer, state
from turnkeeper.stores import InMemoryStore, SQLiteStore
from windows.histories import MESSAGES
from windows.saying import answer, calls, result, system, user

T = TypeVar("T")

READING: list[Window] = [
    ALL,
    Unbounded(on_unanswered="drop"),
    MessageWindow(2, on_overflow="evict"),
    MessageWindow(5, on_overflow="evict", system_first=True),
    MessageWindow(3, on_overflow="keep"),
    TurnWindow(max_messages=4),
    TurnWindow(max_turns=1),
]
LEASE = 0.1
WRITING: list[Window] = [
    ALL,
    ALL,
    ALL,
    TurnWindow(max_messages=4),
    MessageWindow(4),
    MessageWindow(3, on_overflow="evict"),
]

batches: st.SearchStrategy[Batch] = st.one_of(
    st.lists(MESSAGES, min_size=1, max_size=3).map(tuple),
    st.lists(MESSAGES, min_size=1, max_size=3).map(tuple),
    st.just((user(), calls("1"), result("1"))),
)
summaries: st.SearchStrategy[Batch] = st.lists(
    st.sampled_from([system("summary"), system("s"), user("so far"), answer("yes")]), min_size=1, max_size=2
).map(tuple)
keys = st.one_of(st.none(), st.none(), st.sampled_from(["k1", "k2"]))

_faults = st.sampled_from(
    [
        (("commit", "before", 1),),
        (("commit", "before", 2),),
        (("commit", "after", 1),),
        (("commit", "before", 1), ("settle", "before", 9)),
        (("commit", "after", 1), ("settle", "before", 9)),
        (("commit", "after", 1), ("settle", "before", 9), ("load", "before", 1)),
        (("load", "before", 1),),
        (("receipts", "before", 1),),
    ]
)
disturbances: st.SearchStrategy[Disturbance] = st.one_of(
    st.just(NONE),
    st.just(NONE),
    st.builds(Disturbance, faults=_faults),
    st.builds(Disturbance, passes=st.integers(0, 8)),
    st.builds(Disturbance, stalled=st.sampled_from(["commit", "load"])),
    st.builds(Disturbance, faults=_faults, passes=st.integers(0, 8)),
)


class Machine(RuleBasedStateMachine):
    """Everything that may happen to a memory, in any order."""

    backend = "asyncio"
    store = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack.enter_context(no_error_logged())
        name, options = OPTIONS[self.backend]
        options = {**options, "debug": False} if "debug" in options else options  # debug mode takes ten times as long
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal(name, options))
        kept = InMemoryStore()
        inline = None
        if self.store in ("memory", "threaded"):
            make: Callable[[], Any] = lambda: kept  # noqa: E731
            inline = False if self.store == "threaded" else None
        else:
            make = partial(SQLiteStore, folder / "chats.db", shared=self.store == "sqlite-shared")
        # A lease that could not be given back has to run out before anybody else may write.
        self.driver: Driver = self._portal.call(
            lambda: _made(Driver, make, inline=inline, turn_lease=LEASE, durability="relaxed")
        )
        self._kept: Future[None] = self._portal.start_task_soon(self.driver.keep)
        self._run(self.driver.start)

    def _run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return self._portal.call(partial(function, *arguments))

    def teardown(self) -> None:
        try:
            self._run(self.driver.stop)
            self._kept.result(30)
        finally:
            self._stack.close()

    # No rule has a precondition, and none draws from the state: threads take their time, and an example must draw the
    # same when it is run again. A rule that makes no sense now does what comes before it.

    # Writing from outside a turn

    @rule(batch=batches, window=st.sampled_from(WRITING), key=keys, disturbance=disturbances)
    def add(self, batch: Batch, window: Window, key: str | None, disturbance: Disturbance) -> None:
        self._run(self.driver.write, "add", batch, window, key, None, disturbance)

    @rule(batch=batches)
    def talk(self, batch: Batch) -> None:
        for said in (batch, (user("more"), *batch), (system(f"now {len(batch)}"), answer()), (user("again"),)):
            self._run(self.driver.write, "add", said)

    @rule(batch=batches, key=keys, at=st.sampled_from([None, None, -1, -1, -2]), disturbance=disturbances)
    def set(self, batch: Batch, key: str | None, at: int | None, disturbance: Disturbance) -> None:
        versions = [version for version in self.driver.versions if version.n]
        version = versions[max(at, -len(versions))] if at is not None and versions else None
        self._run(self.driver.write, "set", batch, ALL, key, version, disturbance)

    @rule(kind=st.sampled_from(["clear", "delete"]), disturbance=disturbances)
    def empty(self, kind: Literal["clear", "delete"], disturbance: Disturbance) -> None:
        self._run(self.driver.write, kind, (), ALL, None, None, disturbance)

    # Turns

    @rule(
        on_busy=st.sampled_from(["enqueue", "enqueue", "reject", "interrupt", "rollback"]),
        each=st.booleans(),
        key=keys,
        disturbance=disturbances,
    )
    def open(self, on_busy: str, each: bool, key: str | None, disturbance: Disturbance) -> None:
        self._run(self.driver.open, on_busy, each, None if each else key, disturbance)

    @rule(batch=batches, each=st.booleans(), disturbance=disturbances)
    def turn_add(self, batch: Batch, each: bool, disturbance: Disturbance) -> None:
        turn = self.driver.state.turn
        if turn is None:
            self._run(self.driver.open, "enqueue", each)
        else:
            self._run(self.driver.turn_add, turn.turn, batch, disturbance)

    @rule(batch=batches, key=keys, each=st.booleans(), on_busy=st.sampled_from(["interrupt", "rollback"]))
    def whole_turn(self, batch: Batch, key: str | None, each: bool, on_busy: str) -> None:
        self._run(self.driver.open, on_busy, each, None if each else key)
        if (turn := self.driver.state.turn) is not None:
            self._run(self.driver.turn_add, turn.turn, (user("whole"), *batch))
            self._run(self.driver.leave, turn.turn)

    @rule(how=st.sampled_from(["leave", "leave", "leave", "fail"]), disturbance=disturbances)
    def end_turn(self, how: str, disturbance: Disturbance) -> None:
        turn = self.driver.state.turn
        if turn is None:
            self._run(self.driver.open, "enqueue", False)
        elif how == "leave":
            self._run(self.driver.leave, turn.turn, disturbance)
        else:
            self._run(self.driver.fail, turn.turn)

    @rule(place=st.integers(0, 9), batch=batches, leaves=st.booleans())
    def use_any_turn(self, place: int, batch: Batch, leaves: bool) -> None:
        waiting = self.driver.waiting_turns
        known = [number for number in range(len(self.driver.turns)) if number not in waiting]
        if not known:
            return
        number = known[-1 - place % len(known)]
        if leaves:
            self._run(self.driver.leave, number)
        else:
            self._run(self.driver.turn_add, number, batch)

    @rule(place=st.integers(0, 9))
    def cancel(self, place: int) -> None:
        if held := self.driver.state.held:
            self._run(self.driver.cancel, place % len(held))

    # Compaction

    @rule(
        keep=st.integers(1, 5),
        how=st.sampled_from(["text", "text", "text", "replaced", "again", "fail", "empty", "cancel"]),
        batch=summaries,
    )
    def compact(self, keep: int, how: Any, batch: Batch) -> None:
        compaction = self.driver.compaction
        if compaction is None or compaction.told.is_set() or how == "again":
            self._run(self.driver.begin_compaction, keep)
        else:
            if how == "replaced":
                self._run(self.driver.write, "set", (user("other"), user("than before")))
            self._run(self.driver.end_compaction, "text" if how == "replaced" else how, batch)

    # Other things

    @rule()
    def unload(self) -> None:
        self._run(self.driver.unload)

    @rule(window=st.sampled_from(READING))
    def read(self, window: Window) -> None:
        self._run(self.driver.read, window)

    @rule()
    def reopen(self) -> None:
        state = self.driver.state
        # A runtime that closes leaves the lease of an open turn to run out.
        if not state.held and self.driver.compaction is None and not (self.driver.shared and state.turn is not None):
            self._run(self.driver.reopen)


async def _made(kind: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return kind(*arguments, **options)


@pytest.fixture(autouse=True)
def _settle_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a store that is out of reach as often as ever, without the real time between; let messages leave RAM."""
    monkeypatch.setattr(committer, "_SETTLE_WAITS", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(committer, "_FEWEST", 1)
    monkeypatch.setattr(state, "_SLACK", 0)


def run(backend: str, store: str, examples: int, steps: int) -> None:
    kind = type("Machine", (Machine,), {"backend": backend, "store": store})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in Phase if phase is not Phase.explain],
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.parametrize("store", ["threaded", *STORES])
@pytest.mark.parametrize("backend", OPTIONS)
def test_a_memory_is_what_the_model_says(backend: str, store: str) -> None:
    run(backend, store, examples={"memory": 25, "sqlite-shared": 4}.get(store, 12), steps=30)

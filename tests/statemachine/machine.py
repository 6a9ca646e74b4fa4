"""The machine: a rule for each thing that may happen to a memory.

No rule has a precondition, and none draws from the state: threads take their time, and an example must draw the same
when it is run again. A rule that makes no sense now does what comes before it.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from statemachine import writes
from statemachine.choices import batches, disturbances, keys, summaries, windows_to_read, windows_to_write
from statemachine.driver import ALL, brief
from statemachine.logbook import Logbook
from statemachine.operations import NONE, Disturbance
from statemachine.states import Applied, Batch
from statemachine.witness import Witness
from stores.building import Clock
from support.backends import OPTIONS
from turnkeeper import ChatMemory, Window
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from windows.saying import answer, system, user

T = TypeVar("T")


class Machine(RuleBasedStateMachine):
    """Everything that may happen to a memory, in any order."""

    backend = "asyncio"
    store = "memory"
    prunes = True

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack.enter_context(_no_error_logged())
        self._clock = Clock()
        self._kept_store = InMemoryStore(clock=self._clock)
        name, options = OPTIONS[self.backend]
        options = {**options, "debug": False} if "debug" in options else options  # debug mode takes ten times as long
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal(name, options))
        self.driver: Logbook | None = None

    @initialize(by_policy=st.booleans())
    def begin(self, by_policy: bool) -> None:
        self.driver = self._portal.call(
            partial(_made, Logbook, self._make_store, by_policy=by_policy, durability="relaxed")
        )
        self._kept: Future[None] = self._portal.start_task_soon(self.driver.keep)
        self._run(self.driver.start)

    def _make_store(self) -> Witness:
        store: Store = self._kept_store
        if self.store.startswith("sqlite"):
            path = self._folder / "chats.db"
            store = SQLiteStore(path, shared=self.store == "sqlite-shared", clock=self._clock)
        return Witness(store, self._clock, inline=self.store == "memory")

    def _run(self, function: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        return self._portal.call(partial(function, *arguments, **options))

    @property
    def _it(self) -> Logbook:
        assert self.driver is not None
        return self.driver

    def teardown(self) -> None:
        try:
            if self.driver is not None:
                self._run(self.driver.stop)
                self._kept.result(30)
        finally:
            self._stack.close()

    # Writing from outside a turn

    def _write(
        self,
        name: str,
        call: Callable[[ChatMemory], Awaitable[Any]],
        apply: Applied,
        disturbance: Disturbance = NONE,
        window: Window = ALL,
    ) -> None:
        self._run(self._it.write, name, call, apply, disturbance, window)

    @rule(batch=batches, window=windows_to_write, key=keys, disturbance=disturbances)
    def add(self, batch: Batch, window: Window = ALL, key: str | None = None, disturbance: Disturbance = NONE) -> None:
        self._write(
            f"add {brief(batch)} key={key} in {window}",
            lambda memory: memory.add(batch, idempotency_key=key),
            partial(writes.add, batch=batch, window=window, key=key),
            disturbance,
            window,
        )

    @rule(batch=batches)
    def talk(self, batch: Batch) -> None:
        for said in (batch, (user("more"), *batch), (system(f"now {len(batch)}"), answer()), (user("again"),)):
            self.add(said)

    @rule(batch=batches, key=keys, at=st.sampled_from([None, None, -1, -1, -2]), disturbance=disturbances)
    def set(self, batch: Batch, key: str | None = None, at: int | None = None, disturbance: Disturbance = NONE) -> None:
        versions = [version for version in self._it.versions.seen if version.n]
        version = versions[max(at, -len(versions))] if at is not None and versions else None
        self._write(
            f"set {brief(batch)} key={key} if={version}",
            lambda memory: memory.set(batch, idempotency_key=key, if_version=version),
            partial(writes.set_, batch=batch, window=ALL, key=key, fits=self._it.versions.fits(version)),
            disturbance,
        )

    @rule(how=st.sampled_from(["clear", "delete", "erase"]), batch=batches, disturbance=disturbances)
    def empty(self, how: str, batch: Batch, disturbance: Disturbance) -> None:
        async def erase(memory: ChatMemory) -> bool:
            return (await self._it.runtime.erase([memory.id])).count == 1

        if how == "clear":
            self._write("clear", lambda memory: memory.clear(), writes.clear, disturbance)
        elif how == "delete":
            self._write("delete", lambda memory: memory.delete(), writes.delete, disturbance)
        else:
            self._write("erase", erase, writes.delete, disturbance)
        self.add(batch)

    # Turns

    @rule(
        on_busy=st.sampled_from(["enqueue", "enqueue", "reject", "interrupt", "rollback"]),
        each=st.booleans(),
        key=keys,
        late=st.sampled_from([False] * 7 + [True]),
        disturbance=disturbances,
    )
    def open(self, on_busy: str, each: bool, key: str | None, late: bool, disturbance: Disturbance) -> None:
        self._run(self._it.open, on_busy, each, None if each else key, late, disturbance)

    @rule(batch=batches, each=st.booleans(), disturbance=disturbances)
    def turn_add(self, batch: Batch, each: bool, disturbance: Disturbance) -> None:
        turn = self._it.state.turn
        if turn is None:
            self._run(self._it.open, "enqueue", each)
        else:
            self._run(self._it.turn_add, turn.turn, batch, disturbance)

    @rule(batch=batches, key=keys, each=st.booleans(), on_busy=st.sampled_from(["interrupt", "rollback"]))
    def whole_turn(self, batch: Batch, key: str | None, each: bool, on_busy: str) -> None:
        self._run(self._it.open, on_busy, each, None if each else key)
        if (turn := self._it.state.turn) is not None:
            self._run(self._it.turn_add, turn.turn, (user("whole"), *batch))
            self._run(self._it.leave_turn, turn.turn)

    @rule(how=st.sampled_from(["leave", "leave", "leave", "fail"]), disturbance=disturbances)
    def end_turn(self, how: str, disturbance: Disturbance) -> None:
        turn = self._it.state.turn
        if turn is None:
            self._run(self._it.open, "enqueue", False)
        elif how == "leave":
            self._run(self._it.leave_turn, turn.turn, disturbance)
        else:
            self._run(self._it.fail, turn.turn)

    @rule(place=st.integers(0, 9), batch=batches, leaves=st.booleans())
    def use_any_turn(self, place: int, batch: Batch, leaves: bool) -> None:
        known = self._it.known_turns
        if not known:
            return
        number = known[-1 - place % len(known)]
        if leaves:
            self._run(self._it.leave_turn, number)
        else:
            self._run(self._it.turn_add, number, batch)

    @rule(unnoticed=st.booleans(), each=st.booleans())
    def outlive(self, unnoticed: bool, each: bool) -> None:
        if self._it.kept_out:
            self._run(self._it.outlive, unnoticed=unnoticed)
        else:
            self._run(self._it.open, "interrupt", each)

    @rule(disturbance=disturbances)
    def renew(self, disturbance: Disturbance) -> None:
        self._run(self._it.renew, disturbance)

    @rule(place=st.integers(0, 9), natively=st.booleans())
    def cancel(self, place: int, natively: bool) -> None:
        if held := self._it.state.held:
            self._run(self._it.cancel, place % len(held), natively=natively)

    # Compaction

    @rule(
        keep=st.integers(1, 5),
        how=st.sampled_from(["text", "text", "text", "replaced", "again", "fail", "empty", "cancel"]),
        batch=summaries,
        whole=st.booleans(),
    )
    def compact(self, keep: int, how: Any, batch: Batch, whole: bool) -> None:
        compaction = self._it.compaction
        if compaction is None or compaction.told.is_set() or how == "again":
            if whole:
                self.talk(batch)
            self._run(self._it.begin_compaction, keep)
            if whole and (begun := self._it.compaction) is not None and not begun.told.is_set():
                self._run(self._it.end_compaction, "text", batch)
        else:
            if how == "replaced":
                self.set((user("other"), user("than before")))
            self._run(self._it.end_compaction, "text" if how == "replaced" else how, batch)

    # Other things

    @rule(window=windows_to_read)
    def unload(self, window: Window) -> None:
        self._run(self._it.unload, window if self.prunes else ALL)

    @rule(window=windows_to_read)
    def read(self, window: Window) -> None:
        self._run(self._it.read, window)

    @rule()
    def reopen(self) -> None:
        if not self._it.state.held and not self._it.compacts:
            self._run(self._it.reopen)


async def _made(kind: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return kind(*arguments, **options)


@contextlib.contextmanager
def _no_error_logged() -> Iterator[None]:
    """Fail when the runtime logs that something in it went wrong."""
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping(logging.ERROR)
    logger = logging.getLogger("turnkeeper")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not records, [record.getMessage() for record in records]

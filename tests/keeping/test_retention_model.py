"""Whatever was said and pruned, in any order: RAM, a fresh load and the log agree on what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeping.tools import Clock
from turnkeeper import (
    HistoryPrunedError,
    Messages,
    MessageWindow,
    RetentionPolicy,
    SyncChatMemory,
    SyncRuntime,
    TurnWindow,
    Unbounded,
    Version,
    open_sync_runtime,
    reader,
    retention,
)
from turnkeeper import state as state_module
from turnkeeper.names import MemoryName
from turnkeeper.state import Log
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turns.tools import assistant, call, result, user

WINDOWS = (Unbounded(), MessageWindow(3), TurnWindow(max_turns=2), TurnWindow(max_messages=4))


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """Let messages leave RAM at once, load as little as can be, prune entry by entry or nearly so."""
    with (
        patch.object(state_module, "_SLACK", 0),
        patch.object(reader, "_FEWEST", 1),
        patch.object(retention, "_STEP", 2),
        patch.object(retention, "_NEWEST", 2),
        patch.object(retention, "_SHARE", 0),
    ):
        yield


text = st.sampled_from(["a", "b"])
call_id = st.sampled_from("12")
message = st.one_of(
    st.builds(user, text),
    st.builds(user, text),
    st.builds(assistant, text),
    st.builds(call, call_id),
    st.builds(result, call_id, text),
    st.builds(lambda said: {"role": "system", "content": said}, st.sampled_from("st")),
)
step = st.one_of(
    st.tuples(st.just("add"), st.lists(message, min_size=1, max_size=3)),
    st.tuples(st.just("add"), st.lists(message, min_size=1, max_size=3)),
    st.tuples(st.just("add"), st.lists(message, min_size=1, max_size=3)),
    st.tuples(st.just("set"), st.lists(message, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["clear", "pop", "undo", "unload", "read", "wait", "remove", "edit"])),
    st.tuples(st.just("compact"), st.integers(1, 3)),
    st.tuples(st.just("sweep"), st.none() | st.integers(1, 6), st.none() | st.integers(1, 3)),
    st.tuples(st.just("sweep"), st.none() | st.integers(1, 6), st.none() | st.integers(1, 3)),
)


def picture(log: Log) -> tuple[object, ...]:
    older = [*filter(None, [log.transcript.system_before]), *log.transcript.summary]
    return log.n, log.base, log.system, [(each.id, each.to_dict()) for each in (*older, *log.messages)]


class World:
    def __init__(self, runtime: SyncRuntime, clock: Clock) -> None:
        self.runtime, self.clock = runtime, clock
        self.memory: SyncChatMemory = runtime.memory("m")
        self.core: Any = runtime._core
        self.shown: dict[Version, list[Messages]] = {}

    def in_loop(self, function: Any, *args: Any) -> Any:
        return self.core.portal.call(function, *args)

    def run(self, op: str, *args: Any) -> None:
        memory = self.memory
        if op in ("add", "set"):
            getattr(memory, op)(*args)
        elif op == "unload":
            self.in_loop(self.core.unload, MemoryName("", "m"))
        elif op == "read":
            for window in WINDOWS:
                memory.messages(window=window)
        elif op == "wait":
            self.clock.now += 1
        elif op == "compact":
            memory.compact(lambda messages, summary: "sum", keep=TurnWindow(max_turns=args[0]))
        elif op in ("remove", "edit"):
            real = [each for each in memory.messages() if not each.synthetic]
            if real and op == "remove":
                memory.remove(str(real[0].id))
            elif real:
                said = {**real[0].to_dict(), "content": "edited"}
                memory.edit(str(real[0].id), said)
        elif op == "sweep":
            self.sweep(*args)
        else:
            getattr(memory, op)()

    def sweep(self, max_messages: int | None, max_age: float | None) -> None:
        memory = self.memory
        policy = None if max_messages is max_age is None else RetentionPolicy(max_age, max_messages)
        memory.set_metadata(retention=policy)
        before = memory.messages()
        entries = memory.history(limit=1_000).entries
        newest_turn = [each.id for each in memory.messages(window=TurnWindow(max_turns=1))]
        self.in_loop(self.core.keeper.sweep)
        self.in_loop(self.core.keeper.sweep)
        after = memory.messages()
        assert after.version == before.version
        left = memory.history(limit=1_000).entries
        assert left == entries[len(entries) - len(left) :], "the oldest leave, and none other"
        if policy is None:
            assert (left, after) == (entries, before)
        assert [each.id for each in memory.messages(window=TurnWindow(max_turns=1))] == newest_turn
        said, kept = [[each.id for each in view if not each.synthetic] for view in (before, after)]
        assert [each for each in said if each in kept] == kept
        self.judge(policy, entries, left)

    def judge(self, policy: RetentionPolicy | None, entries: Any, left: Any) -> None:
        """Nothing went that was to stay; whatever stayed though it might go belongs to what is never pruned."""
        if policy is None or not left:
            return
        gone = entries[: len(entries) - len(left)]
        oldest = self.clock.now - policy.max_age if isinstance(policy.max_age, float) else 0
        for entry in gone:
            newer = sum(len(each.messages) for each in entries if each.version >= entry.version)
            too_many = policy.max_messages is not None and newer > policy.max_messages
            assert entry.time < oldest or too_many

    def compare(self) -> None:
        """RAM, and a fresh load of everything or of what each window needs."""
        held = [self.memory.messages(window=window) for window in WINDOWS]
        picture_of = self.in_loop(self.pictures)
        if picture_of is not None:
            assert picture_of[0] == picture_of[1]
        for window, view in zip(WINDOWS, held, strict=True):
            self.run("unload")
            again = self.memory.messages(window=window)
            assert (again, again.version, again.overflow) == (view, view.version, view.overflow)
        self.look_back()

    async def pictures(self) -> tuple[object, object] | None:
        actor = self.core._residency.find(MemoryName("", "m"))
        if actor is None or actor._log is None or not actor._log.complete or not actor._log.n:
            return None
        return picture(actor._log), picture(await self.loaded())

    def note(self) -> None:
        """Note what is shown now, from the store, so that nothing is loaded into RAM by it."""
        log = self.in_loop(self.loaded)
        self.shown[log.version] = [log.view(window, window.limit("m")) for window in WINDOWS]

    async def loaded(self) -> Log:
        fetched = await self.core._reader.load(reader.Fetch(MemoryName("", "m"), None, (Unbounded(), None)))
        assert isinstance(fetched.log, Log)
        return fetched.log

    def look_back(self) -> None:
        """Each window shows exactly what it showed last at each version, or says that it is gone."""
        now = self.memory.messages().version
        first = next(iter(self.memory.history(limit=1).entries), None)
        for version, shown in self.shown.items():
            for window, then in zip(WINDOWS, shown, strict=True):
                try:
                    again = self.memory.messages(at=version, window=window)
                except HistoryPrunedError:
                    assert version < now
                    assert first is not None
                    assert first.version.n > 1
                else:
                    assert (again, again.version, again.overflow) == (then, then.version, then.overflow)
                    assert [each.id for each in again] == [each.id for each in then]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(steps=st.lists(step, min_size=3, max_size=25))
@settings(max_examples=60)
@pytest.mark.timeout_seconds(300)
def test_what_is_left_is_the_same_everywhere(
    tmp_path_factory: pytest.TempPathFactory, kind: str, steps: list[tuple[Any, ...]]
) -> None:
    clock = Clock()
    store = (
        InMemoryStore(clock=clock)
        if kind == "memory"
        else SQLiteStore(tmp_path_factory.mktemp("kept") / "chats.db", clock=clock)
    )
    with open_sync_runtime(store, sweep_interval=1e9, window=WINDOWS[0]) as runtime:
        world = World(runtime, clock)
        for each in steps:
            world.run(*each)
            world.note()
            if each[0] in ("sweep", "unload"):
                world.compare()
        world.compare()

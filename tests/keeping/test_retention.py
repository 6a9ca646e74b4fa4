"""`RetentionPolicy`: what is old goes, in small steps, and everybody else goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import pytest
from anyio import to_thread

from keeping.tools import BOUND, KINDS, Clock, listed, log_of, opened, store_of, sweep
from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    ConflictError,
    HistoryPrunedError,
    InvalidArgumentError,
    MessageWindow,
    RetentionPolicy,
    Runtime,
    RuntimeClosedError,
    TurnWindow,
    Version,
    open_runtime,
    retention,
)
from turnkeeper.log import Committed, Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.requests import PRUNE, Request
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, assistant, call, result, texts, user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


async def both(runtime: Runtime, memory: ChatMemory) -> list[Any]:
    """Read what is shown, from RAM and loaded anew, which is the same."""
    held = await memory.messages()
    unload(runtime, memory.id, memory.namespace)
    again = await memory.messages()
    assert (again, again.version) == (held, held.version)
    return [message["content"] for message in again.to_dicts()]


async def turns(memory: ChatMemory, first: int, last: int) -> None:
    """Say something, two entries a turn."""
    for number in range(first, last + 1):
        await memory.add(user(f"q{number}"))
        await memory.add(assistant(f"a{number}"))


class TestWhatGoes:
    async def test_by_age_entries_leave_whole_the_oldest_first(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_age=10)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"), assistant("2"), user("3"))
            clock.now += 5
            await memory.add(assistant("4"))
            await memory.add(user("5"))
            clock.now += 5
            await sweep(runtime)  # nothing is older than 10
            assert await log_of(memory) == [1, 2, 3]
            clock.now += 1
            await sweep(runtime)
            assert await log_of(memory) == [2, 3]
            assert await both(runtime, memory) == ["4", "5"]
            clock.now += 1_000
            await sweep(runtime)
            assert await both(runtime, memory) == ["5"], "the current turn stays"
            assert runtime._core.keeper.pruned == 2

    async def test_by_count(self, kind: str, tmp_path: Path) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=5)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 2)
            await memory.add(user("q3"))
            await sweep(runtime)
            assert await log_of(memory) == [1, 2, 3, 4, 5]
            await memory.add(assistant("x"), assistant("y"))
            await sweep(runtime)
            assert await log_of(memory) == [3, 4, 5, 6]
            assert await both(runtime, memory) == ["q2", "a2", "q3", "x", "y"]

    async def test_messages_that_were_replaced_or_undone_count(self, kind: str, tmp_path: Path) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=4)) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            await memory.add(user("2"))
            await memory.undo()
            await memory.set(user("3"), assistant("4"))
            await sweep(runtime)
            assert await log_of(memory) == [1, 2, 3, 4]
            await memory.add(user("5"))
            await sweep(runtime)
            assert await log_of(memory) == [2, 3, 4, 5]
            assert await both(runtime, memory) == ["3", "4", "5"]
            await memory.add(user("6"))
            await sweep(runtime)
            assert await log_of(memory) == [3, 4, 5, 6]

    async def test_never_the_current_turn_however_long(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        policy = RetentionPolicy(max_age=1, max_messages=1)
        async with opened(store_of(kind, tmp_path, clock), history=policy, window=MessageWindow(2)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 3)
            await memory.add(user("q"))
            for number in range(300):  # more than a window of two leaves in RAM
                await memory.add(call(f"{number}"))
                await memory.add(result(f"{number}"))
            clock.now += 100
            for reloaded in (False, True):
                if reloaded:
                    unload(runtime, "m")
                    await memory.messages()
                await sweep(runtime)
                assert (await log_of(memory))[0] == 7
                assert (await memory.messages(window=TurnWindow(max_turns=5)))[0].text == "q"
                assert len(await memory.messages(window=TurnWindow(max_turns=5))) == 601

    async def test_never_the_current_system_message(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_age=1)) as runtime:
            memory = runtime.memory("m")
            await memory.add(system("old"))
            await memory.add(system("s"))
            await turns(memory, 1, 3)
            clock.now += 10
            await sweep(runtime)
            assert await both(runtime, memory) == ["s", "q3", "a3"]
            assert (await memory.messages())[0].id == "2.0"
            await memory.edit("2.0", system("t"))
            await turns(memory, 4, 4)
            clock.now += 10
            await sweep(runtime)
            assert await both(runtime, memory) == ["t", "q4", "a4"]

    async def test_a_summary_stays_with_what_it_left_until_another_takes_its_place(
        self, kind: str, tmp_path: Path
    ) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_age=1)) as runtime:
            memory = runtime.memory("m")
            await memory.add(system("s"))
            await turns(memory, 1, 4)
            await memory.compact(lambda messages, summary: "sum", keep=TurnWindow(max_turns=2))
            await turns(memory, 5, 6)
            shown = ["s", "sum", "q3", "a3", "q4", "a4", "q5", "a5", "q6", "a6"]
            assert await texts(memory) == shown
            clock.now += 10
            await sweep(runtime)
            assert await both(runtime, memory) == shown
            assert (await log_of(memory))[:2] == [6, 7], "what was summed up is gone"
            await memory.compact(lambda messages, summary: "more", keep=TurnWindow(max_turns=1))
            await turns(memory, 7, 7)
            await sweep(runtime)
            clock.now += 10
            await sweep(runtime)
            assert await both(runtime, memory) == ["s", "more", "q6", "a6", "q7", "a7"]

    @pytest.mark.parametrize("history", [False, True])
    async def test_a_fork_is_pruned_by_itself_and_its_parent_goes_on(
        self, kind: str, tmp_path: Path, history: bool
    ) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock)) as runtime:
            parent = runtime.memory("parent")
            await parent.add(system("s"))
            await turns(parent, 1, 3)
            fork = await parent.fork("fork", history=history)
            await turns(fork, 4, 5)
            await fork.set_metadata(retention=RetentionPolicy(max_age=1))
            clock.now += 10
            await sweep(runtime)
            assert await both(runtime, fork) == ["s", "q5", "a5"]
            assert await both(runtime, parent) == ["s", "q1", "a1", "q2", "a2", "q3", "a3"]
            assert (await fork.metadata()).parent is not None

    async def test_what_is_gone_is_refused_exactly_and_the_rest_can_be_read(self, kind: str, tmp_path: Path) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=6)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 6)
            mid = (await memory.messages()).version.mid
            await sweep(runtime)
            assert await log_of(memory) == [7, 8, 9, 10, 11, 12]
            for n in range(1, 7):
                with pytest.raises(HistoryPrunedError):
                    await memory.messages(at=Version(mid, n))
                with pytest.raises(HistoryPrunedError):
                    await memory.history(after=Version(mid, n - 1))
            for n in range(7, 13):
                with pytest.raises(HistoryPrunedError):
                    await memory.messages(at=Version(mid, n - 1))  # it showed more than is there
                page = await memory.history(after=Version(mid, n - 1))
                assert [entry.version.n for entry in page.entries] == list(range(n, 13))
            now = await memory.messages()
            assert len(await memory.messages(at=now.version)) == 6
            assert (await memory.add(user("next"))).version == Version(mid, 13)
            await memory.clear()
            assert await memory.messages(at=now.version) == now
            assert len(await memory.messages(at=Version(mid, 13))) == 7

    async def test_a_window_that_misses_nothing_shows_past_states_of_which_older_messages_are_gone(
        self, kind: str, tmp_path: Path
    ) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=6)) as runtime:
            memory = runtime.memory("m")
            await memory.add(system("s"))
            shown = []
            for number in range(1, 7):
                await turns(memory, number, number)
                await sweep(runtime)
                shown.append(await memory.messages(window=MessageWindow(3)))
            await memory.clear()
            gone = 0
            for then in shown:
                try:
                    assert await memory.messages(at=then.version, window=MessageWindow(3)) == then
                    assert then.version.n >= 9
                except HistoryPrunedError:
                    gone += 1
            assert 0 < gone < 6

    async def test_receipts_outlive_what_they_stand_for(self, kind: str, tmp_path: Path) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=1)) as runtime:
            memory = runtime.memory("m")
            first = await memory.add(user("1"), idempotency_key="k")
            await memory.add(user("2"))
            await sweep(runtime)
            assert await log_of(memory) == [2]
            assert await memory.add(user("1"), idempotency_key="k") == first
            assert await both(runtime, memory) == ["2"]


class TestWhosePolicy:
    async def test_a_memorys_own_goes_before_the_runtimes_and_may_be_given_up(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_messages=2)) as runtime:
            own, other = runtime.memory("own"), runtime.memory("other")
            await own.set_metadata(retention=RetentionPolicy(max_messages=4))
            for memory in (own, other):
                await turns(memory, 1, 5)
            await sweep(runtime)
            assert await log_of(own) == [7, 8, 9, 10]
            assert await log_of(other) == [9, 10]
            clock.now += 1_000
            await sweep(runtime)
            await own.set_metadata(retention=None)
            await sweep(runtime)
            assert await log_of(own) == [9, 10], "though it was not changed since it was last counted"

    async def test_without_a_runtimes_policy_a_memorys_own_is_kept(self, kind: str, tmp_path: Path) -> None:
        async with opened(store_of(kind, tmp_path, Clock())) as runtime:
            for name in ("a", "b"):
                await turns(runtime.memory(name), 1, 5)
            await sweep(runtime)
            assert not runtime._core.keeper._looks
            await runtime.memory("b").set_metadata(retention=RetentionPolicy(max_messages=2))
            await sweep(runtime)
            assert len(await log_of(runtime.memory("a"))) == 10
            assert len(await log_of(runtime.memory("b"))) == 2

    async def test_another_processs_is_found_after_some_sweeps(self, tmp_path: Path) -> None:
        clock = Clock()
        stores = [SQLiteStore(tmp_path / "chats.db", shared=True, clock=clock) for _ in range(2)]
        async with opened(stores[0]) as one:
            await turns(one.memory("m"), 1, 5)
            await sweep(one)
            async with opened(stores[1]) as other:
                await other.memory("m").set_metadata(retention=RetentionPolicy(max_messages=2))
            for _ in range(retention._AFRESH):
                await sweep(one)
            assert await log_of(one.memory("m")) == [9, 10]

    async def test_a_policy_given_while_a_prune_was_on_its_way_is_kept_to(self, tmp_path: Path) -> None:
        async with opened(store_of("memory", tmp_path, Clock())) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 5)
            known = await memory.metadata()
            late = Request(PRUNE, about=(9, 1, known.version.mid, known.revision))
            await memory.set_metadata(retention=RetentionPolicy(max_messages=100))
            assert await runtime._core.submit(MemoryName("", "m"), late) == 1
            assert len(await log_of(memory)) == 10

    async def test_another_memory_of_the_name_is_left_alone(self, tmp_path: Path) -> None:
        async with opened(store_of("memory", tmp_path, Clock())) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 5)
            mid = (await memory.messages()).version.mid
            await memory.delete()
            await turns(memory, 1, 5)
            assert await runtime._core.submit(MemoryName("", "m"), Request(PRUNE, about=(9, 1, mid, 0))) == 1
            assert len(await log_of(memory)) == 10

    async def test_handles_take_none_and_what_is_no_policy_is_refused(self) -> None:
        async with open_runtime("memory:", history=RetentionPolicy(max_age=1)) as runtime:
            with pytest.raises(InvalidArgumentError, match="set_metadata"):
                runtime.memory("m", history=RetentionPolicy(max_age=1))  # type: ignore[arg-type]
            await runtime.memory("m").add(user("1"))
        for wrong in ({}, {"max_age": -1}, {"max_age": "x"}, {"max_messages": 0}, {"max_messages": 1.5}):
            with pytest.raises(InvalidArgumentError):
                RetentionPolicy(**wrong)
        with pytest.raises(InvalidArgumentError):
            open_runtime("memory:", history="for ever")  # type: ignore[arg-type]


class Counting(InMemoryStore):
    """Notes what each commit did, in order: how many entries it pruned, and whether it brought some."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[int, bool]] = []
        self.read: list[int] = []

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        rows = [self._rows.get(slice_.name) for slice_ in slices]
        before = [row.pruned if row else 0 for row in rows]
        outcomes = super().commit(slices, receipt_ttl=receipt_ttl)
        for slice_, row, pruned, outcome in zip(slices, rows, before, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self.notes.append((row.pruned - pruned if row else 0, bool(slice_.entries)))
        return outcomes

    def entries(self, mid: int, **page: Any) -> Any:
        found = super().entries(mid, **page)
        self.read.append(len(found))
        return found


class TestSteps:
    async def test_a_commit_prunes_so_many_at_most_and_others_commit_between(self) -> None:
        store = Counting()
        with patch.object(retention, "_STEP", 10):
            async with opened(FaultStore(store, inline=False), history=RetentionPolicy(max_messages=20)) as runtime:
                memory, others = runtime.memory("m"), runtime.memory("others")
                await turns(memory, 1, 100)
                store.notes.clear()
                store.read.clear()
                done = anyio.Event()

                async def write() -> None:
                    while not done.is_set():
                        await others.add(user("1"))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(write)
                    await sweep(runtime)
                    done.set()
                assert max(store.read) <= 16
                assert await log_of(memory) == list(range(181, 201))
        steps = [place for place, (pruned, _) in enumerate(store.notes) if pruned]
        assert [store.notes[place][0] for place in steps if store.notes[place][0] > 1] == [10] * 18
        between = [later - earlier - 1 for earlier, later in pairwise(steps)]
        assert sum(gap > 0 for gap in between) >= len(between) // 2, between

    async def test_memories_at_rest_are_not_loaded_and_not_committed_to_again_and_again(
        self, kind: str, tmp_path: Path
    ) -> None:
        clock = Clock()
        store = FaultStore(store_of(kind, tmp_path, clock))
        async with opened(store, history=RetentionPolicy(max_age=1, max_messages=50)) as runtime:
            for name in ("turn", "system", "long", "bare", "compacted"):
                memory = runtime.memory(name)
                if name == "system":
                    await memory.add(system("s"))
                if name == "bare":
                    await memory.add(system("s"), user("1"))
                    await memory.add(assistant("2"))
                    continue
                await turns(memory, 1, 3 if name != "turn" else 1)
                if name == "long":
                    for number in range(30):
                        await memory.add(call(f"{number}"))
                        await memory.add(result(f"{number}"))
                if name == "compacted":
                    await memory.compact(lambda messages, summary: "sum", keep=TurnWindow(max_turns=1))
            clock.now += 100
            await sweep(runtime)
            await sweep(runtime)
            shown = {name: await both(runtime, runtime.memory(name)) for name in await listed(runtime)}
            for name in await listed(runtime):
                unload(runtime, name)
            before = store.calls
            for _ in range(3):
                clock.now += 100
                await sweep(runtime)
            assert {call: store.calls[call] - before[call] for call in ("commit", "load")} == {"commit": 0, "load": 0}
            assert {name: await both(runtime, runtime.memory(name)) for name in shown} == shown

    async def test_what_was_not_changed_is_not_counted_again(self) -> None:
        clock = Clock()
        store = FaultStore(InMemoryStore(clock=clock))
        async with opened(store, history=RetentionPolicy(max_messages=50)) as runtime:
            for number in range(10):
                await runtime.memory(f"{number}").add(user("1"))
            clock.now += 1_000
            await sweep(runtime)
            await runtime.memory("3").add(user("2"))
            before = store.calls["entries"]
            await sweep(runtime)
            assert store.calls["entries"] - before == 2  # where it begins, and its messages

    async def test_what_could_not_be_pruned_is_looked_at_again_though_nothing_changed(self) -> None:
        clock = Clock()
        store = FaultStore(InMemoryStore(clock=clock))
        async with opened(store, history=RetentionPolicy(max_messages=2)) as runtime:
            await turns(runtime.memory("m"), 1, 5)
            clock.now += 1_000
            store.fail_before(None)
            await sweep(runtime)
            store.heal()
            clock.now += 1_000
            await sweep(runtime)
            assert await log_of(runtime.memory("m")) == [9, 10]

    @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS, indirect=True)
    async def test_a_memory_that_a_sweep_did_not_wait_for_is_looked_at_by_the_next(self) -> None:
        clock = Clock()
        async with opened(InMemoryStore(clock=clock), history=RetentionPolicy(max_messages=2)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 5)
            clock.now += 1_000
            async with memory.turn():
                await runtime._core.keeper.sweep()
            clock.now += 1_000
            await runtime._core.keeper.sweep()
            assert await log_of(memory) == [9, 10]

    async def test_what_was_under_way_while_a_sweep_looked_is_counted_by_the_next(self) -> None:
        clock = Clock(2_000)
        async with opened(InMemoryStore(clock=clock), history=RetentionPolicy(max_messages=2)) as runtime:
            memory = runtime.memory("m")
            await sweep(runtime)
            clock.now = 1_990  # a commit had asked for the time before, and is seen only now
            await turns(memory, 1, 5)
            clock.now = 2_100
            await sweep(runtime)
            assert await log_of(memory) == [9, 10]

    async def test_of_most_memories_at_rest_nothing_has_to_be_remembered(self) -> None:
        clock = Clock()
        store = FaultStore(InMemoryStore(clock=clock))
        with patch.object(retention, "_REMEMBERED", 0):
            async with opened(store, history=RetentionPolicy(max_age=1)) as runtime:
                for name in ("a", "b", "c", "d"):
                    if name in "ab":
                        await runtime.memory(name).add(system("s"))
                    await turns(runtime.memory(name), 1, 1)
                for _ in range(2):
                    clock.now += 100
                    await sweep(runtime)
                for name in ("a", "b", "c", "d"):
                    unload(runtime, name)
                before = store.calls
                await sweep(runtime)
                assert (store.calls["load"], store.calls["commit"]) == (before["load"], before["commit"])

    @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS, indirect=True)
    async def test_open_turns_are_waited_for_but_hold_up_a_sweep_only_so_long(self) -> None:
        clock = Clock()
        store = InMemoryStore(clock=clock)
        async with opened(store, history=RetentionPolicy(max_messages=2)) as runtime:
            names = [f"{number:02}" for number in range(20)]
            for name in names:
                await turns(runtime.memory(name), 1, 3)
            async with anyio.create_task_group() as tasks:
                leave = anyio.Event()

                async def stay(name: str) -> None:
                    async with runtime.memory(name).turn(max_duration=1e6) as turn:
                        await leave.wait()
                        await turn.add(user("q4"))

                for name in names[:-1]:
                    tasks.start_soon(stay, name)
                await anyio.wait_all_tasks_blocked()
                began = anyio.current_time()
                await runtime._core.keeper.sweep()
                assert anyio.current_time() - began < retention._PATIENCE + 20 * retention._IMPATIENT + 1
                assert await log_of(runtime.memory(names[-1])) == [5, 6]
                clock.now += 1_000
                sweeping = Call(tasks, runtime._core.keeper.sweep)
                await anyio.sleep(1)
                leave.set()
                await sweeping.result()
            await sweep(runtime)
            for name in names[:-1]:
                assert [entry.op for entry in (await runtime.memory(name).history()).entries] == ["add", "add"]
                assert await both(runtime, runtime.memory(name)) == ["a3", "q4"]


class TestBesideOthers:
    async def test_200_writers_lose_nothing_and_nothing_is_reordered(self, kind: str, tmp_path: Path) -> None:
        with patch.object(retention, "_STEP", 7):
            async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=25)) as runtime:
                memory = runtime.memory("m")
                seen: dict[int, str] = {}
                done = anyio.Event()

                async def write(writer: int) -> None:
                    for number in range(4):
                        text = f"{writer}.{number}"
                        receipt = await memory.add(user(text), idempotency_key=text)
                        assert receipt.version.n not in seen
                        seen[receipt.version.n] = text

                async def keep() -> None:
                    while not done.is_set():
                        await sweep(runtime)
                        await anyio.lowlevel.checkpoint()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(keep)
                    async with anyio.create_task_group() as writers:
                        for writer in range(200):
                            writers.start_soon(write, writer)
                    done.set()
                assert sorted(seen) == list(range(1, 801))
                for writer in (0, 99, 199):  # each one's own order
                    mine = [n for n in sorted(seen) if seen[n].startswith(f"{writer}.")]
                    assert [seen[n] for n in mine] == [f"{writer}.{number}" for number in range(4)]
                await sweep(runtime)
                assert await log_of(memory) == list(range(776, 801))
                assert await both(runtime, memory) == [seen[n] for n in range(776, 801)]
                assert runtime._core.keeper.pruned >= 1

    async def test_two_runtimes_on_one_file_both_prune_and_both_see_the_same(self, tmp_path: Path) -> None:
        policy = RetentionPolicy(max_messages=10)
        stores = [SQLiteStore(tmp_path / "chats.db", shared=True) for _ in range(2)]
        with patch.object(retention, "_STEP", 5):
            async with opened(stores[0], history=policy) as one, opened(stores[1], history=policy) as other:
                memories = one.memory("m"), other.memory("m")

                async def write(memory: ChatMemory) -> None:
                    for number in range(40):
                        await memory.add(user(f"{number}"))

                async def keep(runtime: Runtime) -> None:
                    for _ in range(8):
                        await sweep(runtime)

                async with anyio.create_task_group() as tasks:
                    for runtime, memory in zip((one, other), memories, strict=True):
                        tasks.start_soon(write, memory)
                        tasks.start_soon(keep, runtime)
                held = await memories[0].messages(), await memories[1].messages()
                assert held[0] == held[1]
                await sweep(one)
                await sweep(other)
                assert [await log_of(memory) for memory in memories] == [list(range(71, 81))] * 2
                assert await texts(memories[0]) == await texts(memories[1])
                assert len(await texts(memories[1])) == 10
                assert await both(one, memories[0]) == await both(other, memories[1])

    @pytest.mark.parametrize("change", ["add", "turn", "undo", "compact", "prune", "set"])
    async def test_a_runtime_that_does_not_know_of_a_pruning_finds_out_when_it_writes(
        self, tmp_path: Path, change: str
    ) -> None:
        stores = [SQLiteStore(tmp_path / "chats.db", shared=True) for _ in range(2)]
        async with opened(stores[0]) as one, opened(stores[1], consistency="local") as stale:
            memory, held = one.memory("m"), stale.memory("m")
            await turns(memory, 1, 5)
            assert len(await texts(held)) == 10
            mid = (await held.messages()).version.mid
            assert await one._core.submit(MemoryName("", "m"), Request(PRUNE, about=(7, 1, mid, 0))) == 7
            assert len(await texts(held)) == 10, "it does not know yet"
            if change in ("add", "set"):
                await getattr(held, change)(user("q6"))
            elif change == "turn":
                async with held.turn() as turn:
                    await turn.add(user("q6"))
            elif change == "undo":
                with pytest.raises(ConflictError):
                    await held.undo()
                await held.undo()
            elif change == "compact":
                with pytest.raises(ConflictError):
                    await held.compact(lambda messages, summary: "sum", keep=TurnWindow(max_turns=1))
            else:
                with pytest.raises(ConflictError):
                    await stale._core.submit(MemoryName("", "m"), Request(PRUNE, about=(5, 1, mid, 0)))
            wanted = {"set": ["q6"], "undo": ["q4", "a4"], "compact": ["q4", "a4", "q5", "a5"]}
            wanted["prune"] = wanted["compact"]
            for runtime, its in ((one, memory), (stale, held)):
                assert await both(runtime, its) == wanted.get(change, ["q4", "a4", "q5", "a5", "q6"])
            assert (await log_of(memory))[0] == 7

    async def test_a_summary_of_what_was_pruned_meanwhile_is_given_up_not_misplaced(
        self, kind: str, tmp_path: Path
    ) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_age=1)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 4)

            async def summarise(messages: Any, summary: Any) -> str:
                clock.now += 10
                await sweep(runtime)
                return "sum"

            with pytest.raises(ConflictError):
                await memory.compact(summarise, keep=TurnWindow(max_turns=1))
            assert await both(runtime, memory) == ["q4", "a4"]

    async def test_a_turn_sees_what_it_saw(self, kind: str, tmp_path: Path) -> None:
        clock = Clock()
        async with opened(store_of(kind, tmp_path, clock), history=RetentionPolicy(max_age=1)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 4)
            async with anyio.create_task_group() as tasks:
                async with memory.turn() as turn:
                    clock.now += 10
                    sweeping = Call(tasks, runtime._core.keeper.sweep)
                    await turn.add(user("q5"))
                    assert (await texts(turn))[:2] == ["q1", "a1"]
                await sweeping.result()
            assert (await texts(memory))[-1] == "q5"


class TestFailures:
    @pytest.mark.parametrize("call", ["names", "entries", "commit"])
    async def test_a_store_out_of_reach_is_left_alone_until_the_next_sweep(self, call: Any) -> None:
        store = FaultStore(InMemoryStore())
        async with opened(store, history=RetentionPolicy(max_messages=2)) as runtime:
            for name in ("a", "b", "c"):
                await turns(runtime.memory(name), 1, 3)
            store.fail_before(None, on=call)
            before = store.calls
            await sweep(runtime)
            assert store.calls[call] - before[call] <= 1
            store.heal()
            await sweep(runtime)
            for name in ("a", "b", "c"):
                assert await log_of(runtime.memory(name)) == [5, 6]

    async def test_a_lost_reply_loses_nothing(self, kind: str, tmp_path: Path) -> None:
        store = FaultStore(store_of(kind, tmp_path, Clock()))
        async with opened(store, history=RetentionPolicy(max_messages=4)) as runtime:
            memory = runtime.memory("m")
            await turns(memory, 1, 5)
            store.fail_after()
            await sweep(runtime)
            await sweep(runtime)
            assert await log_of(memory) == [7, 8, 9, 10]
            assert await both(runtime, memory) == ["q4", "a4", "q5", "a5"]

    async def test_one_corrupt_memory_keeps_no_other_from_being_pruned(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "chats.db")
        async with opened(store, history=RetentionPolicy(max_messages=2)) as runtime:
            for name in ("a", "b", "c"):
                await turns(runtime.memory(name), 1, 3)
                unload(runtime, name)
            store._writing().execute("UPDATE entry SET payload = x'7b' WHERE mid = 2")
            await sweep(runtime)
            assert await log_of(runtime.memory("a")) == await log_of(runtime.memory("c")) == [5, 6]

    async def test_closing_in_mid_sweep_is_quiet_and_leaves_whole_steps(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = RetentionPolicy(max_messages=4)
        store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
        with patch.object(retention, "_STEP", 4):
            async with anyio.create_task_group() as tasks:
                async with opened(store, history=policy) as runtime:
                    memory = runtime.memory("m")
                    await turns(memory, 1, 50)
                    stall = store.stall()
                    sweeping = Call(tasks, runtime._core.keeper.sweep)
                    with anyio.fail_after(BOUND):
                        assert await to_thread.run_sync(stall.entered.wait, BOUND)
                    tasks.start_soon(to_thread.run_sync, stall.release)
                assert isinstance(await sweeping.result(), RuntimeClosedError)
        assert not [record for record in caplog.records if record.name == "turnkeeper"]
        async with opened(SQLiteStore(tmp_path / "chats.db"), history=policy) as runtime:
            memory = runtime.memory("m")
            assert (await log_of(memory))[-1] == 100
            await sweep(runtime)
            assert await both(runtime, memory) == ["q49", "a49", "q50", "a50"]


class TestWhatIsLeftBeforeTheCut:
    async def test_a_system_message_kept_right_before_the_cut_and_replaced_since_is_no_damage(
        self, kind: str, tmp_path: Path
    ) -> None:
        async with opened(store_of(kind, tmp_path, Clock()), history=RetentionPolicy(max_messages=2)) as runtime:
            memory = runtime.memory("m")
            for said in (user("1"), {"role": "system", "content": "A"}, user("2"), user("3")):
                await memory.add(said)
            await sweep(runtime)
            await memory.add({"role": "system", "content": "B"})
            assert unload(runtime, "m")
            assert await texts(memory) == ["2", "3", "B"]

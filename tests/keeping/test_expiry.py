"""Memories that expire: by the store's clock, never half, and never against whoever writes first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from keeping.tools import BOUND, KINDS, Clock, listed, opened, store_of, sweep
from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import InvalidArgumentError, RetentionPolicy, Version, open_runtime
from turnkeeper.log import Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, texts, user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_memory_that_is_not_changed_for_so_long_is_deleted(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=timedelta(seconds=10)) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        assert (await memory.metadata()).expires_at == 1_010_000_000
        clock.now += 9.9
        await sweep(runtime)
        assert await texts(memory) == ["1"]
        clock.now += 0.1
        await sweep(runtime)
        assert await listed(runtime) == []
        assert (await memory.messages()).version == Version(0, 0)
        assert runtime._core.keeper.expired == 1
        await sweep(runtime)
        assert runtime._core.keeper.expired == 1


@pytest.mark.parametrize("change", ["add", "set", "clear", "undo", "turn", "metadata"])
async def test_each_change_renews_it(kind: str, tmp_path: Path, change: str) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        clock.now += 10  # over, but nobody has looked yet
        if change == "turn":
            async with memory.turn() as turn:
                await turn.add(user("2"))
        elif change == "metadata":
            await memory.set_metadata(title="t")
        elif change == "clear":
            await memory.clear()
        elif change == "undo":
            await memory.undo()
        else:
            await getattr(memory, change)(user("2"))
        await sweep(runtime)
        assert await listed(runtime) == ["m"]
        for reloaded in (False, True):
            if reloaded:
                unload(runtime, "m")
            assert (await memory.metadata()).expires_at == 1_020_000_000
        clock.now += 10
        await sweep(runtime)
        assert await listed(runtime) == []


async def test_reads_prunes_and_repeated_requests_do_not_renew_it(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"), idempotency_key="k")
        clock.now += 5
        await memory.messages()
        await memory.metadata()
        await memory.add(user("1"), idempotency_key="k")
        await memory.add()
        assert (await memory.metadata()).expires_at == 1_010_000_000


async def test_a_memory_has_its_own_time_and_gives_it_up(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        forever, short, same, late = [runtime.memory(name) for name in ("forever", "short", "same", "late")]
        for memory in (forever, short, same):
            await memory.add(user("1"))
        assert (await forever.set_metadata(expires_after=0)).expires_at == 0
        assert (await short.set_metadata(expires_after=2)).expires_at == 1_002_000_000
        assert (await same.set_metadata(expires_after=2)).expires_at == 1_002_000_000
        assert (await same.set_metadata(expires_after=None)).expires_at == 1_010_000_000
        assert (await late.set_metadata(expires_after=3)).expires_at == 1_003_000_000
        for name in ("forever", "short", "same", "late"):
            unload(runtime, name)
        await short.add(user("2"))
        clock.now += 2
        await sweep(runtime)
        assert await listed(runtime) == ["forever", "late", "same"]
        clock.now += 1
        await sweep(runtime)
        assert await listed(runtime) == ["forever", "same"]
        clock.now += 1_000_000
        await sweep(runtime)
        assert await listed(runtime) == ["forever"]


async def test_without_the_option_memories_with_a_time_of_their_own_expire(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock)) as runtime:
        await runtime.memory("a").add(user("1"))
        await runtime.memory("b").set_metadata(expires_after=5)
        clock.now += 1e6
        await sweep(runtime)
        assert await listed(runtime) == ["a"]


async def test_receipts_replay_afterwards_and_make_nothing(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        memory = runtime.memory("m")
        receipt = await memory.add(user("1"), idempotency_key="k")
        clock.now += 10
        await sweep(runtime)
        assert await memory.add(user("1"), idempotency_key="k") == receipt
        assert await listed(runtime) == []
        new = await memory.add(user("2"))
        assert new.version.n == 1
        assert new.version.mid != receipt.version.mid
        assert await texts(memory) == ["2"]


async def test_an_open_turn_is_waited_for_and_its_commit_wins(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        async with anyio.create_task_group() as tasks:
            async with memory.turn() as turn:
                clock.now += 10
                sweeping = Call(tasks, runtime._core.keeper.sweep)
                await turn.add(user("2"))
                assert not sweeping.done
            await sweeping.result()
        assert await texts(memory) == ["1", "2"]


class Racing(InMemoryStore):
    """Lets another writer in before the deletion is committed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.deletions = 0
        self.before: Any = None

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        if slices[0].delete:
            self.deletions += 1
            if self.before is not None:
                self.before()
        return super().commit(slices, receipt_ttl=receipt_ttl)


async def test_whoever_writes_first_wins_and_the_memorys_other_callers_wait_for_one_attempt_only() -> None:
    clock = Clock()
    store = Racing(clock)
    async with opened(store, expires_after=10) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        clock.now += 10

        def put_off() -> None:
            # As another process would: an entry that this runtime does not know of.
            row = store._rows[MemoryName("", "m")]
            row.expires_at += 1

        store.before = put_off
        await sweep(runtime)
        assert store.deletions == 1
        assert await texts(memory) == ["1"]
        assert runtime._core.keeper.expired == 0


async def test_a_racing_add_is_before_it_or_makes_a_new_memory_and_never_half(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of(kind, tmp_path, clock), expires_after=10) as runtime:
        memory = runtime.memory("m")
        for attempt in range(30):
            old = await memory.add(user("old"), user(f"{attempt}"))
            clock.now += 10
            async with anyio.create_task_group() as tasks:
                calls = [Call(tasks, memory.add, user("a"), user("b")) for _ in range(attempt % 3)]
                tasks.start_soon(sweep, runtime)
                calls += [Call(tasks, memory.add, user("a"), user("b")) for _ in range(2)]
            receipts = [await call.result() for call in calls]
            found = await memory.messages()
            assert {receipt.version.mid for receipt in receipts} <= {old.version.mid, found.version.mid}
            mine = [receipt for receipt in receipts if receipt.version.mid == found.version.mid]
            said = [message.text for message in found]
            assert said[-2 * len(mine) :] == ["a", "b"] * len(mine)
            if found.version.mid != old.version.mid:
                assert said == ["a", "b"] * len(mine)
            await memory.delete()


async def test_two_runtimes_on_one_file_both_sweep_and_each_memory_goes_once(tmp_path: Path) -> None:
    clock = Clock()
    stores = [SQLiteStore(tmp_path / "chats.db", shared=True, clock=clock) for _ in range(2)]
    async with opened(stores[0], expires_after=10) as one, opened(stores[1], expires_after=10) as other:
        for number in range(40):
            await (one, other)[number % 2].memory(f"{number:02}").add(user("1"))
        clock.now += 5
        for number in range(0, 40, 4):
            await other.memory(f"{number:02}").add(user("2"))
        clock.now += 5
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sweep, one)
            tasks.start_soon(sweep, other)
        await sweep(one)
        assert await listed(one) == await listed(other) == [f"{number:02}" for number in range(0, 40, 4)]
        assert one._core.keeper.expired + other._core.keeper.expired == 30


async def test_more_than_a_page_of_them(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(store_of("memory", tmp_path, clock), expires_after=10) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(450):
                tasks.start_soon(runtime.memory(f"{number}").add, user("1"))
        clock.now += 10
        await sweep(runtime)
        assert await listed(runtime) == []
        assert runtime._core.keeper.expired == 450


class TestAStoreThatFails:
    async def test_it_is_asked_once_a_sweep_and_the_next_one_does_it(self, tmp_path: Path) -> None:
        clock = Clock()
        store = FaultStore(store_of("memory", tmp_path, clock))
        async with opened(store, expires_after=10) as runtime:
            for number in range(5):
                await runtime.memory(f"{number}").add(user("1"))
            clock.now += 10
            for call in ("expired", "commit"):
                store.fail_before(None, on=call)
                before = store.calls
                await sweep(runtime)
                assert store.calls[call] - before[call] == 1
                store.heal()
            assert await listed(runtime) == ["0", "1", "2", "3", "4"]
            store.fail_after()  # the reply is lost
            await sweep(runtime)
            assert await listed(runtime) == []

    async def test_closing_in_mid_sweep_is_quiet(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        store = FaultStore(SQLiteStore(tmp_path / "chats.db", clock=clock))
        async with open_runtime(store, expires_after=10, sweep_interval=0.05) as runtime:
            for number in range(20):
                await runtime.memory(f"{number:02}").add(user("1"))
            stall = store.stall()
            clock.now += 10
            with anyio.fail_after(BOUND):
                assert await to_thread.run_sync(stall.entered.wait, BOUND)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, stall.release)
        assert not [record for record in caplog.records if record.name == "turnkeeper"]
        async with opened(SQLiteStore(tmp_path / "chats.db", clock=clock), expires_after=10) as runtime:
            await sweep(runtime)
            assert await listed(runtime) == []


@pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS, indirect=True)
class TestOnVirtualTime:
    async def test_the_keeper_comes_by_by_itself(self) -> None:
        store = InMemoryStore(clock=lambda: 1_000 + anyio.current_time())
        async with open_runtime(store, expires_after=3_600) as runtime:
            await runtime.memory("m").add(user("1"))
            await anyio.sleep(3_599)
            assert await listed(runtime) == ["m"]
            await anyio.sleep(62)
            assert await listed(runtime) == []

    async def test_a_runtime_whose_memories_may_expire_has_one_timer_and_asks_one_question(self) -> None:
        store = FaultStore(InMemoryStore(clock=anyio.current_time))
        async with open_runtime(store, expires_after=86_400) as runtime:
            await runtime.memory("m").add(user("1"))
            await anyio.sleep(90)
            before = store.calls
            await anyio.sleep(600)
            assert {call: n - before[call] for call, n in store.calls.items() if n > before[call]} == {"expired": 10}

    async def test_a_runtime_without_anything_to_keep_looks_once_and_asks_nothing_more_until_there_is(self) -> None:
        store = FaultStore(InMemoryStore(clock=lambda: 1_000 + anyio.current_time()))
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            await anyio.sleep(90)
            before = store.calls
            await anyio.sleep(6_000)
            assert store.calls == before
            await memory.set_metadata(expires_after=600)
            await anyio.sleep(599)
            assert await listed(runtime) == ["m"]
            await anyio.sleep(62)
            assert await listed(runtime) == []

    async def test_what_an_earlier_runtime_gave_a_time_of_its_own_is_found_at_the_first_look(self) -> None:
        store = InMemoryStore(clock=lambda: 1_000 + anyio.current_time())
        async with open_runtime(store) as runtime:
            await runtime.memory("m").set_metadata(expires_after=600)
        async with open_runtime(store) as runtime:
            await anyio.sleep(599)
            assert await listed(runtime) == ["m"]
            await anyio.sleep(62)
            assert await listed(runtime) == []

    async def test_an_interval_of_nothing_is_no_busy_loop(self) -> None:
        store = FaultStore(InMemoryStore(clock=anyio.current_time))
        store.fail_before(None, on="expired")
        async with open_runtime(store, sweep_interval=0, expires_after=3_600):
            await anyio.sleep(10)
        assert 100 <= store.calls["expired"] <= 201


def coroutines_of(task: asyncio.Task[Any]) -> list[str]:
    """Return the names of the coroutines that a task is in, the outermost first."""
    names, coroutine = [], task.get_coro()
    while coroutine is not None and hasattr(coroutine, "cr_await"):
        names.append(str(getattr(coroutine, "__qualname__", "")))
        coroutine = coroutine.cr_await
    return names


async def test_a_keeper_that_is_cancelled_natively_goes_on(
    anyio_backend: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    if anyio_backend[0] != "asyncio":
        pytest.skip("trio has no native cancellation")
    clock = Clock()
    store = FaultStore(InMemoryStore(clock=clock), inline=False)
    async with open_runtime(store, expires_after=10, sweep_interval=0.05) as runtime:
        await runtime.memory("m").add(user("1"))
        with store.stall("expired") as stall:
            assert await to_thread.run_sync(stall.entered.wait, BOUND)
            (keeper,) = [task for task in asyncio.all_tasks() if "Keeper.sweep" in coroutines_of(task)]
            keeper.cancel()
            await anyio.wait_all_tasks_blocked()
        stall = store.stall("expired")
        clock.now += 10
        assert await to_thread.run_sync(stall.entered.wait, BOUND)
        stall.release()
        last = store.stall("expired")
        assert await to_thread.run_sync(last.entered.wait, BOUND)
        last.release()
        assert await listed(runtime) == []
    assert "it goes on" in caplog.text


async def test_a_duration_that_is_none_is_refused() -> None:
    for wrong in (-1, float("nan"), "1", True, timedelta(days=100_000)):
        with pytest.raises(InvalidArgumentError):
            open_runtime("memory:", expires_after=wrong)  # type: ignore[arg-type]


async def test_a_runtime_whose_store_knows_no_expiry_prunes_all_the_same() -> None:
    class Old(InMemoryStore):
        def expired(self, limit: int) -> Any:
            raise NotImplementedError

    async with opened(Old(), history=RetentionPolicy(max_messages=1)) as one:
        memory = one.memory("m")
        await memory.add(user("1"))
        await memory.add(user("2"))
        await sweep(one)
        assert await texts(memory) == ["2"]

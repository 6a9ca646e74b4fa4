"""Turns that last too long or are forgotten, and their leases: all on virtual time."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    Receipt,
    Runtime,
    Turn,
    TurnBusyError,
    TurnConflictError,
    TurnInterruptedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, passes, pending, start_outside, texts, user

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)]


async def opened(memory: ChatMemory, text: str = "new", **options: Any) -> float:
    """Say something in a turn; return when it was opened."""
    async with memory.turn(**options) as turn:
        now = anyio.current_time()
        await turn.add(user(text))
    return now


class TestMaxDuration:
    @pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "rollback"])
    async def test_a_turn_that_lasts_longer_is_over_when_others_want_in(self, on_busy: Any) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with pytest.raises(TurnInterruptedError) as caught:
                async with memory.turn(max_duration=60) as turn:
                    await turn.add(user("lost"))
                    await anyio.sleep(61)
                    await Call(group, opened, memory).result()
                    assert await texts(memory) == ["new"]
                    await turn.add(user("late"))
            assert caught.value.reason == "expired"
            with pytest.raises(TurnInterruptedError):
                await turn.messages()
            await opened(memory, on_busy, on_busy=on_busy)
            assert await texts(memory) == ["new", on_busy]

    async def test_who_waits_gets_in_at_that_moment(self) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")

            async def write() -> float:
                await memory.add(user("written"))
                return anyio.current_time()

            start = anyio.current_time()
            with pytest.raises(TurnInterruptedError):
                async with memory.turn(max_duration=60) as turn:
                    await turn.add(user("lost"))
                    writer, next_turn = Call(group, write), Call(group, opened, memory)
                    with anyio.move_on_after(1000):
                        await turn.interrupted()
                    assert anyio.current_time() - start == pytest.approx(60, abs=0.1)
            await passes()
            assert writer.outcome - start == pytest.approx(60, abs=0.1)
            assert next_turn.outcome - start == pytest.approx(60, abs=0.1)

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_with_nobody_waiting_it_is_over_at_its_deadline_too(self, commit: Any) -> None:
        async with open_runtime(linger=1, idle_timeout=5) as runtime:
            memory = runtime.memory("m")
            start = anyio.current_time()
            with pytest.raises(TurnInterruptedError) as caught:
                async with memory.turn(max_duration=60, commit=commit) as turn:
                    await turn.add(user("own"))
                    await anyio.sleep(59)
                    assert not unload(runtime, "m"), "pinned"
                    await turn.messages()
                    await turn.interrupted()
                    assert anyio.current_time() - start == pytest.approx(60, abs=0.1)
            assert caught.value.reason == "expired"
            assert caught.value.messages == ([user("own")] if commit == "turn" else [])
            assert await texts(memory) == ([] if commit == "turn" else ["own"])

    async def test_up_to_its_deadline_it_may_commit(self) -> None:
        async with open_runtime(linger=1, idle_timeout=5) as runtime:
            memory = runtime.memory("m")
            async with memory.turn(max_duration=60) as turn:
                await turn.add(user("own"))
                await anyio.sleep(59.9)
            assert await texts(memory) == ["own"]

    async def test_by_default_it_is_a_quarter_of_an_hour(self) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            start = anyio.current_time()
            forgotten = memory.turn()
            await forgotten.__aenter__()
            waiting = Call(group, opened, memory)
            await anyio.sleep(899)
            assert not waiting.done
            await anyio.sleep(2)
            assert waiting.outcome - start == pytest.approx(900, abs=1)

    @pytest.mark.parametrize("keep", [False, True])
    async def test_a_forgotten_turn_expires(self, keep: bool) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            forgotten: Turn | None = memory.turn(max_duration=30)
            assert forgotten is not None
            await Call(group, forgotten.__aenter__).result()
            await forgotten.add(user("lost"))
            if not keep:
                forgotten = None
                gc.collect()
            waiting = Call(group, opened, memory)
            await anyio.sleep(29)
            assert not waiting.done
            await anyio.sleep(2)
            assert waiting.done
            assert await texts(memory) == ["new"]

    async def test_a_forgotten_turn_pins_its_memory_no_longer_than_it_lasts(self) -> None:
        async with open_runtime(linger=1, idle_timeout=10) as runtime:
            await runtime.memory("m").turn(max_duration=30).__aenter__()
            await anyio.sleep(25)
            assert runtime.stats().running == 1
            await anyio.sleep(60)
            assert (runtime.stats().running, runtime.stats().resident) == (0, 0)

    @pytest.mark.parametrize("waited_for", [False, True])
    async def test_run_turn_is_cancelled_when_it_expires(self, waited_for: bool) -> None:
        async with open_runtime() as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")

            async def think(turn: Turn) -> None:
                await turn.add(user("lost"))
                try:
                    await anyio.sleep(10_000)
                finally:
                    cancelled.append(anyio.current_time())

            cancelled: list[float] = []
            start = anyio.current_time()
            running = Call(group, lambda: memory.run_turn(think, max_duration=20))
            await pending(runtime, 0)
            await passes()
            if waited_for:
                await memory.add(user("after"))
            await anyio.sleep(30)
            assert cancelled == [pytest.approx(start + 20, abs=0.1)]
            assert isinstance(running.outcome, TurnInterruptedError)
            assert running.outcome.reason == "expired"


class Inline(SQLiteStore):
    """A file called in the loop, because a virtual clock can't wait for threads."""

    inline: ClassVar[bool] = True


class Hosts:
    """Runtimes on one file, each as in a process of its own, on one virtual clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = anyio.current_time()

    @asynccontextmanager
    async def host(self, **options: Any) -> AsyncIterator[tuple[Runtime, FaultStore]]:
        clock: Callable[[], float] = lambda: 1e9 + anyio.current_time()  # noqa: E731
        store = FaultStore(Inline(self.path, shared=True, clock=clock))
        async with open_runtime(store, turn_lease=30, **options) as runtime:
            yield runtime, store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


class TestLeases:
    async def test_a_turn_keeps_other_hosts_out_and_reads_do_not_wait(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            await mine.add(user("before"))
            async with mine.turn() as turn:
                await turn.add(user("own"))
                start = anyio.current_time()
                waiting = [
                    Call(group, other.add, user("written")),
                    Call(group, opened, other),
                ]
                assert isinstance(await Call(group, lambda: opened(other, on_busy="reject")).result(), TurnBusyError)
                await anyio.sleep(3)
                assert await texts(other) == ["before"]
                assert anyio.current_time() - start == pytest.approx(3), "reading took no time"
                assert not any(each.done for each in waiting)
            for each in waiting:
                await each.result()
            assert anyio.current_time() - start < 5, "given back, not run out"
            stored = await texts(mine)
            assert stored[:2] == ["before", "own"]
            assert sorted(stored[2:]) == ["new", "written"]

    async def test_it_is_renewed_while_the_turn_lives(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            async with mine.turn() as turn:
                await turn.add(user("own"))
                waiting = Call(group, other.add, user("written"))
                await anyio.sleep(300)
                assert not waiting.done
            assert isinstance(await waiting.result(), Receipt)
            assert await texts(mine) == ["own", "written"]

    @pytest.mark.parametrize("how", ["commit", "nothing", "error", "cancel"])
    async def test_however_the_turn_is_left_it_is_given_back(self, path: Path, how: str) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _):
            await here.memory("m").add(user("before"))
            with anyio.CancelScope() as scope:
                try:
                    async with here.memory("m").turn() as turn:
                        if how == "commit":
                            await turn.add(user("own"))
                        elif how == "error":
                            raise ZeroDivisionError
                        elif how == "cancel":
                            scope.cancel()
                            await anyio.sleep(1)
                except ZeroDivisionError:
                    pass
            start = anyio.current_time()
            await opened(there.memory("m"))
            await there.memory("m").add(user("written"))
            assert anyio.current_time() - start < 1

    async def test_it_is_given_back_though_the_memory_leaves_ram(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host(linger=0, max_resident=1) as (here, _), hosts.host() as (there, _):
            await here.memory("m").add(user("before"))
            with pytest.raises(ZeroDivisionError):
                async with here.memory("m").turn():
                    raise ZeroDivisionError
            unload(here, "m")
            await here.memory("another").add(user("1"))
            start = anyio.current_time()
            await there.memory("m").add(user("written"))
            await here.memory("m").add(user("and here"))
            assert anyio.current_time() - start < 1

    async def test_it_is_given_back_when_the_runtime_closes(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (there, _):
            await there.memory("m").add(user("before"))
            async with hosts.host() as (here, _):
                with pytest.raises(ZeroDivisionError):
                    async with here.memory("m").turn():
                        raise ZeroDivisionError
            start = anyio.current_time()
            await there.memory("m").add(user("written"))
            assert anyio.current_time() - start < 1

    async def test_a_host_that_can_not_reach_the_store_loses_it_at_expiry(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, store), hosts.host() as (there, _):
            mine, other = here.memory("m"), there.memory("m")
            await mine.add(user("before"))
            turn = mine.turn()
            await turn.__aenter__()
            await turn.add(user("own"), {"role": "assistant", "content": "paid for"})
            store.fail_before(None)  # and on "settle" too, it is away
            store.fail_before(None, on="settle")
            start = anyio.current_time()
            await other.add(user("written"))
            waited = anyio.current_time() - start
            assert 20 <= waited <= 31
            store.heal()
            with pytest.raises((TurnConflictError, TurnInterruptedError)) as caught:
                await turn.__aexit__(None, None, None)
            if isinstance(caught.value, TurnConflictError):
                assert [message["content"] for message in caught.value.messages] == ["own", "paid for"]
            await mine.add(user("after"))
            assert await texts(other) == ["before", "written", "after"]

    async def test_a_store_that_comes_back_in_time_loses_nothing(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, store), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            async with mine.turn() as turn:
                await turn.add(user("own"))
                writing = Call(group, other.add, user("written"))
                store.fail_before(1)  # the first renewal
                await anyio.sleep(100)
                assert not writing.done
            await writing.result()
            assert await texts(mine) == ["own", "written"]

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_another_host_takes_its_place(self, path: Path, on_busy: Any, commit: Any) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            await mine.add(user("before"))
            turn = mine.turn(commit=commit)
            await Call(group, turn.__aenter__).result()
            await turn.add(user("holder"))
            start = anyio.current_time()
            await opened(other, on_busy=on_busy)
            assert anyio.current_time() - start < 1, "at once"
            stays = ["holder"] if (commit, on_busy) == ("each", "interrupt") else []
            assert await texts(mine) == await texts(other) == ["before", *stays, "new"]
            with pytest.raises((TurnConflictError, TurnInterruptedError)):
                await turn.add(user("late"))
                await turn.__aexit__(None, None, None)
            await turn.__aexit__(ValueError, None, None)
            assert await texts(mine) == ["before", *stays, "new"]
            await mine.add(user("after"))
            assert await texts(other) == ["before", *stays, "new", "after"]

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_taken_over_by_one_that_committed_nothing_it_is_over_all_the_same(
        self, path: Path, on_busy: Any
    ) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            await mine.add(user("before"))
            turn = mine.turn()
            await Call(group, turn.__aenter__).result()
            await turn.add(user("holder"))
            async with other.turn(on_busy=on_busy):
                pass
            with pytest.raises((TurnConflictError, TurnInterruptedError)):
                await turn.__aexit__(None, None, None)
            await turn.__aexit__(ValueError, None, None)
            assert await texts(other) == ["before"]

    async def test_whoever_lost_it_is_told_at_the_next_renewal(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            await mine.add(user("before"))

            async def hold() -> str:
                with pytest.raises(TurnInterruptedError) as caught:
                    async with mine.turn() as turn:
                        with anyio.fail_after(11):
                            await turn.interrupted()
                return caught.value.reason

            holding = Call(group, hold)
            await pending(here, 0)
            await passes()
            await opened(other, on_busy="interrupt")
            await anyio.sleep(12)
            assert holding.outcome == "lost"

    async def test_a_memory_that_the_turn_would_have_made_is_not_made(self, path: Path) -> None:
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _):
            async with here.memory("m").turn():
                pass
            await anyio.sleep(1)
            assert (await there.memory("m").stats()).version.mid == 0
            assert not await there.memory("m").delete()
            await opened(here.memory("m"))
            assert await texts(there.memory("m")) == ["new"]

    async def test_who_came_first_goes_on_first_when_it_is_over(self, path: Path) -> None:
        """Writers of one host wait for a turn of another in the order in which they came, turns among them."""
        hosts = Hosts(path)
        async with hosts.host() as (here, _), hosts.host() as (there, _), anyio.create_task_group() as group:
            mine, other = here.memory("m"), there.memory("m")
            await other.messages()
            async with mine.turn() as turn:
                await turn.add(user("own"))

                async def both() -> None:
                    start_outside(group, other.add, user("first"))
                    await pending(there, 1)
                    start_outside(group, opened, other, "second")
                    await pending(there, 2)

                # While a read of theirs is under way both come, and are taken together.
                await both()
                await anyio.sleep(5)
            await anyio.sleep(5)
            assert await texts(mine) == ["own", "first", "second"]

    async def test_an_idle_host_does_not_spin(self, path: Path) -> None:
        """The outcome of a commit is unknown and the log can't be read: the lease is kept, or let go, in peace."""
        hosts = Hosts(path)
        async with hosts.host() as (here, store):
            memory = here.memory("m")
            await memory.add(user("before"))
            with pytest.raises(Exception, match="commit"):
                async with memory.turn(commit="each") as turn:
                    for call in ("commit", "settle", "load"):
                        store.fail_before(None, on=call)
                    await turn.add(user("?"))
            before = sum(store.calls.values())
            with anyio.fail_after(1000):
                await anyio.sleep(100)
            assert sum(store.calls.values()) - before < 50
            store.heal()
            await memory.add(user("after"))
            assert await texts(memory) == ["before", "after"]


async def test_a_store_that_is_not_shared_needs_no_lease() -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        async with memory.turn() as turn:
            await turn.add(user("own"))
            await anyio.sleep(100)
        assert store.calls["commit"] == 1

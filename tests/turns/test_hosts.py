"""What a turn leaves behind for other hosts, for those who retry, and for a store that comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from stores.building import Clock
from turnkeeper import (
    ChatMemory,
    OutcomeUnknownError,
    RuntimeClosedError,
    StoreUnavailableError,
    Turn,
    TurnAlreadyCommittedError,
    TurnConflictError,
    TurnEndedError,
    TurnInterruptedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore
from turns.tools import BOUND, Call, assistant, entered, passes, pending, texts, until, user

pytestmark = pytest.mark.anyio


async def say(memory: ChatMemory, text: str, **options: object) -> None:
    async with memory.turn(**options) as turn:  # type: ignore[arg-type]
        await turn.add(user(text))


def shared(directory: Path, clock: Clock | None = None) -> SQLiteStore:
    path = directory / "chats.db"
    return SQLiteStore(path, shared=True) if clock is None else SQLiteStore(path, shared=True, clock=clock)


async def opened(memory: ChatMemory, **options: Any) -> Turn:
    """Open a turn in a task of its own: this one stays outside of it."""
    turn = memory.turn(**options)
    async with anyio.create_task_group() as tasks:
        await Call(tasks, turn.__aenter__).result()
    return turn


@pytest.fixture(params=[False, True], ids=["new", "existing"])
def said_before(request: pytest.FixtureRequest) -> list[str]:
    """Return what the memory holds when the turn begins."""
    return ["before"] if request.param else []


class TestTheLeaseHasRunOut:
    """The host stood still for too long, and nobody has written meanwhile."""

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_a_late_commit_is_refused_and_gives_the_messages_back(
        self, tmp_path: Path, said_before: list[str], commit: Any
    ) -> None:
        clock = Clock()
        async with open_runtime(shared(tmp_path, clock), turn_lease=30) as runtime:
            memory = runtime.memory("m")
            for text in said_before:
                await memory.add(user(text))
            turn = await opened(memory, commit=commit)
            if commit == "turn":
                await turn.add(user("paid for"))
            clock.now += 30
            with pytest.raises(TurnConflictError) as caught:
                await (turn.add(user("paid for")) if commit == "each" else turn.__aexit__(None, None, None))
            assert caught.value.messages == [user("paid for")]
            await turn.__aexit__(ValueError, None, None)
            assert await texts(memory) == said_before
            with anyio.fail_after(BOUND):
                await memory.add(user("next"))
            assert await texts(memory) == [*said_before, "next"]

    async def test_what_it_committed_in_time_stays(self, tmp_path: Path) -> None:
        clock = Clock()
        async with open_runtime(shared(tmp_path, clock), turn_lease=30) as runtime:
            memory = runtime.memory("m")
            turn = await opened(memory, commit="each")
            await turn.add(user("in time"))
            clock.now += 30
            with pytest.raises(TurnConflictError):
                await turn.add(user("late"))
            await turn.__aexit__(ValueError, None, None)
            assert await texts(memory) == ["in time"]

    async def test_a_late_renewal_finds_that_it_is_lost(self, tmp_path: Path, said_before: list[str]) -> None:
        clock = Clock()
        async with open_runtime(shared(tmp_path, clock), turn_lease=0.03) as runtime:
            memory = runtime.memory("m")
            for text in said_before:
                await memory.add(user(text))
            turn = await opened(memory)
            await turn.add(user("lost"))
            clock.now += 30
            with anyio.fail_after(BOUND):
                await turn.interrupted()
            with pytest.raises(TurnInterruptedError) as caught:
                await turn.__aexit__(None, None, None)
            assert caught.value.reason == "lost"
            assert await texts(memory) == said_before

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_robbed_by_one_that_said_nothing_it_makes_no_memory(self, tmp_path: Path, on_busy: str) -> None:
        """The row was there for the lease alone, and went with the thief's."""
        async with open_runtime(shared(tmp_path)) as here, open_runtime(shared(tmp_path)) as there:
            turn = await opened(here.memory("m"))
            await turn.add(user("late"))
            async with there.memory("m").turn(on_busy=on_busy):  # type: ignore[arg-type]
                pass
            with anyio.fail_after(BOUND):
                while not await gone(there.memory("m")):
                    pass
            with pytest.raises((TurnConflictError, TurnInterruptedError)):
                await turn.__aexit__(None, None, None)
            assert await texts(here.memory("m")) == []


async def test_those_who_read_all_the_time_do_not_keep_a_turn_from_renewing_its_lease(tmp_path: Path) -> None:
    """Two, out of step: the read of one always comes while that of the other is under way."""
    store = FaultStore(shared(tmp_path))
    async with open_runtime(store, turn_lease=30) as runtime:
        memory, skipped = runtime.memory("m"), 0.0
        runtime._core._services.now = lambda: anyio.current_time() + skipped
        await memory.add(user("before"))
        turn = await opened(memory)
        await turn.add(user("own"))
        async with anyio.create_task_group() as readers:

            async def read() -> None:
                while True:
                    assert await texts(memory) == ["before"]

            with store.stall("load") as stall:
                for number in range(2):
                    readers.start_soon(read)
                    await entered(stall)
                    await pending(runtime, number + 1)
            for _ in range(3):
                before = store.calls["commit"]
                skipped += 10
                await until(lambda: store.calls["commit"] > before)  # noqa: B023 - called in here only
            readers.cancel_scope.cancel()
        await turn.__aexit__(None, None, None)
        assert await texts(memory) == ["before", "own"]


async def gone(memory: ChatMemory) -> bool:
    return (await memory.stats()).created_at == 0


class TestClosingWithATurnOpen:
    """Other hosts go on at once: an hour's lease is given back."""

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_it_gives_the_lease_back(self, tmp_path: Path, said_before: list[str], commit: Any) -> None:
        async with open_runtime(shared(tmp_path)) as there:
            for text in said_before:
                await there.memory("m").add(user(text))
            async with open_runtime(shared(tmp_path), turn_lease=3_600) as here:
                turn = await opened(here.memory("m"), commit=commit)
                await turn.add(user("own"))
            stays = ["own"] if commit == "each" else []
            with anyio.fail_after(BOUND):
                await say(there.memory("m"), "new")
            assert await texts(there.memory("m")) == [*said_before, *stays, "new"]
            with pytest.raises((RuntimeClosedError, TurnEndedError)):
                await turn.__aexit__(None, None, None)
            assert await texts(there.memory("m")) == [*said_before, *stays, "new"]

    async def test_who_waits_in_line_does_not_get_in_meanwhile(self, tmp_path: Path) -> None:
        got_in: list[str] = []

        async def wait(memory: ChatMemory) -> None:
            async with memory.turn():
                got_in.append("in")

        async with open_runtime(shared(tmp_path)) as there, anyio.create_task_group() as tasks:
            async with open_runtime(shared(tmp_path), turn_lease=3_600, close_timeout=0.05) as here:
                memory = here.memory("m")
                await opened(memory)
                waiting = [Call(tasks, wait, memory), Call(tasks, memory.add, user("no")), Call(tasks, wait, memory)]
                await pending(here, 3)
            for each in waiting:
                assert isinstance(await each.result(), RuntimeClosedError)
            with anyio.fail_after(BOUND):
                await there.memory("m").add(user("new"))
            assert await texts(there.memory("m")) == ["new"]
            assert got_in == []

    async def test_several_are_given_back_together(self, tmp_path: Path) -> None:
        here_store = FaultStore(shared(tmp_path))
        async with open_runtime(shared(tmp_path)) as there:
            async with open_runtime(here_store, turn_lease=3_600) as here:
                for number in range(5):
                    await opened(here.memory(str(number)))
                before = here_store.calls["commit"]
            assert here_store.calls["commit"] == before + 1
            with anyio.fail_after(BOUND):
                for number in range(5):
                    await there.memory(str(number)).add(user("new"))

    async def test_a_store_that_hangs_does_not_hold_it_and_gives_it_back_later(self, tmp_path: Path) -> None:
        store = FaultStore(shared(tmp_path))
        here = open_runtime(store, turn_lease=3_600, close_timeout=0.05)
        await here.__aenter__()
        await opened(here.memory("m"))
        with store.stall() as stall:
            start = anyio.current_time()
            await here.__aexit__(None, None, None)
            assert anyio.current_time() - start < BOUND
            assert stall.entered.is_set()
        async with open_runtime(shared(tmp_path)) as there:
            with anyio.fail_after(BOUND):
                await there.memory("m").add(user("new"))

    async def test_where_the_store_fails_it_runs_out(self, tmp_path: Path) -> None:
        clock = Clock()
        store = FaultStore(shared(tmp_path, clock))
        async with open_runtime(store, turn_lease=3_600) as here:
            await opened(here.memory("m"))
            store.fail_before(None)
        async with open_runtime(shared(tmp_path, clock)) as there, anyio.create_task_group() as tasks:
            waiting = Call(tasks, there.memory("m").add, user("new"))
            await pending(there, 1)
            clock.now += 3_600
            await waiting.result()
            assert await texts(there.memory("m")) == ["new"]


class TestTheLeaseOfUnknownOutcome:
    """The store took the lease, and could not say so."""

    @pytest.mark.parametrize("on_busy", ["enqueue", "interrupt"])
    async def test_it_is_given_back(self, tmp_path: Path, said_before: list[str], on_busy: str) -> None:
        here_store = FaultStore(shared(tmp_path))
        async with open_runtime(here_store, turn_lease=3_600) as here, open_runtime(shared(tmp_path)) as there:
            for text in said_before:
                await here.memory("m").add(user(text))
            here_store.fail_after()
            here_store.fail_before(4, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await say(here.memory("m"), "lost", on_busy=on_busy)
            with anyio.fail_after(BOUND):
                await there.memory("m").add(user("new"))
            await say(here.memory("m"), "on")
            assert await texts(there.memory("m")) == [*said_before, "new", "on"]

    async def test_who_waits_for_that_turn_goes_on(self, tmp_path: Path) -> None:
        here_store = FaultStore(shared(tmp_path))
        async with open_runtime(here_store, turn_lease=3_600) as here, anyio.create_task_group() as tasks:
            memory = here.memory("m")
            here_store.fail_after()
            here_store.fail_before(4, on="settle")
            with here_store.stall(when="after") as stall:
                opening = Call(tasks, say, memory, "lost")
                await entered(stall)
                waiting = [Call(tasks, memory.add, user("1"))]
                await pending(here, 2)
                waiting.append(Call(tasks, say, memory, "2"))
                await pending(here, 3)
            assert isinstance(await opening.result(), OutcomeUnknownError)
            for each in waiting:
                await each.result()
            assert await texts(memory) == ["1", "2"]


async def test_what_a_turn_left_behind_no_other_host_can_roll_back(tmp_path: Path) -> None:
    here = FaultStore(shared(tmp_path))
    async with open_runtime(here) as one, open_runtime(shared(tmp_path)) as other, anyio.create_task_group() as tasks:
        memory = one.memory("m")
        await memory.add(user("before"))
        turn = memory.turn(commit="each")
        await turn.__aenter__()
        await turn.add(user("kept"))
        with here.stall() as stall:
            leaving = Call(tasks, turn.__aexit__, None, None, None)
            await entered(stall)
            assert not leaving.done, "it is left when its lease is given back"
        await leaving.result()
        await say(other.memory("m"), "new", on_busy="rollback")
        assert await texts(other.memory("m")) == ["before", "kept", "new"]


async def test_a_rollback_that_the_store_refused_is_made_up_for_before_anything_else() -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        ready = anyio.Event()

        async def hold() -> None:
            async with memory.turn(commit="each") as turn:
                await turn.add(user("lost"))
                ready.set()
                await turn.interrupted()

        holding = Call(tasks, hold)
        await ready.wait()
        store.fail_before()
        refused = await Call(tasks, lambda: say(memory, "new", on_busy="rollback")).result()
        assert isinstance(refused, StoreUnavailableError)
        await holding.result()
        await memory.add(user("after"))
        assert await texts(memory) == ["after"]


@pytest.mark.parametrize("sure", [0, 1])
async def test_a_turn_with_a_commit_of_unknown_outcome_goes_on_and_is_rolled_back_whole(sure: int) -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        ready = anyio.Event()

        async def hold() -> None:
            async with memory.turn(commit="each") as turn:
                for number in range(sure):
                    await turn.add(user(f"sure {number}"))
                store.fail_after()
                store.fail_before(4, on="settle")
                with pytest.raises(OutcomeUnknownError):
                    await turn.add(user("unsure"))
                assert (await texts(turn))[-1] == "unsure", "nobody else can have written"
                await turn.add(user("goes on"))
                ready.set()
                await turn.interrupted()

        holding = Call(tasks, hold)
        with anyio.fail_after(BOUND):
            await ready.wait()
        await Call(tasks, lambda: say(memory, "new", on_busy="rollback")).result()
        assert isinstance(await holding.result(), TurnInterruptedError)
        assert await texts(memory) == ["before", "new"]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_retry_of_what_is_committed_interrupts_nobody(on_busy: str) -> None:
    async with open_runtime("memory:") as runtime, anyio.create_task_group() as tasks:
        memory = runtime.memory("m")
        await say(memory, "once", idempotency_key="k")
        async with memory.turn(commit="each") as turn:
            await turn.add(user("innocent"))
            again = Call(tasks, lambda: say(runtime.memory("m"), "x", on_busy=on_busy, idempotency_key="k"))
            assert isinstance(await again.result(), TurnAlreadyCommittedError)
            await turn.add(user("goes on"))
        assert await texts(memory) == ["once", "innocent", "goes on"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no native cancellation
async def test_a_lease_outlives_its_task_and_is_given_back_by_the_next(tmp_path: Path, anyio_backend: str) -> None:
    async with open_runtime(shared(tmp_path), turn_lease=3_600) as runtime:
        memory = runtime.memory("m")
        before = asyncio.all_tasks()
        await memory.add(user("1"))
        actors = asyncio.all_tasks() - before
        turn = memory.turn()
        await turn.__aenter__()
        for task in actors:
            task.cancel()
        await passes()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(memory.add, user("2"))
        assert await texts(memory) == ["1", "2"]


class TestLeavingWhereEachAddWasCommitted:
    """Whoever takes its lease away may take back what it committed: it is not left before the lease is given back."""

    @pytest.mark.parametrize("how", ["commit", "error", "cancel"])
    @pytest.mark.parametrize("fault", ["before", "after", "unknown", "unread", "none"])
    async def test_what_it_committed_stays(self, tmp_path: Path, how: str, fault: str) -> None:
        here = FaultStore(shared(tmp_path))
        async with open_runtime(here) as one, open_runtime(shared(tmp_path)) as two:
            memory = one.memory("m")
            await memory.add(user("before"))
            with anyio.CancelScope() as scope:
                try:
                    async with memory.turn(commit="each") as turn:
                        await turn.add(user("q"), assistant("paid for"))
                        await fail_the_give_back(here, memory, fault)
                        if how == "error":
                            raise ZeroDivisionError
                        if how == "cancel":
                            scope.cancel()
                            await anyio.sleep(1)
                except ZeroDivisionError:
                    pass
            assert scope.cancelled_caught == (how == "cancel")
            await say(two.memory("m"), "new", on_busy="rollback")
            assert await texts(two.memory("m")) == ["before", "q", "paid for", "new"]

    @pytest.mark.parametrize("how", ["error", "cancel"])
    async def test_an_error_and_a_cancellation_wait_for_it_too(self, tmp_path: Path, how: str) -> None:
        here = FaultStore(shared(tmp_path))
        async with open_runtime(here) as one, anyio.create_task_group() as tasks:
            memory = one.memory("m")
            await memory.add(user("before"))
            turn = await opened(memory, commit="each")
            await turn.add(user("q"))
            with here.stall() as stall:
                leaving = Call(tasks, turn.__aexit__, ValueError if how == "error" else None, None, None)
                await entered(stall)
                if how == "cancel":
                    leaving.scope.cancel()
                await passes()
                assert not leaving.done
            await leaving.result()

    async def test_where_the_store_stays_away_its_caller_is_told_and_the_lease_is_given_back_later(
        self, tmp_path: Path
    ) -> None:
        here = FaultStore(shared(tmp_path))
        async with open_runtime(here, turn_lease=3_600) as one, open_runtime(shared(tmp_path)) as two:
            memory = one.memory("m")
            turn = await opened(memory, commit="each")
            await turn.add(user("q"))
            here.fail_before(None)
            with pytest.raises(OutcomeUnknownError, match="turn_lease"):
                await turn.__aexit__(None, None, None)
            here.heal()
            with anyio.fail_after(BOUND):
                await two.memory("m").add(user("new"))
            assert await texts(two.memory("m")) == ["q", "new"]

    async def test_a_lease_that_can_not_be_given_back_keeps_nobody_of_ours_out(self, tmp_path: Path) -> None:
        here = FaultStore(shared(tmp_path))
        async with open_runtime(here, turn_lease=3_600) as runtime:
            memory = runtime.memory("m")
            turn = await opened(memory, commit="each")
            await turn.add(user("q"))
            here.fail_before(None)
            with pytest.raises(OutcomeUnknownError):
                await turn.__aexit__(None, None, None)
            here.heal()
            with anyio.fail_after(BOUND):
                await memory.add(user("next"))
                await say(memory, "and next")
            assert await texts(memory) == ["q", "next", "and next"]

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    @pytest.mark.parametrize("is_open", [False, True], ids=["committed", "open"])
    async def test_one_whose_place_another_host_took_is_not_left_as_if_nothing_had_been(
        self, tmp_path: Path, said_before: list[str], on_busy: Any, is_open: bool
    ) -> None:
        async with open_runtime(shared(tmp_path)) as one, open_runtime(shared(tmp_path)) as two:
            for text in said_before:
                await one.memory("m").add(user(text))
            turn = await opened(one.memory("m"), commit="each")
            await turn.add(user("q"))
            other = await opened(two.memory("m"), on_busy=on_busy)
            if not is_open:
                await other.add(user("new"))
                await other.__aexit__(None, None, None)
            with pytest.raises(TurnInterruptedError) as caught:
                await turn.__aexit__(None, None, None)
            assert caught.value.reason == "lost"
            if is_open:
                await other.add(user("new"))
                await other.__aexit__(None, None, None)
            stays = ["q"] if on_busy == "interrupt" else []
            assert await texts(one.memory("m")) == [*said_before, *stays, "new"]


async def fail_the_give_back(store: FaultStore, memory: ChatMemory, fault: str) -> None:
    """Have the next commit fail, so that what became of it is known, or not; or the read that it needs."""
    if fault == "before":
        store.fail_before()
    elif fault in ("after", "unknown"):
        store.fail_after()
        store.fail_before(4 if fault == "unknown" else 0, on="settle")
    elif fault == "unread":
        memory._core._residency.find(memory._name)._log = None  # type: ignore[union-attr]
        store.fail_before(2, on="load")

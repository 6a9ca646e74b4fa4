"""However a turn is left, at whatever await: it is there whole or without a trace, and nobody is kept out."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from support.schedule import CANCELLATIONS, How, every_cancellation
from turnkeeper import (
    ChatMemory,
    MessageWindow,
    NestedTurnError,
    Receipt,
    Runtime,
    Turn,
    TurnBusyError,
    TurnEndedError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore
from turns.tools import BOUND, Call, assistant, entered, passes, pending, start_outside, texts, unloaded, user

pytestmark = pytest.mark.anyio


class OwnError(Exception):
    pass


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


def make_store(kind: str, folder: Path, number: int = 0) -> FaultStore:
    if kind == "inline":
        return FaultStore(InMemoryStore())
    if kind == "in threads":
        return FaultStore(InMemoryStore(), inline=False)
    return FaultStore(SQLiteStore(folder / f"{number}.db", shared=kind == "shared"))


async def free(memory: ChatMemory) -> None:
    """Nobody is kept out: a turn opens at once, or, where another request is on its way out, soon."""
    with anyio.fail_after(BOUND):
        async with memory.turn() as turn:
            await turn.add(user("next"))


class TestErrors:
    @pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, GeneratorExit, SystemExit])
    async def test_an_error_leaves_no_trace_and_passes_as_it_is(
        self, runtime: Runtime, memory: ChatMemory, error: type[BaseException]
    ) -> None:
        before = await memory.add(user("before"))
        raised = error()
        with pytest.raises(error) as caught:
            async with memory.turn() as turn:
                await turn.add(user("lost"))
                raise raised
        assert caught.value is raised
        assert caught.value.__context__ is None
        assert turn.receipt is None
        assert (await memory.messages()).version == before.version
        await unloaded(runtime)
        assert await texts(memory) == ["before"]
        await free(memory)
        assert await texts(memory) == ["before", "next"]

    async def test_with_commit_each_what_was_committed_stays(self, runtime: Runtime, memory: ChatMemory) -> None:
        with pytest.raises(OwnError):
            async with memory.turn(commit="each") as turn:
                await turn.add(user("stays"))
                raise OwnError
        await unloaded(runtime)
        assert await texts(memory) == ["stays"]
        await free(memory)

    async def test_who_waited_goes_on(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            with pytest.raises(OwnError):
                async with memory.turn() as turn:
                    waiting = Call(group, memory.add, user("waited"))
                    await pending(runtime, 1)
                    await turn.add(user("lost"))
                    raise OwnError
            assert isinstance(await waiting.result(), Receipt)
        assert await texts(memory) == ["waited"]


class Scene:
    """A memory for each run, and a turn on it that is to be cancelled at one await after the other."""

    def __init__(self, runtime: Runtime, store: FaultStore, **options: Any) -> None:
        self.runtime = runtime
        self.store = store
        self.options = options
        self.count = 0
        self.turn: Turn

    async def prepare(self) -> None:
        self.count += 1
        self.memory = self.runtime.memory(f"m{self.count}")
        await self.memory.add(user("before"))

    async def run(self) -> None:
        async with self.memory.turn(**self.options) as self.turn:
            await self.turn.add(user("1"))
            await self.turn.messages()
            await self.turn.add(user("2"))

    async def check(self, *, cancelled: bool) -> None:
        await pending(self.runtime, 0)
        found = await texts(self.memory)
        full = ["before", "1", "2"]
        if not cancelled:
            assert found == full
        elif self.options.get("commit") == "each":
            assert found == full[: len(found)]
        else:
            assert found in (["before"], full), "never half"
        await unloaded(self.runtime, self.memory.id)
        assert await texts(self.memory) == found
        await free(self.memory)
        assert await texts(self.memory) == [*found, "next"]
        await pending(self.runtime, 0)


@pytest.mark.parametrize("how", CANCELLATIONS)
@pytest.mark.parametrize("kind", ["inline", "in threads", "shared"])
class TestEveryPoint:
    @pytest.mark.parametrize(
        "options",
        [{}, {"commit": "each"}, {"idempotency_key": "k"}, {"timeout": 1000}],
        ids=["plain", "each", "key", "timeout"],
    )
    async def test_cancelled_anywhere_it_is_there_whole_or_not_at_all(
        self, tmp_path: Path, kind: str, how: How, options: dict[str, Any]
    ) -> None:
        store = make_store(kind, tmp_path)
        async with open_runtime(store) as runtime:
            scene = Scene(runtime, store, **options)
            await scene.prepare()
            points = 0
            async for outcome in every_cancellation(scene.run, how):
                points += 1
                await scene.check(cancelled=outcome.cancelled)
                await scene.prepare()
            assert points >= 4

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_who_takes_a_place_and_leaves_keeps_nobody_out(
        self, tmp_path: Path, kind: str, how: How, on_busy: Any
    ) -> None:
        store = make_store(kind, tmp_path)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            scene = Scene(runtime, store, on_busy=on_busy)
            last: list[Call] = []

            async def hold(memory: ChatMemory, ready: anyio.Event) -> None:
                async with memory.turn(commit="each") as turn:
                    await turn.add(user("of the holder"))
                    ready.set()
                    await turn.interrupted()
                    await turn.add(user("never"))

            async def prepare() -> None:
                await scene.prepare()
                ready = anyio.Event()
                last.append(Call(group, hold, scene.memory, ready))
                await ready.wait()

            await prepare()
            async for outcome in every_cancellation(scene.run, how):
                await pending(runtime, 0)
                if not last[-1].done:
                    await passes()
                found = await texts(scene.memory)
                if not outcome.cancelled or "1" in found:
                    assert found[-2:] == ["1", "2"]
                    kept = found[:-2]
                else:
                    kept = found
                # A rollback that was not begun has changed nothing; otherwise nothing is left of the holder.
                whole = ["before", "of the holder"]
                if on_busy == "interrupt" or not last[-1].done:
                    assert kept == whole
                else:
                    assert kept == ["before"]
                last[-1].scope.cancel()
                await last[-1].result()
                await free(scene.memory)
                assert await texts(scene.memory) == [*found, "next"]
                await prepare()
            last[-1].scope.cancel()

    async def test_who_waits_and_leaves_keeps_nobody_out(self, tmp_path: Path, kind: str, how: How) -> None:
        store = make_store(kind, tmp_path)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            scene = Scene(runtime, store)
            holders: list[Call] = []

            async def hold(memory: ChatMemory, ready: anyio.Event) -> None:
                async with memory.turn() as turn:
                    ready.set()
                    await pending(runtime, 1)
                    await passes(5)
                    await turn.add(user("of the holder"))

            async def prepare() -> None:
                await scene.prepare()
                ready = anyio.Event()
                holders.append(Call(group, hold, scene.memory, ready))
                await ready.wait()

            await prepare()
            async for outcome in every_cancellation(scene.run, how):
                if not holders[-1].done:
                    holders[-1].scope.cancel()
                await holders[-1].result()
                await pending(runtime, 0)
                found = await texts(scene.memory)
                own = ["1", "2"] if "1" in found else []
                assert found in (["before", *own], ["before", "of the holder", *own])
                assert outcome.cancelled or own
                await free(scene.memory)
                assert await texts(scene.memory) == [*found, "next"]
                await prepare()
            holders[-1].scope.cancel()


class TestThePointOfNoReturn:
    async def test_a_commit_under_way_is_committed_though_its_caller_leaves(self) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")

            async def run() -> None:
                async with memory.turn() as turn:
                    await turn.add(user("own"))

            with store.stall() as stall:
                leaving = Call(group, run)
                await entered(stall)
                leaving.scope.cancel()
                await leaving.result()
                assert leaving.scope.cancelled_caught
                after = Call(group, memory.add, user("after"))
                await passes()
                assert not after.done
            assert isinstance(await after.result(), Receipt)
            assert await texts(memory) == ["own", "after"]

    async def test_an_add_that_was_not_taken_never_runs(self) -> None:
        """The actor is at something else: a load for a window that needs what is not in RAM."""
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            async with memory.turn(commit="each") as turn:
                with store.stall() as stall:
                    first = Call(group, turn.add, user("1"))
                    await entered(stall)
                    second = Call(group, turn.add, user("2"))
                    await passes()
                    second.scope.cancel()
                    await second.result()
                assert isinstance(await first.result(), Receipt)
                await turn.add(user("3"))
            assert await texts(memory) == ["before", "1", "3"]


class TestNested:
    async def test_opening_or_writing_through_a_handle_is_refused_at_once(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        another_handle = runtime.memory("m")
        with anyio.fail_after(BOUND):
            async with memory.turn() as turn:
                for handle in (memory, another_handle):
                    with pytest.raises(NestedTurnError):
                        await handle.add(user("never"))
                    with pytest.raises(NestedTurnError):
                        await handle.set(user("never"))
                    with pytest.raises(NestedTurnError):
                        await handle.clear()
                    with pytest.raises(NestedTurnError):
                        await handle.delete()
                await turn.add(user("own"))
        assert await texts(memory) == ["own"]

    @pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "rollback"])
    async def test_whatever_on_busy_says(self, memory: ChatMemory, on_busy: Any) -> None:
        with anyio.fail_after(BOUND):
            async with memory.turn() as turn:
                with pytest.raises(NestedTurnError) as caught:
                    async with memory.turn(on_busy=on_busy):
                        pytest.fail("inside twice")
                assert isinstance(caught.value, TurnBusyError)
                with pytest.raises(NestedTurnError):
                    await memory.run_turn(lambda _: anyio.lowlevel.checkpoint(), on_busy=on_busy)
                await turn.add(user("own"))
        assert await texts(memory) == ["own"]

    async def test_compacting_is_writing(self, memory: ChatMemory) -> None:
        await memory.add(user("1"), assistant("2"), user("3"), assistant("4"))
        with anyio.fail_after(BOUND):
            async with memory.turn():
                with pytest.raises(NestedTurnError):
                    await memory.compact(lambda _seen, _before: "summary", keep=2)

    async def test_child_tasks_are_inside(self, memory: ChatMemory) -> None:
        with anyio.fail_after(BOUND):
            async with memory.turn(), anyio.create_task_group() as group:

                async def child() -> None:
                    with pytest.raises(NestedTurnError):
                        await memory.add(user("never"))

                group.start_soon(child)

    async def test_threads_and_the_blocking_facade_are_inside(self, runtime: Runtime, memory: ChatMemory) -> None:
        blocking = runtime.sync.memory("m")

        def in_a_thread() -> None:
            with pytest.raises(NestedTurnError):
                blocking.add(user("never"))
            with pytest.raises(NestedTurnError), blocking.turn():
                pytest.fail("inside twice")
            assert len(blocking.messages()) == 0

        with anyio.fail_after(BOUND):
            async with memory.turn():
                await to_thread.run_sync(in_a_thread)
                with pytest.raises(NestedTurnError):
                    blocking.add(user("never"))

    async def test_reading_is_not_writing_and_other_memories_are_others(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        with anyio.fail_after(BOUND):
            async with memory.turn() as turn:
                await turn.add(user("own"))
                assert await texts(memory) == []
                assert (await memory.stats()).message_count == 0
                await runtime.memory("n").add(user("other"))
                await runtime.memory("m", "another tenant").add(user("other"))
                async with runtime.memory("n").turn():
                    pass

    async def test_the_same_name_in_another_runtime_is_another_memory(self, memory: ChatMemory) -> None:
        async with open_runtime() as other, memory.turn():
            await other.memory("m").add(user("other"))

    async def test_a_child_task_that_outlives_the_turn_may_write(self, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            over = anyio.Event()

            async def child() -> None:
                await over.wait()
                await memory.add(user("child"))

            async with memory.turn() as turn:
                group.start_soon(child)
                await turn.add(user("own"))
            over.set()
        assert await texts(memory) == ["own", "child"]

    async def test_after_it_one_is_outside_again(self, memory: ChatMemory) -> None:
        for _ in range(3):
            async with memory.turn():
                pass
            await memory.add(user("outside"))
        with pytest.raises(OwnError):
            async with memory.turn():
                raise OwnError
        await memory.add(user("outside"))

    async def test_inside_a_turn_of_two_memories_both_are_refused(self, runtime: Runtime, memory: ChatMemory) -> None:
        other = runtime.memory("n")
        with anyio.fail_after(BOUND):
            outer, inner = memory.turn(), other.turn()
            await outer.__aenter__()
            await inner.__aenter__()
            for handle in (memory, other):
                with pytest.raises(NestedTurnError):
                    await handle.add(user("never"))
            await outer.__aexit__(None, None, None)  # not in the order of entering
            await memory.add(user("outside"))
            with pytest.raises(NestedTurnError):
                await other.add(user("never"))
            await inner.__aexit__(None, None, None)
            await other.add(user("outside"))


class TestAfterItsEnd:
    async def test_every_use_is_refused(self, memory: ChatMemory) -> None:
        async with memory.turn() as turn:
            await turn.add(user("own"))
        for _ in range(2):
            with pytest.raises(TurnEndedError):
                await turn.add(user("late"))
            with pytest.raises(TurnEndedError):
                await turn.messages()
        with pytest.raises(TurnEndedError):
            await turn.__aenter__()
        assert await texts(memory) == ["own"]

    async def test_before_its_beginning_too(self, memory: ChatMemory) -> None:
        turn = memory.turn()
        with pytest.raises(TurnEndedError):
            await turn.add(user("early"))
        with pytest.raises(TurnEndedError):
            await turn.messages()
        with pytest.raises(TurnEndedError):
            await turn.interrupted()

    async def test_entered_twice_at_once_one_of_both_is_refused(self, runtime: Runtime, memory: ChatMemory) -> None:
        """A mistake that must not keep others out."""
        turn = memory.turn()
        with anyio.fail_after(BOUND):
            async with turn:
                with pytest.raises((TurnEndedError, NestedTurnError)):
                    async with turn:
                        pytest.fail("inside twice")
        await free(memory)

    async def test_entered_by_two_tasks_at_once_it_opens_once(self, runtime: Runtime, memory: ChatMemory) -> None:
        turn = memory.turn()
        opened = []

        async def enter() -> None:
            async with turn:
                opened.append(1)

        async with anyio.create_task_group() as group:
            calls = [Call(group, enter) for _ in range(2)]
            for each in calls:
                await each.result()
        assert len(opened) == 1
        assert sorted(type(each.outcome).__name__ for each in calls) == ["NoneType", "TurnEndedError"]
        await free(memory)


class TestGenerators:
    """A streaming endpoint yields inside the turn; the server closes it from another task, in another context."""

    @staticmethod
    async def stream(memory: ChatMemory) -> AsyncIterator[str]:
        async with memory.turn() as turn:
            await turn.add(user("q"))
            for part in ("a", "b"):
                yield part
            await turn.add(assistant("ab"))

    async def test_read_to_its_end_it_commits(self, memory: ChatMemory) -> None:
        assert [part async for part in self.stream(memory)] == ["a", "b"]
        assert await texts(memory) == ["q", "ab"]
        await memory.add(user("outside"))

    async def test_closed_halfway_it_leaves_no_trace(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with aclosing(self.stream(memory)) as stream:  # type: ignore[type-var]
            assert await anext(stream) == "a"
        assert await texts(memory) == []
        await memory.add(user("outside"))

    async def test_closed_by_another_task_in_another_context(self, runtime: Runtime, memory: ChatMemory) -> None:
        stream: Any = self.stream(memory)
        async with anyio.create_task_group() as group:
            assert await anext(stream) == "a"
            with pytest.raises(NestedTurnError):
                await memory.add(user("never"))
            closing = Call(group, stream.aclose)
            await closing.result()
        await memory.add(user("outside"))  # this context never saw the end, and is outside all the same
        await free(memory)
        assert await texts(memory) == ["outside", "next"]

    async def test_finished_by_another_task_in_another_context(self, runtime: Runtime, memory: ChatMemory) -> None:
        stream: Any = self.stream(memory)
        assert await anext(stream) == "a"

        async def finish() -> list[str]:
            return [part async for part in stream]

        async with anyio.create_task_group() as group:
            finishing = Call(group, finish)
            assert await finishing.result() == ["b"]
        assert await texts(memory) == ["q", "ab"]
        await memory.add(user("outside"))

    async def test_advanced_by_many_tasks_as_starlette_does_it(self, memory: ChatMemory) -> None:
        stream: Any = self.stream(memory)
        parts = []
        async with anyio.create_task_group() as group:
            for _ in range(2):
                step = Call(group, lambda: anext(stream))
                parts.append(await step.result())
            await Call(group, lambda: anext(stream, None)).result()
        assert parts == ["a", "b"]
        assert await texts(memory) == ["q", "ab"]

    async def test_contexts_do_not_pile_up(self, memory: ChatMemory) -> None:
        from turnkeeper.turns import entered

        for _ in range(3):
            async with memory.turn():
                assert len(entered.get()) == 1
            assert entered.get() == ()


async def test_a_turn_object_that_is_never_entered_costs_nothing(runtime: Runtime, memory: ChatMemory) -> None:
    for _ in range(10):
        memory.turn()
    gc.collect()
    await free(memory)
    assert await texts(memory) == ["next"]


async def test_context_tools_of_these_tests_are_outside() -> None:
    """What `start_outside` relies on: an empty context knows of no turn."""
    async with open_runtime() as runtime, anyio.create_task_group() as group:
        memory = runtime.memory("m")
        async with memory.turn():
            start_outside(group, memory.add, user("outside"))
            await pending(runtime, 1)
        assert Context().run(lambda: 1) == 1


class TestWhileItIsLeft:
    """A tool of the turn outlives its body by a moment."""

    @pytest.mark.parametrize("judged", [False, True])
    async def test_what_is_added_is_refused_and_not_lost(self, judged: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime, anyio.create_task_group() as tasks:
            memory = runtime.memory("m", window=MessageWindow(5) if judged else None)
            turn = memory.turn()
            await turn.__aenter__()
            await turn.add(user("q"))
            with store.stall() as stall:
                leaving = Call(tasks, turn.__aexit__, None, None, None)
                await entered(stall)
                for use in (lambda: turn.add(assistant("late")), turn.messages):
                    with pytest.raises(TurnEndedError):
                        await use()
            await leaving.result()
            assert await texts(memory) == ["q"]

    @pytest.mark.parametrize("commit", ["turn", "each"])
    async def test_what_is_on_its_way_is_there_or_refused(
        self, runtime: Runtime, memory: ChatMemory, commit: Any
    ) -> None:
        for number in range(20):
            accepted: list[str] = []

            async def tool(turn: Turn, text: str, accepted: list[str] = accepted) -> None:
                with suppress(TurnEndedError):
                    await turn.add(assistant(text))
                    accepted.append(text)

            async with anyio.create_task_group() as tools, memory.turn(commit=commit) as turn:
                await turn.add(user("q"))
                for late in range(5):
                    tools.start_soon(tool, turn, f"{late}")
                await passes(number // 2)
            assert sorted(await texts(memory)) == sorted([*accepted, "q"])
            await memory.clear()

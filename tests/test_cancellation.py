"""Callers that leave, tasks that are killed, Ctrl-C: an operation is there whole or not at all, and nobody hangs."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from anyio import to_thread
from anyio.abc import TaskGroup

from support.schedule import CANCELLATIONS, How, every_cancellation
from turnkeeper import (
    ChatMemory,
    OutcomeUnknownError,
    Receipt,
    Runtime,
    RuntimeClosedError,
    TurnkeeperError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, Stall, unload

BOUND = 20.0  # seconds in which everybody must have an answer, on the busiest of machines

on_every_loop = pytest.mark.anyio


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def texts(memory: ChatMemory) -> list[Any]:
    return [message["content"] for message in (await memory.messages()).to_dicts()]


class Call:
    """A call under way in a task of its own, and what came of it: its result, or its error if that is one of ours."""

    def __init__(self, group: TaskGroup, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        self.outcome: object = None
        self.scope = anyio.CancelScope()
        self._function = function
        self._args = args
        self._done = anyio.Event()
        group.start_soon(self._run, name="caller")

    async def _run(self) -> None:
        try:
            with self.scope:
                self.outcome = await self._function(*self._args)
        except TurnkeeperError as error:
            self.outcome = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def result(self) -> object:
        with anyio.fail_after(BOUND):
            await self._done.wait()
        return self.outcome


async def entered(stall: Stall) -> None:
    """Wait until a call hangs."""
    with anyio.fail_after(BOUND):
        assert await to_thread.run_sync(stall.entered.wait, BOUND)


async def quiet(runtime: Runtime) -> None:
    """Wait until nothing is pending: what was taken runs to its end without its caller."""
    with anyio.fail_after(BOUND):
        while runtime.stats().pending:  # noqa: ASYNC110 - what is to be seen here is that counter alone
            await anyio.sleep(0.001)
    stats = runtime.stats()
    assert (stats.pending, stats.pending_bytes, stats.waiting) == (0, 0, 0)


@asynccontextmanager
async def running(kind: str, path: Path, **options: Any) -> AsyncIterator[Runtime]:
    store = {
        "in memory": lambda: FaultStore(InMemoryStore()),
        "in threads": lambda: FaultStore(InMemoryStore(), inline=False),
        "sqlite": lambda: FaultStore(SQLiteStore(path / "chats.db")),
    }[kind]()
    async with open_runtime(store, **options) as runtime:
        yield runtime


BEFORE = ["1", "2"]

# An operation, what it does to a memory that holds BEFORE, and to one that does not exist.
OPERATIONS: dict[str, tuple[Callable[[ChatMemory], Coroutine[Any, Any, object]], list[str], list[str]]] = {
    "add": (lambda memory: memory.add(user("3"), user("4")), ["1", "2", "3", "4"], ["3", "4"]),
    "set": (lambda memory: memory.set(user("3"), user("4")), ["3", "4"], ["3", "4"]),
    "clear": (lambda memory: memory.clear(), [], []),
    "delete": (lambda memory: memory.delete(), [], []),
    "messages": (lambda memory: memory.messages(), BEFORE, []),
}


class Subject:
    """Memories to try an operation on, a fresh one for each time, in the state that the test wants."""

    def __init__(self, runtime: Runtime, operation: str, state: str) -> None:
        self.runtime = runtime
        self.state = state
        self.call, after_before, after_nothing = OPERATIONS[operation]
        self.old, self.new = ([], after_nothing) if state == "new" else (BEFORE, after_before)
        self._count = 0

    async def prepare(self) -> ChatMemory:
        self._count += 1
        memory = self.runtime.memory(f"m{self._count}")
        if self.state != "new":
            await memory.add(*map(user, BEFORE))
        if self.state == "cold":
            assert unload(self.runtime, memory.id)
        return memory

    async def check(self, memory: ChatMemory, *, whole: bool | None) -> None:
        """Expect all (True), nothing (False), or one of the two (None), in RAM and in the store, and go on."""
        await quiet(self.runtime)
        allowed = [self.old, self.new] if whole is None else [self.new if whole else self.old]
        found = await texts(memory)
        assert found in allowed
        unload(self.runtime, memory.id)
        assert await texts(memory) == found, "the store says the same"
        await memory.add(user("afterwards"))
        assert await texts(memory) == [*found, "afterwards"]


@on_every_loop
@pytest.mark.parametrize("state", ["new", "cold", "resident"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ["in memory", "in threads", "sqlite"])
class TestEveryPoint:
    @pytest.mark.parametrize("how", CANCELLATIONS)
    async def test_cancelled_where_it_waits_an_operation_is_there_whole_or_not_at_all(
        self, tmp_path: Path, kind: str, operation: str, state: str, how: How
    ) -> None:
        async with running(kind, tmp_path) as runtime:
            subject = Subject(runtime, operation, state)
            memory = await subject.prepare()

            async def scenario() -> object:
                return await subject.call(memory)

            points = 0
            async for outcome in every_cancellation(scenario, how):
                points += 1
                await subject.check(memory, whole=None if outcome.cancelled else True)
                memory = await subject.prepare()
            assert points

    @pytest.mark.slow
    async def test_cancelled_after_any_number_of_passes_it_is_there_whole_or_not_at_all(
        self, tmp_path: Path, kind: str, operation: str, state: str
    ) -> None:
        """Passes of the loop, and with them every stage its request goes through in the actor's task."""
        async with running(kind, tmp_path) as runtime:
            subject = Subject(runtime, operation, state)
            for passes in range(60):
                memory = await subject.prepare()
                async with anyio.create_task_group() as group:
                    call = Call(group, subject.call, memory)
                    for _ in range(passes):
                        await anyio.lowlevel.checkpoint()
                    call.scope.cancel()
                await subject.check(memory, whole=None if call.scope.cancelled_caught else True)


@on_every_loop
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "messages"])
class TestThePointOfNoReturn:
    async def test_who_leaves_before_it_leaves_no_trace(self, operation: str) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime:
            subject = Subject(runtime, operation, "cold")
            memory = await subject.prepare()
            commits = store.calls["commit"]
            async with anyio.create_task_group() as group:
                with store.stall("load") as stall:
                    call = Call(group, subject.call, memory)
                    await entered(stall)
                    call.scope.cancel()
                    await call.result()
                    assert call.scope.cancelled_caught
                    assert runtime.stats().pending == 0, "at once, not when its turn would have come"
            await subject.check(memory, whole=False)
            assert store.calls["commit"] == commits + 1, "only what came afterwards"

    async def test_who_leaves_while_others_are_served_leaves_no_trace(self, operation: str) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store, mailbox_size=1) as runtime, anyio.create_task_group() as group:
            subject = Subject(runtime, operation, "resident")
            memory = await subject.prepare()
            with store.stall() as stall:
                first = Call(group, memory.add, user("first"))
                await entered(stall)
                leaving = [Call(group, subject.call, memory) for _ in range(5)]  # in the mailbox, and in front of it
                last = Call(group, memory.add, user("last"))
                await anyio.wait_all_tasks_blocked()
                for call in leaving:
                    call.scope.cancel()
                for call in leaving:
                    await call.result()
                assert runtime.stats().pending == 2
            assert isinstance(await first.result(), Receipt)
            assert isinstance(await last.result(), Receipt)
            assert await texts(memory) == [*BEFORE, "first", "last"]
            await quiet(runtime)

    async def test_who_leaves_after_it_has_it_done_all_the_same(self, operation: str) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime:
            subject = Subject(runtime, operation, "resident")
            memory = await subject.prepare()
            async with anyio.create_task_group() as group:
                with store.stall() as stall:
                    call = Call(group, subject.call, memory)
                    await entered(stall)
                    call.scope.cancel()
                    await call.result()
                    assert call.scope.cancelled_caught
                    assert runtime.stats().pending == 1
            await subject.check(memory, whole=True)


@pytest.mark.slow
@on_every_loop
@pytest.mark.parametrize("kind", ["in memory", "in threads", "sqlite"])
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_cancellations_loses_and_doubles_nothing(
    tmp_path: Path, kind: str, native: bool, seed: int
) -> None:
    if native and trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    dice = random.Random(seed)
    acknowledged: set[str] = set()
    path = tmp_path
    options: dict[str, Any] = {"max_pending": 100, "mailbox_size": 4, "linger": 0.0}
    async with running(kind, path, **options) as runtime:
        memories = [runtime.memory(str(number)) for number in range(7)]

        async def caller(number: int) -> None:
            for turn in range(3):
                text = f"{number}.{turn}"
                await memories[number % 7].add(user(text))
                acknowledged.add(text)

        with anyio.fail_after(60):
            if native:
                tasks = [asyncio.create_task(caller(number)) for number in range(500)]
                for task in dice.sample(tasks, 400):
                    for _ in range(dice.randrange(3)):
                        await anyio.lowlevel.checkpoint()
                    task.cancel()
                await asyncio.wait(tasks)
                for task in tasks:
                    assert task.cancelled() or task.exception() is None
            else:
                async with anyio.create_task_group() as group:
                    calls = [Call(group, caller, number) for number in range(500)]
                    for call in dice.sample(calls, 400):
                        for _ in range(dice.randrange(3)):
                            await anyio.lowlevel.checkpoint()
                        call.scope.cancel()
                assert all(call.outcome is None for call in calls)
        await quiet(runtime)
        for cold in (False, True):
            for number, memory in enumerate(memories):
                if cold:
                    unload(runtime, memory.id)
                stored = await texts(memory)
                assert len(set(stored)) == len(stored), "nothing is doubled"
                assert {text for text in acknowledged if int(text.partition(".")[0]) % 7 == number} <= set(stored)
                by_caller: dict[str, list[int]] = {}
                for text in stored:
                    name, _, turn = text.partition(".")
                    by_caller.setdefault(name, []).append(int(turn))
                for turns in by_caller.values():
                    assert turns == list(range(len(turns)))
        assert len(acknowledged) >= 300, "the hundred that nobody cancels"


def own_tasks(strangers: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return the tasks that run for the runtime."""
    return sorted(
        (task for task in asyncio.all_tasks() - strangers if task.get_name() != "caller"), key=lambda it: it.get_name()
    )


class Scene:
    """A runtime with somebody waiting at every place where one can wait, and the tasks it has by then."""

    def __init__(self, group: TaskGroup, store: FaultStore, runtime: Runtime) -> None:
        self.group = group
        self.store = store
        self.runtime = runtime
        self.calls: list[Call] = []
        self.threads: list[threading.Thread] = []
        self.from_threads: list[object] = []

    async def set(self) -> None:
        memory = self.runtime.memory
        await memory("parked").add(user("0"))
        commits, loads = self.store.stall(memory_id="committing"), self.store.stall("load", memory_id="loading")
        self.call(memory("committing").add, user("in flight"))
        await entered(commits)
        self.call(memory("loading").add, user("its memory is loading"))
        await entered(loads)
        for number in range(3):
            self.call(memory("committing").add, user(f"in the mailbox, or in front of it {number}"))
        self.call(memory("committing").messages)  # a read, which has a bound of its own
        self.call(memory("next group").add, user("waits for the commit in flight"))
        self.call(memory("next load").add, user("waits for the load in flight"))
        self.thread(memory_id="committing")
        self.thread(memory_id="from a thread")
        with anyio.fail_after(BOUND):
            while self.runtime.stats().pending < 10:  # noqa: ASYNC110 - two of them come from threads
                await anyio.sleep(0.001)
        self.call(memory("in line").add, user("is not admitted yet"))
        await anyio.wait_all_tasks_blocked()
        assert (self.runtime.stats().pending, self.runtime.stats().waiting) == (10, 1)

    def call(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        self.calls.append(Call(self.group, function, *args))

    def thread(self, memory_id: str) -> None:
        def add() -> None:
            try:
                self.from_threads.append(self.runtime.sync.memory(memory_id).add(user("from a thread")))
            except TurnkeeperError as error:
                self.from_threads.append(error)

        self.threads.append(threading.Thread(target=add))
        self.threads[-1].start()

    async def outcomes(self) -> list[object]:
        outcomes = [await call.result() for call in self.calls]
        for thread in self.threads:
            await to_thread.run_sync(thread.join, BOUND)
            assert not thread.is_alive()
        return [*outcomes, *self.from_threads]


@on_every_loop
@pytest.mark.parametrize("heal_first", [False, True])
async def test_whichever_task_of_the_runtime_is_killed_nobody_is_stranded(heal_first: bool) -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    number, count = 0, 1
    while number < count:
        store = FaultStore(InMemoryStore(), inline=False)
        strangers = asyncio.all_tasks()
        runtime = open_runtime(store, max_pending=9, mailbox_size=1, close_timeout=1.0)
        async with anyio.create_task_group() as group, runtime:
            scene = Scene(group, store, runtime)
            try:
                await scene.set()
                tasks = own_tasks(strangers)
                count = len(tasks)
                victim = tasks[number]
                if heal_first:
                    store.heal()
                victim.cancel()
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            finally:
                store.heal()
            outcomes = await scene.outcomes()
            assert all(isinstance(outcome, (Receipt, tuple, TurnkeeperError)) for outcome in outcomes), victim
            assert len(outcomes) == 11
            await quiet(runtime)
            await it_works_or_says_it_is_closed(runtime, victim)
        await acknowledged_is_stored(store, scene)
        number += 1
    assert count >= 9  # keeper, two sweepers, two lanes, four actors, two portal calls


async def it_works_or_says_it_is_closed(runtime: Runtime, victim: object) -> None:
    with anyio.fail_after(BOUND):
        try:
            for memory_id in ("parked", "committing", "loading", "fresh"):
                before = await texts(runtime.memory(memory_id))
                await runtime.memory(memory_id).add(user("works"))
                assert await texts(runtime.memory(memory_id)) == [*before, "works"]
            blocking = runtime.sync.memory("fresh")
            assert len(await to_thread.run_sync(blocking.messages)) == 1
        except RuntimeClosedError:
            for call in (runtime.memory("parked").messages, runtime.memory("fresh").clear):
                with pytest.raises(RuntimeClosedError):
                    await call()
            with pytest.raises(RuntimeClosedError):
                await to_thread.run_sync(runtime.sync.memory("parked").messages)


async def acknowledged_is_stored(store: FaultStore, scene: Scene) -> None:
    async with open_runtime(store) as runtime:
        for memory_id in ("committing", "loading", "next group", "next load", "in line", "from a thread"):
            found = [text for text in await texts(runtime.memory(memory_id)) if text != "works"]
            assert len(set(found)) == len(found)
    receipts = [call.outcome for call in scene.calls if isinstance(call.outcome, Receipt)]
    stored = sum([len(store.wrapped.entries(mid, after=0, limit=99)) for mid in range(1, 12)])
    assert stored >= len(receipts)


@on_every_loop
async def test_killed_in_a_commit_the_actor_says_that_the_outcome_is_unknown_and_the_next_read_shows_it() -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    store = FaultStore(InMemoryStore(), inline=False)
    strangers = asyncio.all_tasks()
    async with open_runtime(store) as runtime, anyio.create_task_group() as group:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        (actor,) = [task for task in own_tasks(strangers) if "Actor" in task.get_name()]
        with store.stall() as stall:
            in_flight = Call(group, memory.add, user("in flight"))
            await entered(stall)
            behind = Call(group, memory.add, user("behind"))
            await anyio.wait_all_tasks_blocked()
            actor.cancel()
            assert isinstance(await in_flight.result(), OutcomeUnknownError)
            assert isinstance(await behind.result(), TurnkeeperError)
            meanwhile = await texts(memory)
            assert meanwhile == ["before"]
        await runtime.memory("other").add(user("comes after the one in flight has landed"))
        assert await texts(memory) == ["before", "in flight"]
        await quiet(runtime)


@on_every_loop
async def test_killed_keeper_a_runtime_whose_body_goes_on_says_that_it_is_closed() -> None:
    if trio.lowlevel.in_trio_task():
        pytest.skip("trio has no native cancellation")
    strangers = asyncio.all_tasks()
    async with open_runtime() as runtime:
        (keeper,) = [task for task in own_tasks(strangers) if "_keep" in task.get_name()]
        keeper.cancel()
        with anyio.fail_after(BOUND):
            await asyncio.wait({keeper})
        with pytest.raises(RuntimeClosedError):
            await runtime.memory("m").messages()
        assert not own_tasks(strangers)


INTERRUPTED = """
import os, sys, threading
import anyio
from turnkeeper import TurnkeeperError, open_runtime

path, acknowledged, backend = sys.argv[1:]
log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
started = threading.Event()
count = 0

def note(text):
    global count
    os.write(log, (text + chr(10)).encode())
    count += 1
    if count > 200 and not started.is_set():
        started.set()
        os.write(1, b"ready" + os.linesep.encode())

async def task(runtime, number):
    turn = 0
    try:
        while True:
            text = f"task {number}.{turn}"
            await runtime.memory(str(number % 9)).add({"role": "user", "content": text})
            note(text)
            turn += 1
    except TurnkeeperError:
        pass

def thread(runtime, number):
    turn = 0
    try:
        while True:
            text = f"thread {number}.{turn}"
            runtime.sync.memory(str(number)).add({"role": "user", "content": text})
            note(text)
            turn += 1
    except TurnkeeperError:
        pass

async def main():
    async with open_runtime(f"sqlite:///{path}", close_timeout=5) as runtime:
        for number in range(8):
            threading.Thread(target=thread, args=(runtime, number)).start()
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(task, runtime, number)

options = {"uvloop": ("asyncio", {"use_uvloop": True})}.get(backend, (backend, {}))
anyio.run(main, backend=options[0], backend_options=options[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("interrupts", [1, 2])
def test_interrupted_the_process_ends_by_itself_and_what_was_acknowledged_is_stored(
    tmp_path: Path, backend: str, interrupts: int
) -> None:
    path, log = tmp_path / "chats.db", tmp_path / "acknowledged"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(path), str(log), backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)  # it ends only when its eight threads have, too
    finally:
        process.kill()
    assert process.returncode != 0, "interrupted is not success"
    assert "Segmentation" not in stderr
    acknowledged = log.read_text(encoding="utf-8").splitlines()
    assert len(acknowledged) > 200
    stored = stored_texts(path)
    assert len(set(stored)) == len(stored)
    assert set(acknowledged) <= set(stored)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_interrupted_just_as_a_thread_gets_its_answer_the_thread_is_told(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Ctrl-C may strike between the two steps in which a portal hands an answer on: seen once in 600 processes."""
    outcomes: list[object] = []
    claim = Future.set_running_or_notify_cancel

    def interrupted(future: Future[Any]) -> bool:
        claim(future)
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def main() -> None:
        async with open_runtime(FaultStore(InMemoryStore(), inline=False), close_timeout=1.0) as runtime:
            memory = runtime.sync.memory("m")

            def call() -> None:
                try:
                    outcomes.append(memory.add(user("1")))
                except TurnkeeperError as error:
                    outcomes.append(error)

            monkeypatch.setattr(Future, "set_running_or_notify_cancel", interrupted)
            threads.append(threading.Thread(target=call, daemon=True))
            threads[0].start()
            await anyio.sleep(BOUND)

    threads: list[threading.Thread] = []
    options = {"use_uvloop": True} if backend == "uvloop" else {}
    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        anyio.run(main, backend="asyncio" if backend == "uvloop" else backend, backend_options=options)
    threads[0].join(BOUND)
    assert not threads[0].is_alive()
    assert all(isinstance(outcome, (Receipt, TurnkeeperError)) for outcome in outcomes)
    assert len(outcomes) == 1


def stored_texts(path: Path) -> list[str]:
    found: list[str] = []

    async def read() -> None:
        async with open_runtime(f"sqlite:///{path}") as runtime:
            for number in range(9):
                found.extend(await texts(runtime.memory(str(number))))

    anyio.run(read)
    return found

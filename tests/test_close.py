"""Opening and closing: bounded whatever the store does, everybody answered, nothing left open."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import TaskGroup

from support.schedule import CANCELLATIONS, How, every_cancellation
from turnkeeper import (
    ChatMemory,
    OutcomeUnknownError,
    Receipt,
    Runtime,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreError,
    StoreFormatError,
    StoreInUseError,
    StoreUnavailableError,
    TurnkeeperError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, Stall

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
        self._function = function
        self._args = args
        self._done = anyio.Event()
        group.start_soon(self._run)

    async def _run(self) -> None:
        try:
            self.outcome = await self._function(*self._args)
        except TurnkeeperError as error:
            self.outcome = error
        self._done.set()

    async def result(self) -> object:
        with anyio.fail_after(BOUND):
            await self._done.wait()
        return self.outcome


async def entered(stall: Stall) -> None:
    """Wait until a call hangs."""
    with anyio.fail_after(BOUND):
        assert await to_thread.run_sync(stall.entered.wait, BOUND)


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    started = anyio.current_time()
    yield
    assert anyio.current_time() - started < seconds


async def open_again(path: Path) -> Runtime:
    """Open a file as soon as those who were left behind have let go of it."""
    deadline = anyio.current_time() + BOUND
    while True:
        runtime = open_runtime(f"sqlite:///{path}")
        try:
            return await runtime.__aenter__()
        except StoreInUseError:
            if anyio.current_time() > deadline:
                raise
            await anyio.sleep(0.01)


@pytest.fixture
def threaded() -> FaultStore:
    return FaultStore(InMemoryStore(), inline=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@on_every_loop
class TestClosing:
    async def test_what_is_pending_is_done_before(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded)
        async with anyio.create_task_group() as group:
            async with runtime:
                stall = threaded.stall()
                calls = [Call(group, runtime.memory(str(number % 5)).add, user("1")) for number in range(50)]
                await entered(stall)
                group.start_soon(release_when_closing, runtime, stall)
            assert [type(call.outcome) for call in calls] == [Receipt] * 50
        assert runtime.stats().failed_at_close == 0
        assert runtime.stats().pending == 0

    async def test_nothing_new_is_taken_meanwhile_and_afterwards(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded)
        memory = runtime.memory("m")
        async with anyio.create_task_group() as group:
            async with runtime:
                stall = threaded.stall()
                Call(group, memory.add, user("1"))
                await entered(stall)
                refused = [
                    Call(group, after_closing_began, runtime, call)
                    for call in (memory.clear, memory.messages, memory.stats, memory.delete)
                ]
                group.start_soon(release_when_done, stall, refused)
            assert [type(call.outcome) for call in refused] == [RuntimeClosedError] * 4
        for call in (memory.clear, memory.messages, memory.stats, memory.delete, lambda: memory.add(user("2"))):
            with pytest.raises(RuntimeClosedError):
                await call()
        with pytest.raises(RuntimeClosedError):
            await to_thread.run_sync(runtime.sync.memory("m").messages)

    async def test_a_store_that_hangs_cannot_hold_it(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded, close_timeout=0.2)
        async with anyio.create_task_group() as group:
            with threaded.stall() as stall:
                with takes_at_most(5):
                    async with runtime:
                        in_flight = Call(group, runtime.memory("in flight").add, user("1"))
                        await entered(stall)
                        behind = [Call(group, runtime.memory("in flight").add, user("2")) for _ in range(3)]
                        others = [Call(group, runtime.memory(str(number)).add, user("3")) for number in range(3)]
                        await anyio.wait_all_tasks_blocked()
                assert isinstance(await in_flight.result(), OutcomeUnknownError)
                for call in behind:
                    assert isinstance(await call.result(), RuntimeClosedError), "was never taken"
                for call in others:
                    assert isinstance(await call.result(), TurnkeeperError)
                assert runtime.stats().failed_at_close == 7
                assert runtime.stats().pending == 0
                assert threaded.calls["commit"] == 1

    async def test_those_who_wait_for_a_load_are_told_that_nothing_changed(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded, close_timeout=0.2)
        async with anyio.create_task_group() as group:
            with threaded.stall("load") as stall:
                with takes_at_most(5):
                    async with runtime:
                        calls = [
                            Call(group, runtime.memory("m").add, user("1")),
                            Call(group, runtime.memory("m").messages),
                            Call(group, runtime.memory("other").delete),
                        ]
                        await entered(stall)
                for call in calls:
                    assert isinstance(await call.result(), RuntimeClosedError)
        assert runtime.stats().failed_at_close == 3
        assert threaded.calls["commit"] == 0

    async def test_a_store_that_hangs_in_closing_cannot_hold_it(self, threaded: FaultStore) -> None:
        with threaded.stall("close") as stall:
            with takes_at_most(5):
                async with open_runtime(threaded, close_timeout=0.2) as runtime:
                    await runtime.memory("m").add(user("1"))
            assert stall.entered.is_set()

    async def test_a_store_that_fails_in_closing_says_so_when_all_are_answered(self, threaded: FaultStore) -> None:
        threaded.fail_before(on="close")
        runtime = open_runtime(threaded)
        with pytest.raises(StoreUnavailableError):
            async with runtime:
                await runtime.memory("m").add(user("1"))
        with pytest.raises(RuntimeClosedError):
            await runtime.memory("m").messages()

    async def test_a_store_left_behind_is_closed_when_it_comes_back(self, path: Path) -> None:
        store = FaultStore(SQLiteStore(path))
        async with anyio.create_task_group() as group:
            with store.stall() as stall:
                async with open_runtime(store, close_timeout=0.1) as runtime:
                    add = Call(group, runtime.memory("m").add, user("1"))
                    await entered(stall)
            assert isinstance(await add.result(), OutcomeUnknownError)
        again = await open_again(path)
        try:
            assert await texts(again.memory("m")) in ([], ["1"])
        finally:
            await again.__aexit__(None, None, None)

    async def test_draining_in_vain_leaves_the_store_time_to_close(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Who waits behind an open turn is waited for to the end; the store is as healthy as ever."""
        for _ in range(3):
            async with anyio.create_task_group() as group:
                async with open_runtime(SQLiteStore(path), close_timeout=0.05) as runtime:
                    memory = runtime.memory("m")
                    entering = Call(group, memory.turn().__aenter__)
                    await entering.result()
                    waiting = Call(group, memory.add, user("no"))
                assert isinstance(await waiting.result(), RuntimeClosedError)
        assert "stalls" not in caplog.text

    async def test_the_store_is_not_closed_under_a_read(self, threaded: FaultStore) -> None:
        """An SQLite connection that is closed while another thread uses it can take the process down."""
        with threaded.stall("load") as stall:
            async with open_runtime(threaded, close_timeout=0.2) as runtime, anyio.create_task_group() as group:
                group.start_soon(runtime.memory("m").messages)
                await entered(stall)
                group.cancel_scope.cancel()
            assert threaded.calls["close"] == 0
        await closed_as_often_as_opened(threaded)

    async def test_blocking_callers_are_told_as_well(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded, close_timeout=0.2)
        outcomes: list[object] = []

        def call() -> None:
            try:
                outcomes.append(runtime.sync.memory("m").add(user("1")))
            except TurnkeeperError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        with threaded.stall() as stall:
            with takes_at_most(5):
                async with runtime:
                    for thread in threads:
                        thread.start()
                    await entered(stall)
            for thread in threads:
                await to_thread.run_sync(thread.join, BOUND)
                assert not thread.is_alive()
        assert len(outcomes) == 8
        assert all(isinstance(outcome, (OutcomeUnknownError, RuntimeClosedError)) for outcome in outcomes)
        assert any(isinstance(outcome, OutcomeUnknownError) for outcome in outcomes)


async def is_closing(runtime: Runtime) -> None:
    """Wait until the runtime refuses requests."""
    with anyio.fail_after(BOUND):
        while True:
            try:
                await runtime.memory("is it closing?").messages()
            except RuntimeClosedError:
                return


async def release_when_closing(runtime: Runtime, stall: Stall) -> None:
    await is_closing(runtime)
    stall.release()


async def after_closing_began(runtime: Runtime, call: Callable[[], Awaitable[object]]) -> object:
    await is_closing(runtime)
    return await call()


async def release_when_done(stall: Stall, calls: list[Call]) -> None:
    for call in calls:
        await call.result()
    stall.release()


@on_every_loop
class TestTheBody:
    async def test_its_error_comes_out_as_it_is(self, threaded: FaultStore) -> None:
        error = LookupError("the body's own")

        async def body() -> None:
            async with open_runtime(threaded) as runtime:
                await runtime.memory("m").add(user("1"))
                raise error

        with pytest.raises(LookupError) as caught:
            await body()
        assert caught.value is error
        assert threaded.calls["close"] == 1

    async def test_its_error_comes_out_even_when_the_scope_around_it_is_cancelled(self, threaded: FaultStore) -> None:
        async def body() -> None:
            with anyio.CancelScope() as scope:
                async with open_runtime(threaded):
                    scope.cancel()
                    raise LookupError

        with pytest.raises(LookupError):
            await body()

    async def test_cancelled_from_around_it_what_was_taken_is_done_before_the_runtime_closes(
        self, threaded: FaultStore
    ) -> None:
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with open_runtime(threaded) as runtime:
                    stall = threaded.stall()
                    taken = Call(group, runtime.memory("m").add, user("1"))
                    await entered(stall)
                    behind = Call(group, runtime.memory("m").add, user("2"))
                    await anyio.wait_all_tasks_blocked()
                    group.start_soon(release_when_closing, runtime, stall)
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
            assert isinstance(await taken.result(), Receipt)
            assert isinstance(await behind.result(), Receipt)
        assert threaded.calls["close"] == 1
        async with open_runtime(threaded) as runtime:
            assert await texts(runtime.memory("m")) == ["1", "2"]

    async def test_a_deadline_around_it_may_strike_while_it_closes(self, threaded: FaultStore) -> None:
        async with anyio.create_task_group() as group:
            stall = threaded.stall()
            with anyio.CancelScope() as scope:
                async with open_runtime(threaded) as runtime:
                    call = Call(group, runtime.memory("m").add, user("1"))
                    await entered(stall)
                    group.start_soon(cancel_when_closing, runtime, scope, stall)
            assert isinstance(await call.result(), Receipt)
        assert threaded.calls["close"] == 1


async def cancel_when_closing(runtime: Runtime, scope: anyio.CancelScope, stall: Stall) -> None:
    await is_closing(runtime)
    scope.cancel()
    await anyio.lowlevel.checkpoint()
    stall.release()


@on_every_loop
class TestEnteringAndLeaving:
    async def test_leaving_in_another_task_is_refused_and_the_runtime_stays_usable(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime:
            memory = runtime.memory("m")

            async def leave() -> None:
                with pytest.raises(RuntimeUsageError, match="another task"):
                    await runtime.__aexit__(None, None, None)

            async with anyio.create_task_group() as group:
                group.start_soon(leave)
            await memory.add(user("1"))
            assert await texts(memory) == ["1"]

    async def test_entering_twice_is_refused(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded)
        async with runtime:
            with pytest.raises(RuntimeUsageError, match="is open"):
                await runtime.__aenter__()
            await runtime.memory("m").add(user("1"))
        with pytest.raises(RuntimeUsageError, match="is closed"):
            await runtime.__aenter__()
        assert threaded.calls["open"] == 1

    async def test_entering_while_another_task_does_is_refused(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded)

        async def enter_too(stall: Stall) -> None:
            await entered(stall)
            with stall, anyio.fail_after(BOUND), pytest.raises(RuntimeUsageError):
                await runtime.__aenter__()

        stall = threaded.stall("open")
        async with anyio.create_task_group() as group:
            group.start_soon(enter_too, stall)
            async with runtime:
                await runtime.memory("m").add(user("1"))
        assert threaded.calls["open"] == 1

    async def test_before_and_after_it_requests_are_refused(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded)
        with pytest.raises(RuntimeUsageError, match="not open"):
            await runtime.memory("m").add(user("1"))
        with pytest.raises(RuntimeUsageError, match="not open"):
            runtime.sync.memory("m").messages()
        async with runtime:
            pass
        with pytest.raises(RuntimeClosedError):
            await runtime.memory("m").add(user("1"))


@on_every_loop
class TestOpeningFails:
    async def test_a_store_in_use_is_open_to_the_next_when_it_is_free(self, path: Path) -> None:
        async with open_runtime(f"sqlite:///{path}") as owner:
            await owner.memory("m").add(user("1"))
            second = open_runtime(f"sqlite:///{path}")
            with pytest.raises(StoreInUseError, match="shared=true"):
                await second.__aenter__()
            await owner.memory("m").add(user("2"))
        async with second:
            assert await texts(second.memory("m")) == ["1", "2"]

    async def test_a_foreign_file_is_left_alone(self, path: Path) -> None:
        foreign = b"not a database at all" * 1000
        await anyio.Path(path).write_bytes(foreign)
        for _ in range(2):
            with pytest.raises(StoreFormatError):
                await open_runtime(f"sqlite:///{path}").__aenter__()
        assert await anyio.Path(path).read_bytes() == foreign

    @pytest.mark.parametrize("error", [StoreUnavailableError, OSError])
    async def test_nothing_stays_open(self, threaded: FaultStore, error: type[Exception]) -> None:
        threaded.fail_after(error=error, on="open")
        with pytest.raises(error if issubclass(error, TurnkeeperError) else (StoreError, error)):
            await open_runtime(threaded).__aenter__()
        await closed_as_often_as_opened(threaded)
        async with open_runtime(threaded) as runtime:
            await runtime.memory("m").add(user("1"))

    async def test_a_store_that_hangs_in_opening_is_given_up_and_closed_when_it_comes_back(self, path: Path) -> None:
        store = FaultStore(SQLiteStore(path))
        with store.stall("open", when="after"), takes_at_most(5), pytest.raises(StoreUnavailableError):
            await open_runtime(store, commit_timeout=0.1).__aenter__()
        again = await open_again(path)
        await again.__aexit__(None, None, None)

    @pytest.mark.parametrize("threads", [False, True])
    async def test_in_a_cancelled_scope_it_is_not_opened_at_all_or_closed_again(self, threads: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False if threads else None)
        with anyio.fail_after(BOUND), anyio.CancelScope() as scope:
            scope.cancel()
            async with open_runtime(store):
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        await closed_as_often_as_opened(store)

    @pytest.mark.parametrize("how", CANCELLATIONS)
    @pytest.mark.parametrize("threads", [False, True])
    async def test_cancelled_at_any_point_nothing_stays_open(self, how: How, threads: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False if threads else None)
        before = set(threading.enumerate())  # other tests may have left those of a process-wide runtime

        async def scenario() -> None:
            async with open_runtime(store) as runtime:
                await runtime.memory("m").add(user("1"))

        with anyio.fail_after(BOUND):
            async for _ in every_cancellation(scenario, how):
                await closed_as_often_as_opened(store)
        left = set(threading.enumerate()) - before
        assert not [thread.name for thread in left if thread.name.startswith("turnkeeper")] or threads


async def closed_as_often_as_opened(store: FaultStore) -> None:
    with anyio.fail_after(BOUND):
        while store.calls["open"] > store.calls["close"]:  # noqa: ASYNC110 - a thread does it, and tells nobody
            await anyio.sleep(0.001)


def run_script(source: str, *arguments: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a script that must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", RUN + textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


RUN = """
import sys
import anyio

def run(main):
    backend = sys.argv[1]
    options = {"use_uvloop": True} if backend == "uvloop" else {}
    anyio.run(main, backend="asyncio" if backend == "uvloop" else backend, backend_options=options)
    print("ends")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
class TestTheProcess:
    @pytest.mark.parametrize("call", ["commit", "load", "close"])
    def test_it_can_end_while_the_store_hangs_for_ever(self, loop: str, call: str) -> None:
        started = time.monotonic()
        result = run_script(
            """
            from turnkeeper import TurnkeeperError, open_runtime
            from turnkeeper.stores import InMemoryStore
            from turnkeeper.testing.faults import FaultStore

            store = FaultStore(InMemoryStore(), inline=False)

            async def add(runtime):
                try:
                    await runtime.memory("m").add({"role": "user", "content": "hi"})
                except TurnkeeperError as error:
                    print(type(error).__name__)
                else:
                    print("added")

            async def main():
                stall = store.stall(sys.argv[2])
                async with anyio.create_task_group() as group:
                    async with open_runtime(store, close_timeout=0.2) as runtime:
                        if sys.argv[2] == "close":
                            await add(runtime)
                        else:
                            group.start_soon(add, runtime)
                            await anyio.to_thread.run_sync(stall.entered.wait)
                print("closed")

            run(main)
            """,
            loop,
            call,
        )
        assert result.returncode == 0, result.stderr
        answer = {"commit": "OutcomeUnknownError", "load": "RuntimeClosedError", "close": "added"}[call]
        assert result.stdout.split() == [answer, "closed", "ends"]
        assert result.stderr == ""
        assert time.monotonic() - started < 20

    def test_it_can_end_when_a_runtime_was_never_left(self, loop: str) -> None:
        if loop == "trio":
            pytest.skip("trio refuses to end a task that left a nursery open")
        result = run_script(
            """
            from turnkeeper import open_runtime

            async def main():
                runtime = open_runtime()
                await runtime.__aenter__()
                await runtime.memory("m").add({"role": "user", "content": "hi"})

            run(main)
            """,
            loop,
        )
        assert result.stdout.split() == ["ends"], result.stderr[-2000:]
        assert result.returncode == 0

    def test_a_plain_script_can_end_while_the_store_hangs_for_ever(self, loop: str) -> None:
        result = run_script(
            """
            import threading
            from turnkeeper import TurnkeeperError, open_sync_runtime
            from turnkeeper.stores import InMemoryStore
            from turnkeeper.testing.faults import FaultStore

            store = FaultStore(InMemoryStore(), inline=False)
            stall = store.stall()

            def add(runtime):
                try:
                    runtime.memory("m").add({"role": "user", "content": "hi"})
                except TurnkeeperError as error:
                    print(type(error).__name__)

            with open_sync_runtime(store, backend=sys.argv[1], close_timeout=0.2) as runtime:
                thread = threading.Thread(target=add, args=(runtime,))
                thread.start()
                stall.entered.wait()
            thread.join()
            print("ends")
            """,
            loop,
        )
        assert result.stdout.split() == ["OutcomeUnknownError", "ends"], result.stderr[-2000:]
        assert result.returncode == 0

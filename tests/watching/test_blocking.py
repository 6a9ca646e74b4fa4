"""Watching from threads and plain scripts."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from turnkeeper import (
    InvalidArgumentError,
    Notice,
    Runtime,
    RuntimeClosedError,
    RuntimeUsageError,
    SyncChatMemory,
    SyncRuntime,
    Version,
    open_runtime,
    open_sync_runtime,
)
from watching.tools import BOUND, nothing_left, shown, user


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def sync_runtime(request: pytest.FixtureRequest, store_url: str) -> Any:
    with open_sync_runtime(store_url, backend=request.param) as opened:
        yield opened
        assert nothing_left(opened)


def put(memory: SyncChatMemory, *texts: str) -> None:
    for text in texts:
        memory.add(user(text))


class TestAScript:
    def test_the_iterator_ends_when_nothing_comes_and_goes_on(self, sync_runtime: SyncRuntime) -> None:
        memory = sync_runtime.memory("m")
        put(memory, "before")
        with memory.watch(timeout=0.05) as events:
            assert list(events) == []
            put(memory, "1", "2")
            memory.clear()
            assert [shown(event) for event in events] == ["1", "2", "clear"]
            put(memory, "3")
            assert [shown(event) for event in events] == ["3"]
            memory.delete()
            assert [shown(event) for event in events] == ["reset 0.0"]

    def test_it_goes_on_behind_a_version(self, sync_runtime: SyncRuntime) -> None:
        memory = sync_runtime.memory("m")
        put(memory, *map(str, range(250)))
        log = memory.history(limit=1000).entries
        with memory.watch(Version(0, 0), timeout=timedelta(milliseconds=50)) as events:
            assert tuple(events) == log
        with memory.watch(log[100].version, timeout=0.05) as events:
            assert tuple(events) == log[101:]

    def test_notices(self, sync_runtime: SyncRuntime) -> None:
        memory = sync_runtime.memory("m", "tenant")
        with sync_runtime.watch("tenant", timeout=0.05) as watch:
            put(memory, "1", "2", "3")
            put(sync_runtime.memory("m"), "1")
            version = memory.messages().version
            assert list(watch) == [Notice("m", "tenant", version)]
            assert list(watch) == []
            put(memory, "4")
            assert [it.version.n for it in watch] == [4]

    def test_more_notices_than_one_call_brings(self, sync_runtime: SyncRuntime) -> None:
        with sync_runtime.watch(timeout=0.05) as watch:
            for number in range(250):
                put(sync_runtime.memory(str(number)), "1")
            assert [it.id for it in watch] == [str(number) for number in range(250)]

    def test_bad_arguments(self, sync_runtime: SyncRuntime) -> None:
        for watch in (sync_runtime.watch, sync_runtime.memory("m").watch):
            with pytest.raises(InvalidArgumentError, match="timeout"):
                watch(timeout=-1)
            with pytest.raises(RuntimeUsageError, match="async with"):
                next(iter(watch()))
            with pytest.raises(TypeError):
                watch().__reduce__()
        assert repr(sync_runtime.watch()) == "<SyncRuntimeWatch>"
        assert repr(sync_runtime.memory("m").watch()) == "<SyncMemoryWatch memory='m'>"


class Waiter:
    """A thread that waits in an iterator, and says what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.outcome: object = None
        self._function = function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._function()
        except BaseException as error:
            self.outcome = error

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in it, as soon as it runs Python again: as Ctrl-C does in a main thread."""
        assert self._thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread.ident), ctypes.py_object(KeyboardInterrupt)
        )

    def result(self) -> object:
        self._thread.join(BOUND)
        assert not self._thread.is_alive()
        return self.outcome


def wait_in(core: Any, function: Callable[[], object]) -> Waiter:
    """Start a thread, and return when it waits in the loop."""
    before = [id(event) for event in _waited_for(core)]
    waiter = Waiter(function)
    deadline = time.monotonic() + BOUND
    while all(id(event) in before for event in _waited_for(core)):
        assert time.monotonic() < deadline, "it does not wait"
        time.sleep(0.001)
    return waiter


def _waited_for(core: Any) -> list[object]:
    """Return the events that somebody waits for."""
    signals = [*core.watching._signals.values(), *[feed.signal for feed in list(core.watching._feeds)]]
    return [signal._event for signal in signals if signal._event is not None]


class TestInterrupted:
    def test_an_event_that_was_on_its_way_comes_next(self, sync_runtime: SyncRuntime) -> None:
        memory = sync_runtime.memory("m")
        with memory.watch() as events:
            for number in range(3):
                waiter = wait_in(sync_runtime._core, lambda: next(events))
                waiter.interrupt()  # it is delivered when the thread wakes: with the event in its hands
                put(memory, str(number))
                outcome = waiter.result()
                if isinstance(outcome, KeyboardInterrupt):
                    outcome = next(events)
                assert shown(outcome) == str(number)
            events._timeout = 0.01
            assert list(events) == []

    def test_a_notice_that_was_on_its_way_comes_next(self, sync_runtime: SyncRuntime) -> None:
        with sync_runtime.watch() as watch:
            for number in range(3):
                waiter = wait_in(sync_runtime._core, lambda: next(watch))
                waiter.interrupt()
                put(sync_runtime.memory(str(number)), "1")
                outcome = waiter.result()
                if isinstance(outcome, KeyboardInterrupt):
                    outcome = next(watch)
                assert isinstance(outcome, Notice)
                assert outcome.id == str(number)

    def test_the_wait_in_the_loop_ends_with_its_thread(self, sync_runtime: SyncRuntime) -> None:
        """Nobody commits anything: the interrupt is noticed by itself, and leaves no wait behind."""
        with sync_runtime.memory("m").watch() as events:
            waiter = wait_in(sync_runtime._core, lambda: next(events))
            waiter.interrupt()
            assert isinstance(waiter.result(), KeyboardInterrupt)
            (signal,) = sync_runtime._core.watching._signals.values()
            deadline = time.monotonic() + BOUND
            while signal.places:  # the loop is told, and nobody waits for it
                assert time.monotonic() < deadline, "the wait is left behind"
                time.sleep(0.001)
            put(sync_runtime.memory("m"), "1")
            assert shown(next(events)) == "1"


class TestClosing:
    def test_a_thread_that_waits_gets_an_error(self, store_url: str) -> None:
        with open_sync_runtime(store_url) as runtime:
            memory = runtime.memory("m")

            def watch() -> None:
                with memory.watch() as events:
                    for _ in events:
                        pass

            waiter = wait_in(runtime._core, watch)
        assert isinstance(waiter.result(), RuntimeClosedError)
        assert nothing_left(runtime)

    def test_left_by_another_thread_it_ends_too(self, sync_runtime: SyncRuntime) -> None:
        with sync_runtime.memory("m").watch() as events:
            waiter = wait_in(sync_runtime._core, lambda: next(events))
        assert isinstance(waiter.result(), RuntimeUsageError)


class TestThreads:
    def test_threads_that_iterate_together_share_the_events(self, sync_runtime: SyncRuntime) -> None:
        memory = sync_runtime.memory("m")
        shared: list[str] = []
        with memory.watch(timeout=0.3) as events:

            def take() -> None:
                shared.extend(shown(event) for event in events)

            takers = [Waiter(take) for _ in range(4)]
            writers = [Waiter(partial(put, memory, *[f"{n}.{k}" for k in range(25)])) for n in range(8)]
            assert all(writer.result() is None for writer in writers)
            assert all(taker.result() is None for taker in takers)
        assert sorted(shared) == sorted(f"{n}.{k}" for n in range(8) for k in range(25))


@pytest.mark.anyio
class TestBesideTasks:
    @pytest.fixture
    async def runtime(self, store_url: str) -> AsyncIterator[Runtime]:
        async with open_runtime(store_url) as opened:
            yield opened

    async def test_a_thread_watches_what_tasks_write(self, runtime: Runtime) -> None:
        blocking = runtime.sync.memory("m")

        def watch() -> list[str]:
            with blocking.watch() as events:
                anyio.from_thread.run_sync(ready.set)
                return [shown(next(events)) for _ in range(50)]

        ready = anyio.Event()
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:
                seen: list[str] = []

                async def run() -> None:
                    seen.extend(await to_thread.run_sync(watch))

                group.start_soon(run)
                await ready.wait()
                for number in range(50):
                    await runtime.memory("m").add(user(str(number)))
        assert seen == [str(number) for number in range(50)]
        assert nothing_left(runtime)

    async def test_on_the_loop_s_own_thread_it_is_refused(self, runtime: Runtime) -> None:
        for watch in (runtime.sync.memory("m").watch(), runtime.sync.watch()):
            with pytest.raises(RuntimeUsageError, match="async with"):
                watch.__enter__()
        assert nothing_left(runtime)

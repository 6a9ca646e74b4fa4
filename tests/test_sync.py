"""The blocking facade: same results and errors, from any number of threads."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import (
    ConflictError,
    InvalidArgumentError,
    InvalidMessageError,
    MissingExtraError,
    Receipt,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreInUseError,
    SyncRuntime,
    Version,
    open_runtime,
    open_sync_runtime,
)

BACKENDS: list[Any] = ["asyncio", "uvloop", "trio"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0) … work(count - 1)` in threads at once, and raise what the first of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def expect_16_times_100(texts: list[str]) -> None:
    by_thread: dict[str, list[int]] = {}
    for text in texts:
        number, turn = text.split(".")
        by_thread.setdefault(number, []).append(int(turn))
    assert by_thread == {str(number): list(range(100)) for number in range(16)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_16_threads_add_100_each_and_nothing_is_lost_doubled_or_reordered(backend: Any, store_url: str) -> None:
    with open_sync_runtime(store_url, backend=backend) as runtime:

        def work(number: int) -> None:
            memory = runtime.memory("m")
            for turn in range(100):
                memory.add(user(f"{number}.{turn}"))

        in_threads(16, work)
        expect_16_times_100([message.text for message in runtime.memory("m").messages()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_names_arguments_results_and_errors(backend: Any, store_url: str) -> None:
    with open_sync_runtime(store_url, backend=backend) as runtime:
        memory = runtime.memory("m", namespace="t")
        assert (memory.id, memory.namespace) == ("m", "t")
        assert memory.add() == Receipt(Version(0, 0), 0)
        first = memory.add(user("a"), idempotency_key="k")
        assert memory.add(user("a"), idempotency_key="k") == first
        assert memory.set([user("b"), user("c")], if_version=first.version).count == 2
        with pytest.raises(ConflictError):
            memory.set(user("x"), if_version=first.version)
        with pytest.raises(InvalidMessageError):
            memory.add("no message")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            memory.set()
        assert memory.messages().to_dicts() == [user("b"), user("c")]
        assert memory.messages() is memory.messages()
        assert memory.stats().message_count == 2
        assert memory.clear().version.n == 3
        assert memory.delete() is True
        assert runtime.stats().pending == 0
    with pytest.raises(RuntimeClosedError):
        memory.messages()
    with pytest.raises(RuntimeClosedError):
        memory.add(user("late"))


@pytest.mark.anyio
async def test_threads_beside_tasks_share_one_memory(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:

        def thread(number: int) -> None:
            memory = runtime.sync.memory("m")
            for turn in range(100):
                memory.add(user(f"{number}.{turn}"))

        async def task(number: int) -> None:
            memory = runtime.memory("m")
            for turn in range(100):
                await memory.add(user(f"{number}.{turn}"))

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(task, number)
                group.start_soon(anyio.to_thread.run_sync, thread, number + 8)
        expect_16_times_100([message.text for message in await runtime.memory("m").messages()])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "arguments", "name"),
    [
        ("add", (user("a"),), "memory.add"),
        ("set", (user("a"),), "memory.set"),
        ("messages", (), "memory.messages"),
        ("clear", (), "memory.clear"),
        ("delete", (), "memory.delete"),
        ("stats", (), "memory.stats"),
    ],
)
async def test_a_blocking_call_on_the_loops_own_thread_names_the_async_one(
    method: str, arguments: tuple[Any, ...], name: str
) -> None:
    async with open_runtime("memory:") as runtime:
        with pytest.raises(RuntimeUsageError, match=f"await {name}"):
            getattr(runtime.sync.memory("m"), method)(*arguments)
        with pytest.raises(RuntimeUsageError, match=r"runtime\.stats"):
            runtime.sync.stats()
        assert await runtime.memory("m").messages() == ()


@pytest.mark.anyio
async def test_a_foreign_thread_may_not_use_the_async_handle() -> None:
    async with open_runtime("memory:") as runtime:

        def elsewhere() -> None:
            with pytest.raises(RuntimeUsageError, match=r"runtime\.sync"):
                anyio.run(runtime.memory("m").messages)

        await anyio.to_thread.run_sync(elsewhere)


def test_a_body_that_raises_closes_the_runtime_and_raises_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"

    def body() -> None:
        with open_sync_runtime(url) as runtime:
            runtime.memory("m").add(user("kept"))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    with open_sync_runtime(url) as runtime:
        assert len(runtime.memory("m").messages()) == 1


def test_errors_of_opening_come_through(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with open_sync_runtime(url), pytest.raises(StoreInUseError), open_sync_runtime(url):
        pass


def test_backends_are_named_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="'asyncio', 'uvloop', 'trio'"), open_sync_runtime(backend="curio"):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install trio"), open_sync_runtime(backend="trio"):
        pass


def test_backend_options_reach_the_loop() -> None:
    seen = []

    class Loop(__import__("asyncio").SelectorEventLoop):  # type: ignore[misc]
        def __init__(self) -> None:
            seen.append("made")
            super().__init__()

    with open_sync_runtime("memory:", backend="asyncio", backend_options={"loop_factory": Loop}) as runtime:
        assert isinstance(runtime, SyncRuntime)
    assert seen == ["made"]

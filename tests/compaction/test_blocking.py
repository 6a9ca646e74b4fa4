"""Blocking code: `compact` with the same arguments, results and errors."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from compaction.summing import LAST_TURN, Model, turns
from support.schedule import Gate
from turnkeeper import (
    CompactionAbandonedError,
    CompactionError,
    CompactionPolicy,
    InvalidArgumentError,
    Message,
    MessageWindow,
    Receipt,
    SyncChatMemory,
    open_sync_runtime,
)
from windows.saying import spoken

BACKENDS: list[Any] = ["asyncio", "uvloop", "trio"]

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def say(memory: SyncChatMemory, first: int, last: int) -> None:
    for each in turns(first, last):
        memory.add(each)


def test_blocking_code_compacts_with_async_and_blocking_summarisers(backend: Any, tmp_path: Path) -> None:
    with open_sync_runtime(f"sqlite:///{tmp_path}/chats.db", backend=backend) as runtime:
        memory = runtime.memory("m")
        say(memory, 1, 3)
        model = Model()
        receipt = memory.compact(model, keep=LAST_TURN)
        assert isinstance(receipt, Receipt)
        assert model.calls == [("u1 a1 u2 a2", "")]
        assert spoken(memory.messages()) == "S1 u3 a3"
        say(memory, 4, 4)
        assert memory.compact(lambda messages, summary: f"{spoken(summary)}+", keep=2) is not None
        assert spoken(memory.messages()) == "S1+ u4 a4"
        assert memory.compact(model) is None
        assert runtime.stats().compactions == 2


def test_blocking_code_gets_the_same_errors(backend: Any) -> None:
    with open_sync_runtime(backend=backend) as runtime:
        memory = runtime.memory("m")
        say(memory, 1, 3)
        with pytest.raises(CompactionError):
            memory.compact(Model([]), keep=LAST_TURN)
        with pytest.raises(ConnectionError):
            memory.compact(Model(ConnectionError()), keep=LAST_TURN)
        with pytest.raises(InvalidArgumentError):
            memory.compact(Model(), keep=0)
        assert spoken(memory.messages()) == "u1 a1 u2 a2 u3 a3"


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_summariser_that_is_cancelled_inside_is_a_compaction_error(backend: Any, where: str) -> None:
    """Its model's client was cancelled, in our loop or in one of its own; so are nobody else and nothing else."""
    if backend == "trio" and where == "loop":
        pytest.skip("trio has no native cancellation")

    def cancelled(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        raise asyncio.CancelledError

    with open_sync_runtime(backend=backend) as runtime:
        memory = runtime.memory("m")
        say(memory, 1, 3)
        with pytest.raises(CompactionError, match=r"cancelled|Cancelled"):
            memory.compact(Model(asyncio.CancelledError()) if where == "loop" else cancelled, keep=LAST_TURN)
        assert spoken(memory.messages()) == "u1 a1 u2 a2 u3 a3"
        assert memory.compact(Model(), keep=LAST_TURN) is not None


def test_a_blocking_summariser_may_use_the_memory(backend: Any) -> None:
    """It runs in a thread of its own: neither the loop nor the memory waits for it."""
    with open_sync_runtime(backend=backend) as runtime:
        memory = runtime.memory("m")
        say(memory, 1, 3)

        def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            say(memory, 4, 4)
            with pytest.raises(CompactionError, match="under way"):
                memory.compact(Model(), keep=LAST_TURN)
            return f"S{len(memory.messages())}"

        memory.compact(summarise, keep=LAST_TURN)
        assert spoken(memory.messages()) == "S8 u3 a3 u4 a4"


def test_threads_go_on_while_a_summariser_works(backend: Any) -> None:
    with open_sync_runtime(backend=backend) as runtime, Gate() as gate:
        memory = runtime.memory("m")
        say(memory, 1, 3)
        failed: list[CompactionAbandonedError] = []

        def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
            gate.stop_thread()
            return "S"

        def compact() -> None:
            try:
                memory.compact(summarise, keep=LAST_TURN)
            except CompactionAbandonedError as error:
                failed.append(error)

        for number in range(2):
            thread = threading.Thread(target=compact)
            thread.start()
            gate.arrival_in_thread(number + 1)
            say(memory, 4 + number, 4 + number)
            if number:
                memory.set(turns(9, 9))
            gate.let_through()
            thread.join()
            if not number:
                assert spoken(memory.messages()) == "S u3 a3 u4 a4"
        assert len(failed) == 1
        assert spoken(memory.messages()) == "u9 a9"


def test_a_policy_needs_no_event_loop_of_the_user_s(backend: Any) -> None:
    asked = threading.Event()

    def summarise(messages: tuple[Message, ...], summary: tuple[Message, ...]) -> str:
        asked.set()
        return "S"

    policy = CompactionPolicy(summarise, MessageWindow(4), LAST_TURN)
    with open_sync_runtime(backend=backend, compaction=policy) as runtime:
        memory = runtime.memory("m")
        say(memory, 1, 3)
        assert asked.wait(30)
        while runtime.stats().compactions == 0:
            pass
        assert spoken(memory.messages()).startswith("S u3")

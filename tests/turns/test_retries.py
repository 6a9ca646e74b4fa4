"""A turn that is tried again with its idempotency key runs once."""

# ruff: noqa: PT012 - what fails is the turn, with all that is done in it

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    IdempotencyMismatchError,
    MessageWindow,
    OutcomeUnknownError,
    Receipt,
    Runtime,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnInterruptedError,
    TurnkeeperError,
    WindowOverflowError,
    open_runtime,
)
from turnkeeper.log import StoredReceipt
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, call, entered, pending, result, texts, unloaded, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(store_url) as opened:
        yield opened


@pytest.fixture
def memory(runtime: Runtime) -> ChatMemory:
    return runtime.memory("m")


async def run(memory: ChatMemory, text: str = "once", key: str = "k", **options: Any) -> Receipt | None:
    """Run a turn, and return its receipt."""
    async with memory.turn(idempotency_key=key, **options) as turn:
        await turn.add(user(text))
    return turn.receipt


async def repeated(memory: ChatMemory, key: str = "k", **options: Any) -> Receipt:
    """Try again, and return the receipt of the first one; the body must not run."""
    with pytest.raises(TurnAlreadyCommittedError) as caught:
        async with memory.turn(idempotency_key=key, **options):
            pytest.fail("the body ran")
    return caught.value.receipt


class TestCommitted:
    async def test_it_is_refused_before_its_body_with_the_first_receipt(
        self, runtime: Runtime, memory: ChatMemory
    ) -> None:
        first = await run(memory)
        assert await repeated(memory) == first
        await unloaded(runtime)
        assert await repeated(memory) == first
        assert await texts(memory) == ["once"]
        await memory.add(user("nobody is kept out"))
        await run(memory, "another", key="another")
        assert len(await texts(memory)) == 3

    async def test_also_after_a_clear_a_delete_and_a_set(self, memory: ChatMemory) -> None:
        first = await run(memory)
        for change in (memory.clear, lambda: memory.set(user("new")), memory.delete):
            await change()
            before = await texts(memory)
            assert await repeated(memory) == first
            assert await texts(memory) == before
        assert await texts(memory) == []

    async def test_also_after_a_restart_and_pruning(self, durable_url: str) -> None:
        async with open_runtime(durable_url, window=MessageWindow(1), history="window") as runtime:
            first = await run(runtime.memory("m"))
            await runtime.memory("m").add(user("2"))
            await runtime.memory("m").add(user("3"))
        async with open_runtime(durable_url) as runtime:
            assert await repeated(runtime.memory("m")) == first
            assert await texts(runtime.memory("m")) == ["3"]

    @pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "rollback"])
    async def test_whatever_on_busy_says(self, memory: ChatMemory, on_busy: Any) -> None:
        first = await run(memory)
        assert await repeated(memory, on_busy=on_busy) == first

    async def test_run_turn_does_not_call_its_function(self, memory: ChatMemory) -> None:
        first = await run(memory)
        with pytest.raises(TurnAlreadyCommittedError) as caught:
            await memory.run_turn(lambda _: pytest.fail("it ran"), idempotency_key="k")
        assert caught.value.receipt == first

    async def test_one_key_in_two_memories_is_two_keys(self, runtime: Runtime, memory: ChatMemory) -> None:
        await run(memory)
        await run(runtime.memory("n"))
        assert await texts(runtime.memory("n")) == ["once"]


class TestNotCommitted:
    async def test_the_key_of_a_turn_that_failed_stays_usable(self, memory: ChatMemory) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with memory.turn(idempotency_key="k") as turn:
                    await turn.add(user("lost"))
                    raise ZeroDivisionError
        first = await run(memory)
        assert await repeated(memory) == first
        assert await texts(memory) == ["once"]

    async def test_so_does_that_of_one_that_was_interrupted(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:

            async def hold() -> None:
                async with memory.turn(idempotency_key="k") as turn:
                    await turn.add(user("lost"))
                    await turn.interrupted()

            holding = Call(group, hold)
            await pending(runtime, 0)
            await memory.messages()
            await Call(group, lambda: run(memory, "new", key="other", on_busy="interrupt")).result()
            assert isinstance(await holding.result(), TurnInterruptedError)
        await run(memory)
        assert await texts(memory) == ["new", "once"]

    async def test_and_that_of_one_that_overflowed_the_window(self, runtime: Runtime) -> None:
        memory = runtime.memory("m", window=MessageWindow(2, on_overflow="error"))
        with pytest.raises(WindowOverflowError):
            async with memory.turn(idempotency_key="k") as turn:
                await turn.add(user("lost"))
                await turn.add(result("of no call"))
        await run(memory)
        assert await texts(memory) == ["once"]

    async def test_and_that_of_one_whose_commit_failed(self) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            store.fail_before()
            with pytest.raises(TurnkeeperError):
                await run(memory)
            first = await run(memory)
            assert await repeated(memory) == first

    async def test_an_unknown_outcome_is_settled_by_trying_again(self) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            store.fail_after()
            store.fail_before(None, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await run(memory)
            store.heal()
            assert (await repeated(memory)).count == 1
            assert await texts(memory) == ["once"]


class TestOpen:
    async def test_a_live_turn_with_the_key_is_busy(self, runtime: Runtime, memory: ChatMemory) -> None:
        """A client that gave up and sends again while the first request is still being answered."""
        async with anyio.create_task_group() as group:
            async with memory.turn(idempotency_key="k") as turn:
                await turn.add(user("once"))
                refused = await Call(group, lambda: run(memory, on_busy="reject")).result()
                assert isinstance(refused, TurnBusyError)
                waiting = Call(group, run, memory)
                await pending(runtime, 1)
            outcome = await waiting.result()
            assert isinstance(outcome, TurnAlreadyCommittedError)
            assert outcome.receipt == turn.receipt
        assert await texts(memory) == ["once"]

    async def test_when_it_fails_the_one_that_waits_runs(self, runtime: Runtime, memory: ChatMemory) -> None:
        async with anyio.create_task_group() as group:
            with pytest.raises(ZeroDivisionError):
                async with memory.turn(idempotency_key="k") as turn:
                    await turn.add(user("lost"))
                    waiting = Call(group, run, memory)
                    await pending(runtime, 1)
                    raise ZeroDivisionError
            assert isinstance(await waiting.result(), Receipt)
        assert await texts(memory) == ["once"]

    async def test_fifty_copies_of_a_request_run_once(self, memory: ChatMemory) -> None:
        ran = 0

        async def request() -> object:
            nonlocal ran
            try:
                async with memory.turn(idempotency_key="k") as turn:
                    ran += 1
                    await turn.add(user("once"))
            except TurnAlreadyCommittedError as error:
                return error.receipt
            return turn.receipt

        async with anyio.create_task_group() as group:
            calls = [Call(group, request) for _ in range(50)]
        assert ran == 1
        assert len({each.outcome.version for each in calls}) == 1
        assert await texts(memory) == ["once"]


class TestMismatch:
    @pytest.mark.parametrize("method", ["add", "set"])
    async def test_a_key_of_another_kind_of_request(self, memory: ChatMemory, method: str) -> None:
        await getattr(memory, method)(user("1"), idempotency_key="k")
        with pytest.raises(IdempotencyMismatchError):
            await run(memory)
        await run(memory, key="turn")
        with pytest.raises(IdempotencyMismatchError):
            await getattr(memory, method)(user("1"), idempotency_key="turn")
        assert await texts(memory) == ["1", "once"]

    async def test_other_content_on_add_and_set(self, memory: ChatMemory) -> None:
        for change in (memory.add, memory.set):
            key = change.__name__
            await change(user("1"), idempotency_key=key)
            before = await texts(memory)
            with pytest.raises(IdempotencyMismatchError):
                await change(user("2"), idempotency_key=key)
            await change(user("1"), idempotency_key=key)
            assert await texts(memory) == before

    async def test_the_content_of_a_turn_is_its_body_and_may_differ(self, memory: ChatMemory) -> None:
        first = await run(memory, "one answer of the model")
        assert await repeated(memory) == first


@pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
async def test_keys_live_for_a_day() -> None:
    async with open_runtime(InMemoryStore(clock=anyio.current_time)) as runtime:
        memory = runtime.memory("m")
        first = await run(memory)
        await anyio.sleep(86_390)
        assert await repeated(memory) == first
        await anyio.sleep(20)
        await run(memory, "twice")
        assert await texts(memory) == ["once", "twice"]


class Between(FaultStore):
    """Does something behind a key look-up, once."""

    hook: Callable[[], object] | None = None

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        found = super().receipts(names_and_keys)
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return found


async def test_a_key_committed_by_another_host_while_the_turn_was_being_opened(tmp_path: Path) -> None:
    """The look-up found nothing, then the other host committed, and then this one got the lease."""
    here = Between(SQLiteStore(tmp_path / "chats.db", shared=True))
    there = SQLiteStore(tmp_path / "chats.db", shared=True)
    async with open_runtime(here) as first, open_runtime(there) as second, anyio.create_task_group() as group:
        await first.memory("m").add(user("before"))
        with here.stall("receipts", when="after") as stall:
            trying = Call(group, run, first.memory("m"), "twice")
            await entered(stall)
            receipt = await run(second.memory("m"))
        outcome = await trying.result()
        assert isinstance(outcome, TurnAlreadyCommittedError)
        assert outcome.receipt == receipt
        assert await texts(first.memory("m")) == ["before", "once"]
        await second.memory("m").add(user("nobody is kept out"))


async def test_overflow_inside_a_turn_refuses_the_message_and_not_the_turn(runtime: Runtime) -> None:
    memory = runtime.memory("m", window=MessageWindow(3, on_overflow="error"))
    await memory.add(user("q"), call("c"))
    async with memory.turn(idempotency_key="k") as turn:
        with pytest.raises(WindowOverflowError):
            await turn.add(result("unknown"))
        await turn.add(result("c"))
        with pytest.raises(WindowOverflowError):
            await turn.add(result("c"))
        assert await texts(turn) == ["q", None, "42"]
    assert await texts(memory) == ["q", None, "42"]
    unload(runtime, "m")
    assert await texts(memory) == ["q", None, "42"]

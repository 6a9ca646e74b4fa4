"""The store fails, loses replies and hangs; callers get the truth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from turnkeeper.errors import OutcomeUnknownError, StoreUnavailableError
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.testing.control import unload
from turnkeeper.testing.faults import FaultStore, Stall
from turnkeeper.testing.suite.base import SuitePart
from turnkeeper.testing.suite.runtimes import texts, user
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS

__all__ = ["Faults"]


async def entered(stall: Stall) -> None:
    """Wait until a call hangs."""
    with anyio.fail_after(PATIENCE_SECONDS):
        assert await to_thread.run_sync(stall.entered.wait, PATIENCE_SECONDS)


class Faults(SuitePart):
    """When the store fails nothing is lost or doubled, and every caller is told the truth."""

    @asynccontextmanager
    async def faulty(self, place: Path, **options: Any) -> AsyncIterator[tuple[Runtime, FaultStore]]:
        """Open a runtime on a store that misbehaves where told."""
        store = FaultStore(self.make_store(place, None), inline=False)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with open_runtime(store, **options) as runtime:
                yield runtime, store

    async def test_a_commit_that_failed_before_it_began_changed_nothing(self, place: Path) -> None:
        """G7: what was to be replaced is still there when the replacement fails."""
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add(user("before"))
            for change in (memory.add, memory.set):
                store.fail_before()
                with pytest.raises(StoreUnavailableError):
                    await change(user("lost"))
            assert await texts(memory) == ["before"]
            await memory.add(user("after"))
            unload(runtime, "m")
            assert await texts(memory) == ["before", "after"]

    async def test_a_commit_whose_reply_is_lost_is_found_and_not_done_again(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            versions = []
            for n in range(4):
                store.fail_after()
                versions.append((await memory.add([user(f"{n}"), user("and more")])).version.n)
            assert versions == [1, 2, 3, 4]
            unload(runtime, "m")
            assert await texts(memory) == [text for n in range(4) for text in (f"{n}", "and more")]

    @pytest.mark.parametrize("kind", ["set", "clear", "delete", "undo", "turn", "metadata"])
    async def test_whatever_was_done_when_the_reply_was_lost_is_found(self, place: Path, kind: str) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add([user("a"), user("b")])
            wanted = {"set": ["new"], "undo": ["a"], "turn": ["a", "b", "new"], "metadata": ["a", "b"]}.get(kind, [])
            if kind == "turn":
                async with memory.turn() as turn:
                    await turn.add(user("new"))
                    store.fail_after()
            else:
                store.fail_after()
                changes: dict[str, Callable[[], Any]] = {
                    "set": lambda: memory.set(user("new")),
                    "clear": memory.clear,
                    "delete": memory.delete,
                    "undo": memory.undo,
                    "metadata": lambda: memory.set_metadata(title="new"),
                }
                await changes[kind]()
            unload(runtime, "m")
            assert await texts(memory) == wanted
            if kind == "metadata":
                assert (await memory.metadata()).title == "new"

    async def test_a_group_whose_reply_is_lost_is_settled_one_by_one(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            told: dict[str, bool] = {}

            async def send(memory: str) -> None:
                try:
                    await runtime.memory(memory).add(user(memory), idempotency_key="k")
                except StoreUnavailableError:
                    told[memory] = False
                else:
                    told[memory] = True

            store.fail_before(2)
            store.fail_after(3)
            async with anyio.create_task_group() as tasks:
                for n in range(40):
                    tasks.start_soon(send, f"{n}")
            store.heal()
            for memory, done in told.items():
                unload(runtime, memory)
                assert await texts(runtime.memory(memory)) == ([memory] if done else []), "what was told is not true"
                await runtime.memory(memory).add(user(memory), idempotency_key="k")
                assert await texts(runtime.memory(memory)) == [memory], "a retry with its key is done once"

    async def test_when_nobody_can_tell_what_became_of_it_the_caller_is_told_so(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add(user("before"))
            store.fail_after()
            store.fail_before(None, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await memory.add(user("who knows"), idempotency_key="k")
            store.heal()
            await memory.add(user("who knows"), idempotency_key="k")
            assert await texts(memory) == ["before", "who knows"], "a retry with its key is done once"

    async def test_a_load_that_failed_is_told_and_the_next_one_works(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add(user("a"))
            for fail in (store.fail_before, store.fail_after):
                unload(runtime, "m")
                fail(on="load")
                with pytest.raises(StoreUnavailableError):
                    await memory.messages()
                assert await texts(memory) == ["a"]

    async def test_a_caller_that_leaves_a_commit_that_hangs_does_not_undo_it(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add(user("a"))
            with store.stall() as stall:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(memory.add, user("b"))
                    await entered(stall)
                    tasks.cancel_scope.cancel()
            assert await texts(memory) == ["a", "b"]
            unload(runtime, "m")
            assert await texts(memory) == ["a", "b"]

    async def test_readers_never_see_what_is_not_committed(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            memory = runtime.memory("m")
            await memory.add(user("a"))
            seen: list[list[str]] = []

            async def read() -> None:
                seen.append(await texts(memory))

            async def send() -> None:
                with pytest.raises(StoreUnavailableError):
                    await memory.add(user("b"))

            async with anyio.create_task_group() as tasks:
                with store.stall() as stall:
                    tasks.start_soon(send)
                    await entered(stall)
                    store.fail_before()
                    tasks.start_soon(read)
                    for _ in range(10):
                        await anyio.lowlevel.checkpoint()
                    assert seen in ([], [["a"]])
            assert seen == [["a"]]

    async def test_the_others_go_on_when_one_memorys_commits_fail(self, place: Path) -> None:
        async with self.faulty(place) as (runtime, store):
            store.fail_before(None, memory_id="bad")
            failed: list[str] = []

            async def send(memory: str) -> None:
                try:
                    await runtime.memory(memory).add(user(memory))
                except StoreUnavailableError:
                    failed.append(memory)

            await send("bad")
            await send("good")
            store.heal()
            assert failed == ["bad"]
            assert await texts(runtime.memory("bad")) == []
            assert await texts(runtime.memory("good")) == ["good"]

"""The runtime on the store: what callers are promised, with this store below."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper.errors import ConflictError, IdempotencyMismatchError
from turnkeeper.memory import ChatMemory
from turnkeeper.opening import Runtime, open_runtime
from turnkeeper.testing.control import unload
from turnkeeper.testing.suite.base import SuitePart
from turnkeeper.testing.suite.threads import PATIENCE_SECONDS

__all__ = ["RuntimeOnTheStore", "TwoRuntimes", "user"]


def user(text: str) -> dict[str, Any]:
    """Make a user message."""
    return {"role": "user", "content": text}


async def texts(memory: ChatMemory) -> list[str]:
    """Read a memory."""
    return [message.text for message in await memory.messages()]


class _Running(SuitePart):
    @asynccontextmanager
    async def running(self, place: Path, **options: Any) -> AsyncIterator[Runtime]:
        """Open a runtime on a new store object, with a bound on all that is done with it."""
        with anyio.fail_after(PATIENCE_SECONDS):
            async with open_runtime(self.make_store(place, None), **options) as runtime:
                yield runtime


class RuntimeOnTheStore(_Running):
    """What a runtime promises its callers holds on this store."""

    async def test_200_concurrent_adds_are_all_there_once_in_each_senders_order(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")

            async def send(sender: int) -> None:
                for n in range(10):
                    await memory.add(user(f"{sender}.{n}"))

            async with anyio.create_task_group() as tasks:
                for sender in range(20):
                    tasks.start_soon(send, sender)
            assert unload(runtime, "m")
            said = await texts(memory)
            assert len(said) == 200
            for sender in range(20):
                mine = [text for text in said if text.startswith(f"{sender}.")]
                assert mine == [f"{sender}.{n}" for n in range(10)]

    async def test_200_adds_to_200_memories_at_once_stay_apart(self, place: Path) -> None:
        async with self.running(place) as runtime:
            async with anyio.create_task_group() as tasks:
                for n in range(200):
                    tasks.start_soon(runtime.memory(f"{n}").add, user(f"{n}"))
            for n in range(0, 200, 20):
                assert unload(runtime, f"{n}")
                assert await texts(runtime.memory(f"{n}")) == [f"{n}"]
            page = await runtime.memories(limit=1000)
            assert len(page.memories) == 200

    async def test_turns_are_kept_apart(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")

            async def take(number: int) -> None:
                async with memory.turn() as turn:
                    for part in range(3):
                        await turn.add(user(f"{number}.{part}"))
                        await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(take, number)
            unload(runtime, "m")
            said = await texts(memory)
            numbers = [text.partition(".")[0] for text in said]
            assert said == [f"{number}.{part}" for number in numbers[::3] for part in range(3)]
            assert sorted(numbers[::3]) == sorted(map(str, range(10)))

    async def test_a_turn_that_fails_leaves_nothing(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))

            async def fail() -> None:
                async with memory.turn() as turn:
                    await turn.add(user("half"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            await memory.add(user("after"))
            unload(runtime, "m")
            assert await texts(memory) == ["before", "after"]

    async def test_a_request_repeated_with_its_key_is_done_once(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            receipts = []

            async def send() -> None:
                receipts.append(await memory.add(user("once"), idempotency_key="k"))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(send)
            assert len(set(map(str, receipts))) == 1
            unload(runtime, "m")
            assert await memory.add(user("once"), idempotency_key="k") == receipts[0]
            with pytest.raises(IdempotencyMismatchError):
                await memory.add(user("something else"), idempotency_key="k")
            await memory.delete()
            assert await memory.add(user("once"), idempotency_key="k") == receipts[0]
            assert await texts(memory) == []

    async def test_a_cancelled_request_is_done_whole_or_not_at_all(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            acknowledged = []

            async def send(n: int, passes: int) -> None:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(cancel_later, scope, passes)
                        await memory.add([user(f"{n}.0"), user(f"{n}.1")])
                        acknowledged.append(n)
                        tasks.cancel_scope.cancel()

            async def cancel_later(scope: anyio.CancelScope, passes: int) -> None:
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                for n in range(40):
                    tasks.start_soon(send, n, n % 10)
            await memory.messages()
            unload(runtime, "m")
            said = await texts(memory)
            numbers = [text.partition(".")[0] for text in said[::2]]
            assert said == [f"{n}.{part}" for n in numbers for part in range(2)], "half a request is there"
            assert len(numbers) == len(set(numbers)), "a request is there twice"
            assert {f"{n}" for n in acknowledged} <= set(numbers), "an acknowledged request is lost"

    async def test_unloading_changes_no_read(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            for change in (
                memory.add([{"role": "system", "content": "s"}, user("a")]),
                memory.add([user("b"), {"role": "assistant", "content": "c"}]),
                memory.set([{"role": "system", "content": "t"}, user("d")]),
                memory.add(user("e")),
                memory.clear(),
                memory.add(user("f")),
            ):
                await change
                before = await memory.messages()
                assert unload(runtime, "m")
                after = await memory.messages()
                assert (after, after.version) == (before, before.version)

    async def test_undo_pop_edit_and_fork_are_in_the_log_and_the_state(self, place: Path) -> None:
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            for text in "abc":
                await memory.add([user(text), {"role": "assistant", "content": text.upper()}])
            full = await memory.messages()
            await memory.undo()
            await memory.pop()
            await memory.edit("1.0", user("edited"))
            forked = await memory.fork("other", at=full.version)
            assert forked.id == "other"
            unload(runtime, "m")
            unload(runtime, "other")
            assert await texts(memory) == ["edited", "A", "b"]
            assert await texts(runtime.memory("other")) == list("aAbBcC")
            assert [message.text for message in await memory.messages(at=full.version)] == list("aAbBcC")
            page = await memory.history(limit=100)
            assert [each.op for each in page.entries] == ["add", "add", "add", "undo", "pop", "edit"]
            newest = await memory.history(limit=2, reverse=True)
            assert [each.op for each in newest.entries] == ["edit", "pop"]

    async def test_a_watcher_sees_each_change_once_and_in_order(self, place: Path) -> None:
        async with self.running(place, watch_interval=0.01) as runtime:
            memory = runtime.memory("m")
            receipt = await memory.add(user("0"))
            versions: list[int] = []
            async with memory.watch(after=receipt.version) as events, anyio.create_task_group() as tasks:

                async def send() -> None:
                    for n in range(1, 11):
                        await memory.add(user(f"{n}"))

                tasks.start_soon(send)
                async for event in events:
                    versions.append(event.version.n)
                    if len(versions) == 10:
                        break
            assert versions == list(range(2, 12))

    async def test_metadata_listing_and_erasing_go_together(self, place: Path) -> None:
        async with self.running(place) as runtime:
            for each in ("a1", "a2", "b1"):
                await runtime.memory(each).add(user(each))
            await runtime.memory("a1").set_metadata(title="the first")
            unload(runtime, "a1")
            assert (await runtime.memory("a1").metadata()).title == "the first"
            page = await runtime.memories(prefix="a")
            assert [one.id for one in page.memories] == ["a1", "a2"]
            await runtime.erase(prefix="a")
            assert [one.id for one in (await runtime.memories()).memories] == ["b1"]
            assert await texts(runtime.memory("a1")) == []

    async def test_what_one_runtime_committed_the_next_one_has(self, place: Path) -> None:
        if not self.durable:
            pytest.skip("the store keeps nothing (durable)")
        async with self.running(place) as runtime:
            receipt = await runtime.memory("m").add([user("a"), user("b")], idempotency_key="k")
        async with self.running(place) as runtime:
            memory = runtime.memory("m")
            assert await texts(memory) == ["a", "b"]
            assert await memory.add([user("a"), user("b")], idempotency_key="k") == receipt
            await memory.set(user("c"), if_version=receipt.version)
            with pytest.raises(ConflictError):
                await memory.set(user("d"), if_version=receipt.version)


class TwoRuntimes(_Running):
    """Two runtimes on one shared store see each other's commits, and lose none."""

    @asynccontextmanager
    async def two(self, place: Path, **options: Any) -> AsyncIterator[tuple[Runtime, Runtime]]:
        """Open two runtimes."""
        if not self.make_store(place, None).shared:
            pytest.skip("one runtime owns this store")
        async with self.running(place, **options) as one, self.running(place, **options) as other:
            yield one, other

    async def test_strong_reads_show_what_the_other_runtime_committed(self, place: Path) -> None:
        """G16: a read right after the answer shows it, through whichever process."""
        async with self.two(place, consistency="strong") as (one, other):
            here, there = one.memory("m"), other.memory("m")

            async def both_show(*wanted: str) -> None:
                assert (await texts(here), await texts(there)) == (list(wanted), list(wanted))

            for n in range(4):
                await (here, there)[n // 2].add(user(f"{n}"))
                await both_show(*[f"{each}" for each in range(n + 1)])
            await here.set(user("anew"))
            await both_show("anew")
            await here.delete()
            await both_show()
            await here.add(user("again"))
            await both_show("again")

    async def test_100_adds_through_each_of_two_runtimes_are_all_there_once(self, place: Path) -> None:
        async with self.two(place) as (one, other):

            async def send(runtime: Runtime, sender: int) -> None:
                memory = runtime.memory("m")
                for n in range(10):
                    await memory.add(user(f"{sender}.{n}"))

            async with anyio.create_task_group() as tasks:
                for sender in range(10):
                    tasks.start_soon(send, (one, other)[sender % 2], sender)
            said = await texts(one.memory("m"))
            assert said == await texts(other.memory("m"))
            for sender in range(10):
                mine = [text for text in said if text.startswith(f"{sender}.")]
                assert mine == [f"{sender}.{n}" for n in range(10)], "a sender's messages were lost or reordered"
            assert len(said) == 100

    async def test_a_turn_keeps_the_other_runtime_out(self, place: Path) -> None:
        async with self.two(place) as (one, other):
            async with anyio.create_task_group() as tasks, one.memory("m").turn() as turn:
                await turn.add(user("t1"))
                tasks.start_soon(other.memory("m").add, user("other's"))
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                assert await texts(other.memory("m")) == []
                await turn.add(user("t2"))
            said = await texts(one.memory("m"))
            assert said in (["t1", "t2", "other's"], ["other's", "t1", "t2"]), "the turn was interrupted"

    async def test_a_watcher_sees_what_the_other_runtime_commits(self, place: Path) -> None:
        async with self.two(place, watch_interval=0.01) as (one, other):
            receipt = await one.memory("m").add(user("0"))
            versions: list[int] = []
            async with other.memory("m").watch(after=receipt.version) as events:
                for n in range(1, 6):
                    await one.memory("m").add(user(f"{n}"))
                async for event in events:
                    versions.append(event.version.n)
                    if len(versions) == 5:
                        break
            assert versions == [2, 3, 4, 5, 6]

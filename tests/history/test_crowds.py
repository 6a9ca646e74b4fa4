"""Changes to the log beside others: other tasks, other processes, callers that leave, stores that fail, `kill -9`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import turnkeeper
from support.schedule import CANCELLATIONS, How, every_cancellation
from turnkeeper import (
    ChatMemory,
    ConflictError,
    ContentionError,
    OutcomeUnknownError,
    Removed,
    Runtime,
    StoreUnavailableError,
    open_runtime,
)
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import BOUND, Call, assistant, entered, texts, unloaded, until, user

pytestmark = pytest.mark.anyio

BEFORE = ["1", "a", "2", "b"]

Change = Callable[[ChatMemory], Awaitable[object]]
CHANGES: dict[str, tuple[Change, list[str]]] = {
    "undo": (lambda memory: memory.undo(), ["1", "a"]),
    "pop": (lambda memory: memory.pop(), ["1", "a", "2"]),
    "edit": (lambda memory: memory.edit("1.2", user("two")), ["1", "a", "two", "b"]),
    "remove": (lambda memory: memory.remove("1.1"), ["1", "2", "b"]),
}


async def filled(runtime: Runtime, name: str = "m") -> ChatMemory:
    memory = runtime.memory(name)
    await memory.add(user("1"), assistant("a"), user("2"), assistant("b"))
    return memory


async def quiet(runtime: Runtime) -> None:
    await until(lambda: runtime.stats().pending == 0)


class TestCancelled:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("how", CANCELLATIONS)
    @pytest.mark.parametrize("cold", [False, True])
    async def test_where_it_waits_a_change_is_there_whole_or_not_at_all(
        self, tmp_path: Path, change: str, how: How, cold: bool
    ) -> None:
        function, after = CHANGES[change]
        async with open_runtime(SQLiteStore(tmp_path / "chats.db"), durability="relaxed") as runtime:
            count = 0

            async def prepare() -> ChatMemory:
                nonlocal count
                count += 1
                made = await filled(runtime, f"m{count}")
                if cold:
                    await unloaded(runtime, made.id)
                return made

            memory = await prepare()

            async def scenario() -> object:
                return await function(memory)

            async for outcome in every_cancellation(scenario, how):
                await quiet(runtime)
                found = await texts(memory)
                assert found in ([BEFORE, after] if outcome.cancelled else [after])
                await unloaded(runtime, memory.id)
                assert await texts(memory) == found
                memory = await prepare()
            assert count > 1

    @pytest.mark.parametrize("how", CANCELLATIONS)
    @pytest.mark.parametrize("history", [False, True])
    async def test_a_fork_is_made_whole_or_not_at_all(self, tmp_path: Path, how: How, history: bool) -> None:
        async with open_runtime(SQLiteStore(tmp_path / "chats.db"), durability="relaxed") as runtime:
            memory = await filled(runtime)
            count = 0

            async def scenario() -> object:
                return await memory.fork(f"f{count}", history=history)

            async for outcome in every_cancellation(scenario, how):
                await quiet(runtime)
                fork = runtime.memory(f"f{count}")
                found = await texts(fork)
                assert found in ([[], BEFORE] if outcome.cancelled else [BEFORE])
                entries = (await fork.history()).entries
                assert len(entries) == (1 if found else 0)
                assert await texts(memory) == BEFORE
                count += 1
            assert count > 1

    @pytest.mark.parametrize("how", CANCELLATIONS)
    async def test_looking_back_changes_nothing(self, tmp_path: Path, how: How) -> None:
        async with open_runtime(SQLiteStore(tmp_path / "chats.db"), durability="relaxed") as runtime:
            memory = await filled(runtime)
            at = (await memory.messages()).version

            async def scenario() -> object:
                return [await memory.history(), await memory.messages(at=at)]

            async for _ in every_cancellation(scenario, how):
                await quiet(runtime)
                assert await texts(memory) == BEFORE


@pytest.mark.parametrize("change", CHANGES)
class TestTheStoreFails:
    async def test_before_the_commit_nothing_is_changed(self, change: str) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = await filled(runtime)
            store.fail_before()
            with pytest.raises(StoreUnavailableError):
                await CHANGES[change][0](memory)
            assert await texts(memory) == BEFORE
            await CHANGES[change][0](memory)
            assert await texts(memory) == CHANGES[change][1]

    async def test_behind_it_the_answer_comes_all_the_same_and_it_is_done_once(self, change: str) -> None:
        store = FaultStore(InMemoryStore())
        async with open_runtime(store) as runtime:
            memory = await filled(runtime)
            store.fail_after()
            assert await CHANGES[change][0](memory) is not None
            assert await texts(memory) == CHANGES[change][1]
            assert len((await memory.history()).entries) == 2

    @pytest.mark.parametrize("committed", [False, True])
    async def test_when_nobody_can_tell_a_later_read_shows_the_truth(self, change: str, committed: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with open_runtime(store) as runtime:
            memory = await filled(runtime)
            (store.fail_after if committed else store.fail_before)()
            store.fail_before(None, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await CHANGES[change][0](memory)
            store.heal()
            assert await texts(memory) == (CHANGES[change][1] if committed else BEFORE)


@pytest.mark.parametrize("history", [False, True])
async def test_a_fork_whose_reply_is_lost_is_made(history: bool) -> None:
    store = FaultStore(InMemoryStore())
    async with open_runtime(store) as runtime:
        memory = await filled(runtime)
        store.fail_after(memory_id="f")
        fork = await memory.fork("f", history=history)
        assert await texts(fork) == BEFORE
        store.fail_before(memory_id="g")
        with pytest.raises(StoreUnavailableError):
            await memory.fork("g", history=history)
        assert await texts(await memory.fork("g", history=history)) == BEFORE


async def test_a_store_that_can_not_be_read_says_so(tmp_path: Path) -> None:
    store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
    async with open_runtime(store) as runtime:
        memory = await filled(runtime)
        at = (await memory.messages()).version
        for look in (memory.history, lambda: memory.messages(at=at), lambda: memory.fork("f", history=True)):
            store.fail_before(None, on="entries")
            with pytest.raises(StoreUnavailableError):
                await look()
            store.heal()
        assert len((await memory.history()).entries) == 1


class TestOneRuntime:
    async def test_200_adds_beside_undos_and_pops_each_message_is_there_or_was_returned_once(
        self, store_url: str
    ) -> None:
        async with open_runtime(store_url) as runtime:
            memory = runtime.memory("m", window=turnkeeper.TurnWindow(max_turns=3))
            returned: list[str] = []

            async def add(number: int) -> None:
                await memory.add(user(f"{number}"), assistant(f"answer {number}"))

            async def pop() -> None:
                message = await memory.pop()
                returned.extend([message.text] if message else [])

            async def undo() -> None:
                returned.extend(message.text for message in (await memory.undo()).messages)

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for number in range(200):
                        group.start_soon(add, number)
                        if number % 7 == 3:
                            group.start_soon(pop)
                        if number % 11 == 5:
                            group.start_soon(undo)
            await accounted(memory, returned, 400)
            unload(runtime, "m")
            await accounted(memory, returned, 400)


async def accounted(memory: ChatMemory, returned: list[str], said: int) -> None:
    """Each message that was said is shown, or was returned, once."""
    shown = [message.text for message in await memory.messages(window=turnkeeper.Unbounded())]
    assert len(shown) + len(returned) == said
    assert len({*shown, *returned}) == said
    entries = (await memory.history(limit=10_000)).entries
    assert [entry.version.n for entry in entries] == list(range(1, len(entries) + 1))
    assert sum(len(entry.messages) for entry in entries) == said


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chats.db?shared=true"


class TestTwoRuntimes:
    """On one file, as two processes are."""

    @pytest.mark.parametrize("change", ["undo", "pop"])
    @pytest.mark.parametrize("consistency", ["strong", "local"])
    async def test_what_was_not_seen_is_never_taken_back(self, tmp_path: Path, change: str, consistency: Any) -> None:
        store = FaultStore(SQLiteStore(tmp_path / "chats.db", shared=True))
        async with (
            open_runtime(store, consistency=consistency) as ours,
            open_runtime(SQLiteStore(tmp_path / "chats.db", shared=True)) as theirs,
            anyio.create_task_group() as group,
        ):
            memory = await filled(ours)
            with store.stall() as stall:
                changing = Call(group, CHANGES[change][0], memory)
                await entered(stall)
                await theirs.memory("m").add(user("theirs"), assistant("t"))
            assert isinstance(await changing.result(), ConflictError)
            assert await texts(memory) == [*BEFORE, "theirs", "t"]
            await CHANGES[change][0](memory)
            assert (await texts(theirs.memory("m")))[:4] == BEFORE

    @pytest.mark.parametrize("change", ["edit", "remove"])
    async def test_what_names_its_message_is_done_all_the_same(self, tmp_path: Path, change: str) -> None:
        store = FaultStore(SQLiteStore(tmp_path / "chats.db", shared=True))
        async with (
            open_runtime(store) as ours,
            open_runtime(SQLiteStore(tmp_path / "chats.db", shared=True)) as theirs,
            anyio.create_task_group() as group,
        ):
            memory = await filled(ours)
            with store.stall() as stall:
                changing = Call(group, CHANGES[change][0], memory)
                await entered(stall)
                await theirs.memory("m").add(user("theirs"))
            assert not isinstance(await changing.result(), Exception)
            for runtime in (ours, theirs):
                assert await texts(runtime.memory("m")) == [*CHANGES[change][1], "theirs"]

    async def test_each_follows_what_the_other_takes_back(self, shared: str) -> None:
        small = turnkeeper.MessageWindow(2, on_overflow="evict")
        async with open_runtime(shared, window=small) as one, open_runtime(shared, window=small) as other:
            memories = [one.memory("m"), other.memory("m")]
            dice = Random(6)
            await memories[0].add({"role": "system", "content": "s0"})
            for number in range(60):
                await self.change(dice.choice(memories), number, dice)
                found = [await each.messages() for each in memories]
                assert found[0] == found[1]
                assert [message.id for message in found[0]] == [message.id for message in found[1]]

    async def change(self, memory: ChatMemory, number: int, dice: Random) -> None:
        what = dice.randrange(5)
        if what == 0:
            await memory.add(user(f"{number}"), {"role": "system", "content": f"s{number}"})
        elif what == 1:
            await memory.add(user(f"{number}"), assistant("a"))
        elif what == 2:
            await memory.undo(dice.randint(1, 2))
        elif what == 3:
            await memory.pop()
        else:
            systems = [message for message in await memory.messages() if message.role == "system"]
            for message in systems:
                assert message.id is not None
                await memory.edit(message.id, {"role": "system", "content": dice.choice(["s0", f"s{number - 1}"])})

    async def test_each_message_is_there_or_was_returned_once(self, shared: str) -> None:
        returned: list[str] = []
        async with open_runtime(shared, conflict_attempts=50) as one, open_runtime(shared) as other:

            async def adding(runtime: Runtime, name: str) -> None:
                for number in range(15):
                    while True:
                        try:
                            await runtime.memory("m").add(user(f"{name} {number}"))
                            break
                        except ContentionError:
                            continue

            async def popping(runtime: Runtime) -> None:
                for _ in range(10):
                    try:
                        removed: Removed = await runtime.memory("m").undo()
                        returned.extend(message.text for message in removed.messages)
                    except (ConflictError, ContentionError):
                        continue

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for name, runtime in (("one", one), ("other", other)):
                        group.start_soon(adding, runtime, name)
                        group.start_soon(popping, runtime)
            await accounted(one.memory("m"), returned, 30)
            await accounted(other.memory("m"), returned, 30)


CRASHING = """
import sys, turnkeeper
url = sys.argv[1]
with turnkeeper.open_sync_runtime(url) as runtime:
    memory = runtime.memory("m")
    print("open", flush=True)
    number = 0
    while True:
        memory.add([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": f"{number}"}])
        memory.edit(f"{memory.messages().version.n}.0", {"role": "user", "content": f"edited {number}"})
        if number % 3 == 1:
            memory.undo()
        if number % 5 == 2:
            memory.fork(f"f{number}", history=number % 2 == 0)
        number += 1
        print(number, flush=True)
"""


@pytest.mark.parametrize("kill_at", [1, 4, 9])
def test_after_kill_9_each_entry_is_there_whole_or_not_at_all(tmp_path: Path, kill_at: int) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with subprocess.Popen([sys.executable, "-c", CRASHING, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        while int(process.stdout.readline()) < kill_at:
            pass
        process.kill()
        done = max([kill_at, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.wait(BOUND)
    with turnkeeper.open_sync_runtime(url) as runtime:
        memory = runtime.memory("m")
        entries = memory.history(limit=10_000).entries
        assert [entry.version.n for entry in entries] == list(range(1, len(entries) + 1))
        assert all(len(entry.messages) == {"add": 2, "edit": 1, "undo": 0}[entry.op] for entry in entries)
        adds = sum(entry.op == "add" for entry in entries)
        assert done <= adds <= done + 1
        assert memory.messages(at=entries[-1].version) == memory.messages()
        last = [entry.op for entry in entries]
        undone = {number for number in range(done) if number % 3 == 1}
        shown = memory.messages().to_dicts()
        assert shown[: 2 * (done - len(undone))] == [
            message
            for number in range(done)
            if number not in undone
            for message in (user(f"edited {number}"), assistant(f"{number}"))
        ]
        assert last[0] == "add"
        for number in range(2, done, 5):
            fork = runtime.memory(f"f{number}")
            assert fork.messages().to_dicts() == [
                message
                for earlier in range(number + 1)
                if earlier not in undone
                for message in (user(f"edited {earlier}"), assistant(f"{earlier}"))
            ]

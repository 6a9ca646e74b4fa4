"""What people who do this job report, each report as a test of the right behaviour; the rows are those of FIELD.md.

Rows about windows, turns and compaction belong to later releases. Some rows have their test where their subject is:
P83 in `processes/test_kill9.py`, P92 and P93 in `stores/test_sqlite.py`, what
servers add in `servers/test_field_rows.py`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

import turnkeeper
from processes.remote import BACKENDS, Backend, Remote, RemoteError, url_of
from support.schedule import Gate
from turnkeeper import ConflictError, InvalidMessageError, Message, Receipt, StoreError, StoreUnavailableError
from turnkeeper.log import Outcome, Slice, StoredEntry, StoredReceipt
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, Listed, Loaded, LoadQuery, SQLiteStore, Store

pytestmark = pytest.mark.anyio

TOOL_CALL: dict[str, Any] = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
ANSWER = {"role": "assistant", "content": "It is 42."}

OpenRuntime = Callable[..., turnkeeper.Runtime]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database goes."""
    return tmp_path / "chats.db"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, path: Path) -> Store:
    """Return a store that is not open yet; what it holds outlives a runtime."""
    return InMemoryStore() if request.param == "memory" else SQLiteStore(path)


@pytest.fixture
async def runtime(store: Store) -> AsyncIterator[turnkeeper.Runtime]:
    """Return an open runtime."""
    async with turnkeeper.open_runtime(store) as opened:
        yield opened


@pytest.fixture
def memory(runtime: turnkeeper.Runtime) -> turnkeeper.ChatMemory:
    """Return a handle of a memory that is empty."""
    return runtime.memory("m")


async def contents(memory: turnkeeper.ChatMemory) -> list[Any]:
    """Read the contents of all messages."""
    return [message.content for message in await memory.messages()]


async def dicts(memory: turnkeeper.ChatMemory) -> list[dict[str, Any]]:
    """Read all messages as they were given."""
    return (await memory.messages()).to_dicts()


def entries(path: Path) -> list[tuple[str, int, str, int]]:
    """Read id, version, kind and size of each entry with a connection of the standard library."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT head.id, entry.version, op, length(payload) FROM entry JOIN head USING (mid) ORDER BY 1, 2"
        ).fetchall()


class Delegating(Store):
    """A store of a user: it hands everything on to another one, and is called in threads."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: list[str] = []

    def open(self, *, durability: str) -> None:
        self.inner.open(durability=durability)

    def close(self) -> None:
        self.inner.close()

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        self.calls.append("commit")
        return self.inner.commit(slices, receipt_ttl=receipt_ttl)

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        self.calls.append("settle")
        return self.inner.settle(slices)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        self.calls += ["load"] * len(queries)
        return self.inner.load(queries)

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        self.calls.append("receipts")
        return self.inner.receipts(names_and_keys)

    def names(self, **page: Any) -> list[Listed]:
        return self.inner.names(**page)

    def expired(self, limit: int) -> list[MemoryName]:
        return self.inner.expired(limit)

    def entries(self, mid: int, **page: Any) -> list[StoredEntry]:
        return self.inner.entries(mid, **page)

    def describe(self) -> str:
        return "a user's store"


class Gated(Delegating):
    """Its commits (or its loads) stop at a gate."""

    def __init__(self, inner: Store, gate: Gate, at: str) -> None:
        super().__init__(inner)
        self._gate = gate
        self._at = at
        self.armed = True

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        if self._at == "commit" and self.armed:
            self._gate.stop_thread()
        return super().commit(slices, receipt_ttl=receipt_ttl)

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        if self._at == "load" and self.armed:
            self._gate.stop_thread()
        return super().load(queries)


# 1 Races and lost updates

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")


async def test_p1_two_runs_started_together_are_both_stored(memory: turnkeeper.ChatMemory) -> None:
    async def run(name: str) -> None:
        history = await memory.messages()
        await anyio.lowlevel.checkpoint()
        await memory.add(user(f"{name} saw {len(history)}"), {"role": "assistant", "content": name})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, "first")
        tasks.start_soon(run, "second")
    stored = await contents(memory)
    assert sorted(stored[1::2]) == ["first", "second"]
    assert len(stored) == 4


async def test_p2_a_handle_held_across_a_slow_call_overwrites_nothing(runtime: turnkeeper.Runtime) -> None:
    held = runtime.memory("m")
    await held.messages()
    await runtime.memory("m").add(user("saved meanwhile"))
    await held.add(user("saved at last"))
    assert await contents(held) == ["saved meanwhile", "saved at last"]


async def test_p3_first_saves_at_once_get_numbers_of_their_own(memory: turnkeeper.ChatMemory) -> None:
    receipts: list[Receipt] = []

    async def save(number: int) -> None:
        receipts.append(await memory.add(user(str(number))))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(save, number)
    assert sorted(receipt.version.n for receipt in receipts) == list(range(1, 21))
    assert len({receipt.version.mid for receipt in receipts}) == 1


async def test_p4_of_two_writers_that_replace_one_state_one_is_told_of_the_conflict(path: Path) -> None:
    url = url_of(path, shared=True)
    async with turnkeeper.open_runtime(url) as first, turnkeeper.open_runtime(url) as second:
        version = (await first.memory("m").add(user("base"))).version
        outcomes: list[str] = []

        async def replace(runtime: turnkeeper.Runtime, text: str) -> None:
            try:
                await runtime.memory("m").set(user(text), if_version=version)
                outcomes.append(text)
            except ConflictError:
                outcomes.append("conflict")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replace, first, "first")
            tasks.start_soon(replace, second, "second")
        winner = next(outcome for outcome in outcomes if outcome != "conflict")
        assert "conflict" in outcomes
        assert await contents(first.memory("m")) == await contents(second.memory("m")) == [winner]


async def test_p5_all_writes_of_many_tasks_at_a_barrier_are_kept(memory: turnkeeper.ChatMemory) -> None:
    with Gate() as gate:

        async def write(number: int) -> None:
            await gate.stop()
            await memory.add(user(str(number)))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(write, number)
            await gate.arrival(100)
            gate.open()
    assert sorted(map(int, await contents(memory))) == list(range(100))


async def test_p6_what_changes_while_it_is_saved_is_stored_as_it_was(path: Path) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "as it was"}]}
    batch = [message]
    with Gate() as gate:
        store = Gated(SQLiteStore(path), gate, "commit")
        async with turnkeeper.open_runtime(store) as runtime:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.memory("m").add, batch)
                await gate.arrival()
                message["content"][0]["text"] = "changed"  # type: ignore[index]
                batch.clear()
                gate.open()
            assert await contents(runtime.memory("m")) == [[{"type": "text", "text": "as it was"}]]


async def test_p7_25_tasks_add_to_a_new_session_of_a_new_file(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(25):
                tasks.start_soon(runtime.memory("new").add, user(str(number)))
        assert sorted(map(int, await contents(runtime.memory("new")))) == list(range(25))


async def test_p8_two_session_objects_on_one_file_do_not_diverge(path: Path) -> None:
    url = url_of(path, shared=True)
    async with turnkeeper.open_runtime(url) as first, turnkeeper.open_runtime(url) as second:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                for runtime in (first, second):
                    tasks.start_soon(runtime.memory("m").add, user(str(number)))
        assert await dicts(first.memory("m")) == await dicts(second.memory("m"))
        assert (await first.memory("m").stats()) == (await second.memory("m").stats())
    assert [version for _, version, _, _ in entries(path)] == list(range(1, 41))


@needs_proc
@pytest.mark.parametrize("backend", BACKENDS)
def test_p9_threads_add_to_one_file_without_a_connection_each(path: Path, backend: Backend) -> None:
    with turnkeeper.open_sync_runtime(url_of(path), backend=backend) as runtime:
        memory = runtime.memory("m")
        memory.add(user("first"))
        before = open_files(path)
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda number: memory.add(user(str(number))), range(200)))
        assert open_files(path) == before
        assert len(memory.messages()) == 201


async def test_p11_first_reads_at_once_of_a_new_store_find_it_empty(path: Path) -> None:
    found: list[int] = []

    async with turnkeeper.open_runtime(url_of(path)) as runtime:

        async def read(number: int) -> None:
            found.append(len(await runtime.memory(f"m{number % 2}").messages()))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(read, number)
    assert found == [0] * 5
    assert entries(path) == [], "reading creates nothing"


async def test_p14_a_double_submit_is_no_error_and_loses_nothing(memory: turnkeeper.ChatMemory) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(memory.add, user("submitted"))
    assert await contents(memory) == ["submitted", "submitted"]


def test_p17_one_session_in_two_processes_is_refused_or_shared_never_overwritten(path: Path) -> None:
    with Remote(url_of(path)) as owner:
        owner.call("add", "m", ["owner"])
        with pytest.raises(RemoteError) as refused, Remote(url_of(path)):
            pass
        assert refused.value.kind == "StoreInUseError"
    shared = url_of(path, shared=True)
    with Remote(shared) as first, Remote(shared) as second:
        first.call("add", "m", ["first"])
        second.call("add", "m", ["second"])
        assert first.call("read", "m")[1] == ["owner", "first", "second"]


async def test_c2_first_accesses_at_once_share_one_load(path: Path) -> None:
    with Gate() as gate:
        store = Gated(SQLiteStore(path), gate, "load")
        async with turnkeeper.open_runtime(store) as runtime:
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(runtime.memory("m").add, user(str(number)))
                    tasks.start_soon(runtime.memory("m").messages)
                await gate.arrival()
                gate.open()
            assert store.calls.count("load") == 1
            assert len(await runtime.memory("m").messages()) == 10
            assert runtime.stats().resident == 1


async def test_c3_c13_there_is_no_default_conversation(runtime: turnkeeper.Runtime) -> None:
    with pytest.raises(TypeError):
        runtime.memory()  # type: ignore[call-arg]
    for nothing in ("", None, 0):
        with pytest.raises(turnkeeper.InvalidMemoryIdError):
            runtime.memory(nothing)  # type: ignore[arg-type]


async def test_c7_c8_a_view_in_use_does_not_change_when_somebody_writes(memory: turnkeeper.ChatMemory) -> None:
    await memory.add(*map(user, "abc"))
    view = await memory.messages()
    seen = []
    for message in view:
        seen.append(message.content)
        await memory.add(user("appended"))
    await memory.set(user("reduced"))
    await memory.clear()
    assert seen == [message.content for message in view] == ["a", "b", "c"]


async def test_c9_batches_back_to_back_overwrite_nothing(memory: turnkeeper.ChatMemory) -> None:
    for number in range(20):
        await memory.add(user(f"{number} a"), user(f"{number} b"))
    messages = await memory.messages()
    assert [message.content for message in messages] == [f"{n} {letter}" for n in range(20) for letter in "ab"]
    assert len({message.id for message in messages}) == 40


async def test_c10_p51_what_was_added_during_a_slow_reduction_is_not_lost(memory: turnkeeper.ChatMemory) -> None:
    await memory.add(user("1"), user("2"))
    prompt = await memory.messages()
    await memory.add(user("said meanwhile"))
    with pytest.raises(ConflictError):
        await memory.set(user("summary of 1 and 2"), if_version=prompt.version)
    assert await contents(memory) == ["1", "2", "said meanwhile"]


async def test_c12_saves_of_one_sender_keep_their_order_among_others(memory: turnkeeper.ChatMemory) -> None:
    async def send(name: str) -> None:
        for number in range(20):
            await memory.add(user(f"{name} {number}"))

    async with anyio.create_task_group() as tasks:
        for name in "abcde":
            tasks.start_soon(send, name)
    stored = await contents(memory)
    for name in "abcde":
        assert [text for text in stored if text.startswith(name)] == [f"{name} {number}" for number in range(20)]


# 3 Interrupted turns, crashes, retries


async def test_p43_both_halves_of_an_exchange_are_written_in_one_batch_or_not_at_all(
    memory: turnkeeper.ChatMemory,
) -> None:
    with pytest.raises(InvalidMessageError, match="message 1, field 'tool_call_id'"):
        await memory.add(CALL, {"role": "tool", "content": "42"})
    assert await dicts(memory) == []
    await memory.add(CALL, RESULT)
    assert await dicts(memory) == [CALL, RESULT]


def forbid(path: Path, statement: str) -> None:
    """Make one kind of statement fail in the middle of a transaction."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TRIGGER forbidden BEFORE {statement} BEGIN SELECT RAISE(ABORT, 'forbidden'); END")


def allow(path: Path) -> None:
    """Undo it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER forbidden")


async def test_p44_a_write_that_fails_halfway_blocks_no_later_writer(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        memory, other = runtime.memory("m"), runtime.memory("other")
        await memory.add(user("a"))
        await anyio.to_thread.run_sync(forbid, path, "INSERT ON entry WHEN NEW.op = 'clear'")
        with pytest.raises(StoreError):
            await memory.clear()
        await other.add(user("b"))
        await memory.add(user("c"))
        assert await contents(memory) == ["a", "c"]
        await anyio.to_thread.run_sync(allow, path)
        await memory.clear()
        assert await contents(memory) == []


async def test_p45_a_save_that_fails_halfway_is_an_error_and_leaves_nothing(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        await anyio.to_thread.run_sync(forbid, path, "INSERT ON entry")
        with pytest.raises(StoreError):
            await runtime.memory("m").add(user("a"))
        assert (await runtime.memory("m").stats()).version.mid == 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM head").fetchone() == (0,)


async def test_p46_writes_of_one_sender_become_durable_in_their_order(path: Path) -> None:
    async def send(memory: turnkeeper.ChatMemory, sender: str) -> None:
        for number in range(20):
            await memory.add(user(f"{sender} {number}"))

    async with turnkeeper.open_runtime(url_of(path)) as runtime, anyio.create_task_group() as tasks:
        for sender in "abc":
            tasks.start_soon(send, runtime.memory("m"), sender)
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        stored = await contents(runtime.memory("m"))
    for sender in "abc":
        assert [text for text in stored if text[0] == sender] == [f"{sender} {number}" for number in range(20)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_p47_a_kill_in_the_middle_of_a_tool_sequence_leaves_what_was_acknowledged(path: Path, backend: Backend) -> None:
    with Remote(url_of(path), backend=backend) as victim:
        victim.call("add", "m", ["question"])
        victim.call("add_json", "m", [CALL])
        victim.send("add_json", "m", [RESULT, ANSWER])
        victim.kill()
    with turnkeeper.open_sync_runtime(url_of(path), backend=backend) as runtime:
        memory = runtime.memory("m")
        stored = memory.messages().to_dicts()
        assert stored in ([user("question"), CALL], [user("question"), CALL, RESULT, ANSWER])
        memory.add(RESULT, ANSWER)  # the conversation goes on
        assert memory.messages().to_dicts()[: len(stored)] == stored


async def test_p49_p50_g7_a_replacement_that_fails_leaves_the_old_history(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("a"), user("b"))
        await anyio.to_thread.run_sync(forbid, path, "INSERT ON entry WHEN NEW.op = 'set'")
        with pytest.raises(StoreError):
            await memory.set(user("new"))
        assert await contents(memory) == ["a", "b"]
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        assert await contents(runtime.memory("m")) == ["a", "b"]


@pytest.mark.parametrize("taken", [False, True])
async def test_p49_a_replacement_whose_caller_leaves_is_there_whole_or_not_at_all(path: Path, taken: bool) -> None:
    with Gate() as gate:
        store = Gated(SQLiteStore(path), gate, "commit")
        store.armed = False
        async with turnkeeper.open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("a"), user("b"))
            store.armed = True
            async with anyio.create_task_group() as tasks:
                if not taken:
                    tasks.start_soon(memory.add, user("c"))  # it is in the store: what comes now has to wait
                    await gate.arrival()
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as caller:
                        caller.start_soon(memory.set, [user("new"), user("newer")])
                        if taken:
                            await gate.arrival()
                        else:
                            await anyio.wait_all_tasks_blocked()
                        scope.cancel()
                gate.open()
            assert await contents(memory) == (["new", "newer"] if taken else ["a", "b", "c"])


def test_p55_the_same_rules_hold_for_threads_and_tasks(path: Path) -> None:
    async def asynchronous() -> list[Any]:
        async with turnkeeper.open_runtime(url_of(path.with_name("async.db"))) as runtime:
            memory = runtime.memory("m")
            got: list[Any] = [await memory.add(user("a"), user("b")), await memory.set([user("c")])]
            got += [await memory.add(), await memory.clear(), (await memory.messages()).to_dicts()]
            got += [await memory.delete(), await memory.delete(), (await memory.stats()).message_count]
            return got

    def blocking() -> list[Any]:
        with turnkeeper.open_sync_runtime(url_of(path.with_name("sync.db"))) as runtime:
            memory = runtime.memory("m")
            got: list[Any] = [memory.add(user("a"), user("b")), memory.set([user("c")])]
            got += [memory.add(), memory.clear(), memory.messages().to_dicts()]
            got += [memory.delete(), memory.delete(), memory.stats().message_count]
            return got

    assert anyio.run(asynchronous) == blocking()


# 4 Replacing


@pytest.mark.parametrize("nothing", [(), ([],), (None,), (iter(()),)], ids=["none", "[]", "None", "iterator"])
async def test_d3_g18_setting_nothing_is_refused_and_adding_nothing_is_nothing(
    memory: turnkeeper.ChatMemory, nothing: tuple[Any, ...]
) -> None:
    before = await memory.add(user("a"))
    with pytest.raises(turnkeeper.InvalidArgumentError, match=r"clear\(\)"):
        await memory.set(*nothing)
    if nothing != (None,):
        assert await memory.add(*nothing) == Receipt(before.version, 0)
    assert (await memory.messages()).version == before.version


async def test_d4_the_callers_list_is_not_kept(memory: turnkeeper.ChatMemory) -> None:
    batch = [user("a"), user("b")]
    await memory.add(batch)
    batch[0]["content"] = "changed"
    batch.clear()
    assert await contents(memory) == ["a", "b"]
    shown = await dicts(memory)
    shown[0]["content"] = "changed"
    shown.clear()
    assert await contents(memory) == ["a", "b"]


# 6 Order, ids, persistence


async def test_p64_a_backward_clock_reverses_nothing(path: Path) -> None:
    times = iter(range(2_000_000, 0, -3600))
    store = SQLiteStore(path, clock=lambda: float(next(times)))
    updated = []
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        for number in range(5):
            await memory.add(user(str(number)))
            updated.append((await memory.stats()).updated_at)
        assert await contents(memory) == ["0", "1", "2", "3", "4"]
    assert updated == sorted(updated)
    async with turnkeeper.open_runtime(SQLiteStore(path)) as runtime:
        assert await contents(runtime.memory("m")) == ["0", "1", "2", "3", "4"]


async def test_p66_sessions_are_listed_in_the_order_of_their_names(store: Store) -> None:
    async with turnkeeper.open_runtime(store) as runtime:
        for memory_id in ("b", "B", "ä", "a", "aa"):
            await runtime.memory(memory_id).add(user("x"))
        found = store.names(namespace="", after=None, limit=100)
    assert [listed.name.id for listed in found] == ["B", "a", "aa", "b", "ä"]


async def test_p67_two_messages_with_one_id_both_stay(memory: turnkeeper.ChatMemory) -> None:
    """The rule: ids are the caller's; they are kept as they are and never used to drop or replace anything."""
    await memory.add(user("a") | {"id": "1"}, user("b") | {"id": "1"})
    await memory.add(user("c") | {"id": "1"})
    assert [(message.id, message.content) for message in await memory.messages()] == [
        ("1", "a"),
        ("1", "b"),
        ("1", "c"),
    ]
    await memory.clear()
    await memory.add(user("d") | {"id": "1"})
    assert [(message.id, message.content) for message in await memory.messages()] == [("1", "d")]


async def test_p68_a_loop_stores_what_is_new_and_a_repeated_request_nothing(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        memory = runtime.memory("m")
        for number in range(30):
            for _ in range(2):  # each step is sent twice
                await memory.add(user(f"{number:02}"), idempotency_key=f"step-{number}")
        assert len(await memory.messages()) == 30
    stored = entries(path)
    assert len(stored) == 30
    assert len({size for _, _, _, size in stored}) == 1, "an entry holds what is new, not the history"


async def test_p69_a_repeated_yes_is_kept(memory: turnkeeper.ChatMemory) -> None:
    for _ in range(3):
        await memory.add(user("yes"))
    await memory.add(user("yes"), user("yes"))
    assert await contents(memory) == ["yes"] * 5


async def test_p71_an_id_that_looks_like_a_number_of_ours_takes_nobodys_place(memory: turnkeeper.ChatMemory) -> None:
    await memory.add(user("a") | {"id": "2.0"}, user("b") | {"id": "1"})
    await memory.add(user("c"))
    messages = await memory.messages()
    assert [message.content for message in messages] == ["a", "b", "c"]
    assert [message.id for message in messages] == ["2.0", "1", "2.0"]


@pytest.mark.parametrize("memories", [1, 5])
async def test_g1_g3_g4_g6_order_does_not_depend_on_the_clock(path: Path, memories: int) -> None:
    async with turnkeeper.open_runtime(SQLiteStore(path, clock=lambda: 1_000_000.0)) as runtime:
        for number in range(30):
            await runtime.memory(str(number % memories)).add(user(f"{number} a"), user(f"{number} b"), CALL, RESULT)
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        for each in range(memories):
            expected = [
                message
                for number in range(each, 30, memories)
                for message in (user(f"{number} a"), user(f"{number} b"), CALL, RESULT)
            ]
            assert await dicts(runtime.memory(str(each))) == expected


async def test_g9_tool_messages_are_kept_as_they_are(store: Store) -> None:
    exchange = [user("question"), CALL, RESULT, ANSWER]
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add(exchange)
        assert await dicts(runtime.memory("m")) == exchange
    async with turnkeeper.open_runtime(store) as runtime:
        assert await dicts(runtime.memory("m")) == exchange


async def test_g10_a_message_is_appended_and_nothing_is_written_again(path: Path) -> None:
    async with turnkeeper.open_runtime(url_of(path)) as runtime:
        for number in range(150):
            await runtime.memory("m").add(user(f"{number:03}"))
    stored = entries(path)
    assert [version for _, version, _, _ in stored] == list(range(1, 151))
    assert len({size for _, _, _, size in stored}) == 1


async def test_g11_to_replace_is_to_replace(memory: turnkeeper.ChatMemory) -> None:
    for number in range(3):
        history = await memory.messages()
        await memory.set([*history, user(str(number))])
    assert await contents(memory) == ["0", "1", "2"]


async def test_g12_a_memory_in_use_is_not_read_from_the_store_again(path: Path) -> None:
    store = Delegating(SQLiteStore(path))
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        for number in range(10):
            await memory.messages()
            await memory.add(user(str(number)))
    assert store.calls.count("load") == 1


async def test_g16_who_got_an_answer_reads_what_it_wrote(runtime: turnkeeper.Runtime) -> None:
    for number in range(20):
        await runtime.memory("m").add(user(str(number)))
        assert (await contents(runtime.memory("m")))[-1] == str(number)


async def test_g18_an_empty_memory_can_be_added_to(store: Store) -> None:
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(CALL, RESULT)
        await memory.clear()
        assert await contents(memory) == []
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        assert await contents(memory) == []
        await memory.add(user("on"))
        assert await contents(memory) == ["on"]


async def test_g19_p96_p97_whatever_a_provider_adds_comes_back_in_order(store: Store) -> None:
    signed: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "Ev0B/+=="}]},
        {"role": "assistant", "content": None, "reasoning_items": [{"id": "rs_1", "encrypted": "x"}], "audio": None},
        {**CALL, "tool_calls": [{**TOOL_CALL, "extra_content": {"google": {"thought_signature": "s"}}}]},
        {**RESULT, "is_error": False, "n": 1.5, "big": 2**53, "nested": {"deep": [[[{}]]]}},
        {"role": "assistant", "content": "", "refusal": "no", "annotations": []},
    ]
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add(signed)
    async with turnkeeper.open_runtime(store) as runtime:
        assert await dicts(runtime.memory("m")) == signed


# 7 Encoding and size


@dataclass
class Dataclass:
    field: int = 1


UNSERIALISABLE = [
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(seconds=1),
    Decimal("1.5"),
    UUID(int=1),
    b"bytes",
    {1, 2},
    {1: "an integer key"},
    Dataclass(),
    Path("/tmp"),
    object(),
    float("nan"),
    float("inf"),
    lambda: None,
]


@pytest.mark.parametrize("value", UNSERIALISABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("depth", [0, 2])
async def test_p72_p73_p74_what_json_can_not_carry_is_refused_by_the_path_of_its_field(
    memory: turnkeeper.ChatMemory, value: object, depth: int
) -> None:
    before = await memory.add(user("a"))
    field: object = {"inner": [value]} if depth else value
    with pytest.raises(InvalidMessageError, match=r"message 1, field 'usage") as raised:
        await memory.add(user("fine"), user("not fine") | {"usage": field})
    assert (raised.value.index, (raised.value.field or "").partition(".")[0]) == (1, "usage")
    assert (await memory.messages()).version == before.version


ODD_TEXTS = [
    "\ud83d",
    "\ude00 tail",
    "a\udcffb",
    "\0",
    "\0" * 10,
    "\u0000\ud800\U0001f600",
    "\x7f\x80\x1b[2J",
    "\ufffe",
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
async def test_p75_p77_p78_odd_text_is_stored_as_it_is_and_poisons_nothing(store: Store, text: str) -> None:
    odd: list[dict[str, Any]] = [
        user(text),
        {"role": "user", "content": [{"type": "text", "text": text}], "name": text, "metadata": {text or "k": text}},
        {**CALL, "tool_calls": [{"id": text, "function": {"name": text, "arguments": text}}]},
        {"role": "tool", "tool_call_id": text, "content": text},
    ]
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add(odd)
        await runtime.memory("other").add(user("plain"))
    async with turnkeeper.open_runtime(store) as runtime:
        assert await dicts(runtime.memory("m")) == odd
        await runtime.memory("m").add(user("on"))
        assert await dicts(runtime.memory("m")) == [*odd, user("on")]
        assert await contents(runtime.memory("other")) == ["plain"]


async def test_p79_a_request_larger_than_all_bounds_is_let_in_alone(store: Store) -> None:
    bounds = {"max_pending_bytes": 1000, "group_bytes": 1000, "max_resident_bytes": 1000}
    async with turnkeeper.open_runtime(store, **bounds) as runtime:  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(runtime.memory("m").add, user("x" * 100_000))
        assert [len(text) for text in await contents(runtime.memory("m"))] == [100_000] * 3


# 8 Loops, leaks, life time, what is stored


class TestP85:
    """Used outside its context or its loop it says what to do, and hangs nowhere."""

    async def test_before_it_is_opened(self) -> None:
        runtime = turnkeeper.open_runtime("memory:")
        with pytest.raises(turnkeeper.RuntimeUsageError, match="async with open_runtime"):
            await runtime.memory("m").add(user("a"))

    async def test_after_it_is_closed(self) -> None:
        async with turnkeeper.open_runtime("memory:") as runtime:
            memory = runtime.memory("m")
        with pytest.raises(turnkeeper.RuntimeClosedError, match="closed"):
            await memory.add(user("a"))
        with pytest.raises(turnkeeper.RuntimeUsageError, match="open a new one"):
            async with runtime:
                pass

    async def test_in_another_loop(self, runtime: turnkeeper.Runtime) -> None:
        def in_another_loop() -> None:
            with pytest.raises(turnkeeper.RuntimeUsageError, match=r"runtime\.sync"):
                anyio.run(runtime.memory("m").add, user("a"))

        await anyio.to_thread.run_sync(in_another_loop)

    def test_in_the_next_loop_of_the_same_thread(self) -> None:
        async def build() -> turnkeeper.ChatMemory:
            async with turnkeeper.open_runtime("memory:") as runtime:
                return runtime.memory("m")

        memory = anyio.run(build)
        with pytest.raises(turnkeeper.RuntimeClosedError):
            anyio.run(memory.messages)


def open_files(path: Path) -> int:
    """Count this process's descriptors of a database and its side files."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{number}").startswith(str(path))
    return count


@needs_proc
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_p86_a_loop_for_each_turn_leaves_no_descriptor_and_no_thread_behind(path: Path, backend: str) -> None:
    async def turn(number: int) -> None:
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("m").add(user(str(number)))

    others = set(threading.enumerate())
    for number in range(31):
        anyio.run(turn, number, backend=backend)
    assert open_files(path) == 0
    ours = set(threading.enumerate()) - others
    for thread in ours:
        thread.join(10)  # they end on their own, a moment after the close that did not wait for them
    assert not any(thread.is_alive() for thread in ours)
    with turnkeeper.open_sync_runtime(url_of(path)) as runtime:
        assert len(runtime.memory("m").messages()) == 31


@needs_proc
def test_p87_a_thread_for_each_turn_opens_no_connection_of_its_own(path: Path) -> None:
    with turnkeeper.open_sync_runtime(url_of(path)) as runtime:
        runtime.memory("m").add(user("first"))
        before = open_files(path)
        for number in range(40):
            thread = threading.Thread(target=runtime.memory("m").add, args=(user(str(number)),))
            thread.start()
            thread.join()
        assert open_files(path) == before
        assert len(runtime.memory("m").messages()) == 41


async def test_p88_a_slow_store_slows_its_senders_down_instead_of_filling_memory(path: Path) -> None:
    with Gate() as gate:
        store = Gated(SQLiteStore(path), gate, "commit")
        async with turnkeeper.open_runtime(store, max_pending=10) as runtime:
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(runtime.memory(str(number % 7)).add, user(str(number)))
                await gate.arrival()
                await anyio.wait_all_tasks_blocked()
                assert (runtime.stats().pending, runtime.stats().waiting) == (10, 90)
                gate.open()
            assert runtime.stats().peak_pending == 10
            assert sum([len(await runtime.memory(str(number)).messages()) for number in range(7)]) == 100


async def test_p91_what_is_held_in_ram_is_bounded_and_nothing_is_lost(store: Store) -> None:
    bounds = {"max_resident": 10, "max_resident_bytes": 20_000}
    async with turnkeeper.open_runtime(store, durability="relaxed", **bounds) as runtime:  # type: ignore[arg-type]
        for number in range(300):
            await runtime.memory(str(number % 25)).add(user("x" * 1000))
            assert runtime.stats().resident_bytes <= 20_000
            assert runtime.stats().resident <= 10
        assert [len(await runtime.memory(str(number)).messages()) for number in range(25)] == [12] * 25


async def test_p98_a_users_own_store_is_a_plain_blocking_class() -> None:
    store = Delegating(InMemoryStore())
    async with turnkeeper.open_runtime(store) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(runtime.memory("m").add, user(str(number)))
        assert len(await runtime.memory("m").messages()) == 20
    async with turnkeeper.open_runtime(store) as runtime:
        assert len(await runtime.memory("m").messages()) == 20
    assert store.calls.count("commit") >= 1


class LastOnly(turnkeeper.Window):
    """Shows the last message."""

    def view(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages[-1:]


async def test_p99_a_window_that_drops_messages_changes_nothing_that_is_stored(store: Store) -> None:
    async with turnkeeper.open_runtime(store, window=LastOnly()) as runtime:
        for number in range(3):
            await runtime.memory("m").add(user(str(number)))
            assert await contents(runtime.memory("m")) == [str(number)]
        assert (await runtime.memory("m").stats()).message_count == 3
        assert await contents(runtime.memory("m", window=turnkeeper.Unbounded())) == ["0", "1", "2"]


async def test_p100_one_session_id_of_two_users_is_two_conversations(runtime: turnkeeper.Runtime) -> None:
    await runtime.memory("s", namespace="ada").add(user("of Ada"))
    await runtime.memory("s", namespace="bob").add(user("of Bob"))
    assert await contents(runtime.memory("s", namespace="ada")) == ["of Ada"]
    assert await contents(runtime.memory("s", namespace="bob")) == ["of Bob"]
    assert await contents(runtime.memory("s")) == []


async def test_h3_h4_a_store_that_blocks_does_not_block_the_loop(path: Path) -> None:
    with Gate() as gate:
        store = Gated(SQLiteStore(path), gate, "commit")
        async with turnkeeper.open_runtime(store) as runtime, anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.memory("m").add, user("slow"))
            await gate.arrival()
            for _ in range(100):  # the loop goes round while the store stands still
                await anyio.lowlevel.checkpoint()
            assert await contents(runtime.memory("other")) == []
            gate.open()


async def test_h5_a_memory_outlives_the_handles_and_the_tasks_that_used_it(runtime: turnkeeper.Runtime) -> None:
    async def request(number: int) -> None:
        await runtime.memory("m").add(user(str(number)))

    for number in range(3):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(request, number))
    assert await contents(runtime.memory("m")) == ["0", "1", "2"]


async def test_a_store_out_of_reach_is_a_typed_error_and_the_memory_goes_on_afterwards(path: Path) -> None:
    class Flaky(Delegating):
        down = False

        def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
            if self.down:
                raise StoreUnavailableError("the store is down")
            return super().commit(slices, receipt_ttl=receipt_ttl)

    store = Flaky(SQLiteStore(path))
    async with turnkeeper.open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("a"))
        store.down = True
        with pytest.raises(StoreUnavailableError, match="down"):
            await memory.add(user("b"))
        store.down = False
        await memory.add(user("c"))
        assert await contents(memory) == ["a", "c"]


async def test_a_users_store_may_raise_errors_of_its_own_kind(path: Path) -> None:
    """They reach each caller as store errors, whatever their constructors look like, and break no actor."""

    class NodeDownError(StoreUnavailableError):
        def __init__(self, *, node: int) -> None:
            super().__init__(f"node {node} is down")

    class Clustered(Delegating):
        down = ""

        def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
            if self.down == "commit":
                raise NodeDownError(node=7)
            return super().commit(slices, receipt_ttl=receipt_ttl)

        def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
            if self.down == "load":
                raise NodeDownError(node=7)
            return super().load(queries)

    store = Clustered(SQLiteStore(path))
    async with turnkeeper.open_runtime(store) as runtime:
        await runtime.memory("m").add(user("a"))
        for down, memory_id in (("commit", "m"), ("load", "other")):
            store.down = down
            with pytest.raises(StoreUnavailableError, match="node 7 is down"):
                await runtime.memory(memory_id).add(user("b"))
        store.down = ""
        assert await contents(runtime.memory("m")) == ["a"]

"""`erase` and `erase_all`: memories that are gone for good, wherever one looks, and whoever comes late."""

from __future__ import annotations

import gc
import sqlite3
import sys
import time
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from keeping.tools import BOUND, KINDS, Clock, listed, opened, store_of
from support.schedule import CANCELLATIONS, How, every_cancellation
from turnkeeper import (
    ConflictError,
    Erasure,
    InvalidArgumentError,
    InvalidMemoryIdError,
    RetentionPolicy,
    Runtime,
    StoreUnavailableError,
    Version,
    open_runtime,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore
from turns.tools import Call, texts, user

pytestmark = pytest.mark.anyio

SECRET = "c4n4" + "ry77"


@pytest.fixture
async def runtime(store_url: str) -> Any:
    async with open_runtime(store_url) as one:
        yield one


async def say(runtime: Runtime, *names: str, namespace: str = "") -> None:
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(runtime.memory(name, namespace).add, user(f"{SECRET} {name}"))


def found_in(folder: Path, text: str = SECRET) -> list[str]:
    """Return the files of a database that hold a text."""
    return sorted(path.name for path in folder.iterdir() if path.is_file() and text.encode() in path.read_bytes())


class TestWhich:
    async def test_by_id(self, runtime: Runtime) -> None:
        await say(runtime, "a", "b", "c")
        await say(runtime, "a", namespace="n")
        erased = await runtime.erase(["a", "c", "a", "never"])
        assert sorted(erased.ids) == [("a", ""), ("c", "")]
        assert (erased.count, erased.dry_run, erased.blocked) == (2, False, None)
        assert await listed(runtime) == ["b", "a"]
        assert (await runtime.erase(iter(["a"]), namespace="n")).ids == (("a", "n"),)
        assert (await runtime.erase([])).ids == ()

    async def test_by_prefix_byte_for_byte(self, runtime: Runtime) -> None:
        names = ["u\u00e9", "u\u00e9-1", "u\u00e9\U0010ffff", "u\u00ea", "u", "U\u00e9", "u%"]
        await say(runtime, *names)
        await say(runtime, "u\u00e9", namespace="n")
        erased = await runtime.erase(prefix="u\u00e9")
        assert {each for each, _ in erased.ids} == set(names[:3])
        assert set(await listed(runtime, namespace="")) == set(names[3:])
        assert await listed(runtime, namespace="n") == ["u\u00e9"]
        assert (await runtime.erase(prefix="u%")).ids == (("u%", ""),)

    async def test_everything_or_a_namespace_has_to_be_said_again(self, runtime: Runtime) -> None:
        await say(runtime, "a", "b")
        await say(runtime, "a", namespace="n")
        for confirm, namespace in (
            ("", None),
            ("", ""),
            ("n", None),
            ("every conversation", "n"),
            ("N", "n"),
            (None, None),
            (True, "n"),
        ):
            with pytest.raises(InvalidArgumentError):
                await runtime.erase_all(confirm=confirm, namespace=namespace)  # type: ignore[arg-type]
        assert len(await listed(runtime)) == 3
        assert (await runtime.erase_all(confirm="n", namespace="n")).ids == (("a", "n"),)
        assert (await runtime.erase_all(confirm="every conversation", namespace="")).count == 2
        await say(runtime, "a", namespace="n")
        assert (await runtime.erase_all(confirm="every conversation")).count == 1
        assert await listed(runtime) == []

    async def test_a_dry_run_tells_the_same_and_changes_nothing(self, runtime: Runtime) -> None:
        await say(runtime, "a1", "a2", "b")
        await runtime.memory("a3").set_metadata(title="no entry")
        await runtime.memory("a1").fork("b1")
        before = [each async for each in everything(runtime)]
        for query in ({"ids": ["a1", "b", "never"]}, {"prefix": "a"}, {"prefix": "a", "forks": True}):
            told = await runtime.erase(**query, dry_run=True)
            assert told.dry_run
            assert told.blocked is None
            assert [each async for each in everything(runtime)] == before
        assert sorted(told.ids) == [("a1", ""), ("a2", ""), ("a3", ""), ("b1", "")]
        assert sorted((await runtime.erase(prefix="a", forks=True)).ids) == sorted(told.ids)

    @pytest.mark.parametrize(
        "query",
        [
            {},
            {"ids": ["a"], "prefix": "a"},
            {"prefix": ""},
            {"ids": "abc"},
            {"ids": b"abc"},
            {"ids": [7]},
            {"ids": ["a", ""]},
            {"ids": ["a", "\ud83d"]},
            {"prefix": 7},
            {"prefix": "\0"},
            {"ids": ["a"], "namespace": None},
            {"prefix": "a", "namespace": None},
            {"ids": ["a"], "namespace": 0},
        ],
        ids=repr,
    )
    async def test_what_does_not_say_which_is_refused(self, query: dict[str, Any]) -> None:
        async with open_runtime("memory:") as runtime:
            await say(runtime, "a", "b", "c")
            with pytest.raises((InvalidArgumentError, InvalidMemoryIdError)):
                await runtime.erase(**query)
            with pytest.raises((InvalidArgumentError, InvalidMemoryIdError)):
                await to_thread.run_sync(lambda: runtime.sync.erase(**query))
            assert await listed(runtime) == ["a", "b", "c"]

    async def test_the_blocking_twin(self, runtime: Runtime) -> None:
        await say(runtime, "a", "b", "c")
        erased = await to_thread.run_sync(lambda: runtime.sync.erase(["a"]))
        assert erased.ids == (("a", ""),)
        everything = await to_thread.run_sync(lambda: runtime.sync.erase_all(confirm="every conversation"))
        assert everything.count == 2


async def everything(runtime: Runtime) -> Any:
    for each in (await runtime.memories(limit=1_000)).memories:
        yield each, await texts(runtime.memory(each.id, each.namespace))


class TestForks:
    async def test_they_go_with_it_and_theirs_too_across_namespaces(self, runtime: Runtime) -> None:
        await say(runtime, "a", "other")
        b = await runtime.memory("a").fork("b", namespace="n")
        await b.fork("c")
        await b.fork("d", history=True)
        await runtime.memory("other").fork("e")
        erased = await runtime.erase(["a"], forks=True)
        assert sorted(erased.ids) == [("a", ""), ("b", "n"), ("c", "n"), ("d", "n")]
        assert await listed(runtime) == ["e", "other"]

    async def test_without_it_they_stay(self, runtime: Runtime) -> None:
        await say(runtime, "a")
        await runtime.memory("a").fork("b")
        assert (await runtime.erase(["a"])).ids == (("a", ""),)
        assert await texts(runtime.memory("b")) == [f"{SECRET} a"]

    async def test_another_memory_that_has_a_forks_name_now_stays(self, runtime: Runtime) -> None:
        await say(runtime, "a", "x")
        await runtime.memory("a").fork("b")
        await runtime.memory("a").fork("c")
        await runtime.memory("b").delete()
        await runtime.memory("b").add(user("mine"))
        await runtime.memory("c").delete()
        await runtime.memory("x").fork("c")
        assert sorted((await runtime.erase(["a"], forks=True)).ids) == [("a", "")]
        assert await listed(runtime) == ["b", "c", "x"]

    async def test_an_erased_fork_is_listed_no_more(self, runtime: Runtime) -> None:
        await say(runtime, "a", "p")
        for name in ("b", "c"):
            await runtime.memory("a").fork(name)
        assert (await runtime.memory("a").metadata()).forks == (("b", ""), ("c", ""))
        await runtime.erase(["b"])
        assert (await runtime.memory("a").metadata()).forks == (("c", ""),)
        await runtime.memory("p").fork("q")
        await runtime.memory("p").delete()
        await runtime.erase(["q"])
        assert await listed(runtime) == ["a", "c"], "a parent that is gone is not made anew"

    @pytest.mark.parametrize("failing", ["a", "b", "c"])
    async def test_failing_in_between_no_fork_is_forgotten(self, failing: str) -> None:
        store = FaultStore(InMemoryStore())
        async with opened(store) as runtime:
            await say(runtime, "a")
            await runtime.memory("a").fork("b")
            await runtime.memory("b").fork("c")
            store.fail_before(None, memory_id=failing)
            with pytest.raises(StoreUnavailableError):
                await runtime.erase(["a"], forks=True)
            store.heal()
            assert await listed(runtime) == ["a", "b", "c"][: "abc".index(failing) + 1]
            assert (await runtime.erase(["a"], forks=True)).ids[-1] == ("a", "")
            assert await listed(runtime) == []

    async def test_a_fork_of_what_does_not_exist_makes_no_parent(self, runtime: Runtime) -> None:
        await runtime.memory("nobody").fork("b")
        assert await listed(runtime) == ["b"]

    async def test_many_of_them(self) -> None:
        async with open_runtime("memory:") as runtime:
            await say(runtime, "a")
            for number in range(150):
                await runtime.memory("a").fork(f"f{number}")
            assert (await runtime.erase(["a"], forks=True)).count == 151


class TestThoseWhoComeLate:
    async def test_what_is_queued_behind_it_makes_a_new_memory_and_what_was_before_is_gone(
        self, runtime: Runtime
    ) -> None:
        memory = runtime.memory("m")
        old = await memory.add(user("old"))
        async with anyio.create_task_group() as tasks:
            async with memory.turn() as turn:
                before = [Call(tasks, memory.add, user("before")) for _ in range(5)]
                await anyio.wait_all_tasks_blocked()
                pending = runtime.stats().pending
                erasing = Call(tasks, runtime.erase, ["m"])
                while runtime.stats().pending == pending:  # it looks at the store first
                    await anyio.lowlevel.checkpoint()
                behind = [Call(tasks, memory.add, user("behind")) for _ in range(5)]
                await anyio.wait_all_tasks_blocked()
                await turn.add(user("in the turn"))
                assert not erasing.done
            assert (await erasing.result()).count == 1
            for waiting in before:
                assert (await waiting.result()).version.mid == old.version.mid
            versions = [(await waiting.result()).version for waiting in behind]
            assert sorted(version.n for version in versions) == [1, 2, 3, 4, 5]
            assert old.version.mid not in {version.mid for version in versions}
        assert await texts(memory) == ["behind"] * 5
        with pytest.raises(ConflictError):
            await memory.messages(at=old.version)

    async def test_a_repeated_request_gets_its_receipt_and_brings_nothing_back(self, durable_url: str) -> None:
        async with open_runtime(durable_url) as runtime:
            first = await runtime.memory("m").add(user("1"), idempotency_key="k")
            await runtime.erase(["m"])
            assert await runtime.memory("m").add(user("1"), idempotency_key="k") == first
        async with open_runtime(durable_url) as runtime:
            assert await runtime.memory("m").add(user("1"), idempotency_key="k") == first
            assert await listed(runtime) == []
            assert (await runtime.memory("m").messages()).version == Version(0, 0)

    async def test_a_second_runtime_that_holds_it_still_brings_nothing_back(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/chats.db?shared=true"
        async with open_runtime(url) as one, open_runtime(url, consistency="local") as other:
            names = ("add", "set", "conditional", "turn", "metadata", "clear", "undo")
            await say(other, *names)
            for name in names:
                await other.memory(name).set_metadata(title=SECRET, data={"a": SECRET})
                assert len(await texts(other.memory(name))) == 1  # held in RAM
            version = (await other.memory("conditional").messages()).version
            open_turn = other.memory("turn").turn()
            turn = await open_turn.__aenter__()
            await turn.add(user("late"))
            async with anyio.create_task_group() as tasks:
                erasing = Call(tasks, lambda: one.erase([name for name in names if name != "turn"]))
                assert (await erasing.result()).count == len(names) - 1
            await open_turn.__aexit__(None, None, None)
            assert (await one.erase(["turn"])).count == 1
            assert await listed(one) == []
            await other.memory("add").add(user("late"))
            await other.memory("set").set(user("late"))
            with pytest.raises(ConflictError):
                await other.memory("conditional").set(user("late"), if_version=version)
            await other.memory("turn").add(user("late"))
            await other.memory("metadata").set_metadata(title="late")
            await other.memory("clear").clear()
            with pytest.raises(ConflictError):
                await other.memory("undo").undo()
            for name in await listed(one):
                assert all(SECRET not in text for text in await texts(one.memory(name)))
                known = await one.memory(name).metadata()
                assert (known.title in (None, "late"), known.data) == (True, {})
            assert await listed(one) == ["add", "metadata", "set", "turn"]

    async def test_those_who_write_all_the_while_lose_only_what_was_before(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        receipts: dict[str, Version] = {}
        done = anyio.Event()

        async def write(writer: int) -> None:
            for number in range(10):
                text = f"{writer}.{number}"
                receipts[text] = (await memory.add(user(text))).version

        async def erase() -> None:
            while not done.is_set():
                await runtime.erase(["m"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(erase)
            async with anyio.create_task_group() as writers:
                for writer in range(20):
                    writers.start_soon(write, writer)
            done.set()
        seen = await memory.messages()
        here = {version.n: text for text, version in receipts.items() if version.mid == seen.version.mid}
        assert [message.text for message in seen] == [here[n] for n in sorted(here)]
        assert len(set(receipts.values())) == 200


@pytest.mark.parametrize("how", CANCELLATIONS)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_cancelled_at_any_point_to_erase_again_does_the_rest(how: How, kind: str, tmp_path: Path) -> None:
    async with opened(store_of(kind, tmp_path, Clock())) as runtime:
        runs = 0

        async def erase() -> int:
            nonlocal runs
            runs += 1
            return (await runtime.erase([f"{runs}.a", f"{runs}.x"], forks=True)).count

        for number in range(1, 40):
            await say(runtime, f"{number}.a", f"{number}.x")
            await runtime.memory(f"{number}.a").fork(f"{number}.b")
        async for outcome in every_cancellation(erase, how):
            with anyio.fail_after(BOUND):
                again = await runtime.erase([f"{runs}.a", f"{runs}.x"], forks=True)
                assert again.count <= 3
                assert await listed(runtime, prefix=f"{runs}.") == []
            assert outcome.value in (None, 3)
            assert runs < 39


class TestFiles:
    @pytest.mark.parametrize("shared", [False, True])
    async def test_none_of_them_holds_what_was_erased(self, tmp_path: Path, shared: bool) -> None:
        async with open_runtime(f"sqlite:///{tmp_path}/chats.db{'?shared=true' if shared else ''}") as runtime:
            await say(runtime, *[f"{number}" for number in range(60)])
            await runtime.memory("keep").add(user("keep me"))
            for number in range(0, 60, 3):
                memory = runtime.memory(f"{number}")
                await memory.add(*[user(f"{SECRET} " * 400) for _ in range(3)])
                await memory.set_metadata(title=SECRET, data={SECRET: [SECRET] * 50})
                await memory.clear()
            await runtime.memory(f"{SECRET}-id").add(user("1"), idempotency_key="k")
            assert found_in(tmp_path)
            erased = await runtime.erase([*[f"{number}" for number in range(60)], f"{SECRET}-id"])
            assert (erased.count, erased.blocked) == (61, None)
            assert found_in(tmp_path) == []
            assert await texts(runtime.memory("keep")) == ["keep me"]
        assert found_in(tmp_path) == []

    async def test_nor_does_the_index_for_searching(self, tmp_path: Path) -> None:
        async with open_runtime(f"sqlite:///{tmp_path}/chats.db?search=true") as runtime:
            await say(runtime, *[f"{number}" for number in range(50)])
            await runtime.memory("keep").add(user("keep me"))
            erased = await runtime.erase([f"{number}" for number in range(50)])
            assert (erased.count, erased.blocked) == (50, None)
            assert found_in(tmp_path) == []
        assert found_in(tmp_path) == []

    async def test_a_fork_that_is_erased_leaves_no_name_with_its_parent(self, tmp_path: Path) -> None:
        async with open_runtime(f"sqlite:///{tmp_path}/chats.db") as runtime:
            await runtime.memory("a").add(user("1"))
            fork = await runtime.memory("a").fork(f"{SECRET}-fork")
            await fork.add(user(SECRET))
            assert (await runtime.erase([fork.id])).blocked is None
            assert found_in(tmp_path) == []

    async def test_pruning_and_erasing_something_else_cleans_what_was_pruned(self, tmp_path: Path) -> None:
        async with open_runtime(f"sqlite:///{tmp_path}/chats.db") as runtime:
            memory = runtime.memory("m")
            for _ in range(5):
                await memory.add(user(f"{SECRET} " * 100))
            await memory.set(user("1"))
            await memory.set_metadata(retention=RetentionPolicy(max_messages=1))
            await runtime._core.keeper.sweep()
            assert len((await memory.history()).entries) == 1
            assert (await runtime.erase([])).blocked is None
            assert found_in(tmp_path) == []

    async def test_a_reader_of_an_old_state_blocks_it_and_a_later_one_cleans(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "chats.db", shared=True, busy_timeout=0.2)
        async with opened(store) as runtime:
            await say(runtime, "a", "b")
            with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                assert reader.execute("SELECT count(*) FROM entry").fetchone() == (2,)
                erased = await runtime.erase(["a", "b"])
                assert erased.count == 2
                assert erased.blocked is not None
                assert SECRET not in erased.blocked
                assert found_in(tmp_path) != []
                assert await listed(runtime) == []
                reader.execute("COMMIT")
            assert (await runtime.erase([])).blocked is None
            assert found_in(tmp_path) == []

    async def test_beside_a_second_runtime_and_a_tool_that_looks_on(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/chats.db?shared=true"
        async with open_runtime(url) as one, open_runtime(url) as other:
            await say(one, *[f"{number}" for number in range(0, 40, 2)])
            await say(other, *[f"{number}" for number in range(1, 40, 2)])
            for number in range(40):
                assert len(await texts(other.memory(f"{number}"))) == 1
            onlooker = SQLiteStore(tmp_path / "chats.db", read_only=True)
            onlooker.open(durability="full")
            assert len(onlooker.names(namespace=None, after=None, limit=100)) == 40
            erased = await one.erase_all(confirm="every conversation")
            assert (erased.count, erased.blocked) == (40, None)
            assert found_in(tmp_path) == []
            assert await listed(other) == []
            assert [await texts(other.memory(f"{number}")) for number in range(40)] == [[]] * 40
            assert onlooker.names(namespace=None, after=None, limit=100) == []
            onlooker.close()
        assert found_in(tmp_path) == []

    async def test_a_scrub_that_fails_says_so_and_what_was_deleted_is_deleted(self, tmp_path: Path) -> None:
        store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
        async with opened(store) as runtime:
            await say(runtime, "a")
            store.fail_before(on="scrub")
            with pytest.raises(StoreUnavailableError):
                await runtime.erase(["a"])
            assert await listed(runtime) == []
            assert (await runtime.erase([])).blocked is None
            assert found_in(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {}), id="asyncio")], indirect=True)
@pytest.mark.may_block_loop
@pytest.mark.timeout_seconds(300)
async def test_10_000_memories_in_bounded_ram(kind: str, tmp_path: Path, record_property: Any) -> None:
    count = 10_000
    async with opened(store_of(kind, tmp_path, time.time), max_resident=500) as runtime:
        for start in range(0, count, 500):
            await say(runtime, *[f"user-{number:05}" for number in range(start, start + 500)])
        await runtime.memory("other").add(user("1"))
        gc.collect()
        tracemalloc.start()
        began = time.perf_counter()
        erased = await runtime.erase(prefix="user-", forks=True)
        took = time.perf_counter() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (erased.count, erased.blocked) == (count, None)
        assert await listed(runtime) == ["other"]
        assert runtime.stats().peak_resident <= 501 + 64
        record_property("figures", f"{kind}: {took:.1f} s, peak {peak / 2**20:.1f} MB")
        print(f"\n{kind}: {took:.1f} s traced, peak {peak / 2**20:.1f} MB", file=sys.stderr)  # noqa: T201
        assert peak < 30 * 2**20
    if kind != "memory":
        assert found_in(tmp_path) == []


def test_names_in_an_erasure_are_plain() -> None:
    erased = Erasure((("a", ""),), 1, False, None)
    assert repr(erased) == "Erasure(ids=(('a', ''),), count=1, dry_run=False, blocked=None)"
    assert MemoryName("", "a") == ("", "a")

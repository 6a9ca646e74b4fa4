"""`metadata` and `set_metadata`, sentence by sentence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from keeping.tools import BOUND, Clock, listed, opened, store_of, sweep
from support.schedule import CANCELLATIONS, How, every_cancellation
from test_privacy import CANARY, SECRETS, leaks, silence
from turnkeeper import (
    ConflictError,
    InvalidArgumentError,
    MemoryCorruptError,
    Metadata,
    OutcomeUnknownError,
    RetentionPolicy,
    Runtime,
    StoreUnavailableError,
    Version,
    open_runtime,
)
from turnkeeper.metadata import StoredMetadata, decode_metadata, encode_metadata
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, unload
from turns.tools import Call, texts, user

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str) -> Any:
    async with open_runtime(store_url) as one:
        yield one


class TestCompareAndSet:
    async def test_of_200_tasks_that_compare_each_success_is_one_revision_and_none_is_lost(
        self, runtime: Runtime
    ) -> None:
        memory = runtime.memory("m")
        won: list[int] = []

        async def append(number: int) -> None:
            while True:
                known = await memory.metadata()
                try:
                    now = await memory.set_metadata(
                        data={"all": [*known.data.get("all", []), number]}, if_revision=known.revision
                    )
                except ConflictError:
                    continue
                assert now.revision == known.revision + 1
                won.append(now.revision)
                return

        async def add(number: int) -> None:
            await memory.add(user(f"{number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(append, number)
                if number < 50:
                    tasks.start_soon(add, number)
        assert sorted(won) == list(range(1, 201))
        known = await memory.metadata()
        assert (known.revision, sorted(known.data["all"])) == (200, list(range(200)))
        assert known.version.n == 50
        unload(runtime, "m")
        assert await memory.metadata() == known

    async def test_without_a_revision_each_change_counts_and_leaves_the_other_fields_alone(
        self, runtime: Runtime
    ) -> None:
        memory = runtime.memory("m")

        async def change(changes: dict[str, Any]) -> None:
            await memory.set_metadata(**changes)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(change, {"title": f"{number}"})
                tasks.start_soon(change, {"data": {"n": number}})
        known = await memory.metadata()
        assert known.revision == 100
        assert known.title is not None
        assert known.data["n"] in range(50)

    async def test_a_revision_that_is_not_the_present_one_changes_nothing(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        now = await memory.set_metadata(title="a")
        for revision in (0, 2, 99):
            with pytest.raises(ConflictError, match="revision 1, not"):
                await memory.set_metadata(title="b", if_revision=revision)
        assert await memory.metadata() == now

    async def test_revision_0_is_of_a_memory_that_nothing_was_ever_said_about(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        assert (await memory.set_metadata(title="a", if_revision=0)).revision == 1
        with pytest.raises(ConflictError):
            await memory.set_metadata(title="b", if_revision=0)

    @pytest.mark.parametrize("said", [False, True])
    async def test_across_two_runtimes_on_one_file_each_sees_the_others_and_none_is_lost(
        self, tmp_path: Path, said: bool
    ) -> None:
        url = f"sqlite:///{tmp_path}/chats.db?shared=true"
        async with open_runtime(url) as one, open_runtime(url) as other:
            memories = one.memory("m"), other.memory("m")
            if said:
                await memories[0].add(user("1"))
            assert (await memories[0].set_metadata(title="a")).revision == 1
            assert (await memories[1].metadata()).title == "a"
            # Both hold it in RAM now, and what the other one changes is no change of the log.
            for n, (writer, reader) in enumerate([memories, memories[::-1]] * 3, start=2):
                await writer.set_metadata(title=f"{n}", data={"n": n})
                known = await reader.metadata()
                assert (known.title, known.data, known.revision) == (f"{n}", {"n": n}, n)
                with pytest.raises(ConflictError):
                    await reader.set_metadata(title="late", if_revision=n - 1)
            base = (await memories[0].metadata()).revision

            async def count(runtime: Runtime) -> None:
                memory = runtime.memory("m")
                while True:
                    known = await memory.metadata()
                    try:
                        await memory.set_metadata(data={"n": known.data["n"] + 1}, if_revision=known.revision)
                    except ConflictError:
                        continue
                    return

            async with anyio.create_task_group() as tasks:
                for _ in range(15):
                    tasks.start_soon(count, one)
                    tasks.start_soon(count, other)
            known = await memories[1].metadata()
            assert (known.revision, known.data) == (base + 30, {"n": base + 30})
            assert await memories[0].metadata() == known


said = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | said
)
flat = scalars | st.lists(scalars, max_size=3) | st.dictionaries(said, scalars, max_size=3)
json_values = flat | st.lists(flat, max_size=3) | st.dictionaries(said, flat, max_size=3)


@given(st.dictionaries(said, json_values, max_size=4), st.none() | said)
@settings(max_examples=60)
def test_any_json_comes_back_as_it_was(data: dict[str, Any], title: str | None) -> None:
    stored = decode_metadata(encode_metadata(StoredMetadata(title=title, data=data)))
    assert (stored.title, stored.data) == (title, data)
    assert repr(stored.data) == repr(data)  # 1 is no 1.0 and no True


class Liar(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return {"a": 1}[key]

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


cyclic: dict[str, Any] = {}
cyclic["self"] = cyclic
REFUSED: dict[str, dict[str, Any]] = {
    "a date": {"data": {CANARY: timedelta(1)}},
    "bytes": {"data": {CANARY: CANARY.encode()}},
    "a set": {"data": {CANARY: {CANARY}}},
    "not a number": {"data": {CANARY: float("nan")}},
    "infinity": {"data": {CANARY: [float("inf")]}},
    "a key that is no text": {"data": {1: CANARY}},
    "a deep key that is no text": {"data": {CANARY: {2: CANARY}}},
    "a cycle": {"data": {CANARY: cyclic}},
    "too deep": {"data": {CANARY: eval("[" * 200 + "]" * 200)}},
    "a struct": {"data": {CANARY: StoredMetadata(title=CANARY)}},
    "a surrogate": {"data": {CANARY: CANARY + "\ud83d"}},
    "a surrogate in the title": {"title": CANARY + "\ud83d"},
    "a title that is no text": {"title": [CANARY]},
    "a title without end": {"title": CANARY * 1_000},
    "no mapping": {"data": [CANARY]},
    "a text": {"data": CANARY},
    "nothing": {"data": None},
    "less than no time": {"expires_after": -1},
    "no number": {"expires_after": CANARY},
    "not a time": {"expires_after": float("nan")},
    "true": {"expires_after": True},
    "another policy": {"retention": CANARY},
    "a revision that is none": {"title": CANARY, "if_revision": CANARY},
    "a revision below 0": {"title": CANARY, "if_revision": -1},
    "a version": {"title": CANARY, "if_revision": Version(1, 1)},
}


class TestRefusals:
    @pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
    async def test_it_is_refused_by_an_error_of_ours_that_shows_nothing_and_nothing_is_changed(
        self, change: dict[str, Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with open_runtime("memory:") as runtime:
            memory = runtime.memory("m")
            with silence(caplog, capfd), pytest.raises(InvalidArgumentError) as raised:
                await memory.set_metadata(**change)
            assert leaks(raised.value) == []
            assert await listed(runtime) == []
            before = await memory.set_metadata(title="t", data={"a": 1})
            with pytest.raises(InvalidArgumentError):
                await memory.set_metadata(**change)
            assert await memory.metadata() == before

    async def test_a_mapping_of_any_kind_is_data(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        assert (await memory.set_metadata(data=Liar())).data == {"a": 1}

    async def test_what_the_caller_does_to_its_data_afterwards_changes_nothing(self) -> None:
        store = FaultStore(InMemoryStore(), inline=False)
        async with opened(store) as runtime, anyio.create_task_group() as tasks:
            memory = runtime.memory("m")
            data: dict[str, Any] = {"list": [1], "dict": {"a": 1}}
            with store.stall() as stall:
                adding = Call(tasks, memory.add, user("1"))
                assert await to_thread.run_sync(stall.entered.wait, BOUND)
                change = Call(tasks, lambda: memory.set_metadata(data=data))
                await anyio.wait_all_tasks_blocked()
                data["list"].append(object())
                data["dict"][3] = 4
            await adding.result()
            assert (await change.result()).data == {"list": [1], "dict": {"a": 1}}
            known = await memory.metadata()
            known.data["list"].append(2)
            assert (await memory.metadata()).data == {"list": [1], "dict": {"a": 1}}


class TestAMemoryThatDoesNotExistYet:
    async def test_it_has_nothing_to_say(self, runtime: Runtime) -> None:
        assert await runtime.memory("m", "n").metadata() == Metadata(
            "m", "n", Version(0, 0), None, {}, 0, 0, 0, 0, None, None, (), None
        )
        assert await listed(runtime) == []

    async def test_setting_makes_it_and_it_is_listed_and_can_be_deleted(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        now = await memory.set_metadata(title="t")
        assert now == await memory.metadata()
        assert (now.version, now.created_at > 0, now.updated_at >= now.created_at) == (Version(0, 0), True, True)
        (shown,) = (await runtime.memories()).memories
        assert shown == now
        unload(runtime, "m")
        assert await memory.metadata() == now
        assert (await memory.messages()).version == Version(0, 0)
        assert (await memory.history()).entries == ()
        assert await memory.delete() is True
        assert await listed(runtime) == []
        assert (await memory.metadata()).revision == 0
        assert await memory.delete() is False

    @pytest.mark.parametrize("reloaded", [False, True])
    async def test_the_first_add_afterwards_is_the_first_entry(self, runtime: Runtime, reloaded: bool) -> None:
        memory = runtime.memory("m")
        await memory.set_metadata(title="t", data={"a": 1})
        if reloaded:
            unload(runtime, "m")
        receipt = await memory.add(user("1"), idempotency_key="k")
        seen = await memory.messages()
        assert receipt.version == seen.version
        assert seen.version.n == 1
        assert seen.version.mid > 0
        assert await texts(memory) == ["1"]
        known = await memory.metadata()
        assert (known.title, known.data, known.revision, known.version) == ("t", {"a": 1}, 1, seen.version)
        assert await memory.add(user("1"), idempotency_key="k") == receipt

    async def test_a_set_and_a_turn_and_a_fork_into_it_do_as_well(self, runtime: Runtime) -> None:
        source = runtime.memory("source")
        await source.add(user("1"))
        for name in ("set", "turn", "fork"):
            memory = runtime.memory(name)
            await memory.set_metadata(title=name)
            if name == "set":
                await memory.set(user("1"), if_version=(await memory.messages()).version)
            elif name == "turn":
                async with memory.turn() as turn:
                    await turn.add(user("1"))
            else:
                await source.fork(name)
            known = await memory.metadata()
            assert (known.title, known.version.n) == (name, 1)
            assert await texts(memory) == ["1"]
            unload(runtime, name)
            assert await memory.metadata() == known

    async def test_a_row_that_is_there_for_a_turns_lease_alone_is_none(self, tmp_path: Path) -> None:
        async with open_runtime(f"sqlite:///{tmp_path}/chats.db?shared=true") as runtime:
            memory = runtime.memory("m")
            async with memory.turn() as turn:
                assert (await memory.metadata()).created_at == 0
                assert await listed(runtime) == []
                assert (await runtime.erase(["m"], dry_run=True)).count == 0
                assert (await memory.set_metadata(title="t")).revision == 1
                assert await listed(runtime) == ["m"]
                await turn.add(user("1"))
            assert (await memory.metadata()).title == "t"
            async with runtime.memory("empty").turn():
                await runtime.memory("empty").set_metadata(title="stays")
            assert await listed(runtime) == ["empty", "m"]


class TestBesideTheLog:
    async def test_no_version_changes_and_views_stay_the_same_object(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        before, known = await memory.messages(), await memory.metadata()
        await memory.set_metadata(title="t", data={"a": 1}, expires_after=100)
        after = await memory.messages()
        assert (after, after.version) == (before, before.version)
        assert (await memory.metadata()).updated_at == known.updated_at
        await memory.set(user("2"), if_version=before.version)
        assert len((await memory.history()).entries) == 2

    async def test_inside_an_open_turn_it_waits_for_nobody_and_the_turn_commits(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        await memory.add(user("0"))
        for commit in ("turn", "each"):
            async with memory.turn(commit=commit) as turn:
                with anyio.fail_after(BOUND):
                    await turn.add(user("1"))
                    await memory.set_metadata(title=commit)
                    assert (await memory.metadata()).title == commit
                    await turn.add(user("2"))
                    async with anyio.create_task_group() as tasks:
                        assert (await Call(tasks, memory.metadata).result()).title == commit
        assert await texts(memory) == ["0", "1", "2", "1", "2"]

    async def test_a_turn_that_is_rolled_back_takes_no_metadata_back(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")

        async def fail() -> None:
            async with memory.turn() as turn:
                await turn.add(user("1"))
                await memory.set_metadata(title="t")
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await fail()
        assert (await memory.metadata()).title == "t"
        assert await texts(memory) == []

    async def test_delete_drops_them_and_what_comes_behind_it_begins_anew(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        await memory.set_metadata(title="t", data={"a": 1}, expires_after=9, retention=RetentionPolicy(max_messages=3))
        await memory.delete()
        assert (await memory.metadata()) == Metadata("m", "", Version(0, 0), None, {}, 0, 0, 0, 0, None, None, (), None)
        await memory.add(user("1"))
        known = await memory.metadata()
        assert (known.title, known.revision, known.expires_after, known.retention) == (None, 0, None, None)

    async def test_clear_keeps_them(self, runtime: Runtime) -> None:
        memory = runtime.memory("m")
        await memory.add(user("1"))
        await memory.set_metadata(title="t")
        await memory.clear()
        assert (await memory.metadata()).title == "t"

    async def test_all_of_it_survives_a_restart(self, durable_url: str) -> None:
        async with open_runtime(durable_url) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            said = await memory.set_metadata(
                title="Тест",
                data={"a": [1, None, {"é": 1.5}]},
                expires_after=timedelta(days=1),
                retention=RetentionPolicy(max_age=5.0, max_messages=7),
            )
        async with open_runtime(durable_url) as runtime:
            assert await runtime.memory("m").metadata() == said
        assert (said.expires_after, said.retention) == (86_400.0, RetentionPolicy(max_age=5.0, max_messages=7))

    async def test_the_blocking_twin_says_the_same(self, runtime: Runtime) -> None:
        def work() -> list[Any]:
            memory = runtime.sync.memory("m")
            now = memory.set_metadata(title="t", data={"a": 1}, if_revision=0)
            with pytest.raises(ConflictError):
                memory.set_metadata(title="b", if_revision=0)
            with pytest.raises(InvalidArgumentError):
                memory.set_metadata(data={"a": threading.Lock()})
            return [now, memory.metadata()]

        now, read = await to_thread.run_sync(work)
        assert now == read == await runtime.memory("m").metadata()


class TestWhenTheStoreFails:
    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    async def test_before_the_commit_nothing_is_changed(self, kind: str, tmp_path: Path) -> None:
        store = FaultStore(store_of(kind, tmp_path, Clock()))
        async with opened(store) as runtime:
            memory = runtime.memory("m")
            before = await memory.set_metadata(title="a")
            store.fail_before()
            with pytest.raises(StoreUnavailableError):
                await memory.set_metadata(title="b")
            assert await memory.metadata() == before
            assert (await memory.set_metadata(title="c", if_revision=1)).revision == 2

    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    async def test_a_lost_reply_is_looked_up(self, kind: str, tmp_path: Path) -> None:
        store = FaultStore(store_of(kind, tmp_path, Clock()))
        async with opened(store) as runtime:
            memory = runtime.memory("m")
            for n in range(1, 4):
                store.fail_after()
                assert (await memory.set_metadata(title=f"{n}", if_revision=n - 1)).revision == n
                assert (await memory.metadata()).title == f"{n}"

    @pytest.mark.parametrize("happened", [False, True])
    @pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {}), id="asyncio")], indirect=True)
    async def test_where_nobody_can_tell_the_caller_hears_so_and_the_truth_is_read_again(
        self, happened: bool, tmp_path: Path
    ) -> None:
        store = FaultStore(store_of("memory", tmp_path, Clock()))
        async with opened(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            (store.fail_after if happened else store.fail_before)()
            store.fail_before(4, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await memory.set_metadata(title="a")
            known = await memory.metadata()
            assert (known.title, known.revision) == (("a", 1) if happened else (None, 0))
            assert (await memory.set_metadata(title="b", if_revision=known.revision)).title == "b"
            assert await texts(memory) == ["1"]

    async def test_a_corrupt_memory_is_still_refused_one_by_one(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/chats.db"
        async with open_runtime(url) as runtime:
            await runtime.memory("m").add(user("1"))
        store = SQLiteStore(tmp_path / "chats.db")
        store.open(durability="full")
        store._writing().execute("UPDATE entry SET payload = x'00'")
        store.close()
        async with open_runtime(url) as runtime:
            with pytest.raises(MemoryCorruptError):
                await runtime.memory("m").metadata()
            assert await listed(runtime) == ["m"]
            assert (await runtime.erase(["m"], dry_run=True)).count == 1
            assert (await runtime.erase(["m"], forks=True)).count == 1
            assert await listed(runtime) == []


@pytest.mark.parametrize("how", CANCELLATIONS)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_cancelled_at_any_point_it_is_there_whole_or_not_at_all(how: How, kind: str, tmp_path: Path) -> None:
    async with opened(store_of(kind, tmp_path, Clock())) as runtime:
        runs = 0
        keeper = runtime._core.keeper
        await sweep(runtime)
        assert not keeper._looks

        async def change() -> int:
            nonlocal runs
            runs += 1
            await runtime.memory(f"{runs}").set_metadata(title="t", data={"a": 1}, retention=RetentionPolicy(1.0))
            return runs

        async for outcome in every_cancellation(change, how):
            with anyio.fail_after(BOUND):
                known = await runtime.memory(f"{runs}").metadata()
                assert keeper._looks or not known.revision, "whoever left may have given a policy all the same"
                allowed: list[tuple[int, str | None, dict[str, Any]]] = [(1, "t", {"a": 1})]
                if outcome.value is None:
                    allowed.append((0, None, {}))
                assert (known.revision, known.title, known.data) in allowed
                again = await runtime.memory(f"{runs}").set_metadata(title="u", if_revision=known.revision)
                assert again.revision == known.revision + 1
                await runtime.memory(f"{runs}").delete()
                await sweep(runtime)
                assert not keeper._looks


async def test_nothing_of_them_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    store = FaultStore(SQLiteStore(tmp_path / "chats.db"))
    with silence(caplog, capfd):
        async with opened(store) as runtime:
            memory = runtime.memory("m")
            now = await memory.set_metadata(title=CANARY, data={CANARY: [CANARY]})
            page = await runtime.memories()
            shown: list[object] = [now, page, StoredMetadata(title=CANARY, data={CANARY: 1}), runtime.stats()]
            shown += store.names(namespace=None, after=None, limit=10)
            errors: list[BaseException] = []
            for fail, kind in ((store.fail_before, StoreUnavailableError), (None, ConflictError)):
                if fail is not None:
                    fail()
                with pytest.raises(kind) as raised:
                    await memory.set_metadata(title=CANARY, data={CANARY: 2}, if_revision=1 if fail else 7)
                errors.append(raised.value)
            shown.append(await runtime.erase(["m"]))
    for one in shown:
        assert not any(secret in text for text in (repr(one), str(one), f"{one}") for secret in SECRETS), type(one)
    for error in errors:
        assert leaks(error) == []


async def test_what_a_store_has_damaged_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for damaged in (b"", b"[]", b"\xff", b'{"title":1}', b'{"forks":[1]}', b'{"max_messages":"x"}'):
        assert decode_metadata(damaged) == StoredMetadata()
    assert decode_metadata(b'{"max_messages":0,"title":"t","later":[]}').retention is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_change_counts_for_the_bound_on_pending_bytes() -> None:
    store = FaultStore(InMemoryStore(), inline=False)
    async with opened(store) as runtime:
        with store.stall() as stall:
            async with anyio.create_task_group() as tasks:
                change = Call(tasks, lambda: runtime.memory("m").set_metadata(data={"a": "x" * 5_000}))
                await to_thread.run_sync(stall.entered.wait, BOUND)
                assert runtime.stats().pending_bytes > 5_000
                stall.release()
                await change.result()
        assert runtime.stats().pending_bytes == 0

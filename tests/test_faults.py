"""When the store fails, hangs or loses a reply, and when there is more to do than the runtime takes on."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import TaskGroup

from support.virtual_time import VIRTUAL_TIME_BACKENDS
from turnkeeper import (
    ChatMemory,
    IdempotencyMismatchError,
    Message,
    OutcomeUnknownError,
    OverloadedError,
    Receipt,
    Runtime,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreError,
    StoreUnavailableError,
    TurnkeeperError,
    Window,
    open_runtime,
)
from turnkeeper.log import Outcome, Slice
from turnkeeper.stores import InMemoryStore, SQLiteStore
from turnkeeper.testing import FaultStore, Stall

pytestmark = pytest.mark.anyio

BOUND = 20.0  # seconds in which everybody must have an answer, on the busiest of machines


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def texts(memory: ChatMemory) -> list[Any]:
    return [message["content"] for message in (await memory.messages()).to_dicts()]


class Call:
    """A call under way in a task of its own, and what came of it: its result, or its error if that is one of ours."""

    def __init__(self, group: TaskGroup, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        self.outcome: object = None
        self._function = function
        self._args = args
        self._done = anyio.Event()
        group.start_soon(self._run)

    async def _run(self) -> None:
        try:
            self.outcome = await self._function(*self._args)
        except TurnkeeperError as error:
            self.outcome = error
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def result(self) -> object:
        with anyio.fail_after(BOUND):
            await self._done.wait()
        return self.outcome


async def entered(stall: Stall) -> None:
    """Wait until a call hangs."""
    with anyio.fail_after(BOUND):
        assert await to_thread.run_sync(stall.entered.wait, BOUND)


def nothing_is_pending(runtime: Runtime) -> bool:
    stats = runtime.stats()
    return (stats.pending, stats.pending_bytes, stats.waiting) == (0, 0, 0)


@pytest.fixture(params=["inline", "in threads", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FaultStore:
    if request.param == "sqlite":
        return FaultStore(SQLiteStore(tmp_path / "chats.db"))
    return FaultStore(InMemoryStore(), inline=False if request.param == "in threads" else None)


@pytest.fixture
def threaded() -> FaultStore:
    return FaultStore(InMemoryStore(), inline=False)


class TestTheStoreFailsBeforeTheCommit:
    @pytest.mark.parametrize("error", [StoreError, StoreUnavailableError])
    @pytest.mark.parametrize("resident", [False, True])
    async def test_nothing_changed_and_the_next_request_works(
        self, store: FaultStore, error: type[StoreError], resident: bool
    ) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            if resident:
                await memory.add(user("before"))
            for change in (memory.add, memory.set):
                store.fail_before(error=error)
                with pytest.raises(error) as caught:
                    await change(user("lost"))
                assert type(caught.value) is error
            assert await texts(memory) == (["before"] if resident else [])
            await memory.add(user("after"))
            assert await texts(memory) == (["before"] if resident else []) + ["after"]
            assert nothing_is_pending(runtime)

    async def test_a_delete_and_a_clear_that_failed_have_not_happened(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("stays"))
            for change in (memory.delete, memory.clear):
                store.fail_before()
                with pytest.raises(StoreUnavailableError):
                    await change()
                assert await texts(memory) == ["stays"]

    @pytest.mark.parametrize("resident", [False, True])
    async def test_a_foreign_error_is_a_store_error_without_its_text(self, store: FaultStore, resident: bool) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            if resident:
                await memory.add(user("before"))
            store.fail_before(error=lambda: ValueError("could not write 'a secret'"))
            with pytest.raises(StoreError, match="ValueError") as caught:
                await memory.add(user("a secret"))
            error: BaseException | None = caught.value
            while error is not None:
                assert "secret" not in f"{error} {error!r}"
                error = error.__cause__ or error.__context__
            await memory.add(user("after"))

    async def test_a_load_that_fails_is_tried_anew_by_the_next_request(self, store: FaultStore) -> None:
        store.fail_before(error=StoreUnavailableError, on="load")
        store.fail_before(error=lambda: LookupError("a secret"), on="load")
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            with pytest.raises(StoreUnavailableError):
                await memory.add(user("lost"))
            with pytest.raises(StoreError, match="LookupError") as caught:
                await memory.messages()
            assert "secret" not in str(caught.value)
            assert await texts(memory) == []
            assert nothing_is_pending(runtime)


class TestTheReplyIsLost:
    @pytest.mark.parametrize("error", [StoreError, StoreUnavailableError, ValueError])
    async def test_the_caller_gets_its_receipt_and_the_message_is_stored_once(
        self, store: FaultStore, error: type[Exception]
    ) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            first = await memory.add(user("1"))
            store.fail_after(error=error)
            second = await memory.add(user("2"), user("3"))
            third = await memory.add(user("4"))
            assert [receipt.count for receipt in (first, second, third)] == [1, 2, 1]
            assert first.version < second.version < third.version
            assert await texts(memory) == ["1", "2", "3", "4"]
        assert [entry.version for entry in entries_of(store, "m")] == [1, 2, 3]

    async def test_so_it_is_for_every_kind_of_change(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            store.fail_after()
            created = await memory.add(user("1"))
            assert created.version == (await memory.messages()).version
            store.fail_after()
            assert (await memory.set(user("2"), if_version=created.version)).version > created.version
            assert await texts(memory) == ["2"]
            store.fail_after()
            assert (await memory.clear()).count == 0
            assert await texts(memory) == []
            store.fail_after()
            assert await memory.delete() is True
            assert await memory.delete() is False
            assert (await memory.add(user("3"))).version.mid != created.version.mid

    @pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)
    @pytest.mark.parametrize("committed", [False, True])
    async def test_out_of_reach_the_outcome_is_unknown_and_a_later_read_shows_the_truth(self, committed: bool) -> None:
        store = FaultStore(InMemoryStore())
        await unknown_outcome(store, committed=committed)

    @pytest.mark.parametrize("committed", [False, True])
    async def test_so_it_is_in_threads(self, threaded: FaultStore, committed: bool) -> None:
        await unknown_outcome(threaded, committed=committed)

    async def test_a_repeated_request_gets_the_receipt_of_the_one_that_nobody_heard_of(
        self, threaded: FaultStore
    ) -> None:
        async with open_runtime(threaded) as runtime:
            memory = runtime.memory("m")
            threaded.fail_after()
            threaded.fail_before(None, on="settle")
            with pytest.raises(OutcomeUnknownError):
                await memory.add(user("once"), idempotency_key="key")
            threaded.heal()
            receipt = await memory.add(user("once"), idempotency_key="key")
            assert receipt.version == (await memory.messages()).version
            assert await texts(memory) == ["once"]
            with pytest.raises(IdempotencyMismatchError):
                await memory.add(user("other"), idempotency_key="key")

    async def test_an_unknown_outcome_is_told_to_each_of_those_it_concerns_and_to_nobody_else(
        self, threaded: FaultStore
    ) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            memory, other = runtime.memory("m"), runtime.memory("other")
            with threaded.stall() as stall:
                plug = Call(group, runtime.memory("plug").add, user("plug"))
                await entered(stall)
                adds = [Call(group, memory.add, user(str(number))) for number in range(3)]
                await anyio.wait_all_tasks_blocked()
                threaded.fail_after(memory_id="m")
                threaded.fail_before(None, on="settle")
            results = [await add.result() for add in adds]
            assert [type(result) for result in results] == [OutcomeUnknownError] * 3
            assert len({id(result) for result in results}) == 3
            assert isinstance(await plug.result(), Receipt)
            threaded.heal()
            assert sorted(await texts(memory)) == ["0", "1", "2"]
            assert await texts(other) == []
            assert runtime.stats().unknown_outcomes == 3


async def unknown_outcome(store: FaultStore, *, committed: bool) -> None:
    async with open_runtime(store) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        (store.fail_after if committed else store.fail_before)()
        store.fail_before(None, on="settle")
        with pytest.raises(OutcomeUnknownError) as caught:
            await memory.add(user("a secret"))
        assert "'m'" in str(caught.value)
        assert "secret" not in str(caught.value)
        truth = ["before", "a secret"] if committed else ["before"]
        assert await texts(memory) == truth
        store.heal()
        assert await texts(memory) == truth
        await memory.add(user("after"))
        assert await texts(memory) == [*truth, "after"]
        assert nothing_is_pending(runtime)


def entries_of(store: FaultStore, memory_id: str) -> Sequence[Any]:
    """Read a memory's whole log past the runtime."""
    store.open(durability="full")
    try:
        (listed,) = store.names(namespace=None, after=None, limit=99)
        assert listed.name.id == memory_id
        return store.entries(listed.head.mid, after=0, limit=99)
    finally:
        store.close()


class TestTheStoreHangs:
    async def test_in_flight_is_unknown_behind_it_nothing_changed_and_nobody_is_left_waiting(
        self, threaded: FaultStore
    ) -> None:
        async with open_runtime(threaded, commit_timeout=0.1) as runtime, anyio.create_task_group() as group:
            with threaded.stall() as stall:
                in_flight = Call(group, runtime.memory("in flight").add, user("1"))
                await entered(stall)
                behind = [Call(group, runtime.memory(f"behind {number}").add, user("2")) for number in range(10)]
                assert isinstance(await in_flight.result(), OutcomeUnknownError)
                for call in behind:
                    assert type(await call.result()) is StoreUnavailableError
                assert nothing_is_pending(runtime)
            for number in range(10):
                assert await texts(runtime.memory(f"behind {number}")) == []
            await runtime.memory("behind 0").add(user("works again"))
            assert threaded.calls["commit"] == 2, "those behind have never been sent to the store"

    async def test_a_commit_that_was_done_before_it_hung_is_found(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded, commit_timeout=0.1) as runtime:
            with threaded.stall(when="after"):
                receipt = await runtime.memory("m").add(user("1"))
                assert receipt.version == (await runtime.memory("m").messages()).version

    @pytest.mark.parametrize("read_meanwhile", [False, True])
    async def test_a_read_shows_what_landed_after_all(self, threaded: FaultStore, read_meanwhile: bool) -> None:
        async with open_runtime(threaded, commit_timeout=0.1) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("before"))
            with threaded.stall() as stall:
                with pytest.raises(OutcomeUnknownError):
                    await memory.add(user("late"))
                if read_meanwhile:
                    assert await texts(memory) == ["before"]
                assert stall.entered.is_set()
            await runtime.memory("other").add(user("comes after the late one has landed"))
            assert await texts(memory) == ["before", "late"]
            await memory.add(user("after"))
            assert await texts(memory) == ["before", "late", "after"]

    async def test_reads_of_others_go_on(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            with threaded.stall() as stall:
                add = Call(group, runtime.memory("m").add, user("1"))
                await entered(stall)
                with anyio.fail_after(BOUND):
                    assert await texts(runtime.memory("other")) == []
                assert not add.done
            assert isinstance(await add.result(), Receipt)

    async def test_a_read_waits_for_the_commit_in_flight_and_never_shows_it_before(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall() as stall:
                add = Call(group, memory.add, user("1"))
                await entered(stall)
                read = Call(group, texts, memory)
                await anyio.wait_all_tasks_blocked()
                assert not read.done
                threaded.fail_before()
            assert isinstance(await add.result(), StoreUnavailableError)
            assert await read.result() == []

    async def test_a_load_that_hangs_fails_those_who_wait_for_it(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded, load_timeout=0.1) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall("load") as stall:
                calls = [Call(group, memory.add, user("1")), Call(group, memory.messages)]
                await entered(stall)
                for call in calls:
                    assert isinstance(await call.result(), StoreUnavailableError)
                assert nothing_is_pending(runtime)
            assert await texts(memory) == []
            assert threaded.calls["commit"] == 0

    async def test_first_calls_at_once_share_one_load(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            with threaded.stall("load") as stall:
                calls = [Call(group, texts, runtime.memory("m")) for _ in range(20)]
                await entered(stall)
                await anyio.wait_all_tasks_blocked()
            assert [await call.result() for call in calls] == [[]] * 20
            assert threaded.calls["load"] == 1


class PickyStore(InMemoryStore):
    """Refuses a whole group for one entry that it can't hold."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        if any(b"poison" in message.raw for one in slices for entry in one.entries for message in entry.messages):
            raise StoreError("can't hold this")
        return super().commit(slices, receipt_ttl=receipt_ttl)


class HostDownError(StoreUnavailableError):
    """An error class of a store's own, which can't be made of its `args`."""

    def __init__(self, host: str, *, port: int) -> None:
        super().__init__(f"{host}:{port} is down")
        self.port = port


class ForgetfulStore(InMemoryStore):
    """Commits all and tells the outcome of none."""

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        super().commit(slices, receipt_ttl=receipt_ttl)
        return []


async def add_behind_a_plug(
    runtime: Runtime, store: FaultStore, group: TaskGroup, memories: Iterable[ChatMemory]
) -> list[Call]:
    """Have adds to all these memories gather to one group, which is on its way when this returns."""
    with store.stall(memory_id="plug") as stall:
        Call(group, runtime.memory("plug").add, user("plug"))
        await entered(stall)
        calls = [Call(group, memory.add, user("1")) for memory in memories]
        await anyio.wait_all_tasks_blocked()
    return calls


class TestGroups:
    async def test_what_the_store_refuses_harms_no_other_memory(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            names = ["good 1", "bad 1", "good 2", "bad 2", "good 3"]
            memories = [runtime.memory(name) for name in names]
            threaded.fail_before(None, error=StoreError, memory_id="bad 1")
            threaded.fail_before(None, error=LookupError, memory_id="bad 2")
            calls = await add_behind_a_plug(runtime, threaded, group, memories)
            for name, call in zip(names, calls, strict=True):
                assert type(await call.result()) is (Receipt if name.startswith("good") else StoreError)
            assert [len(await memory.messages()) for memory in memories] == [1, 0, 1, 0, 1]
            assert runtime.stats().peak_commit_group == 5

    async def test_what_the_store_refuses_after_all_was_done_is_stored_once(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            memories = [runtime.memory(str(number)) for number in range(5)]
            threaded.fail_after(error=StoreError, memory_id="3")
            calls = await add_behind_a_plug(runtime, threaded, group, memories)
            assert [type(await call.result()) for call in calls] == [Receipt] * 5
            assert [await texts(memory) for memory in memories] == [["1"]] * 5
            assert threaded.calls["commit"] == 2

    async def test_a_store_out_of_reach_is_not_asked_again_for_each_of_them(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded) as runtime, anyio.create_task_group() as group:
            memories = [runtime.memory(str(number)) for number in range(5)]
            threaded.fail_before(memory_id="0")
            calls = await add_behind_a_plug(runtime, threaded, group, memories)
            errors = [await call.result() for call in calls]
            assert [type(error) for error in errors] == [StoreUnavailableError] * 5
            assert len({id(error) for error in errors}) == 5, "each caller has an exception of its own"
            assert threaded.calls["commit"] == 2, "the plug, and the group once"
            assert [await texts(memory) for memory in memories] == [[]] * 5

    @pytest.mark.parametrize("threads", [False, True])
    async def test_what_the_store_refuses_harms_no_other_request_to_the_same_memory(self, threads: bool) -> None:
        async with open_runtime(FaultStore(PickyStore(), inline=False if threads else None)) as runtime:
            memory = runtime.memory("m")
            async with anyio.create_task_group() as group:
                calls = [Call(group, memory.add, user(text)) for text in ("1", "poison", "2", "poison", "3")]
            assert [type(call.outcome) for call in calls] == [Receipt, StoreError, Receipt, StoreError, Receipt]
            assert sorted(await texts(memory)) == ["1", "2", "3"]

    @pytest.mark.parametrize("threads", [False, True])
    @pytest.mark.parametrize("on", ["commit", "load"])
    async def test_an_error_class_of_the_stores_own_reaches_each_caller(self, threads: bool, on: Any) -> None:
        store = FaultStore(InMemoryStore(), inline=False if threads else None)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            store.fail_before(None, error=lambda: HostDownError("db", port=5432), on=on)
            errors = [await call.result() for call in [Call(group, memory.add, user(str(n))) for n in range(3)]]
            for error in errors:
                assert isinstance(error, HostDownError)
                assert (str(error), error.port) == ("db:5432 is down", 5432)
            assert len({id(error) for error in errors}) == 3
            store.heal()
            assert await texts(memory) == []

    @pytest.mark.parametrize("threads", [False, True])
    async def test_a_store_that_tells_too_few_outcomes_strands_nobody(self, threads: bool) -> None:
        store = FaultStore(ForgetfulStore(), inline=False if threads else None)
        async with open_runtime(store) as runtime, anyio.create_task_group() as group:
            calls = [Call(group, runtime.memory(str(number)).add, user("1")) for number in range(5)]
            for call in calls:
                assert isinstance(await call.result(), Receipt), "found by its entry id"
            assert [await texts(runtime.memory(str(number))) for number in range(5)] == [["1"]] * 5


class TestOverload:
    async def test_rejecting_is_told_at_once_and_changes_nothing(self, threaded: FaultStore) -> None:
        options: Any = {"max_pending": 2, "on_overload": "reject"}
        async with open_runtime(threaded, **options) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall() as stall:
                calls = [Call(group, memory.add, user(str(number))) for number in range(2)]
                await entered(stall)
                for _ in range(3):
                    with pytest.raises(OverloadedError, match="max_pending=2"):
                        await memory.add(user("too much"))
                with pytest.raises(OverloadedError):
                    await runtime.memory("other").clear()
                assert (runtime.stats().pending, runtime.stats().overloaded) == (2, 4)
            assert [type(await call.result()) for call in calls] == [Receipt] * 2
            assert len(await memory.messages()) == 2
            assert nothing_is_pending(runtime)

    async def test_waiting_is_first_come_first_served(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded, max_pending=1) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall() as stall:
                calls = [Call(group, memory.add, user("0"))]
                await entered(stall)
                for number in range(1, 20):
                    calls.append(Call(group, memory.add, user(str(number))))
                    await in_line(runtime, number)
                assert (runtime.stats().pending, runtime.stats().waiting) == (1, 19)
            assert [type(await call.result()) for call in calls] == [Receipt] * 20
            assert await texts(memory) == [str(number) for number in range(20)]
            assert runtime.stats().peak_pending == 1
            assert nothing_is_pending(runtime)

    async def test_one_request_larger_than_the_bound_is_let_in_alone(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded, max_pending_bytes=100) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall() as stall:
                small = Call(group, memory.add, user("small"))
                await entered(stall)
                large = Call(group, memory.add, user("large" * 1000))
                await in_line(runtime, 1)
                behind = Call(group, memory.add, user("behind"))
                await in_line(runtime, 2)
                assert runtime.stats().pending_bytes < 100
            for call in (small, large, behind):
                assert isinstance(await call.result(), Receipt)
            assert await texts(memory) == ["small", "large" * 1000, "behind"]
            assert runtime.stats().peak_pending_bytes > 5000
            assert nothing_is_pending(runtime)

    async def test_those_in_line_are_told_when_the_runtime_closes(self, threaded: FaultStore) -> None:
        runtime = open_runtime(threaded, max_pending=1)
        async with anyio.create_task_group() as group:
            with threaded.stall() as stall:
                async with runtime:
                    taken = Call(group, runtime.memory("m").add, user("0"))
                    await entered(stall)
                    waiting = [Call(group, runtime.memory("m").add, user("1")) for _ in range(10)]
                    await in_line(runtime, 10)
                    group.start_soon(release_when_done, stall, waiting)
            for call in waiting:
                assert isinstance(await call.result(), RuntimeClosedError)
            assert isinstance(await taken.result(), Receipt)
        assert nothing_is_pending(runtime)
        assert runtime.stats().failed_at_close == 0

    async def test_one_who_leaves_the_line_leaves_no_trace(self, threaded: FaultStore) -> None:
        async with open_runtime(threaded, max_pending=1) as runtime, anyio.create_task_group() as group:
            memory = runtime.memory("m")
            with threaded.stall() as stall:
                first = Call(group, memory.add, user("first"))
                await entered(stall)
                async with anyio.create_task_group() as leaving:
                    for number in range(5):
                        leaving.start_soon(memory.add, user("left"))
                        await in_line(runtime, number + 1)
                    last = Call(group, memory.add, user("last"))
                    await in_line(runtime, 6)
                    leaving.cancel_scope.cancel()
                assert (runtime.stats().pending, runtime.stats().waiting) == (1, 1)
            assert isinstance(await first.result(), Receipt)
            assert isinstance(await last.result(), Receipt)
            assert await texts(memory) == ["first", "last"]
            assert nothing_is_pending(runtime)

    @pytest.mark.parametrize("threads", [False, True])
    async def test_a_mailbox_of_one_loses_nothing_and_keeps_every_senders_order(self, threads: bool) -> None:
        store = FaultStore(InMemoryStore(), inline=False if threads else None)
        async with open_runtime(store, mailbox_size=1) as runtime:
            memory = runtime.memory("m")

            async def sender(number: int) -> None:
                for turn in range(10):
                    await memory.add(user(f"{number}.{turn}"))

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for number in range(100):
                        group.start_soon(sender, number)
            by_sender: dict[str, list[int]] = {}
            for text in await texts(memory):
                number, _, turn = text.partition(".")
                by_sender.setdefault(number, []).append(int(turn))
            assert by_sender == {str(number): list(range(10)) for number in range(100)}
            assert nothing_is_pending(runtime)


async def in_line(runtime: Runtime, count: int) -> None:
    with anyio.fail_after(BOUND):
        while runtime.stats().waiting != count:
            await anyio.lowlevel.checkpoint()


async def release_when_done(stall: Stall, calls: list[Call]) -> None:
    for call in calls:
        await call.result()
    stall.release()


class TestWhereItCannotWork:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    async def test_a_forked_child_is_refused_and_the_parent_goes_on(self, store: FaultStore) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            refusals = await in_a_child(lambda: refusals_in_child(runtime))
            assert len(refusals) == 8
            assert set(refusals) == {
                "RuntimeUsageError: this runtime was opened before os.fork(): open a new one in the child"
            }
            await memory.add(user("2"))
            assert await texts(memory) == ["1", "2"]
            assert await to_thread.run_sync(lambda: len(runtime.sync.memory("m").messages())) == 2

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    async def test_a_forked_child_that_leaves_the_block_is_refused_and_the_parent_goes_on(
        self, store: FaultStore
    ) -> None:
        """It would wait for threads that stayed with the parent."""
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("1"))
            refusals = await in_a_child(lambda: [refusal(lambda: runtime.__aexit__(None, None, None).send(None))])
            assert refusals == [
                "RuntimeUsageError: this runtime was opened before os.fork(): open a new one in the child"
            ]
            await memory.add(user("2"))
            assert await texts(memory) == ["1", "2"]

    async def test_another_threads_event_loop_is_refused(self, store: FaultStore, anyio_backend: Any) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.memory("m")
            name, options = anyio_backend
            refusals: list[str] = []

            async def elsewhere() -> None:
                for call in (lambda: memory.add(user("1")), memory.messages, memory.stats, memory.delete):
                    with pytest.raises(RuntimeUsageError) as caught:
                        await call()
                    refusals.append(str(caught.value))

            await to_thread.run_sync(lambda: anyio.run(elsewhere, backend=name, backend_options=options))
            assert len(refusals) == 4
            assert all("another thread" in refusal and "runtime.sync" in refusal for refusal in refusals)
            assert await texts(memory) == []
            assert nothing_is_pending(runtime)

    async def test_a_blocking_call_on_the_loops_own_thread_is_refused_with_the_async_name(
        self, store: FaultStore
    ) -> None:
        async with open_runtime(store) as runtime:
            memory = runtime.sync.memory("m")
            calls: dict[str, Callable[[], object]] = {
                "await memory.add(": lambda: memory.add(user("1")),
                "await memory.set(": lambda: memory.set(user("1")),
                "await memory.messages()": memory.messages,
                "await memory.clear(": memory.clear,
                "await memory.delete(": memory.delete,
                "await memory.stats(": memory.stats,
                "runtime.stats()": runtime.sync.stats,
            }
            for name, call in calls.items():
                with pytest.raises(RuntimeUsageError) as caught:
                    call()
                assert name in str(caught.value)
            assert nothing_is_pending(runtime)


def refusals_in_child(runtime: Runtime) -> list[str]:
    memory, blocking = runtime.memory("m"), runtime.sync.memory("m")
    calls: list[Callable[[], object]] = [
        *[lambda call=call: call().send(None) for call in (memory.messages, memory.clear, memory.delete, memory.stats)],
        lambda: memory.add(user("child")).send(None),
        lambda: blocking.add(user("child")),
        blocking.messages,
        runtime.sync.stats,
    ]
    return [refusal(call) for call in calls]


def refusal(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


async def in_a_child(work: Callable[[], list[str]]) -> list[str]:
    """Return the lines that `work` returns in a forked child."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, "\n".join(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    async with await anyio.open_file(reading, encoding="utf-8") as answers:
        lines = (await answers.read()).splitlines()
    await to_thread.run_sync(os.waitpid, child, 0)
    return lines


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Witness(Window):
    """Notes who asks, each time it is asked for a view."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def view(self, messages: Sequence[Message]) -> Iterable[Message]:
        self.seen.append(tenant.get())
        return messages


class TestContext:
    async def test_an_actor_does_not_go_on_in_the_context_of_its_first_caller_or_of_the_opener(
        self, threaded: FaultStore
    ) -> None:
        """What the first caller's context holds (a trace, a tenant) must not leak into the answers of others."""
        window = Witness()
        opened_by = tenant.set("opener")
        async with open_runtime(threaded, window=window) as runtime:
            tenant.reset(opened_by)
            memory = runtime.memory("m")
            first = tenant.set("first caller")
            await memory.add(user("1"))
            tenant.reset(first)
            async with anyio.create_task_group() as group:
                with threaded.stall() as stall:
                    Call(group, memory.add, user("2"))
                    await entered(stall)
                    second = tenant.set("second caller")
                    read = Call(group, memory.messages)  # in turn, so the actor computes the view
                    tenant.reset(second)
                    await anyio.wait_all_tasks_blocked()
                await read.result()
        assert len(window.seen) == 1
        assert set(window.seen) <= {"nobody", "second caller"}

    async def test_nor_in_that_of_a_first_caller_in_a_thread(self, threaded: FaultStore) -> None:
        window = Witness()
        async with open_runtime(threaded, window=window) as runtime, anyio.create_task_group() as group:

            def call() -> None:
                tenant.set("thread")
                runtime.sync.memory("m").add(user("1"))

            await to_thread.run_sync(call)
            with threaded.stall() as stall:
                Call(group, runtime.memory("m").add, user("2"))
                await entered(stall)
                read = Call(group, runtime.memory("m").messages)
                await anyio.wait_all_tasks_blocked()
            await read.result()
        assert window.seen == ["nobody"]

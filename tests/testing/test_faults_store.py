"""`turnkeeper.testing.faults`: misbehaves exactly where told, from any thread, and leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from turnkeeper import InvalidArgumentError, StoreError, StoreUnavailableError
from turnkeeper.log import ADD, Committed, Entry, Slice
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import InMemoryStore, LoadQuery, SQLiteStore, Store
from turnkeeper.testing.faults import Call, FaultStore

SECONDS = 30.0  # longer than any thread here takes


def slice_of(memory_id: str = "m", text: str = "hi") -> Slice:
    messages = encode_messages([{"role": "user", "content": text}])
    return Slice(MemoryName("", memory_id), 0, 0, (Entry(ADD, text.encode().ljust(16), messages),))


def commit(store: Store, *slices: Slice) -> Any:
    return store.commit(slices or (slice_of(),), receipt_ttl=60.0)


def stored(store: Store, memory_id: str = "m") -> int:
    return len(store.load([LoadQuery(MemoryName("", memory_id))])[0].entries)


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(InMemoryStore(), inline=False)


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def test_without_orders_it_passes_everything_on(tmp_path: Path) -> None:
    real = SQLiteStore(tmp_path / "chats.db", shared=True)
    store = FaultStore(real)
    assert (store.wrapped, store.inline, store.shared, store.describe()) == (real, False, True, real.describe())
    store.open(durability="full")
    (outcome,) = commit(store)
    assert isinstance(outcome, Committed)
    assert store.settle([slice_of()]) == [outcome]
    assert store.load([LoadQuery(MemoryName("", "m"))]) == real.load([LoadQuery(MemoryName("", "m"))])
    assert store.receipts([(MemoryName("", "m"), "key")]) == [None]
    assert [listed.name.id for listed in store.names(namespace=None, after=None, limit=9)] == ["m"]
    assert [entry.version for entry in store.entries(outcome.mid, after=0, limit=9)] == [1]
    store.close()
    assert store.calls == dict.fromkeys(
        ["open", "commit", "settle", "load", "receipts", "names", "entries", "close"], 1
    )


def test_it_is_inline_as_the_store_is_unless_forced_off() -> None:
    assert FaultStore(InMemoryStore()).inline
    assert not FaultStore(InMemoryStore(), inline=False).inline
    assert not FaultStore(SQLiteStore("never-opened.db")).inline


def test_a_failure_before_leaves_nothing_behind_and_one_after_does(store: FaultStore) -> None:
    store.fail_before()
    with pytest.raises(StoreUnavailableError):
        commit(store)
    assert stored(store) == 0
    store.fail_after()
    with pytest.raises(StoreUnavailableError):
        commit(store)
    assert stored(store) == 1


def test_so_many_calls_fail_and_no_more(store: FaultStore) -> None:
    store.fail_before(2, error=StoreError, on="settle")
    for _ in range(2):
        with pytest.raises(StoreError):
            store.settle([])
    assert store.settle([]) == []


def test_all_calls_fail_until_healed(store: FaultStore) -> None:
    store.fail_before(None)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            commit(store)
    store.heal()
    assert isinstance(commit(store)[0], Committed)


def test_failures_add_up_in_their_order(store: FaultStore) -> None:
    store.fail_before(error=lambda: StoreError("first"))
    store.fail_before(error=lambda: StoreError("second"))
    for text in ("first", "second"):
        with pytest.raises(StoreError, match=text):
            commit(store)
    commit(store)


def test_each_call_raises_an_error_of_its_own(store: FaultStore) -> None:
    store.fail_before(2)
    errors = []
    for _ in range(2):
        with pytest.raises(StoreUnavailableError) as caught:
            commit(store)
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_one_memory_takes_the_calls_it_is_in_down_with_it(store: FaultStore) -> None:
    store.fail_before(None, memory_id="bad")
    with pytest.raises(StoreUnavailableError):
        commit(store, slice_of("good"), slice_of("bad"))
    assert isinstance(commit(store, slice_of("good"))[0], Committed)
    assert stored(store, "bad") == 0


@pytest.mark.parametrize("on", ["open", "close", "commit", "settle", "load", "receipts", "names", "entries"])
def test_every_method_can_fail_and_hang(store: FaultStore, in_thread: Callable[..., Future[Any]], on: Call) -> None:
    calls: dict[Call, Callable[[], Any]] = {
        "open": lambda: store.open(durability="full"),
        "close": store.close,
        "commit": lambda: commit(store),
        "settle": lambda: store.settle([]),
        "load": lambda: store.load([]),
        "receipts": lambda: store.receipts([]),
        "names": lambda: store.names(namespace=None, after=None, limit=1),
        "entries": lambda: store.entries(1, after=0, limit=1),
    }
    store.fail_before(on=on)
    with pytest.raises(StoreUnavailableError):
        calls[on]()
    with store.stall(on) as stall:
        hanging = in_thread(calls[on])
        assert stall.entered.wait(SECONDS)
        assert not hanging.done()
        for other in calls.keys() - {on}:
            calls[other]()
    hanging.result(SECONDS)
    assert store.calls[on] == 2


def test_a_stall_holds_every_call_before_or_after_its_work(
    store: FaultStore, in_thread: Callable[..., Future[Any]]
) -> None:
    with store.stall() as before:
        hanging = [in_thread(commit, store, slice_of(str(number))) for number in range(2)]
        assert before.entered.wait(SECONDS)
        assert stored(store, "0") == 0
    assert all(isinstance(one.result(SECONDS)[0], Committed) for one in hanging)
    with store.stall(when="after", memory_id="late") as after:
        commit(store, slice_of("other"))
        late = in_thread(commit, store, slice_of("late"))
        assert after.entered.wait(SECONDS)
        assert stored(store, "late") == 1
        assert not late.done()
    late.result(SECONDS)


def test_what_hangs_may_fail_when_it_goes_on(store: FaultStore, in_thread: Callable[..., Future[Any]]) -> None:
    stall = store.stall()
    hanging = in_thread(commit, store)
    assert stall.entered.wait(SECONDS)
    store.fail_before()
    stall.release()
    assert isinstance(hanging.exception(SECONDS), StoreUnavailableError)


def test_a_released_stall_holds_nobody(store: FaultStore) -> None:
    stall = store.stall()
    stall.release()
    stall.release()
    commit(store)
    assert not stall.entered.is_set()


def test_healing_releases_all_that_hang(store: FaultStore, in_thread: Callable[..., Future[Any]]) -> None:
    stalls = store.stall(), store.stall("load")
    hanging = in_thread(commit, store), in_thread(stored, store)
    assert all(stall.entered.wait(SECONDS) for stall in stalls)
    store.heal()
    for one in hanging:
        one.result(SECONDS)


def test_an_inline_store_refuses_to_stall() -> None:
    with pytest.raises(InvalidArgumentError, match="inline=False"):
        FaultStore(InMemoryStore()).stall()


def test_each_failure_strikes_once_however_many_threads_call(
    store: FaultStore, in_thread: Callable[..., Future[Any]]
) -> None:
    store.fail_before(50)
    start = threading.Barrier(8)

    def call(number: int) -> int:
        start.wait(SECONDS)
        failed = 0
        for turn in range(50):
            try:
                commit(store, slice_of(f"{number}.{turn}"))
            except StoreUnavailableError:
                failed += 1
        return failed

    assert sum(one.result(SECONDS) for one in [in_thread(call, number) for number in range(8)]) == 50
    assert store.calls["commit"] == 400
    assert len(store.names(namespace=None, after=None, limit=1000)) == 350

"""A store of the user's own under our actors: what it is asked, by whom, and what its failures come to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from compat.langchain4j.own_stores import STORES, InlineStore, OwnStore, TwinStore, answer, system, texts, user
from support.schedule import Gate
from test_sync import in_threads
from turnkeeper import (
    InvalidArgumentError,
    OutcomeUnknownError,
    RuntimeClosedError,
    StoreError,
    StoreUnavailableError,
    SyncRuntime,
    UserMessage,
)
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.langchain4j import (
    AsyncNotSupportedError,
    ChatMemoryStore,
    InMemoryChatMemoryStore,
    MessageWindowChatMemory,
    SingleSlotChatMemoryStore,
)
from turnkeeper.compat.langchain4j.homes import home_of
from turnkeeper.compat.langchain4j.list_core import ListCore

STALLING = pytest.mark.parametrize("kind", [OwnStore, TwinStore])
EACH = pytest.mark.parametrize("kind", STORES)


class BrokenError(Exception):
    """An error of the user's own."""


def memory_on(
    store: ChatMemoryStore, memory_id: Hashable = "m", max_messages: int = 10, **options: Any
) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages, id=memory_id, chat_memory_store=store, **options)


@contextmanager
def hosted(store: ChatMemoryStore, **options: Any) -> Iterator[ListCore]:
    """Let a store's actors live in a runtime with these options."""
    core = ListCore(**options)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(core):
        home_of(store).settle(runtime_for(runtime=SyncRuntime(core)))
        yield core


class Background:
    """A call in a thread, and what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self.error = error

    def join(self) -> BaseException | None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "it hangs"
        return self.error


def wait_for_pending(core: ListCore, count: int) -> None:
    """Wait until so many requests are pending. The loop decides, so it has to be asked."""

    async def look() -> None:
        while core.stats().pending < count:
            await anyio.lowlevel.checkpoint()

    core.portal.call(look)


# What it is asked


@EACH
def test_an_operation_reads_once_and_writes_once_at_most(kind: type[OwnStore]) -> None:
    """FIELD G12: a store that is read three times per call; an append-style store doubles."""
    store = kind()
    memory = memory_on(store)
    costs: list[tuple[Callable[[], object], dict[str, int]]] = [
        (lambda: memory.add(user("u1"), answer("a1"), user("u2")), {"get": 1, "update": 1}),
        (memory.messages, {"get": 1}),
        (lambda: memory.set(system("s1"), user("u3")), {"update": 1}),
        (lambda: memory.add(system("s1")), {"get": 1}),
        (lambda: memory.add(None), {}),
        (memory.clear, {"delete": 1}),
        (memory.messages, {"get": 1}),
    ]
    for operation, calls in costs:
        store.calls.clear()
        operation()
        assert store.calls == calls


@EACH
def test_an_empty_list_is_a_delete(kind: type[OwnStore]) -> None:
    """FIELD G18: window 2, two calls, their results: nothing is left, and stores refuse an empty list."""
    store = kind()
    memory = memory_on(store, max_messages=2)
    memory.add(user("u1"))
    two_calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "12"]
    memory.add({"role": "assistant", "content": None, "tool_calls": two_calls})
    memory.add({"role": "tool", "tool_call_id": "1", "content": "r1"})
    memory.add({"role": "tool", "tool_call_id": "2", "content": "r2"})
    assert memory.messages() == []
    assert store.calls["delete"] == 1
    assert "m" not in store.lists
    memory.add(user("u2"))
    assert texts(memory.messages()) == ["u2"]


@EACH
def test_the_store_gets_the_id_as_it_was_given(kind: type[OwnStore]) -> None:
    store = kind()
    for memory_id in (1, ("tenant", 7), "1"):
        memory_on(store, memory_id).add(user(repr(memory_id)))
    assert {key: texts(held) for key, held in store.lists.items()} == {
        1: ["1"],
        ("tenant", 7): ["('tenant', 7)"],
        "1": ["'1'"],
    }


@EACH
def test_the_store_may_keep_what_it_is_given_and_change_it(kind: type[OwnStore]) -> None:
    """FIELD D4, from the other side."""
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))
    kept = store.lists["m"]
    read = memory.messages()
    memory.add(user("u2"))
    assert texts(kept) == ["u1"], "a list that was handed over never changes"
    read.clear()
    assert texts(store.lists["m"]) == ["u1", "u2"]
    store.lists["m"].append(UserMessage("from elsewhere"))
    assert texts(memory.messages()) == ["u1", "u2", "from elsewhere"]


@EACH
def test_what_others_wrote_to_the_store_is_seen_and_kept(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))
    store.lists["m"] = [*store.lists["m"], UserMessage("u2")]
    assert texts(memory.messages()) == ["u1", "u2"]
    store.lists["m"] = [*store.lists["m"], UserMessage("u3")]
    memory.add(user("u4"))
    assert texts(memory.messages()) == ["u1", "u2", "u3", "u4"]


@EACH
@pytest.mark.parametrize("given", [None, [], (), iter(())], ids=["None", "list", "tuple", "iterator"])
def test_an_unknown_id_has_no_messages(kind: type[OwnStore], given: Any) -> None:
    store = kind()
    store.lists["m"] = given
    assert memory_on(store).messages() == []


@EACH
def test_dicts_in_openai_form_are_messages(kind: type[OwnStore]) -> None:
    store = kind()
    store.lists["m"] = [user("u1"), answer("a1")]  # type: ignore[list-item]
    memory = memory_on(store)
    assert texts(memory.messages()) == ["u1", "a1"]
    memory.add(user("u2"))
    assert texts(store.lists["m"]) == ["u1", "a1", "u2"]


# By whom


def test_a_blocking_store_is_called_in_one_thread_of_ours() -> None:
    store = OwnStore()
    in_threads(8, lambda number: memory_on(store, number).add(user("u1"), user("u2")))
    assert len(store.threads) == 1
    assert threading.get_ident() not in store.threads
    assert store.peak == 1


def test_an_offloading_store_is_called_in_several_but_for_one_id_in_one() -> None:
    store = OwnStore()
    with Gate() as gate:
        for number in range(16):
            store.gates[number] = gate
        adds = [
            Background(lambda number=number: memory_on(store, number, offload_blocking_store=True).add(user("u1")))  # type: ignore[misc]
            for number in range(16)
        ]
        gate.arrival_in_thread(2)
        gate.open()
        assert [add.join() for add in adds] == [None] * 16
    assert 1 < len(store.threads) <= 8
    assert not store.overlaps
    store.threads.clear()
    for _ in range(5):
        memory_on(store, 3, offload_blocking_store=True).add(user("u2"))
    assert len(store.threads) == 1


def test_a_store_that_needs_no_thread_is_called_in_the_loops() -> None:
    store = InlineStore()
    with hosted(store) as core:
        memory_on(store).add(user("u1"))
        assert store.threads == {core.portal.call(threading.get_ident)}


@pytest.mark.anyio
async def test_blocking_methods_call_blocking_ones_and_awaited_ones_their_twins() -> None:
    store = TwinStore()
    memory = memory_on(store)
    await memory.add_async(user("u1"))
    assert texts(await memory.messages_async()) == ["u1"]
    await memory.set_async(user("u2"))
    await memory.clear_async()
    assert store.calls == {"get_async": 2, "update_async": 2, "delete_async": 1}
    store.calls.clear()
    memory.add(user("u1"))
    memory.messages()
    memory.clear()
    assert store.calls == {"get": 2, "update": 1, "delete": 1}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [OwnStore, InlineStore])
async def test_a_blocking_store_is_not_offloaded_silently(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))
    store.calls.clear()
    requests: list[Callable[[], Any]] = [
        lambda: memory.add_async(user("u2")),
        lambda: memory.set_async(user("u2")),
        memory.messages_async,
        memory.clear_async,
    ]
    for request in requests:
        promised = request()
        with pytest.raises(AsyncNotSupportedError, match=f"{kind.__name__} does not define get_messages_async"):
            await promised
    assert not store.calls
    offloading = memory_on(store, offload_blocking_store=True)
    await offloading.add_async(user("u2"))
    assert texts(await offloading.messages_async()) == ["u1", "u2"]
    await offloading.clear_async()
    assert memory.messages() == []


@pytest.mark.anyio
async def test_some_twins_are_not_enough() -> None:
    class Half(OwnStore):
        async def get_messages_async(self, memory_id: Hashable, /) -> Any:
            return self.get_messages(memory_id)

    with pytest.raises(AsyncNotSupportedError, match="Half does not define update_messages_async"):
        await memory_on(Half()).add_async(user("u1"))
    with pytest.raises(AsyncNotSupportedError, match="OwnStore does not define get_messages_async"):
        await OwnStore().get_messages_async("m")
    with pytest.raises(AsyncNotSupportedError, match="OwnStore does not define update_messages_async"):
        await OwnStore().update_messages_async("m", [])
    with pytest.raises(AsyncNotSupportedError, match="OwnStore does not define delete_messages_async"):
        await OwnStore().delete_messages_async("m")


def test_requests_that_waited_together_are_served_together() -> None:
    store = OwnStore()
    with hosted(store) as core, Gate() as gate:
        store.gates["m"] = gate
        memory = memory_on(store, max_messages=50)
        adds = [Background(lambda: memory.add(user("first")))]
        gate.arrival_in_thread(1)
        adds += [Background(lambda number=number: memory.add(user(str(number)))) for number in range(20)]  # type: ignore[misc]
        wait_for_pending(core, 21)
        gate.open()
        assert [add.join() for add in adds] == [None] * 21
        del store.gates["m"]
        assert store.calls == {"get": 2, "update": 2}
        assert texts(memory.messages())[0] == "first"
        assert sorted(texts(memory.messages())[1:], key=int) == [str(number) for number in range(20)]


def test_blocking_and_awaited_requests_that_waited_together_are_each_served_their_way() -> None:
    store = TwinStore()
    with hosted(store) as core, Gate() as gate:
        memory = memory_on(store)
        store.gates["m"] = gate
        calls = [Background(lambda: anyio.run(memory.add_async, user("first")))]
        gate.arrival_in_thread(1)
        for number in range(4):
            if number % 2:
                calls.append(Background(lambda number=number: memory.add(user(str(number)))))  # type: ignore[misc]
            else:
                calls.append(Background(lambda number=number: anyio.run(memory.add_async, user(str(number)))))  # type: ignore[misc]
            wait_for_pending(core, len(calls))
        gate.open()
        assert [call.join() for call in calls] == [None] * 5
        assert store.calls == {"get_async": 3, "update_async": 3, "get": 2, "update": 2}
        assert texts(memory.messages()) == ["first", "0", "1", "2", "3"]
        assert not store.overlaps


# What its failures come to


@EACH
def test_a_read_that_fails_changes_nothing_and_keeps_its_cause(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))

    def fail() -> None:
        raise BrokenError("no connection")

    store.at_read = fail
    requests: list[Callable[[], object]] = [memory.messages, lambda: memory.add(user("u2"))]
    for request in requests:
        with pytest.raises(StoreError, match=r"'m': \w+Store failed with BrokenError; nothing was changed") as failure:
            request()
        assert isinstance(failure.value.__cause__, BrokenError)
        assert "no connection" not in str(failure.value)
    memory.set(user("u3"))  # which reads nothing
    store.at_read = lambda: None
    assert texts(memory.messages()) == ["u3"]


@EACH
def test_what_is_no_message_is_the_stores_error(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)
    for wrong in ([user("u1"), {"role": "nobody"}], ["text"], "text", user("u1")):
        store.lists["m"] = wrong  # type: ignore[assignment]
        with pytest.raises(StoreError, match="returned what is no list of messages"):
            memory.messages()
    store.lists["m"] = 3  # type: ignore[assignment]
    with pytest.raises(StoreError, match="failed with TypeError"):
        memory.messages()
    memory.clear()
    assert memory.messages() == []


@EACH
def test_a_list_that_fails_while_it_is_read_is_a_read_that_fails(kind: type[OwnStore]) -> None:
    def rows() -> Iterator[Any]:
        yield user("u1")
        raise BrokenError("the cursor is gone")

    store = kind()
    store.lists["m"] = rows()  # type: ignore[assignment]
    with pytest.raises(StoreError, match="failed with BrokenError; nothing was changed"):
        memory_on(store).messages()


@EACH
def test_a_write_that_is_refused_changes_nothing(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))

    def refuse(messages: list[Any]) -> None:
        raise BrokenError("too long")

    store.at_write = refuse
    with pytest.raises(StoreError, match="failed with BrokenError; nothing was changed") as failure:
        memory.add(user("u2"))
    assert type(failure.value) is StoreError
    assert isinstance(failure.value.__cause__, BrokenError)
    store.at_write = lambda messages: None
    assert texts(memory.messages()) == ["u1"]


@EACH
def test_a_write_that_landed_though_it_raised_is_a_success(kind: type[OwnStore]) -> None:
    store = kind()
    memory = memory_on(store)

    def land(messages: list[Any]) -> None:
        store.lists["m"] = messages
        raise BrokenError("the reply was lost")

    store.at_write = land
    memory.add(user("u1"))
    store.at_write = lambda messages: None
    assert texts(memory.messages()) == ["u1"]


@EACH
@pytest.mark.parametrize("readable", [True, False])
def test_where_nobody_can_tell_the_outcome_is_unknown(kind: type[OwnStore], readable: bool) -> None:
    store = kind()
    memory = memory_on(store)
    memory.add(user("u1"))

    def tear(messages: list[Any]) -> None:
        store.lists["m"] = [UserMessage("half")]
        if not readable:
            store.at_read = lambda: (_ for _ in ()).throw(BrokenError("gone"))
        raise BrokenError("half written")

    store.at_write = tear
    with pytest.raises(OutcomeUnknownError, match="'m'") as failure:
        memory.add(user("u2"))
    assert isinstance(failure.value.__cause__, BrokenError)
    assert "idempotency_key" not in str(failure.value), "there is none here"
    store.at_read = lambda: None
    store.at_write = lambda messages: None
    memory.set(user("u3"))
    assert texts(memory.messages()) == ["u3"]


@EACH
def test_an_error_of_turnkeepers_comes_out_as_it_is(kind: type[OwnStore]) -> None:
    store = kind()

    def fail() -> None:
        raise StoreUnavailableError("the database is down")

    store.at_read = fail
    with pytest.raises(StoreUnavailableError, match="the database is down"):
        memory_on(store).messages()


def test_one_request_that_is_refused_fails_alone() -> None:
    store = OwnStore()

    def refuse_long(messages: list[Any]) -> None:
        if any(len(message.text) > 10 for message in messages):
            raise BrokenError("too long")

    store.at_write = refuse_long
    with hosted(store) as core, Gate() as gate:
        store.gates["m"] = gate
        memory = memory_on(store)
        calls = [Background(lambda: memory.add(user("first")))]
        gate.arrival_in_thread(1)
        for text in ("u1", "far too long", "u2"):
            calls.append(Background(lambda text=text: memory.add(user(text))))  # type: ignore[misc]
            wait_for_pending(core, len(calls))
        seen: list[list[str]] = []
        calls.append(Background(lambda: seen.append(texts(memory.messages()))))
        wait_for_pending(core, len(calls))
        gate.open()
        errors = [call.join() for call in calls]
        assert [type(error) for error in errors] == [type(None), type(None), StoreError, type(None), type(None)]
        assert texts(memory.messages()) == ["first", "u1", "u2"]
        assert seen == [["first", "u1", "u2"]], "what is not written is not shown"


def test_of_those_whose_outcome_is_unknown_none_is_tried_again() -> None:
    store = OwnStore()
    with hosted(store) as core, Gate() as gate:
        store.gates["m"] = gate
        memory = memory_on(store)
        calls = [Background(lambda: memory.add(user("first")))]
        gate.arrival_in_thread(1)
        for text in ("u1", "u2"):
            calls.append(Background(lambda text=text: memory.add(user(text))))  # type: ignore[misc]
            wait_for_pending(core, len(calls))
        seen: list[list[str]] = []
        calls.append(Background(lambda: seen.append(texts(memory.messages()))))
        wait_for_pending(core, len(calls))
        writes: list[list[str]] = []

        def tear(messages: list[Any]) -> None:
            writes.append(texts(messages))
            if len(messages) > 1:
                store.lists["m"] = messages[:2]
                raise BrokenError("half written")

        store.at_write = tear
        gate.open()
        errors = [call.join() for call in calls]
        assert [type(error) for error in errors] == [type(None), OutcomeUnknownError, OutcomeUnknownError, type(None)]
        assert errors[1] is not errors[2], "each caller has an error of its own"
        assert writes == [["first"], ["first", "u1", "u2"]]
        assert seen == [["first", "u1"]], "read again"


# Time, and the end


@STALLING
@pytest.mark.anyio
@pytest.mark.may_block_loop
async def test_a_store_that_stalls_holds_nobody_for_ever(kind: type[OwnStore]) -> None:
    store = kind()
    with hosted(store, load_timeout=0.05, commit_timeout=0.05), Gate() as gate:
        memory = memory_on(store, offload_blocking_store=True)
        store.gates["m"] = gate
        with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.05 s"):
            await memory.add_async(user("u1"))
        gate.open()
        await memory_on(store, offload_blocking_store=True).add_async(user("u2"))
        assert texts(await memory.messages_async()) == ["u2"]


def test_a_write_that_stalls_is_unknown_and_never_overtakes_a_later_one() -> None:
    store = OwnStore()
    with hosted(store, commit_timeout=0.05), Gate() as gate:
        memory = memory_on(store)
        store.at_write = lambda messages: gate.stop_thread()
        with pytest.raises(OutcomeUnknownError):
            memory.add(user("late"))
        gate.open()
        memory.add(user("u2"))
        assert texts(memory.messages()) == ["late", "u2"]
        assert not store.overlaps


@pytest.mark.anyio
@pytest.mark.may_block_loop
async def test_while_a_call_stalls_no_other_is_made_for_its_id_whichever_way() -> None:
    store = TwinStore()
    with hosted(store, load_timeout=0.05, commit_timeout=0.05), Gate() as gate:
        memory = memory_on(store)
        store.gates["m"] = gate
        with pytest.raises(StoreUnavailableError, match="did not answer"):
            memory.messages()
        with pytest.raises(StoreUnavailableError, match="did not answer"):
            await memory.add_async(user("u1"))
        with pytest.raises(StoreUnavailableError, match="did not get to the write"):
            await memory.set_async(user("u1"))
        with pytest.raises(StoreUnavailableError, match="did not get to the write"):
            memory_on(store, offload_blocking_store=True).clear()
        assert store.calls == {"get": 1}
        await memory_on(store, "another").add_async(user("u1"))
        gate.open()
        await memory.add_async(user("u2"))
        assert texts(memory.messages()) == ["u2"]
        assert not store.overlaps


def test_a_write_that_never_began_was_not_made() -> None:
    store = OwnStore()
    with hosted(store, load_timeout=30, commit_timeout=0.05), Gate() as gate:
        busy, idle = memory_on(store, "busy"), memory_on(store, "idle")
        store.at_write = lambda messages: gate.stop_thread()
        stalled = Background(lambda: busy.add(user("u1")))
        gate.arrival_in_thread(1)
        with pytest.raises(StoreUnavailableError, match="did not get to the write"):
            idle.set(user("never"))
        gate.open()
        assert isinstance(stalled.join(), OutcomeUnknownError)
        assert idle.messages() == []
        assert texts(busy.messages()) == ["u1"]


@STALLING
def test_at_the_end_everybody_is_answered(kind: type[OwnStore]) -> None:
    store = kind()
    with Gate() as gate:
        with hosted(store, close_timeout=0.05) as core:
            memory = memory_on(store)
            store.at_write = lambda messages: gate.stop_thread()
            calls = [Background(lambda: memory.add(user("u1")))]
            gate.arrival_in_thread(1)
            calls.append(Background(lambda: memory.add(user("u2"))))
            wait_for_pending(core, 2)
        errors = [call.join() for call in calls]
        assert [type(error) for error in errors] == [OutcomeUnknownError, RuntimeClosedError]
    with pytest.raises(RuntimeClosedError):
        memory.messages()


def test_after_the_default_runtimes_were_closed_it_goes_on() -> None:
    store = OwnStore()
    memory = memory_on(store)
    memory.add(user("u1"))
    close_default_runtimes()
    memory.add(user("u2"))
    assert texts(memory.messages()) == ["u1", "u2"]


# The two that come with it


def test_the_in_memory_store_tells_ids_of_different_types_apart() -> None:
    store = InMemoryChatMemoryStore()
    for memory_id in (1, "1", True, 1.0, (1,), (True,)):
        store.update_messages(memory_id, [user(repr(memory_id))])
    for memory_id in (1, "1", True, 1.0, (1,), (True,)):
        assert texts(store.get_messages(memory_id)) == [repr(memory_id)]
    store.delete_messages(True)
    assert store.get_messages(True) == []
    assert texts(store.get_messages(1)) == ["1"]


@pytest.mark.parametrize(
    "store", [InMemoryChatMemoryStore(), SingleSlotChatMemoryStore("k")], ids=lambda store: type(store).__name__
)
def test_they_copy_on_the_way_in_and_out(store: InMemoryChatMemoryStore) -> None:
    """FIELD D4: save a list, clear it, read."""
    given: list[Any] = [user("u1")]
    store.update_messages("k", given)
    given[0]["content"] = "changed"
    given.clear()
    store.get_messages("k").clear()
    assert texts(store.get_messages("k")) == ["u1"]
    store.update_messages("k", [])
    assert store.get_messages("k") == []


@pytest.mark.parametrize("wrong", [None, "text", user("u1"), UserMessage("u1"), 3])
def test_they_refuse_what_is_no_list(wrong: Any) -> None:
    store = InMemoryChatMemoryStore()
    store.update_messages("k", [user("u1")])
    for refuse in (store.update_messages, SingleSlotChatMemoryStore("k").update_messages):
        with pytest.raises(InvalidArgumentError, match="must be a list of messages"):
            refuse("k", wrong)
    assert texts(store.get_messages("k")) == ["u1"]


def test_the_single_slot_is_for_one_id() -> None:
    store = SingleSlotChatMemoryStore(1)
    memory_on(store, 1).add(user("u1"))
    assert texts(store.get_messages(1)) == ["u1"]
    others: list[Callable[[], object]] = [
        lambda: store.get_messages("1"),
        lambda: store.update_messages(True, [user("u2")]),
        lambda: store.delete_messages(2),
    ]
    for other in others:
        with pytest.raises(InvalidArgumentError, match="another id"):
            other()
    with pytest.raises(InvalidArgumentError, match="another id"):
        memory_on(store, 2).add(user("u2"))


def test_an_id_is_required() -> None:
    store = InMemoryChatMemoryStore()
    for request in (store.get_messages, store.delete_messages, SingleSlotChatMemoryStore):
        with pytest.raises(InvalidArgumentError, match="an id is required"):
            request(None)
    with pytest.raises(InvalidArgumentError, match="an id is required"):
        store.update_messages(None, [user("u1")])

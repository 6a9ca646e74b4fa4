"""What a handle does, on every loop and every store."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from turnkeeper import (
    ConflictError,
    IdempotencyMismatchError,
    InvalidArgumentError,
    InvalidMemoryIdError,
    InvalidMessageError,
    Message,
    Messages,
    RuntimeClosedError,
    RuntimeUsageError,
    SystemMessage,
    UserMessage,
    Version,
    Window,
    open_runtime,
)

pytestmark = pytest.mark.anyio


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def texts(messages: Messages) -> list[str]:
    return [message.text for message in messages]


async def test_add_takes_one_several_or_an_iterable(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        receipts = [
            await memory.add(user("a")),
            await memory.add(UserMessage("b"), user("c")),
            await memory.add([user("d"), user("e")]),
            await memory.add(user(text) for text in "fg"),
            await memory.add(()),
            await memory.add(),
        ]
        assert [receipt.count for receipt in receipts] == [1, 2, 2, 2, 0, 0]
        assert [receipt.version.n for receipt in receipts] == [1, 2, 3, 4, 4, 4]
        assert texts(await memory.messages()) == list("abcdefg")
        assert [message.id for message in await memory.messages()][:4] == ["1.0", "2.0", "2.1", "3.0"]


async def test_an_empty_add_creates_nothing(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        receipt = await runtime.memory("m").add([])
        assert (receipt.count, receipt.version) == (0, Version(0, 0))
        assert await runtime.memory("m").delete() is False


@pytest.mark.parametrize(
    "bad", [[user("ok"), {"role": "robot"}], ["text"], [None], [user("ok"), 5], [[user("ok")], user("x")]]
)
async def test_a_bad_message_refuses_the_whole_batch(store_url: str, bad: list[Any]) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("before"))
        before = await memory.messages()
        with pytest.raises(InvalidMessageError):
            await memory.add(*bad)
        with pytest.raises(InvalidArgumentError):
            await memory.set(*bad)
        assert await memory.messages() is before


async def test_a_generator_that_fails_adds_nothing(store_url: str) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield user("a")
        raise OSError("the source broke")

    async with open_runtime(store_url) as runtime:
        with pytest.raises(OSError, match="the source broke"):
            await runtime.memory("m").add(failing())
        assert await runtime.memory("m").messages() == ()


async def test_set_replaces_in_one_entry(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await memory.set(user("first"))
        await memory.add(user("second"))
        receipt = await memory.set([SystemMessage("s"), UserMessage("third")])
        assert (receipt.version.n, receipt.count) == (3, 2)
        assert texts(await memory.messages()) == ["s", "third"]
        assert [message.id for message in await memory.messages()] == ["3.0", "3.1"]


@pytest.mark.parametrize("nothing", [(), ([],), (None,), (iter(()),)])
async def test_d3_set_of_nothing_is_refused_and_changes_nothing(nothing: tuple[Any, ...]) -> None:
    async with open_runtime("memory:") as runtime:
        memory = runtime.memory("m")
        await memory.add(user("kept"))
        with pytest.raises(InvalidArgumentError, match="clear"):
            await memory.set(*nothing)
        assert texts(await memory.messages()) == ["kept"]


async def test_set_if_version_replaces_exactly_that_state(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory, other = runtime.memory("m"), runtime.memory("other")
        await other.add(user("x"))
        absent = (await memory.messages()).version
        await memory.set(user("a"), if_version=absent)
        seen = await memory.messages()
        await memory.add(user("b"))
        for stale in (seen.version, absent, (await other.messages()).version):
            with pytest.raises(ConflictError, match="'m'"):
                await memory.set(user("lost"), if_version=stale)
        await memory.set(user("c"), if_version=(await memory.messages()).version)
        assert texts(await memory.messages()) == ["c"]
        with pytest.raises(InvalidArgumentError, match="if_version"):
            await memory.set(user("x"), if_version=3)  # type: ignore[arg-type]


async def test_a_version_from_before_a_delete_is_a_conflict(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        old = (await memory.add(user("a"))).version
        await memory.delete()
        await memory.add(user("b"))
        with pytest.raises(ConflictError):
            await memory.set(user("c"), if_version=old)
        assert texts(await memory.messages()) == ["b"]
        assert (await memory.messages()).version > old


async def test_clear_empties_and_keeps_the_name(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        assert (await memory.clear()).version == Version(0, 0)
        version = (await memory.add(user("a"))).version
        cleared = await memory.clear()
        assert cleared.version == Version(version.mid, 2)
        assert await memory.messages() == ()
        assert (await memory.clear()) == cleared
        assert (await memory.add(user("b"))).version == Version(version.mid, 3)


async def test_delete_removes_memory_and_name(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        assert await memory.delete() is False
        await memory.add(user("a"))
        assert await memory.delete() is True
        assert await memory.delete() is False
        assert await memory.messages() == ()
        assert (await memory.messages()).version == Version(0, 0)
        await memory.clear()
        assert texts(await memory.messages()) == []


async def test_namespaces_and_ids_keep_memories_apart(store_url: str) -> None:
    names = [("a", ""), ("A", ""), ("a", "t"), ("a ", ""), ("é", ""), ("e\u0301", ""), ("%", ""), ("a", "T"), ("_", "")]
    async with open_runtime(store_url) as runtime:
        for number, (memory_id, namespace) in enumerate(names):
            await runtime.memory(memory_id, namespace).add(user(str(number)))
        for number, (memory_id, namespace) in enumerate(names):
            memory = runtime.memory(memory_id, namespace=namespace)
            assert texts(await memory.messages()) == [str(number)]
            assert (memory.id, memory.namespace) == (memory_id, namespace)


async def test_c3_c13_an_id_is_required_and_checked() -> None:
    async with open_runtime("memory:") as runtime:
        with pytest.raises(TypeError):
            runtime.memory()  # type: ignore[call-arg]
        for bad in ("", None, 5):
            with pytest.raises(InvalidMemoryIdError):
                runtime.memory(bad)  # type: ignore[arg-type]


async def test_messages_is_the_same_object_until_something_changes(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("a"))
        first = await memory.messages()
        assert await memory.messages() is first
        assert await runtime.memory("m").messages() is first
        await memory.add(user("b"))
        assert await memory.messages() is not first
        assert texts(first) == ["a"]


async def test_results_can_not_be_changed_from_outside(store_url: str) -> None:
    part = {"type": "text", "text": "original"}
    given = {"role": "user", "content": [part]}
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await memory.add(given)
        part["text"] = "changed"
        seen = await memory.messages()
        seen.to_dicts()[0]["content"][0]["text"] = "changed"
        seen[0].to_dict().clear()
        with pytest.raises(AttributeError):
            seen.version = Version(1, 1)
        with pytest.raises(AttributeError):
            seen[0].raw = b""
        with pytest.raises(AttributeError):
            seen.append(UserMessage("x"))  # type: ignore[attr-defined]
        assert texts(await memory.messages()) == ["original"]
        assert await memory.messages() is seen


async def test_a_repeated_request_gets_the_first_receipt(durable_url: str) -> None:
    async with open_runtime(durable_url) as runtime:
        memory = runtime.memory("m")
        first = await memory.add(user("a"), user("b"), idempotency_key="k1")
        assert await memory.add([user("a"), user("b")], idempotency_key="k1") == first
        replaced = await memory.set(user("c"), idempotency_key="k2", if_version=first.version)
        # its if_version is stale by now, and still it is the same request
        assert await memory.set(user("c"), idempotency_key="k2", if_version=first.version) == replaced
        with pytest.raises(IdempotencyMismatchError):
            await memory.add(user("x"), idempotency_key="k1")
        with pytest.raises(IdempotencyMismatchError):
            await memory.set(user("x"), idempotency_key="k2")
        with pytest.raises(IdempotencyMismatchError):
            await memory.set(user("a"), user("b"), idempotency_key="k1")
        await memory.clear()
        assert await memory.add(user("a"), user("b"), idempotency_key="k1") == first
        assert await memory.messages() == ()
    async with open_runtime(durable_url) as runtime:
        memory = runtime.memory("m")
        assert await memory.add(user("a"), user("b"), idempotency_key="k1") == first
        await memory.delete()
        assert await memory.add(user("a"), user("b"), idempotency_key="k1") == first
        assert await memory.messages() == ()
        assert (await memory.messages()).version == Version(0, 0)
        assert (await runtime.memory("other").add(user("a"), idempotency_key="k1")).count == 1


async def test_one_key_sent_many_times_at_once_writes_once(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        receipts = []

        async def send() -> None:
            receipts.append(await memory.add(user("once"), idempotency_key="k"))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(send)
        assert len(receipts) == 50
        assert len(set(receipts)) == 1
        assert texts(await memory.messages()) == ["once"]


async def test_a_failed_request_does_not_use_up_its_key(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        await memory.add(user("a"))
        with pytest.raises(ConflictError):
            await memory.set(user("b"), if_version=Version(0, 0), idempotency_key="k")
        assert (await memory.set(user("c"), idempotency_key="k")).count == 1


@pytest.mark.parametrize("key", ["", "x" * 513, "\ud83d", "a\0b", 5, b"k"])
async def test_other_idempotency_keys_are_refused(key: Any) -> None:
    async with open_runtime("memory:") as runtime:
        with pytest.raises(InvalidArgumentError, match="idempotency key"):
            await runtime.memory("m").add(user("a"), idempotency_key=key)
        assert await runtime.memory("m").messages() == ()


async def test_what_was_acknowledged_is_there_after_reopening(durable_url: str) -> None:
    odd: list[dict[str, Any]] = [
        {"role": "user", "content": "\ud83d \x00", "extra": [1, None]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "odd": True}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    async with open_runtime(durable_url) as runtime:
        await runtime.memory("m").add(user("gone"))
        await runtime.memory("m").set(user("a"))
        receipt = await runtime.memory("m").add(odd)
    async with open_runtime(durable_url) as runtime:
        messages = await runtime.memory("m").messages()
        assert messages.to_dicts() == [user("a"), *odd]
        assert messages.version == receipt.version
        assert [message.id for message in messages] == ["2.0", "3.0", "3.1", "3.2"]


async def test_stats_count_the_state(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        nothing = await memory.stats()
        assert (nothing.message_count, nothing.created_at, nothing.version) == (0, 0, Version(0, 0))
        receipt = await memory.add(user("a"), user("b"))
        stats = await memory.stats()
        assert (stats.version, stats.message_count, stats.encoded_bytes) == (receipt.version, 2, 58)
        assert stats.created_at == stats.updated_at > 1_700_000_000_000_000
        await memory.set(user("c"))
        later = await memory.stats()
        assert (later.message_count, later.created_at) == (1, stats.created_at)
        assert later.updated_at >= stats.updated_at
        counters = runtime.stats()
        assert (counters.pending, counters.commits, counters.resident) == (0, 2, 1)
    assert runtime.stats().commits == 2


class LastOnly(Window):
    """Shows the newest message."""

    def view(self, messages: Any) -> list[Message]:
        return list(messages)[-1:]


class Broken(Window):
    """Fails."""

    def view(self, messages: Any) -> list[Message]:
        raise ZeroDivisionError


async def test_a_handle_may_have_its_own_window_and_nothing_stored_depends_on_it(store_url: str) -> None:
    async with open_runtime(store_url, window=LastOnly()) as runtime:
        await runtime.memory("m").add(user("a"), user("b"))
        assert texts(await runtime.memory("m").messages()) == ["b"]
        narrow, broken = runtime.memory("n", window=LastOnly()), runtime.memory("m", window=Broken())
        await narrow.add(user("a"), user("b"))
        with pytest.raises(ZeroDivisionError):
            await broken.messages()
        await broken.add(user("c"))
        assert texts(await runtime.memory("m").messages()) == ["c"]
        async with anyio.create_task_group() as group:
            group.start_soon(narrow.add, user("c"))
            group.start_soon(narrow.messages)
        assert texts(await narrow.messages()) == ["c"]


async def test_200_tasks_add_10_each_and_nothing_is_lost_doubled_or_reordered(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:

        async def sender(number: int) -> None:
            memory = runtime.memory("m")
            for turn in range(10):
                await memory.add(user(f"{number}.{turn}"), user(f"{number}.{turn}!"))

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(sender, number)
        stored = texts(await runtime.memory("m").messages())
    assert len(stored) == 4000
    # a batch is never torn by another's
    assert [f"{first}!" for first in stored[::2]] == stored[1::2]
    by_sender: dict[str, list[int]] = {}
    for text in stored[::2]:
        name, turn = text.split(".")
        by_sender.setdefault(name, []).append(int(turn))
    assert by_sender == {str(number): list(range(10)) for number in range(200)}


async def test_c2_concurrent_first_calls_share_one_load(durable_url: str) -> None:
    async with open_runtime(durable_url) as runtime:
        await runtime.memory("m").add(user("stored"))
    async with open_runtime(durable_url, consistency="local") as runtime:
        found = []

        async def read() -> None:
            found.append(await runtime.memory("m").messages())

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(read)
        assert {texts(messages) == ["stored"] for messages in found} == {True}
        assert runtime.stats().reads == 1


async def test_handles_and_runtimes_refuse_pickling_and_values_pickle(store_url: str) -> None:
    async with open_runtime(store_url) as runtime:
        memory = runtime.memory("m")
        receipt = await memory.add(user("a"))
        for owned in (runtime, memory, runtime.sync, runtime.sync.memory("m")):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(owned)
        messages = await memory.messages()
        copy = pickle.loads(pickle.dumps(messages))
        assert (copy, copy.version, copy[0].id) == (messages, messages.version, "1.0")
        assert pickle.loads(pickle.dumps(receipt)) == receipt
        assert pickle.loads(pickle.dumps(await memory.stats())) == await memory.stats()


async def test_without_a_url_memories_end_with_the_process_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="turnkeeper"):
        async with open_runtime() as runtime:
            await runtime.memory("m").add(user("a"))
            await runtime.memory("n").messages()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "in memory" in caplog.text


async def test_p85_a_runtime_outside_its_block_says_what_to_do() -> None:
    runtime = open_runtime("memory:")
    with pytest.raises(RuntimeUsageError, match="async with"):
        await runtime.memory("m").add(user("a"))
    async with runtime:
        await runtime.memory("m").add(user("a"))
    for request in (runtime.memory("m").add(user("b")), runtime.memory("m").messages()):
        with pytest.raises(RuntimeClosedError):
            await request


async def test_10_mb_of_text_come_back(store_url: str) -> None:
    text = "ü" * 5_000_000
    async with open_runtime(store_url) as runtime:
        await runtime.memory("m").add(user(text))
        assert texts(await runtime.memory("m").messages()) == [text]

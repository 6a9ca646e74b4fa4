"""What Zerda says of ConversationBufferWindowMemory, and what leaves with the window here."""

from __future__ import annotations

import gc
import inspect
import json
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from turnkeeper import Version, open_sync_runtime
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.zerda import ConversationBufferMemory, ConversationBufferWindowMemory
from turnkeeper.stores import InMemoryStore, store_from_url

RunScript = Callable[..., str]


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let go of the test's files."""
    yield
    close_default_runtimes()


def filled(k: int, count: int, **options: Any) -> ConversationBufferWindowMemory:
    memory = ConversationBufferWindowMemory(k, **options)
    fill(memory, range(count))
    return memory


def fill(memory: ConversationBufferMemory, numbers: range) -> None:
    for number in numbers:
        memory.save_context({"input": number}, {"output": number})


def inputs(memory: ConversationBufferMemory) -> list[Any]:
    return [exchange["input"] for exchange in memory.chat_memory]


class TestK:
    def test_it_is_5_and_an_attribute(self) -> None:
        assert ConversationBufferWindowMemory().k == 5
        assert ConversationBufferWindowMemory(2).k == 2
        parameters = inspect.signature(ConversationBufferWindowMemory).parameters
        assert list(parameters) == ["k", "history", "kwargs"]

    @pytest.mark.parametrize("k", [0, -1, -1.5, 0.0])
    def test_below_1_is_a_value_error(self, k: Any) -> None:
        with pytest.raises(ValueError, match="k must be"):
            ConversationBufferWindowMemory(k)

    @pytest.mark.parametrize("k", [2.0, "3", None])
    def test_no_integer_is_a_type_error(self, k: Any) -> None:
        with pytest.raises(TypeError):
            ConversationBufferWindowMemory(k)

    def test_it_may_be_as_large_as_one_likes(self) -> None:
        """Listed: there it is an OverflowError from 2⁶³ on."""
        assert inputs(filled(10**30, 3)) == [0, 1, 2]

    def test_other_arguments_are_the_buffers(self) -> None:
        memory = ConversationBufferWindowMemory(2, return_messages=True, input_key="q", memory_key="chat")
        memory.save_context({"q": "a"}, {"output": "b"})
        assert memory.load_memory_variables({})["chat"] is memory.chat_memory
        with pytest.raises(TypeError):
            ConversationBufferWindowMemory(2, size=3)
        with pytest.raises(ValueError, match="history"):
            ConversationBufferWindowMemory(2, history="some")  # type: ignore[arg-type]

    def test_it_is_a_buffer(self) -> None:
        assert issubclass(ConversationBufferWindowMemory, ConversationBufferMemory)


class TestWindow:
    def test_the_last_k_exchanges_stay(self) -> None:
        memory = filled(2, 5)
        assert inputs(memory) == [3, 4]
        assert memory.load_memory_variables({})["history"] == "user: 3\nassistant: 3\nuser: 4\nassistant: 4"

    def test_window_info(self) -> None:
        memory = filled(3, 2)
        assert memory.get_window_info() == {"current_size": 2, "max_size": 3, "available_slots": 1, "is_full": False}
        fill(memory, range(5))
        assert memory.get_window_info() == {"current_size": 3, "max_size": 3, "available_slots": 0, "is_full": True}

    def test_stats(self) -> None:
        assert filled(3, 12).get_memory_stats() == {
            "type": "ConversationBufferWindowMemory",
            "message_count": 3,
            "total_characters": 10,
            "estimated_tokens": 2,
            "window_size": 3,
            "is_full": True,
        }
        assert filled(3, 2).get_memory_stats()["is_full"] is False

    def test_get_messages_takes_a_limit(self) -> None:
        """Listed: there it raises TypeError, because a deque can't be sliced."""
        memory = filled(3, 5)
        assert [exchange["input"] for exchange in memory.get_messages(limit=2)] == [3, 4]
        assert [exchange["input"] for exchange in memory.get_messages()] == [2, 3, 4]
        assert type(memory.get_messages()) is list

    def test_chat_memory_is_a_list_that_does_what_a_deque_does(self) -> None:
        """Listed: there it is a deque, which is no list and which `json.dumps` refuses."""
        history: Any = filled(2, 3).chat_memory
        assert history == deque(history)
        assert history.maxlen == 2
        history.appendleft({"input": 0, "output": 0})
        assert [exchange["input"] for exchange in history] == [0, 1]
        history.rotate(1)
        assert history.popleft()["input"] == 1
        history.extendleft([{"input": 7, "output": 7}, {"input": 8, "output": 8}])
        assert [exchange["input"] for exchange in history] == [8, 7]
        with pytest.raises(IndexError):
            history.insert(0, {"input": 9, "output": 9})
        assert json.loads(json.dumps(history)) == history
        assert history[1:] == [history[1]]

    def test_no_change_makes_it_larger_than_k(self) -> None:
        memory = filled(2, 2)
        new = [{"input": number, "output": number} for number in "abc"]
        memory.chat_memory.extend(new)
        assert inputs(memory) == ["b", "c"]
        memory.chat_memory = new
        assert inputs(memory) == ["b", "c"]
        memory.chat_memory[1:] = new
        assert inputs(memory) == ["b", "c"]
        memory.chat_memory *= 3
        assert inputs(memory) == ["b", "c"]
        memory.chat_memory += new
        assert inputs(memory) == ["b", "c"]

    def test_native_messages_in_between_count(self) -> None:
        memory = filled(2, 2)
        memory.native.add({"role": "system", "content": "Be brief."})
        assert inputs(memory) == [1]  # the system message takes a place, and half an exchange is none
        fill(memory, range(5, 7))
        assert inputs(memory) == [6]
        assert memory.get_memory_stats()["message_count"] == 1


class TestWhatLeaves:
    def test_it_leaves_the_store_in_the_same_commit(self, durable_url: str) -> None:
        memory = ConversationBufferWindowMemory(2, memory_id="m", store=durable_url)
        for number in range(30):
            memory.save_context({"input": f"said-{number}"}, {"output": "ok"})
        close_default_runtimes()
        store = store_from_url(durable_url, read_only=True)
        store.open(durability="full")
        try:
            (listed,) = store.names(namespace=None, after=None, limit=10)
            entries = store.entries(listed.head.mid, after=0, limit=100)
        finally:
            store.close()
        said = b"".join([entry.payload for entry in entries])
        assert len(entries) == 2
        assert [b"said-%d" % number in said for number in (27, 28, 29)] == [False, True, True]
        again = ConversationBufferMemory(memory_id="m", store=durable_url)
        assert inputs(again) == ["said-28", "said-29"]

    def test_it_does_not_come_back_when_there_is_room_again(self) -> None:
        """Also when it lies in the log in one entry with what stays, as after a change."""
        memory = filled(2, 2)
        memory.chat_memory[0]["input"] = "changed"
        fill(memory, range(2, 3))
        assert inputs(memory) == [1, 2]
        memory.chat_memory.pop()
        assert inputs(memory) == [1]

    def test_clear_and_changes_leave_nothing_behind_either(self, durable_url: str) -> None:
        with open_sync_runtime(durable_url) as runtime:
            memory = ConversationBufferMemory(memory_id="m", runtime=runtime)
            for _ in range(5):
                fill(memory, range(5))
                memory.chat_memory[0]["input"] = "changed"
                memory.clear()
            store = runtime._core.store
            mid = runtime.memory("m").stats().version.mid
            assert len(store.entries(mid, after=0, limit=100)) <= 1

    def test_keeping_history_is_an_explicit_keyword(self) -> None:
        memory = filled(2, 5, history="keep", memory_id="kept")
        assert inputs(memory) == [3, 4]
        everything = ConversationBufferMemory(memory_id="kept")
        assert inputs(everything) == [0, 1, 2, 3, 4]
        memory.chat_memory[0]["input"] = "changed"
        assert inputs(everything) == [0, 1, 2, "changed", 4]
        memory.chat_memory.pop()
        assert inputs(everything) == [0, 1, 2, "changed"]
        assert inputs(memory) == [2, "changed"]
        assert memory.get_memory_stats()["message_count"] == 2
        everything.clear()

    def test_other_handles_windows_never_prune(self) -> None:
        memory = filled(4, 4)
        small = ConversationBufferWindowMemory(2, memory_id=memory.memory_id, history="keep")
        assert inputs(small) == [2, 3]
        small.save_context({"input": 4}, {"output": 4})
        assert inputs(memory) == [1, 2, 3, 4]

    def test_objects_that_leave_are_let_go(self) -> None:
        class Thing:
            pass

        alive: weakref.WeakSet[Thing] = weakref.WeakSet()
        memory = ConversationBufferWindowMemory(3)
        for _ in range(10):
            thing = Thing()
            alive.add(thing)
            memory.save_context({"input": thing}, {"output": thing})
            del thing
        gc.collect()
        assert len(alive) == 3

    def test_a_thousand_exchanges_leave_k_in_ram(self) -> None:
        store = InMemoryStore()
        memory = ConversationBufferWindowMemory(5, memory_id="m", store=store)
        fill(memory, range(1_000))
        mid = memory.native.stats().version.mid
        assert memory.native.stats().version == Version(mid, 1_000)
        assert len(store.entries(mid, after=0, limit=10_000)) == 5
        assert memory.native.stats().message_count == 10

    @pytest.mark.slow
    @pytest.mark.timeout_seconds(300)
    def test_100_000_exchanges_leave_ram_flat(self, run_script: RunScript) -> None:
        printed = run_script(
            """
            import psutil
            from turnkeeper.stores import InMemoryStore

            store = InMemoryStore()
            memory = Window(5, memory_id="m", store=store)

            def fill(count):
                for number in range(count):
                    memory.save_context({"input": f"{number} " + "x" * 500}, {"output": "y" * 500})

            fill(5_000)
            before = psutil.Process().memory_info().rss
            fill(100_000)
            grown = psutil.Process().memory_info().rss - before
            rows = store.entries(memory.native.stats().version.mid, after=0, limit=1_000_000)
            print(grown // 2**20, len(rows), len(memory.chat_memory))
        """,
            seconds=280,
        )
        grown, rows, shown = map(int, printed.split())
        assert (rows, shown) == (5, 5)
        assert grown < 30  # MB; what was said is 100

"""Objects that are collected, the end of the interpreter, and forks."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from compat.langchain4j.own_stores import InlineStore, OwnStore, texts, user
from compat.langchain4j.test_own_stores import memory_on
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.langchain4j import MessageWindowChatMemory
from turnkeeper.compat.langchain4j.homes import home_of

RunScript = Callable[..., str]

USING = """
from turnkeeper.compat.langchain4j import *
from turnkeeper import UserMessage
texts = lambda memory: [message.text for message in memory.messages()]
"""


def gone(memory_id: str, namespace: str) -> bool:
    """Wait until a memory of the default runtime is deleted; the reaper is a thread."""
    done = threading.Event()
    for _ in range(500):
        if not runtime_for().sync.memory(memory_id, namespace).messages():
            return True
        done.wait(0.01)
    return False


class TestCollectedObjects:
    def test_a_memory_without_a_store_ends_with_its_object(self) -> None:
        memory = MessageWindowChatMemory(5)
        memory.add(user("u1"))
        native = memory.native
        assert texts(native.messages()) == ["u1"]
        del memory
        gc.collect()
        assert gone(native.id, native.namespace)

    def test_also_one_that_was_only_read(self) -> None:
        memory = MessageWindowChatMemory(5)
        memory.messages()
        collected = weakref.ref(memory)
        del memory
        gc.collect()
        assert collected() is None

    def test_one_in_a_store_stays(self) -> None:
        store = OwnStore()
        memory_on(store).add(user("u1"))
        gc.collect()
        assert texts(memory_on(store).messages()) == ["u1"]

    def test_a_store_of_ones_own_is_not_kept(self) -> None:
        store = InlineStore()
        memory = memory_on(store)
        memory.add(user("u1"))
        number = home_of(store).number
        collected = weakref.ref(store)
        del store, memory
        close_default_runtimes()  # the actor's task lingers for a second, with the last request
        gc.collect()
        assert collected() is None
        assert home_of(InlineStore()).number != number

    @pytest.mark.slow
    @pytest.mark.timeout_seconds(300)
    def test_100_000_created_used_and_dropped_leave_ram_flat(self, run_script: RunScript) -> None:
        printed = run_script(
            USING
            + """
import psutil
from turnkeeper.compat.default_runtime import runtime_for

def use(count):
    for _ in range(count):
        MessageWindowChatMemory(5).add(UserMessage("x" * 2_000))

use(5_000)
before = psutil.Process().memory_info().rss
use(100_000)
grown = psutil.Process().memory_info().rss - before
print(grown // 2**20, runtime_for().sync.stats().resident)
""",
            seconds=280,
        )
        grown, resident = map(int, printed.split())
        assert grown < 40  # MB; what was said alone is 200
        assert resident < 5_000

    def test_a_window_that_slides_keeps_ram_and_rows_bounded(self) -> None:
        memory = MessageWindowChatMemory(5)
        for number in range(2_000):
            memory.add(user(f"{number} {'x' * 100}"))
        stats = memory.native.stats()
        assert stats.message_count <= 5
        assert stats.encoded_bytes < 2_000


class TestEnd:
    @pytest.mark.parametrize(
        "store", ["None", "'sqlite:///chats.db'", "InMemoryChatMemoryStore()", "Own()", "StoreChatMemoryStore()"]
    )
    def test_the_end_of_a_script_is_quiet(self, run_script: RunScript, store: str) -> None:
        printed = run_script(
            USING
            + f"""
import anyio
class Own(ChatMemoryStore):
    held = ()
    def get_messages(self, memory_id): return self.held
    def update_messages(self, memory_id, messages): self.held = messages
    def delete_messages(self, memory_id): self.held = ()
memory = MessageWindowChatMemory(5, id="m", chat_memory_store={store}, offload_blocking_store=True)
memory.add(UserMessage("u1"))
anyio.run(memory.add_async, UserMessage("u2"))
anyio.run(memory.add_async, UserMessage("u3"), backend="trio")
print(texts(memory))
"""
        )
        assert printed == "['u1', 'u2', 'u3']"

    def test_a_store_that_hangs_does_not_hold_the_process(self, run_script: RunScript) -> None:
        run_script(
            USING
            + """
class Own(ChatMemoryStore):
    def get_messages(self, memory_id):
        reached.set()
        threading.Event().wait()
    def update_messages(self, memory_id, messages): ...
    def delete_messages(self, memory_id): ...

from turnkeeper.compat.langchain4j import list_core
from turnkeeper.config import Settings
made = list_core.ListCore.__init__
list_core.ListCore.__init__ = lambda self: made(self, close_timeout=0.1)
reached = threading.Event()
memory = MessageWindowChatMemory(5, id="m", chat_memory_store=Own())
threading.Thread(target=memory.messages, daemon=True).start()
reached.wait()
""",
            quiet=False,
        )


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this platform has no fork")
class TestFork:
    def test_memories_go_on_in_the_child_with_what_was_committed(self, run_script: RunScript) -> None:
        printed = run_script(
            USING
            + """
import anyio
store = InMemoryChatMemoryStore()
alone, kept = MessageWindowChatMemory(5), MessageWindowChatMemory(5, id="m", chat_memory_store=store)
for memory in (alone, kept):
    memory.add(UserMessage("a"))
    anyio.run(memory.add_async, UserMessage("b"))

def work():
    for memory in (alone, kept):
        memory.add(UserMessage("child"))
        anyio.run(memory.add_async, UserMessage("async child"))
        print(texts(memory))

print(child(work))
for memory in (alone, kept):
    memory.add(UserMessage("parent"))
    print(texts(memory))
"""
        )
        here, there = "['a', 'b', 'parent']", "['a', 'b', 'child', 'async child']"
        assert printed.splitlines() == [there, there, here, here]

    def test_a_service_goes_on_in_the_child_though_somebody_held_it(self, run_script: RunScript) -> None:
        printed = run_script(
            USING
            + """
started, go = threading.Event(), threading.Event()

def provide(memory_id):
    if threading.current_thread() is not threading.main_thread():
        started.set()
        go.wait()
    return MessageWindowChatMemory(5, id=memory_id)

service = ChatMemoryService(provide)
service.get_or_create_chat_memory("known").add(UserMessage("a"))
thread = threading.Thread(target=service.get_or_create_chat_memory, args=("slow",))
thread.start()
started.wait()

def work():
    slow = service.get_or_create_chat_memory("slow")
    slow.add(UserMessage("b"))
    print(texts(service.get_or_create_chat_memory("known")), texts(slow))

with service._own_lock:
    print(child(work))
go.set()
thread.join()
print(texts(service.get_or_create_chat_memory("slow")))
"""
        )
        assert printed.splitlines() == ["['a'] ['b']", "[]"]

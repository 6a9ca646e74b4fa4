"""Promises of the runtime behind drop-in memories: it is there wherever one calls, and goes without a word."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnkeeper import (
    InvalidArgumentError,
    InvalidStoreURLError,
    RuntimeClosedError,
    RuntimeUsageError,
    StoreInUseError,
    open_runtime,
    open_sync_runtime,
)
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.default_runtime import runtime_for
from turnkeeper.compat.zerda import ConversationBufferMemory
from turnkeeper.stores import InMemoryStore

RunScript = Callable[..., str]


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let go of the test's files."""
    yield
    close_default_runtimes()


def texts(memory: ConversationBufferMemory) -> list[Any]:
    return [exchange["input"] for exchange in memory.chat_memory]


def say(memory: ConversationBufferMemory, text: str) -> None:
    memory.save_context({"input": text}, {"output": text})


class TestWhereOneCalls:
    @pytest.mark.anyio
    async def test_blocking_calls_work_on_the_thread_of_a_running_loop(self) -> None:
        memory = ConversationBufferMemory()
        say(memory, "a")
        assert memory.load_memory_variables({}) == {"history": "user: a\nassistant: a"}
        memory.clear()
        assert memory.chat_memory == []

    @pytest.mark.anyio
    async def test_async_calls_work_from_every_loop(self) -> None:
        memory = ConversationBufferMemory()
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(memory.asave_context, {"input": number}, {"output": number})
        assert sorted(texts(memory)) == list(range(20))
        loaded = await memory.aload_memory_variables({})
        assert loaded["history"].count("user: ") == 20

    @pytest.mark.anyio
    @pytest.mark.parametrize(
        ("call", "instead"),
        [
            (lambda memory: memory.save_context({}, {}), r"await memory\.asave_context"),
            (lambda memory: memory.load_memory_variables({}), r"await memory\.aload_memory_variables"),
            (lambda memory: memory.clear(), r"run_sync\(memory\.clear\)"),
            (lambda memory: memory.get_messages(), "run_sync"),
            (lambda memory: memory.get_memory_stats(), "run_sync"),
            (lambda memory: len(memory.chat_memory), "run_sync"),
            (lambda memory: memory.chat_memory.append({"input": 1, "output": 2}), "run_sync"),
            (lambda memory: memory.chat_memory.reverse(), "run_sync"),
        ],
    )
    async def test_only_an_object_bound_to_the_runtime_of_that_very_loop_refuses_and_names_the_async_method(
        self, call: Callable[[ConversationBufferMemory], object], instead: str
    ) -> None:
        async with open_runtime("memory:") as runtime:
            memory = ConversationBufferMemory(runtime=runtime, memory_id="m")
            with pytest.raises(RuntimeUsageError, match=instead):
                call(memory)
            assert await runtime.memory("m").messages() == ()
            await memory.asave_context({"input": "a"}, {"output": "b"})
            assert (await memory.aload_memory_variables({}))["history"] == "user: a\nassistant: b"
            await anyio.to_thread.run_sync(say, memory, "c")
            assert [message.text for message in await runtime.memory("m").messages()] == ["a", "b", "c", "c"]

    def test_a_sync_runtime_serves_every_thread(self) -> None:
        with open_sync_runtime("memory:", backend="trio") as runtime:
            memory = ConversationBufferMemory(runtime=runtime)
            say(memory, "a")
            thread = threading.Thread(target=say, args=(memory, "b"))
            thread.start()
            thread.join()
            assert texts(memory) == ["a", "b"]
        with pytest.raises(RuntimeClosedError):
            say(memory, "late")


class TestStores:
    def test_all_objects_of_one_url_share_a_runtime_however_it_is_spelled(self, tmp_path: Path) -> None:
        one = ConversationBufferMemory(memory_id="m", store=f"sqlite:///{tmp_path}/chats.db")
        other = ConversationBufferMemory(memory_id="m", store=f"sqlite:///{tmp_path}/./chats.db")
        say(one, "a")
        say(other, "b")
        assert texts(one) == texts(other) == ["a", "b"]

    def test_in_memory_is_the_default_and_has_a_url(self) -> None:
        assert runtime_for() is runtime_for("memory:")

    def test_a_store_of_ones_own_is_taken_as_it_is(self) -> None:
        store = InMemoryStore()
        say(ConversationBufferMemory(memory_id="m", store=store), "a")
        say(ConversationBufferMemory(memory_id="m", store=store), "b")
        assert [listed.name.id for listed in store.names(namespace=None, after=None, limit=10)] == ["m"]

    def test_closing_lets_the_store_go_and_the_next_use_opens_it_again(self, durable_url: str) -> None:
        memory = ConversationBufferMemory(memory_id="m", store=durable_url)
        say(memory, "a")
        close_default_runtimes()
        with open_sync_runtime(durable_url) as runtime:
            assert len(runtime.memory("m").messages()) == 2
        say(memory, "b")
        assert texts(memory) == ["a", "b"]

    def test_closing_keeps_what_is_in_memory(self) -> None:
        memory = ConversationBufferMemory()
        say(memory, "a")
        close_default_runtimes()
        other = ConversationBufferMemory()
        say(other, "x")
        say(memory, "b")
        assert (texts(memory), texts(other)) == (["a", "b"], ["x"])

    def test_a_store_in_use_says_so_until_it_is_free(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/chats.db"
        memory = ConversationBufferMemory(memory_id="m", store=url)
        with open_sync_runtime(url):
            for _ in range(2):
                with pytest.raises(StoreInUseError):
                    say(memory, "a")
        say(memory, "b")
        assert texts(memory) == ["b"]

    def test_wrong_arguments_are_refused_at_once(self) -> None:
        with open_sync_runtime("memory:") as runtime, pytest.raises(InvalidArgumentError, match="not both"):
            ConversationBufferMemory(store="memory:", runtime=runtime)
        with pytest.raises(InvalidArgumentError, match="a runtime is"):
            ConversationBufferMemory(runtime="memory:")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="a store is"):
            ConversationBufferMemory(store=1)  # type: ignore[arg-type]
        for url in ("oracle://", ""):
            with pytest.raises(InvalidStoreURLError):
                ConversationBufferMemory(store=url)
        with pytest.raises(InvalidArgumentError):
            ConversationBufferMemory(memory_id="")


class TestCollectedObjects:
    @staticmethod
    def gone(runtime: Any, memory_id: str) -> bool:
        """Wait until a memory is deleted; the reaper is a thread."""
        done = threading.Event()
        for _ in range(500):
            if not runtime.memory(memory_id).messages():
                return True
            done.wait(0.01)
        return False

    def test_a_memory_ends_with_its_object(self) -> None:
        runtime = runtime_for().sync
        memory = ConversationBufferMemory()
        say(memory, "a")
        memory_id = memory.memory_id
        assert len(runtime.memory(memory_id).messages()) == 2
        del memory
        assert self.gone(runtime, memory_id)

    def test_it_stays_as_long_as_its_list_is_held(self) -> None:
        memory = ConversationBufferMemory(return_messages=True)
        say(memory, "a")
        history = memory.load_memory_variables({})["history"]
        del memory
        gc.collect()
        assert [exchange["input"] for exchange in history] == ["a"]
        history.append({"input": "b", "output": "b"})
        assert len(history) == 2

    def test_making_and_dropping_one_starts_nothing(self, run_script: RunScript) -> None:
        printed = run_script("""
            for _ in range(1_000):
                Buffer()
                Window(2)
            print(threading.active_count())
        """)
        assert printed == "1"

    def test_one_that_goes_while_its_runtime_is_closed_ends_when_that_opens_again(self) -> None:
        memory = ConversationBufferMemory()
        say(memory, "a")
        memory_id = memory.memory_id
        close_default_runtimes()
        before = threading.active_count()
        del memory
        assert threading.active_count() <= before
        assert self.gone(runtime_for().sync, memory_id)

    def test_it_may_be_collected_in_the_runtimes_own_thread(self) -> None:
        runtime = runtime_for()
        memory = ConversationBufferMemory()
        say(memory, "a")
        memory_id = memory.memory_id
        holder: list[Any] = [memory]
        holder.append(holder)  # only the garbage collector ends a cycle
        gc.disable()
        try:
            del memory, holder
            runtime.core.portal.call(gc.collect)
        finally:
            gc.enable()
        assert self.gone(runtime.sync, memory_id)

    def test_a_destructor_that_runs_in_the_runtimes_thread_is_refused_and_holds_up_nobody(self) -> None:
        raised: list[BaseException] = []
        memory = ConversationBufferMemory()
        say(memory, "a")

        class Last:
            def __del__(self) -> None:
                try:
                    say(memory, "last words")
                except RuntimeUsageError as error:
                    raised.append(error)

        last = Last()
        last.itself = last  # type: ignore[attr-defined]
        gc.disable()
        try:
            del last
            runtime_for().core.portal.call(gc.collect)
        finally:
            gc.enable()
        assert len(raised) == 1
        assert texts(memory) == ["a"]

    def test_one_with_a_name_of_its_own_stays(self) -> None:
        say(ConversationBufferMemory(memory_id="named"), "a")
        gc.collect()
        memory = ConversationBufferMemory(memory_id="named")
        assert texts(memory) == ["a"]
        memory.clear()

    def test_one_in_a_store_stays(self, durable_url: str) -> None:
        memory = ConversationBufferMemory(store=durable_url)
        say(memory, "a")
        memory_id = memory.memory_id
        del memory
        gc.collect()
        assert texts(ConversationBufferMemory(memory_id=memory_id, store=durable_url)) == ["a"]

    def test_one_in_a_given_runtime_that_forgets_ends_too(self) -> None:
        with open_sync_runtime("memory:") as runtime:
            memory = ConversationBufferMemory(runtime=runtime)
            say(memory, "a")
            memory_id = memory.memory_id
            del memory
            assert self.gone(runtime, memory_id)

    def test_objects_of_a_closed_runtime_and_of_one_never_opened_go_quietly(self) -> None:
        with open_sync_runtime("memory:") as closed:
            memory = ConversationBufferMemory(runtime=closed)
            say(memory, "a")
        del memory
        ConversationBufferMemory(runtime=open_runtime("memory:"))
        self.test_a_memory_ends_with_its_object()

    @pytest.mark.slow
    @pytest.mark.timeout_seconds(300)
    def test_100_000_created_and_dropped_leave_ram_flat(self, run_script: RunScript) -> None:
        printed = run_script(
            """
            import psutil
            from turnkeeper.compat.default_runtime import runtime_for

            def use(count):
                for number in range(count):
                    memory = Buffer()
                    if number % 4 == 0:
                        memory.save_context({"input": "x" * 4_000}, {"output": "y" * 4_000})

            use(5_000)
            before = psutil.Process().memory_info().rss
            use(100_000)
            grown = psutil.Process().memory_info().rss - before
            print(grown // 2**20, runtime_for().sync.stats().resident)
        """,
            seconds=280,
        )
        grown, resident = map(int, printed.split())
        assert grown < 40  # MB; what was said in a quarter of them is 200
        assert resident < 5_000


class TestEnd:
    @pytest.mark.parametrize(
        "store", [None, "sqlite:///chats.db", "sqlite:///chats.db?shared=true"], ids=["memory", "sqlite", "shared"]
    )
    def test_the_end_of_a_script_is_quiet(self, run_script: RunScript, store: str | None) -> None:
        run_script(f"""
            memory = Buffer(store={store!r})
            memory.save_context({{"input": "a"}}, {{"output": "b"}})
        """)

    def test_so_is_one_with_an_exception(self, run_script: RunScript) -> None:
        said = run_script(
            """
            memory = Buffer()
            memory.save_context({"input": "a"}, {"output": "b"})
            raise SystemError("on purpose")
        """,
            expect=1,
            quiet=False,
        )
        assert said.count("Traceback") == 1
        assert said.endswith("SystemError: on purpose\n")

    def test_so_is_sys_exit_in_a_thread(self, run_script: RunScript) -> None:
        run_script("""
            memory = Buffer()

            def work():
                memory.save_context({"input": "a"}, {"output": "b"})
                sys.exit(3)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert texts(memory) == ["a"]
        """)

    def test_so_is_one_with_threads_that_go_on(self, run_script: RunScript) -> None:
        """The interpreter waits for ordinary threads; daemons are met in the middle of a call."""
        run_script("""
            memory = Buffer()
            started = threading.Barrier(3)

            def work(count):
                started.wait()
                try:
                    for _ in range(count):
                        memory.save_context({"input": "a"}, {"output": "b"})
                except Exception:
                    pass

            threading.Thread(target=work, args=(500,)).start()
            threading.Thread(target=work, args=(1_000_000,), daemon=True).start()
            started.wait()
        """)

    def test_so_is_one_inside_an_event_loop(self, run_script: RunScript) -> None:
        run_script("""
            import asyncio

            async def main():
                memory = Buffer()
                await memory.asave_context({"input": "a"}, {"output": "b"})
                memory.save_context({"input": "a"}, {"output": "b"})

            asyncio.run(main())
        """)

    def test_so_is_a_pytest_session_in_which_warnings_are_errors(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            from turnkeeper.compat.zerda import ConversationBufferMemory

            kept = ConversationBufferMemory()

            def test_it():
                kept.save_context({"input": "a"}, {"output": "b"})
                ConversationBufferMemory().save_context({"input": "a"}, {"output": "b"})
        """)
        ran = pytester.runpytest_subprocess("-W", "error", "-p", "no:xdist", "-p", "no:cacheprovider")
        ran.assert_outcomes(passed=1)
        assert ran.ret == 0
        assert not ran.errlines

    def test_an_exit_handler_may_still_use_a_memory(self, run_script: RunScript) -> None:
        assert (
            run_script("""
            import atexit
            memory = Buffer()
            memory.save_context({"input": "a"}, {"output": "b"})
            atexit.register(lambda: print(texts(memory)))
        """)
            == "['a']"
        )

    def test_a_destructor_at_the_very_end_gets_an_error_and_does_not_hang(self, run_script: RunScript) -> None:
        printed = run_script("""
            class Bot:
                def __init__(self):
                    self.memory = Buffer()
                    self.memory.save_context({"input": "a"}, {"output": "b"})
                def __del__(self):
                    try:
                        self.memory.clear()
                    except Exception as error:
                        print(type(error).__name__, flush=True)

            bot = Bot()
        """)
        assert printed == "RuntimeClosedError"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this platform has no fork")
class TestFork:
    def test_memories_go_on_in_the_child_with_what_was_committed(self, run_script: RunScript) -> None:
        printed = run_script("""
            memory = Buffer(return_messages=True)
            thing = object()
            memory.save_context({"input": "a"}, {"output": thing})
            window = Window(2)
            for number in range(3):
                window.save_context({"input": number}, {"output": number})

            def work():
                memory.save_context({"input": "child"}, {"output": "b"})
                assert memory.chat_memory[0]["output"] is thing
                memory.chat_memory[0]["input"] = "changed"
                print(texts(memory), texts(window), texts(Buffer(memory_id=memory.memory_id)))

            print(child(work))
            memory.save_context({"input": "parent"}, {"output": "b"})
            print(texts(memory))
        """)
        assert printed.splitlines() == ["['changed', 'child'] [1, 2] ['changed', 'child']", "['a', 'parent']"]

    def test_objects_made_before_and_after_end_in_the_child_too(self, run_script: RunScript) -> None:
        printed = run_script("""
            from turnkeeper.compat.default_runtime import runtime_for

            memories = [Buffer() for _ in range(10)]
            for memory in memories:
                memory.save_context({"input": "a"}, {"output": "b"})
            ids = [memory.memory_id for memory in memories]

            def work():
                global memory
                other = Buffer()
                other.save_context({"input": "a"}, {"output": "b"})
                memories.clear()
                del memory
                while any(runtime_for().sync.memory(known).messages() for known in ids):
                    pass
                print("gone")

            print(child(work))
            assert all(texts(memory) == ["a"] for memory in memories)
        """)
        assert printed == "gone"

    def test_a_fork_never_finds_half_a_commit(self, run_script: RunScript) -> None:
        printed = run_script("""
            memory = Buffer(memory_id="m")
            window = Window(3, memory_id="w")
            going = True

            def write():
                while going:
                    memory.save_context({"input": "a"}, {"output": object()})
                    window.save_context({"input": "a"}, {"output": "b"})
                    if len(memory.chat_memory) > 50:
                        memory.chat_memory.clear()

            threads = [threading.Thread(target=write) for _ in range(4)]
            for thread in threads:
                thread.start()

            def work():
                for known in (memory, window):
                    before = known.get_messages()
                    stats = known.get_memory_stats()
                    assert stats["message_count"] == len(before)
                    assert all(type(exchange["output"]) in (object, str) for exchange in before), before
                    known.save_context({"input": "child"}, {"output": object()})
                    assert known.get_messages()[-1]["input"] == "child"
                print("whole")

            try:
                print({child(work) for _ in range(20)})
            finally:
                going = False
        """)
        assert printed == "{'whole'}"

    def test_a_fork_waits_for_the_commit_that_is_under_way(self, run_script: RunScript) -> None:
        printed = run_script("""
            from turnkeeper.stores import InMemoryStore

            real, inside, forking, ended = InMemoryStore.commit, threading.Event(), threading.Event(), []

            def commit(self, slices, **options):
                inside.set()
                forking.wait()
                outcomes = real(self, slices, **options)
                ended.append(True)
                return outcomes

            memory = Buffer()
            InMemoryStore.commit = commit
            thread = threading.Thread(target=memory.save_context, args=({"input": "a"}, {}))
            thread.start()
            inside.wait()
            os.register_at_fork(before=forking.set)
            print(child(lambda: print(ended, texts(memory))))
            thread.join()
        """)
        assert printed == "[True] ['a']"

    def test_a_child_trusts_nothing_that_another_thread_had_in_hand(self, run_script: RunScript) -> None:
        printed = run_script("""
            memory = Buffer()
            for text in "abc":
                memory.save_context({"input": text}, {"output": text})
            held, released = threading.Event(), threading.Event()

            def hold():
                with memory.chat_memory.lock:
                    list.pop(memory.chat_memory)
                    held.set()
                    released.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            print(child(lambda: print(texts(memory), memory.get_memory_stats()["message_count"])))
            released.set()
            thread.join()
        """)
        assert printed == "['a', 'b', 'c'] 3"

    def test_a_memory_in_a_file_of_the_parent_says_that_it_is_in_use(self, run_script: RunScript) -> None:
        printed = run_script("""
            memory = Buffer(memory_id="m", store="sqlite:///chats.db")
            memory.save_context({"input": "a"}, {"output": "b"})

            def work():
                try:
                    memory.save_context({"input": "child"}, {"output": "b"})
                except Exception as error:
                    print(type(error).__name__)

            print(child(work), texts(memory))
        """)
        assert printed == "StoreInUseError ['a']"

    def test_a_memory_in_a_shared_file_goes_on_in_both(self, run_script: RunScript) -> None:
        printed = run_script("""
            memory = Buffer(memory_id="m", store="sqlite:///chats.db?shared=true")
            memory.save_context({"input": "a"}, {"output": "b"})
            child(lambda: memory.save_context({"input": "child"}, {"output": "b"}))
            memory.save_context({"input": "parent"}, {"output": "b"})
            print(texts(memory))
        """)
        assert printed == "['a', 'child', 'parent']"

    def test_an_object_of_the_users_own_runtime_says_that_it_was_forked(self, run_script: RunScript) -> None:
        printed = run_script("""
            from turnkeeper import open_sync_runtime

            def work():
                try:
                    memory.save_context({}, {})
                except Exception as error:
                    print(type(error).__name__, flush=True)
                os._exit(0)  # the runtime's own block can't be left here

            with open_sync_runtime("memory:") as runtime:
                memory = Buffer(runtime=runtime)
                print(child(work))
        """)
        assert printed == "RuntimeUsageError"

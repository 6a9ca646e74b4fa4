"""What Zerda says of ConversationSummaryMemory, and what a model may do here: fail, stall, be async."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.schedule import Gate
from turnkeeper import InvalidMessageError, open_runtime
from turnkeeper.compat import close_default_runtimes
from turnkeeper.compat.zerda import BaseMemory, ConversationBufferMemory, ConversationSummaryMemory

RunScript = Callable[..., str]


class Model:
    """Answers with what it is given; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.max_tokens: set[int] = set()

    def generate(self, prompt: str, max_tokens: int) -> Any:
        self.prompts.append(prompt)
        self.max_tokens.add(max_tokens)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class AsyncModel(Model):
    """The same, and tells which loop it ran in."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.threads: set[int] = set()

    async def generate(self, prompt: str, max_tokens: int) -> Any:
        await anyio.lowlevel.checkpoint()
        self.threads.add(threading.get_ident())
        return super().generate(prompt, max_tokens)


class StallingModel(Model):
    """Answers once its gate is open."""

    def __init__(self, gate: Gate, *answers: Any) -> None:
        super().__init__(*answers)
        self.gate = gate

    def generate(self, prompt: str, max_tokens: int) -> Any:
        answer = super().generate(prompt, max_tokens)
        self.gate.stop_thread()
        return answer


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Let go of the test's files."""
    yield
    close_default_runtimes()


def say(memory: ConversationSummaryMemory, *texts: str) -> None:
    for text in texts:
        memory.save_context({"input": text}, {"output": "ok"})


def inputs(memory: ConversationSummaryMemory) -> list[Any]:
    return [exchange["input"] for exchange in memory.chat_memory]


class TestContract:
    def test_the_parameters_are_zerdas_and_ours_are_keywords(self) -> None:
        parameters = inspect.signature(ConversationSummaryMemory).parameters
        assert {name: parameter.default for name, parameter in parameters.items() if name != "llm"} == {
            "max_token_limit": 2000,
            "memory_key": "history",
            "input_key": "input",
            "output_key": "output",
            "summary_prompt_template": None,
            "memory_id": None,
            "store": None,
            "runtime": None,
        }
        assert issubclass(ConversationSummaryMemory, BaseMemory)
        assert not issubclass(ConversationSummaryMemory, ConversationBufferMemory)

    def test_arguments_are_attributes(self) -> None:
        model = Model("s")
        memory = ConversationSummaryMemory(model, 10, "chat", "q", "a", "{previous_summary}{new_conversation}")
        assert (memory.llm, memory.max_token_limit, memory.memory_key) == (model, 10, "chat")
        assert (memory.input_key, memory.output_key) == ("q", "a")
        assert memory.summary_prompt_template == "{previous_summary}{new_conversation}"
        assert "{previous_summary}" in ConversationSummaryMemory(model).summary_prompt_template
        assert "{new_conversation}" in ConversationSummaryMemory(model).summary_prompt_template

    def test_entries_have_no_timestamp(self) -> None:
        memory = ConversationSummaryMemory(Model("s"))
        memory.save_context({"input": "a"}, {})
        assert memory.chat_memory == [{"input": "a", "output": None}]

    def test_tokens_are_words_times_1_3(self) -> None:
        memory = ConversationSummaryMemory(Model("s"))
        say(memory, "one two three", "four")
        assert memory.get_memory_stats() == {
            "type": "ConversationSummaryMemory",
            "has_summary": False,
            "summary_length": 0,
            "recent_messages_count": 2,
            "estimated_tokens": int(6 * 1.3),
            "token_limit": 2000,
        }
        memory.summary = "five six"
        stats = memory.get_memory_stats()
        assert (stats["has_summary"], stats["summary_length"], stats["estimated_tokens"]) == (True, 8, int(8 * 1.3))

    def test_above_the_limit_the_stripped_answer_replaces_everything_it_saw(self) -> None:
        model = Model("  first \n", "second")
        memory = ConversationSummaryMemory(model, 6, summary_prompt_template="[{previous_summary}]{new_conversation}")
        say(memory, "a b", "c")
        assert model.prompts == []  # 5 words are 6 tokens: not above
        say(memory, "d")
        assert model.prompts == ["[not found ]user: a b\nassistant: ok\nuser: c\nassistant: ok\nuser: d\nassistant: ok"]
        assert model.max_tokens == {200}
        assert (memory.get_summary(), memory.chat_memory) == ("first", [])
        say(memory, "e f g h")
        assert model.prompts[1] == "[first]user: e f g h\nassistant: ok"
        assert memory.summary == "second"

    def test_loading_joins_summary_and_exchanges(self) -> None:
        memory = ConversationSummaryMemory(Model("so far"), memory_key="chat")
        assert memory.load_memory_variables({}) == {"chat": ""}
        say(memory, "a")
        assert memory.load_memory_variables({}) == {"chat": "user: a\nassistant: ok"}
        memory.force_summarize()
        assert memory.load_memory_variables({"ignored": 1}) == {"chat": "so far"}
        say(memory, "b")
        assert memory.load_memory_variables({}) == {
            "chat": "so far\n\n---  the recent conversation---\nuser: b\nassistant: ok"
        }

    def test_force_summarize_does_nothing_on_an_empty_memory(self) -> None:
        model = Model("s")
        memory = ConversationSummaryMemory(model)
        memory.force_summarize()
        assert model.prompts == []
        say(memory, "a")
        memory.force_summarize()
        assert len(model.prompts) == 1

    def test_clear_empties_the_summary_too(self) -> None:
        memory = ConversationSummaryMemory(Model("s"))
        say(memory, "a")
        memory.force_summarize()
        say(memory, "b")
        memory.clear()
        assert (memory.summary, memory.chat_memory, memory.load_memory_variables({})) == ("", [], {"history": ""})

    def test_the_list_is_live_and_its_changes_keep_the_summary(self) -> None:
        memory = ConversationSummaryMemory(Model("s"))
        say(memory, "a")
        memory.force_summarize()
        say(memory, "b", "c")
        memory.chat_memory[0]["input"] = "changed"
        del memory.chat_memory[1]
        assert memory.load_memory_variables({})["history"].endswith("user: changed\nassistant: ok")
        memory.chat_memory.clear()
        assert memory.summary == "s"

    def test_the_summary_is_an_attribute_that_may_be_set(self) -> None:
        memory = ConversationSummaryMemory(Model("s"))
        memory.summary = "before"
        say(memory, "a")
        memory.summary = "after"
        assert (memory.summary, inputs(memory)) == ("after", ["a"])
        memory.summary = ""
        assert (memory.summary, inputs(memory)) == ("", ["a"])


class TestHere:
    def test_natively_it_is_a_prompt_that_is_ready_for_use(self, durable_url: str) -> None:
        memory = ConversationSummaryMemory(Model("so far"), memory_id="m", store=durable_url)
        say(memory, "a")
        memory.force_summarize()
        say(memory, "b")
        assert [(message.role, message.content) for message in memory.native.messages()] == [
            ("system", "so far"),
            ("user", "b"),
            ("assistant", "ok"),
        ]
        close_default_runtimes()
        again = ConversationSummaryMemory(Model("s"), memory_id="m", store=durable_url)
        assert (again.summary, inputs(again)) == ("so far", ["b"])

    @pytest.mark.parametrize(
        "answer", [RuntimeError("secret"), "", "  \n", None, 5], ids=["raises", "nothing", "blank", "None", "number"]
    )
    def test_a_failing_model_loses_nothing(self, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Listed: there all but the last five exchanges are gone, and with an empty answer all."""
        model = Model(answer)
        memory = ConversationSummaryMemory(model, 1)
        texts = [f"secret {number}" for number in range(8)]
        with caplog.at_level(logging.ERROR, logger="turnkeeper"):
            say(memory, *texts)
            memory.force_summarize()
        assert inputs(memory) == texts
        assert memory.summary == ""
        assert len(model.prompts) == 9
        assert "nothing was lost" in caplog.text
        assert "secret" not in caplog.text
        memory.llm = Model("at last")
        say(memory, "x")
        assert (memory.summary, inputs(memory)) == ("at last", [])

    def test_a_template_that_does_not_fit_loses_nothing(self) -> None:
        memory = ConversationSummaryMemory(Model("s"), 0, summary_prompt_template="{nothing}")
        say(memory, "a", "b")
        assert inputs(memory) == ["a", "b"]

    def test_a_store_that_refuses_raises_before_a_model_is_asked(self, durable_url: str) -> None:
        model = Model("s")
        memory = ConversationSummaryMemory(model, 0, store=durable_url)
        with pytest.raises(InvalidMessageError):
            memory.save_context({"input": object()}, {})
        assert model.prompts == []

    def test_a_stalling_model_blocks_no_other_caller_and_what_they_save_stays(self) -> None:
        with Gate() as gate:
            model = StallingModel(gate, "so far", "more")
            memory = ConversationSummaryMemory(model, 3)
            thread = threading.Thread(target=say, args=(memory, "a b c"))
            thread.start()
            gate.arrival_in_thread()
            say(memory, "d", "e f g h")  # above the limit: somebody is at it already
            assert inputs(memory) == ["a b c", "d", "e f g h"]
            assert len(model.prompts) == 1
            memory.chat_memory[1]["input"] = "changed"
            gate.open()
            thread.join()
            assert (memory.summary, inputs(memory)) == ("so far", ["changed", "e f g h"])
            say(memory, "i")
            assert (memory.summary, inputs(memory)) == ("more", [])

    @pytest.mark.parametrize("change", ["clear", "edit", "summary", "remove"])
    def test_a_summary_of_what_is_gone_is_not_installed(self, change: str) -> None:
        with Gate() as gate:
            memory = ConversationSummaryMemory(StallingModel(gate, "old news"), 3)
            thread = threading.Thread(target=say, args=(memory, "a b c"))
            thread.start()
            gate.arrival_in_thread()
            if change == "clear":
                memory.clear()
            elif change == "edit":
                memory.chat_memory[0]["input"] = "changed"
            elif change == "summary":
                memory.summary = "newer"
            else:
                memory.chat_memory.pop()
            before = memory.load_memory_variables({})
            gate.open()
            thread.join()
            assert memory.load_memory_variables({}) == before

    def test_an_async_model_works_in_blocking_calls_and_always_in_one_loop(self) -> None:
        model = AsyncModel("so far")
        memory = ConversationSummaryMemory(model, 0)
        say(memory, "a", "b")
        memory.force_summarize()
        assert (memory.summary, inputs(memory)) == ("so far", [])
        assert len(model.threads) == 1
        assert threading.get_ident() not in model.threads

    def test_an_async_model_that_fails_loses_nothing(self) -> None:
        memory = ConversationSummaryMemory(AsyncModel(RuntimeError("x")), 0)
        say(memory, "a")
        assert inputs(memory) == ["a"]

    @pytest.mark.anyio
    async def test_an_async_model_runs_in_the_callers_own_loop(self) -> None:
        model = AsyncModel("so far")
        memory = ConversationSummaryMemory(model, 0)
        await memory.asave_context({"input": "a"}, {"output": "b"})
        assert model.threads == {threading.get_ident()}
        assert await memory.aload_memory_variables({}) == {"history": "so far"}
        async with open_runtime("memory:") as runtime:
            bound = ConversationSummaryMemory(model, 0, runtime=runtime)
            await bound.asave_context({"input": "a"}, {"output": "b"})
            assert await bound.aload_memory_variables({}) == {"history": "so far"}

    @pytest.mark.anyio
    async def test_a_blocking_call_on_a_loops_thread_may_have_an_async_model(self) -> None:
        memory = ConversationSummaryMemory(AsyncModel("so far"), 0)
        say(memory, "a")
        assert memory.summary == "so far"

    @pytest.mark.anyio
    async def test_any_number_of_stalling_models_leave_threads_for_other_calls(self) -> None:
        model = AsyncModel("so far")
        release = anyio.Event()
        waiting = 0

        class Stalling(AsyncModel):
            async def generate(self, prompt: str, max_tokens: int) -> Any:
                nonlocal waiting
                waiting += 1
                if waiting == 60:
                    all_there.set()
                await release.wait()
                return "late"

        all_there = anyio.Event()
        stalled = [ConversationSummaryMemory(Stalling("x"), 0) for _ in range(60)]
        async with anyio.create_task_group() as group:
            for memory in stalled:
                group.start_soon(memory.asave_context, {"input": "a"}, {"output": "b"})
            await all_there.wait()
            other = ConversationSummaryMemory(model, 0)
            await other.asave_context({"input": "a"}, {"output": "b"})
            assert await other.aload_memory_variables({}) == {"history": "so far"}
            assert await stalled[0].aload_memory_variables({}) == {"history": "user: a\nassistant: b"}
            release.set()
        assert {memory.summary for memory in stalled} == {"late"}

    @pytest.mark.anyio
    async def test_cancelled_while_the_model_is_asked_it_has_saved_the_exchange(self) -> None:
        class Stalling(AsyncModel):
            async def generate(self, prompt: str, max_tokens: int) -> Any:
                scope.cancel()
                await anyio.sleep_forever()

        memory = ConversationSummaryMemory(Stalling("x"), 0)
        with anyio.CancelScope() as scope:
            await memory.asave_context({"input": "a"}, {"output": "b"})
        assert scope.cancelled_caught
        assert inputs(memory) == ["a"]
        memory.llm = Model("so far")
        say(memory, "b")
        assert memory.summary == "so far"

    def test_16_threads_lose_nothing_to_summaries(self) -> None:
        """Every word that was said is in exactly one prompt or still there."""
        lock = threading.Lock()
        seen: list[str] = []

        class Remembering(Model):
            def generate(self, prompt: str, max_tokens: int) -> Any:
                with lock:
                    seen.append(prompt)
                return "so far"

        memory = ConversationSummaryMemory(Remembering("x"), 40, summary_prompt_template="{new_conversation}")

        def work(number: int) -> None:
            say(memory, *[f"<{number}.{turn}>" for turn in range(20)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = "".join(seen) + memory.load_memory_variables({})["history"]
        for number in range(16):
            for turn in range(20):
                assert text.count(f"<{number}.{turn}>") == 1

    def test_its_loop_ends_quietly_with_the_interpreter_also_in_the_middle_of_an_answer(
        self, run_script: RunScript
    ) -> None:
        printed = run_script("""
            import asyncio

            class Model:
                stall = False
                async def generate(self, prompt, max_tokens):
                    if self.stall:
                        asked.set()
                        await asyncio.sleep(3600)
                    return "so far"

            asked = threading.Event()
            model = Model()
            memory = ConversationSummaryMemory(model, 0)
            memory.save_context({"input": "a"}, {"output": "b"})

            def work():
                memory.save_context({"input": "child"}, {"output": "b"})
                print(memory.summary)

            print(memory.summary, child(work))
            model.stall = True
            threading.Thread(target=memory.save_context, args=({}, {}), daemon=True).start()
            asked.wait()
        """)
        assert printed == "so far so far"

"""Runs a vector through LangChain4j's names: `turnkeeper.compat.langchain4j`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import pytest

from conformance.classes import VERDICTS, is_named
from conformance.outcomes import INVERTED, Run, Shown
from conformance.translating import Costs, all_ours, assert_valid, labels
from conformance.vectors import VECTORS, Step, Vector
from turnkeeper import InvalidArgumentError, Message
from turnkeeper.compat.langchain4j import (
    AsyncNotSupportedError,
    ChatMemory,
    ChatMemoryService,
    ChatMemoryStore,
    InMemoryChatMemoryStore,
    MessageList,
    MessageWindowChatMemory,
    SingleSlotChatMemoryStore,
    TokenWindowChatMemory,
)
from turnkeeper.messages import MessageLike

MakeStore: TypeAlias = Callable[[], ChatMemoryStore | None]

WINDOWS: Final = ("message_window", "token_window")
ERRORS: Final[dict[str, type[Exception]]] = {
    "invalid_argument": InvalidArgumentError,
    "async_not_supported": AsyncNotSupportedError,
    "unsupported_feature": AsyncNotSupportedError,
}


def named() -> list[Vector]:
    """Return the vectors that run through these names: as they are, but for those that `DIFFERS` has."""
    return [vector for vector in VECTORS.values() if is_named(vector) or _is_window_that_holds(vector)]


def _is_window_that_holds(vector: Vector) -> bool:
    return vector.system == "langchain4j" and vector.kind in WINDOWS and VERDICTS[vector.id].name == "holds"


def evicting() -> list[tuple[Vector, Run]]:
    """Return the inverted vectors whose outcome on a window that evicts is known: these names have such windows."""
    return [
        (vector, run)
        for vector in VECTORS.values()
        if vector.id in INVERTED and vector.system == "langchain4j"
        for run in INVERTED[vector.id].runs
        if run.profile == "evict" and run.steps is None
    ]


class CountingStore(InMemoryChatMemoryStore):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def get_messages(self, memory_id: Hashable, /) -> list[Message]:
        self.calls["store_reads"] += 1
        return super().get_messages(memory_id)

    def update_messages(self, memory_id: Hashable, messages: Iterable[MessageLike], /) -> None:
        self.calls["store_writes"] += 1
        assert messages, "an empty list was written"
        super().update_messages(memory_id, messages)

    def delete_messages(self, memory_id: Hashable, /) -> None:
        self.calls["store_deletes"] += 1
        super().delete_messages(memory_id)


class BlockingStore(ChatMemoryStore):
    """Has no async twins."""

    def __init__(self) -> None:
        self._lists: dict[Hashable, list[Message]] = {}

    def get_messages(self, memory_id: Hashable, /) -> list[Message]:
        return self._lists.get(memory_id, [])

    def update_messages(self, memory_id: Hashable, messages: list[Message], /) -> None:
        self._lists[memory_id] = messages

    def delete_messages(self, memory_id: Hashable, /) -> None:
        self._lists.pop(memory_id, None)


class PlainMemory(ChatMemory):
    """An unbounded list that defines what it has to, and nothing else."""

    def __init__(self) -> None:
        self.cleared = 0
        self._held: list[MessageLike] = []

    def id(self) -> Hashable:
        return "plain"

    def add(self, message: MessageLike) -> None:
        assert isinstance(message, (Message, dict)), "more than one message"
        self._held.append(message)

    def messages(self) -> Sequence[MessageLike]:
        return list(self._held)

    def clear(self) -> None:
        self.cleared += 1
        self._held.clear()


class NamedReplay:
    """One run of a vector.

    Args:
        make_store: makes the store under each memory; None: it has none.
        expected: what is shown after each step, instead of what the vector says.
        offload: see `MessageWindowChatMemory`.
    """

    def __init__(
        self,
        vector: Vector,
        make_store: MakeStore,
        *,
        expected: Sequence[Any] | None = None,
        offload: bool = False,
    ) -> None:
        self._vector = vector
        self._expected = expected
        self._offload = offload
        self._limit = vector.limit
        self._costs = Costs(vector) if vector.kind == "token_window" else None
        self._store: ChatMemoryStore | None = self._make_store(make_store)
        self._memories: dict[Hashable, ChatMemory] = {}
        self._input: list[dict[str, Any]] = []
        self._names: dict[str, ChatMemory] = {}
        self._provided = 0
        self._provider_waits: threading.Event | None = None
        self._service = self._make_service()
        self._returned: Any = None
        self._promised = False  # what is awaited was made without an error

    def _make_store(self, make_store: MakeStore) -> ChatMemoryStore | None:
        match self._vector.kind, self._vector.window.get("store"):
            case _, "blocking_only":
                return BlockingStore()
            case "store_in_memory", _:
                return InMemoryChatMemoryStore()
            case "store_single_slot", _:
                return SingleSlotChatMemoryStore(self._vector.config["id"])
            case "registry" | "ai_service", name:
                return None if name is None else InMemoryChatMemoryStore()
        return make_store()

    async def __call__(self) -> None:
        """Take all steps; fails at the first that shows something else than expected."""
        for number, step in enumerate(self._vector.steps):
            expect = step.get("expect", {})
            if "error" in expect:
                await self._fail(step, expect)
                continue
            before = Counter(self._store.calls) if isinstance(self._store, CountingStore) else None
            await self._act(step)
            if before is not None:
                self._check_calls(before, expect)
            self._check(step, expect)
            if self._expected is not None:
                self._check_label(step, self._expected[number])

    async def _fail(self, step: Step, expect: dict[str, Any]) -> None:
        seen = None if self._vector.kind not in WINDOWS or step["op"] == "messages" else self._shown(step)
        action: Awaitable[None] = self._act(step)
        with pytest.raises(ERRORS[expect["error"]]) as refusal:
            await action
        if "error_delivery" in expect:
            assert expect["error_delivery"] == "future"
            assert self._promised, "it failed before it was awaited"
        assert expect.get("error_names", "") in str(refusal.value)
        if seen is not None:
            assert self._shown(step) == seen

    # What is to be seen

    def _check_calls(self, before: Counter[str], expect: dict[str, Any]) -> None:
        assert isinstance(self._store, CountingStore)
        made = Counter(self._store.calls)
        made.subtract(before)
        for name in ("store_reads", "store_writes", "store_deletes"):
            if name in expect:
                assert made[name] <= expect[name], f"{name}: {made[name]}"

    def _check(self, step: Step, expect: dict[str, Any]) -> None:
        if "messages" in expect and self._expected is None:
            shown = self._returned if step["op"] in ("store_get", "messages_async") else self._shown(step)
            assert shown == all_ours(expect["messages"])
        if "total_tokens" in expect and self._expected is None:
            assert self._costs is not None
            view = self._view(step)
            assert self._costs.list_overhead + sum(map(self._costs.count, view)) == expect["total_tokens"]
        if "instance" in expect:
            self._check_instance(expect["instance"], self._returned)
        if "clear_called" in expect:
            memory = self._memory(step)
            assert isinstance(memory, PlainMemory)
            assert bool(memory.cleared) == expect["clear_called"]
        found: dict[str, Callable[[], Any]] = {
            "value": lambda: self._memory(step).id(),
            "input_unchanged": lambda: self._input == all_ours(step["messages"]),
            "provider_calls": lambda: self._provided,
            "evicted": lambda: self._returned is not None,
            "ids": lambda: sorted(self._service.get_chat_memory_ids(), key=str),
            "results": lambda: len(self._returned),
            "distinct_instances": lambda: len(set(map(id, self._returned))),
            "requests": lambda: self._returned,
        }
        for name, value in found.items():
            if name in expect:
                wanted = [all_ours(each) for each in expect[name]] if name == "requests" else expect[name]
                assert value() == wanted, name

    def _check_label(self, step: Step, expected: Any) -> None:
        if isinstance(expected, Shown):
            view = self._view(step)
            assert_valid(view)
            assert labels(view) == expected.view

    def _check_instance(self, name: str | None, found: ChatMemory | None) -> None:
        if name is None:
            assert found is None
            return
        assert found is not None
        others = [memory for other, memory in self._names.items() if other != name]
        assert self._names.setdefault(name, found) is found
        assert not any(memory is found for memory in others)

    def _view(self, step: Step) -> MessageList:
        memory = self._memory(step)
        assert isinstance(memory, (MessageWindowChatMemory, TokenWindowChatMemory))
        return memory.messages()

    def _shown(self, step: Step) -> list[dict[str, Any]]:
        return _dicts(self._memory(step).messages())

    # What is done

    async def _act(self, step: Step) -> None:
        self._promised = False
        await getattr(self, f"_{step['op']}")(step)

    async def _add(self, step: Step) -> None:
        self._memory(step).add(*all_ours([step["message"]]))

    _memory_add = _add

    async def _add_many(self, step: Step) -> None:
        given, memory = step["messages"], self._memory(step)
        if given is None:
            memory.add(None)
        elif step.get("form") == "varargs":
            memory.add(*all_ours(given))
        else:
            memory.add(iter(all_ours(given)))

    async def _add_async(self, step: Step) -> None:
        adding = self._memory(step).add_async(all_ours(step["messages"]))
        self._promised = True
        await adding

    async def _messages(self, step: Step) -> None:
        self._memory(step).messages()

    async def _messages_async(self, step: Step) -> None:
        self._returned = _dicts(await self._memory(step).messages_async())

    async def _set(self, step: Step) -> None:
        given, memory = step["messages"], self._memory(step)
        if given is None:
            memory.set(None)
        elif step.get("form") == "varargs":
            memory.set(*all_ours(given))
        elif step.get("form") == "iterable":
            memory.set(iter(all_ours(given)))
        else:
            self._input = all_ours(given)
            memory.set(self._input)

    async def _mutate_input(self, step: Step) -> None:
        self._input += all_ours(step["append_to_last_input"])

    async def _clear(self, step: Step) -> None:
        self._memory(step).clear()

    async def _set_limit(self, step: Step) -> None:
        self._limit = step["limit"]

    async def _id(self, step: Step) -> None:
        """The id is compared afterwards."""

    async def _store_get(self, step: Step) -> None:
        assert self._store is not None
        self._returned = _dicts(self._store.get_messages(step["id"]) or ())

    async def _store_update(self, step: Step) -> None:
        assert self._store is not None
        given = step["messages"]
        messages: Any = None if given is None else all_ours(given)
        self._store.update_messages(step["id"], messages)
        if given:
            messages.clear()  # what was given is the caller's

    async def _store_delete(self, step: Step) -> None:
        assert self._store is not None
        self._store.delete_messages(step["id"])

    async def _get_or_create(self, step: Step) -> None:
        self._returned = self._service.get_or_create_chat_memory(step["id"])

    async def _get(self, step: Step) -> None:
        self._returned = self._service.get_chat_memory(step["id"])

    async def _evict(self, step: Step) -> None:
        self._returned = self._service.evict_chat_memory(step.get("id", step.get("memory_id")))

    async def _ids(self, step: Step) -> None:
        """The ids are compared afterwards."""

    async def _concurrent_get_or_create(self, step: Step) -> None:
        """Let all callers be on their way before the provider returns."""
        found: list[ChatMemory] = []
        self._provider_waits = threading.Event()
        callers = [
            threading.Thread(target=lambda: found.append(self._service.get_or_create_chat_memory(step["id"])))
            for _ in range(step["callers"])
        ]
        for caller in callers:
            caller.start()
        self._provider_waits.set()
        for caller in callers:
            caller.join()
        self._provider_waits = None
        self._returned = found

    async def _chat(self, step: Step) -> None:
        """Do what a service does: call the model, and keep all of it."""
        memory = self._service.get_or_create_chat_memory(step.get("memory_id", "default"))
        given = all_ours([{"role": role, "text": step[role]} for role in ("system", "user") if role in step])
        if self._vector.config.get("async"):
            chatting = memory.add_async(given)
            self._promised = True
            await chatting
        memory.add(given)
        self._returned = []
        for reply in step["replies"]:
            self._returned.append(_dicts(memory.messages()))
            memory.add(all_ours([reply]))

    async def _new_service(self, step: Step) -> None:
        self._service = self._make_service()

    # Helpers

    def _make_service(self) -> ChatMemoryService:
        if self._vector.config.get("mode") == "direct":
            return ChatMemoryService(self._new_memory("default"))
        return ChatMemoryService(self._provide)

    def _provide(self, memory_id: Hashable) -> ChatMemory:
        self._provided += 1
        if self._provider_waits is not None:
            self._provider_waits.wait()
        return self._new_memory(memory_id)

    def _memory(self, step: Step) -> ChatMemory:
        if self._vector.kind == "registry":
            return self._service.get_or_create_chat_memory(step["id"])
        memory_id = step.get("id", self._vector.config.get("id"))
        if memory_id not in self._memories:
            self._memories[memory_id] = self._new_memory(memory_id)
        return self._memories[memory_id]

    def _new_memory(self, memory_id: Hashable) -> ChatMemory:
        if self._vector.kind == "default_methods":
            return PlainMemory()
        limit: Any = self._limit
        if any(step["op"] == "set_limit" for step in self._vector.steps):
            limit = lambda _: self._limit  # noqa: E731
        elif isinstance(limit, dict):
            limit = lambda asked: self._limit["by_id"].get(asked, self._limit["otherwise"])  # noqa: E731
        if memory_id is None and self._store is not None:
            memory_id = "m"
        options: dict[str, Any] = {
            "id": memory_id,
            "always_keep_system_message_first": bool(self._vector.window.get("system_first")),
            "chat_memory_store": self._store,
            "offload_blocking_store": self._offload,
        }
        if self._costs is not None:
            return TokenWindowChatMemory(limit, self._costs, **options)
        return MessageWindowChatMemory(limit, **options)


def _dicts(messages: Iterable[Any]) -> list[dict[str, Any]]:
    return [message if isinstance(message, dict) else message.to_dict() for message in messages]

"""Runs a vector through the real thing: handle, actor and store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import pytest

from conformance.classes import WINDOWS, is_named, is_of_the_log, of_class
from conformance.outcomes import ABOVE, DIFFERS, INVERTED, Exactly, Expected, From, Refused, Run, Shown
from conformance.rows import ROWS
from conformance.serving import Service, ServiceError, take_back
from conformance.translating import Costs, all_ours, assert_valid, labels
from conformance.vectors import Step, Vector
from turnkeeper import (
    ChatMemory,
    ConflictError,
    InvalidArgumentError,
    Messages,
    MessageWindow,
    Runtime,
    TokenWindow,
    TurnWindow,
    Unbounded,
    Window,
    WindowOverflowError,
)
from turnkeeper.testing import FaultStore, unload
from turnkeeper.windows import OnOverflow

Limit: TypeAlias = int | Callable[[str], int]


def runs_of(vector: Vector) -> tuple[Run, ...]:
    """Return what is to be run: the vector as it is, or what the tables of `outcomes` have for it."""
    for table in (INVERTED, DIFFERS, ABOVE):
        if vector.id in table:
            return table[vector.id].runs
    return (Run(WINDOWS[vector.kind], *map(_as_given, vector.steps)),)


def replayed() -> list[tuple[Vector, tuple[Run, ...]]]:
    """Return the vectors, and the cases of `rows`, that have a memory, each with its runs; others are in `naming`."""
    vectors = of_class("holds", "inverted", "differs")
    return [
        *((vector, runs_of(vector)) for vector in vectors if _is_replayed(vector)),
        *((vector, ours.runs) for vector, ours in ROWS),
    ]


def _is_replayed(vector: Vector) -> bool:
    return vector.kind != "token_estimator" and not is_named(vector) and not is_of_the_log(vector)


def _as_given(step: Step) -> Expected:
    expect = step.get("expect", {})
    if "error" in expect:
        assert expect["error"] == "invalid_argument"
        return Refused(InvalidArgumentError)
    if "index" in expect:
        return From(max(expect["index"], 0))  # -1 says that nothing leaves
    return Exactly(tuple(all_ours(expect["messages"]))) if "messages" in expect else None


ACTIONS: Final = {
    "append": "_add_many",
    "find": "_messages",
    "id": "_nothing",
    "last_requests": "_nothing",
    "locate": "_preprocess",
    "memory": "_messages",
    "save_all": "_set",
    "snap": "_preprocess",
    "store_dump": "_nothing",
}
"""Operation -> the method that does it, where that has another name."""

OF_A_SERVICE: Final = frozenset({"aggregate", "chat", "last_requests"})
"""Operations of what is above a memory, or about its latest one."""


class Replay:
    """One run of a vector.

    Args:
        unloading: drop the memory from RAM before each read.
    """

    def __init__(self, vector: Vector, run: Run, runtime: Runtime, store: FaultStore, *, unloading: bool) -> None:
        self._vector = vector
        self._run = run
        self._runtime = runtime
        self._store = store
        self._unloading = unloading
        self._costs = Costs(vector) if vector.kind == "token_window" else None
        self._limit = vector.limit
        self._memories: dict[Any, ChatMemory] = {}
        self._seen: Messages | None = None
        self._input: list[dict[str, Any]] = []
        self._service: Service | None = None

    async def __call__(self) -> None:
        """Take all steps; fails at the first that shows something else than expected."""
        if preload := self._vector.config.get("preload"):
            await self._runtime.memory(self._id_of({})).add(all_ours(preload))
        steps = self._vector.steps if self._run.steps is None else self._run.steps
        for step, expected in zip(steps, self._run.expected, strict=True):
            await self._take(step, expected)

    async def _take(self, step: Step, expected: Expected) -> None:
        if isinstance(expected, Refused):
            with pytest.raises(expected.error) as refusal:
                await self._act(step)
            assert isinstance(refusal.value, WindowOverflowError) == (expected.error is WindowOverflowError)
            if self._seen is not None:
                view = await self._read(self._memory(step))
                assert (view, view.version) == (self._seen, self._seen.version), "what was refused left a trace"
            return
        before = self._store.calls
        read = await self._act(step)
        self._check_calls(step, before)
        view = await self._read(self._memory(step)) if read is None else read
        self._seen = view
        if self._run.profile != "keep":
            assert_valid(view)
        self._check(view, step, expected)
        await self._check_more(view, step)

    # What is to be seen

    def _check(self, view: Messages, step: Step, expected: Expected) -> None:
        assert bool(view.overflow) == self._exceeds(view, step), labels(view)
        if isinstance(expected, Shown):
            assert (labels(view), bool(view.overflow)) == (expected.view, expected.over)
        elif isinstance(expected, Exactly):
            assert view.to_dicts() == list(expected.messages)
        elif isinstance(expected, From):
            given = all_ours(step["events"] if "events" in step else step["messages"])
            assert view.to_dicts() == given[expected.index :]
            assert bool(view.overflow) == expected.over

    def _exceeds(self, view: Messages, step: Step) -> bool:
        if self._run.profile == "unbounded":
            return False
        limit = _limit_of_step(step, self._vector) or self._limit
        if isinstance(limit, dict):
            limit = _by_id(limit)(self._memory(step).id)
        return bool((len(view) if self._costs is None else self._tokens(view)) > limit)

    def _tokens(self, view: Messages) -> int:
        assert self._costs is not None
        return self._costs.list_overhead + sum(map(self._costs.count, view)) if view else 0

    def _check_calls(self, step: Step, before: dict[str, int]) -> None:
        expect = step.get("expect", {})
        after = self._store.calls
        loads, commits = after["load"] - before["load"], after["commit"] - before["commit"]
        if "store_reads" in expect:
            # A log has one writing call: what others delete is an entry here.
            assert loads <= expect["store_reads"]
            assert commits <= expect["store_writes"] + expect["store_deletes"]
        if "min_store_writes" in expect:
            assert commits >= expect["min_store_writes"]
        if "total_writes" in expect:
            assert after["commit"] == expect["total_writes"]
        if step["op"] == "messages" and self._seen is not None and not self._unloading:
            assert not loads, "a read of a memory at rest asked the store"

    async def _check_more(self, view: Messages, step: Step) -> None:
        expect = step.get("expect", {})
        if "total_tokens" in expect:
            assert self._tokens(view) == expect["total_tokens"]
        if "value" in expect:
            assert self._memory(step).id == expect["value"]
        if "provider_ids" in expect:
            assert [self._memory(step).id] == expect["provider_ids"]
        if step["op"] in OF_A_SERVICE:
            self._check_service(step)
        if "store" in expect:
            for memory_id, given in expect["store"].items():
                shown = await self._read(self._memory({"memory_id": memory_id}))
                assert shown.to_dicts() == all_ours(given)
        if "stored" in expect:
            assert view.to_dicts() == all_ours(expect["stored"])
        if "last_stored" in expect:
            assert view.to_dicts()[-1:] == all_ours([expect["last_stored"]])
        if "stored_not_empty" in expect:
            assert view
        if "logged" in step:
            assert (await self._memory(step).stats()).message_count == step["logged"]

    def _check_service(self, step: Step) -> None:
        assert self._service is not None
        expect, service = step.get("expect", {}), self._service
        failure = service.failure
        if "requests" in expect:
            assert service.requests == [all_ours(request) for request in expect["requests"]]
        if "answer" in expect:
            assert service.answer == expect["answer"]
        if "aggregated" in expect:
            assert (service.answer is not None) == expect["aggregated"]
            assert (failure is None) == expect["aggregated"]
        else:
            assert (failure and failure.name) == expect.get("error")
        if "removal_requested" in expect:
            assert failure is not None
            assert failure.removal_requested == expect["removal_requested"]

    # What is done

    async def _act(self, step: Step) -> Messages | None:
        """Take a step; returns the view when the step is a read."""
        action: Callable[[Step], Awaitable[Messages | None]] = getattr(self, ACTIONS.get(step["op"], f"_{step['op']}"))
        return await action(step)

    async def _add(self, step: Step) -> None:
        given = step["message"]
        key = step.get("idempotency_key")
        if given is None:
            await self._memory(step).add(None)  # type: ignore[arg-type]
        for message in () if given is None else all_ours([given]):
            await self._memory(step).add(message, idempotency_key=key)

    async def _add_many(self, step: Step) -> None:
        given = step["messages"]
        memory = self._memory(step)
        if given is None:
            await memory.add(None)  # type: ignore[arg-type]
        elif step.get("input_contains_null"):
            await memory.add([*all_ours(given), None])  # type: ignore[list-item]
        elif step.get("form") == "varargs":
            await memory.add(*all_ours(given))
        else:
            await memory.add(iter(all_ours(given)))

    async def _messages(self, step: Step) -> Messages:
        return await self._read(self._memory(step))

    async def _get_limited(self, step: Step) -> Messages:
        return await self._read(self._memory(step), MessageWindow(step["limit"]))

    async def _set(self, step: Step) -> None:
        given = step["messages"]
        memory = self._memory(step)
        if given is None:
            await memory.set(None)  # type: ignore[arg-type]
        elif step.get("form") == "varargs":
            await memory.set(*all_ours(given))
        else:
            self._input = all_ours(given)
            await memory.set(self._input)
            assert self._input == all_ours(given), "the caller's list was changed"

    async def _mutate_input(self, step: Step) -> None:
        self._input += all_ours(step["append_to_last_input"])

    async def _clear(self, step: Step) -> None:
        await self._memory(step).clear()

    async def _set_limit(self, step: Step) -> None:
        self._limit = step["limit"]

    async def _nothing(self, step: Step) -> None:
        """What the step asks for is seen afterwards."""

    async def _interleave(self, step: Step) -> None:
        """Take the script's lines in their order, each actor with a handle of its own."""
        actors: dict[str, _Actor] = {}
        for line in step["script"]:
            if line["actor"] not in actors:
                actors[line["actor"]] = _Actor(self._new_memory(step), self._read)
            await actors[line["actor"]].do(line)

    async def _chat(self, step: Step) -> None:
        self._service = Service(self._memory(step), self._read, self._run.turn)
        await self._service.chat(step, self._vector.config.get("tools", {}))

    async def _aggregate(self, step: Step) -> None:
        self._service = Service(self._memory(step), self._read, self._run.turn)
        await self._service.stream({"role": "user", "text": "u1"}, step["chunks"])

    async def _take_back(self, step: Step) -> None:
        await take_back(self._memory(step), self._read)

    async def _turn(self, step: Step) -> None:
        """Open a turn that commits when it is left, or with each message; the answer that was refused is not added."""
        given = step["messages"]
        if "replace_last_assistant" in step:
            given = [*given[:-1], step["replace_last_assistant"]]
        deferred = self._vector.config["flush"] == "deferred"
        with suppress(ServiceError):
            async with self._memory(step).turn(commit="turn" if deferred else "each") as turn:
                for message in all_ours(given):
                    await turn.add(message)
                if step["outcome"] == "failure":
                    raise ServiceError("model")

    async def _preprocess(self, step: Step) -> Messages:
        """Show a list through a window: of a memory that holds nothing else."""
        memory = self._runtime.memory(f"{self._vector.id} {len(self._memories)}", window=Unbounded())
        self._memories[len(self._memories)] = memory
        await memory.add(all_ours(step["events"] if "events" in step else step["messages"]))
        return await self._read(memory, self._window(_limit_of_step(step, self._vector)))

    # Helpers

    async def _read(self, memory: ChatMemory, window: Window | None = None) -> Messages:
        if self._unloading:
            unload(self._runtime, memory.id)
        return await memory.messages() if window is None else await memory.messages(window=window)

    def _memory(self, step: Step) -> ChatMemory:
        memory_id = self._id_of(step)
        if memory_id not in self._memories:
            self._memories[memory_id] = self._new_memory(step)
        return self._memories[memory_id]

    def _new_memory(self, step: Step) -> ChatMemory:
        return self._runtime.memory(self._id_of(step), window=self._window(self._own_limit()))

    def _id_of(self, step: Step) -> Any:
        named = [step[name] for name in ("memory_id", "conversation_id", "id") if name in step]
        memory_id = [*named, self._vector.config.get("id", "m")][0]
        return str(memory_id) if isinstance(memory_id, int) else memory_id

    def _own_limit(self) -> Any:
        if any(step["op"] == "set_limit" for step in self._vector.steps):
            return lambda _: self._limit
        return _by_id(self._limit) if isinstance(self._limit, dict) else self._limit

    def _window(self, limit: Any) -> Window:
        profile, counter = self._run.profile, self._costs
        first = bool(self._vector.window.get("system_first"))
        match profile:
            case "unbounded":
                return Unbounded()
            case "turns" | "turns or error":
                on_overflow: OnOverflow = "keep" if profile == "turns" else "error"
                if counter is not None:
                    return TurnWindow(max_tokens=limit, counter=counter, on_overflow=on_overflow)
                return TurnWindow(max_messages=limit, on_overflow=on_overflow)
            case "evict" | "error":
                if counter is not None:
                    return TokenWindow(limit, counter, system_first=first, on_overflow=profile)
                return MessageWindow(limit, system_first=first, on_overflow=profile)
            case "system first":
                return MessageWindow(limit, system_first=True, on_overflow="evict")
            case "drop" | "keep":
                return MessageWindow(limit, on_unanswered=profile)


class _Actor:
    """One of several who use a memory at once."""

    def __init__(self, memory: ChatMemory, read: Callable[[ChatMemory], Awaitable[Messages]]) -> None:
        self._memory = memory
        self._read_view = read
        self._prompt: Messages | None = None

    async def do(self, line: Step) -> None:
        """Do a line of the script. A rewrite of what has changed since is refused, and computed again."""
        if line["do"] == "read":
            self._prompt = await self._read_view(self._memory)
        elif line["do"] == "append_and_write":
            await self._memory.add(all_ours([line["message"]]))
        else:
            assert line["do"] == "set"
            assert self._prompt is not None
            rewritten = all_ours(line["messages"])
            with pytest.raises(ConflictError):
                await self._memory.set(rewritten, if_version=self._prompt.version)
            now = await self._read_view(self._memory)
            await self._memory.set(*rewritten, *now[len(self._prompt) :], if_version=now.version)


def _by_id(limit: dict[str, Any]) -> Callable[[str], int]:
    def limit_of(memory_id: str) -> int:
        found: int = limit["by_id"].get(memory_id, limit["otherwise"])
        return found

    return limit_of


def _limit_of_step(step: Step, vector: Vector) -> Any:
    """Return the limit of a step that is a list and a cut; None for others."""
    if step["op"] == "snap":
        return max(len(step["events"]) - step["cut"], 1)  # the window that cuts there; none is empty
    if step["op"] == "locate":
        # What may be shown at most: below target plus threshold nothing is reduced.
        return vector.config["target"] + (vector.config["threshold"] or 0)
    if step["op"] == "preprocess":
        return step.get("window_size") or vector.limit
    return None

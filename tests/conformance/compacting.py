"""Runs the vectors about a log and its compaction: `memory.compact` with the window that their strategy stands for.

Theirs archives; ours puts a summary in the place of what it takes away. It is left out where views are compared; where
a vector starts with a summary, that one is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from conformance.vectors import Step, Vector
from turnkeeper import (
    ChatMemory,
    CompactionError,
    ConflictError,
    InvalidArgumentError,
    Message,
    MessageWindow,
    Runtime,
    TurnWindow,
    Version,
)
from turnkeeper.testing import unload

SUMMARY: Final = "(a summary)"

INSTEAD: Final[dict[str, dict[str, Any]]] = {
    "session.turn.preamble": {"kept": ["q2", "a2"], "archived": ["boot", "q1", "a1"]},
    "session.tok.no_partial_turn": {"kept": ["u2", "a2"], "archived": ["u1", "a1"]},
    "session.tok.starts_at_user": {"kept": ["u3", "a3"], "archived": ["u1", "a1", "u2", "a2"]},
    "session.tok.synthetic": {"kept": ["q?", "sum", "u1", "a1"], "archived": []},
    "session.log.cas_ok": {"texts": ["m1", "m2", "sum"], "archived": ["m1"]},
}
"""Vector -> what is seen at its last step instead, where it differs."""


def as_ours(vector: Vector) -> Vector:
    """Return a vector that expects what we show."""
    if vector.id not in INSTEAD:
        return vector
    *steps, last = vector.steps
    return replace(vector, steps=(*steps, {**last, "expect": {**last["expect"], **INSTEAD[vector.id]}}))


class Compacting:
    """One run of a vector.

    Args:
        vector: from `as_ours`.
        unloading: drop the memory from RAM before each read and each compaction.
    """

    def __init__(self, vector: Vector, runtime: Runtime, *, unloading: bool) -> None:
        self._vector = vector
        self._runtime = runtime
        self._unloading = unloading
        self._memory = runtime.memory(vector.id)
        self._remembered: Version | None = None

    async def __call__(self) -> None:
        """Take all steps; fails at the first that shows something else than expected."""
        for step in self._vector.steps:
            await getattr(self, f"_{step['op']}")(step, step.get("expect", {}))

    # A strategy on a list of events

    async def _compact(self, step: Step, expect: dict[str, Any]) -> None:
        if expect.get("error") == "invalid_argument":
            with pytest.raises(InvalidArgumentError):
                # Either the limit is refused, or a request that is none.
                await self._memory.compact(None, keep=self._keep())  # type: ignore[arg-type]
            return
        events = step["events"]
        summaries = [event for event in events if event.get("synthetic")]
        if summaries:
            await self._begin_with(_messages(summaries))
        for message in _messages(events[len(summaries) :]):
            await self._memory.add(message)
        archived = await self._compacted(self._keep())
        assert archived == expect["archived"]
        assert await self._active() == expect["kept"]
        if "tokens_saved" in expect:
            assert sum(event["tokens"] for event in events if event["text"] in archived) == expect["tokens_saved"]

    async def _begin_with(self, summary: list[dict[str, Any]]) -> None:
        for text in ("before", "now"):
            await self._memory.add({"role": "user", "content": text})
        await self._memory.compact(lambda messages, before: summary, keep=1)

    def _keep(self) -> TurnWindow | int:
        match self._vector.config:
            case {"strategy": "sliding_window", "max_events": limit}:
                return TurnWindow(max_messages=limit)
            case {"strategy": "turn_window", "max_turns": limit}:
                return TurnWindow(max_turns=limit)
            case {"strategy": "turn_window"}:
                return 20  # what is kept by default
            case {"strategy": "token_count", "max_tokens": limit}:
                return TurnWindow(max_tokens=limit, counter=_Costs(self._vector))
        raise AssertionError("an unknown strategy")

    # A log

    async def _append(self, step: Step, expect: dict[str, Any]) -> None:
        for _ in range(2):  # to be repeated safely
            message = {"role": step["role"], "content": step["text"]}
            await self._memory.add(message, idempotency_key=step["event_id"])

    async def _compact_sliding(self, step: Step, expect: dict[str, Any]) -> None:
        if step.get("preloaded"):
            await self._memory.messages()
        assert len(await self._compacted(TurnWindow(max_messages=step["max_events"]))) == expect["removed"]

    async def _concurrent_compact_sliding(self, step: Step, expect: dict[str, Any]) -> None:
        removed: list[int] = []

        async def compact() -> None:
            try:
                removed.append(len(await self._compacted(TurnWindow(max_messages=step["max_events"]))))
            except CompactionError:
                removed.append(0)

        async with anyio.create_task_group() as tasks:
            for _ in range(step["callers"]):
                tasks.start_soon(compact)
        assert sorted(removed) == [0, expect["total_removed"]]

    async def _remember_version(self, step: Step, expect: dict[str, Any]) -> None:
        self._remembered = (await self._memory.messages()).version

    async def _cas_compact(self, step: Step, expect: dict[str, Any]) -> None:
        now = (await self._memory.messages()).version
        if expect["applied"]:
            receipt = await self._memory.compact(lambda messages, before: step["retain"][0], keep=1)
            assert receipt is not None
            assert receipt.version.n - now.n == expect["version_delta"]
            return
        stale = self._remembered or Version(now.mid, now.n - 1)
        with pytest.raises(ConflictError):
            await self._memory.set([{"role": "user", "content": text} for text in step["retain"]], if_version=stale)

    async def _active(self, step: Step | None = None, expect: dict[str, Any] | None = None) -> list[str]:
        self._drop()
        texts = [message.text for message in await self._memory.messages() if message.text not in (SUMMARY, "now")]
        assert expect is None or texts == expect["texts"]
        return texts

    async def _all(self, step: Step, expect: dict[str, Any]) -> None:
        store, mid = self._runtime._core.store, (await self._memory.messages()).version.mid
        payloads = [json.loads(entry.payload)["messages"] for entry in store.entries(mid, after=0, limit=99)]
        texts = [message["content"] for messages in payloads for message in messages if message["content"] != SUMMARY]
        assert texts == expect["texts"]
        active = await self._active()
        archived = expect.get("archived", [])
        assert [text for text in texts if text not in active] == archived
        assert archived or active == texts

    async def _last(self, step: Step, expect: dict[str, Any]) -> None:
        self._drop()
        view = await self._memory.messages(window=MessageWindow(step["n"]))
        assert [message.text for message in view] == expect["texts"]

    async def _version(self, step: Step, expect: dict[str, Any]) -> None:
        self._drop()
        assert (await self._memory.messages()).version.n == expect["version"]

    # Helpers

    async def _compacted(self, keep: TurnWindow | int) -> list[str]:
        """Compact and return what was summed up. A summary that there is stays."""
        archived: list[str] = []

        def summarise(messages: tuple[Message, ...], before: tuple[Message, ...]) -> str | Sequence[Message]:
            archived.extend(message.text for message in messages if message.text != "now")
            return before or SUMMARY

        self._drop()
        memory: ChatMemory = self._memory
        await memory.compact(summarise, keep=keep)
        return archived

    def _drop(self) -> None:
        if self._unloading:
            unload(self._runtime, self._memory.id)


class _Costs:
    """A token counter that looks up what the vector says each of its messages costs."""

    list_overhead: int = 0

    def __init__(self, vector: Vector) -> None:
        self._costs = {event["text"]: event["tokens"] for step in vector.steps for event in step["events"] or ()}

    def count(self, message: Message) -> int:
        return int(self._costs.get(message.text, 0))


def _messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events as messages; where the next one is a result, they are a call."""
    messages = []
    for event, following in zip(events, [*events[1:], None], strict=False):
        message = {"role": event["role"], "content": event["text"]}
        if event["role"] == "tool":
            message["tool_call_id"] = "1"
        elif following is not None and following["role"] == "tool":
            call = {"id": "1", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
            message["tool_calls"] = [call]
        messages.append(message)
    return messages

"""A stand-in for what sits above a memory: it calls a model and tools, has answers checked, and keeps what was said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import zip_longest
from typing import Any, NoReturn, TypeAlias

from conformance.outcomes import Commit
from conformance.translating import all_ours
from conformance.vectors import Given, Step
from turnkeeper import ChatMemory, Messages, Turn

Read: TypeAlias = Callable[[ChatMemory], Awaitable[Messages]]


class ServiceError(Exception):
    """A call of a service has no answer.

    Attributes:
        name: what the vectors call it.
        removal_requested: the check asked to take the answer back.
    """

    def __init__(self, name: str, *, removal_requested: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self.removal_requested = removal_requested


class Service:
    """One call of a service.

    Args:
        memory: where it keeps what was said.
        read: reads that.
        commit: keep it in a turn that commits so; None: each message by itself, as it comes.

    Attributes:
        requests: what the model was shown, at each of its calls.
        answer: the text that passed; None when there is none.
        failure: the error that reached the caller.
    """

    def __init__(self, memory: ChatMemory, read: Read, commit: Commit | None) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self.answer: str | None = None
        self.failure: ServiceError | None = None
        self._memory = memory
        self._read = read
        self._commit = commit
        self._turn: Turn | None = None
        self._before: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []

    async def chat(self, step: Step, tools: dict[str, str]) -> None:
        """Call the model and its tools until an answer passes its check, or the replies run out."""

        async def converse() -> None:
            for role in ("system", "user"):
                if role in step:
                    await self._keep({"role": role, "text": step[role]})
            for reply, check in zip_longest(step["replies"], step.get("checks", ()), fillvalue="pass"):
                await self._ask()
                await self._take(reply, check, tools)
            if check == "reprompt":
                raise ServiceError("output_rejected")

        await self._run(converse)

    async def stream(self, question: Given, chunks: list[dict[str, Any]]) -> None:
        """Keep a question, and its answer once all chunks of it are there."""

        async def gather() -> None:
            await self._keep(question)
            await self._ask()
            if any("error" in chunk for chunk in chunks):
                raise ServiceError("model")
            await self._answer({"role": "assistant", "text": "".join(chunk["text"] for chunk in chunks)})

        await self._run(gather)

    async def _run(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            if self._commit is None:
                await function()
                return
            self._before = (await self._read(self._memory)).to_dicts()
            async with self._memory.turn(commit=self._commit) as self._turn:
                await function()
        except ServiceError as failure:
            self.failure = failure

    async def _ask(self) -> None:
        """Show the model what there is; in a turn its own messages too, which others see once they are committed."""
        if self._turn is None:
            self.requests.append((await self._read(self._memory)).to_dicts())
            return
        shown = (await self._turn.messages()).to_dicts()
        assert shown == self._before + self._kept
        seen_by_others = (await self._read(self._memory)).to_dicts()
        assert seen_by_others == (self._before if self._commit == "turn" else shown)
        self.requests.append(shown)

    async def _take(self, reply: Given | str, check: str, tools: dict[str, str]) -> None:
        """Keep what the model replied where it passes; an answer that is to be tried again is nobody's."""
        if isinstance(reply, str):
            raise ServiceError("model")
        if check == "reprompt":
            return
        if check != "pass":
            await self._refuse(reply, check)
        await self._answer(reply)
        for call in reply.get("tool_calls", ()):
            text = tools.get(call["name"], "unknown tool")
            await self._keep({"role": "tool", "text": text, "tool_call_id": call["id"], "name": call["name"]})

    async def _refuse(self, reply: Given, check: str) -> NoReturn:
        removal_requested = check.endswith("_remove")
        if self._turn is None:  # as there: it is kept before it is checked
            await self._keep(reply)
            if removal_requested:
                await take_back(self._memory, self._read)
        raise ServiceError("output_rejected", removal_requested=removal_requested)

    async def _answer(self, reply: Given) -> None:
        await self._keep(reply)
        self.answer = reply["text"]

    async def _keep(self, given: Given) -> None:
        messages = all_ours([given])
        await (self._memory if self._turn is None else self._turn).add(messages)
        self._kept += messages


async def take_back(memory: ChatMemory, read: Read) -> None:
    """Remove the last message, in one replacement; refused when somebody else wrote meanwhile."""
    view = await read(memory)
    await memory.set(*view[:-1], if_version=view.version)

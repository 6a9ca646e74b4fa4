"""The memory that has a model sum up what grows too long."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import anyio

from turnkeeper.compat.default_runtime import Process, process
from turnkeeper.compat.zerda.base import LiveMemory
from turnkeeper.compat.zerda.buffer import format_exchanges
from turnkeeper.compat.zerda.editing import Draft, Present
from turnkeeper.compat.zerda.mirror import Kind
from turnkeeper.compat.zerda.model import ask_model
from turnkeeper.compat.zerda.turns import Turn
from turnkeeper.errors import ConflictError
from turnkeeper.messages import Message, MessageLike, SystemMessage
from turnkeeper.opening import Runtime
from turnkeeper.stores import Store
from turnkeeper.sync import SyncRuntime

__all__ = ["ConversationSummaryMemory"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_SUMMARY_TOKENS: Final = 200
_TOKENS_A_WORD: Final = 1.3
_TEMPLATE: Final = """\
Sum up a conversation for the assistant that will continue it. Keep names, numbers, decisions, and what is still open.

The summary of what came before:
{previous_summary}

What was said since:
{new_conversation}

The new summary of everything:"""


class ConversationSummaryMemory(LiveMemory):
    """Has a model replace the exchanges by a summary when they grow above a limit.

    The model runs in the thread that saves, outside the memory's actor: others save and read meanwhile, and what they
    save stays. One model call at a time is made for an object, except by `force_summarize`. When the model fails, the
    error is logged without content and nothing is lost; the next `save_context` tries again.

    In the log the summary is a system message, so the native handle shows a prompt that is ready for use.

    Args:
        llm: has `generate(prompt, max_tokens=…)`, which returns text; it may be async.
        max_token_limit: tokens, at 1.3 a word, above which `save_context` asks for a summary.
        memory_key: the name under which `load_memory_variables` returns the conversation.
        input_key: where `save_context` finds what the user said.
        output_key: where it finds the answer.
        summary_prompt_template: has the fields `{previous_summary}` and `{new_conversation}`; None: one of ours.
        memory_id: see `ConversationBufferMemory`.
        store: likewise.
        runtime: likewise.

    Attributes:
        llm: as given; may be changed, as may all others.
        max_token_limit: as given.
        memory_key: as given.
        input_key: as given.
        output_key: as given.
        summary_prompt_template: as given, or ours.
    """

    def __init__(
        self,
        llm: Any,
        max_token_limit: int = 2000,
        memory_key: str = "history",
        input_key: str = "input",
        output_key: str = "output",
        summary_prompt_template: str | None = None,
        *,
        memory_id: str | None = None,
        store: str | Store | None = None,
        runtime: Runtime | SyncRuntime | None = None,
    ) -> None:
        """Keep the arguments; no I/O."""
        super().__init__(Kind(_words, timestamps=False), memory_id, store, runtime)
        self.llm: Any = llm
        self.max_token_limit: int = max_token_limit
        self.memory_key: str = memory_key
        self.input_key: str = input_key
        self.output_key: str = output_key
        self.summary_prompt_template: str = summary_prompt_template or _TEMPLATE
        self._asking: dict[Process, object] = {}

    @property
    def summary(self) -> str:
        """The summary as it is now; empty without one. Assigning replaces it and keeps the exchanges."""
        return _summary_of(self._chat.contents().head)

    @summary.setter
    def summary(self, summary: str) -> None:
        while True:
            present = self._chat.present()
            try:
                self._chat.install(
                    present, [Draft(exchange) for exchange in present.exchanges], _head(present, summary)
                )
            except ConflictError:
                continue
            return

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Append an exchange; above the limit, ask the model for a summary.

        Raises:
            InvalidMessageError: the store can't carry a value as JSON; nothing was changed.
        """
        exchange = {"input": inputs.get(self.input_key), "output": outputs.get(self.output_key)}
        self._chat.save((exchange,), "await memory.asave_context(…)")
        if self.get_memory_stats()["estimated_tokens"] <= self.max_token_limit:
            return
        mine = object()
        if self._asking.setdefault(process(), mine) is mine:  # else somebody is at it
            try:
                self._summarize()
            finally:
                del self._asking[process()]

    async def asave_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """`save_context` without blocking the event loop, in a worker thread; an async model runs in the caller's loop.

        A caller that is cancelled while it waits for the thread has saved nothing; afterwards the exchange is saved,
        whole, a summary under way is given up or finished, and the caller sees only its cancellation.
        """
        # A thread of its own, beyond the limit for short calls: those that wait for a model must not use that up.
        await anyio.to_thread.run_sync(self.save_context, inputs, outputs, limiter=anyio.CapacityLimiter(1))

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return summary and exchanges as text, under `memory_key`.

        Args:
            inputs: not used.
        """
        self._chat.handle("await memory.aload_memory_variables(…)")
        head, exchanges = self._chat.contents()
        parts = [part for part in (_summary_of(head), format_exchanges(exchanges)) if part]
        return {self.memory_key: "\n\n---  the recent conversation---\n".join(parts)}

    def get_memory_stats(self) -> dict[str, Any]:
        """Return sizes of summary and exchanges, and tokens beside their limit; costs O(1)."""
        totals = self._chat.totals()
        summary = _summary_of(totals.head)
        return {
            "type": "ConversationSummaryMemory",
            "has_summary": bool(summary),
            "summary_length": len(summary),
            "recent_messages_count": totals.exchanges,
            "estimated_tokens": int((len(summary.split()) + totals.amount) * _TOKENS_A_WORD),
            "token_limit": self.max_token_limit,
        }

    def get_summary(self) -> str:
        """Return the summary as it is now; empty without one."""
        return self.summary

    def force_summarize(self) -> None:
        """Ask the model for a summary now; without exchanges, do nothing."""
        if self._chat:
            self._summarize()

    def _summarize(self) -> None:
        try:
            present = self._chat.present()
            prompt = self.summary_prompt_template.format(
                previous_summary=_summary_of(present.head) or "not found ",
                new_conversation=format_exchanges(present.exchanges),
            )
            self._install(present, ask_model(self.llm, prompt, _SUMMARY_TOKENS))
        except Exception as error:
            logger.error("summing up a conversation failed with %s; nothing was lost", type(error).__name__)

    def _install(self, seen: Present, summary: str) -> None:
        """Replace what the model saw; not when that is gone or has changed: then the summary speaks of the past."""
        while True:
            present = self._chat.present()
            left = Counter(_raw(turn) for _, turn in seen.shown)
            stay = []
            for exchange, turn in present.shown:
                if left[_raw(turn)]:
                    left[_raw(turn)] -= 1
                else:
                    stay.append(Draft(exchange))
            if left.total() or _summary_of(present.head) != _summary_of(seen.head):
                return
            try:
                self._chat.install(present, stay, _head(present, summary))
            except ConflictError:
                continue
            return


def _words(said: object, answered: object) -> int:
    return len(f"{said} {answered}".split())


def _raw(turn: Turn) -> tuple[bytes, ...]:
    return tuple([message.raw for message in turn.messages])


def _summary_of(head: Sequence[Message]) -> str:
    return "".join([message.text for message in head if _is_summary(message)])


def _is_summary(message: Message) -> bool:
    if not isinstance(message, SystemMessage):
        return False
    extra = message.to_dict().get("zerda")
    return isinstance(extra, dict) and extra.get("summary") is True


def _head(present: Present, summary: str) -> list[MessageLike]:
    head: list[MessageLike] = [message for message in present.head if not _is_summary(message)]
    if summary:
        head.insert(0, {"role": "system", "content": summary, "zerda": {"summary": True}})
    return head

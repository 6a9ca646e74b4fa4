"""What can be done about compactions: ours, and those that the runtime's policy asks for by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal

import anyio
from anyio.lowlevel import checkpoint

from statemachine.actions import Actions
from statemachine.compactions import Seen, Shown, compact, look_back
from statemachine.lifetime import PATIENCE
from statemachine.operations import NONE, Disturbance, Operation
from statemachine.states import Batch, refused, unchanged
from statemachine.witness import Witness
from turnkeeper import (
    CompactionError,
    CompactionPolicy,
    MessageWindow,
    Receipt,
    TurnWindow,
)
from turnkeeper.windows import LimitedWindow
from windows.saying import labels

How = Literal["text", "fail", "empty", "cancel"]
"""What a summariser does, or what becomes of who waits for it."""

WHEN: Final = MessageWindow(6)
KEEP: Final = TurnWindow(max_messages=2)
"""The policy's."""


class Compaction:
    """A compaction under way, whose summariser waits for us.

    Attributes:
        operation: whose request it is; nobody can cancel the policy's.
        shown: what the summariser was shown, once it was asked.
        seen: what it may stand for.
    """

    def __init__(self) -> None:
        self.operation: Operation
        self.shown: Shown | None = None
        self.told = anyio.Event()
        self.summary: Callable[[], Any] = str
        self.seen: Iterable[Seen] = ()

    async def __call__(self, messages: Sequence[Any], summary: Sequence[Any]) -> Any:
        self.shown = Shown(tuple(labels(messages)), tuple(labels(summary)))
        await self.told.wait()
        return self.summary()

    @property
    def asked(self) -> bool:
        return self.shown is not None


class Summaries(Actions):
    """A driver that knows compactions too; `by_policy`: the runtime has a policy of its own."""

    def __init__(self, make_store: Callable[[], Witness], *, by_policy: bool, **options: Any) -> None:
        policy = CompactionPolicy(self._summarise, WHEN, KEEP, timeout=math.floor(PATIENCE) * 100)
        super().__init__(make_store, compaction=policy if by_policy else None, **options)
        self.compaction: Compaction | None = None
        self._by_policy = by_policy
        self._begun: Compaction | None = None  # by the policy
        self._ended = False  # one that kept the policy's from beginning

    @property
    def compacts(self) -> bool:
        """Whether one of ours is under way."""
        return self.compaction is not None and self.compaction is not self._begun

    async def reopen(self) -> None:
        self.compaction = self._begun = None  # closing gives up the policy's
        await super().reopen()

    def forget(self, operation: Operation) -> None:
        if self.compaction is not None and operation is self.compaction.operation:
            self.compaction = None
            self._ended = True

    async def cancel(self, place: int, *, natively: bool = False) -> None:
        """Cancel one of those who wait, unless that is the policy's."""
        if self._begun is None or self._waiting[self.state.held[place]] is not self._begun.operation:
            await super().cancel(place, natively=natively)

    # Ours

    async def begin_compaction(self, keep: int) -> None:
        if self.compaction is not None:
            again = partial(self.memory().compact, Compaction())
            await self.step(Operation("compact again", again, partial(refused, error=CompactionError)))
            return
        window = TurnWindow(max_messages=keep)
        seen = look_back(self.state, window)
        compaction = Compaction()
        call = partial(self.memory().compact, compaction, keep=window)
        operation = compaction.operation = Operation(f"compact keeping {keep}", call, unchanged)
        if seen is None:
            await self.step(operation)
            return
        self.begin(operation)
        with anyio.fail_after(PATIENCE):
            while not (compaction.asked or operation.done.is_set()):
                await checkpoint()
        assert compaction.shown == seen[1], self.report(operation)
        compaction.seen = [seen[0]]
        self.compaction = compaction
        await self.look()

    async def end_compaction(self, how: How, batch: Batch = ()) -> None:
        """Let the summariser go on, and see what comes of it."""
        compaction = self.compaction
        assert compaction is not None
        operation = compaction.operation
        if how == "cancel" and self._begun is compaction:
            how = "fail"
        self.story.append(f"the summariser: {how}")
        self.compaction = None
        self._ended = True
        error: dict[str, type[Exception]] = {"fail": ZeroDivisionError, "empty": CompactionError}
        summaries: dict[str, Callable[[], Any]] = {"text": lambda: batch, "fail": lambda: 1 // 0}
        compaction.summary = summaries.get(how, str)
        if how == "text":
            operation.apply = partial(compact, seen=compaction.seen, batch=batch)
            if self.kept_out:
                self.compaction = compaction  # under way until it was committed
        elif how != "cancel":
            operation.apply = partial(refused, error=error[how])
        if how != "cancel":
            compaction.told.set()
        await self.step(operation, Disturbance(passes=0) if how == "cancel" else NONE, waits=how == "text")

    # The policy's

    async def _summarise(self, messages: Sequence[Any], summary: Sequence[Any]) -> Any:
        assert self._begun is not None
        return await self._begun(messages, summary)

    def opened(self) -> None:
        """Learn of each compaction that the policy begins, and of what comes of it."""
        compactor = self.runtime._core._compactor
        ours = compactor.compact

        async def watched(
            name: Any, summarizer: Any, keep: TurnWindow, when: LimitedWindow | None = None, timeout: float = math.inf
        ) -> Receipt | None:
            call = partial(ours, name, summarizer, keep, when, timeout)
            if when is None:
                return await call()
            if name.id != "m":
                return None  # forks are only looked at
            compaction = self._begun = Compaction()
            operation = compaction.operation = Operation("compaction by the policy", call, unchanged)
            operation.started.set()
            try:
                operation.result = receipt = await call()
            except Exception as error:
                operation.error = error
                raise
            finally:
                operation.done.set()
            return receipt

        compactor.compact = watched  # type: ignore[method-assign]

    async def look(self) -> None:
        """Look, and see whether the policy did what it has to: begin after a commit, once there is too much."""
        passed, clean, wrote = self.passed, self.clean and not self._ended, [op for op, _ in self.store.written]
        before, self._ended = self.compaction, False
        await super().look()
        if not self._by_policy or before is not None:
            return
        for _ in range(3):
            await checkpoint()  # a task that was started begins
        if (begun := self._begun) is not None:
            with anyio.fail_after(PATIENCE):
                while not (begun.asked or begun.operation.done.is_set()):
                    await checkpoint()
        if begun is None or begun.operation.done.is_set():
            self._begun = None
            due = wrote and wrote[-1] != "delete" and look_back(self.state, KEEP, WHEN)
            assert not (due and clean and len(self.candidates) == 1), self.report(f"nothing was summed up: {due}")
            return
        looks = [look_back(state, KEEP, WHEN) for state in (*passed, *self.candidates)]
        begun.seen = list(dict.fromkeys([look[0] for look in looks if look is not None and look[1] == begun.shown]))
        assert begun.seen, "\n".join([self.report(begun.operation), f"shown: {begun.shown}; could be: {looks}"])
        self.compaction = begun

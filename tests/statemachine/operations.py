"""A request of ours on its way, and what may go wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import sniffio

from statemachine.states import Applied, Path, State
from turnkeeper import OutcomeUnknownError, StoreUnavailableError
from turnkeeper.testing.faults import Call, When


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong in a step.

    Attributes:
        faults: calls of the store that fail, and how many of them.
        passes: after so many passes of the loop the caller is cancelled.
        stalled: the call of the store in which it is cancelled; then `passes` is None.
        natively: it is cancelled by `asyncio.Task.cancel()`, where there is such a thing, and else by its scope.
    """

    faults: tuple[tuple[Call, When, int], ...] = ()
    passes: int | None = None
    stalled: Literal["commit", "load"] | None = None
    natively: bool = False

    @property
    def cancels(self) -> bool:
        return self.passes is not None or self.stalled is not None


NONE: Final = Disturbance()


class Operation:
    """A request: what came of it, and what the model makes of it.

    Attributes:
        opens: the number of the turn that it opens.
        disturbed: the store may have failed it.
        taken: it was past the point of no return when its caller was cancelled.
    """

    def __init__(
        self, name: str, call: Callable[[], Awaitable[Any]], apply: Applied, *, opens: int | None = None
    ) -> None:
        self.name = name
        self.call = call
        self.apply = apply
        self.opens = opens
        self.done = anyio.Event()
        self.started = anyio.Event()
        self.cancelled = False
        self.result: Any = None
        self.error: Exception | None = None
        self.disturbed = False
        self.taken = False
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        if sniffio.current_async_library() == "asyncio":
            self._task = asyncio.current_task()
        self.started.set()
        self.cancelled = True
        try:
            with self._scope:
                try:
                    self.result = await self.call()
                except Exception as error:
                    self.error = error
                self.cancelled = False
        except asyncio.CancelledError:
            if self._task is None or not self._task.cancelling():
                raise
        finally:
            self._task = None
            self.done.set()

    async def cancel(self, *, natively: bool = False) -> None:
        """Have its caller leave."""
        if natively:
            await self.started.wait()  # a task that is cancelled before it begins never runs
        if natively and self._task is not None:
            self._task.cancel()
        else:
            self._scope.cancel()

    def outcomes(self, path: Path) -> tuple[State, ...]:
        """Return the states of a path at which it may have ended, going by what its caller saw."""
        error, wanted = self.error, path.answer
        lost = self.disturbed and isinstance(error, StoreUnavailableError | OutcomeUnknownError)
        if not (self.cancelled or lost):
            return path.states[-1:] if error is None or type(error) is wanted.error else ()
        opened = self.opens is not None and wanted.error is None
        states = path.states[:-1] if opened else path.states  # a turn that was opened for who left is over
        if self.taken:
            return states[-1:]
        if isinstance(error, StoreUnavailableError) and not opened:
            return states[:1]
        if self.disturbed and path.unknown is not None:
            return path.unknown if error is not None else (*states, *path.unknown)
        return states

    def __repr__(self) -> str:
        outcome = "cancelled" if self.cancelled else repr(self.error or self.result)
        return f"{self.name} -> {outcome if self.done.is_set() else 'waits'}"

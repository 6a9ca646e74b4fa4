"""Recording what callers of one memory do and see, for `check_history`."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from turnkeeper.testing.history import Call, Op, Outcome, check_history

__all__ = ["History", "Recorder", "SyncRecorder"]


class _AsyncMemory(Protocol):
    def add(self, messages: Any, /) -> Awaitable[Any]: ...
    def set(self, messages: Any, /, *, if_version: Any = None) -> Awaitable[Any]: ...
    def clear(self) -> Awaitable[Any]: ...
    def delete(self) -> Awaitable[Any]: ...
    def messages(self) -> Awaitable[Any]: ...


class _BlockingMemory(Protocol):
    def add(self, messages: Any, /) -> Any: ...
    def set(self, messages: Any, /, *, if_version: Any = None) -> Any: ...
    def clear(self) -> Any: ...
    def delete(self) -> Any: ...
    def messages(self) -> Any: ...


class History:
    """The calls on one memory and their logical clock; recorders of several handles and threads may share it."""

    def __init__(self) -> None:
        # Thread safe without a lock: under the GIL, `next` on a count and a store under an int key are one step each.
        # A tick is taken before a call starts and one after it ended, so no interval is recorded shorter than it was.
        self._clock = itertools.count()
        self._calls: dict[int, Call] = {}

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls so far; one that is still on its way is "unknown"."""
        return tuple(self._calls.copy().values())

    def check(self, *, initial: Sequence[Hashable] = ()) -> None:
        """Check the calls so far as `check_history` does, with the same errors."""
        check_history(self.calls, initial=initial)

    @contextmanager
    def record(
        self, sender: Hashable, op: Op, argument: Sequence[Hashable] = (), if_version: Any = None
    ) -> Iterator[list[Any]]:
        """Record the call made inside; what it returned goes into the list given.

        A cancellation, any other `BaseException` that is no `Exception`, and OutcomeUnknownError leave "unknown",
        ConflictError leaves "conflict", every other `Exception` "failed". All are raised on.
        """
        invoked = next(self._clock)
        call = Call(sender, op, tuple(argument), invoked, outcome="unknown", if_version=if_version)
        self._calls[invoked] = call
        answer: list[Any] = []
        outcome: Outcome = "unknown"
        try:
            yield answer
            outcome = "ok"
        except Exception as error:
            # By name: this module imports nothing of the library it judges.
            names = {kind.__name__ for kind in type(error).__mro__}
            if "OutcomeUnknownError" not in names:
                outcome = "conflict" if "ConflictError" in names else "failed"
            raise
        finally:
            read = op == "messages" and outcome == "ok"
            self._calls[invoked] = replace(
                call,
                returned=next(self._clock),
                outcome=outcome,
                result=tuple([message.text for message in answer[0]]) if read else None,
                version=getattr(answer[0], "version", None) if answer else None,
            )


def _dicts(tokens: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": token} for token in tokens]


class Recorder:
    """Calls an async handle and records it in `history`; its methods return and raise what the handle's do."""

    def __init__(self, memory: _AsyncMemory, history: History | None = None) -> None:
        self.memory = memory
        self.history: History = history or History()

    async def add(self, sender: Hashable, tokens: Sequence[str]) -> Any:
        """Append one batch, with a user message for each token."""
        return await self._run(sender, "add", partial(self.memory.add, _dicts(tokens)), tokens)

    async def set(self, sender: Hashable, tokens: Sequence[str], *, if_version: Any = None) -> Any:
        """Replace everything by a user message for each token."""
        call = partial(self.memory.set, _dicts(tokens), if_version=if_version)
        return await self._run(sender, "set", call, tokens, if_version)

    async def clear(self, sender: Hashable) -> Any:
        """Empty the memory."""
        return await self._run(sender, "clear", self.memory.clear)

    async def delete(self, sender: Hashable) -> Any:
        """Remove the memory."""
        return await self._run(sender, "delete", self.memory.delete)

    async def messages(self, sender: Hashable) -> Any:
        """Read everything."""
        return await self._run(sender, "messages", self.memory.messages)

    async def _run(
        self,
        sender: Hashable,
        op: Op,
        call: Callable[[], Awaitable[Any]],
        tokens: Sequence[str] = (),
        if_version: Any = None,
    ) -> Any:
        with self.history.record(sender, op, tokens, if_version) as answer:
            answer.append(await call())
        return answer[0]


class SyncRecorder:
    """Calls a blocking handle, from any thread, and records it in `history`, as `Recorder` does."""

    def __init__(self, memory: _BlockingMemory, history: History | None = None) -> None:
        self.memory = memory
        self.history: History = history or History()

    def add(self, sender: Hashable, tokens: Sequence[str]) -> Any:
        """Append one batch, with a user message for each token."""
        return self._run(sender, "add", partial(self.memory.add, _dicts(tokens)), tokens)

    def set(self, sender: Hashable, tokens: Sequence[str], *, if_version: Any = None) -> Any:
        """Replace everything by a user message for each token."""
        call = partial(self.memory.set, _dicts(tokens), if_version=if_version)
        return self._run(sender, "set", call, tokens, if_version)

    def clear(self, sender: Hashable) -> Any:
        """Empty the memory."""
        return self._run(sender, "clear", self.memory.clear)

    def delete(self, sender: Hashable) -> Any:
        """Remove the memory."""
        return self._run(sender, "delete", self.memory.delete)

    def messages(self, sender: Hashable) -> Any:
        """Read everything."""
        return self._run(sender, "messages", self.memory.messages)

    def _run(
        self, sender: Hashable, op: Op, call: Callable[[], Any], tokens: Sequence[str] = (), if_version: Any = None
    ) -> Any:
        with self.history.record(sender, op, tokens, if_version) as answer:
            answer.append(call())
        return answer[0]

"""Does to a runtime what it is told, step by step, and holds what came of it against the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from statemachine.lifetime import PATIENCE, Lifetime
from statemachine.operations import NONE, Disturbance, Operation
from statemachine.states import Batch, Entries, State, place
from statemachine.turns import undisturbed, with_ended
from statemachine.versions import Versions
from statemachine.views import view
from statemachine.witness import Witness
from turnkeeper import (
    ChatMemory,
    Messages,
    Receipt,
    Removed,
    StoreUnavailableError,
    Turn,
    TurnConflictError,
    Unbounded,
    Window,
)
from windows.saying import labels

ALL: Final = Unbounded()


class Driver(Lifetime):
    """Drives one memory of one runtime.

    Attributes:
        candidates: the states that it may be in: mostly one, once it was looked at.
        passed: the states that it may have been in since it was looked at.
        story: what has happened, for who reads a failure.
        clean: nothing went wrong in this step.
        seen: what was written from the look before to the last one.
    """

    def __init__(self, make_store: Callable[[], Witness], **options: Any) -> None:
        super().__init__(make_store, **options)
        self.candidates: list[State] = [State()]
        self.passed: list[State] = []
        self.story: list[str] = []
        self.turns: list[Turn] = []
        self.versions = Versions()
        self.clean = True
        self.seen: Entries = ()
        self._waiting: dict[int, Operation] = {}
        self._numbers = 0

    async def reopen(self) -> None:
        """Close the runtime, and open another one."""
        self.story.append("reopen")
        doubtful = self.store.doubtful
        await self.leave()
        self.store.doubtful = doubtful
        self.candidates = [replace(state, turn=None, over=frozenset()) for state in self.candidates]
        self.turns.clear()
        await self.look()

    async def stop(self) -> None:
        for turn in self.turns:
            turn._session.leave()  # closing would wait for those whom it keeps out
        await self.leave(last=True)

    # What is known

    @property
    def state(self) -> State:
        return self.candidates[0]

    @property
    def shared(self) -> bool:
        return self.store.shared

    @property
    def kept_out(self) -> bool:
        """Whether a turn is open that lets nobody else write."""
        turn = self.state.turn
        return turn is not None and not turn.late

    def memory(self, window: Window | None = None) -> ChatMemory:
        return self.runtime.memory("m", window=window)

    # Steps

    def begin(self, operation: Operation) -> None:
        self.story.append(operation.name)
        self.group.start_soon(operation.run)

    async def step(self, operation: Operation, disturbance: Disturbance = NONE, *, waits: bool = False) -> None:
        """Have an operation carried out, disturbed, and find out what came of it; `waits`: also of an open turn."""
        held = waits and self.kept_out
        self.clean = disturbance is NONE
        if not self.clean:
            self.story.append(f"    {disturbance}")
        self.store.disturb(disturbance.faults)
        operation.disturbed = bool(disturbance.faults)
        stalled = disturbance.stalled if not self.store.inline else None
        with self.store.stall(stalled) if stalled else contextlib.nullcontext() as stall:
            if not operation.started.is_set():
                self.begin(operation)
            if stall is not None:
                with anyio.move_on_after(PATIENCE):
                    while not (stall.entered.is_set() or operation.done.is_set() or held):  # noqa: ASYNC110 (a thread's)
                        await anyio.sleep(0.001)
            for _ in range(disturbance.passes or 0):
                await checkpoint()
            if disturbance.cancels:
                if stall is not None and stalled == "commit" and not self.shared:
                    operation.taken = stall.entered.is_set()
                await operation.cancel(natively=disturbance.natively)
                await self.wait(operation)
        if held and not disturbance.cancels:
            self.store.heal()
            await self.memory(ALL).stats()  # in its turn: by now the request was met
            assert not operation.done.is_set(), self.report(operation)
            self._hold(operation)
        else:
            await self.wait(operation)
            with contextlib.suppress(StoreUnavailableError):
                await self.memory(ALL).stats()  # behind those who are let in
            await self._settle()
            self._resolve(operation, held)
            await self._let_in(disturbed=operation.disturbed)
        await self.look()

    def _hold(self, operation: Operation) -> None:
        self._numbers += 1
        self._waiting[self._numbers] = operation
        self.candidates = [replace(state, held=(*state.held, self._numbers)) for state in self.candidates]

    async def _settle(self) -> None:
        """Heal the store, and wait until everything that was taken has run to its end."""
        self.store.heal()
        with anyio.fail_after(PATIENCE):
            while self.runtime.stats().pending > sum(not it.done.is_set() for it in self._waiting.values()):  # noqa: ASYNC110
                await anyio.sleep(0.001)

    async def _let_in(self, *, disturbed: bool) -> None:
        """After a turn ended those who waited go on, up to the next one that opens a turn."""
        while self.state.held:
            operation = self._waiting[self.state.held[0]]
            if not operation.done.is_set():
                if self.kept_out:
                    break
                await self.wait(operation)
                await self._settle()
            assert not operation.cancelled, self.report(operation)
            operation.disturbed = disturbed
            self._let_go(self.state.held[0])
            self._resolve(operation)

    def _let_go(self, number: int) -> Operation:
        """Forget one of those who wait."""
        operation = self._waiting.pop(number)
        held = tuple(other for other in self.state.held if other != number)
        self.candidates = [replace(state, held=held) for state in self.candidates]
        self.forget(operation)
        return operation

    def forget(self, operation: Operation) -> None:
        """Note that an operation that waited does so no more."""

    async def cancel(self, place: int, *, natively: bool = False) -> None:
        """Cancel one of those who wait: it was not taken, so nothing has happened."""
        number = self.state.held[place]
        operation = self._waiting[number]
        self.story.append(f"cancel {operation!r}")
        await operation.cancel(natively=natively)
        await self.wait(operation)
        assert operation.cancelled, operation
        self._let_go(number)
        await self.look()

    async def let_in(self) -> None:
        """Let those go on whom nothing keeps out any more, and look."""
        await self._let_in(disturbed=False)
        await self.look()

    async def wait(self, operation: Operation) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                await operation.done.wait()
        except TimeoutError:
            raise AssertionError(self.report(operation)) from None

    def report(self, operation: object) -> str:
        return "\n".join([*self.story, repr(operation), *map(str, self.candidates)])

    # What came of it

    def _resolve(self, operation: Operation, held: bool = False) -> None:
        """Keep the states in which the caller would see what it saw, and the store would hold what it does."""
        self.story.append(f"  = {operation!r}")
        written = tuple(self.store.written)
        found: list[State] = []
        for state in [state for candidate in self.candidates for state in with_ended(candidate)]:
            if held:
                found.append(state)  # it was cancelled while it waited
                continue
            for path in operation.apply(state):
                for then in operation.outcomes(path) if self._answers(operation, path.answer, state) else ():
                    found += [ended for ended in with_ended(then) if self._is_written(ended, written, found)]
        assert found, "\n".join([self.report(operation), f"written: {written}"])
        self.passed += found
        open_now = self._open_now()
        if any(waiting.opens == open_now for waiting in self._waiting.values()):
            open_now = None  # one that waited was let in already
        self.candidates = [state for state in found if (state.turn and state.turn.turn) == open_now]
        assert self.candidates, "\n".join([self.report(operation), f"open now: {open_now}; found:", *map(str, found)])

    def _is_written(self, state: State, written: Entries, found: list[State]) -> bool:
        return written[: len(state.written)] == state.written and state not in found

    def _answers(self, operation: Operation, wanted: Any, state: State) -> bool:
        """Tell whether an answer is the one that is wanted; who got an error, or none, is judged by `outcomes`."""
        result = operation.result
        if operation.cancelled or operation.error is not None:
            return True
        if wanted.error is not None:
            return False
        if wanted.stamp is not None:
            if isinstance(result, Removed):
                fits = labels(result.messages) == list(wanted.value)
            else:
                fits = isinstance(result, Receipt) and result.count == wanted.count
            return fits and self.versions.agrees(result.version, wanted.stamp)
        if isinstance(wanted.value, bool) and self.shared and state.n == 0:
            return True  # there may be a row, for the lease of a turn
        return bool(result == wanted.value)

    def _open_now(self) -> int | None:
        """Say which turn is open."""
        numbers = [number for number, turn in enumerate(self.turns) if turn._session.open]
        assert len(numbers) <= 1, numbers
        return numbers[0] if numbers else None

    # Looking

    async def look(self) -> None:
        """Resolve what may have happened by looking at it: all that is seen is what one of the states says."""
        with anyio.fail_after(PATIENCE):
            seen = await self.memory(ALL).messages()
            stats = await self.memory(ALL).stats()
            known = await self.memory(ALL).metadata()
        assert stats.version == seen.version or stats.version.n == seen.version.n == 0, self.story
        written = tuple(self.store.written)
        open_now = self._open_now()
        left: list[State] = []
        failures: list[str] = []
        for state in [state for candidate in self.candidates for state in with_ended(candidate)]:
            try:
                assert open_now == (state.turn and state.turn.turn), open_now
                assert written == state.written, written
                assert stats.message_count == state.count, stats
                assert (known.title, known.revision) == (state.title, state.revision), known
                self.compare(state, seen, ALL)
                await self.look_within(state, ALL)
            except (AssertionError, TurnConflictError) as failure:
                failures.append(f"{failure}\n{state}")
            else:
                left.append(replace(state, written=()))
        assert left, "\n".join([*self.story, "none of these states:", *failures])
        self.store.written.clear()
        self.seen = written
        self.candidates = left
        self.versions.note(seen.version, self.state)
        assert not self.store.kept_out, "\n".join([*self.story, "a lease was not given back"])
        if self.state.turn is None:
            self.store.pass_time()
            self.store.doubtful = False
        self.passed = list(left)

    async def look_within(self, state: State, window: Window) -> None:
        """Look at it within the open turn."""
        turn = state.turn
        if turn is not None and not turn.late and undisturbed(turn, state):
            with anyio.fail_after(PATIENCE):
                seen = await self.turns[turn.turn].messages(window=window)
            self.compare(state, seen, window, turn.added)

    def compare(self, state: State, seen: Messages, window: Window, added: Batch = ()) -> None:
        wanted, overflow = view(state, window, added)
        assert labels(seen) == wanted, (labels(seen), wanted, window)
        assert seen.overflow == overflow, window
        assert self.versions.agrees(seen.version, state.stamp), (seen.version, state.stamp)
        known = {said.id: said.fields for said in (*state.log, *state.summary, *place(added, state.n + 1))}
        for message in seen:
            if not message.synthetic:
                assert message.to_dict() == known[str(message.id)], message.id


def brief(batch: Sequence[Any]) -> str:
    return "[" + ", ".join(f"{fields['role']} {fields.get('content')!r}" for fields in batch) + "]"

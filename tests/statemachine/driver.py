"""Does to a runtime what it is told, step by step, and holds what came of it against the model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from statemachine import model
from statemachine.model import Answer, Batch, Path, Seen, State
from turnkeeper import (
    ChatMemory,
    CompactionError,
    Messages,
    NestedTurnError,
    OutcomeUnknownError,
    Receipt,
    Runtime,
    StoreUnavailableError,
    Turn,
    TurnConflictError,
    TurnWindow,
    Unbounded,
    Version,
    Window,
    open_runtime,
)
from turnkeeper.stores import Store
from turnkeeper.testing import FaultStore, unload
from turnkeeper.testing.faults import Call, When
from windows.saying import Fields, labels

PATIENCE: Final = 10.0
"""Seconds that nothing here may take: nobody hangs."""

ALL: Final = Unbounded()


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong in a step.

    Attributes:
        faults: calls of the store that fail, and how many of them.
        passes: after so many passes of the loop the caller is cancelled.
        stalled: the call of the store in which it is cancelled; then `passes` is None.
    """

    faults: tuple[tuple[Call, When, int], ...] = ()
    passes: int | None = None
    stalled: Literal["commit", "load"] | None = None

    @property
    def cancels(self) -> bool:
        return self.passes is not None or self.stalled is not None


NONE: Final = Disturbance()

Applied: TypeAlias = Callable[[State], list[Path]]


class Operation:
    """A request of ours on its way: what came of it, and what the model makes of it."""

    def __init__(self, name: str, call: Callable[[], Awaitable[Any]], apply: Applied) -> None:
        self.name = name
        self.call = call
        self.apply = apply
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.started = False
        self.cancelled = False
        self.result: Any = None
        self.error: Exception | None = None
        self.disturbed = False
        self.taken = False
        self.turn: int | None = None  # that it opens

    async def run(self) -> None:
        self.cancelled = True
        with self.scope:
            try:
                self.result = await self.call()
            except Exception as error:
                self.error = error
            self.cancelled = False
        self.done.set()

    def __repr__(self) -> str:
        outcome = "cancelled" if self.cancelled else repr(self.error or self.result)
        return f"{self.name} -> {outcome if self.done.is_set() else 'waits'}"


class Compaction:
    """A compaction under way, whose summariser waits for us."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.told = anyio.Event()
        self.shown: tuple[list[str], list[str]] | None = None
        self.summary: Callable[[], Any] = str
        self.seen: Seen | None = None
        self.operation: Operation

    async def __call__(self, messages: Sequence[Any], summary: Sequence[Any]) -> Any:
        self.shown = labels(messages), labels(summary)
        self.asked.set()
        await self.told.wait()
        return self.summary()


class Driver:
    """Drives one memory of one runtime. `candidates` are the states that it may be in: one, once it was looked at."""

    def __init__(
        self, make_store: Callable[[], Store], *, inline: Literal[False] | None = None, **options: Any
    ) -> None:
        self._make_store = make_store
        self._inline: Literal[False] | None = inline
        self._options = options
        self.candidates: list[State] = [State()]
        self.story: list[str] = []
        self.turns: list[Turn] = []
        self.compaction: Compaction | None = None
        self.versions: list[Version] = []
        self.fields: dict[str, Fields] = {}
        self._waiting: dict[int, Operation] = {}
        self._numbers = 0
        self._mids: dict[int, int] = {}
        self.store: FaultStore
        self.runtime: Runtime
        self._group: TaskGroup
        self._reopen = anyio.Event()
        self._opened = anyio.Event()
        self._last = False

    # The runtime's life: entered and left by one task

    async def keep(self) -> None:
        """Keep a runtime open until told to stop, and open another one on the same store when told."""
        async with anyio.create_task_group() as self._group:
            while not self._last:
                self.store = FaultStore(self._make_store(), inline=self._inline)
                async with open_runtime(self.store, **self._options) as self.runtime:
                    self._opened.set()
                    await self._reopen.wait()
                    self._reopen = anyio.Event()
                    if self._last:
                        self._group.cancel_scope.cancel()
                assert self.runtime.stats().pending == self.runtime.stats().pending_bytes == 0
            self._opened.set()

    @property
    def state(self) -> State:
        return self.candidates[0]

    @property
    def shared(self) -> bool:
        return self.store.shared

    @property
    def waiting_turns(self) -> set[int]:
        """Turns whose opening waits."""
        return {operation.turn for operation in self._waiting.values() if operation.turn is not None}

    def memory(self, window: Window | None = None) -> ChatMemory:
        return self.runtime.memory("m", window=window)

    async def start(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self._opened.wait()

    async def reopen(self) -> None:
        """Close the runtime, and open another one."""
        self.story.append("reopen")
        await self._leave()
        self.candidates = [replace(state, turn=None, over=frozenset()) for state in self.candidates]
        self.turns.clear()
        await self.look()

    async def stop(self) -> None:
        self._last = True
        await self._leave()

    async def _leave(self) -> None:
        self._opened = anyio.Event()
        self._reopen.set()
        with anyio.fail_after(PATIENCE):
            await self._opened.wait()

    # Steps

    async def write(
        self,
        kind: Literal["add", "set", "clear", "delete"],
        batch: Batch = (),
        window: Window = ALL,
        key: str | None = None,
        if_version: Version | None = None,
        disturbance: Disturbance = NONE,
    ) -> None:
        memory = self.memory(window)
        if kind == "add":
            call: Callable[[], Awaitable[Any]] = partial(memory.add, batch, idempotency_key=key)
            apply: Applied = partial(model.add, batch=batch, window=window, key=key)
        elif kind == "set":
            call = partial(memory.set, batch, if_version=if_version, idempotency_key=key)

            def apply(state: State) -> list[Path]:
                fits = if_version is None or self._agrees(if_version, state.stamp)
                return model.set_(state, batch, window, key, fits)

        elif kind == "clear":
            call, apply = memory.clear, model.clear
        else:
            call, apply = memory.delete, model.delete
        name = f"{kind} {_brief(batch)} key={key} if={if_version} in {type(window).__name__}"
        await self._step(Operation(name, call, apply), disturbance, waits=True)

    async def open(
        self, on_busy: str, each: bool = False, key: str | None = None, disturbance: Disturbance = NONE
    ) -> None:
        options: Any = {"on_busy": on_busy, "commit": "each" if each else "turn", "idempotency_key": key}
        turn = self.memory().turn(**options)
        number = len(self.turns)
        self.turns.append(turn)

        async def enter() -> None:
            await turn.__aenter__()
            with contextlib.suppress(NestedTurnError):
                await self.memory().clear()
                raise AssertionError("a write through the handle inside a turn was not refused")

        apply = partial(model.open_turn, turn=number, on_busy=on_busy, each=each, key=key)
        operation = Operation(f"open turn {number} {options}", enter, apply)
        operation.turn = number
        await self._step(operation, disturbance, waits=on_busy == "enqueue")

    async def turn_add(self, number: int, batch: Batch, disturbance: Disturbance = NONE) -> None:
        operation = Operation(
            f"turn {number} add {_brief(batch)}",
            partial(self.turns[number].add, batch),
            partial(model.turn_add, turn=number, batch=batch),
        )
        await self._step(operation, disturbance)

    async def leave(self, number: int, disturbance: Disturbance = NONE) -> None:
        turn = self.turns[number]

        async def leave() -> Receipt | None:
            before = turn.receipt
            await turn.__aexit__(None, None, None)
            return None if turn.receipt is before else turn.receipt

        apply = partial(model.leave_turn, turn=number)
        await self._step(Operation(f"leave turn {number}", leave, apply), disturbance)

    async def fail(self, number: int) -> None:
        """Leave a turn with an error."""
        error = ValueError("the body failed")

        def apply(state: State) -> list[Path]:
            ours = state.turn is not None and state.turn.turn == number
            return [Path((model.end_turn(state, told=False) if ours else state,), Answer())]

        leave = partial(self.turns[number].__aexit__, ValueError, error, None)
        await self._step(Operation(f"turn {number} fails", leave, apply), NONE)

    async def cancel(self, place: int) -> None:
        """Cancel one of those who wait: it was not taken, so nothing has happened."""
        number = self.state.held[place]
        operation = self._waiting.pop(number)
        self.story.append(f"cancel {operation!r}")
        operation.scope.cancel()
        await self._wait(operation)
        assert operation.cancelled, operation
        held = tuple(other for other in self.state.held if other != number)
        self.candidates = [replace(state, held=held) for state in self.candidates]
        if self.compaction is not None and operation is self.compaction.operation:
            self.compaction = None
        await self.look()

    # Compaction

    async def begin_compaction(self, keep: int) -> None:
        if self.compaction is not None:
            operation = Operation(
                "compact again",
                partial(self.memory().compact, Compaction()),
                lambda state: [Path((state,), Answer(error=CompactionError))],
            )
            await self._step(operation, NONE)
            return
        window = TurnWindow(max_messages=keep)
        seen = model.look_back(self.state, window)
        compaction = Compaction()
        operation = compaction.operation = Operation(
            f"compact keeping {keep}",
            partial(self.memory().compact, compaction, keep=window),
            lambda state: [Path((state,), Answer())],
        )
        if seen is None:
            await self._step(operation, NONE)
            return
        self._start(operation)
        with anyio.fail_after(PATIENCE):
            while not (compaction.asked.is_set() or operation.done.is_set()):
                await checkpoint()
        assert compaction.shown == (seen[1], [said.id for said in self.state.summary]), self._report(operation)
        compaction.seen = seen[0]
        self.compaction = compaction
        await self.look()

    async def end_compaction(self, how: Literal["text", "fail", "empty", "cancel"], batch: Batch = ()) -> None:
        """Let the summariser go on, and see what comes of it."""
        compaction = self.compaction
        assert compaction is not None
        seen, operation = compaction.seen, compaction.operation
        assert seen is not None
        self.story.append(f"the summariser: {how}")
        self.compaction = None
        error: dict[str, type[Exception]] = {"fail": ZeroDivisionError, "empty": CompactionError}
        summaries: dict[str, Callable[[], Any]] = {"text": lambda: batch, "fail": lambda: 1 // 0}
        compaction.summary = summaries.get(how, str)
        if how == "text":
            operation.apply = partial(model.compact, seen=seen, batch=batch)
            if self.state.turn is not None:
                self.compaction = compaction  # under way until it was committed
        elif how != "cancel":
            operation.apply = lambda state: [Path((state,), Answer(error=error[how]))]
        if how != "cancel":
            compaction.told.set()
        await self._step(operation, Disturbance(passes=0) if how == "cancel" else NONE, waits=how == "text")

    # Other things

    async def unload(self) -> None:
        """Unload the memory if it may be; whatever is read afterwards comes from the store."""
        unloaded = unload(self.runtime, "m")
        self.story.append(f"unload {unloaded}")
        if self.state.turn is not None or self.state.held:
            assert not unloaded
        await self.look()

    async def read(self, window: Window) -> None:
        """Look at it through a window, also within the turn."""
        self.story.append(f"read in {window}")
        with anyio.fail_after(PATIENCE):
            self._compare(self.state, await self.memory(window).messages(), window)
            turn = self.state.turn
            if turn is not None and model.undisturbed(turn, self.state):
                seen = await self.turns[turn.turn].messages(window=window)
                self._compare(self.state, seen, window, turn.added)

    async def look(self) -> None:
        """Resolve what may have happened by looking at it: all that is seen is what one of the states says."""
        with anyio.fail_after(PATIENCE):
            seen = await self.memory(ALL).messages()
            stats = await self.memory(ALL).stats()
        assert stats.version == seen.version or stats.version.n == seen.version.n == 0, self.story
        open_now = self._open_now()
        left: list[State] = []
        failures: list[str] = []
        for state in self.candidates:
            try:
                assert open_now == (state.turn and state.turn.turn), open_now
                assert stats.message_count == state.count, stats
                self._compare(state, seen, ALL)
                if state.turn is not None and model.undisturbed(state.turn, state):
                    with anyio.fail_after(PATIENCE):
                        within = await self.turns[state.turn.turn].messages(window=ALL)
                    self._compare(state, within, ALL, state.turn.added)
            except (AssertionError, TurnConflictError) as failure:
                failures.append(f"{failure}\n{state}")
            else:
                left.append(state)
        assert left, "\n".join([*self.story, "none of these states:", *failures])
        self.candidates = left
        self._bind(seen.version, left[0])
        if not self.versions or self.versions[-1] != seen.version:
            self.versions.append(seen.version)

    def _compare(self, state: State, seen: Messages, window: Window, added: Batch = ()) -> None:
        wanted, overflow = model.view(state, window, added)
        assert labels(seen) == wanted, (labels(seen), wanted, window)
        assert seen.overflow == overflow, window
        assert self._agrees(seen.version, state.stamp), (seen.version, state.stamp)
        known = {said.id: said.fields for said in (*state.log, *state.summary, *model.place(added, state.n + 1))}
        for message in seen:
            if not message.synthetic:
                assert message.to_dict() == known[str(message.id)], message.id

    def _agrees(self, version: Version, stamp: model.Stamp) -> bool:
        if version.n != stamp.n:
            return False
        if stamp.row is None or stamp.n == 0:
            return True
        if stamp.row in self._mids:
            return self._mids[stamp.row] == version.mid
        return version.mid > max(self._mids.values(), default=0)

    def _bind(self, version: Version, state: State) -> None:
        if state.row is not None and state.n:
            self._mids[state.row] = version.mid

    # How a step goes

    def _start(self, operation: Operation) -> None:
        self.story.append(operation.name)
        operation.started = True
        self._group.start_soon(operation.run)

    async def _wait(self, operation: Operation) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                await operation.done.wait()
        except TimeoutError:
            raise AssertionError(self._report(operation)) from None

    def _report(self, operation: Operation) -> str:
        return "\n".join([*self.story, repr(operation), *map(str, self.candidates)])

    async def _step(self, operation: Operation, disturbance: Disturbance, *, waits: bool = False) -> None:
        held = waits and self.state.turn is not None
        self.story.append(f"    {disturbance}" if disturbance is not NONE else "")
        for call, when, times in disturbance.faults:
            (self.store.fail_before if when == "before" else self.store.fail_after)(times, on=call)
        stalled = disturbance.stalled if not self.store.inline else None
        with self.store.stall(stalled) if stalled else contextlib.nullcontext() as stall:
            if not operation.started:
                self._start(operation)
            if stall is not None:
                with anyio.move_on_after(PATIENCE):
                    while not (stall.entered.is_set() or operation.done.is_set() or held):  # noqa: ASYNC110 (a thread's)
                        await anyio.sleep(0.001)
            for _ in range(disturbance.passes or 0):
                await checkpoint()
            if disturbance.cancels:
                if stall is not None and disturbance.stalled == "commit" and not self.shared:
                    operation.taken = stall.entered.is_set()
                operation.scope.cancel()
                await self._wait(operation)
        operation.disturbed = bool(disturbance.faults)
        if held and not disturbance.cancels:
            self.store.heal()
            with anyio.fail_after(PATIENCE):
                await self.memory(ALL).stats()  # in its turn: by now the request was met
            assert not operation.done.is_set(), self._report(operation)
            self._numbers += 1
            self._waiting[self._numbers] = operation
            self.candidates = [replace(state, held=(*state.held, self._numbers)) for state in self.candidates]
        else:
            await self._wait(operation)
            self._resolve(operation, held)
            await self._let_in(bool(disturbance.faults))
        self.store.heal()
        if self.shared and any(call == "commit" for call, _, _ in disturbance.faults):
            # A lease that was taken or not given back in the dark keeps everybody out until it runs out, and who is
            # cancelled then may have his way later.
            await anyio.sleep(1.5 * self._options["turn_lease"])
        await self.look()

    def _resolve(self, operation: Operation, held: bool = False) -> None:
        """Keep the states in which the caller would see what it saw."""
        self.story.append(f"  = {operation!r}")
        found: list[State] = []
        for state in self.candidates:
            if held:
                found.append(state)  # it was cancelled while it waited
                continue
            for path in operation.apply(state):
                found += [then for then in self._possible(operation, path) if then not in found]
        assert found, self._report(operation)
        open_now = self._open_now()
        if open_now in self.waiting_turns:
            open_now = None  # one that waited was let in already
        self.candidates = [state for state in found if (state.turn and state.turn.turn) == open_now]
        assert self.candidates, "\n".join([self._report(operation), f"open now: {open_now}; found:", *map(str, found)])

    def _open_now(self) -> int | None:
        """Say which turn is open."""
        numbers = [number for number, turn in enumerate(self.turns) if turn._session.open]
        assert len(numbers) <= 1, numbers
        return numbers[0] if numbers else None

    def _possible(self, operation: Operation, path: Path) -> Sequence[State]:
        error = operation.error
        lost = operation.disturbed and isinstance(error, StoreUnavailableError | OutcomeUnknownError)
        if operation.cancelled or lost:
            # A turn that was opened for a caller who left is over.
            opened = operation.turn is not None and path.answer.error is None
            states = path.states[:-1] if opened else path.states
            if operation.taken:
                return states[-1:]
            if isinstance(error, StoreUnavailableError) and not opened:
                return states[:1]
            return states
        wanted = path.answer
        if wanted.error is not None or error is not None:
            return path.states[-1:] if type(error) is wanted.error else ()
        result = operation.result
        if wanted.stamp is not None:
            fits = isinstance(result, Receipt) and result.count == wanted.count
            return path.states[-1:] if fits and self._agrees(result.version, wanted.stamp) else ()
        if isinstance(wanted.value, bool) and self.shared and path.states[0].n == 0:
            return path.states[-1:]  # there may be a row, for the lease of a turn
        return path.states[-1:] if result == wanted.value else ()

    async def _let_in(self, disturbed: bool) -> None:
        """After a turn ended those who waited go on, up to the next one that opens a turn."""
        while all(state.turn is None and state.held for state in self.candidates):
            number = self.state.held[0]
            operation = self._waiting.pop(number)
            operation.disturbed = disturbed
            await self._wait(operation)
            assert not operation.cancelled
            self.candidates = [replace(state, held=state.held[1:]) for state in self.candidates]
            if self.compaction is not None and operation is self.compaction.operation:
                self.compaction = None
            self._resolve(operation)


def _brief(batch: Batch) -> str:
    return "[" + ", ".join(f"{fields['role']} {fields.get('content')!r}" for fields in batch) + "]"


@contextlib.contextmanager
def no_error_logged() -> Iterator[None]:
    """Fail when the runtime logs that something in it went wrong."""
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping(logging.ERROR)
    logger = logging.getLogger("turnkeeper")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not records, [record.getMessage() for record in records]

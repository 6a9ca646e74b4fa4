"""What can be done to a memory outside of turns and within them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from statemachine import turns
from statemachine.driver import ALL, Driver, brief
from statemachine.operations import NONE, Disturbance, Operation
from statemachine.states import Applied, Batch, unchanged
from statemachine.writes import from_outside
from turnkeeper import ChatMemory, NestedTurnError, Receipt, Window
from turnkeeper.actor import Actor
from turnkeeper.names import memory_name
from turnkeeper.testing import unload


class Actions(Driver):
    """A driver that knows what there is to do."""

    async def write(
        self,
        name: str,
        call: Callable[[ChatMemory], Awaitable[Any]],
        apply: Applied,
        disturbance: Disturbance = NONE,
        window: Window = ALL,
    ) -> None:
        """Write from outside a turn: what waits for an open one."""
        memory = self.memory(window)
        await self.step(Operation(name, lambda: call(memory), from_outside(apply)), disturbance, waits=True)

    # Turns

    async def open(
        self,
        on_busy: str,
        each: bool = False,
        key: str | None = None,
        late: bool = False,
        disturbance: Disturbance = NONE,
    ) -> None:
        options: Any = {"on_busy": on_busy, "commit": "each" if each else "turn", "idempotency_key": key}
        if late:
            options["max_duration"] = 0
        turn = self.memory().turn(**options)
        number = len(self.turns)
        self.turns.append(turn)

        async def enter() -> None:
            await turn.__aenter__()
            if not late:
                with contextlib.suppress(NestedTurnError):
                    await self.memory().clear()
                    raise AssertionError("a write through the handle inside a turn was not refused")

        apply = partial(
            turns.open_turn, turn=number, on_busy=on_busy, each=each, key=key, alone=not self.shared, late=late
        )
        operation = Operation(f"open turn {number} {options}", enter, apply, opens=number)
        await self.step(operation, disturbance, waits=on_busy == "enqueue")

    async def turn_add(self, number: int, batch: Batch, disturbance: Disturbance = NONE) -> None:
        add = partial(self.turns[number].add, batch)
        apply = partial(turns.turn_add, turn=number, batch=batch)
        await self.step(Operation(f"turn {number} add {brief(batch)}", add, apply), disturbance)

    async def leave_turn(self, number: int, disturbance: Disturbance = NONE) -> None:
        turn = self.turns[number]

        async def leave() -> Receipt | None:
            before = turn.receipt
            await turn.__aexit__(None, None, None)
            return None if turn.receipt is before else turn.receipt

        await self.step(Operation(f"leave turn {number}", leave, partial(turns.leave_turn, turn=number)), disturbance)

    async def fail(self, number: int) -> None:
        """Leave a turn with an error."""
        leave = partial(self.turns[number].__aexit__, ValueError, ValueError("the body failed"), None)
        await self.step(Operation(f"turn {number} fails", leave, partial(turns.fail_turn, turn=number)))

    async def outlive(self, *, unnoticed: bool) -> None:
        """Let the open turn last longer than it may; while nobody waits for its end, it may go on `unnoticed`."""
        assert self.state.turn is not None
        number = self.state.turn.turn
        self.story.append(f"turn {number} lasts too long, unnoticed={unnoticed}")
        self.candidates = [turns.changed(state, late=True) for state in self.candidates]
        open_turn = self.turns[number]._session.turn()
        open_turn.deadline = open_turn.deadline - open_turn.max_duration - 1_000.0
        if unnoticed and not self.state.held:
            return
        actor = self._actor()
        assert actor is not None
        actor._rouse()  # as the timer does
        await self.memory().stats()
        assert not self.turns[number]._session.open
        self.candidates = [turns.end_turn(state, told=True) for state in self.candidates]
        await self.let_in()

    @property
    def known_turns(self) -> list[int]:
        """Turns that were opened, or refused: not those whose opening waits."""
        waiting = {operation.opens for operation in self._waiting.values()}
        return [number for number in range(len(self.turns)) if number not in waiting]

    # Other things

    async def unload(self, window: Window) -> None:
        """Unload the memory if it may be; what is read afterwards comes from the store: first what a window needs."""
        unloaded = unload(self.runtime, "m")
        self.story.append(f"unload {unloaded}")
        if self.kept_out or self.state.held:
            assert not unloaded
        await self.read(window)

    async def renew(self, disturbance: Disturbance) -> None:
        """Let it be time to renew the open turn's lease."""

        async def renew() -> None:
            if (actor := self._actor()) is not None:
                actor._renew_at = 0.0
                actor._rouse()
            await self.memory().stats()

        await self.step(Operation("renew the lease", renew, unchanged), disturbance)

    def _actor(self) -> Actor | None:
        return self.runtime._core._residency.find(memory_name("m", ""))

    async def read(self, window: Window) -> None:
        """Look at it through a window, also within the turn."""
        self.story.append(f"read in {window}")
        try:
            self.compare(self.state, await self.memory(window).messages(), window)
        except AssertionError as failure:
            raise AssertionError(self.report(failure)) from None
        await self.look_within(self.state, window)
        await self.look()

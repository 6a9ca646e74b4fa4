"""Turns: who is inside, and what becomes of what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statemachine.states import Answer, Batch, OpenTurn, Path, State, entry_of, place, refused
from turnkeeper import (
    IdempotencyMismatchError,
    TurnAlreadyCommittedError,
    TurnBusyError,
    TurnConflictError,
    TurnEndedError,
    TurnInterruptedError,
)


def end_turn(state: State, *, told: bool) -> State:
    if state.turn is None:
        return state
    return replace(state, turn=None, over=state.over | {state.turn.turn} if told else state.over)


def changed(state: State, **changes: Any) -> State:
    """Change the open turn, if there is one."""
    return state if state.turn is None else replace(state, turn=replace(state.turn, **changes))


def with_ended(state: State) -> list[State]:
    """Return a state, and what it is once somebody has noticed that its turn lasted too long."""
    late = state.turn is not None and state.turn.late
    return [state, end_turn(state, told=True)] if late else [state]


def undo(state: State, to: int) -> State:
    then = state.next("undo", said=tuple(said for said in state.said if entry_of(said) <= to))
    return then if then.system == state.system else then.note(then.system)


def open_turn(
    state: State, turn: int, on_busy: str, each: bool, key: str | None, alone: bool, late: bool
) -> list[Path]:
    """Open a turn that does not wait."""
    states = [state]
    running = state.turn
    takes_place = on_busy in ("interrupt", "rollback")
    error = None
    if (used := state.find(key)) is not None:
        error = TurnAlreadyCommittedError if used.content == ("turn",) else IdempotencyMismatchError
    if error is not None and takes_place:  # looked for before anybody is interrupted
        return refused(state, error)
    if running is not None and running.late:
        states.append(end_turn(state, told=True))
        running = None
    if running is not None and on_busy == "reject":
        return refused(state, TurnBusyError)
    if error is not None:
        return [Path(tuple(states), Answer(error=error))]
    if running is not None:
        assert takes_place
        states.append(end_turn(state, told=True))
        if on_busy == "rollback" and state.n != running.since.n:
            states.append(undo(states[-1], running.since.n))
    last = states[-1]
    states.append(replace(last, turn=OpenTurn(turn, last.stamp, last.stamp, each, key, alone=alone, late=late)))
    return [Path(tuple(states), Answer())]


def refusal(state: State, turn: int) -> type[Exception] | None:
    """Say why nothing can be done in a turn that was opened."""
    if state.turn is not None and state.turn.turn == turn:
        return None
    return TurnInterruptedError if turn in state.over else TurnEndedError


def _own(state: State) -> OpenTurn:
    assert state.turn is not None
    return state.turn


def undisturbed(turn: OpenTurn, state: State) -> bool:
    """Tell whether a turn finds the memory as it left it; one that is alone trusts in that."""
    return (turn.unsure and turn.alone) or (turn.at.n == state.n and turn.at.row in (None, state.row))


def turn_add(state: State, turn: int, batch: Batch) -> list[Path]:
    if (error := refusal(state, turn)) is not None:
        return refused(state, error)
    own = _own(state)
    if not own.each:
        then = replace(state, turn=replace(own, added=own.added + batch))
        return [Path((state, then), Answer())]
    if not undisturbed(own, state):
        return refused(state, TurnConflictError)
    committed = state.next("add", batch, said=state.said + place(batch, state.n + 1))
    then = replace(committed, turn=replace(own, at=committed.stamp))
    unknown = changed(state, unsure=True), changed(committed, unsure=True)
    return [Path((state, then), Answer(then.stamp, len(batch)), unknown)]


def leave_turn(state: State, turn: int) -> list[Path]:
    """Leave it normally."""
    if (error := refusal(state, turn)) is not None:
        return refused(state, error)
    own = _own(state)
    left = end_turn(state, told=False)
    if not own.added:
        return [Path((state, left), Answer())]
    if not undisturbed(own, state):
        return [Path((left,), Answer(error=TurnConflictError))]
    then = left.next("add", own.added, said=state.said + place(own.added, state.n + 1))
    then = then.use(own.key, ("turn",), len(own.added))
    return [Path((left, then), Answer(then.stamp, len(own.added)))]


def fail_turn(state: State, turn: int) -> list[Path]:
    """Leave it with an error."""
    ours = state.turn is not None and state.turn.turn == turn
    return [Path((end_turn(state, told=False) if ours else state,), Answer())]

"""What is written from outside a turn, where no turn is in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from statemachine.states import Answer, Applied, Batch, Path, State, Used, place, refused
from statemachine.turns import end_turn
from turnkeeper import ConflictError, IdempotencyMismatchError, Window, WindowOverflowError
from turnkeeper.windows import LimitedWindow
from windows.model import Said, accepts, current_system
from windows.saying import Fields, rules_of


def from_outside(apply: Applied) -> Applied:
    """Say what a write leads to that meets a turn which has lasted too long: it ends that first."""

    def applied(state: State) -> list[Path]:
        if state.turn is None:
            return apply(state)
        if not state.turn.late:
            return []
        return [replace(path, states=(state, *path.states)) for path in apply(end_turn(state, told=True))]

    return applied


def add(state: State, batch: Batch, window: Window, key: str | None) -> list[Path]:
    content = _content("add", batch)
    if (used := state.find(key)) is not None:
        return _replayed(state, used, content)
    if isinstance(window, LimitedWindow) and not window.whole_turns and key is None:
        batch = _without_equal_system(state, batch)
        if not batch:
            return [Path((state,), Answer(state.stamp, 0))]
    then = state.next("add", batch, said=state.said + place(batch, state.n + 1))
    then = then.use(key, content, len(batch))
    return _judged(state, then, state.log, batch, window)


def set_(state: State, batch: Batch, window: Window, key: str | None, fits: Callable[[State], bool]) -> list[Path]:
    content = _content("set", batch)
    if (used := state.find(key)) is not None:
        return _replayed(state, used, content)
    if not fits(state):
        return refused(state, ConflictError)
    then = state.next("set", batch, said=place(batch, state.n + 1), **_nothing(state, state.n + 1))
    then = then.use(key, content, len(batch))
    return _judged(state, then, [], batch, window)


def clear(state: State) -> list[Path]:
    if not state.count:
        return [Path((state,), Answer(state.stamp, 0))]
    then = state.next("clear", said=(), **_nothing(state, state.n + 1))
    return [Path((state, then), Answer(then.stamp, 0))]


def delete(state: State) -> list[Path]:
    if state.row is None and not state.revision:
        return [Path((state,), Answer(value=False))]
    then = replace(
        state, row=None, n=0, said=(), written=(*state.written, ("delete", ())), title=None, revision=0, noted=()
    )
    then = replace(then, **_nothing(state, 0))
    return [Path((state, then), Answer(value=True))]


def set_metadata(state: State, title: str, revision: int | None) -> list[Path]:
    if revision not in (None, state.revision):
        return refused(state, ConflictError)
    then = replace(state, title=title, revision=state.revision + 1)
    return [Path((state, then), Answer(value=(title, then.revision)))]


def _nothing(state: State, n: int) -> dict[str, Any]:
    """Say what is left of what stood before all messages once entry `n` replaces these."""
    return {"summary": (), "older": None, "epoch": state.epoch + 1, "base": n, "first": max(n, 1), "cut": 0}


def _content(op: str, batch: Batch) -> tuple[Any, ...]:
    return op, repr(batch)


def _replayed(state: State, used: Used, content: tuple[Any, ...]) -> list[Path]:
    if used.content != content:
        return refused(state, IdempotencyMismatchError)
    return [Path((state,), Answer(used.stamp, used.count))]


def _judged(state: State, then: State, log: Sequence[Said], batch: Batch, window: Window) -> list[Path]:
    taken = Path((state, then), Answer(then.stamp, len(batch)))
    if not isinstance(window, LimitedWindow) or window.on_overflow != "error":
        return [taken]
    rules = rules_of(window)
    rules = replace(rules, overhead=rules.overhead + (len(state.summary) if log else 0))
    fits = accepts(log, place(batch, state.n + 1), rules, window.limit("m"))
    if state.summary:
        return [taken, *refused(state, WindowOverflowError)]
    return [taken] if fits else refused(state, WindowOverflowError)


def _without_equal_system(state: State, batch: Batch) -> Batch:
    log = state.log
    at = current_system(log)
    current = None if at is None else log[at].fields
    kept: list[Fields] = []
    for fields in batch:
        if fields["role"] == "system":
            if fields == current:
                continue
            current = fields
        kept.append(fields)
    return tuple(kept)

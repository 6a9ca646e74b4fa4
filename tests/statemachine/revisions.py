"""The model of what takes back and changes what was said, and of pruning it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from statemachine.states import Answer, Batch, Path, State, entry_of, refused
from turnkeeper import InvalidMessageError, MessageNotFoundError
from windows.model import Said, answered, called, current_system, pair
from windows.saying import Fields


def undo(state: State, count: int) -> list[Path]:
    """Take back the last turns."""
    users = [index for index, said in enumerate(state.said) if said.role == "user"]
    return _without(state, "undo", state.said[users[-min(count, len(users))] :] if users else ())


def pop(state: State) -> list[Path]:
    (path,) = _without(state, "pop", state.said[-1:])
    return [replace(path, answer=Answer(value=path.answer.value))]


def remove(state: State, label: str) -> list[Path]:
    found = _find(state, label)
    if found is None:
        return refused(state, MessageNotFoundError)
    log, answers = state.log, pair(state.log)
    call = answers.get(log.index(found), log.index(found))
    return _without(state, "remove", [log[call], *(log[result] for result, its in answers.items() if its == call)])


def edit(state: State, label: str, fields: Fields) -> list[Path]:
    found = _find(state, label)
    if found is None:
        return refused(state, MessageNotFoundError)
    new = Said(label, fields)
    if found.fields["role"] != fields["role"] or _links(found) != _links(new):
        return refused(state, InvalidMessageError)
    if found.fields == fields:
        return [Path((state,), Answer(state.stamp, 0))]
    return _revised(state, "edit", {label: new}, (fields,), Answer(None, 1))


def _find(state: State, label: str) -> Said | None:
    return next((said for said in state.log if said.id == label), None)


def _links(said: Said) -> list[str]:
    return [answered(said)] if said.role == "tool" else called(said)


def _without(state: State, op: str, gone: tuple[Said, ...] | list[Said]) -> list[Path]:
    labels = [said.id for said in gone]
    if not gone:
        return [Path((state,), Answer(state.stamp, 0, labels))]
    return _revised(state, op, dict.fromkeys(labels), (), Answer(None, len(labels), labels))


def _revised(state: State, op: str, changes: Mapping[str, Said | None], batch: Batch, answer: Answer) -> list[Path]:
    log = [changes.get(said.id, said) for said in state.log]
    older = None if state.older is None else log[0]
    said = tuple(said for said in log[state.older is not None :] if said is not None)
    then = state.next(op, batch, said=said, older=older)
    if then.system != state.system:
        then = then.note(then.system)
    return [Path((state, then), replace(answer, stamp=then.stamp))]


def cut_of(state: State, counts: Mapping[int, int], limit: int) -> int:
    """Say before which entry all may go that is beyond so many messages; `counts`: what each entry has, by its number.

    The current turn stays, and what a compaction left.
    """
    fitting = [n for n in counts if sum(count for other, count in counts.items() if other >= n) <= limit]
    turn = next((entry_of(said) for said in reversed(state.said) if said.role == "user"), state.n)
    cut = min(turn, min(fitting, default=turn))
    return state.first if cut > state.first and (cut <= state.base or state.summary) else cut


def prune(state: State, cut: int) -> State:
    """Let go the entries before one, but for what the current system message takes."""
    if cut <= max(state.first, state.base):
        return state
    before = [said for said in state.log if said is state.older or entry_of(said) < cut]
    at = current_system(before)
    older = None if at is None else before[at]
    if older is not None and older != state.system and dict(state.noted).get(older.id, 0) < cut:
        older = None  # gone with its entry
    said = tuple(said for said in state.said if entry_of(said) >= cut)
    return replace(state, said=said, older=older, epoch=state.epoch + 1, base=cut, first=cut, cut=cut)


def fork(state: State) -> State:
    """Put the whole state into the first entry of another memory."""
    everything = tuple(Said(f"1.{index}", said.fields) for index, said in enumerate(state.everything))
    leads = state.older is not None
    rest = leads + len(state.summary)
    older = everything[0] if leads else None
    return State(0, 1, 1, everything[rest:], everything[leads:rest], older)

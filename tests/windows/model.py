"""What a window shows, from its definition: nothing is kept, all is computed anew from the whole log each time.

Shares no code with the library and is written for being read. A log is a list of `Said`; a view is a list of labels:
the message's id, or `lost <call>` for a result that was made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """A message in a log."""

    id: str
    fields: dict[str, Any]

    @property
    def role(self) -> str:
        role = str(self.fields["role"])
        return {"developer": "system", "function": "tool"}.get(role, role)


Cost = Callable[[dict[str, Any] | None], int]
"""What a message costs; None: a result that was made up."""


@dataclass(frozen=True)
class Rules:
    """A window, in the words of its definition; `cost` is None for one without a limit."""

    cost: Cost | None = None
    overhead: int = 0
    whole_turns: bool = False
    system_first: bool = False
    on_overflow: str = "evict"
    on_unanswered: str = "close"


@dataclass(frozen=True)
class Shown:
    """A view.

    Attributes:
        labels: what is visible.
        overflow: whether that exceeds the limit.
        total: what it costs.
        start: index in the log of the first message that was not evicted; its length when all were.
        room_for: index in the log from which on everything has to be known to tell so.
        answers: for each result that answers something, the index of its call.
    """

    labels: list[str]
    overflow: bool
    total: int
    start: int
    room_for: int
    answers: dict[int, int]


def show(log: Sequence[Said], rules: Rules, limit: int | None) -> Shown:
    """Compute a view: the fewest of the oldest units are evicted that have to be, so that the rest fits."""
    answers = pair(log)
    units = [index for index, said in enumerate(log) if said.role != "tool"]
    shown = [_rendered(log, unit, answers, unit == units[-1], rules.on_unanswered) for unit in units]
    if rules.cost is None:
        return Shown([label for labels in shown for label in labels], False, 0, 0, 0, answers)

    system = current_system(log)
    fields = {said.id: said.fields for said in log}
    costs = [
        0 if log[unit].role == "system" else sum(rules.cost(fields.get(label)) for label in labels)
        for unit, labels in zip(units, shown, strict=True)
    ]
    fixed = rules.overhead + (0 if system is None else rules.cost(log[system].fields))
    starts = _allowed_starts(log, units, rules)
    start = next((start for start in starts if fixed + sum(costs[start:]) <= _known(limit)), starts[-1])
    total = fixed + sum(costs[start:])

    labels: list[str] = []
    for unit, its_labels in list(zip(units, shown, strict=True))[start:]:
        if log[unit].role != "system" or (unit == system and not rules.system_first):
            labels += its_labels
    if system is not None and log[system].id not in labels:
        labels.insert(0, log[system].id)
    overflow = total > _known(limit) and labels != []  # an empty list fits any limit
    earlier = max((known for known in starts if known < start), default=None)
    known_from = 0 if earlier is None else units[earlier]
    return Shown(labels, overflow, total, units[start] if start < len(units) else len(log), known_from, answers)


def accepts(log: Sequence[Said], batch: Sequence[Said], rules: Rules, limit: int) -> bool:
    """Tell whether a window with `on_overflow="error"` takes these messages, judged one by one as if each came alone.

    Whole turns take what comes before the first user message, though it is not shown.
    """
    so_far = list(log)
    for said in batch:
        so_far.append(said)
        view = show(so_far, rules, limit)
        index = len(so_far) - 1
        if said.role == "tool" and view.answers.get(index, -1) < view.start:
            begun = any(one.role == "user" for one in so_far)
            if begun or not rules.whole_turns or index not in view.answers:
                return False  # its call is not shown, or it is nobody's result
        if rules.whole_turns and view.overflow:
            return False
        if not rules.whole_turns and said.role not in ("system", "tool") and index < view.start:
            return False
    return True


def pair(log: Sequence[Said]) -> dict[int, int]:
    """Give each result the latest earlier call of its id that has none yet."""
    answers: dict[int, int] = {}
    for index, said in enumerate(log):
        if said.role != "tool":
            continue
        for earlier in reversed(range(index)):
            had = [answered(log[result]) for result, call in answers.items() if call == earlier]
            if called(log[earlier]).count(answered(said)) > had.count(answered(said)):
                answers[index] = earlier
                break
    return answers


def called(said: Said) -> list[str]:
    """Return the calls of an assistant message, also the old ones of functions, which have a name and no id."""
    if said.role != "assistant":
        return []
    calls = [call["id"] for call in said.fields.get("tool_calls") or []]
    function = said.fields.get("function_call")
    return calls if function is None else [*calls, "function " + function["name"]]


def answered(said: Said) -> str:
    """Return the call that a result is for."""
    if said.fields["role"] == "function":
        return "function " + str(said.fields["name"])
    return str(said.fields["tool_call_id"])


def current_system(log: Sequence[Said]) -> int | None:
    """Return the index of the current system message: the last that said something new."""
    current = None
    for index, said in enumerate(log):
        if said.role == "system" and (current is None or said.fields != log[current].fields):
            current = index
    return current


def _rendered(log: Sequence[Said], unit: int, answers: dict[int, int], current: bool, on_unanswered: str) -> list[str]:
    results = [result for result in range(len(log)) if answers.get(result) == unit]
    lost = called(log[unit])
    for result in results:
        lost.remove(answered(log[result]))
    if current or on_unanswered == "keep":
        lost_labels = []
    elif lost and on_unanswered == "drop":
        return []
    else:
        lost_labels = [f"lost {link}" for link in lost]
    return [log[unit].id, *(log[result].id for result in results), *lost_labels]


def _allowed_starts(log: Sequence[Said], units: list[int], rules: Rules) -> list[int]:
    """Return where a view may begin, as places among the units."""
    users = [place for place, unit in enumerate(units) if log[unit].role == "user"]
    if rules.whole_turns:
        return users or [len(units)]
    if rules.on_overflow == "keep":
        return list(range((users[-1] if users else max(len(units) - 1, 0)) + 1))
    return list(range(len(units) + 1))


def _known(limit: int | None) -> int:
    assert limit is not None
    return limit

"""What a window shows of a memory."""

from __future__ import annotations

from dataclasses import replace

from statemachine.states import Batch, State, place
from turnkeeper import TurnWindow, Window
from windows.model import Said, current_system, show
from windows.saying import rules_of


def view(state: State, window: Window, added: Batch = ()) -> tuple[list[str], bool]:
    """What a window shows, as labels, with what a turn has added; and whether that exceeds its limit."""
    log, rules = visible([*state.log, *place(added, state.n + 1)], state.older), rules_of(window)
    if not (isinstance(window, TurnWindow) and window.max_turns is not None):
        rules = replace(rules, overhead=rules.overhead + len(state.summary))
    limit = window.limit("m")
    shown = show(log, rules, limit)
    if not state.summary:
        return shown.labels, shown.overflow
    system = current_system(log)
    older = system is not None and log[system] is state.older
    in_place = not older and (
        limit is None or (not rules.system_first and system is not None and system >= shown.start)
    )
    first = 0 if system is None or in_place else 1
    overflow = limit is not None and shown.total > limit
    return [*shown.labels[:first], *(said.id for said in state.summary), *shown.labels[first:]], overflow


def visible(log: list[Said], older: Said | None) -> list[Said]:
    """Leave out the system message that stood before all others, once there is another one."""
    return log[1:] if older is not None and current_system(log) != 0 else log

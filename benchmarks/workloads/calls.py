"""Function calls a request: no noise, so the first thing to look at, and what the gate compares exactly.

Every resumption of a coroutine counts as a call, as `sys.setprofile` has it. Where the loop is written in C (uvloop),
what it does is not seen.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any, Final

import measure
from measure import Result
from workloads import busy, cold
from workloads.cold import ADD, PAIR, let_park
from workloads.subjects import ACTORS, BARE, MESSAGE, SUBJECTS, Subject

__all__ = ["CASES", "count", "run"]

_VISITS: Final = [0] * 40
_MEMORIES: Final = 40
_CLIENTS: Final = 40
_REQUESTS: Final = 10

Calls = Counter[tuple[str, str]]
"""Calls by ("py" or "C", function)."""


def run(backend: str) -> list[Result]:
    """Count each case."""
    results = []
    for case, counting in CASES.items():
        subjects = ACTORS if case == "cold add, without a task" else SUBJECTS
        counted = {name: count(backend, counting, subject) for name, subject in subjects.items()}
        for kind in ("py", "C"):
            samples = {name: [_total(calls, kind)] for name, calls in counted.items()}
            results.append(Result("calls", f"{case}: {kind}", backend, f"{kind} calls", samples, BARE))
    return results


def count(backend: str, counting: Callable[[Subject], Awaitable[Calls]], subject: Subject) -> Calls:
    """Count one case; values are in thousandths of a call a request."""
    if backend == "trio":  # it runs ready tasks in one order or the other by chance: let it be the same chance
        importlib.import_module("trio._core._run")._r.seed(1)
    return measure.run(backend, counting, subject)


def _total(calls: Calls, kind: str) -> float:
    return round(sum(value for (its_kind, _), value in calls.items() if its_kind == kind) / 1000, 1)


async def _parked(subject: Subject, *, what: str) -> Calls:
    async with subject(1) as conversations:
        for add, read in zip(conversations.adds, conversations.reads, strict=True):
            await add(MESSAGE)
            await read()
        await let_park()
        with _Profile() as requests:
            if what == ADD:
                await cold.visit(conversations.adds, _VISITS)
            else:
                await cold.visit_twice(conversations.adds, conversations.reads, _VISITS)
        with _Profile() as idle:
            await cold.visit_nobody(_VISITS)
    return _per_request(requests, idle, len(_VISITS))


async def _without_task(subject: Subject) -> Calls:
    async with subject(_MEMORIES) as conversations:
        for add in conversations.adds:
            await add(MESSAGE)
        await let_park()
        conversations.end_tasks()
        await let_park()
        with _Profile() as requests:
            await cold.visit(conversations.adds, range(_MEMORIES))
        with _Profile() as idle:
            await cold.visit_nobody(range(_MEMORIES))
    return _per_request(requests, idle, _MEMORIES)


async def _busy(subject: Subject, *, actors: int) -> Calls:
    async with subject(actors) as conversations:
        for add in conversations.adds:
            await add(MESSAGE)
        await let_park()
        all_of_them = list(zip(conversations.adds, conversations.reads, strict=True))
        with _Profile() as requests:
            await busy.start(busy.adding, all_of_them, _CLIENTS, _REQUESTS)
        with _Profile() as idle:
            await busy.start(busy.adding, all_of_them, _CLIENTS, 0)
    return _per_request(requests, idle, _CLIENTS * _REQUESTS)


CASES: Final[dict[str, Callable[[Subject], Awaitable[Calls]]]] = {
    "cold add": partial(_parked, what=ADD),
    "cold add + messages": partial(_parked, what=PAIR),
    "cold add, without a task": _without_task,
    "busy add, 1 actor": partial(_busy, actors=1),
    "busy add, an actor a client": partial(_busy, actors=_CLIENTS),
}


class _Profile:
    """Counts the calls of this thread while it is entered."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self.calls

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            code = frame.f_code
            module = frame.f_globals.get("__name__", "?")
            self.calls["py", f"{module}.{getattr(code, 'co_qualname', code.co_name)}"] += 1
        elif event == "c_call":
            self.calls["C", f"{function.__module__ or type(function.__self__).__name__}.{function.__qualname__}"] += 1


def _per_request(requests: Calls, idle: Calls, number: int) -> Calls:
    requests.subtract(idle)
    return Counter({name: round(calls * 1000 / number) for name, calls in requests.items() if calls})

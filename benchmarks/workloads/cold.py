"""One request to an idle conversation: what an agent server does nearly all the time.

Two kinds of idle: the actor is parked at its mailbox (it lingers), or its task has ended and only its state is in RAM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from anyio.lowlevel import checkpoint

import measure
from floors import Add, Read
from measure import Result, Spent, Stopwatch, Target
from workloads.subjects import ACTORS, BARE, MESSAGE, OURS, SUBJECTS, Subject

__all__ = ["ADD", "PAIR", "Visits", "parked", "run", "without_task"]

ADD: Final = "add"
PAIR: Final = "add + messages"
LIMITS: Final = {ADD: 1.5, PAIR: 1.6}

_EACH: Final = 40
"""Requests to one actor in a row, then the next: a conversation's length stays that of a conversation."""

Visits = Sequence[int]


def run(backend: str, *, rounds: int, quick: bool, subjects: Mapping[str, Subject] = SUBJECTS) -> list[Result]:
    """Measure both kinds of idle."""
    one = [index for index in range(4 if quick else 12) for _ in range(_EACH)]
    many = list(range(1000)) * (1 if quick else 3)
    results = []
    for what in (ADD, PAIR):
        for case, visits in (("1 actor", one), ("1 000 actors", many)):
            samples = measure.interleaved(
                {
                    name: partial(measure.run, backend, parked, subject, what, visits)
                    for name, subject in subjects.items()
                },
                rounds,
            )
            results.append(_result("cold, parked", f"{what}, {case}", backend, samples, LIMITS[what]))
    samples = measure.interleaved(
        {
            name: partial(measure.run, backend, without_task, subject, 1000, 1 if quick else 3)
            for name, subject in ACTORS.items()
        },
        rounds,
    )
    results.append(_result("cold, without a task", "add, 1 000 memories", backend, samples, LIMITS[ADD]))
    return results


async def parked(open_subject: Subject, what: str, visits: Visits) -> Spent:
    """Return seconds a request, each one to an actor that is parked by then."""
    async with open_subject(max(visits) + 1) as conversations:
        for add, read in zip(conversations.adds, conversations.reads, strict=True):
            await add(MESSAGE)
            await read()
        await let_park()
        watch = Stopwatch()
        if what == ADD:
            await visit(conversations.adds, visits)
        else:
            await visit_twice(conversations.adds, conversations.reads, visits)
        spent = watch.spent()
        watch = Stopwatch()
        await visit_nobody(visits)
        idle = watch.spent()
    return Spent((spent.cpu - idle.cpu) / len(visits), (spent.wall - idle.wall) / len(visits))


async def without_task(open_subject: Subject, count: int, passes: int) -> Spent:
    """Return seconds a request that has to start its actor's task; the task's end is not in it."""
    cpu = wall = 0.0
    async with open_subject(count) as conversations:
        for add in conversations.adds:
            await add(MESSAGE)
        for _ in range(passes):
            await let_park()
            conversations.end_tasks()
            await let_park()
            watch = Stopwatch()
            await visit(conversations.adds, range(count))
            spent = watch.spent()
            watch = Stopwatch()
            await visit_nobody(range(count))
            idle = watch.spent()
            cpu += spent.cpu - idle.cpu
            wall += spent.wall - idle.wall
    return Spent(cpu / count / passes, wall / count / passes)


async def let_park() -> None:
    """Give every task the steps it needs to come to rest."""
    for _ in range(10):
        await checkpoint()


async def visit(adds: Sequence[Add], visits: Visits) -> None:
    """Add to each, with time to park in between."""
    for index in visits:
        await adds[index](MESSAGE)
        await checkpoint()
        await checkpoint()
        await checkpoint()


async def visit_twice(adds: Sequence[Add], reads: Sequence[Read], visits: Visits) -> None:
    """Add to each and read it at once, as an agent does before it asks the model; then time to park."""
    for index in visits:
        await adds[index](MESSAGE)
        await reads[index]()
        await checkpoint()
        await checkpoint()
        await checkpoint()


async def visit_nobody(visits: Visits) -> None:
    """The same loop without the requests: what is subtracted."""
    for _ in visits:
        await checkpoint()
        await checkpoint()
        await checkpoint()


def _result(question: str, case: str, backend: str, samples: dict[str, list[Spent]], limit: float) -> Result:
    return Result(
        question,
        case,
        backend,
        "µs CPU",
        {name: [spent.cpu * 1e6 for spent in values] for name, values in samples.items()},
        BARE,
        (Target(OURS, BARE, limit),),
        {name: [spent.wall * 1e6 for spent in values] for name, values in samples.items()},
    )

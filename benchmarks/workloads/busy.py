"""Closed-loop clients: the next request follows the reply. Flatters every mailbox, because a busy actor never parks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio

import measure
from floors import Add, Read
from measure import Result, Spent, Stopwatch, Target
from workloads.cold import ADD, LIMITS, PAIR, let_park
from workloads.subjects import BARE, MESSAGE, OURS, SUBJECTS, Subject

__all__ = ["adding", "adding_and_reading", "clients", "run", "start"]

_CASES: Final = (("1 actor, 100 clients", 1, 100), ("1 000 actors, 1 000 clients", 1000, 1000))
_REQUESTS: Final = 15
_PAIRS: Final = 5
"""Fewer pairs than adds: each reads all that was said so far, by everybody."""

Client = Callable[[Add, Read, int], Coroutine[Any, Any, None]]


def run(backend: str, *, rounds: int, quick: bool, subjects: Mapping[str, Subject] = SUBJECTS) -> list[Result]:
    """Measure few and many conversations under load."""
    results = []
    for what in (ADD, PAIR):
        for case, actors, count in _CASES:
            samples = measure.interleaved(
                {
                    name: partial(measure.run, backend, clients, subject, what, actors, count, 1 if quick else 3)
                    for name, subject in subjects.items()
                },
                rounds,
            )
            results.append(
                Result(
                    "busy",
                    f"{what}, {case}",
                    backend,
                    "µs CPU",
                    {name: [spent.cpu * 1e6 for spent in values] for name, values in samples.items()},
                    BARE,
                    (Target(OURS, BARE, LIMITS[what]),),
                    {name: [spent.wall * 1e6 for spent in values] for name, values in samples.items()},
                )
            )
    return results


async def clients(open_subject: Subject, what: str, actors: int, count: int, times: int) -> Spent:
    """Return seconds a request (or pair); what starting the clients costs is subtracted."""
    requests = _REQUESTS if what == ADD else _PAIRS
    client = adding if what == ADD else adding_and_reading
    cpu = wall = 0.0
    for _ in range(times):
        async with open_subject(actors) as conversations:
            for add in conversations.adds:
                await add(MESSAGE)
            await let_park()
            all_of_them = list(zip(conversations.adds, conversations.reads, strict=True))
            watch = Stopwatch()
            await start(client, all_of_them, count, requests)
            spent = watch.spent()
            watch = Stopwatch()
            await start(client, all_of_them, count, 0)
            idle = watch.spent()
        cpu += spent.cpu - idle.cpu
        wall += spent.wall - idle.wall
    return Spent(cpu / count / requests / times, wall / count / requests / times)


async def start(client: Client, conversations: Sequence[tuple[Add, Read]], count: int, requests: int) -> None:
    """Run clients, spread over the conversations, until each has made its requests."""
    async with anyio.create_task_group() as group:
        for index in range(count):
            group.start_soon(client, *conversations[index % len(conversations)], requests)


async def adding(add: Add, _read: Read, requests: int) -> None:
    """Add."""
    for _ in range(requests):
        await add(MESSAGE)


async def adding_and_reading(add: Add, read: Read, requests: int) -> None:
    """Add, and read at once."""
    for _ in range(requests):
        await add(MESSAGE)
        await read()

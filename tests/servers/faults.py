"""Operations that meet faults, and whether what their callers were told is true."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import anyio
import pytest
from anyio import to_thread

import turnkeeper
from processes.crowd import digest
from processes.judging import Record, judge, read_store
from support.proxy import WHERE, Proxy
from turnkeeper.stores import store_from_url
from turnkeeper.testing import History

__all__ = [
    "BOUND",
    "LOOPS",
    "Points",
    "Told",
    "at_every_point",
    "in_thread",
    "judge_histories",
    "texts_of",
    "told",
    "user",
]

BOUND = 40.0
"""Seconds in which everybody must have an answer, on the busiest of machines."""

LOOPS = [pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("trio", {}), id="trio")]

Told: TypeAlias = Literal["ok", "failed", "unknown"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def in_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call what blocks."""
    return await to_thread.run_sync(functools.partial(function, *arguments, **options))


async def told(operate: Callable[[], Awaitable[object]]) -> Told:
    """Return what a caller is told of its write."""
    try:
        with anyio.fail_after(BOUND):
            await operate()
    except turnkeeper.OutcomeUnknownError:
        return "unknown"
    except turnkeeper.StoreUnavailableError:
        return "failed"
    return "ok"


@dataclass
class Points:
    """What became of an operation that was cut everywhere.

    Attributes:
        told: by the name of the point, which is what the operation wrote.
        struck: how many cuts were made: where something else travels as well, the last points may lie behind the end.
    """

    told: dict[str, Told] = field(default_factory=dict)
    struck: int = 0

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.told.values())


async def at_every_point(
    proxy: Proxy, operate: Callable[[str], Awaitable[object]], *, everything: bool = False
) -> Points:
    """Run an operation once to count its transfers, then once for each of them and each place in it, cut there.

    Args:
        operate: gets a name of the point, other each time.
        everything: cut all connections, and let nobody in again before somebody was refused.
    """
    proxy.count_anew()
    await operate("uncut")
    transfers = proxy.transfers
    assert transfers > 0, "nothing passes through the proxy"
    points = Points()
    for transfer, where in itertools.product(range(transfers), WHERE):
        name = f"{transfer} {where}"
        proxy.cut_at(transfer, where, everything=everything)
        over = threading.Event()
        async with anyio.create_task_group() as tasks:
            if everything:
                tasks.start_soon(in_thread, _admit_again, proxy, over)
            points.told[name] = await told(functools.partial(operate, name))
            over.set()
            proxy.refused.set()
        proxy.forget_cut()
        proxy.admit()
        points.struck += proxy.struck.is_set()
    return points


def _admit_again(proxy: Proxy, over: threading.Event) -> None:
    """Let connections through after one was refused, or when it is over."""
    while not proxy.struck.wait(0.01):
        if over.is_set():
            return
    proxy.refused.wait(BOUND)
    proxy.admit()


def texts_of(url: str) -> dict[str, list[list[str]]]:
    """Read what is stored past the runtime and the proxy: the texts of each entry of each memory."""
    return read_store(store_from_url(url))


def judge_histories(histories: Mapping[str, History], url: str) -> int:
    """Hold what the callers saw of each memory against what is stored, where they only added and read."""
    records: dict[str, Record] = {}
    for memory, history in histories.items():
        record = records[memory] = Record()
        for call in history.calls:
            numbered = replace(call, version=None if call.version is None else call.version.n)
            if call.op != "messages":
                record.adds.append(numbered)
            elif call.outcome == "ok":
                shown = tuple(str(token) for token in call.result or ())
                record.reads.append((numbered, len(shown), digest(shown)))
    return judge(records, texts_of(url))

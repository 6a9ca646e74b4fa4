"""One run: prepare the subject, let the clients loose, take the time, look at what was kept."""

from __future__ import annotations

import gc
import os
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec

from turnkeeper.bench.checking import check_conversation
from turnkeeper.bench.clients import Client, Ledger
from turnkeeper.bench.spec import Checked, Result, Spec
from turnkeeper.bench.subjects import Adapter
from turnkeeper.bench.workloads import WORKLOADS, Workload
from turnkeeper.cli.latency import Latencies
from turnkeeper.cli.loops import run_on

__all__ = ["check_stored", "run_workload"]

_CURVE: Final = (1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.99)
"""Percents of the latencies that are told."""

_GRACE: Final = 60.0
"""Seconds after the end in which operations that were begun may finish; then they are cancelled."""


def _resident() -> int:
    """Return this process's resident set in bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Clock:
    """The measured part of a run: operations that begin and end in it count."""

    def __init__(self, spec: Spec) -> None:
        self.begin = time.perf_counter() + spec.warm_up
        self.end = self.begin + spec.seconds
        self.operations = 0
        self.latencies = Latencies()
        self.cpu_at_begin = time.process_time()
        self.last = self.begin
        self.bytes_per_conversation: float | None = None
        self.pause: float | None = None

    def weigh(self, before: int, spec: Spec) -> None:
        """Take the weight of what is in RAM now, and the time in which all of it is looked at."""
        began = time.perf_counter()
        gc.collect()
        self.pause = time.perf_counter() - began
        if before:
            self.bytes_per_conversation = (_resident() - before) / spec.conversations - 2 * spec.size

    def over(self) -> bool:
        return time.perf_counter() >= self.end

    def count(self, began: float) -> None:
        now = time.perf_counter()
        if began < self.begin:
            self.cpu_at_begin = time.process_time()  # the warm-up's last one says where measuring begins
        elif now <= self.end or self.end == self.begin:
            self.operations += 1
            self.latencies.add(now - began)
            self.last = now


def run_workload(spec: Spec, adapter: Adapter) -> tuple[Result, Ledger]:
    """Do one run in this process.

    Returns:
        The result, not checked unless the subject can only be read here, and what was sent.
    """
    ledger = Ledger()
    if WORKLOADS[spec.workload].loop in ("once", "all"):  # a fixed amount, however long it takes
        spec = msgspec.structs.replace(spec, seconds=0.0, warm_up=0.0)
    workload = WORKLOADS[spec.workload](spec, ledger)
    result = Result(
        spec=spec,
        title=adapter.about.title,
        durability=adapter.about.durability,
        consistency=adapter.about.consistency,
        versions={name: _version(name) for name in adapter.about.distributions},
    )
    if workload.threads:
        _run_threads(spec, adapter, workload, ledger, result)
    else:
        run_on(spec.backend, _run_tasks, spec, adapter, workload, ledger, result)
    result.errors = dict(ledger.errors)
    result.cancelled = ledger.cancelled
    return result, ledger


async def _run_tasks(spec: Spec, adapter: Adapter, workload: Workload, ledger: Ledger, result: Result) -> None:
    place = Path(spec.place)
    async with adapter.opened(place, window=workload.window) as subject:
        await workload.prepare(subject)
        if not workload.reopen:
            clock = await _let_loose(spec, workload, subject, ledger)
            await _finish(adapter, workload, subject, ledger, clock, result)
    if workload.reopen:
        async with adapter.opened(place, window=workload.window) as subject:
            clock = await _let_loose(spec, workload, subject, ledger)
            await _finish(adapter, workload, subject, ledger, clock, result)


async def _finish(
    adapter: Adapter, workload: Workload, subject: Any, ledger: Ledger, clock: _Clock, result: Result
) -> None:
    _fill(result, clock)
    if not adapter.about.shared and (workload.window is None or hasattr(subject, "read_all")):
        result.checked = await _check(subject, workload, ledger)


async def _let_loose(spec: Spec, workload: Workload, subject: Any, ledger: Ledger) -> _Clock:
    clients = [Client(number, subject, ledger, seed=spec.seed, size=spec.size) for number in range(spec.clients)]
    run = {"closed": _closed, "open": _open, "once": _once, "all": _all}[workload.loop]
    gc.collect()
    before = _resident()
    clock = _Clock(spec)
    with anyio.move_on_after(spec.warm_up + spec.seconds + _GRACE):
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(run, spec, workload, client, ledger, clock)
    if workload.weighs:
        clock.weigh(before, spec)
    return clock


async def _closed(spec: Spec, workload: Workload, client: Client, ledger: Ledger, clock: _Clock) -> None:
    while not clock.over():
        if await _one(workload, client, ledger, clock, time.perf_counter()) is False:
            return


async def _open(spec: Spec, workload: Workload, client: Client, ledger: Ledger, clock: _Clock) -> None:
    interval = spec.clients / spec.rate
    due = clock.begin - spec.warm_up + interval * client.number / spec.clients
    while due < clock.end:
        await anyio.sleep(max(due - time.perf_counter(), 0))
        await _one(workload, client, ledger, clock, due)  # a late one counts from when it was due
        due += interval


async def _once(spec: Spec, workload: Workload, client: Client, ledger: Ledger, clock: _Clock) -> None:
    await _one(workload, client, ledger, clock, time.perf_counter())


async def _all(spec: Spec, workload: Workload, client: Client, ledger: Ledger, clock: _Clock) -> None:
    while await _one(workload, client, ledger, clock, time.perf_counter()) is not False:
        pass


async def _one(workload: Workload, client: Client, ledger: Ledger, clock: _Clock, began: float) -> bool | None:
    try:
        more = await workload.step(client)
    except Exception as error:
        ledger.errors[type(error).__name__] += 1
        await anyio.lowlevel.checkpoint()  # a subject that refuses everything at once must not hold the loop
        return None
    if more is not False:
        clock.count(began)
    return more


def _run_threads(spec: Spec, adapter: Adapter, workload: Workload, ledger: Ledger, result: Result) -> None:
    assert adapter.opened_blocking is not None
    with adapter.opened_blocking(Path(spec.place), window=workload.window, backend=spec.backend) as subject:
        clients = [Client(number, subject, ledger, seed=spec.seed, size=spec.size) for number in range(spec.clients)]
        clock = _Clock(spec)
        lock = threading.Lock()

        def loop(client: Client) -> None:
            while not clock.over():
                began = time.perf_counter()
                try:
                    workload.step_blocking(client)
                except Exception as error:
                    with lock:
                        ledger.errors[type(error).__name__] += 1
                    continue
                with lock:
                    clock.count(began)

        threads = [threading.Thread(target=loop, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(spec.warm_up + spec.seconds + _GRACE)
        _fill(result, clock)
        if not adapter.about.shared and workload.window is None:
            result.checked = Checked(invalid=ledger.invalid)
            for conversation in ledger.sent:
                texts = [str(message.get("content") or "") for message in subject.read(conversation)]
                _add(result.checked, check_conversation(ledger.sent[conversation], texts))


def _fill(result: Result, clock: _Clock) -> None:
    result.cpu = time.process_time() - clock.cpu_at_begin
    result.operations = clock.operations
    fixed = result.spec.seconds == 0
    result.seconds = (clock.last - clock.begin) if fixed else result.spec.seconds
    result.latencies = {f"{percent:g}": clock.latencies.percentile(percent) for percent in _CURVE}
    result.longest = clock.latencies.longest
    result.bytes_per_conversation, result.pause = clock.bytes_per_conversation, clock.pause


async def check_stored(spec: Spec, adapter: Adapter, ledger: Ledger) -> Checked:
    """Open the subject anew and compare all of its conversations with what was sent."""
    workload = WORKLOADS[spec.workload](spec, ledger)
    async with adapter.opened(Path(spec.place), window=None) as subject:
        return await _check(subject, workload, ledger)


async def _check(subject: Any, workload: Workload, ledger: Ledger) -> Checked:
    found = Checked(invalid=ledger.invalid)
    read = getattr(subject, "read_all", subject.read)
    for conversation, sent in ledger.sent.items():
        texts = [str(message.get("content") or "") for message in await read(conversation)]
        _add(found, check_conversation(sent, texts, workload.before()))
    return found


def _add(to: Checked, more: Checked) -> None:
    for field in Checked.__struct_fields__:
        setattr(to, field, getattr(to, field) + getattr(more, field))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

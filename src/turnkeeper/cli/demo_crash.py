"""The part of `turnkeeper demo` that kills a process while it writes, and counts what is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from turnkeeper.cli.claims import require
from turnkeeper.cli.demo_writer import BATCH, SENDERS, part, sender_id
from turnkeeper.cli.loops import run_on
from turnkeeper.cli.processes import child_command, child_environment
from turnkeeper.opening import open_runtime
from turnkeeper.stores import SQLiteStore

__all__ = ["survive_kills"]

_KILLS: Final = 3
_ACKNOWLEDGED_BEFORE_KILL: Final = 60
_PATIENCE: Final = 20.0
"""Seconds until a writer that doesn't get going counts as broken."""


class _Killed(NamedTuple):
    """What a writer had said when it died: batches begun and acknowledged, by sender."""

    tried: Counter[int]
    acknowledged: Counter[int]


def survive_kills(directory: Path) -> str:
    """Kill a writer three times on one file; every acknowledged batch must be there, and each one whole."""
    path = directory / "killed.db"
    tried: Counter[int] = Counter()
    acknowledged: Counter[int] = Counter()
    cut_off = 0
    for _ in range(_KILLS):
        killed = _kill_while_writing(path)
        tried += killed.tried
        acknowledged += killed.acknowledged
        cut_off += (killed.tried - killed.acknowledged).total()
        _check_integrity(path)
    require(cut_off > 0, "no batch was on its way when the writer was killed")
    found = run_on("asyncio", _count_batches, path)
    for sender in range(SENDERS):
        require(found[sender] >= acknowledged[sender], "an acknowledged batch is missing")
        require(found[sender] <= tried[sender], "there are more batches than were sent")
    landed = found.total() - acknowledged.total()
    return (
        f"killed {_KILLS} times with SIGKILL: all {acknowledged.total()} acknowledged batches of {BATCH} messages are "
        f"there, whole and in order; of {cut_off} cut off on their way {landed} landed whole, none in part; "
        "SQLite's integrity check is ok"
    )


def _kill_while_writing(path: Path) -> _Killed:
    writer = subprocess.Popen(
        child_command("turnkeeper.cli.demo_writer", str(path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )
    assert writer.stdout is not None
    said = b""
    try:
        deadline = time.monotonic() + _PATIENCE
        while said.count(b"ack ") < _ACKNOWLEDGED_BEFORE_KILL and time.monotonic() < deadline:
            if select.select([writer.stdout], [], [], 0.1)[0]:
                chunk = os.read(writer.stdout.fileno(), 65536)
                require(bool(chunk), "the writer ended by itself")
                said += chunk
        require(said.count(b"ack ") >= _ACKNOWLEDGED_BEFORE_KILL, "the writer did not get going")
    finally:
        writer.kill()
        said += writer.stdout.read()  # what it said before it died counts
        status = writer.wait()
        writer.stdout.close()
    require(status == -signal.SIGKILL, "the writer was not killed but ended")
    words = [line.split() for line in said.decode("ascii").splitlines()]
    return _Killed(
        Counter(int(line[1]) for line in words if line[0] == "try"),
        Counter(int(line[1]) for line in words if line[0] == "ack"),
    )


def _check_integrity(path: Path) -> None:
    store = SQLiteStore(path)
    try:
        store.open(durability="full")
        require(store.integrity() == [], "SQLite's integrity check found damage")
    finally:
        store.close()


async def _count_batches(path: Path) -> Counter[int]:
    """Read all senders' conversations; each must be whole batches, numbered without a gap."""
    batches: Counter[int] = Counter()
    async with open_runtime(SQLiteStore(path)) as runtime:
        for sender in range(SENDERS):
            found = (await runtime.memory(sender_id(sender)).messages()).to_dicts()
            require(len(found) % BATCH == 0, "a batch is there in part")
            batches[sender] = len(found) // BATCH
            sent = [part(batch, number) for batch in range(batches[sender]) for number in range(BATCH)]
            require(found == sent, "a batch is torn, doubled or out of order")
    return batches

"""Kill writers at random times with SIGKILL: is every acknowledged batch there, whole, and nothing by halves?

    python benchmarks/kill9.py --rounds 500 --writers 4

Each round starts writers, lets them add batches to memories of their own and to shared ones, and kills their processes
without warning, also while they open the file. A writer reports a batch only after its `add` returned. Then a fresh
connection of the standard library and a fresh runtime look at what is left, in either order.

Rounds alternate between event loops, and between one process that owns the file and several that share it. Some rounds
go on with the file that the last one left. kill -9 spares the page cache: nothing here tells about power cuts; the sync
setting on the live connection is a test of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import selectors
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

BACKENDS = ("asyncio", "uvloop", "trio")
PROCESSES = (1, 4)
ROUNDS_PER_FILE = 6
STARTUP_KILLS = 0.15  # share of the kills that may hit a process before it has written anything
STARTUP_SECONDS = 0.5
PATIENCE_SECONDS = 60.0

Place = tuple[str, int]
"""Id of a memory and number of an entry."""


@dataclass(frozen=True)
class Batch:
    """What one `add` wrote: the writer's name, its running number, and how many messages."""

    writer: str
    number: int
    count: int


@dataclass
class Summary:
    """What came of all rounds."""

    rounds: int = 0
    kills: int = 0
    kills_before_a_batch: int = 0
    acknowledged: int = 0
    stored_unacknowledged: int = 0
    messages: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    """What writers were promised about one file, over all rounds with it."""

    acknowledged: dict[Place, Batch] = field(default_factory=dict)


def run(
    rounds: int,
    directory: Path,
    *,
    writers: int = 4,
    processes: Sequence[int] = PROCESSES,
    backends: Sequence[str] = BACKENDS,
    seed: int = 0,
    spread: float = 0.3,
    progress: Callable[[int, Summary], None] = lambda _round, _summary: None,
) -> Summary:
    """Play `rounds` rounds in `directory` and stop after the first with a problem; its file stays there.

    Args:
        rounds: how many.
        directory: where the database files go; those without a problem are removed.
        writers: tasks that write in each process.
        processes: how many processes write, in turn; one owns its file, several share it.
        backends: the event loops, in turn.
        seed: the same seed kills at the same planned times.
        spread: seconds after a process's first batch in which it is killed.
        progress: called after each round.
    """
    summary = Summary()
    ledgers: dict[Path, Ledger] = defaultdict(Ledger)
    plan = itertools.islice(itertools.cycle(itertools.product(processes, backends)), rounds)
    for number, (count, backend) in enumerate(plan):
        random = Random(f"{seed}.{number}")
        path = directory / f"kill9-{count}-{number // (ROUNDS_PER_FILE * len(processes))}.db"
        url = f"sqlite:///{path}" + ("?shared=true" if count > 1 else "")
        before = len(ledgers[path].acknowledged)
        problems = _play(number, url, count, backend, writers, spread, ledgers[path], summary, random)
        problems += [problem for look in _looks(number) for problem in look(path, url, ledgers[path])]
        summary.rounds += 1
        summary.acknowledged += len(ledgers[path].acknowledged) - before
        progress(number, summary)
        if problems:
            heading = f"round {number} (seed {seed}, {backend}, {count} processes, {path}):"
            summary.problems = [heading, *problems]
            break
    else:
        for path in ledgers:
            _count_stored(path, ledgers[path], summary)
            for leftover in directory.glob(f"{path.name}*"):
                leftover.unlink()
    return summary


def _looks(number: int) -> list[Callable[[Path, str, Ledger], list[str]]]:
    """Return both examinations; whichever comes first finds the file just as the dead left it."""
    return [examine_file, examine_runtime] if number % 2 == 0 else [examine_runtime, examine_file]


# Killing


@dataclass
class _Victim:
    process: subprocess.Popen[bytes]
    errors: Path
    dies_at: float
    delay: float | None
    """Seconds to live from the first batch on; None: `dies_at` holds from the start."""
    output: bytes = b""


def _play(
    number: int,
    url: str,
    processes: int,
    backend: str,
    writers: int,
    spread: float,
    ledger: Ledger,
    summary: Summary,
    random: Random,
) -> list[str]:
    """Start writers, kill their processes, and note what they had reported."""
    victims = [_start(number, index, url, backend, writers, spread, random) for index in range(processes)]
    with selectors.DefaultSelector() as selector:
        for victim in victims:
            assert victim.process.stdout is not None
            selector.register(victim.process.stdout, selectors.EVENT_READ, victim)
        while selector.get_map():
            now = time.monotonic()
            for victim in victims:
                if now >= victim.dies_at and victim.process.returncode is None:
                    victim.process.send_signal(signal.SIGKILL)  # harmless for one that is dead
                    victim.dies_at = now + PATIENCE_SECONDS
            waits = [victim.dies_at - now for victim in victims]
            for key, _ in selector.select(max(0.0, min(waits))):
                _read(selector, key)
    problems = []
    for victim in victims:
        with victim.process:
            status = victim.process.wait(PATIENCE_SECONDS)
        if status != -signal.SIGKILL:
            problems.append(f"a writer ended by itself ({status}): {victim.errors.read_text()[-2000:]}")
        victim.errors.unlink()
        summary.kills += 1
        lines = [line for line in victim.output.split(b"\n")[:-1] if line != b"open"]
        summary.kills_before_a_batch += not lines
        for line in lines:
            memory, writer, index, count, version = line.decode().split()
            ledger.acknowledged[memory, int(version)] = Batch(writer, int(index), int(count))
    return problems


def _start(number: int, index: int, url: str, backend: str, writers: int, spread: float, random: Random) -> _Victim:
    file = Path(url.removeprefix("sqlite:///").partition("?")[0])
    errors = file.with_name(f"{file.name}.{number}.{index}.err")
    name = f"{number}.{index}"
    command = [sys.executable, __file__, "--write", url, name, backend, str(writers), str(random.random())]
    delay = None if random.random() < STARTUP_KILLS else random.uniform(0, spread)
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
    lives = random.uniform(0, STARTUP_SECONDS) if delay is None else PATIENCE_SECONDS
    return _Victim(process, errors, time.monotonic() + lives, delay)


def _read(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    victim: _Victim = key.data
    data = os.read(key.fd, 1 << 16)
    if not data:
        selector.unregister(key.fileobj)
        return
    victim.output += data
    if victim.delay is not None and victim.output.count(b"\n") > 1:  # "open", and a batch
        victim.dies_at = time.monotonic() + victim.delay
        victim.delay = None


# The victim


async def write_for_ever(url: str, name: str, writers: int, seed: str) -> None:
    """Add batches from several tasks until somebody kills this process; report each on standard output."""
    import anyio

    import turnkeeper

    async def write(writer: str, random: Random) -> None:
        for number in itertools.count():
            memory = f"own-{writer}" if random.random() < 0.5 else f"shared-{random.randrange(3)}"
            count = random.randint(1, 6)
            batch = [message(writer, number, index, count, random) for index in range(count)]
            receipt = await runtime.memory(memory).add(batch)
            report(f"{memory} {writer} {number} {count} {receipt.version.n}")

    async with turnkeeper.open_runtime(url) as runtime, anyio.create_task_group() as tasks:
        report("open")
        for index in range(writers):
            tasks.start_soon(write, f"{name}.{index}", Random(f"{seed}.{index}"))


def message(writer: str, number: int, index: int, count: int, random: Random) -> dict[str, object]:
    """Make a message that says to which batch it belongs."""
    return {"role": "user", "content": f"{writer} {number} {index} {count} {'x' * random.choice((0, 10, 500, 5000))}"}


def report(line: str) -> None:
    """Write one line in one system call: it is there whole, or not at all."""
    os.write(1, f"{line}\n".encode())


# Looking at what is left


def examine_file(path: Path, _url: str, ledger: Ledger) -> list[str]:
    """Look with a connection of the standard library that knows nothing of this library."""
    if not path.exists():
        return [f"{len(ledger.acknowledged)} batches were acknowledged, and there is no file"] * bool(
            ledger.acknowledged
        )
    try:
        with closing(sqlite3.connect(path)) as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            if found != ["ok"]:
                return [f"integrity_check: {found}"]
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchone():
                return [f"{len(ledger.acknowledged)} batches were acknowledged, and there are no tables"] * bool(
                    ledger.acknowledged
                )
            heads = connection.execute("SELECT mid, id, version, base FROM head").fetchall()
            entries = connection.execute(
                "SELECT mid, version, op, entry_id, payload FROM entry ORDER BY mid, version"
            ).fetchall()
    except sqlite3.Error as error:
        return [f"a plain connection can't read the file: {error}"]
    return list(_faults(heads, entries, ledger))


def _faults(
    heads: list[tuple[int, str, int, int]], entries: list[tuple[int, int, str, bytes, bytes]], ledger: Ledger
) -> Iterator[str]:
    names = {mid: name for mid, name, _, _ in heads}
    versions = defaultdict(list)
    stored: dict[Place, Batch] = {}
    last: dict[tuple[str, str], int] = {}
    for mid, version, op, _, payload in entries:
        versions[mid].append(version)
        texts = [part["content"] for part in json.loads(payload)["messages"]]
        batch = whole_batch(texts)
        name = names.get(mid, f"(no head: {mid})")
        if op != "add" or batch is None:
            yield f"{name}, entry {version}: no whole batch"
            continue
        stored[name, version] = batch
        if batch.number <= last.get((name, batch.writer), -1):
            yield f"{name}, entry {version}: batch {batch.number} of {batch.writer} is doubled or out of order"
        last[name, batch.writer] = batch.number
    for mid, name, version, base in heads:
        if versions[mid] != list(range(1, version + 1)) or base:
            yield f"{name}: its head says {version} from {base}, its entries are {versions[mid]}"
    if len({entry[3] for entry in entries}) != len(entries):
        yield "an entry id is used twice"
    for place, batch in ledger.acknowledged.items():
        if stored.get(place) != batch:
            yield f"{place}: {batch} was acknowledged, {stored.get(place)} is stored"


def whole_batch(texts: Sequence[str]) -> Batch | None:
    """Return the batch that these texts are, or None when they are not exactly one."""
    fields = [text.split(" ")[:4] for text in texts]
    if not fields:
        return None
    writer, number, _, count = fields[0]
    whole = [[writer, number, str(index), count] for index in range(int(count))]
    return Batch(writer, int(number), int(count)) if fields == whole else None


def examine_runtime(_path: Path, url: str, ledger: Ledger) -> list[str]:
    """Look with a new runtime, and add something: it has to open at once, whoever owned the file."""
    import turnkeeper

    try:
        return _runtime_faults(url, ledger)
    except turnkeeper.TurnkeeperError as error:
        return [f"a new runtime can't work with the file: {type(error).__name__}: {error}"]


def _runtime_faults(url: str, ledger: Ledger) -> list[str]:
    import turnkeeper

    expected: dict[str, dict[int, Batch]] = defaultdict(dict)
    for (name, version), batch in ledger.acknowledged.items():
        expected[name][version] = batch
    problems = []
    with turnkeeper.open_sync_runtime(url) as runtime:
        for name, batches in expected.items():
            memory = runtime.memory(name)
            texts = [str(stored.content) for stored in memory.messages()]
            shown = _split(texts)
            if shown is None:
                problems.append(f"{name}: the runtime shows a batch that is not whole")
            elif [shown[n - 1] if n <= len(shown) else None for n in batches] != list(batches.values()):
                problems.append(f"{name}: the runtime does not show what was acknowledged")
        probe = runtime.memory("shared-0")
        n = probe.stats().version.n
        batch = Batch("probe", n, 2)
        receipt = probe.add([message(batch.writer, n, index, 2, Random(0)) for index in range(2)])
        if receipt.version.n != n + 1:
            problems.append(f"a batch that should be entry {n + 1} is entry {receipt.version.n}")
        ledger.acknowledged["shared-0", receipt.version.n] = batch
    return problems


def _split(texts: list[str]) -> list[Batch] | None:
    batches = []
    while texts:
        count = int(texts[0].split(" ")[3])
        batch = whole_batch(texts[:count])
        if batch is None:
            return None
        batches.append(batch)
        texts = texts[count:]
    return batches


def _count_stored(path: Path, ledger: Ledger, summary: Summary) -> None:
    if not path.exists():
        return
    with closing(sqlite3.connect(path)) as connection:
        entries, messages = connection.execute(
            "SELECT count(*), sum(json_array_length(CAST(payload AS TEXT), '$.messages')) FROM entry"
        ).fetchone()
    summary.stored_unacknowledged += entries - len(ledger.acknowledged)
    summary.messages += messages or 0


# The command


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--write"]:
        import anyio

        url, name, backend, writers, seed = sys.argv[2:]
        options = {"use_uvloop": True} if backend == "uvloop" else {}
        backend = "asyncio" if backend == "uvloop" else backend
        anyio.run(write_for_ever, url, name, int(writers), seed, backend=backend, backend_options=options)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--writers", type=int, default=4, help="tasks in each process")
    parser.add_argument("--processes", type=int, nargs="+", default=list(PROCESSES), help="in turn; several share")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--spread", type=float, default=0.3, help="seconds to live after the first batch")
    parser.add_argument("--directory", type=Path, help="where the database files go (default: a temporary directory)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="turnkeeper-kill9-"))
    directory.mkdir(parents=True, exist_ok=True)

    def progress(number: int, summary: Summary) -> None:
        if (number + 1) % 20 == 0:
            print(f"{number + 1} rounds, {summary.kills} kills, {summary.acknowledged} batches", file=sys.stderr)

    began = time.monotonic()
    summary = run(
        arguments.rounds,
        directory.resolve(),
        writers=arguments.writers,
        processes=arguments.processes,
        backends=arguments.backends,
        seed=arguments.seed,
        spread=arguments.spread,
        progress=progress,
    )
    figures = asdict(summary) | {
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' ')}: {value}")
    if not summary.problems and arguments.directory is None:
        directory.rmdir()
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())

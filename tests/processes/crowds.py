"""A crowd of processes on one store, some killed and started anew in between, and what became of what they wrote.

In the tests for seconds; by hand for as long as you like, until it says what it judged or fails:

    python tests/processes/crowds.py postgresql://localhost/test --kills 100
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from processes.crowd import TICK, Orders
from processes.judging import judge, read_journals, read_store
from processes.remote import BACKENDS
from turnkeeper.stores import store_from_url

__all__ = ["Summary", "run_crowd"]

PROCESSES: Final = 4
TASKS: Final = 50
MEMORIES: Final = 20
PATIENCE_SECONDS: Final = 60.0

_SCRIPT: Final = Path(__file__).with_name("crowd.py")


@dataclass(frozen=True)
class Summary:
    """What a crowd did; everything in it was judged.

    Attributes:
        answers: calls that were answered with a result.
        unknown: adds that never had an answer, or one that the outcome is unknown.
        failed: adds of which an error said that nothing was changed.
        messages: stored in the end.
        conflicts: commits that another process forestalled, in those that lived to the end.
        kills: processes killed.
        seconds: how long they worked.
    """

    answers: int
    unknown: int
    failed: int
    messages: int
    conflicts: int
    kills: int
    seconds: float


class Member:
    """One process of the crowd, in one of its lives."""

    def __init__(self, orders: Orders) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), json.dumps(asdict(orders))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with self._process:
            pass

    def await_line(self, expected: str) -> None:
        """Wait until it says this."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == f"{expected}\n", f"{line!r}: {self._process.communicate()[1] if not line else ''}"

    def tell(self) -> None:
        """Say the next line: to begin, to end."""
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        _, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert errors == ""

    def finish(self) -> int:
        """Let it come to its end, gracefully; return its conflicts."""
        output, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert (self._process.returncode, errors) == (0, "")
        return int(output.splitlines()[-1].removeprefix("conflicts "))


def run_crowd(
    url: str,
    folder: Path,
    *,
    kills: int,
    answers: int = 2_000,
    processes: int = PROCESSES,
    tasks: int = TASKS,
    memories: int = MEMORIES,
    options: dict[str, Any] | None = None,
) -> Summary:
    """Let processes add and read, kill now one and now another, and judge everything.

    Args:
        url: of a store without conversations.
        folder: for journals.
        kills: how many processes are killed, each after some hundred answers, and started anew.
        answers: of each process after the last kill, at least.
    """
    chance = Random(kills)
    journals: list[Path] = []

    def start(process: int, life: int) -> Member:
        name = f"{process}.{life}"
        journals.append(folder / f"journal-{name}")
        backend = BACKENDS[(process + life) % len(BACKENDS)]
        orders = Orders(url, backend, name, tasks, memories, str(journals[-1]), options=options or {})
        return stack.enter_context(Member(orders))

    with ExitStack() as stack:
        members = [start(process, 0) for process in range(processes)]
        for member in members:
            member.await_line("open")
        began = time.monotonic()
        for member in members:
            member.tell()
        for number in range(kills):
            process = number % processes
            for _ in range(chance.randint(1, 5)):
                members[process].await_line("tick")
            members[process].kill()
            members[process] = start(process, 1 + number // processes)
            members[process].await_line("open")
            members[process].tell()
        for member in members:
            for _ in range(-(-answers // TICK)):
                member.await_line("tick")
        for member in members:
            member.tell()
        conflicts = sum(member.finish() for member in members)
        seconds = time.monotonic() - began
    records = read_journals(journals)
    messages = judge(records, read_store(store_from_url(url)))
    adds = [add for record in records.values() for add in record.adds]
    return Summary(
        answers=sum(add.outcome == "ok" for add in adds) + sum(len(record.reads) for record in records.values()),
        unknown=sum(add.outcome == "unknown" for add in adds),
        failed=sum(add.outcome == "failed" for add in adds),
        messages=messages,
        conflicts=conflicts,
        kills=kills,
        seconds=seconds,
    )


def main() -> None:
    """Run a crowd on the store in the first argument."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a store without conversations")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--answers", type=int, default=5_000, help="of each process after the last kill")
    parser.add_argument("--memories", type=int, default=MEMORIES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(  # noqa: T201
            run_crowd(
                options.url, Path(folder), kills=options.kills, answers=options.answers, memories=options.memories
            )
        )


if __name__ == "__main__":
    main()

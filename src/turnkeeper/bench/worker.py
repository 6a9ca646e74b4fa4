"""The fresh process of one run, or of the look at what it left: a spec on stdin, a result on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from turnkeeper.bench.checking import Sent
from turnkeeper.bench.clients import Ledger
from turnkeeper.bench.running import check_stored, run_workload
from turnkeeper.bench.spec import Result, Spec
from turnkeeper.bench.subjects import load_adapter
from turnkeeper.cli.loops import run_on

__all__ = ["main"]

CHECK = "--check"


class _Notes(msgspec.Struct):
    """What one process tells the next of what it sent."""

    sent: dict[str, list[Sent]]
    invalid: int


def main() -> None:
    """Do what stdin says."""
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    answer = _check(spec) if CHECK in sys.argv else _run(spec)
    # Whatever a subject prints goes before this line.
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()


def _run(spec: Spec) -> Result:
    result, ledger = run_workload(spec, load_adapter(spec.subject))
    _notes_path(spec).write_bytes(msgspec.json.encode(_Notes(dict(ledger.sent), ledger.invalid)))
    return result


def _check(spec: Spec) -> object:
    notes = msgspec.json.decode(_notes_path(spec).read_bytes(), type=_Notes)
    ledger = Ledger()
    ledger.sent.update(notes.sent)
    ledger.invalid = notes.invalid
    return run_on(spec.backend, check_stored, spec, load_adapter(spec.subject), ledger)


def _notes_path(spec: Spec) -> Path:
    return Path(f"{spec.place}.sent")


if __name__ == "__main__":
    main()

"""Workloads x subjects x backends x clients: what is run, in which order, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from turnkeeper.bench.environments import EnvironmentFailedError, python_for
from turnkeeper.bench.spec import Checked, Result, Spec
from turnkeeper.bench.subjects import Description, describe_adapter
from turnkeeper.bench.workloads import WORKLOADS, Workload
from turnkeeper.cli.processes import child_environment

__all__ = ["Plan", "Planned", "run_planned", "why_not"]

_SPARE_SECONDS = 300.0
"""What a run may take beside the time that is measured, before it counts as hung."""


class Plan(NamedTuple):
    """What was asked for; None: each workload's own default.

    Attributes:
        rounds: how often everything is run; in each round the subjects begin with another one.
        keep: a directory for the subjects' files; None: a temporary one for each run.
    """

    subjects: tuple[str, ...]
    workloads: tuple[str, ...]
    backends: tuple[str, ...]
    clients: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up: float
    size: int
    seed: int
    conversations: int | None = None
    messages: int | None = None
    rate: float | None = None
    transcript: str = ""

    def runs(self) -> Iterator[Planned]:
        """Yield everything in the order in which it is run: neighbours differ in the subject alone."""
        adapters = {name: describe_adapter(name) for name in self.subjects}
        for round_ in range(self.rounds):
            for name in self.workloads:
                workload = WORKLOADS[name]
                for backend in self.backends:
                    for clients in self.clients or (int(workload.defaults.get("clients", 64)),):
                        for place in range(len(self.subjects)):
                            subject = self.subjects[(place + round_) % len(self.subjects)]
                            spec = self._spec(subject, workload, backend, clients, round_)
                            yield Planned(spec, adapters[subject])

    def _spec(self, subject: str, workload: type[Workload], backend: str, clients: int, round_: int) -> Spec:
        defaults = workload.defaults
        return Spec(
            subject=subject,
            workload=workload.name,
            backend=backend,
            clients=clients,
            conversations=self.conversations or int(defaults.get("conversations", 64)),
            seconds=self.seconds,
            warm_up=self.warm_up,
            messages=int(defaults.get("messages", 0)) if self.messages is None else self.messages,
            size=self.size,
            rate=self.rate or float(defaults.get("rate", 0)),
            seed=self.seed + round_,
            place="",
            transcript=self.transcript,
        )


class Planned(NamedTuple):
    """One run to be done."""

    spec: Spec
    adapter: Description


def why_not(planned: Planned) -> str:
    """Tell why a run makes no sense for its subject; empty: it does."""
    workload, adapter, spec = WORKLOADS[planned.spec.workload], planned.adapter, planned.spec
    if spec.backend not in adapter.backends:
        return f"does not run on {spec.backend}"
    if workload.threads and not adapter.blocking:
        return "has no blocking form"
    if workload.reopen and not adapter.shared:
        return "keeps nothing over a restart"
    if workload.tools and not adapter.tools:
        return "keeps no tool calls"
    if workload.name == "replay" and not spec.transcript:
        return "needs a transcript"
    return ""


def run_planned(planned: Planned) -> Result:
    """Run in a fresh process, have another one look at what was stored, and return both answers as one.

    Whatever goes wrong is in the result: one subject that fails stops nobody else.
    """
    spec, adapter = planned
    if reason := why_not(planned):
        return Result(spec=spec, title=adapter.title, failure=reason)
    with tempfile.TemporaryDirectory(prefix="turnkeeper-bench-") as folder:
        place = Path(folder) / "data"
        place.mkdir()
        spec = msgspec.structs.replace(spec, place=str(place))
        try:
            python = python_for(adapter)
            result = msgspec.json.decode(_ask(python, spec), type=Result)
            if adapter.shared:
                result.checked = msgspec.json.decode(_ask(python, spec, "--check"), type=Checked)
                result.independent = True
        except (EnvironmentFailedError, _WorkerFailed) as error:
            return Result(spec=spec, title=adapter.title, durability=adapter.durability, failure=str(error))
    return result


class _WorkerFailed(Exception):  # noqa: N818 (it is a result of the run)
    """The process of a run ended without an answer."""


def _ask(python: str, spec: Spec, *arguments: str) -> bytes:
    command: Sequence[str] = [python, "-P", "-m", "turnkeeper.bench.worker", *arguments]
    patience = spec.seconds + spec.warm_up + _SPARE_SECONDS
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(spec),
            capture_output=True,
            env=child_environment() if python == sys.executable else child_environment(PYTHONPATH=""),
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _WorkerFailed(f"no answer after {patience:g} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise _WorkerFailed(last[:200])
    return lines[-1]

"""Promises 1 to 8 for one memory: whatever happens to it, it is what the model says, on every event loop and store.

Adds, sets, clears, deletes, turns with every `on_busy` and both ways of committing, turns that last too long,
compactions with changes in between, asked for and by the runtime's own policy, repeated requests, what was said taken
back and changed, metadata, forks, retention, unloads and reopened runtimes; the history and past states are read and
watched all the while. Callers are cancelled anywhere, by a scope and natively, and the store fails before, after and
without an answer. Nothing is half, what is resident is what is stored, what was committed is what was answered, and
nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from statemachine.logmachine import LogMachine
from support.backends import OPTIONS
from support.stores import STORES
from turnkeeper import committer, compaction, reader, retention, state

WITHOUT_EXPLAINING = tuple(phase for phase in Phase if phase is not Phase.explain)


def run(backend: str, store: str, examples: int, steps: int, phases: Sequence[Phase] = WITHOUT_EXPLAINING) -> None:
    """Run the machine; for a deep run by hand, hundreds of examples of 50 steps with `[Phase.generate]` alone."""
    kind = type("Machine", (LogMachine,), {"backend": backend, "store": store})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
            report_multiple_bugs=False,
        ),
    )


@pytest.fixture(autouse=True)
def _settle_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


def without_waiting(patch: pytest.MonkeyPatch) -> None:
    """Ask again as often as ever what was out of reach or failed, without the real time between; let messages go."""
    patch.setattr(committer, "_SETTLE_WAITS", (0.0, 0.0, 0.0, 0.0))
    patch.setattr(compaction, "_FIRST_BACKOFF", 0.0)
    patch.setattr(reader, "_FEWEST", 1)
    patch.setattr(state, "_SLACK", 0)
    patch.setattr(retention, "_SHARE", 0)


@pytest.mark.parametrize("store", ["threaded", *STORES])
@pytest.mark.parametrize("backend", OPTIONS)
def test_a_memory_is_what_the_model_says(backend: str, store: str) -> None:
    run(backend, store, examples={"memory": 25, "sqlite-shared": 4}.get(store, 12), steps=30)

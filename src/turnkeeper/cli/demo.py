"""`turnkeeper demo`: what the library promises, shown and checked in a few seconds."""

from __future__ import annotations

import importlib.resources
import sys
import tempfile
import textwrap
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import click

from turnkeeper.cli import demo_claims
from turnkeeper.cli.claims import ClaimFailedError
from turnkeeper.cli.comparing import DifferenceError
from turnkeeper.cli.demo_crash import survive_kills
from turnkeeper.cli.demo_turns import double_message
from turnkeeper.cli.loops import run_on
from turnkeeper.cli.terminal import Stop, is_terminal, say, say_block, spinning
from turnkeeper.errors import TurnkeeperError
from turnkeeper.opening import Runtime, open_runtime

__all__ = ["demo"]

_WIDTH: Final = 76
"""Characters in a line of evidence where no terminal wraps it."""


class _Claim(NamedTuple):
    """A title, and the code that returns evidence or raises."""

    title: str
    check: Callable[[], str]


class _Shown(NamedTuple):
    """How a claim came out."""

    title: str
    evidence: str
    holds: bool


@click.command(epilog="Exit status: 0 every claim holds; 1 one does not.")
def demo() -> None:
    """Show in a few seconds what turnkeeper does, on shipped conversations and in a temporary directory.

    Every line of the account at the end was checked by code while it was shown.
    """
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="turnkeeper-demo-") as name:
        directory = Path(name)
        with importlib.resources.as_file(importlib.resources.files("turnkeeper.cli") / "sample.jsonl") as sample:
            shown = [_show(claim) for claim in _claims(directory, sample)]
    shown.append(_Shown("Nothing is left behind", f"the temporary directory {name} is removed", not directory.exists()))
    _tell(shown, perf_counter() - started)
    if not all(claim.holds for claim in shown):
        raise Stop("not everything that was claimed holds", status=1)


def _claims(directory: Path, sample: Path) -> list[_Claim]:
    in_runtime = partial(_in_runtime, directory)
    return [
        _Claim("Recorded conversations, live", partial(demo_claims.replayed_sample, directory, sample)),
        _Claim("Two messages to one conversation at once", in_runtime(demo_claims.two_at_once)),
        _Claim("A second message before the first is answered", in_runtime(double_message)),
        _Claim("Many senders", in_runtime(demo_claims.many_senders)),
        _Claim("A cancelled add", in_runtime(demo_claims.cancelled_adds)),
        _Claim("A stale writer", in_runtime(demo_claims.stale_writer)),
        _Claim("A repeated request", partial(run_on, "asyncio", demo_claims.idempotent_retry, directory)),
        _Claim("Blocking code", in_runtime(partial(demo_claims.plain_script, directory=directory))),
        _Claim("A kill in the middle of a write", partial(survive_kills, directory)),
    ]


def _in_runtime(directory: Path, check: Callable[[Runtime], Awaitable[str]]) -> Callable[[], str]:
    async def run() -> str:
        async with open_runtime(f"sqlite:///{directory / 'demo.db'}") as runtime:
            return await check(runtime)

    return partial(run_on, "asyncio", run)


def _show(claim: _Claim) -> _Shown:
    """Check one claim; when it breaks, the others still get their turn."""
    with spinning(claim.title):
        try:
            return _Shown(claim.title, claim.check(), holds=True)
        except Exception as error:
            ours = isinstance(error, (ClaimFailedError, DifferenceError, Stop, TurnkeeperError))
            return _Shown(claim.title, str(error) if ours else f"broke with {type(error).__name__}", holds=False)


def _tell(shown: list[_Shown], seconds: float) -> None:
    on_terminal = is_terminal(sys.stdout)
    marks = ("✓", "✗") if on_terminal else ("ok", "FAILED")
    say("What was shown, each line checked:", style="bold")
    for title, evidence, holds in shown:
        say()
        say(f"{marks[0] if holds else marks[1]} {title}", style="green" if holds else "bold red")
        say_block(evidence if on_terminal else textwrap.fill(evidence, _WIDTH))
    count = sum(claim.holds for claim in shown)
    say()
    say(f"{count} of {len(shown)} claims hold; it took {seconds:.1f} s", style="bold")

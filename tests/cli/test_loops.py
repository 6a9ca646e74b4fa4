"""Commands run on the loop that was asked for, and one error comes out of all the groups it went through."""

from __future__ import annotations

import asyncio
import importlib.util

import anyio
import pytest

from turnkeeper.cli.loops import BACKENDS, installed_backends, require_backend, run_on
from turnkeeper.cli.terminal import Stop


async def running_loop() -> str:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return "trio"
    return "uvloop" if type(loop).__module__.startswith("uvloop") else "asyncio"


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_runs_on_the_loop_that_was_named(backend: str) -> None:
    assert run_on(backend, running_loop) == backend


def test_a_loop_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert installed_backends() == ["asyncio"]
    require_backend("asyncio")
    with pytest.raises(Stop, match="pip install uvloop"):
        run_on("uvloop", running_loop)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_comes_out_of_its_groups(backend: str, error: type[BaseException]) -> None:
    async def fail() -> None:
        async with anyio.create_task_group(), anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            raise error("x")

    with pytest.raises(error):
        run_on(backend, fail)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_comes_before_other_errors(backend: str) -> None:
    async def fail() -> None:
        raise BaseExceptionGroup("", [KeyError("x"), ExceptionGroup("", [ValueError("y")]), KeyboardInterrupt()])

    with pytest.raises(KeyboardInterrupt):
        run_on(backend, fail)

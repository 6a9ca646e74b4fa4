"""Promises of virtual time, on asyncio and trio."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.virtual_time import VIRTUAL_TIME_BACKENDS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", VIRTUAL_TIME_BACKENDS)]

HOUR = 3600.0


@pytest.fixture(autouse=True)
def in_no_time() -> Iterator[None]:
    """None of these tests may take a noticeable time."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 5


async def test_sleeping_an_hour_takes_no_time() -> None:
    await anyio.sleep(HOUR)
    assert anyio.current_time() == HOUR


@pytest.mark.parametrize("again", [1, 2])
async def test_each_test_starts_at_zero(again: int) -> None:
    assert anyio.current_time() == 0
    await anyio.sleep(again)


@settings(max_examples=5)
@given(seconds=st.floats(0, 1e9))
async def test_each_example_starts_at_zero(seconds: float) -> None:
    assert anyio.current_time() == 0
    await anyio.sleep(seconds)
    assert anyio.current_time() == pytest.approx(seconds)


async def test_deadlines_are_virtual() -> None:
    with anyio.move_on_after(HOUR) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == HOUR

    with pytest.raises(TimeoutError), anyio.fail_after(HOUR):
        await anyio.sleep(2 * HOUR)
    assert anyio.current_time() == 2 * HOUR


async def test_timers_fire_in_order_and_at_their_time() -> None:
    woken: list[tuple[float, float]] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append((seconds, anyio.current_time()))

    async with anyio.create_task_group() as tasks:
        for seconds in (HOUR, 0.5, 86400.0 * 30, 10.0):
            tasks.start_soon(sleeper, seconds)
    assert woken == [(seconds, seconds) for seconds in (0.5, 10.0, HOUR, 86400.0 * 30)]


async def test_time_stands_still_while_a_task_can_run() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, HOUR)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
            assert anyio.current_time() == 0
        tasks.cancel_scope.cancel()
    assert anyio.current_time() == 0

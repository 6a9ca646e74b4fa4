"""The line at the runtime's door."""

from __future__ import annotations

import anyio
import pytest

from turnkeeper import OverloadedError, RuntimeClosedError, Settings
from turnkeeper.admission import Admission

pytestmark = pytest.mark.anyio


def admission(**options: object) -> Admission:
    return Admission(Settings.of(options))


async def test_requests_and_bytes_are_bounded_and_counted() -> None:
    door = admission(max_pending=2, max_pending_bytes=100)
    assert [door.admit(60), door.admit(60), door.admit(40), door.admit(0)] == [True, False, True, False]
    assert (door.pending, door.pending_bytes, door.peak_pending, door.peak_bytes) == (2, 100, 2, 100)
    door.release(60)
    assert [door.admit(61), door.admit(60)] == [False, True]


async def test_one_request_alone_is_let_in_whatever_its_size() -> None:
    door = admission(max_pending_bytes=10)
    assert door.admit(1_000_000)
    assert not door.admit(1)
    door.release(1_000_000)
    assert door.admit(1)


async def test_reads_have_a_bound_and_a_line_of_their_own() -> None:
    door = admission(max_pending=2, max_pending_bytes=100)
    assert [door.admit(1000), door.admit(0), door.admit(0, reads=True), door.admit(0, reads=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert (door.pending, door.pending_bytes, door.peak_pending) == (3, 1000, 3)
    assert not door.admit(0, reads=True)
    let_in: list[str] = []

    async def caller(kind: str) -> None:
        await door.wait(0, kind == "read")
        let_in.append(kind)

    async with anyio.create_task_group() as group:
        for kind in ("write", "read"):
            group.start_soon(caller, kind)
            await anyio.wait_all_tasks_blocked()
        assert door.waiting == 2
        door.release(0, reads=True)
        await anyio.wait_all_tasks_blocked()
        assert let_in == ["read"]
        door.release(1000)
    assert let_in == ["read", "write"]
    for reads in (True, True, False):
        door.release(0, reads)
    assert (door.pending, door.pending_bytes, door.waiting) == (0, 0, 0)
    assert door.admit(100), "reads that were there leave nothing behind"


async def test_callers_wait_in_line_first_come_first_served() -> None:
    door = admission(max_pending=1)
    assert door.admit(1)
    order: list[int] = []

    async def caller(number: int, started: anyio.Event) -> None:
        started.set()
        await door.wait(1)
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(5):
            started = anyio.Event()
            group.start_soon(caller, number, started)
            await started.wait()
        assert not door.admit(1)  # nobody overtakes the line
        for _ in range(5):
            door.release(1)
            await anyio.wait_all_tasks_blocked()
        assert order == [0, 1, 2, 3, 4]
    door.release(1)
    assert (door.pending, door.pending_bytes, door.waiting) == (0, 0, 0)


async def test_a_cancelled_caller_leaves_the_line_and_lets_smaller_ones_in() -> None:
    door = admission(max_pending=10, max_pending_bytes=100)
    assert door.admit(50)
    small_in = anyio.Event()

    async def small() -> None:
        await door.wait(10)
        small_in.set()

    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as large:
            large.start_soon(door.wait, 90)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(small)
            await anyio.wait_all_tasks_blocked()
            assert door.waiting == 2
            large.cancel_scope.cancel()
        await small_in.wait()
    assert (door.pending, door.pending_bytes, door.waiting) == (2, 60, 0)


async def test_a_caller_cancelled_when_already_let_in_gives_its_place_back() -> None:
    door = admission(max_pending=1)
    assert door.admit(1)
    async with anyio.create_task_group() as group:
        group.start_soon(door.wait, 1)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        door.release(1)
    # it was let in, or it was not: either way nothing is held for ever
    if door.pending:
        door.release(1)
    assert (door.pending, door.pending_bytes, door.waiting) == (0, 0, 0)


async def test_refusing_names_the_limits_and_the_way_out() -> None:
    door = admission(max_pending=1, on_overload="reject")
    assert door.admit(5)
    with pytest.raises(OverloadedError, match=r"max_pending=1.*on_overload='wait'"):
        await door.wait(1)
    assert (door.pending, door.overloaded, door.waiting) == (1, 1, 0)


async def test_closing_turns_the_line_away_and_waits_for_the_rest() -> None:
    door = admission(max_pending=1)
    assert door.admit(1)
    turned_away: list[str] = []

    async def caller() -> None:
        with pytest.raises(RuntimeClosedError):
            await door.wait(1)
        turned_away.append("one")

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(caller)
        await anyio.wait_all_tasks_blocked()
        door.close()
        group.start_soon(door.drained)
        await anyio.wait_all_tasks_blocked()
        assert turned_away == ["one"] * 3
        door.release(1)

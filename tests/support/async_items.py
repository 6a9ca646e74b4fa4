"""How a plugin gets into the event loop of a test that anyio's plugin runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import iscoroutinefunction
from typing import Any

import pytest


@contextmanager
def around_async_test(item: pytest.Function, enter: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside the block, run the test (each example of it, with Hypothesis) within `enter()`, in the test's own task.

    Sync tests and tests of pytest-trio are left alone.
    """
    if "anyio_backend" not in item.funcargs:
        yield
        return

    if hasattr(item.obj, "hypothesis"):
        handle = item.obj.hypothesis
        before = handle.inner_test
        # anyio leaves its own sync wrapper behind after the first backend
        function = getattr(before, "_anyio_original_func", before)
        if not iscoroutinefunction(function):
            yield
            return
        handle.inner_test = _within(function, enter)
        try:
            yield
        finally:
            handle.inner_test = before
        return

    function = item.obj
    if not iscoroutinefunction(function):
        yield
        return
    item.obj = _within(function, enter)
    try:
        yield
    finally:
        item.obj = function


def _within(function: Callable[..., Any], enter: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> None:
        with enter():
            await function(*args, **kwargs)

    return run

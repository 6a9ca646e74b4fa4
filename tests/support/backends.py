"""What each `anyio_backend` id runs on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

eager_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
"""Makes a loop whose tasks run at once until they first wait; from Python 3.12 on."""

if sys.version_info >= (3, 12):

    def _eager_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    eager_loop = _eager_loop

# Debug mode makes a `call_soon` from a foreign thread an error. uvloop runs without it, as users run.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
if eager_loop is not None:
    OPTIONS["asyncio-eager"] = ("asyncio", {"debug": True, "loop_factory": eager_loop})

BACKENDS = [pytest.param(options, id=name) for name, options in OPTIONS.items()]
"""Each async test runs once on each of these."""

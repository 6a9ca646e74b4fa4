"""The event loops a command can run on."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskStatus

from turnkeeper.cli.terminal import Stop

__all__ = ["BACKENDS", "SIGNALS", "installed_backends", "require_backend", "run_on", "watch_signals"]

T = TypeVar("T")

BACKENDS: Final = ("asyncio", "uvloop", "trio")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Those that end a command in order."""


def installed_backends() -> list[str]:
    """Return the loops that can be used here; asyncio always is one."""
    return [name for name in BACKENDS if name == "asyncio" or importlib.util.find_spec(name) is not None]


def require_backend(name: str) -> None:
    """Stop with the install line when a loop is missing."""
    if name not in installed_backends():
        raise Stop(f"the backend {name} is not installed: pip install {name}")


def run_on(backend: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function to its end on a loop of its own.

    Of an exception group, which any task group makes of an error, only the first error is raised; an interrupt before
    all others.
    """
    require_backend(backend)
    name, options = ("asyncio", {"use_uvloop": True}) if backend == "uvloop" else (backend, {})
    try:
        return anyio.run(function, *args, backend=name, backend_options=options)
    except BaseExceptionGroup as group:
        raise _first_error(group) from group


async def watch_signals(
    heard: Callable[[signal.Signals], None],
    scope: anyio.CancelScope,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """On the first SIGINT or SIGTERM tell which it was and cancel a scope, so that all ends in order.

    What was taken is committed, the store closed. A second signal is rude.
    """
    # What the shell told us to ignore, as it tells jobs in the background, stays ignored.
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*heeded) as signals:
        task_status.started()
        async for number in signals:
            heard(number)
            scope.cancel()
            return


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.subgroup(KeyboardInterrupt) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

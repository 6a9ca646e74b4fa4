"""The event loops a command can run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio

from turnkeeper.cli.terminal import Stop

__all__ = ["BACKENDS", "installed_backends", "require_backend", "run_on"]

T = TypeVar("T")

BACKENDS: Final = ("asyncio", "uvloop", "trio")


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


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.subgroup(KeyboardInterrupt) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""Make happen now what a runtime does when it is time: for deterministic tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnkeeper.names import memory_name

if TYPE_CHECKING:
    from turnkeeper.opening import Runtime

__all__ = ["unload"]


def unload(runtime: Runtime, memory_id: str, namespace: str = "") -> bool:
    """Drop a memory from RAM at once, as if it had been idle for long; call it in the runtime's own thread.

    Returns:
        False when it is not in RAM, or has requests pending: then it stays.
    """
    return runtime._core.unload(memory_name(memory_id, namespace))

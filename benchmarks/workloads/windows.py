"""One add and one read through a full window, small and large: what is left when the tuple is put aside.

A read after a change has to build a tuple as long as the window, and the next change drops it. The same pairs are run
once more with that tuple left empty: all that is left should not depend on the window's size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from anyio.lowlevel import checkpoint

import measure
import ours
from measure import Result, Stopwatch, Target
from turnkeeper import (
    CharacterCounter,
    ChatMemory,
    MessageWindow,
    TokenWindow,
    TurnWindow,
    UserMessage,
    Window,
    open_runtime,
)
from workloads.subjects import MESSAGE

__all__ = ["LIMIT", "run"]

LIMIT: Final = 1.3
SMALL: Final = 10
LARGE: Final = 10_000

_COUNTER: Final = CharacterCounter()
_TOKENS: Final = _COUNTER.count(UserMessage(MESSAGE["content"]))


WINDOWS: Final[dict[str, Callable[[int], Window]]] = {
    "MessageWindow": lambda size: MessageWindow(size),
    "TokenWindow": lambda size: TokenWindow(_COUNTER.list_overhead + size * _TOKENS, _COUNTER),
    "TurnWindow": lambda size: TurnWindow(max_messages=size),
}


def run(backend: str, *, rounds: int, quick: bool) -> list[Result]:
    """Measure each window at both sizes, with and without its tuple."""
    results = []
    times = 200 if quick else 600
    small, large = f"{SMALL}", f"{LARGE}"
    for name, make in WINDOWS.items():
        samples = measure.interleaved(
            {
                size: partial(measure.run, backend, _halves, make(int(size)), int(size), times)
                for size in (small, large)
            },
            rounds,
        )
        whole = {size: [pair * 1e6 for pair, _ in values] for size, values in samples.items()}
        rest = {size: [rest * 1e6 for _, rest in values] for size, values in samples.items()}
        tuples = {size: [pair - rest for pair, rest in zip(whole[size], rest[size], strict=True)] for size in whole}
        target = Target(large, small, LIMIT)
        results += [
            Result("windows", f"{name}: add + messages", backend, "µs CPU", whole, small),
            Result("windows", f"{name}: of this, the tuple", backend, "µs CPU", tuples),
            Result("windows", f"{name}: of this, the rest", backend, "µs CPU", rest, small, (target,)),
        ]
    return results


async def _halves(window: Window, size: int, times: int) -> tuple[float, float]:
    """Return seconds of a pair at a full window, and of one whose tuple is left empty."""
    async with open_runtime("memory:", window=window, linger=3600.0) as runtime:
        memory = runtime.memory("m")
        for _ in range(0, size + 100, 100):
            await memory.add([MESSAGE] * 100)
        assert len(await memory.messages()) == size
        pair = await _pair(memory, times)
        with ours.empty_tuples():
            rest = await _pair(memory, times)
    return pair, rest


async def _pair(memory: ChatMemory, times: int) -> float:
    watch = Stopwatch()
    for _ in range(times):
        await memory.add(MESSAGE)
        await memory.messages()
        await checkpoint()
    spent = watch.spent().cpu
    watch = Stopwatch()
    for _ in range(times):
        await checkpoint()
    return (spent - watch.spent().cpu) / times

"""Compaction: the older turns of a conversation give way to a summary, while adds and reads go on."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread

from turnkeeper.compactable import Compactable
from turnkeeper.errors import CompactionError, InvalidArgumentError, RuntimeClosedError
from turnkeeper.log import COMPACT, Receipt
from turnkeeper.messages import Message, SystemMessage, encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.policies import CompactionPolicy, Summarizer, keeping
from turnkeeper.requests import LOOK_BACK, Request
from turnkeeper.state import Log
from turnkeeper.windows import LimitedWindow, TurnWindow
from turnkeeper.windows.rendering import rendered
from turnkeeper.windows.transcript import Transcript

if TYPE_CHECKING:
    from turnkeeper.runtime import RuntimeCore

__all__ = ["Compactor"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

_FIRST_BACKOFF: Final = 1.0
_LONGEST_BACKOFF: Final = 300.0
"""Seconds until a compaction that failed is tried again: doubled each time."""

_MOST_FAILED: Final = 10_000
"""Memories whose failures are remembered; the one that failed longest ago is tried again at once."""


class Compactor:
    """Compacts memories of one runtime: one at a time each, and so many at once that models are not overrun.

    The summariser runs outside the actor: it holds nobody up, and nothing depends on it until its result is committed
    in the place of exactly what it saw.
    """

    def __init__(self, core: RuntimeCore, policy: CompactionPolicy | None, at_once: int) -> None:
        self._core = core
        self._policy = policy
        self._limiter = anyio.CapacityLimiter(at_once)
        self._under_way: set[MemoryName] = set()
        self._failed: dict[MemoryName, tuple[int, float]] = {}  # how often in a row, and when to try again
        self.done: int = 0
        self.failures: int = 0

    def look(self, name: MemoryName, log: Log) -> None:
        """Start a compaction if the policy asks for one; in the actor's own step, after a commit."""
        policy = self._policy
        assert policy is not None
        if name in self._under_way:
            return
        if name in self._failed and anyio.current_time() < self._failed[name][1]:
            return
        try:
            if log.hides(policy.when, policy.when.limit(name.id)):
                self._core.spawn_task(self._by_policy, name)
        except Exception as error:
            logger.warning("a compaction policy failed with %s", type(error).__name__)

    async def _by_policy(self, name: MemoryName) -> None:
        policy = self._policy
        assert policy is not None
        if name in self._under_way:
            return
        try:
            await self.compact(name, policy.summarizer, keeping(policy.keep), policy.when, policy.seconds)
        except RuntimeClosedError:
            return
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # The summariser's own doing, or a native cancel: the runtime's task group must not end with it.
            self._note_failure(name, error)
        except Exception as error:
            self._note_failure(name, error)
        else:
            self._failed.pop(name, None)

    def _note_failure(self, name: MemoryName, error: BaseException) -> None:
        self.failures += 1
        times = self._failed.pop(name, (0, 0.0))[0] + 1
        wait = min(_FIRST_BACKOFF * 2 ** min(times - 1, 16), _LONGEST_BACKOFF)
        self._failed[name] = times, anyio.current_time() + wait
        if len(self._failed) > _MOST_FAILED:
            del self._failed[next(iter(self._failed))]
        logger.warning("a compaction failed with %s; it is tried again in %s s", type(error).__name__, wait)

    async def compact(
        self,
        name: MemoryName,
        summarizer: Summarizer,
        keep: TurnWindow,
        when: LimitedWindow | None = None,
        timeout: float = math.inf,
    ) -> Receipt | None:
        """Sum up what is older than what `keep` shows; None when there is nothing, or `when` shows everything.

        Cancelled, or when the summariser fails or takes longer than `timeout` seconds, nothing has changed.
        """
        if not callable(summarizer):
            raise InvalidArgumentError("a summarizer is a function of the messages and of the summary before them")
        if name in self._under_way:
            raise CompactionError(
                f"memory {name.id!r} (namespace {name.namespace!r}): a compaction is under way; nothing was changed"
            )
        self._under_way.add(name)
        try:
            looking = Request(LOOK_BACK, window=keep, about=when)
            async with self._limiter:
                seen: Compactable | None = await self._core.submit(name, looking)
                if seen is None:
                    return None
                with anyio.fail_after(timeout):
                    summary = await _summed_up(summarizer, seen, name)
            receipt: Receipt = await self._core.submit(name, Request(COMPACT, summary, window=keep, about=seen))
        finally:
            self._under_way.discard(name)
        self.done += 1
        return receipt


async def _summed_up(summarizer: Summarizer, seen: Compactable, name: MemoryName) -> tuple[Message, ...]:
    if inspect.iscoroutinefunction(summarizer) or inspect.iscoroutinefunction(type(summarizer).__call__):
        result: Any = summarizer(seen.messages, seen.summary)
    else:
        # A thread that is left behind when this is cancelled: what it returns goes nowhere. Boxed, because trio lets
        # no coroutine out of a thread, and a plain function may return one.
        (result,) = await to_thread.run_sync(lambda: (summarizer(seen.messages, seen.summary),), abandon_on_cancel=True)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, str):
        result = SystemMessage(result) if result.strip() else ()
    if result is None or isinstance(result, (Message, Mapping)):
        result = () if result is None else (result,)
    try:
        summary = encode_messages(result)
    except TypeError:
        summary = ()
    if not summary:
        raise CompactionError(
            f"memory {name.id!r} (namespace {name.namespace!r}): the summariser returned no message; nothing was "
            "changed"
        )
    transcript = Transcript()
    for message in summary:
        transcript.push(message)
    if tuple(rendered(transcript.units, None)) != summary:
        raise CompactionError(
            f"memory {name.id!r} (namespace {name.namespace!r}): in the summary a call lacks its result, or a result "
            "its call; nothing was changed"
        )
    return summary

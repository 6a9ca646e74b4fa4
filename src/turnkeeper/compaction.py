"""Compaction: the older turns of a conversation give way to a summary, while adds and reads go on."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from turnkeeper.compactable import Compactable
from turnkeeper.errors import CompactionError, InvalidArgumentError, RuntimeClosedError
from turnkeeper.lane import Job, Lane
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

_summing: Final[ContextVar[object]] = ContextVar("turnkeeper_summing", default=None)
"""The place of the compaction whose summariser the running code is part of; inherited by its tasks and threads."""


class Compactor:
    """Compacts memories of one runtime: one at a time each, and so many at once that models are not overrun.

    The summariser runs outside the actor: it holds nobody up, and nothing depends on it until its result is committed
    in the place of exactly what it saw.
    """

    def __init__(self, core: RuntimeCore, policy: CompactionPolicy | None, at_once: int) -> None:
        self._core = core
        self._policy = policy
        self._at_once = at_once
        self._places = anyio.CapacityLimiter(at_once)  # borrowed by objects: a task may hold several
        self._threads: set[Job[Any]] = set()  # those left behind as well, until they come back
        self._by_policy_scopes: set[anyio.CancelScope] = set()
        self._under_way: set[MemoryName] = set()
        self._failed: dict[MemoryName, tuple[int, float]] = {}  # how often in a row, and when to try again
        self.done: int = 0
        self.failures: int = 0

    def close(self) -> None:
        """Give up what the policy has under way, unless the actor has taken it. Harmless when repeated."""
        for scope in self._by_policy_scopes:
            scope.cancel()
        self._places.total_tokens = math.inf  # nobody waits in line any more: the runtime tells them that it closes

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
        with anyio.CancelScope() as scope:
            self._by_policy_scopes.add(scope)
            try:
                await self.compact(name, policy.summarizer, keeping(policy.keep), policy.when, policy.seconds)
            except RuntimeClosedError:
                return
            except anyio.get_cancelled_exc_class() as error:
                if anyio.current_effective_deadline() == -math.inf:
                    raise
                # A native cancel: the runtime's task group must not end with it.
                self._note_failure(name, error)
            except Exception as error:
                self._note_failure(name, error)
            else:
                self._failed.pop(name, None)
            finally:
                self._by_policy_scopes.discard(scope)

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
            raise _failure(name, "a compaction is under way")
        self._under_way.add(name)
        try:
            looking = Request(LOOK_BACK, window=keep, about=when)
            place = object()
            await self._take(place, name)
            try:
                seen: Compactable | None = await self._core.submit(name, looking)
                if seen is None:
                    return None
                with anyio.fail_after(timeout):
                    returned = await self._run_apart(summarizer, seen, place, name)
            finally:
                self._places.release_on_behalf_of(place)
            summary = _checked(returned, name)
            receipt: Receipt = await self._core.submit(name, Request(COMPACT, summary, window=keep, about=seen))
        finally:
            self._under_way.discard(name)
        self.done += 1
        return receipt

    async def _take(self, place: object, name: MemoryName) -> None:
        """Wait for a place; a summariser's own compactions never do, since what they wait for may wait for them."""
        if _summing.get() not in self._places.statistics().borrowers:
            await self._places.acquire_on_behalf_of(place)
            return
        try:
            self._places.acquire_on_behalf_of_nowait(place)
        except anyio.WouldBlock:
            pass
        else:
            return
        raise _failure(name, f"a summariser asked for it, and max_compactions={self._at_once} are under way")

    async def _run_apart(self, summarizer: Summarizer, seen: Compactable, place: object, name: MemoryName) -> Any:
        """Run the summariser in a task of its own, which alone ends when it is natively cancelled inside."""
        results: list[Any] = []
        failures: list[BaseException] = []

        async def run() -> None:
            _summing.set(place)
            try:
                results.append(await self._ask(summarizer, seen, name))
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # raised outside, where the group can't wrap it
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
        if failures:
            raise failures.pop()
        if not results:
            raise _failure(name, "the summariser was cancelled inside")
        return results.pop()

    async def _ask(self, summarizer: Summarizer, seen: Compactable, name: MemoryName) -> Any:
        call = partial(summarizer, seen.messages, seen.summary)
        if inspect.iscoroutinefunction(summarizer) or inspect.iscoroutinefunction(type(summarizer).__call__):
            result: Any = call()
        else:
            result = await self._in_thread(call, name)
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, call: Callable[[], Any], name: MemoryName) -> Any:
        """Run a blocking summariser in a daemon thread, which is left behind when this is cancelled."""
        self._threads = {job for job in self._threads if not job.done.is_set()}
        if len(self._threads) >= self._at_once:
            hanging = f"summarisers that were given up still run in all max_compactions={self._at_once} threads"
            raise _failure(name, hanging)
        lane = Lane("turnkeeper summary")
        context = copy_context()
        job = lane.post(lambda: context.run(_off_the_loop, call))
        lane.stop()
        self._threads.add(job)
        try:
            await job.done.wait()
        finally:
            if job.done.is_set() or job.cancel():
                self._threads.discard(job)
        if isinstance(job.error, Exception):
            raise job.error
        if job.error is not None:  # an exit, or another loop's cancellation: no business of ours
            raise _failure(name, f"the summariser ended with {type(job.error).__name__}")
        return job.result


def _off_the_loop(call: Callable[[], Any]) -> Any:
    """Call it in a copied context, which says that it is in the event loop: `anyio.run` would refuse to start one."""
    if (sniffio := sys.modules.get("sniffio")) is not None:
        sniffio.current_async_library_cvar.set(None)
    return call()


def _failure(name: MemoryName, reason: str) -> CompactionError:
    return CompactionError(f"memory {name.id!r} (namespace {name.namespace!r}): {reason}; nothing was changed")


def _checked(result: Any, name: MemoryName) -> tuple[Message, ...]:
    """Return what a summariser returned as encoded messages."""
    if isinstance(result, str):
        result = SystemMessage(result) if result.strip() else ()
    if result is None or isinstance(result, (Message, Mapping)):
        result = () if result is None else (result,)
    try:
        summary = encode_messages(result)
    except TypeError:
        summary = ()
    if not summary:
        raise _failure(name, "the summariser returned no message")
    transcript = Transcript()
    for message in summary:
        transcript.push(message)
    if tuple(rendered(transcript.units, None)) != summary:
        raise _failure(name, "in the summary a call lacks its result, or a result its call")
    return summary

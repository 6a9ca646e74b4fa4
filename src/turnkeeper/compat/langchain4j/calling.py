"""Awaiting a runtime from whatever event loop: its own, or another thread's on asyncio, uvloop or trio.

Neither loop ever waits for the other without a checkpoint: both are told by posts, which don't block.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from turnkeeper.compat.default_runtime import CompatRuntime
from turnkeeper.errors import OutcomeUnknownError, RuntimeClosedError, TurnkeeperError
from turnkeeper.runtime import RuntimeCore

__all__ = ["Call", "Door", "Line", "line_to", "wait_for"]

T = TypeVar("T")

Post: TypeAlias = Callable[[Callable[[], object]], object]
"""Has a loop call a function soon, from any thread; raises RuntimeError once the loop is gone."""

_LOOK_EVERY: Final = 1.0
"""Seconds between looks at whether the other event loop is still there to answer."""

_LAST_LOOKS: Final = 2
"""So many after it has closed: what was answered as it closed is on its way."""


class Line(NamedTuple):
    """A way into a runtime's event loop.

    Attributes:
        core: the runtime.
        door: lets calls into it.
        post: posts to its loop.
    """

    core: RuntimeCore
    door: Door
    post: Post

    @property
    def usable(self) -> bool:
        """Whether the runtime is there, and of this process, as far as can be told from outside."""
        with contextlib.suppress(TurnkeeperError):
            self.core.check_reachable()
            return not self.door.closed
        return False

    async def ask(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call an async function in the runtime's loop, and return what it returns or raise what it raises.

        A cancelled caller leaves at once, and what it asked for is cancelled in the other loop.

        Raises:
            RuntimeClosedError: the runtime is closed; nothing was done.
            OutcomeUnknownError: its event loop was torn down meanwhile.
        """
        core = self.core
        core.check_reachable()
        if core.on_loop_thread():
            return await function()
        await checkpoint_if_cancelled()  # nothing is sent for who has left already
        call = Call(function)
        try:
            self.post(partial(self.door.enter, call))
        except RuntimeError:
            raise _closed() from None
        looks = 0
        try:
            while not call.done.is_set() and looks < _LAST_LOOKS:
                with anyio.move_on_after(_LOOK_EVERY):
                    await call.done.wait()
                looks += core.closed
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self.post(call.leave)
            raise
        return call.outcome()


class Door:
    """A task of the runtime that starts a task for each call from another loop. Used in the runtime's own.

    Attributes:
        closed: it lets nobody in any more.
    """

    def __init__(self, core: RuntimeCore) -> None:
        """Start the task."""
        self.closed: bool = False
        self._core = core
        self._waiting: deque[Call[Any]] = deque()
        self._knock = anyio.Event()
        core.spawn_task(self._serve)

    def enter(self, call: Call[Any]) -> None:
        """Have a call run soon, or refuse it."""
        if self.closed:
            call.refuse()
        else:
            self._waiting.append(call)
            self._knock.set()

    async def _serve(self) -> None:
        try:
            while True:
                await self._knock.wait()
                self._knock = anyio.Event()
                while self._waiting:
                    self._core.spawn_task(self._waiting.popleft().run)
        finally:
            self.closed = True
            while self._waiting:
                self._waiting.popleft().refuse()


class Call(Generic[T]):
    """One call on its way into another event loop, and back. Made in the caller's.

    Attributes:
        done: set when there is an outcome.
    """

    __slots__ = ("_failure", "_function", "_left", "_post_back", "_result", "_scope", "done")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        """Note where the caller is."""
        self.done: anyio.Event = anyio.Event()
        self._function = function
        self._post_back = _post_here()
        self._result: list[T] = []
        self._failure: list[Exception] = []
        self._scope: anyio.CancelScope | None = None
        self._left = False

    def outcome(self) -> T:
        """Return or raise what came of it."""
        if self._failure:
            raise self._failure.pop()
        if not self._result:
            raise OutcomeUnknownError(
                "the event loop was torn down while the call was under way: it happened whole or not at all"
            )
        return self._result.pop()

    # In the other loop

    async def run(self) -> None:
        """Call the function, unless the caller has left."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._left:
                    self._result.append(await self._function())
        except Exception as error:
            self._failure.append(error)
        finally:
            self._tell()

    def refuse(self) -> None:
        """Say that the runtime is closed."""
        self._failure.append(_closed())
        self._tell()

    def leave(self) -> None:
        """Note that the caller has left."""
        self._left = True
        if self._scope is not None:
            self._scope.cancel()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone, and nobody waits any more
            self._post_back(self.done.set)


async def line_to(runtime: CompatRuntime) -> Line:
    """Return the way into a runtime's loop, which is opened, in a worker thread, where it is not open.

    Raises:
        RuntimeClosedError: the user closed it, or the interpreter is at its end.
        StoreError: the store can't be opened.
    """
    line = _lines.get(runtime)
    if line is None or not line.usable:
        line = _lines[runtime] = await anyio.to_thread.run_sync(_open, runtime)
    return line


_lines: Final[WeakKeyDictionary[CompatRuntime, Line]] = WeakKeyDictionary()


def _open(runtime: CompatRuntime) -> Line:
    core = runtime.core
    core.check_reachable()
    try:
        door, post = core.portal.call(lambda: (Door(core), _post_here()))
    except RuntimeError:
        raise _closed() from None
    return Line(core, door, post)


def _closed() -> RuntimeClosedError:
    return RuntimeClosedError("the runtime is closed; nothing was changed")


def _post_here() -> Post:
    """Return what posts to the running loop."""
    token = anyio.lowlevel.current_token().native_token
    # Both loops have a non-blocking post under a name of their own; anyio offers only one that waits.
    post: Post = getattr(token, "call_soon_threadsafe", None) or cast(Any, token).run_sync_soon
    return post


async def wait_for(future: Future[Any]) -> None:
    """Wait until a future is done, in whatever thread; a cancelled caller leaves it as it is."""
    done = anyio.Event()
    post = _post_here()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody waits any more
            post(done.set)

    future.add_done_callback(tell)
    await done.wait()

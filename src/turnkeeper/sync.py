"""The blocking facade: the same names, arguments, results and errors for threads and plain scripts."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, Unpack, cast

from anyio.from_thread import start_blocking_portal

from turnkeeper.config import RuntimeOptions
from turnkeeper.durations import Duration
from turnkeeper.errors import (
    InvalidArgumentError,
    MissingExtraError,
    OutcomeUnknownError,
    RuntimeClosedError,
    RuntimeUsageError,
)
from turnkeeper.log import CLEAR, Receipt, Version
from turnkeeper.messages import MessageLike
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.plan import EVERYTHING
from turnkeeper.policies import Summarizer, keeping
from turnkeeper.requests import DELETE, STATS, Request
from turnkeeper.runtime import RuntimeCore, make_core
from turnkeeper.stats import MemoryStats, RuntimeStats
from turnkeeper.stores import Store
from turnkeeper.turns import TurnSession, check_not_nested, enter, entered, leave
from turnkeeper.windows import Messages, TurnWindow, Window
from turnkeeper.writes import add_request, set_request, window_and_pruning

__all__ = ["SyncChatMemory", "SyncRuntime", "SyncTurn", "open_sync_runtime"]

T = TypeVar("T")

_LOOK_EVERY: Final = 1.0
"""Seconds between looks at whether the event loop is still there to answer."""


class SyncChatMemory:
    """One conversation for blocking code: `ChatMemory` without `await`, for any number of threads at once.

    Messages are validated and encoded in the calling thread. A thread that is interrupted while it waits (Ctrl-C)
    does not stop its request. Errors are those of `ChatMemory`; on the event loop's own thread each call raises
    `RuntimeUsageError` with the name of the async one, since waiting there could never end.
    """

    __slots__ = ("_core", "_name", "_prunes", "_window")

    def __init__(self, core: RuntimeCore, name: MemoryName, window: Window | None, history: str | None) -> None:
        self._core = core
        self._name = name
        self._window, self._prunes = window_and_pruning(core, window, history)

    @property
    def id(self) -> str:
        """The memory's id."""
        return self._name.id

    @property
    def namespace(self) -> str:
        """The memory's namespace; empty by default."""
        return self._name.namespace

    def add(self, *messages: MessageLike | Iterable[MessageLike], idempotency_key: str | None = None) -> Receipt:
        """Append messages, all of them in one entry or none; see `ChatMemory.add`."""
        if entered.get():
            check_not_nested(self._core, self._name)
        return cast(Receipt, self._submit("add", add_request(messages, self._window, self._prunes, idempotency_key)))

    def set(
        self,
        *messages: MessageLike | Iterable[MessageLike],
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Replace all messages in one entry; see `ChatMemory.set`."""
        if entered.get():
            check_not_nested(self._core, self._name)
        return cast(
            Receipt, self._submit("set", set_request(messages, self._window, self._prunes, if_version, idempotency_key))
        )

    def messages(self, *, window: Window | None = None) -> Messages:
        """Return what the model should see; see `ChatMemory.messages`."""
        read = partial(self._core.read, self._name, self._window if window is None else window)
        return cast(Messages, _call(self._core, "await memory.messages()", read))

    def clear(self) -> Receipt:
        """Empty the memory and keep its name; see `ChatMemory.clear`."""
        if entered.get():
            check_not_nested(self._core, self._name)
        return cast(Receipt, self._submit("clear", Request(CLEAR, window=self._window, prunes=self._prunes)))

    def delete(self) -> bool:
        """Remove the memory and its name; see `ChatMemory.delete`."""
        if entered.get():
            check_not_nested(self._core, self._name)
        return cast(bool, self._submit("delete", Request(DELETE)))

    def stats(self) -> MemoryStats:
        """Return its version, message count, size and times; see `ChatMemory.stats`."""
        return cast(MemoryStats, self._submit("stats", Request(STATS, window=EVERYTHING)))

    def turn(
        self,
        *,
        on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue",
        commit: Literal["turn", "each"] = "turn",
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        max_duration: Duration = 900.0,
    ) -> SyncTurn:
        """Return a turn, to be opened by `with`; see `ChatMemory.turn`."""
        options = self._window, self._prunes, on_busy, commit, idempotency_key, timeout, max_duration
        return SyncTurn(TurnSession(self._core, self._name, *options))

    def compact(self, summarizer: Summarizer, *, keep: TurnWindow | int = 20) -> Receipt | None:
        """Put a summary in the place of the older turns; see `ChatMemory.compact`."""

        if entered.get():
            check_not_nested(self._core, self._name)

        async def compact() -> Receipt | None:
            return await self._core.compactor.compact(self._name, summarizer, keeping(keep))

        return cast("Receipt | None", _call(self._core, "await memory.compact(…)", compact))

    def _submit(self, method: str, request: Request) -> Any:
        return _call(self._core, f"await memory.{method}(…)", partial(self._core.submit, self._name, request))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} namespace={self.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle belongs to its runtime and can't be pickled; send the id and make a new handle there")


class SyncTurn:
    """A turn for blocking code: `Turn` without `await`."""

    __slots__ = ("_session",)

    def __init__(self, session: TurnSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        """A random id of 32 hexadecimal digits; empty before the turn is open."""
        return self._session.id

    @property
    def receipt(self) -> Receipt | None:
        """What the commit got; None before, and for a turn that added nothing."""
        return self._session.receipt

    def add(self, *messages: MessageLike | Iterable[MessageLike]) -> Receipt | None:
        """Add messages to the turn; see `Turn.add`."""
        session = self._session
        batch = session.encode(messages)
        return cast("Receipt | None", _call(session.core, "await turn.add(…)", partial(session.add, batch)))

    def messages(self, *, window: Window | None = None) -> Messages:
        """Return the committed view, with what the turn has added at its end; see `Turn.messages`."""
        session = self._session
        return cast(Messages, _call(session.core, "await turn.messages()", partial(session.messages, window)))

    def __enter__(self) -> Self:
        """Open the turn; see `Turn.__aenter__`."""
        session = self._session
        check_not_nested(session.core, session.name)
        try:
            _call(session.core, "async with memory.turn(…)", session.begin)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: the call goes on without us
                with contextlib.suppress(Exception):
                    session.core.portal.start_task_soon(session.abandon)
            raise
        enter(session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or after an error leave without a trace; see `Turn.__aexit__`."""
        session = self._session
        leave(session)
        if kind is None:
            _call(session.core, "async with memory.turn(…)", session.commit)
        else:
            with contextlib.suppress(RuntimeClosedError, OutcomeUnknownError):  # then it is over anyway
                _call(session.core, "async with memory.turn(…)", session.fail)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory={self._session.name.id!r} open={self._session.open}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a turn belongs to its runtime and can't be pickled")


class SyncRuntime:
    """A runtime for blocking code: `runtime.sync` of an open one, or what `open_sync_runtime` opens."""

    __slots__ = ("_core",)

    def __init__(self, core: RuntimeCore) -> None:
        self._core = core

    def memory(
        self,
        memory_id: str,
        namespace: str = "",
        window: Window | None = None,
        *,
        history: Literal["keep", "window"] | None = None,
    ) -> SyncChatMemory:
        """Return a handle; no I/O. See `Runtime.memory`."""
        return SyncChatMemory(self._core, memory_name(memory_id, namespace), window, history)

    def stats(self) -> RuntimeStats:
        """Return the runtime's counters at this instant; still after closing."""
        if self._core.closed:
            return self._core.stats()
        return cast(RuntimeStats, _call(self._core, "runtime.stats()", _async(self._core.stats)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} store={self._core.store.describe()!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a runtime can't be pickled; open one in each process")


@contextmanager
def open_sync_runtime(
    store: str | Store | None = None,
    *,
    backend: Literal["asyncio", "uvloop", "trio"] = "asyncio",
    backend_options: Mapping[str, Any] | None = None,
    **options: Unpack[RuntimeOptions],
) -> Iterator[SyncRuntime]:
    """Open a runtime for a plain script or threads, on an event loop in a thread of its own.

    Args:
        store: as for `open_runtime`.
        backend: "asyncio", "uvloop" or "trio".
        backend_options: passed on to `anyio.run`.
        options: as for `open_runtime`.

    Raises:
        InvalidArgumentError: an unknown backend, option or store.
        MissingExtraError: the backend is not installed.
        StoreError: the store can't be opened.
    """
    core = make_core(store, options)
    name, loop_options = _backend(backend, backend_options)
    with start_blocking_portal(name, loop_options) as portal, portal.wrap_async_context_manager(core):
        yield SyncRuntime(core)


def _backend(backend: str, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    loop_options = dict(options or {})
    if backend not in ("asyncio", "uvloop", "trio"):
        raise InvalidArgumentError(f"unknown backend {backend!r}; known are 'asyncio', 'uvloop', 'trio'")
    if backend != "asyncio" and importlib.util.find_spec(backend) is None:
        raise MissingExtraError(f"the backend {backend!r} is not installed; pip install {backend}")
    if backend == "uvloop":
        return "asyncio", {"use_uvloop": True, **loop_options}
    return backend, loop_options


def _async(function: Callable[[], T]) -> Callable[[], Any]:
    async def call() -> T:
        return function()

    return call


def _call(core: RuntimeCore, instead: str, function: Callable[[], Any]) -> Any:
    """Run an async function in the runtime's loop and wait for it in this thread."""
    core.check_reachable()
    if core.on_loop_thread():
        raise RuntimeUsageError(f"a blocking call on the event loop's own thread would never return; use '{instead}'")
    failure: list[Exception] = []

    async def run() -> Any:
        try:
            return await function()
        except Exception as error:  # kept apart from the portal's own errors
            failure.append(error)

    try:
        future = core.portal.start_task_soon(run)
        while not future.done() and not (wait([future], timeout=_LOOK_EVERY).done or core.closed):
            pass  # a Ctrl-C in the loop's thread can strike just as the answer is handed on, and then none comes
        result = future.result(timeout=_LOOK_EVERY)
    except (CancelledError, TimeoutError):
        raise OutcomeUnknownError(
            "the event loop was torn down while the call was under way: it happened whole or not at all"
        ) from None
    except RuntimeError:
        raise RuntimeClosedError("the runtime is closed; nothing was changed") from None
    if failure:
        raise failure.pop()
    return result

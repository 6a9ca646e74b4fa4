"""What a handle for blocking code does with its memory's log."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn, Self, cast

from turnkeeper.durations import Duration
from turnkeeper.history import HistoryPage, PageQuery, read_page
from turnkeeper.log import Receipt, Removed, Version
from turnkeeper.messages import Message, MessageLike
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.past import write_fork
from turnkeeper.requests import Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.sync.calling import call
from turnkeeper.sync.watching import SyncMemoryWatch
from turnkeeper.turns import check_not_nested, entered
from turnkeeper.watches import LogReader
from turnkeeper.windows import Window
from turnkeeper.writes import edit_request, pop_request, remove_request, undo_request, window_and_pruning

__all__ = ["SyncLogHandle"]


class SyncLogHandle:
    """The part of `SyncChatMemory` that works on the log itself: `LogHandle` without `await`."""

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

    def history(
        self,
        *,
        after: Version | None = None,
        before: Version | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> HistoryPage:
        """Read a page of the log; see `ChatMemory.history`."""
        query = PageQuery(after, before, limit, reverse).check()
        look_up = partial(self._core.look_up, partial(read_page, name=self._name, query=query))
        return cast(HistoryPage, call(self._core, "await memory.history(…)", look_up))

    def watch(self, after: Version | None = None, timeout: Duration | None = None) -> SyncMemoryWatch:
        """Return a watch, to be opened by `with` and iterated inside; see `ChatMemory.watch`.

        Args:
            after: begin behind this version; None: from now on.
            timeout: seconds without an event after which the iterator ends; None: it waits for ever.
        """
        return SyncMemoryWatch(self._core, LogReader(self._core, self._name, after), timeout)

    def undo(self, turns: int = 1, *, if_version: Version | None = None) -> Removed:
        """Take back the last turns; see `ChatMemory.undo`."""
        return cast(Removed, self._write("undo", undo_request(turns, self._window, if_version)))

    def pop(self, *, if_version: Version | None = None) -> Message | None:
        """Take the last message off and return it; see `ChatMemory.pop`."""
        removed = cast(Removed, self._write("pop", pop_request(self._window, if_version)))
        return removed.messages[-1] if removed.messages else None

    def edit(self, message_id: str, message: MessageLike, *, if_version: Version | None = None) -> Receipt:
        """Put a message in the place of another; see `ChatMemory.edit`."""
        return cast(Receipt, self._write("edit", edit_request(message_id, message, self._window, if_version)))

    def remove(self, message_id: str, *, if_version: Version | None = None) -> Removed:
        """Take a message out; see `ChatMemory.remove`."""
        return cast(Removed, self._write("remove", remove_request(message_id, self._window, if_version)))

    def fork(
        self, new_id: str, *, at: Version | None = None, history: bool = False, namespace: str | None = None
    ) -> Self:
        """Make a new memory that says what this one says; see `ChatMemory.fork`."""
        new = memory_name(new_id, self.namespace if namespace is None else namespace)
        if entered.get():
            check_not_nested(self._core, new)
        call(self._core, "await memory.fork(…)", partial(write_fork, self._core, self._name, new, at, history))
        return type(self)(self._core, new, self._window, "window" if self._prunes else "keep")

    def _write(self, method: str, request: Request) -> Any:
        if entered.get():
            check_not_nested(self._core, self._name)
        return self._submit(method, request)

    def _submit(self, method: str, request: Request) -> Any:
        return call(self._core, f"await memory.{method}(…)", partial(self._core.submit, self._name, request))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} namespace={self.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle belongs to its runtime and can't be pickled; send the id and make a new handle there")

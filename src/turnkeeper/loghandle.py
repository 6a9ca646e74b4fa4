"""What a handle does with its memory's log: look back, take back, change, fork."""

from __future__ import annotations

from functools import partial
from typing import NoReturn, Self

from turnkeeper.history import HistoryPage, PageQuery, read_page
from turnkeeper.log import Receipt, Removed, Version
from turnkeeper.messages import Message, MessageLike
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.past import write_fork
from turnkeeper.runtime import RuntimeCore
from turnkeeper.turns import check_not_nested, entered
from turnkeeper.watches import LogReader, MemoryWatch
from turnkeeper.windows import Window
from turnkeeper.writes import (
    edit_request,
    pop_request,
    remove_request,
    undo_request,
    window_and_pruning,
)

__all__ = ["LogHandle"]


class LogHandle:
    """The part of `ChatMemory` that works on the log itself.

    What it changes is one more entry in the log: the messages are gone from every view, and stay in the history.
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

    async def history(
        self,
        *,
        after: Version | None = None,
        before: Version | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> HistoryPage:
        """Read a page of the log: every entry, whether a view shows it or not. From the store, nothing else is loaded.

        Args:
            after: only entries behind this version, such as the last page's cursor; None: from the oldest that is kept.
            before: only entries before this version; None: up to the newest.
            limit: at most so many entries, 1 to 10 000.
            reverse: the newest first; then the cursor is the next page's `before`.

        Returns:
            The entries, and a cursor, which is None when there are no more for now.

        Raises:
            InvalidArgumentError: a bound is no version, or the limit is out of range.
            HistoryPrunedError: the entry behind `after`, or all before `before`, were pruned.
            ConflictError: a version belongs to another memory, or to one of this name that was deleted.
        """
        query = PageQuery(after, before, limit, reverse).check()
        return await self._core.look_up(partial(read_page, name=self._name, query=query))

    def watch(self, after: Version | None = None) -> MemoryWatch:
        """Return a watch, to be opened by `async with` and iterated inside: one event for each entry, in order.

        Each is a `HistoryEntry`, whoever wrote it, this process or another one. Every change is there once. Entries
        that were pruned before they were read, and a deletion, give one `Reset`. Closing the runtime ends it with
        `RuntimeClosedError`; another watch goes on with `after=event.version`.

        Args:
            after: begin behind this version. One of a memory that was deleted gives a `Reset` first. None: from now on.

        Raises:
            InvalidArgumentError: `after` is no version.
        """
        return MemoryWatch(LogReader(self._core, self._name, after))

    async def undo(self, turns: int = 1, *, if_version: Version | None = None) -> Removed:
        """Take back the last turns: the user messages that began them and all that came since. One entry.

        What stands before the first user message, and a summary, stay; a system message that came with a turn goes
        with it, and the one before is current again.

        Args:
            turns: how many, at least 1; of fewer, all are taken back.
            if_version: only if the memory is at exactly this version.

        Returns:
            The version without them, and what was taken back: nothing when there was no turn.

        Raises:
            InvalidArgumentError: `turns` is no whole number of at least 1.
            ConflictError: the memory is not at `if_version`, or somebody else wrote to it just now.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        removed: Removed = await self._core.submit(self._name, undo_request(turns, self._window, if_version))
        return removed

    async def pop(self, *, if_version: Version | None = None) -> Message | None:
        """Take the last message off and return it; None when there is none. One entry.

        Args:
            if_version: only if the memory is at exactly this version.

        Raises:
            ConflictError: as for `undo`.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        removed: Removed = await self._core.submit(self._name, pop_request(self._window, if_version))
        return removed.messages[-1] if removed.messages else None

    async def edit(self, message_id: str, message: MessageLike, *, if_version: Version | None = None) -> Receipt:
        """Put a message in the place of another, which keeps its id. One entry; an equal one is a no-op.

        Args:
            message_id: the other's `id`; of several with one id the latest.
            message: the new one, of the same role. Calls keep their ids, and a result answers the same call.
            if_version: only if the memory is at exactly this version.

        Raises:
            MessageNotFoundError: the memory's state has no such message; those of a summary can't be edited.
            InvalidMessageError: role, calls or id are not those of the other one.
            ConflictError: the memory is not at `if_version`.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        receipt: Receipt = await self._core.submit(
            self._name, edit_request(message_id, message, self._window, if_version)
        )
        return receipt

    async def remove(self, message_id: str, *, if_version: Version | None = None) -> Removed:
        """Take a message out, wherever it stands. One entry. Calls and their results go together.

        Args:
            message_id: the message's `id`; of several with one id the latest.
            if_version: only if the memory is at exactly this version.

        Returns:
            The version without it, and what was taken out.

        Raises:
            MessageNotFoundError: the memory's state has no such message.
            ConflictError: the memory is not at `if_version`.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        removed: Removed = await self._core.submit(self._name, remove_request(message_id, self._window, if_version))
        return removed

    async def fork(
        self, new_id: str, *, at: Version | None = None, history: bool = False, namespace: str | None = None
    ) -> Self:
        """Make a new memory that says what this one says, in one entry; both are independent afterwards.

        Args:
            new_id: the new memory's id; there must be none.
            at: as this memory was at that version; None: as it is now.
            history: copy the log too, entry by entry, so that message ids stay, and earlier versions can be read.
                Otherwise the new log begins with one entry that has the whole state.
            namespace: the new memory's; None: this one's.

        Returns:
            A handle of the new memory, with this one's window.

        Raises:
            InvalidMemoryIdError: id or namespace break the rules.
            MemoryExistsError: there is such a memory; nothing was changed.
            HistoryPrunedError: what it takes was pruned.
            ConflictError: this memory was never at `at`.
        """
        new = memory_name(new_id, self.namespace if namespace is None else namespace)
        if entered.get():
            check_not_nested(self._core, new)
        await write_fork(self._core, self._name, new, at, history)
        return type(self)(self._core, new, self._window, "window" if self._prunes else "keep")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} namespace={self.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle belongs to its runtime and can't be pickled; send the id and make a new handle there")

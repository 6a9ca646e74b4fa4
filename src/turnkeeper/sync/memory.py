"""The handle for blocking code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, cast

from msgspec import UNSET, UnsetType

from turnkeeper.durations import Duration
from turnkeeper.log import CLEAR, Receipt, Version
from turnkeeper.messages import MessageLike
from turnkeeper.metadata import Metadata
from turnkeeper.past import messages_at
from turnkeeper.plan import EVERYTHING
from turnkeeper.policies import RetentionPolicy, Summarizer, keeping
from turnkeeper.requests import DELETE, DESCRIBE, STATS, Request
from turnkeeper.stats import MemoryStats
from turnkeeper.sync.calling import call
from turnkeeper.sync.loghandle import SyncLogHandle
from turnkeeper.sync.turn import SyncTurn
from turnkeeper.turns import TurnSession, check_not_nested, entered
from turnkeeper.windows import Messages, TurnWindow, Window
from turnkeeper.writes import add_request, metadata_request, set_request

__all__ = ["SyncChatMemory"]


class SyncChatMemory(SyncLogHandle):
    """One conversation for blocking code: `ChatMemory` without `await`, for any number of threads at once.

    Messages are validated and encoded in the calling thread. A thread that is interrupted while it waits (Ctrl-C)
    does not stop its request. Errors are those of `ChatMemory`; on the event loop's own thread each call raises
    `RuntimeUsageError` with the name of the async one, since waiting there could never end.
    """

    __slots__ = ()

    def add(self, *messages: MessageLike | Iterable[MessageLike], idempotency_key: str | None = None) -> Receipt:
        """Append messages, all of them in one entry or none; see `ChatMemory.add`."""
        return cast(Receipt, self._write("add", add_request(messages, self._window, self._prunes, idempotency_key)))

    def set(
        self,
        *messages: MessageLike | Iterable[MessageLike],
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Replace all messages in one entry; see `ChatMemory.set`."""
        return cast(
            Receipt, self._write("set", set_request(messages, self._window, self._prunes, if_version, idempotency_key))
        )

    def messages(self, *, window: Window | None = None, at: Version | None = None) -> Messages:
        """Return what the model should see; see `ChatMemory.messages`."""
        window = self._window if window is None else window
        read = partial(self._core.read, self._name, window)
        if at is not None:
            read = partial(messages_at, self._core, self._name, at, window)
        return cast(Messages, call(self._core, "await memory.messages()", read))

    def clear(self) -> Receipt:
        """Empty the memory and keep its name; see `ChatMemory.clear`."""
        return cast(Receipt, self._write("clear", Request(CLEAR, window=self._window, prunes=self._prunes)))

    def delete(self) -> bool:
        """Remove the memory and its name; see `ChatMemory.delete`."""
        return cast(bool, self._write("delete", Request(DELETE)))

    def metadata(self) -> Metadata:
        """Return title, user data, kin, times and expiry; see `ChatMemory.metadata`."""
        return cast(Metadata, self._submit("metadata", Request(DESCRIBE)))

    def set_metadata(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        data: Mapping[str, Any] | UnsetType = UNSET,
        expires_after: Duration | UnsetType | None = UNSET,
        retention: RetentionPolicy | UnsetType | None = UNSET,
        if_revision: int | None = None,
    ) -> Metadata:
        """Change what is said about the memory; see `ChatMemory.set_metadata`."""
        request = metadata_request(title, data, expires_after, retention, if_revision)
        return cast(Metadata, self._submit("set_metadata", request))

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

        return cast("Receipt | None", call(self._core, "await memory.compact(…)", compact))

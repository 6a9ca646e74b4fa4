"""The handle: cheap, stateless, any number of them for one conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from turnkeeper.durations import Duration
from turnkeeper.log import CLEAR, Receipt, Version
from turnkeeper.loghandle import LogHandle
from turnkeeper.messages import MessageLike
from turnkeeper.metadata import Metadata
from turnkeeper.past import messages_at
from turnkeeper.plan import EVERYTHING
from turnkeeper.policies import RetentionPolicy, Summarizer, keeping
from turnkeeper.requests import DELETE, DESCRIBE, STATS, Request
from turnkeeper.stats import MemoryStats
from turnkeeper.turns import Turn, TurnOptions, TurnSession, check_not_nested, entered, run_in
from turnkeeper.windows import Messages, TurnWindow, Window
from turnkeeper.writes import add_request, metadata_request, set_request

__all__ = ["ChatMemory"]

T = TypeVar("T")


class ChatMemory(LogHandle):
    """One conversation, as its users see it. Made by `runtime.memory()`; making one does no I/O.

    Any number of tasks may use one handle, or handles of one memory, at once: requests take their turn, one sender's
    in its order. A caller that is cancelled before its request is taken has changed nothing; afterwards the request
    runs to its end, whole, and the caller sees only its cancellation.

    Every method may raise `RuntimeClosedError`, `RuntimeUsageError` (foreign thread, forked child), `OverloadedError`
    (with `on_overload="reject"`), `StoreUnavailableError` and other `StoreError`s, `MemoryCorruptError`; writers also
    `OutcomeUnknownError` and `ContentionError`.
    """

    __slots__ = ()

    async def add(self, *messages: MessageLike | Iterable[MessageLike], idempotency_key: str | None = None) -> Receipt:
        """Append messages, all of them in one entry or none.

        Args:
            messages: one message, several, or one iterable of them; ours, or mappings in OpenAI chat form. None at
                all is a no-op.
            idempotency_key: 1-512 bytes; a request repeated with it changes nothing and gets the first one's receipt,
                also after restart, clear and delete, for `idempotency_ttl`.

        Returns:
            The version with the messages in it, and their count; durable when it is there.

        Raises:
            InvalidMessageError: one is no message; nothing was added.
            WindowOverflowError: the handle's window has `on_overflow="error"`, and would not show one of them.
            IdempotencyMismatchError: the key was used for something else.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        request = add_request(messages, self._window, self._prunes, idempotency_key)
        receipt: Receipt = await self._core.submit(self._name, request)
        return receipt

    async def set(
        self,
        *messages: MessageLike | Iterable[MessageLike],
        if_version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Replace all messages, in one entry: nobody ever sees the memory empty or half replaced.

        Args:
            messages: as for `add`, at least one; to empty a memory, use `clear`.
            if_version: replace only what is at exactly this version, such as `messages().version`.
            idempotency_key: as for `add`.

        Returns:
            The version with the messages in it, and their count.

        Raises:
            InvalidMessageError: one is no message; nothing was changed.
            InvalidArgumentError: no message was given.
            WindowOverflowError: as for `add`.
            ConflictError: the memory is not at `if_version`.
            IdempotencyMismatchError: the key was used for something else.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        request = set_request(messages, self._window, self._prunes, if_version, idempotency_key)
        receipt: Receipt = await self._core.submit(self._name, request)
        return receipt

    async def messages(self, *, window: Window | None = None, at: Version | None = None) -> Messages:
        """Return what the model should see: an immutable tuple with `.version`, the same object until it changes.

        Shows every change acknowledged before the call, and none that is not committed. Results stand behind their
        call; a result that answers no call is not shown, and a call without one is treated by the window's
        `on_unanswered`.

        Args:
            window: compute this view instead of the handle's own.
            at: as it was at an earlier version, read from the store; None: now.

        Raises:
            InvalidArgumentError: the window's limit is a function, and returned no number of at least 1; or `at` is no
                version.
            HistoryPrunedError: what the state at `at` takes was pruned.
            ConflictError: the memory was never at `at`.
        """
        window = self._window if window is None else window
        if at is not None:
            return await messages_at(self._core, self._name, at, window)
        return await self._core.read(self._name, window)

    def turn(
        self,
        *,
        on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue",
        commit: Literal["turn", "each"] = "turn",
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        max_duration: Duration = 900.0,
    ) -> Turn:
        """Return a turn, to be opened by `async with`: exclusive, and committed whole or not at all.

        Args:
            on_busy: while another turn is open, "enqueue" waits in line, "reject" raises at once, "interrupt" takes
                its place (what it had committed stays), "rollback" likewise, and leaves no trace of it.
            commit: "turn": one entry when the turn is left normally; "each": one entry for each `turn.add`, durable
                when that returns.
            idempotency_key: as for `add`; a turn that was committed with it is not opened again.
            timeout: seconds to wait in line at most; None: as long as it takes.
            max_duration: seconds after which an open turn ends by itself, whether others wait or not.

        Raises:
            InvalidArgumentError: an unknown choice, a bad key, or a duration that is none.
        """
        return Turn(self._session(on_busy, commit, idempotency_key, timeout, max_duration))

    async def run_turn(self, function: Callable[[Turn], Awaitable[T]], **options: Unpack[TurnOptions]) -> T:
        """Run a function in a turn, and cancel it when the turn is interrupted.

        Args:
            function: called with the open turn; what it returns is returned.
            options: as for `turn`.

        Raises:
            TurnInterruptedError: the turn was interrupted; the function was cancelled.
        """
        return await run_in(self.turn(**options), function)

    async def compact(self, summarizer: Summarizer, *, keep: TurnWindow | int = 20) -> Receipt | None:
        """Put a summary in the place of the older turns, while adds and reads go on.

        The summariser sees whole turns, never the current one. Its result replaces exactly what it saw; what was added
        meanwhile stays. Every window shows it, behind the system message. What it replaces stays in the store.
        Cancelled, nothing has changed, unless the summary was being committed.

        Args:
            summarizer: called with the messages to sum up and with the summary that stands for what was before them
                (both tuples of `Message`); returns a text, which becomes a system message, or one message or several.
                An async function, or a blocking one, which runs in a thread.
            keep: the turns that stay as they are, as a `TurnWindow`, or as many messages.

        Returns:
            The receipt of the summary; None when there was nothing to sum up.

        Raises:
            CompactionError: one is under way in this runtime, the summariser returned nothing or was cancelled inside,
                or `max_compactions` leaves no room: inside a summariser, or while blocking ones hang in their threads.
            CompactionAbandonedError: what it saw was replaced meanwhile.
        """
        if entered.get():
            check_not_nested(self._core, self._name)
        return await self._core.compactor.compact(self._name, summarizer, keeping(keep))

    def _session(self, *options: Any) -> TurnSession:
        return TurnSession(self._core, self._name, self._window, self._prunes, *options)

    async def clear(self) -> Receipt:
        """Empty the memory and keep its name; a no-op when it is empty."""
        if entered.get():
            check_not_nested(self._core, self._name)
        receipt: Receipt = await self._core.submit(self._name, Request(CLEAR, window=self._window, prunes=self._prunes))
        return receipt

    async def delete(self) -> bool:
        """Remove the memory and its name; True when there was one. Works for a corrupt memory too."""
        if entered.get():
            check_not_nested(self._core, self._name)
        existed: bool = await self._core.submit(self._name, Request(DELETE))
        return existed

    async def metadata(self) -> Metadata:
        """Return title, user data, kin, times and expiry: of a memory that does not exist yet, too."""
        metadata: Metadata = await self._core.submit(self._name, Request(DESCRIBE))
        return metadata

    async def set_metadata(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        data: Mapping[str, Any] | UnsetType = UNSET,
        expires_after: Duration | UnsetType | None = UNSET,
        retention: RetentionPolicy | UnsetType | None = UNSET,
        if_revision: int | None = None,
    ) -> Metadata:
        """Change what is said about the memory; what is not given stays. Makes the memory where there is none.

        Not part of the log, so it changes no version, and waits for no turn of this runtime.

        Args:
            title: for people; None takes it away.
            data: any JSON object of the user's; replaces the old one whole.
            expires_after: seconds, or a `timedelta`, without a change after which the memory is deleted; 0: never,
                None: as the runtime says.
            retention: this memory's own policy; None: the runtime's.
            if_revision: change only what is at exactly this revision, such as `metadata().revision`.

        Returns:
            What is said now.

        Raises:
            InvalidArgumentError: a value is out of range, or JSON can't carry it unchanged.
            ConflictError: the metadata are not at `if_revision`.
        """
        request = metadata_request(title, data, expires_after, retention, if_revision)
        metadata: Metadata = await self._core.submit(self._name, request)
        return metadata

    async def stats(self) -> MemoryStats:
        """Return its version, message count, size and times."""
        stats: MemoryStats = await self._core.submit(self._name, Request(STATS, window=EVERYTHING))
        return stats

"""Exclusive turns: what a user asked and all that answers it, as one unit that nobody else writes into."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypedDict, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from turnkeeper.durations import Duration, seconds
from turnkeeper.errors import (
    InvalidArgumentError,
    NestedTurnError,
    TurnBusyError,
    TurnEndedError,
    TurnInterruptedError,
    TurnkeeperError,
)
from turnkeeper.log import Key, Receipt
from turnkeeper.messages import Message, MessageLike
from turnkeeper.names import MemoryName
from turnkeeper.requests import CLOSE_TURN, OPEN_TURN, TURN_ADD, TURN_READ, TURN_TRY, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.turning import committed_before
from turnkeeper.turnstile import INTERRUPT, ON_BUSY, OPEN, ROLLBACK, OpenTurn
from turnkeeper.windows import LimitedWindow, Messages, Window
from turnkeeper.windows.base import check_choice
from turnkeeper.writes import encode_batch, make_key

__all__ = ["Turn", "TurnOptions", "TurnSession", "check_not_nested", "enter", "entered", "leave", "run_in"]

T = TypeVar("T")

TURN: Final = "turn"
EACH: Final = "each"
_COMMITS: Final = (TURN, EACH)

_LONGEST_LEAVING: Final = 5.0
"""Seconds that leaving by an error or a cancellation waits for a store that stalls."""

entered: Final[ContextVar[tuple[TurnSession, ...]]] = ContextVar("turnkeeper_turns", default=())
"""The turns around the running code: empty, nothing can be nested. Tasks started in a turn inherit it, so that they are
told of their mistake as well."""


class TurnOptions(TypedDict, total=False):
    """The keyword arguments of `ChatMemory.turn`, described there."""

    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"]
    commit: Literal["turn", "each"]
    idempotency_key: str | None
    timeout: Duration | None
    max_duration: Duration


class TurnSession:
    """One turn's way through the runtime; the two facades are made of it. Used in the event loop's thread."""

    __slots__ = (
        "_abandoned",
        "_added",
        "_begun",
        "_commit",
        "_core",
        "_key",
        "_leaving",
        "_on_busy",
        "_prunes",
        "_timeout",
        "_turn",
        "_window",
        "max_duration",
        "name",
        "receipt",
    )

    def __init__(
        self,
        core: RuntimeCore,
        name: MemoryName,
        window: Window,
        prunes: bool,
        on_busy: str,
        commit: str,
        idempotency_key: str | None,
        timeout: Duration | None,
        max_duration: Duration,
    ) -> None:
        check_choice("on_busy", on_busy, ON_BUSY)
        check_choice("commit", commit, _COMMITS)
        if idempotency_key is not None and commit == EACH:
            raise InvalidArgumentError("idempotency_key needs commit='turn': it stands for the turn as a whole")
        self.name: MemoryName = name
        self.receipt: Receipt | None = None
        self.max_duration: float = seconds("max_duration", max_duration)
        self._core = core
        self._window = window
        self._prunes = prunes
        self._on_busy = on_busy
        self._commit = commit
        # What a turn says is not known when it is opened, and may differ when it is tried again: the key alone counts.
        self._key: Key | None = None if idempotency_key is None else make_key(OPEN_TURN, (), idempotency_key)
        self._timeout: float | None = None if timeout is None else seconds("timeout", timeout)
        self._added: tuple[Message, ...] = ()
        self._turn: OpenTurn | None = None
        self._begun = False
        self._abandoned = False
        self._leaving = False

    @property
    def open(self) -> bool:
        """Whether it has been opened and is not over."""
        return self._turn is not None and self._turn.state == OPEN

    @property
    def core(self) -> RuntimeCore:
        """The runtime it belongs to."""
        return self._core

    def turn(self) -> OpenTurn:
        """Return the open turn.

        Raises:
            TurnEndedError: it was not opened, or was left, or is being left.
            TurnInterruptedError: it was interrupted, or lasted too long.
        """
        turn = self._turn
        if turn is not None and (refusal := turn.refusal(self._added)) is not None:
            raise refusal
        if turn is None or self._leaving:
            raise TurnEndedError("the turn is not open; use it inside its 'async with'")
        return turn

    async def begin(self) -> None:
        """Open it; a caller that leaves before has changed nothing, and keeps nobody out."""
        if self._begun:
            raise TurnEndedError("a turn is opened once; ask the memory for another one")
        self._begun = True
        if self._key is not None and self._on_busy in (INTERRUPT, ROLLBACK):
            # Before anybody is interrupted for a turn that is not to be.
            stored = await self._core.receipt(self.name, self._key.key)
            if stored is not None:
                raise committed_before(self.name, self._key, stored)
        turn = self._core.make_turn(self.name, self.max_duration)
        request = Request(OPEN_TURN, key=self._key, window=self._window, turn=turn, on_busy=self._on_busy)
        try:
            if self._timeout is None:
                await self._core.submit(self.name, request)
            else:
                with anyio.fail_after(self._timeout):
                    await self._core.submit(self.name, request)
        except TimeoutError:
            self._core.leave_turn(turn)
        except BaseException:
            self._core.leave_turn(turn)
            raise
        else:
            self._turn = turn
            if self._abandoned:
                self.leave()
            return
        raise TurnBusyError(
            f"memory {self.name.id!r} (namespace {self.name.namespace!r}): other turns took longer than "
            f"{self._timeout} s (timeout); nothing was changed"
        )

    async def add(self, batch: tuple[Message, ...]) -> Receipt | None:
        """Add to the turn, or with `commit="each"` to the memory."""
        turn = self.turn()
        if self._commit == EACH:
            request = Request(TURN_ADD, batch, window=self._window, prunes=self._prunes, turn=turn)
            receipt: Receipt = await self._core.submit_at_once(request)
            self.receipt = receipt
            return receipt
        judged = isinstance(self._window, LimitedWindow) and self._window.on_overflow == "error"
        while True:
            before = self._added
            if judged:
                seen = Request(TURN_TRY, before + batch, window=self._window, turn=turn)
                await self._core.submit_at_once(seen)
            else:
                await checkpoint()
            self.turn()
            if self._added is before or not judged:
                break  # otherwise it was judged without what another task of the turn has added
        self._added += batch
        return None

    async def messages(self, window: Window | None) -> Messages:
        """Return the committed view with the turn's own messages at its end."""
        request = Request(TURN_READ, self._added, window=self._window if window is None else window, turn=self.turn())
        messages: Messages = await self._core.submit_at_once(request)
        return messages

    async def commit(self) -> None:
        """Commit what was added, in one entry, and let others in. From its first step on nothing can be added."""
        try:
            turn = self.turn()
        except TurnInterruptedError:
            await self.fail()
            raise
        self._leaving = True
        if not self._added:
            if self._may_be_undone:
                await self._close(turn)
            else:
                self._core.leave_turn(turn)
                await checkpoint()
            return
        request = Request(
            TURN_ADD, self._added, key=self._key, window=self._window, prunes=self._prunes, turn=turn, ends=True
        )
        try:
            self.receipt = await self._core.submit_at_once(request)
        except BaseException:
            self.leave()  # where the actor has not taken it
            raise

    async def _close(self, turn: OpenTurn) -> None:
        try:
            await self._core.submit_at_once(Request(CLOSE_TURN, turn=turn))
        except TurnkeeperError:
            self.leave()
            raise
        except BaseException:
            await self.fail()
            raise

    def leave(self) -> None:
        """End it without a trace of what was not committed."""
        if self._turn is not None:
            self._core.leave_turn(self._turn)

    @property
    def _may_be_undone(self) -> bool:
        """Whether another process can take back what it committed, as long as its lease is in the store."""
        return self._commit == EACH and self._core.store.shared

    async def fail(self) -> None:
        """End it without a trace of what was not committed, and what was committed so that it stays.

        For that it waits, whoever is cancelled, but not for ever.
        """
        self._leaving = True
        self.leave()
        if self._turn is not None and self._may_be_undone:
            with anyio.move_on_after(_LONGEST_LEAVING, shield=True), contextlib.suppress(TurnkeeperError):
                await self._core.submit_at_once(Request(CLOSE_TURN, turn=self._turn))

    async def abandon(self) -> None:
        """Leave it, or as soon as it is open: for a thread that was interrupted while it waited."""
        self._abandoned = True
        self.leave()
        await checkpoint()

    async def interrupted(self) -> None:
        """Wait until somebody else ends it."""
        if self._turn is None:
            self.turn()
        else:
            await self._turn.over.wait()

    def encode(self, messages: tuple[Any, ...]) -> tuple[Message, ...]:
        """Validate, encode and count what is to be added; in the caller's task or thread."""
        return encode_batch(messages, self._window)

    @property
    def id(self) -> str:
        """The turn's id."""
        return "" if self._turn is None else self._turn.id.hex()


class Turn:
    """A turn of one memory, from `memory.turn(…)`: an async context manager, entered once.

    One turn at a time: whoever writes from outside waits until it is over, and reads go on. Leaving it normally
    commits what was added, in one entry. An error or a cancellation leaves no trace, but for what `commit="each"` has
    committed.

    It owns no cancel scope, so a generator may yield inside it. Instead it is fenced: when another turn has taken its
    place, or it lasted longer than `max_duration`, its next `add`, `messages` or commit raises `TurnInterruptedError`.
    Opening another turn of the same memory inside it, or writing through a handle, raises `NestedTurnError` at once.
    """

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

    async def add(self, *messages: MessageLike | Iterable[MessageLike]) -> Receipt | None:
        """Add messages to the turn. Cancelled, it has added all of them or none.

        Args:
            messages: as for `ChatMemory.add`.

        Returns:
            With `commit="each"` the receipt: they are durable. Otherwise None: they are committed with the turn.

        Raises:
            InvalidMessageError: one is no message; nothing was added.
            WindowOverflowError: the handle's window has `on_overflow="error"`, and would not show one of them.
            TurnInterruptedError: the turn is over; nothing was added.
            TurnEndedError: the turn is not open.
            TurnConflictError: with `commit="each"`: another process took its place, or its lease ran out.
        """
        return await self._session.add(self._session.encode(messages))

    async def messages(self, *, window: Window | None = None) -> Messages:
        """Return the committed view, with what the turn has added at its end.

        Raises:
            TurnInterruptedError: the turn is over.
            TurnEndedError: the turn is not open.
        """
        return await self._session.messages(window)

    async def interrupted(self) -> None:
        """Wait until the turn is interrupted; for ever, when it is left normally."""
        await self._session.interrupted()

    async def __aenter__(self) -> Self:
        """Open the turn. Cancelled, nothing has happened and nobody is kept out.

        Raises:
            TurnBusyError: another turn is open, and `on_busy="reject"`, or `timeout` is over.
            NestedTurnError: this code runs inside an open turn of the same memory.
            TurnAlreadyCommittedError: a turn with this idempotency key was committed; it has the receipt.
            IdempotencyMismatchError: the key was used for something that is no turn.
            OverloadedError: `mailbox_size` turns wait already.
        """
        check_not_nested(self._session.core, self._session.name)
        await self._session.begin()
        enter(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or after an error leave without a trace. From the first step on nothing can be added.

        With `commit="each"` on a shared store it also waits until no other process can take back what was committed:
        after an error or a cancellation too, for 5 s at most.

        Raises:
            TurnInterruptedError: the turn is over, with `commit="each"` also because another process took its place;
                nothing was committed now.
            TurnConflictError: another process took its place, or its lease ran out; the error has its messages.
            OutcomeUnknownError: the store did not say whether the turn was committed; with `commit="each"`, that it is
                over: another process may take back what it committed, until its lease runs out.
        """
        leave(self._session)
        if kind is None:
            await self._session.commit()
        else:
            await self._session.fail()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory={self._session.name.id!r} open={self._session.open}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a turn belongs to its runtime and can't be pickled")


def enter(session: TurnSession) -> None:
    """Note that the running code is inside a turn."""
    entered.set((*entered.get(), session))


def leave(session: TurnSession) -> None:
    """Note that it is not any more. It may be left in another context than the one it was entered in."""
    entered.set(tuple([other for other in entered.get() if other is not session]))


def check_not_nested(core: RuntimeCore, name: MemoryName) -> None:
    """Refuse what would wait for the turn that it is part of.

    Raises:
        NestedTurnError: this code, or what started its task, is inside an open turn of the same memory.
    """
    for session in entered.get():
        if session.core is core and session.name == name and session.open:
            raise NestedTurnError(
                f"memory {name.id!r} (namespace {name.namespace!r}): this code runs inside an open turn of the same "
                "memory, which it would wait for; use 'turn.add', or leave the turn first"
            )


async def run_in(turn: Turn, function: Callable[[Turn], Awaitable[T]]) -> T:
    """Run a function in a turn, in a scope that ends with it."""
    failure: BaseException | None = None
    results: list[T] = []
    async with turn:
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    await turn.interrupted()
                    group.cancel_scope.cancel()

                group.start_soon(watch)
                try:
                    results.append(await function(turn))
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:  # raised outside, where the group can't wrap it
                    failure = error
                group.cancel_scope.cancel()
        finally:
            if failure is not None:
                raise failure
    return results[0]  # cancelled instead, leaving the turn has raised

"""Turns for blocking code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, cast

from turnkeeper.errors import OutcomeUnknownError, RuntimeClosedError
from turnkeeper.log import Receipt
from turnkeeper.messages import MessageLike
from turnkeeper.sync.calling import call
from turnkeeper.turns import TurnSession, check_not_nested, enter, leave
from turnkeeper.windows import Messages, Window

__all__ = ["SyncTurn"]


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
        return cast("Receipt | None", call(session.core, "await turn.add(…)", partial(session.add, batch)))

    def messages(self, *, window: Window | None = None) -> Messages:
        """Return the committed view, with what the turn has added at its end; see `Turn.messages`."""
        session = self._session
        return cast(Messages, call(session.core, "await turn.messages()", partial(session.messages, window)))

    def __enter__(self) -> Self:
        """Open the turn; see `Turn.__aenter__`."""
        session = self._session
        check_not_nested(session.core, session.name)
        try:
            call(session.core, "async with memory.turn(…)", session.begin)
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
            call(session.core, "async with memory.turn(…)", session.commit)
        else:
            with contextlib.suppress(RuntimeClosedError, OutcomeUnknownError):  # then it is over anyway
                call(session.core, "async with memory.turn(…)", session.fail)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} memory={self._session.name.id!r} open={self._session.open}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a turn belongs to its runtime and can't be pickled")

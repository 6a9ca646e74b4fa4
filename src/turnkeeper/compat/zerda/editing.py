"""Changing exchanges where they stand: read, change, and replace what was read unless somebody wrote meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from turnkeeper.compat.zerda.exchanges import Exchange
from turnkeeper.compat.zerda.mirror import ALL, Mirror
from turnkeeper.compat.zerda.references import Hold, holding
from turnkeeper.compat.zerda.turns import Turn, Written, new_id, split_turns, write_exchange
from turnkeeper.errors import ConflictError
from turnkeeper.log import SET, Receipt, Version
from turnkeeper.messages import Message, MessageLike, SystemMessage, encode_messages
from turnkeeper.requests import Request
from turnkeeper.sync import SyncChatMemory

__all__ = ["Draft", "EditableMirror", "Present"]

T = TypeVar("T")


class Present(NamedTuple):
    """A memory at one instant.

    Attributes:
        version: the memory's version then.
        head: the messages before the first user message.
        hidden: the turns that the window does not show, but that stay in the log.
        shown: the exchanges that it shows, each with its turn.
    """

    version: Version
    head: list[Message]
    hidden: list[Turn]
    shown: list[tuple[Exchange, Turn]]

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges alone."""
        return [exchange for exchange, _ in self.shown]


class Draft(NamedTuple):
    """An exchange as it shall be.

    Attributes:
        exchange: the one that changes, or a new one.
        written: what it becomes; None: it stays as it is.
    """

    exchange: Exchange
    written: Written | None = None


class EditableMirror(Mirror):
    """A mirror whose exchanges can be changed, by compare-and-set on the whole memory."""

    __slots__ = ()

    def present(self) -> Present:
        """Read everything, for a change that depends on it."""
        handle = self.handle()
        while True:
            everything = handle.messages(window=ALL)
            with self.lock:
                exchanges = list.copy(self) if self.is_at(everything.version) else None
            if exchanges is not None:
                head, turns = split_turns(everything)
                first = len(turns) - len(exchanges)
                # What is evicted for good may still lie in an entry with something that is not.
                hidden = [] if self.kind.prunes else turns[:first]
                return Present(everything.version, head, hidden, list(zip(exchanges, turns[first:], strict=True)))
            view = handle.messages()
            with self.lock:
                self.adopt(view)

    def edit(self, change: Callable[[list[Any]], T]) -> T:
        """Change a plain list of the exchanges, and install what it is then, in one step; return what `change` does.

        When somebody wrote meanwhile, `change` is called again with what there is then.

        Raises:
            TypeError: something is no exchange.
            InvalidMessageError: the store can't carry a value; nothing was changed.
        """
        while True:
            present = self.present()
            before = present.exchanges
            after = list(before)
            result = change(after)
            if len(after) == len(before) and all(map(_is, after, before)):
                return result
            try:
                with holding(self.references) as hold:
                    self.install(present, _drafts(before, after, hold))
            except ConflictError:
                continue
            return result

    def rewrite(self, exchange: Exchange, change: Callable[[dict[Any, Any]], T]) -> T:
        """Change the values of one exchange likewise; one that has left the memory is changed by itself."""
        while True:
            present = self.present()
            values = dict(exchange)
            result = change(values)
            if not any(known is exchange for known in present.exchanges):
                exchange.become(values)
                return result
            if exchange.id is None:
                exchange.id = new_id()
            try:
                with holding(self.references) as hold:
                    written = write_exchange(exchange.id, values, hold)
                    drafts = [Draft(known, written if known is exchange else None) for known in present.exchanges]
                    self.install(present, drafts)
            except ConflictError:
                continue
            return result

    def install(self, present: Present, drafts: Sequence[Draft], head: Sequence[MessageLike] | None = None) -> None:
        """Replace what `present` shows.

        Args:
            present: what it is made from.
            drafts: the exchanges that shall be shown.
            head: the messages before them; None: as they are.

        Raises:
            ConflictError: somebody wrote since; nothing was changed.
        """
        new_head = list(present.head if head is None else encode_messages(head))
        turns = {id(exchange): turn for exchange, turn in present.shown}
        stay = {id(draft.exchange) for draft in drafts}
        for exchange, turn in present.shown:
            if id(exchange) not in stay:  # what was said to the model in between stays
                new_head += [message for message in turn.messages if isinstance(message, SystemMessage)]
        messages: list[MessageLike] = [*new_head]
        for turn in present.hidden:
            messages += turn.messages
        for draft in drafts:
            messages += _composed(turns.get(id(draft.exchange)), draft.written)
        handle = self.handle()
        if messages:
            receipt = handle.set(messages, if_version=present.version)
        else:
            receipt = _set_nothing(handle, present.version)
        tokens = {exchange.token for exchange, _ in present.shown}
        with self.lock:
            if not self.knows(receipt.version):
                for exchange, written in drafts:
                    if written is not None:
                        exchange.take(written.exchange)
                    exchange.place = (-1, -1)
                if not present.hidden:  # else the window may show some of those now: the next look finds out
                    regular = len(messages) == 2 * len(drafts) and not new_head
                    self.replace([draft.exchange for draft in drafts], receipt.version, new_head, regular=regular)
        if self.references is not None:
            self.references.drop(tokens - {exchange.token for exchange, _ in drafts})


def _drafts(before: Sequence[Exchange], after: Iterable[Any], hold: Hold | None) -> list[Draft]:
    known = {id(exchange) for exchange in before}
    drafts = []
    for entry in after:
        if id(entry) in known:
            known.remove(id(entry))  # once: the log can't hold one exchange twice
            drafts.append(Draft(entry))
        elif isinstance(entry, Mapping):
            written = write_exchange(new_id(), entry, hold)
            drafts.append(Draft(written.exchange, written))
        else:
            raise TypeError(f"an exchange is a dict, not a {type(entry).__name__}")
    return drafts


def _composed(turn: Turn | None, written: Written | None) -> Sequence[MessageLike]:
    if written is None:
        assert turn is not None
        return turn.messages
    if turn is None:
        return written.question, written.answer
    messages: list[MessageLike] = [written.question, *turn.messages[1:]]
    if turn.answer:
        messages[turn.answer] = written.answer
    else:
        messages.append(written.answer)
    return messages


def _set_nothing(handle: SyncChatMemory, version: Version) -> Receipt:
    """Empty a memory that is at `version`: `clear` takes no condition, and `set` no empty list."""
    request = Request(SET, if_version=version, window=handle._window, prunes=handle._prunes)
    return cast(Receipt, handle._submit("set", request))


def _is(one: object, other: object) -> bool:
    return one is other

"""A memory's log for people and programs: page by page, or followed while somebody writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any, Final

import click

from turnkeeper.cli.rendering import format_time, message_body, message_title
from turnkeeper.cli.terminal import Stop, clean_line, complain, say, say_block
from turnkeeper.errors import MemoryCorruptError
from turnkeeper.folding import content_of
from turnkeeper.log import Head
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.stores import LoadQuery, Store, StoredEntry

__all__ = ["Shown", "follow", "show_history"]

_PAGE: Final = 200

_NEWEST: Final = 10
"""Entries shown before those that come, as `tail` does it."""

_PAUSE: Final = 0.5
"""Seconds between two looks: a person waits no longer than that, and a server doesn't notice."""

wait: Callable[[float], None] = sleep
"""Passes the time between two looks."""


class Shown:
    """How an entry is shown.

    Args:
        as_json: a line of JSON each, in ASCII.
        content: with what the messages say.
    """

    def __init__(self, *, as_json: bool, content: bool) -> None:
        self._as_json = as_json
        self._content = content

    def show(self, entry: StoredEntry, name: MemoryName) -> None:
        """Write one entry to stdout."""
        try:
            _, messages = content_of(entry, name)
        except MemoryCorruptError as error:
            self._show_corrupt(entry, error)
            return
        if self._as_json:
            described = [self._described(entry, index, message) for index, message in enumerate(messages)]
            self.say_json({"version": entry.version, "at": entry.at, "op": entry.op, "messages": described})
            return
        parts = [f"{message.role} {len(message.raw)}" for message in messages]
        cells = [str(entry.version), format_time(entry.at), entry.op, ", ".join(parts)]
        say("\t".join([clean_line(cell) for cell in cells]).rstrip(), style="bold" if self._content else "")
        if self._content:
            for number, message in enumerate(messages, 1):
                say("  " + clean_line(message_title(number, message)))
                say_block(message_body(message))

    def gap(self, what: str) -> None:
        """Say that entries are missing."""
        if self._as_json:
            self.say_json({"gap": what})
        complain(what)

    def say_json(self, value: object) -> None:
        """Write one line of JSON in printable ASCII."""
        click.echo(json.dumps(value, ensure_ascii=True))

    def _show_corrupt(self, entry: StoredEntry, error: MemoryCorruptError) -> None:
        if self._as_json:
            self.say_json({"version": entry.version, "at": entry.at, "op": entry.op, "corrupt": error.reason})
        else:
            cells = [str(entry.version), format_time(entry.at), entry.op, f"corrupt: {error.reason}"]
            say("\t".join([clean_line(cell) for cell in cells]), style="bold red")

    def _described(self, entry: StoredEntry, index: int, message: Message) -> dict[str, Any]:
        if self._content:
            return message.to_dict()
        described: dict[str, Any] = {"role": message.role, "bytes": len(message.raw)}
        described["id"] = message.id or f"{entry.version}.{index}"
        return described


def show_history(store: Store, name: MemoryName, limit: int | None, *, reverse: bool, shown: Shown) -> None:
    """Show a log's entries, the newest first where `reverse` says so; what was pruned is said.

    Raises:
        Stop: there is no such memory, or it goes away.
    """
    head = head_of(store, name)
    if head is None:
        raise missing(store, name)
    last: int | None = None
    count = 0
    for entry in _paged(store, head, reverse=reverse):
        if count == limit:
            complain(f"only {limit} entries are shown; see --limit and --reverse")
            return
        if not reverse and entry.version != (last or 0) + 1:
            shown.gap(_pruned((last or 0) + 1, entry.version - 1))
        if reverse and last is not None and entry.version != last - 1:
            shown.gap(_pruned(entry.version + 1, last - 1))
        shown.show(entry, name)
        last, count = entry.version, count + 1
    if reverse and last is not None and last > 1:
        shown.gap(_pruned(1, last - 1))


def _paged(store: Store, head: Head, *, reverse: bool) -> Iterator[StoredEntry]:
    after, before = 0, head.version + 1
    while page := store.entries(head.mid, after=after, before=before, limit=_PAGE, newest=reverse):
        if reverse:
            yield from reversed(page)
            before = page[0].version
        else:
            yield from page
            after = page[-1].version
        if before <= 1:
            return


def follow(store: Store, name: MemoryName, limit: int | None, *, shown: Shown) -> None:
    """Show the newest entries, and then each that comes, until interrupted.

    Raises:
        Stop: interrupted.
    """
    try:
        _follow(store, name, _NEWEST if limit is None else limit, shown)
    except KeyboardInterrupt:
        raise Stop("", 130) from None


def _follow(store: Store, name: MemoryName, newest: int, shown: Shown) -> None:
    head = head_of(store, name)
    if head is None:
        complain(f"there is no {named(name)} yet; waiting for it")
    mid = after = 0
    if head is not None:
        mid, after = head.mid, max(0, head.version - newest)
    while True:
        now = head_of(store, name)
        if mid and (now is None or now.mid != mid):
            shown.gap(f"{named(name)} was deleted behind entry {after}")
            mid = after = 0
        if now is not None:
            mid = now.mid
            after = _show_new(store, name, now, after, shown)
        wait(_PAUSE)


def _show_new(store: Store, name: MemoryName, head: Head, after: int, shown: Shown) -> int:
    while after < head.version:
        page = store.entries(head.mid, after=after, before=head.version + 1, limit=_PAGE)
        if not page:
            break  # deleted just now: the next look says so
        for entry in page:
            if entry.version != after + 1:
                shown.gap(_pruned(after + 1, entry.version - 1))
            shown.show(entry, name)
            after = entry.version
    return after


def head_of(store: Store, name: MemoryName) -> Head | None:
    """Return a memory's row."""
    return store.load([LoadQuery(name, newest=1)])[0].head


def missing(store: Store, name: MemoryName) -> Stop:
    """Make the error of a memory that is not there."""
    return Stop(f"{store.describe()} has no {named(name)}", status=1)


def named(name: MemoryName) -> str:
    """Name a memory for people."""
    return f"memory {name.id!r} in namespace {name.namespace!r}" if name.namespace else f"memory {name.id!r}"


def _pruned(first: int, last: int) -> str:
    return f"entry {first} was pruned" if first == last else f"entries {first} to {last} were pruned"

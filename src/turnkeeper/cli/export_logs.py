"""What an export reads of a memory: its log, entry by entry, as it stood at one instant; or what is said in it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from turnkeeper.cli.export_format import LineWriter, describe_memory, encode_entry, one_line
from turnkeeper.cli.renumbering import isolated_before, renumbered
from turnkeeper.cli.walking import log_entries, look_at
from turnkeeper.compat.langchain4j.serialization import messages_to_values
from turnkeeper.errors import MemoryCorruptError
from turnkeeper.folding import content_of
from turnkeeper.forking import fork_off
from turnkeeper.log import FORK, Details, Entry, Head, encode_payload
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.state import Log
from turnkeeper.stores import Listed, LoadQuery, Store, StoredEntry
from turnkeeper.wire import encode

__all__ = ["CONVERSATIONS", "ChangedMeanwhileError", "conversation_line", "history_lines", "state_lines"]


class ChangedMeanwhileError(Exception):
    """The memory was deleted or pruned while it was read: what was written of it does not count."""


def history_lines(store: Store, listed: Listed) -> Iterator[bytes]:
    """Yield the lines of a memory with its log up to the entry that is the last one now; none if it is gone.

    Entries never change, so pages read one after the other make the log as it stood at one instant.

    Raises:
        ChangedMeanwhileError: start again.
        MemoryCorruptError: an entry can't be decoded.
    """
    name = listed.name
    head = _head(store, name)
    if head is None or (head.version == 0 and head.meta is None):
        return
    isolated, first = isolated_before(store, head) if head.version else ([], 1)
    writer = LineWriter(describe_memory(name, head, first - 1))
    for entry in _numbered(_log(store, head, first, name), isolated, first, head, name):
        content_of(entry, name)  # what can't be read could not be imported either
        if line := writer.add(encode_entry(entry.op, entry.at, entry.payload)):
            yield line
    yield writer.end()


def _numbered(
    entries: Iterator[StoredEntry], isolated: Sequence[StoredEntry], first: int, head: Head, name: MemoryName
) -> Iterator[StoredEntry]:
    return entries if first == 1 else renumbered(entries, isolated, first, head, name)


def _log(store: Store, head: Head, first: int, name: MemoryName) -> Iterator[StoredEntry]:
    last = first - 1
    for entry in log_entries(store, head.mid, after=last, before=head.version + 1):
        if entry.version != last + 1:
            break
        yield entry
        last = entry.version
    if last == head.version:
        return
    now = _head(store, name)
    if now is not None and now.mid == head.mid and isolated_before(store, now)[1] <= last + 1:
        raise MemoryCorruptError(name.id, name.namespace, last + 1, "the entry is missing")
    raise ChangedMeanwhileError


def state_lines(store: Store, listed: Listed) -> Iterator[bytes]:
    """Yield the line of a memory with its present state as the one entry of a log: that of a fork.

    Raises:
        MemoryCorruptError: it can't be read.
    """
    log = _state(store, listed.name)
    head = _head(store, listed.name)
    if log is None or head is None:
        return
    state = fork_off(log)
    details = Details(leads=state.leads, summary=state.summary)
    payload = encode_payload(Entry(FORK, b"", state.messages, None, details))
    writer = LineWriter(describe_memory(listed.name, head, 0))
    if log.n:
        yield writer.add(encode_entry(FORK, log.updated_at, payload))
    yield writer.end()


def _openai(messages: Sequence[Message]) -> bytes:
    return b"[" + b",".join([one_line(message.raw) for message in messages]) + b"]"


def _langchain4j(messages: Sequence[Message]) -> bytes:
    values: list[dict[str, Any]] = messages_to_values(messages)
    return encode(values)


CONVERSATIONS: Final[dict[str, Callable[[Sequence[Message]], bytes]]] = {
    "openai": _openai,
    "langchain4j": _langchain4j,
}
"""By name, what writes the messages that a window without a limit shows."""


def conversation_line(store: Store, listed: Listed, write: Callable[[Sequence[Message]], bytes]) -> bytes:
    """Return the line of a memory with what is said in it now; an empty one if it says nothing, or is gone.

    Raises:
        MemoryCorruptError: it can't be read.
        UnsupportedByFormatError: the format has no place for something that it holds.
    """
    log = _state(store, listed.name)
    view = None if log is None else log.view(EVERYTHING, EVERYTHING.limit(listed.name.id))
    if not view:
        return b""
    head = encode({"id": listed.name.id, "namespace": listed.name.namespace})
    return head[:-1] + b',"messages":' + write(view) + b"}\n"


def _state(store: Store, name: MemoryName) -> Log | None:
    seen = look_at(store, name)
    if isinstance(seen, MemoryCorruptError):
        raise seen
    return seen if seen.mid else None


def _head(store: Store, name: MemoryName) -> Head | None:
    return store.load([LoadQuery(name, newest=1)])[0].head

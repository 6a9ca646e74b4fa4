"""Logs made of other logs: forks, whole copies, and what comes back from an export. Pure."""

from __future__ import annotations

import msgspec

from turnkeeper.errors import InvalidArgumentError, MemoryExistsError
from turnkeeper.folding import apply_entry
from turnkeeper.log import FORK, Details, Entry, Receipt, Version
from turnkeeper.messages import Message
from turnkeeper.names import MemoryName
from turnkeeper.requests import RESTORE, Request
from turnkeeper.revising import Revision, stale
from turnkeeper.state import Log

__all__ = ["Copied", "Copy", "Fork", "fork", "fork_off", "parent_of", "restore", "restore_request", "taken"]


class Fork(msgspec.Struct, frozen=True, gc=False):
    """A memory's whole state, to start another one with.

    Attributes:
        version: the state's.
        messages: all of it: a system message from before, a summary, the rest.
        leads: whether there is such a system message.
        summary: how many messages the summary has.
    """

    version: Version
    messages: tuple[Message, ...]
    leads: bool
    summary: int


def fork_off(log: Log) -> Fork:
    """Return what a fork starts with. Needs all messages."""
    before, summary = log.transcript.system_before, log.transcript.summary
    older = summary if before is None else (before, *summary)
    return Fork(log.version, (*older, *log.messages), before is not None, len(summary))


class Copied(msgspec.Struct, frozen=True, gc=False):
    """Another memory's log, to be a new one's, and that memory's id, namespace and version."""

    entries: tuple[Entry, ...]
    origin: tuple[str, str, str]


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Entries to be made, of which the log holds the effect already, and what their request is answered."""

    entries: tuple[Entry, ...]
    answer: Receipt


def fork(log: Log, request: Request, name: MemoryName) -> Revision | Copy | MemoryExistsError:
    """Start a new memory; about: the details of its entry, or a whole log: a `Copied`, or just the entries."""
    if log.n:
        return taken(name)
    if not isinstance(request.about, Details):
        entries: tuple[Entry, ...] = request.about.entries if isinstance(request.about, Copied) else request.about
        for entry in entries:
            apply_entry(log, entry.op, entry.details or Details(), entry.messages)
        return Copy(entries, Receipt(log.version, log.count))
    details = request.about
    log.fork(request.messages, details.leads, details.summary)
    return Revision(FORK, details, request.messages, Receipt(log.version, len(request.messages)))


def taken(name: MemoryName) -> MemoryExistsError:
    """Make the error of a fork whose name is in use."""
    return MemoryExistsError(
        f"memory {name.id!r} (namespace {name.namespace!r}) exists, and a fork makes a new one; choose another id, "
        "or delete that one first"
    )


def parent_of(request: Request) -> tuple[str, str, str] | None:
    """Return what a fork is made of: id, namespace and version; None: of nothing in this store."""
    return request.about.origin if isinstance(request.about, (Details, Copied)) else None


def restore_request(entries: tuple[Entry, ...], at: Version) -> Request:
    """Return a request to write entries of another log, in one slice, if the memory is at exactly this version."""
    request = Request(RESTORE, if_version=at, about=entries)
    request.size = sum([len(message.raw) for entry in entries for message in entry.messages])
    return request


def restore(log: Log, request: Request, name: MemoryName) -> Copy | Exception:
    """Take entries as they were; about: these. Whatever is held of the log is enough: each says what it changes."""
    if (refusal := stale(log, request, name)) is not None:
        return refusal
    mark, entries = log.mark(), request.about
    try:
        if all(apply_entry(log, entry.op, entry.details or Details(), entry.messages) for entry in entries):
            return Copy(entries, Receipt(log.version, log.count))
    except Exception:  # it comes from a file: whatever is wrong with it, this memory alone is concerned
        pass
    log.rollback(mark)
    return InvalidArgumentError(f"memory {name.id!r} (namespace {name.namespace!r}): these entries make no log")

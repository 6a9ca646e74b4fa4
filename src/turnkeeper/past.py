"""A memory as it was: what a window showed of it, and other memories made from it."""

from __future__ import annotations

from functools import partial

from turnkeeper.earlier import copied_entries, log_at
from turnkeeper.errors import MemoryExistsError
from turnkeeper.forking import Copied, Fork, fork_off, taken
from turnkeeper.history import check_version, pruned
from turnkeeper.log import FORK, Details, Version
from turnkeeper.messages import restore_message
from turnkeeper.metadata import Metadata, with_fork, without_fork
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import DESCRIBE, FORK_OFF, ONLY_EXISTING, SET_METADATA, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import Store
from turnkeeper.windows import Messages, Window

__all__ = ["messages_at", "write_fork"]


async def messages_at(core: RuntimeCore, name: MemoryName, at: Version, window: Window) -> Messages:
    """Return what a window shows of a memory at an earlier version; see `ChatMemory.messages`."""
    check_version(at, "at")
    log = await core.look_up(partial(log_at, name=name, version=at))
    view = log.view(window, window.limit(name.id))  # here, since a window is the user's code and fails alone
    if view is None:
        raise pruned(name, log.after + 1)
    return view


async def write_fork(core: RuntimeCore, name: MemoryName, new: MemoryName, at: Version | None, history: bool) -> None:
    """Write a memory's state, or its whole log, to a new one; see `LogHandle.fork`.

    Cancelled before the new memory's actor takes it, nothing has changed; afterwards it is made.
    """
    there: Metadata = await core.submit(new, Request(DESCRIBE))
    if there.version.n:
        raise taken(new)  # before anything is changed; who comes between is told further down
    request = await _fork_request(core, name, at, history)
    kin = new.id, new.namespace
    known: Metadata = await core.submit(name, Request(DESCRIBE))
    listed = kin in known.forks
    # First the parent lists it: a crash in between leaves a name too many there, and never a fork that nobody knows.
    if not listed:
        await core.submit(name, Request(SET_METADATA, about=(partial(with_fork, kin=kin), ONLY_EXISTING)))
    try:
        await core.submit(new, request)
    except MemoryExistsError:
        if not listed:
            await core.submit(name, Request(SET_METADATA, about=(partial(without_fork, kin=kin), ONLY_EXISTING)))
        raise


async def _fork_request(core: RuntimeCore, name: MemoryName, at: Version | None, history: bool) -> Request:
    check_version(at, "at")
    if history:
        if at is None:
            at = (await core.read(name, EVERYTHING)).version  # what is under way comes first
        entries = await core.look_up(partial(copied_entries, name=name, at=at))
        return Request(FORK, about=Copied(entries, (name.id, name.namespace, str(at))))
    fork: Fork
    if at is None:
        fork = await core.submit(name, Request(FORK_OFF, window=EVERYTHING))
    else:
        fork = await core.look_up(partial(_fork_at, name=name, at=at))
    # Messages know their place, and there they get another.
    messages = tuple([restore_message(message.raw) for message in fork.messages])
    details = Details(leads=fork.leads, summary=fork.summary, origin=(name.id, name.namespace, str(fork.version)))
    return Request(FORK, messages, about=details)


def _fork_at(store: Store, name: MemoryName, at: Version) -> Fork:
    log = log_at(store, name, at)
    if not log.complete:
        raise pruned(name, log.after + 1)
    return fork_off(log)

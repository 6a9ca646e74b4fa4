"""All memories of a store: listed in pages, and erased for good."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import partial
from typing import Final

import anyio
import msgspec

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.metadata import Metadata, describe
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.requests import DELETE, DESCRIBE, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import Store

__all__ = ["EVERYTHING_SAID", "Erasure", "MemoryPage", "MemoryQuery", "erase", "erase_all", "list_memories"]

EVERYTHING_SAID: Final = "every conversation"
"""What `erase_all(confirm=…)` has to be told when no namespace is named."""

_LONGEST_PAGE: Final = 10_000
_AT_ONCE: Final = 64
"""Memories erased at once."""

_PAGE: Final = 500


class MemoryPage(msgspec.Struct, frozen=True):
    """A part of the list of memories.

    Attributes:
        memories: what is said about each, in byte order of namespace and id.
        cursor: where the next page goes on; None: there are no more.
    """

    memories: tuple[Metadata, ...]
    cursor: str | None


class MemoryQuery(msgspec.Struct, frozen=True, gc=False):
    """Which memories, and how many; see `Runtime.memories`."""

    namespace: str | None
    prefix: str
    updated_after: int
    limit: int
    cursor: str | None

    def check(self) -> MemoryQuery:
        """Return this query.

        Raises:
            InvalidArgumentError: one of its parts is out of range, or the cursor is none.
        """
        check_scope(self.namespace, self.prefix)
        if not isinstance(self.updated_after, int) or self.updated_after < 0:
            raise InvalidArgumentError("updated_after is a time in microseconds, such as metadata().updated_at")
        if not isinstance(self.limit, int) or not 1 <= self.limit <= _LONGEST_PAGE:
            raise InvalidArgumentError(f"limit must be a whole number from 1 to {_LONGEST_PAGE}")
        if self.cursor is not None:
            _place(self.cursor)
        return self


class Erasure(msgspec.Struct, frozen=True, gc=False):
    """What was erased, or would be.

    Attributes:
        ids: id and namespace of each memory.
        count: how many they are.
        dry_run: nothing was changed.
        blocked: what kept the store from making the content unreadable in its files, such as another program that
            still reads an old state: erase again (nothing at all will do) when it is gone. None: nothing.
    """

    ids: tuple[tuple[str, str], ...]
    count: int
    dry_run: bool
    blocked: str | None


def check_scope(namespace: str | None, prefix: str) -> None:
    """Refuse what is no namespace or prefix.

    Raises:
        InvalidArgumentError: one is no str, or breaks the rules of names.
    """
    if namespace is not None:
        memory_name("any", namespace)
    if not isinstance(prefix, str):
        raise InvalidArgumentError("a prefix is a str: what ids begin with")
    if prefix:
        memory_name(prefix, "")


async def list_memories(core: RuntimeCore, query: MemoryQuery) -> MemoryPage:
    """Read a page of the list; from the store, nothing is loaded."""
    return await core.look_up(partial(_read_list, query=query))


def _read_list(store: Store, query: MemoryQuery) -> MemoryPage:
    after = None if query.cursor is None else _place(query.cursor)
    found: list[Metadata] = []
    while True:
        listed = store.names(
            namespace=query.namespace,
            after=after,
            limit=query.limit - len(found),
            prefix=query.prefix,
            updated_after=query.updated_after,
        )
        # A row that is there for a turn's lease alone is no memory yet.
        found += [describe(each.name, each.head) for each in listed if each.head.version or each.head.meta_version]
        if not listed or len(listed) < query.limit - len(found) or len(found) == query.limit:
            break
        after = listed[-1].name
    more = bool(listed) and len(found) == query.limit
    return MemoryPage(tuple(found), _cursor(listed[-1].name) if more else None)


def _cursor(name: MemoryName) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(tuple(name))).decode()


def _place(cursor: str) -> MemoryName:
    try:
        return MemoryName(*msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str]))
    except (msgspec.MsgspecError, binascii.Error, ValueError, TypeError):
        raise InvalidArgumentError("the cursor is none of a page of memories") from None


async def erase(
    core: RuntimeCore,
    ids: Iterable[str] | None,
    namespace: str | None,
    prefix: str | None,
    *,
    dry_run: bool,
    forks: bool,
) -> Erasure:
    """Erase memories by id, or by what their ids begin with; see `Runtime.erase`."""
    if (ids is None) == (prefix is None):
        raise InvalidArgumentError("erase takes either ids or a prefix")
    if ids is not None:
        if isinstance(ids, str):
            raise InvalidArgumentError("ids is a list of ids, not one str")
        names = [memory_name(each, namespace or "") for each in ids]
        return await _Eraser(core, dry_run=dry_run, forks=forks).erase(names)
    assert prefix is not None
    if not prefix:
        raise InvalidArgumentError("an empty prefix would erase everything; that is erase_all(confirm=…)")
    check_scope(namespace or "", prefix)
    return await _Eraser(core, dry_run=dry_run, forks=forks).erase_listed(namespace or "", prefix)


async def erase_all(core: RuntimeCore, confirm: str, namespace: str | None) -> Erasure:
    """Erase everything, or one namespace; see `Runtime.erase_all`."""
    wanted = EVERYTHING_SAID if namespace is None else namespace
    if confirm != wanted:
        raise InvalidArgumentError(f"to erase all, say confirm={wanted!r}; nothing was changed")
    check_scope(namespace, "")
    return await _Eraser(core, dry_run=False, forks=False).erase_listed(namespace, "")


class _Eraser:
    """One erasure: deletes memory by memory through their actors, then has the store make it unreadable.

    Cancelled or failing, what was deleted stays deleted, and may still be readable in the store's files: erase again.
    """

    def __init__(self, core: RuntimeCore, *, dry_run: bool, forks: bool) -> None:
        self._core = core
        self._dry_run = dry_run
        self._forks = forks
        self._erased: dict[MemoryName, None] = {}
        self._failure: Exception | None = None

    async def erase(self, names: Iterable[MemoryName]) -> Erasure:
        """Erase memories by name, and those forked off them where that is wanted."""
        await self._erase(names)
        return await self._finish()

    async def erase_listed(self, namespace: str | None, prefix: str) -> Erasure:
        """Erase all memories of a namespace (None: of all) whose ids begin so."""
        after: MemoryName | None = None
        while True:
            listed = await self._core.look_up(
                lambda store: store.names(namespace=namespace, after=after, limit=_PAGE, prefix=prefix)  # noqa: B023
            )
            await self._erase([each.name for each in listed if each.head.version or each.head.meta_version])
            if len(listed) < _PAGE:
                return await self._finish()
            after = listed[-1].name

    async def _erase(self, names: Iterable[MemoryName]) -> None:
        waiting = [name for name in dict.fromkeys(names) if name not in self._erased]
        while waiting:
            batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            kin: list[MemoryName] = []
            async with anyio.create_task_group() as tasks:
                for name in batch:
                    tasks.start_soon(self._try_to_erase, name, kin)
            if self._failure is not None:
                raise self._failure
            waiting += [name for name in dict.fromkeys(kin) if name not in self._erased]

    async def _try_to_erase(self, name: MemoryName, kin: list[MemoryName]) -> None:
        try:
            await self._erase_one(name, kin)
        except Exception as error:
            self._failure = error

    async def _erase_one(self, name: MemoryName, kin: list[MemoryName]) -> None:
        exists = False
        if self._forks or self._dry_run:
            known: Metadata = await self._core.submit(name, Request(DESCRIBE))
            exists = bool(known.version.n or known.revision)
            for fork_id, namespace in known.forks if self._forks else ():
                fork = MemoryName(namespace, fork_id)
                if await self._is_of(fork, name):
                    kin.append(fork)
        if not self._dry_run:
            exists = await self._core.submit(name, Request(DELETE))
        if exists:
            self._erased[name] = None

    async def _is_of(self, fork: MemoryName, parent: MemoryName) -> bool:
        """Tell whether a memory is what its parent lists: another may have its name by now."""
        known: Metadata = await self._core.submit(fork, Request(DESCRIBE))
        return known.parent is not None and known.parent[:2] == (parent.id, parent.namespace)

    async def _finish(self) -> Erasure:
        blocked = None if self._dry_run else await self._core.scrub()
        ids = tuple([(name.id, name.namespace) for name in self._erased])
        return Erasure(ids, len(ids), self._dry_run, blocked)

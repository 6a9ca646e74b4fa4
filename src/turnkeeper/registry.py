"""All memories of a store: listed in pages, and erased for good."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import anyio
import msgspec

from turnkeeper.errors import InvalidArgumentError
from turnkeeper.log import LoadQuery
from turnkeeper.metadata import Metadata, describe, name_of, without_fork
from turnkeeper.names import MemoryName, memory_name
from turnkeeper.requests import DELETE, ONLY_EXISTING, SET_METADATA, Request
from turnkeeper.runtime import RuntimeCore
from turnkeeper.stores import Listed, Store

__all__ = ["EVERYTHING_SAID", "Erasure", "MemoryPage", "MemoryQuery", "erase", "erase_all", "list_memories"]

EVERYTHING_SAID: Final = "every conversation"
"""What `erase_all(confirm=…)` has to be told when no namespace is named."""

_LONGEST_PAGE: Final = 10_000
_AT_ONCE: Final = 64
"""Memories erased at once."""

_PAGE: Final = 500
"""Memories looked at in one step."""


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
        if not _is_number(self.updated_after) or not 0 <= self.updated_after < 2**63:
            raise InvalidArgumentError("updated_after is a time in microseconds, such as metadata().updated_at")
        if not _is_number(self.limit) or not 1 <= self.limit <= _LONGEST_PAGE:
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


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
    found: list[Listed] = []
    while (missing := query.limit + 1 - len(found)) > 0:
        listed = store.names(
            namespace=query.namespace,
            after=after,
            limit=missing,
            prefix=query.prefix,
            updated_after=query.updated_after,
        )
        found += filter(_exists, listed)
        if len(listed) < missing:
            break
        after = listed[-1].name
    page = found[: query.limit]
    memories = tuple([describe(each.name, each.head) for each in page])
    return MemoryPage(memories, _cursor(page[-1].name) if len(found) > len(page) else None)


def _exists(listed: Listed) -> bool:
    """Tell whether a row is more than the lease of a turn."""
    return bool(listed.head.version or listed.head.meta_version)


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
    namespace: str,
    prefix: str | None,
    *,
    dry_run: bool,
    forks: bool,
) -> Erasure:
    """Erase memories by id, or by what their ids begin with; see `Runtime.erase`."""
    if (ids is None) == (prefix is None):
        raise InvalidArgumentError("erase takes either ids or a prefix")
    memory_name("any", namespace)
    eraser = _Eraser(core, dry_run=dry_run, forks=forks)
    if ids is not None:
        if isinstance(ids, (str, bytes)):
            raise InvalidArgumentError("ids is a list of ids, not one of them")
        return await eraser.erase([memory_name(each, namespace) for each in ids])
    if prefix == "":
        raise InvalidArgumentError("an empty prefix would erase everything; that is erase_all(confirm=…)")
    assert prefix is not None
    check_scope(namespace, prefix)
    return await eraser.erase_listed(namespace, prefix)


async def erase_all(core: RuntimeCore, confirm: str, namespace: str | None) -> Erasure:
    """Erase everything, or one namespace; see `Runtime.erase_all`."""
    check_scope(namespace, "")
    wanted = namespace or EVERYTHING_SAID  # an empty name would confirm nothing
    if confirm != wanted:
        raise InvalidArgumentError(f"to erase all, say confirm={wanted!r}; nothing was changed")
    return await _Eraser(core, dry_run=False, forks=False).erase_listed(namespace, "")


class _Eraser:
    """One erasure: deletes memory by memory through their actors, then has the store make it unreadable.

    Forks go before what they were forked off, which alone knows of them: cancelled or failing at any point, what was
    deleted stays deleted, and may still be readable in the store's files, and to erase again does the rest.
    """

    def __init__(self, core: RuntimeCore, *, dry_run: bool, forks: bool) -> None:
        self._core = core
        self._dry_run = dry_run
        self._forks = forks
        self._going: set[MemoryName] = set()
        self._erased: dict[MemoryName, None] = {}

    async def erase(self, names: Sequence[MemoryName]) -> Erasure:
        """Erase memories by name, and those forked off them where that is wanted."""
        names = list(dict.fromkeys(names))
        for start in range(0, len(names), _PAGE):
            await self._erase(await self._describe(names[start : start + _PAGE]))
        return await self._finish()

    async def erase_listed(self, namespace: str | None, prefix: str) -> Erasure:
        """Erase all memories of a namespace (None: of all) whose ids begin so."""
        after: MemoryName | None = None
        while True:
            look = partial(_list_page, namespace=namespace, after=after, prefix=prefix)
            listed = await self._core.look_up(look)
            await self._erase([describe(each.name, each.head) for each in listed if _exists(each)])
            if len(listed) < _PAGE:
                return await self._finish()
            after = listed[-1].name

    async def _erase(self, wanted: list[Metadata]) -> None:
        """Erase some memories; none of them need exist."""
        generations = [wanted]
        seen = self._going = {name_of(each) for each in wanted}
        if self._forks:
            while kin := await self._kin(generations[-1], seen):
                generations.append(kin)
        for generation in reversed(generations):
            for start in range(0, len(generation), _AT_ONCE):
                await self._erase_batch(generation[start : start + _AT_ONCE])

    async def _kin(self, parents: list[Metadata], seen: set[MemoryName]) -> list[Metadata]:
        """Return what was forked off some memories, but for what was seen; another may have a fork's name by now."""
        kin: list[Metadata] = []
        for parent in parents:
            names = [MemoryName(namespace, fork_id) for fork_id, namespace in parent.forks]
            names = [name for name in names if name not in seen]
            for start in range(0, len(names), _PAGE):
                for fork in await self._describe(names[start : start + _PAGE]):
                    if fork.parent is not None and fork.parent[:2] == (parent.id, parent.namespace):
                        seen.add(name_of(fork))
                        kin.append(fork)
        return kin

    async def _erase_batch(self, batch: list[Metadata]) -> None:
        failures: list[Exception] = []

        async def try_to_erase(known: Metadata) -> None:
            try:
                await self._erase_one(known)
            except Exception as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for known in batch:
                tasks.start_soon(try_to_erase, known)
        if failures:
            raise failures[0]

    async def _erase_one(self, known: Metadata) -> None:
        name = name_of(known)
        if self._dry_run:
            if known.version.n or known.revision:
                self._erased[name] = None
            return
        if await self._core.submit(name, Request(DELETE)):
            self._erased[name] = None
        if known.parent is not None and (parent := MemoryName(known.parent[1], known.parent[0])) not in self._going:
            await self._unlist(name, parent)

    async def _unlist(self, fork: MemoryName, parent: MemoryName) -> None:
        """Let the memory that a fork came from forget its name."""
        kin = fork.id, fork.namespace
        (known,) = await self._describe([parent])
        if kin in known.forks:
            change = partial(without_fork, kin=kin)
            await self._core.submit(parent, Request(SET_METADATA, about=(change, ONLY_EXISTING)))

    async def _describe(self, names: Sequence[MemoryName]) -> list[Metadata]:
        """Return what the store says of memories: also of those that can't be decoded."""
        return await self._core.look_up(partial(_describe, names=names))

    async def _finish(self) -> Erasure:
        blocked = None if self._dry_run else await self._core.scrub()
        ids = tuple([(name.id, name.namespace) for name in self._erased])
        return Erasure(ids, len(ids), self._dry_run, blocked)


def _list_page(store: Store, namespace: str | None, after: MemoryName | None, prefix: str) -> list[Listed]:
    return store.names(namespace=namespace, after=after, limit=_PAGE, prefix=prefix)


def _describe(store: Store, names: Sequence[MemoryName]) -> list[Metadata]:
    loaded = store.load([LoadQuery(name, newest=1) for name in names])
    return [describe(name, each.head) for name, each in zip(names, loaded, strict=True)]

"""The store on Redis or Valkey: one script for each slice, a group of them in one trip to the server."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnkeeper.errors import StoreError, StoreInUseError, StoreUnavailableError
from turnkeeper.log import (
    Committed,
    Loaded,
    LoadQuery,
    NotCommitted,
    Outcome,
    Rejected,
    Slice,
    StoredEntry,
    StoredReceipt,
    Unknown,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.stores import redis_records as records
from turnkeeper.stores.base import Changes, Cursor, KeptReceipt, Listed, Reseal, Store, Transfer
from turnkeeper.stores.redis_changes import changes_after
from turnkeeper.stores.redis_links import Command, Link, Reply, call, command
from turnkeeper.stores.redis_listing import names_between
from turnkeeper.stores.redis_notices import Notices
from turnkeeper.stores.redis_reading import Reader
from turnkeeper.stores.redis_records import BUCKETS, bucket_of, member_of, tag_of
from turnkeeper.stores.redis_scripts import LOAD, PAGE, SETTLE, Script
from turnkeeper.stores.redis_settings import check_format, check_rights, check_settings
from turnkeeper.stores.redis_urls import place_of
from turnkeeper.stores.redis_write_scripts import ADOPT, COMMIT, RESEAL
from turnkeeper.stores.redis_writing import Writer

__all__ = ["RedisStore"]


class RedisStore(Store):
    """A Redis (6.2 or newer) or Valkey server, or a cluster of them; several processes may use it at once.

    Args:
        url: `redis://user:password@host:6379/0`, with TLS `rediss://`; options are listed in docs/redis.md.
        read_only: look only; the server's user needs no right to write.
        clock: returns seconds since the epoch; None: the server's clock.
    """

    shared: bool = True
    announces: bool = True

    def __init__(self, url: str, *, read_only: bool = False, clock: Callable[[], float] | None = None) -> None:
        """Read the URL; nothing is connected yet.

        Raises:
            InvalidStoreURLError: the URL says something that is unknown, or of the wrong kind.
        """
        self._place = place_of(url)
        self._read_only = read_only
        self._clock = clock
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._notices: Notices | None = None

    def describe(self) -> str:
        """Name server, database and prefix."""
        place = self._place
        host = f"[{place.host}]" if ":" in place.host else place.host
        return f"Redis {host}:{place.port}/{place.db} (prefix {place.prefix!r})"

    # Opening and closing

    def open(self, *, durability: str) -> None:
        """Connect, check the server's settings and mark the prefix; see `Store.open`."""
        if self._reader is not None:
            raise StoreInUseError(f"{self.describe()} is open already: one runtime at a time for each store object")
        described = self.describe()
        try:
            self._reader = Reader(self._place, described)
            self._notices = Notices(self._place, described)
            self._reader.look_at_server()
            if not self._read_only:
                check_settings(self._reader, self._place, durability, described)
                self._writer = Writer(self._place, described)
            check_format(self._reader, self._place, described, make=not self._read_only)
            if not self._read_only:
                check_rights(self._reader, self._place)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections, also those that another thread waits on."""
        parts = (self._reader, self._writer, self._notices)
        self._reader, self._writer, self._notices = None, None, None
        for part in parts:
            if part is not None:
                part.close()

    def first_row(self) -> int:
        """Read what was noted when the prefix was new; one that is new now, on another server, is noted."""
        return check_format(self._reading(), self._place, self.describe(), make=not self._read_only)

    # Writing

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        """Run the script of each slice, all in one trip."""
        writer, described = self._writing(), self.describe()
        now, ttl = self._time(), int(receipt_ttl * 1e6)
        outcomes: list[Outcome | None] = [records.size_problem(slice_, described) for slice_ in slices]
        sent = [n for n, outcome in enumerate(outcomes) if outcome is None]
        commands: list[Command] = []
        for n in sent:
            member = member_of(slices[n].name)
            bucket = bucket_of(member)
            arguments = records.committing(slices[n], member, bucket, now, ttl)
            commands.append(call(COMMIT, tag_of(self._place.prefix, bucket), *arguments))

        def find(link: Link, lost: list[int]) -> list[Reply | None]:
            return self._settled(link, [slices[sent[n]] for n in lost])

        refused: StoreError | None = None
        for n, reply in zip(sent, writer.write(commands, find, "commit"), strict=True):
            if isinstance(reply, StoreError):
                refused = refused or reply
                unavailable = isinstance(reply, StoreUnavailableError)
                outcomes[n] = NotCommitted(reply) if unavailable else Rejected(reply)
            else:
                outcomes[n] = records.outcome_of(reply) if isinstance(reply, list) else reply
        if refused is not None and all(isinstance(outcome, (NotCommitted, Rejected)) for outcome in outcomes):
            raise refused
        return [outcome if outcome is not None else Unknown() for outcome in outcomes]

    def settle(self, slices: Sequence[Slice]) -> list[Outcome | None]:
        """End what is still under way, then look for the slices' entry ids, or for what else they were to change."""
        reader, writer = self._reading(), self._writer
        if writer is not None:
            reader.patiently(writer.settle, "settle")
        return reader.patiently(lambda: self._settled(reader.link, slices), "settle")

    def _settled(self, link: Link, slices: Sequence[Slice]) -> list[Outcome | None]:
        commands = [self._script(SETTLE, slice_.name, slice_.expected + 1) for slice_ in slices]
        replies = _all_of(link.run(commands))
        return [records.settled(slice_, reply) for slice_, reply in zip(slices, replies, strict=True)]

    def adopt(self, transfers: Sequence[Transfer]) -> list[Outcome]:
        """Run the script of each transfer, all in one trip."""
        writer, now = self._writing(), self._time()
        commands: list[Command] = []
        for transfer in transfers:
            member = member_of(transfer.name)
            bucket = bucket_of(member)
            arguments = records.adopting(transfer, member, bucket, now)
            commands.append(call(ADOPT, tag_of(self._place.prefix, bucket), *arguments))

        def find(link: Link, lost: list[int]) -> list[Reply | None]:
            some = [transfers[n] for n in lost]
            last = [part.entries[-1].version if part.entries else 0 for part in some]
            asked = [self._script(SETTLE, part.name, number) for part, number in zip(some, last, strict=True)]
            mids = [records.is_adopted(part, reply) for part, reply in zip(some, _all_of(link.run(asked)), strict=True)]
            return [Committed(mid, part.head.updated_at) if mid else None for part, mid in zip(some, mids, strict=True)]

        replies = self._all_written(writer.write(commands, find, "adopt"))
        return [records.outcome_of(reply) if isinstance(reply, list) else reply for reply in replies]

    def reseal(self, changes: Sequence[Reseal]) -> list[bool]:
        """Run the script of each change, all in one trip."""
        writer = self._writing()
        commands = [
            self._script(RESEAL, change.name, change.mid, change.version, change.old, change.new) for change in changes
        ]

        def find(link: Link, lost: list[int]) -> list[Reply | None]:
            some = [changes[n] for n in lost]
            replies = _all_of(link.run([self._script(SETTLE, change.name, change.version) for change in some]))
            return [records.is_resealed(change, reply) for change, reply in zip(some, replies, strict=True)]

        return [bool(reply) for reply in self._all_written(writer.write(commands, find, "reseal"))]

    # Reading

    def load(self, queries: Sequence[LoadQuery]) -> list[Loaded]:
        """Read each memory by a script, at one instant."""
        commands: list[Command] = []
        for query in queries:
            known = query.known or Version(0, 0)
            commands.append(self._script(LOAD, query.name, known.mid, known.n, query.newest))
        replies = self._reading().all(commands, "load")
        return [records.loaded(reply, query) for reply, query in zip(replies, queries, strict=True)]

    def receipts(self, names_and_keys: Sequence[tuple[MemoryName, str]]) -> list[StoredReceipt | None]:
        """Look up idempotency keys."""
        commands = [_time_command()]
        commands += [self._named("HGET", "r", name, key.encode()) for name, key in names_and_keys]
        time_, *values = self._reading().all(commands, "receipts")
        now = self._now(time_)
        found = [None if value is None else records.kept_receipt(b"", value) for value in values]
        return [
            None if kept is None or kept.expires_at <= now else records.stored_receipt(value)
            for kept, value in zip(found, values, strict=True)
        ]

    def receipts_of(self, name: MemoryName, *, after: str, limit: int) -> list[KeptReceipt]:
        """Read all receipts of a name; a copy alone asks."""
        time_, flat = self._reading().all([_time_command(), self._named("HGETALL", "r", name)], "receipts_of")
        now = self._now(time_)
        found = [records.kept_receipt(flat[n], flat[n + 1]) for n in range(0, len(flat), 2)]
        living = [kept for kept in found if kept.expires_at > now and kept.key > after]
        return sorted(living, key=lambda kept: kept.key)[:limit]

    def names(
        self,
        *,
        namespace: str | None,
        after: MemoryName | None,
        limit: int,
        prefix: str = "",
        updated_after: int = 0,
    ) -> list[Listed]:
        """List memories: the buckets' sorted names, merged."""
        reader = self._reading()
        listed: list[Listed] = []
        wanted: Iterator[list[bytes]] = names_between(
            reader, self._place.prefix, namespace=namespace, after=after, prefix=prefix, page=limit
        )
        for members in wanted:
            heads = reader.all(
                [self._named("HMGET", "h", records.name_of(member), *records.HEAD_FIELDS) for member in members],
                "names",
            )
            rows = [(member, records.head_of(row)) for member, row in zip(members, heads, strict=True) if row[0]]
            listed += [
                Listed(records.name_of(member), head)
                for member, head in rows
                if not updated_after or head.updated_at > updated_after
            ]
            if len(listed) >= limit:
                break
        return listed[:limit]

    def expired(self, limit: int) -> list[MemoryName]:
        """List memories whose time is over, the oldest first."""
        reader = self._reading()
        now = self.now()
        parts = reader.all(
            [
                command(tag, "ZRANGEBYSCORE", f"{tag}:x", "-inf", now, "WITHSCORES", "LIMIT", 0, limit)
                for tag in self._tags()
            ],
            "expired",
        )
        over = heapq.nsmallest(limit, [(int(part[n + 1]), part[n]) for part in parts for n in range(0, len(part), 2)])
        return [records.name_of(member) for _, member in over]

    def changes(self, after: Cursor | None, limit: int) -> Changes:
        """Read which memories got entries; the cursor has a place for each bucket."""
        return changes_after(self._reading(), self._place, after, limit)

    def entries(self, mid: int, *, after: int, limit: int, before: int = 0, newest: bool = False) -> list[StoredEntry]:
        """Read a memory's log."""
        reader = self._reading()
        if mid <= 0 or limit <= 0:
            return []
        tag = tag_of(self._place.prefix, mid % BUCKETS)
        asked = call(PAGE, tag, mid, after, before, limit, 1 if newest else 0, pure=reader.pure)
        return records.entries_of(reader.all([asked], "entries")[0])

    def now(self) -> int:
        """Ask the server's clock, or the one that was given."""
        if self._clock is not None:
            return int(self._clock() * 1e6)
        return self._now(self._reading().all([_time_command()], "now")[0])

    # Notices

    def announce(self) -> None:
        """Publish a notice."""
        self._noticing().announce()

    def listen(self, timeout: float) -> bool:
        """Wait for a notice of another store object."""
        notices = self._notices
        return notices is not None and notices.listen(timeout)

    # Helpers

    def _time(self) -> int:
        return -1 if self._clock is None else int(self._clock() * 1e6)

    def _now(self, time_: list[bytes]) -> int:
        return int(time_[0]) * 1_000_000 + int(time_[1]) if self._clock is None else int(self._clock() * 1e6)

    def _tags(self) -> list[str]:
        return [tag_of(self._place.prefix, bucket) for bucket in range(BUCKETS)]

    def _script(self, script: Script, name: MemoryName, *arguments: Any) -> Command:
        member = member_of(name)
        pure = self._reader is not None and self._reader.pure
        return call(script, tag_of(self._place.prefix, bucket_of(member)), member, *arguments, pure=pure)

    def _named(self, word: str, kind: str, name: MemoryName, *arguments: Any) -> Command:
        member = member_of(name)
        tag = tag_of(self._place.prefix, bucket_of(member))
        return command(tag, word, f"{tag}:{kind}:".encode() + member, *arguments)

    def _all_written(self, replies: list[Reply]) -> list[Reply]:
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return replies

    def _writing(self) -> Writer:
        if self._writer is None:
            state = "read-only" if self._read_only and self._reader is not None else "not open"
            raise StoreUnavailableError(f"{self.describe()} is {state}")
        return self._writer

    def _reading(self) -> Reader:
        if self._reader is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        return self._reader

    def _noticing(self) -> Notices:
        if self._notices is None:
            raise StoreUnavailableError(f"{self.describe()} is not open")
        return self._notices


def _all_of(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _time_command() -> Command:
    return command("", "TIME")

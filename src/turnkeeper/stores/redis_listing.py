"""Names in byte order: each bucket has its own sorted, and they are merged page by page."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from turnkeeper.names import MemoryName
from turnkeeper.stores.ranges import end_of_prefix
from turnkeeper.stores.redis_links import command
from turnkeeper.stores.redis_reading import Reader
from turnkeeper.stores.redis_records import BUCKETS, member_of, tag_of

__all__ = ["names_between"]


def names_between(
    reader: Reader, key_prefix: str, *, namespace: str | None, after: MemoryName | None, prefix: str, page: int
) -> Iterator[list[bytes]]:
    """Yield all members of the buckets' indexes that are wanted, in order, some at a time."""
    low, high = _bounds(namespace, after, prefix)
    begins = prefix.encode() if namespace is None and prefix else b""
    tags = [tag_of(key_prefix, bucket) for bucket in range(BUCKETS)]
    starts: dict[int, bytes] = dict.fromkeys(range(BUCKETS), low)  # of those buckets that have more
    heaps: list[list[bytes]] = [[] for _ in tags]
    each = max(2, 2 * page // BUCKETS)
    while True:
        empty = [bucket for bucket in starts if not heaps[bucket]]
        if empty:
            commands = [
                command(tags[n], "ZRANGEBYLEX", f"{tags[n]}:n", starts[n], high, "LIMIT", 0, each) for n in empty
            ]
            for bucket, found in zip(empty, reader.all(commands, "names"), strict=True):
                heaps[bucket] = found
                if len(found) < each:
                    del starts[bucket]
                else:
                    starts[bucket] = b"(" + found[-1]
        # What is behind the last name that a bucket told of may be followed by others of that bucket.
        frontier = min((heaps[bucket][-1] for bucket in starts), default=None)
        ready: list[list[bytes]] = []
        for bucket, members in enumerate(heaps):
            here = [member for member in members if frontier is None or member <= frontier]
            heaps[bucket] = members[len(here) :]
            ready.append(here)
        merged = list(heapq.merge(*ready))
        if begins:
            merged = [member for member in merged if member.partition(b"\0")[2].startswith(begins)]
        for first in range(0, len(merged), max(page, 1)):
            yield merged[first : first + max(page, 1)]
        if not starts and not any(heaps):
            return


def _bounds(namespace: str | None, after: MemoryName | None, prefix: str) -> tuple[bytes, bytes]:
    low, high = b"-", b"+"
    if namespace is not None:
        start = namespace.encode() + b"\0"
        end = end_of_prefix(prefix)
        low = b"[" + start + prefix.encode()
        # No namespace holds a control character, so the one behind NUL ends this one.
        high = b"(" + (namespace.encode() + b"\1" if not prefix or end is None else start + end.encode())
    if after is not None and (low == b"-" or member_of(after) >= low[1:]):
        low = b"(" + member_of(after)
    return low, high

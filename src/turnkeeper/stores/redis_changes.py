"""Which memories got entries: each bucket has its own order of changes, and a cursor has a place in each."""

from __future__ import annotations

import contextlib

from turnkeeper.errors import StoreError
from turnkeeper.log import Version
from turnkeeper.stores.base import Changes, Cursor
from turnkeeper.stores.redis_links import call, command
from turnkeeper.stores.redis_reading import Reader
from turnkeeper.stores.redis_records import BUCKETS, name_of, tag_of
from turnkeeper.stores.redis_scripts import CHANGES
from turnkeeper.stores.redis_urls import Place

__all__ = ["changes_after"]


def changes_after(reader: Reader, place: Place, after: Cursor | None, limit: int) -> Changes:
    """Read what changed; see `Store.changes`. Places are times of the server, so that buckets can be merged."""
    tags = [tag_of(place.prefix, bucket) for bucket in range(BUCKETS)]
    last = _last_places(reader, tags, cluster=place.cluster)
    if after is None:
        return Changes(_cursor(last), ())
    places = _places(after)
    moved = [bucket for bucket in range(BUCKETS) if last[bucket] != places[bucket]]
    if not moved:
        return Changes(after, ())
    parts = reader.all([call(CHANGES, tags[n], places[n], limit, pure=reader.pure) for n in moved], "changes")
    found = sorted(
        (int(place), bucket, member, Version(int(mid), int(version)))
        for bucket, part in zip(moved, parts, strict=True)
        for member, place, mid, version in part
    )
    told = found[:limit]
    if len(found) <= limit:
        for bucket, part in zip(moved, parts, strict=True):
            if len(part) < limit:  # all of it; where the last change was of a memory that is gone, nothing tells
                places[bucket] = max(places[bucket], last[bucket])
    for place_, bucket, _, _ in told:
        places[bucket] = max(places[bucket], place_)
    return Changes(_cursor(places), tuple([(name_of(member), version) for _, _, member, version in told]))


def _last_places(reader: Reader, tags: list[str], *, cluster: bool) -> list[int]:
    if cluster:
        found = reader.all([command(tag, "GET", f"{tag}:s") for tag in tags], "changes")
    else:
        found = reader.all([command("", "MGET", *[f"{tag}:s" for tag in tags])], "changes")[0]
    return [int(place or 0) for place in found]


def _cursor(places: list[int]) -> str:
    return ".".join([f"{place:x}" for place in places])


def _places(cursor: Cursor) -> list[int]:
    places: list[int] = []
    with contextlib.suppress(ValueError):
        places = [int(place, 16) for place in str(cursor).split(".")]
    if len(places) != BUCKETS:
        raise StoreError("this cursor is of another store")
    return places

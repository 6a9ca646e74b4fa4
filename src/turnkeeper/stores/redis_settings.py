"""What is looked at when the Redis store opens: the server's settings, what the prefix holds, the user's rights."""

from __future__ import annotations

import logging
from typing import Final

from turnkeeper.errors import StoreFormatError, StoreUnavailableError
from turnkeeper.stores.redis_errors import LostError
from turnkeeper.stores.redis_links import Command, call, command
from turnkeeper.stores.redis_reading import Reader
from turnkeeper.stores.redis_records import BUCKETS, tag_of
from turnkeeper.stores.redis_urls import Place
from turnkeeper.stores.redis_write_scripts import MARK, PROBE

__all__ = ["SCHEMA", "check_format", "check_rights", "check_settings"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

SCHEMA: Final = 1
_FORMAT: Final = "turnkeeper"

_CLOCKS_APART: Final = 60_000
"""Milliseconds by which the clocks of a cluster's servers may differ: rows are numbered by them."""

_NAMES: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")


def check_settings(reader: Reader, place: Place, durability: str, described: str) -> None:
    """See whether every server that holds data keeps what it acknowledges.

    Raises:
        StoreUnavailableError: "full" is asked for, and a server keeps less, or does not tell.
    """
    for address in reader.patiently(reader.link.addresses, "open"):
        where = described if not place.cluster else f"{described}, node {address[0]}:{address[1]}"
        _check(_settings(reader, address, where), place.appendfsync, durability, where)


def _settings(reader: Reader, address: tuple[str, int], where: str) -> dict[str, str]:
    def ask() -> list[object]:
        replies = reader.link.run_at(address, [("CONFIG", "GET", name) for name in _NAMES])
        for reply in replies:
            if isinstance(reply, LostError):
                raise reply
        return replies

    found: dict[str, str] = {}
    for reply in reader.patiently(ask, "open"):
        if isinstance(reply, list) and len(reply) == 2:
            found[reply[0].decode()] = reply[1].decode()
    return found


def _check(found: dict[str, str], word: str, durability: str, where: str) -> None:
    policy = found.get("maxmemory-policy", "noeviction")
    fsync = found.get("appendfsync") if found.get("appendonly") == "yes" else "no append-only file"
    if "appendonly" not in found:
        fsync = word
    if durability != "full":
        if policy != "noeviction":
            logger.warning(
                "%s has maxmemory-policy %s: when its memory is full, it will remove %s. Set it to noeviction",
                where,
                policy,
                "receipts of idempotency keys" if policy.startswith("volatile") else "conversations",
            )
        return
    if not fsync:
        raise StoreUnavailableError(
            f"{where} does not tell its settings (CONFIG GET is forbidden); if you know that it has appendonly yes and "
            "appendfsync always, append '?appendfsync=always' to the URL; otherwise open with durability='relaxed'"
        )
    if fsync != "always":
        setting = fsync if fsync.startswith("no ") else f"appendfsync {fsync}"
        raise StoreUnavailableError(
            f"{where} has {setting}, so it may lose what it acknowledged; set appendonly yes and appendfsync always on "
            "the server, or open with durability='relaxed'"
        )
    if found.get("no-appendfsync-on-rewrite") == "yes":
        raise StoreUnavailableError(
            f"{where} has no-appendfsync-on-rewrite yes, so it may lose what it acknowledged "
            "while it rewrites its file; set no-appendfsync-on-rewrite no on the server, or open with "
            "durability='relaxed'"
        )
    if policy != "noeviction":
        raise StoreUnavailableError(
            f"{where} has maxmemory-policy {policy}, so it removes what it acknowledged when its memory is full; set "
            "maxmemory-policy noeviction on the server, or open with durability='relaxed'"
        )


def check_format(reader: Reader, place: Place, described: str, *, make: bool) -> int:
    """See whether the prefix holds this store's data; with `make`, say so of one that holds nothing.

    Returns:
        A number that no row is below; 0: nobody knows.

    Raises:
        StoreFormatError: another program's data, or those of a newer version.
    """
    key = f"{place.prefix}:meta"
    margin = _CLOCKS_APART if place.cluster else 0
    asked = command(key, "HMGET", key, "format", "schema", "buckets", "first")
    if make:
        asked = Command(key, ("EVALSHA", MARK.sha, 1, key, _FORMAT, SCHEMA, BUCKETS, margin), MARK)
    reply = reader.all([asked], "open")[0]
    found = ["" if part is None else part.decode("utf-8", "replace") for part in reply]
    if not any(found) and not make:
        raise StoreFormatError(f"{described} is empty")
    name, schema, buckets, first = found
    if name != _FORMAT or not schema.isdigit() or not buckets.isdigit():
        raise StoreFormatError(f"{described}: this prefix holds another program's data; choose one with '?prefix='")
    if int(schema) > SCHEMA:
        raise StoreFormatError(
            f"{described} has schema {schema}, and this version of turnkeeper knows up to {SCHEMA}; upgrade turnkeeper"
        )
    if int(buckets) != BUCKETS:
        raise StoreFormatError(
            f"{described} has its data in {buckets} parts, and this version of turnkeeper knows {BUCKETS}; "
            "upgrade turnkeeper"
        )
    return int(first) if first.isdigit() else 0


def check_rights(reader: Reader, place: Place) -> None:
    """Find a right that is missing before a script stops half-way for it; on a cluster, on every node.

    Raises:
        StoreUnavailableError: the server's user lacks one.
    """
    tags = [tag_of(place.prefix, bucket) for bucket in range(BUCKETS if place.cluster else 1)]
    reader.all([call(PROBE, tag) for tag in tags], "open")

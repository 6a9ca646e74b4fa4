"""The store on Redis and Valkey keeps every promise of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.valkey_server import drop_prefix, server_url
from turnkeeper.stores import Store
from turnkeeper.testing import StoreClock, StoreSuite

pytest.importorskip("redis")


def prefix_of(place: Path) -> str:
    return "t" + hashlib.sha256(bytes(place)).hexdigest()[:16]


class TestRedisStore(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        url = server_url()
        yield tmp_path
        drop_prefix(url, prefix_of(tmp_path))

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        from turnkeeper.stores.redis import RedisStore

        return RedisStore(f"{server_url()}?prefix={prefix_of(place)}", clock=clock)

    def receipts_held(self, store: Store) -> int:
        import redis

        with redis.Redis.from_url(server_url()) as client:
            prefix = store._place.prefix  # type: ignore[attr-defined]
            return sum(client.hlen(key) for key in client.scan_iter(match=f"{{{prefix}:*}}:r:*", count=1000))

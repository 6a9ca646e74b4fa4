"""The store on PostgreSQL keeps every promise of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres_server import drop_schema, server_url
from turnkeeper.stores import Store
from turnkeeper.testing import StoreClock, StoreSuite

pytest.importorskip("psycopg")


def schema_of(place: Path) -> str:
    return "t" + hashlib.sha256(bytes(place)).hexdigest()[:16]


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        url = server_url()
        yield tmp_path
        drop_schema(url, schema_of(tmp_path))

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        from turnkeeper.stores.postgres import PostgresStore

        url = server_url()
        return PostgresStore(f"{url}{'&' if '?' in url else '?'}schema={schema_of(place)}", clock=clock)

    def receipts_held(self, store: Store) -> int:
        import psycopg

        with psycopg.connect(server_url()) as connection:
            schema = store._place.schema  # type: ignore[attr-defined]
            row = connection.execute(f"SELECT count(*) FROM {schema}.receipt").fetchone()
            assert row is not None
            return int(row[0])

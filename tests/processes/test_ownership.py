"""Who may open a file: one owner, or several that agreed to share; what is no file of ours stays as it is."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import anyio
import pytest

import turnkeeper
from processes.remote import BACKENDS, Backend, Remote, RemoteError, url_of
from support.schedule import Gate
from turnkeeper import StoreFormatError, StoreInUseError, StoreUnavailableError
from turnkeeper.log import Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.stores import LoadQuery, SQLiteStore
from turnkeeper.stores.sqlite_schema import APPLICATION_ID, SCHEMA

SIDE_FILES = ("", "-wal", "-shm", ".lock", ".commit-lock")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the database goes."""
    return tmp_path / "chats.db"


def open_and_close(url: str) -> None:
    """Open a runtime in this process."""
    with turnkeeper.open_sync_runtime(url):
        pass


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class TestOneOwner:
    def test_a_second_runtime_in_another_process_is_refused_with_the_way_out(self, path: Path) -> None:
        with Remote(url_of(path)) as owner:
            with pytest.raises(StoreInUseError) as refused:
                open_and_close(url_of(path))
            assert f"process {owner.pid}" in str(refused.value)
            assert "?shared=true" in str(refused.value)
            assert str(path) in str(refused.value)
            owner.call("add", "m", ["the owner is not disturbed"])
        open_and_close(url_of(path))

    @pytest.mark.anyio
    async def test_a_second_runtime_in_the_same_process_is_refused(self, path: Path) -> None:
        async with turnkeeper.open_runtime(url_of(path)) as owner:
            with pytest.raises(StoreInUseError, match=f"process {os.getpid()}"):
                async with turnkeeper.open_runtime(url_of(path)):
                    pass
            await owner.memory("m").add(user("the owner is not disturbed"))
        async with turnkeeper.open_runtime(url_of(path)) as successor:
            assert len(await successor.memory("m").messages()) == 1

    @pytest.mark.anyio
    async def test_a_second_runtime_on_the_same_store_object_is_refused(self, path: Path) -> None:
        store = SQLiteStore(path)
        async with turnkeeper.open_runtime(store) as owner:
            with pytest.raises(turnkeeper.TurnkeeperError):
                async with turnkeeper.open_runtime(store):
                    pass
            await owner.memory("m").add(user("the owner is not disturbed"))

    def test_another_spelling_of_the_path_is_the_same_file(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "link.db").symlink_to(path)
        (tmp_path / "elsewhere").symlink_to(tmp_path)
        with Remote(url_of(path)):
            for spelling in (tmp_path / "link.db", tmp_path / "elsewhere" / "chats.db"):
                with pytest.raises(StoreInUseError):
                    open_and_close(url_of(spelling))

    @pytest.mark.parametrize("shared", [False, True])
    def test_exclusive_and_shared_exclude_each_other(self, path: Path, shared: bool) -> None:
        with Remote(url_of(path, shared=shared)) as owner:
            with pytest.raises(StoreInUseError, match=r"\?shared=true"):
                open_and_close(url_of(path, shared=not shared))
            owner.call("add", "m", ["the owner is not disturbed"])

    def test_any_number_may_share(self, path: Path) -> None:
        url = url_of(path, shared=True)
        with Remote(url) as first, Remote(url) as second, turnkeeper.open_sync_runtime(url) as third:
            first.call("add", "m", ["1"])
            second.call("add", "m", ["2"])
            third.memory("m").add(user("3"))
            assert first.call("read", "m")[1] == ["1", "2", "3"]

    def test_no_process_that_is_gone_is_named_as_the_owner(self, path: Path) -> None:
        with Remote(url_of(path)) as former:
            gone = former.pid
        with Remote(url_of(path, shared=True)), pytest.raises(StoreInUseError) as refused:
            open_and_close(url_of(path))
        assert f"process {gone}" not in str(refused.value)

    def test_a_reader_is_no_owner(self, path: Path) -> None:
        open_and_close(url_of(path))
        reader = SQLiteStore(path, read_only=True)
        reader.open(durability="full")
        try:
            open_and_close(url_of(path))
        finally:
            reader.close()


class TestDeath:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("shared", [False, True])
    def test_the_file_of_a_killed_owner_opens_at_once(self, path: Path, backend: Backend, shared: bool) -> None:
        with Remote(url_of(path, shared=shared), backend=backend) as owner:
            version = owner.call("add", "m", ["last words"])
            owner.kill()
            with turnkeeper.open_sync_runtime(url_of(path, shared=not shared)) as successor:
                messages = successor.memory("m").messages()
        assert [message.content for message in messages] == ["last words"]
        assert str(messages.version) == version

    def test_a_child_that_the_owner_forked_does_not_keep_the_file(self, path: Path) -> None:
        """A pool of workers may outlive its parent by long; it has nothing to do with the file."""
        with Remote(url_of(path)) as owner:
            child = owner.call("fork")
            try:
                owner.kill()
                open_and_close(url_of(path))
            finally:
                os.kill(child, signal.SIGKILL)

    def test_a_child_that_ends_before_the_owner_takes_nothing_from_it(self, path: Path) -> None:
        with Remote(url_of(path)) as owner:
            child = owner.call("fork")
            os.kill(child, signal.SIGKILL)
            with pytest.raises(StoreInUseError):
                open_and_close(url_of(path))
            owner.call("add", "m", ["still here"])


class StalledCommits(SQLiteStore):
    """Its commits stop at a gate."""

    def __init__(self, path: Path, gate: Gate) -> None:
        super().__init__(path)
        self._gate = gate

    def commit(self, slices: Sequence[Slice], *, receipt_ttl: float) -> list[Outcome]:
        self._gate.stop_thread()
        return super().commit(slices, receipt_ttl=receipt_ttl)


class TestStall:
    @pytest.mark.anyio
    async def test_a_store_left_behind_gives_the_file_back_when_its_stall_ends(self, path: Path) -> None:
        """Closing does not wait for it for long; it closes itself later, or the file would be locked for ever."""
        others = set(threading.enumerate())
        with Gate() as gate:
            async with anyio.create_task_group() as tasks:
                async with turnkeeper.open_runtime(StalledCommits(path, gate), close_timeout=0.01) as runtime:
                    tasks.start_soon(add_and_expect_no_answer, runtime.memory("m"))
                    await gate.arrival()
                lanes = [thread for thread in threading.enumerate() if thread.name == "turnkeeper commit"]
            gate.open()
            for lane in set(lanes) - others:
                await anyio.to_thread.run_sync(lane.join, 30)
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("m").add(user("on"))


async def add_and_expect_no_answer(memory: turnkeeper.ChatMemory) -> None:
    with pytest.raises((turnkeeper.OutcomeUnknownError, turnkeeper.RuntimeClosedError)):
        await memory.add(user("in flight"))


class TestReadOnly:
    def test_it_reads_beside_a_live_owner(self, path: Path) -> None:
        with Remote(url_of(path)) as owner:
            owner.call("add", "m", ["1"])
            reader = SQLiteStore(path, read_only=True)
            reader.open(durability="full")
            try:
                for number in range(2, 5):
                    (loaded,) = reader.load([LoadQuery(MemoryName("", "m"))])
                    assert loaded.head is not None
                    assert loaded.head.version == number - 1
                    owner.call("add", "m", [str(number)])
                assert reader.integrity() == []
            finally:
                reader.close()
            owner.call("add", "m", ["5"])
            assert len(owner.call("read", "m")[1]) == 5

    @pytest.mark.parametrize("killed", [False, True])
    def test_it_never_writes(self, path: Path, killed: bool) -> None:
        with Remote(url_of(path)) as owner:
            owner.call("add", "m", ["1"])
            if killed:  # the log of the dead is still there, and stays as it is
                owner.kill()
        before = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
        reader = SQLiteStore(path, read_only=True)
        reader.open(durability="full")
        try:
            (loaded,) = reader.load([LoadQuery(MemoryName("", "m"))])
            assert loaded.head is not None
            with pytest.raises(StoreUnavailableError, match="read-only"):
                reader.commit([], receipt_ttl=1.0)
        finally:
            reader.close()
        after = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
        assert {name: data for name, data in after.items() if data} == {
            name: data for name, data in before.items() if data
        }

    def test_it_makes_no_file(self, path: Path) -> None:
        with pytest.raises(StoreUnavailableError, match="does not exist"):
            SQLiteStore(path, read_only=True).open(durability="full")
        assert list(path.parent.iterdir()) == []

    def test_an_empty_file_is_none_of_ours(self, path: Path) -> None:
        path.touch()
        with pytest.raises(StoreFormatError, match="is empty"):
            SQLiteStore(path, read_only=True).open(durability="full")
        assert path.read_bytes() == b""

    @pytest.mark.anyio
    async def test_a_runtime_on_it_reads_and_refuses_to_write(self, path: Path) -> None:
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("m").add(user("1"))
        async with turnkeeper.open_runtime(SQLiteStore(path, read_only=True)) as runtime:
            assert len(await runtime.memory("m").messages()) == 1
            with pytest.raises(StoreUnavailableError, match="read-only"):
                await runtime.memory("m").add(user("2"))
            assert len(await runtime.memory("m").messages()) == 1


def modes(path: Path) -> dict[str, str]:
    """Return the permissions of the database and its side files."""
    return {
        file.name.removeprefix(path.name): oct(stat.S_IMODE(file.stat().st_mode))
        for file in path.parent.iterdir()
        if file.name.startswith(path.name)
    }


class TestPermissions:
    @pytest.mark.parametrize("umask", [0, 0o022, 0o077])
    @pytest.mark.parametrize("shared", [False, True])
    def test_all_files_are_for_their_owner_alone(self, path: Path, umask: int, shared: bool) -> None:
        with Remote(url_of(path, shared=shared), umask=umask) as owner:
            owner.call("add", "m", ["private"])
            found = modes(path)
        assert set(found) == set(SIDE_FILES) - (set() if shared else {".commit-lock"})
        assert set(found.values()) == {"0o600"}

    def test_a_file_that_was_there_keeps_its_mode(self, path: Path) -> None:
        """An administrator who lets a group read it has a reason."""
        path.touch(0o640)
        path.chmod(0o640)
        open_and_close(url_of(path))
        assert modes(path)[""] == "0o640"


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("INSERT INTO customers VALUES ('Ada')")


def foreign_database_with_an_application_id(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA application_id = 1196444487")  # a GeoPackage


def foreign_database_with_a_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 7")


def foreign_database_in_wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE customers (name)")


def foreign_database_with_a_log_left_behind(path: Path) -> None:
    """Make what another program leaves that was killed: data that are in the log alone."""
    made = path.with_name("made.db")
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("INSERT INTO customers VALUES ('Ada')")
        connection.commit()
        for suffix in ("", "-wal"):
            path.with_name(path.name + suffix).write_bytes(made.with_name(made.name + suffix).read_bytes())
    made.unlink()


def text_file(path: Path) -> None:
    path.write_text("Dear diary,\n" * 1000)


def short_text_file(path: Path) -> None:
    path.write_text("Dear diary")


def newer_schema(path: Path) -> None:
    open_and_close(url_of(path))
    path.with_name(path.name + ".lock").unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")


FOREIGN = [
    (foreign_database, "another program"),
    (foreign_database_with_an_application_id, "another program"),
    (foreign_database_with_a_version, "another program"),
    (foreign_database_in_wal_mode, "another program"),
    (foreign_database_with_a_log_left_behind, "another program"),
    (text_file, "SQLITE_NOTADB"),
    (short_text_file, "SQLITE_NOTADB"),
    (newer_schema, f"schema {SCHEMA + 1}.*upgrade turnkeeper"),
]


class TestWhatIsNoFileOfOurs:
    @pytest.mark.parametrize(("make", "message"), FOREIGN)
    @pytest.mark.parametrize("how", ["exclusive", "shared", "read-only"])
    def test_it_is_refused_and_not_a_byte_of_it_changes(
        self, path: Path, make: Callable[[Path], None], message: str, how: str
    ) -> None:
        make(path)
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        store = SQLiteStore(path, shared=how == "shared", read_only=how == "read-only")
        with pytest.raises(StoreFormatError, match=message):
            store.open(durability="full")
        after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        assert {name: after.get(name) for name in before} == before
        assert {name for name, data in after.items() if data} - set(before) <= {"chats.db-shm", "chats.db.lock"}

    @pytest.mark.anyio
    async def test_a_runtime_on_it_leaves_nothing_open(self, path: Path) -> None:
        text_file(path)
        for _ in range(3):
            with pytest.raises(StoreFormatError):
                async with turnkeeper.open_runtime(url_of(path)):
                    pass
        os.truncate(path, 0)
        async with turnkeeper.open_runtime(url_of(path)) as runtime:
            await runtime.memory("m").add(user("now it is ours"))

    def test_an_empty_file_becomes_ours(self, path: Path) -> None:
        path.touch()
        open_and_close(url_of(path))
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)

    def test_an_empty_database_becomes_ours(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM")
        open_and_close(url_of(path))

    @pytest.mark.parametrize("shared", [False, True])
    def test_a_directory_is_refused(self, path: Path, shared: bool) -> None:
        path.mkdir()
        with pytest.raises(StoreUnavailableError, match=r"chats\.db"):
            open_and_close(url_of(path, shared=shared))
        assert list(path.iterdir()) == []

    @pytest.mark.parametrize("shared", [False, True])
    def test_a_missing_directory_is_refused_and_not_made(self, path: Path, shared: bool) -> None:
        with pytest.raises(StoreUnavailableError, match="No such file or directory"):
            open_and_close(url_of(path.parent / "missing" / "chats.db", shared=shared))
        assert list(path.parent.iterdir()) == []

    def test_a_path_through_a_file_is_refused(self, path: Path) -> None:
        path.write_text("no directory")
        with pytest.raises(StoreUnavailableError, match="Not a directory"):
            open_and_close(url_of(path / "chats.db"))

    def test_a_loop_of_links_is_refused(self, path: Path) -> None:
        path.symlink_to(path)
        with pytest.raises(turnkeeper.StoreError):
            open_and_close(url_of(path))

    @pytest.mark.parametrize("read_only", [False, True])
    def test_what_is_no_regular_file_is_refused_at_once(self, path: Path, read_only: bool) -> None:
        """Opening a pipe for reading waits for somebody who writes, for ever."""
        os.mkfifo(path)
        store = SQLiteStore(path, read_only=read_only)
        with (
            pytest.raises(StoreUnavailableError, match="no regular file"),
            turnkeeper.open_sync_runtime(store, commit_timeout=2.0),
        ):
            pass

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_read_only_directory_is_refused(self, path: Path) -> None:
        path.parent.chmod(0o500)
        try:
            with pytest.raises(StoreUnavailableError, match="Permission denied"):
                open_and_close(url_of(path))
        finally:
            path.parent.chmod(0o700)

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no directory that nobody can write to")
    def test_a_directory_that_takes_no_files_is_refused(self) -> None:
        """What a read-only directory is to everybody but root."""
        with pytest.raises(StoreUnavailableError, match=r"/proc/\d+/chats\.db"):
            SQLiteStore(f"/proc/{os.getpid()}/chats.db").open(durability="full")

    def test_a_name_that_is_too_long_is_refused(self, path: Path) -> None:
        with pytest.raises(StoreUnavailableError, match="File name too long"):
            open_and_close(url_of(path.with_name("x" * 300)))


class TestFirstOpening:
    @pytest.mark.parametrize("attempt", range(3))
    def test_p7_p11_processes_that_open_a_new_shared_file_at_once_all_succeed(self, path: Path, attempt: int) -> None:
        """No "table exists", no "no such table", nothing lost: whoever comes second finds it done."""
        url = url_of(path, shared=True)
        with ThreadPoolExecutor(8) as threads:
            barrier = threading.Barrier(8)

            def first_add(number: int) -> str:
                barrier.wait()
                with Remote(url, backend=BACKENDS[number % 3]) as remote:
                    version: str = remote.call("add", f"m{number % 2}", [str(number)])
                    return version

            versions = list(threads.map(first_add, range(8)))
        assert len(set(versions)) == 8
        with turnkeeper.open_sync_runtime(url) as runtime:
            texts = [message.text for each in ("m0", "m1") for message in runtime.memory(each).messages()]
        assert sorted(texts) == [str(number) for number in range(8)]

    def test_of_processes_that_open_a_new_exclusive_file_at_once_one_succeeds(self, path: Path) -> None:
        with ThreadPoolExecutor(6) as threads:
            opened = threading.Barrier(6)

            def try_to_open(_number: int) -> str:
                try:
                    with Remote(url_of(path)) as remote:
                        opened.wait()
                        remote.call("add", "m", ["mine"])
                        return "owner"
                except RemoteError as error:
                    opened.wait()
                    return error.kind

            outcomes = sorted(threads.map(try_to_open, range(6)))
        assert outcomes == ["StoreInUseError"] * 5 + ["owner"]

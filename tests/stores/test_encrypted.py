"""Encryption at rest: nothing readable in the store, nothing opens elsewhere, and what does not open stays as it is."""

from __future__ import annotations

import logging
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import turnkeeper
from stores.building import Clock, add, commit, committed, delete, describing, entry, load, name, setting, texts
from stores.kinds import ALL, ON_DISK
from turnkeeper import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from turnkeeper.errors import DecryptionError, InvalidArgumentError, MemoryCorruptError, StoreError
from turnkeeper.folding import fold
from turnkeeper.log import Committed, Entry, details_of, message_count
from turnkeeper.rotating import Rotation, rotate, rotate_store
from turnkeeper.sealed import sealed_of
from turnkeeper.stores import (
    EncryptedStore,
    InMemoryStore,
    Keyring,
    LoadQuery,
    Reseal,
    SearchQuery,
    SQLiteStore,
    Store,
    Transfer,
)
from turnkeeper.testing import FaultStore

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
SECRET = "blue suitcase"
M = name("user-42", "tenant")


def ring(active: str = "old", **keys: bytes) -> Keyring:
    return Keyring(keys or {"old": OLD}, active=active)


BOTH = Keyring({"old": OLD, "new": NEW}, active="new")

Make = Callable[[Path, Clock], Store]


@pytest.fixture(params=ALL)
def inner(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    made: Store = request.param(tmp_path, clock)
    made.open(durability="full")
    yield made
    made.close()


@pytest.fixture
def sealing(inner: Store) -> EncryptedStore:
    return EncryptedStore(inner, ring())


def all_bytes(folder: Path) -> bytes:
    """Return what lies in a folder's files, log and side files included."""
    return b"".join([path.read_bytes() for path in folder.rglob("*") if path.is_file()])


def failure(store: Store, memory: turnkeeper.stores.MemoryName = M) -> DecryptionError:
    with pytest.raises(DecryptionError) as raised:
        fold(load(store, memory), memory)
    return raised.value


def raw(inner: Store, mid: int) -> list[bytes]:
    return [stored.payload for stored in inner.entries(mid, after=0, limit=100)]


class TestWhatLiesThere:
    def test_no_text_role_title_or_tool_call_is_in_a_payload(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, SECRET, setting(SECRET), base=2))
        committed(sealing, describing(M, mid, 2, 0, b'{"title":"blue suitcase"}'))
        head = load(inner, M).head
        assert head is not None
        assert head.meta is not None
        for payload in [*raw(inner, mid), head.meta]:
            assert SECRET.encode() not in payload
            assert b"user" not in payload
        assert texts(sealing, M) == [SECRET]

    def test_the_number_of_messages_is_shown_and_nothing_else_of_them(
        self, inner: Store, sealing: EncryptedStore
    ) -> None:
        mid = committed(sealing, add(M, 0, 0, entry("a", "b", "c"), entry("\ud800", "b")))
        stored = inner.entries(mid, after=0, limit=9)
        assert [message_count(each) for each in stored] == [3, 2]
        assert stored[0].payload.startswith(b'{"messages":[0,0,0],"sealed":["old","')

    def test_positions_are_shown_and_what_says_something_is_not(self, inner: Store, sealing: EncryptedStore) -> None:
        details = turnkeeper.log.Details(to=1, stays=(1, 0, '{"role":"system","content":"x"}'), origin=("p", "", "1.1"))
        made = replace(entry("sum", op="compact"), details=details)
        mid = committed(sealing, add(M, 0, 0, "a", made, base=2))
        shown = details_of(inner.entries(mid, after=1, limit=1)[0])
        assert (shown.to, shown.stays, shown.origin) == (1, None, None)
        assert details_of(sealing.entries(mid, after=1, limit=1)[0]) == details

    def test_how_long_a_memory_is_kept_and_its_forks_are_shown(self, inner: Store, sealing: EncryptedStore) -> None:
        data = (
            b'{"title":"t","data":{"k":1},"expires_after":5.0,"max_messages":3,"forks":[["f",""]],'
            b'"parent":["p","","1.1"]}'
        )
        mid = committed(sealing, describing(M, 0, 0, 0, data))
        meta = load(inner, M).head
        assert meta is not None
        assert meta.meta is not None
        assert meta.meta.startswith(b'{"expires_after":5.0,"max_messages":3,"forks":[["f",""]],"sealed":["old","')
        opened = load(sealing, M).head
        assert opened is not None
        assert (opened.mid, opened.meta) == (mid, data)

    def test_the_same_content_is_never_the_same_bytes(self, inner: Store, sealing: EncryptedStore) -> None:
        same = entry("a")
        first = committed(sealing, add(name("1"), 0, 0, same))
        second = committed(sealing, add(name("2"), 0, 0, same))
        assert raw(inner, first) != raw(inner, second)

    @pytest.mark.parametrize("make", ON_DISK)
    async def test_no_file_of_the_database_holds_what_was_said(
        self, make: Make, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        store = EncryptedStore(make(tmp_path, clock), ring())
        async with turnkeeper.open_runtime(store) as runtime:
            memory = runtime.memory("user-42")
            await memory.add([SystemMessage(SECRET), UserMessage(SECRET)], idempotency_key="k")
            await memory.add(
                [
                    AssistantMessage(None, tool_calls=(ToolCall("c1", "find", '{"what":"blue suitcase"}'),)),
                    ToolMessage(SECRET, tool_call_id="c1"),
                ]
            )
            await memory.set_metadata(title=SECRET, data={"note": SECRET})
            await memory.fork("fork")
            await memory.undo()
            held = all_bytes(tmp_path)
        held += all_bytes(tmp_path)
        assert b'"sealed"' in held
        for secret in (b"suitcase", b"tool_calls", b'"role"'):
            assert secret not in held
        assert SECRET not in caplog.text
        assert SECRET not in repr(store) + repr(memory)

    async def test_forks_and_copies_are_sealed_for_their_own_place(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, SECRET))
        head = load(sealing, M).head
        assert head is not None
        kept = tuple(sealing.entries(mid, after=0, limit=9))
        copied = name("copy")
        (outcome,) = sealing.adopt([Transfer(copied, 0, 0, head, kept)])
        assert isinstance(outcome, Committed)
        assert SECRET.encode() not in b"".join(raw(inner, outcome.mid))
        assert texts(sealing, copied) == [SECRET]

    def test_what_is_sealed_for_the_same_place_is_adopted_and_anything_else_refused(
        self, inner: Store, sealing: EncryptedStore
    ) -> None:
        mid = committed(sealing, add(M, 0, 0, SECRET))
        target = EncryptedStore(InMemoryStore(), BOTH)
        head = load(inner, M).head
        assert head is not None
        as_stored = tuple(inner.entries(mid, after=0, limit=9))
        with pytest.raises(DecryptionError):
            target.adopt([Transfer(name("elsewhere"), 0, 0, head, as_stored)])
        (outcome,) = target.adopt([Transfer(M, 0, 0, head, as_stored)])
        assert isinstance(outcome, Committed)
        assert texts(target, M) == [SECRET]


def payload_moved(inner: Store, from_: turnkeeper.stores.MemoryName, to: turnkeeper.stores.MemoryName) -> None:
    """Put the first payload of one memory into the place of the other's."""
    source, target = load(inner, from_), load(inner, to)
    assert target.head is not None
    change = Reseal(to, target.head.mid, 1, target.entries[0].payload, source.entries[0].payload)
    assert inner.reseal([change]) == [True]


class TestWhatDoesNotOpen:
    @pytest.mark.parametrize("keys", [ring(old=OTHER), ring("new", new=NEW)], ids=["wrong", "missing"])
    def test_a_wrong_or_missing_key_fails_closed_and_changes_nothing(
        self, inner: Store, sealing: EncryptedStore, keys: Keyring
    ) -> None:
        mid = committed(sealing, add(M, 0, 0, SECRET))
        before = raw(inner, mid)
        error = failure(EncryptedStore(inner, keys))
        assert (error.memory_id, error.namespace, error.version, error.key_id) == ("user-42", "tenant", 1, "old")
        assert raw(inner, mid) == before
        assert texts(sealing, M) == [SECRET], "with the right key all is there again"

    def test_without_a_key_at_all_it_fails_closed_too(self, inner: Store, sealing: EncryptedStore) -> None:
        """Also an entry without a message, whose positions alone would do for the state."""
        mid = committed(sealing, add(M, 0, 0, SECRET))
        committed(sealing, add(M, mid, 1, entry(op="clear"), base=2))
        assert failure(inner).version == 2

    def test_an_entry_of_another_memory_does_not_open_here(self, inner: Store, sealing: EncryptedStore) -> None:
        committed(sealing, add(M, 0, 0, "a"))
        committed(sealing, add(name("other"), 0, 0, "b"))
        payload_moved(inner, M, name("other"))
        assert failure(sealing, name("other")).version == 1
        assert texts(sealing, M) == ["a"], "that memory alone fails"

    def test_an_entry_of_another_version_does_not_open_here(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, "a", "b"))
        first, second = raw(inner, mid)
        inner.reseal([Reseal(M, mid, 2, second, first)])
        assert failure(sealing).version == 2

    @pytest.mark.parametrize("at", ["shown", "key", "nonce", "text", "tag"])
    def test_altered_bytes_do_not_open(self, inner: Store, sealing: EncryptedStore, at: str) -> None:
        mid = committed(sealing, add(M, 0, 0, "a"))
        (payload,) = raw(inner, mid)
        start = payload.index(b'","') + 3
        altered = bytearray(payload)
        if at == "shown":
            altered = bytearray(payload.replace(b"[0]", b"[0,0]"))
        elif at == "key":
            altered = bytearray(payload.replace(b'"old"', b'"new"'))
        else:
            place = {"nonce": start + 2, "text": start + 30, "tag": len(payload) - 12}[at]
            altered[place] = ord("A") if altered[place] != ord("A") else ord("B")
        inner.reseal([Reseal(M, mid, 1, payload, bytes(altered))])
        failure(EncryptedStore(inner, BOTH))

    def test_one_memory_that_does_not_open_fails_alone_in_a_load_of_many(
        self, inner: Store, sealing: EncryptedStore
    ) -> None:
        committed(sealing, add(M, 0, 0, "a"))
        committed(EncryptedStore(inner, ring(old=OTHER)), add(name("2"), 0, 0, "b"))
        good, bad = sealing.load([LoadQuery(M), LoadQuery(name("2"))])
        assert fold(good, M).messages[0].content == "a"
        with pytest.raises(DecryptionError):
            fold(bad, name("2"))

    def test_metadata_that_do_not_open_are_not_written_over(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, "a"))
        committed(sealing, describing(M, mid, 1, 0, b'{"title":"t"}'))
        without = EncryptedStore(inner, ring("new", new=NEW))
        assert failure(EncryptedStore(inner, ring(old=OTHER))).version == 0
        assert failure(without).version == 0

    async def test_a_runtime_with_the_wrong_key_refuses_reads_and_writes_and_still_deletes_and_expires(
        self, inner: Store, sealing: EncryptedStore, clock: Clock
    ) -> None:
        committed(sealing, add(M, 0, 0, SECRET))
        committed(sealing, replace(add(name("short"), 0, 0, SECRET), expires_after=10.0))
        inner.close()
        async with turnkeeper.open_runtime(EncryptedStore(inner, ring(old=OTHER))) as runtime:
            memory = runtime.memory("user-42", "tenant")
            for request in (
                memory.messages,
                lambda: memory.add(UserMessage("x")),
                lambda: memory.set([UserMessage("x")]),
                memory.clear,
                lambda: memory.set_metadata(title="x"),
                memory.history,
                lambda: memory.fork("copy"),
            ):
                with pytest.raises(MemoryCorruptError) as raised:
                    await request()
                assert isinstance(raised.value, DecryptionError)
                assert SECRET not in str(raised.value) + repr(raised.value)
            await runtime.memory("healthy").add(UserMessage("y"))
            clock.now += 11
            assert (await runtime.erase(["user-42"], namespace="tenant")).ids == (("user-42", "tenant"),)
            assert await runtime._core.look_up(lambda store: store.expired(9)) == [name("short")]

    def test_a_delete_goes_through_without_a_key(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, "a"))
        committed(inner, delete(M, mid, 1))
        assert load(sealing, M).head is None

    def test_the_error_survives_pickling_and_says_what_to_do(self, sealing: EncryptedStore, inner: Store) -> None:
        committed(sealing, add(M, 0, 0, SECRET))
        error = failure(EncryptedStore(inner, ring(old=OTHER)))
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.key_id) == (str(error), "old")
        assert "'user-42'" in str(error)
        assert "'old'" in str(error)
        assert "quarantine" not in str(error)


class TestPlainEntries:
    def test_they_are_refused_unless_allowed(self, inner: Store) -> None:
        mid = committed(inner, add(M, 0, 0, SECRET))
        committed(inner, describing(name("d"), 0, 0, 0, b'{"title":"t"}'))
        refusing = EncryptedStore(inner, ring())
        error = failure(refusing)
        assert (error.version, error.key_id) == (1, "")
        assert "allow_plain" in str(error)
        assert SECRET.encode() not in refusing.entries(mid, after=0, limit=9)[0].payload
        assert failure(refusing, name("d")).version == 0
        assert texts(EncryptedStore(inner, ring(), allow_plain=True), M) == [SECRET]

    def test_what_follows_them_is_sealed_and_a_rotation_seals_them_too(self, inner: Store) -> None:
        mid = committed(inner, add(M, 0, 0, SECRET))
        committed(inner, describing(M, mid, 1, 0, b'{"title":"t"}'))
        allowing = EncryptedStore(inner, ring(), allow_plain=True)
        committed(allowing, add(M, mid, 1, "more"))
        assert rotate_store(allowing).left == {}
        assert SECRET.encode() not in b"".join(raw(inner, mid))
        assert texts(EncryptedStore(inner, ring()), M) == [SECRET, "more"]


class TestContract:
    def test_metadata_sealed_twice_are_settled_as_the_same(self, sealing: EncryptedStore) -> None:
        """A lost reply: the bytes differ each time, so the store can't compare them."""
        change = describing(M, 0, 0, 0, b'{"title":"t"}')
        assert sealing.settle([change]) == [None]
        (outcome,) = commit(sealing, change)
        (found,) = sealing.settle([change])
        assert isinstance(outcome, Committed)
        assert isinstance(found, Committed)
        assert found.mid == outcome.mid
        assert sealing.settle([describing(M, 0, 0, 0, b'{"title":"another"}')]) == [None]

    async def test_a_lost_reply_is_settled_through_it(self, inner: Store) -> None:
        inner.close()
        faults = FaultStore(inner)
        async with turnkeeper.open_runtime(EncryptedStore(faults, ring())) as runtime:
            memory = runtime.memory("m")
            faults.fail_after()
            await memory.add(UserMessage("once"))
            faults.fail_after()
            await memory.set_metadata(title="once")
            assert [message.text for message in await memory.messages()] == ["once"]
            assert (await memory.metadata()).revision == 1

    def test_search_is_refused_with_the_reason(self, sealing: EncryptedStore) -> None:
        with pytest.raises(StoreError, match="sealed"):
            sealing.search(SearchQuery("x", None, "", 1, 0))

    def test_it_is_as_the_inner_store_is(self, inner: Store, sealing: EncryptedStore) -> None:
        assert (sealing.inline, sealing.shared, sealing.announces) == (inner.inline, inner.shared, inner.announces)
        assert inner.describe() in sealing.describe()

    def test_entries_open_for_a_row_that_was_never_seen(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, "a"))
        fresh = EncryptedStore(inner, ring())
        assert b'"a"' in fresh.entries(mid, after=0, limit=9)[0].payload

    def test_what_is_sealed_is_not_sealed_again(self, inner: Store, sealing: EncryptedStore) -> None:
        mid = committed(sealing, add(M, 0, 0, "a"))
        again = Entry("add", b"e" * 16, (), sealed=raw(inner, mid)[0])
        with pytest.raises(DecryptionError):
            commit(sealing, add(M, mid, 1, again))

    def test_one_is_not_put_around_another(self, sealing: EncryptedStore) -> None:
        with pytest.raises(InvalidArgumentError):
            EncryptedStore(sealing, ring())


class TestReseal:
    def test_it_writes_where_the_old_bytes_are_and_nothing_else_moves(self, inner: Store) -> None:
        mid = committed(inner, add(M, 0, 0, "a", "b"))
        before = load(inner, M)
        old = before.entries[0].payload
        changes = [
            Reseal(M, mid, 1, old, b'{"messages":[]}'),
            Reseal(M, mid, 1, old, b"late"),
            Reseal(M, mid, 9, old, b"no such entry"),
            Reseal(M, mid + 1, 2, before.entries[1].payload, b"no such row"),
            Reseal(name("none"), mid + 9, 0, old, b"no such memory"),
        ]
        assert inner.reseal(changes) == [True, False, False, False, False]
        after = load(inner, M)
        assert after.head == before.head
        assert [replace(each, payload=b"") for each in after.entries] == [
            replace(each, payload=b"") for each in before.entries
        ]
        assert [each.payload for each in after.entries] == [b'{"messages":[]}', before.entries[1].payload]

    def test_metadata_keep_their_revision(self, inner: Store) -> None:
        mid = committed(inner, describing(M, 0, 0, 0, b"{}"))
        assert inner.reseal([Reseal(M, mid, 0, b"{}", b"[]"), Reseal(M, mid, 0, b"{}", b"no")]) == [True, False]
        head = load(inner, M).head
        assert head is not None
        assert (head.meta, head.meta_version) == (b"[]", 1)

    def test_the_index_of_a_search_forgets_what_is_sealed(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "chats.db", search=True)
        store.open(durability="full")
        mid = committed(store, add(M, 0, 0, SECRET, "suitcase of another kind"))
        words = SearchQuery("suitcase", None, "", 9, 0)
        assert len(store.search(words)) == 2
        assert rotate_store(EncryptedStore(store, ring(), allow_plain=True)).left == {}
        assert store.search(words) == []
        committed(store, delete(M, mid, 2))
        assert store.integrity() == []
        store.close()
        connection = sqlite3.connect(tmp_path / "chats.db")
        connection.execute("INSERT INTO said (said) VALUES ('integrity-check')")
        connection.close()


class TestRotation:
    def filled(self, inner: Store, memories: int = 30) -> None:
        old = EncryptedStore(inner, ring())
        for n in range(memories):
            mid = committed(old, add(name(str(n)), 0, 0, *[f"{n}.{k}" for k in range(n % 7 + 1)]))
            committed(old, describing(name(str(n)), mid, n % 7 + 1, 0, b'{"title":"t"}'))

    def test_afterwards_the_old_key_can_be_dropped(self, inner: Store) -> None:
        self.filled(inner)
        steps: list[Rotation] = []
        rotation = rotate_store(EncryptedStore(inner, BOTH), progress=steps.append)
        entries = sum(n % 7 + 1 for n in range(30))
        assert (rotation.resealed, rotation.left, rotation.unopened) == (entries + 30, {}, ())
        assert steps[0].left.get("old", 0) <= entries + 30
        after = EncryptedStore(inner, ring("new", new=NEW))
        for n in range(30):
            assert texts(after, name(str(n))) == [f"{n}.{k}" for k in range(n % 7 + 1)]
            head = load(after, name(str(n))).head
            assert head is not None
            assert (head.meta, head.meta_version) == (b'{"title":"t"}', 1)

    @pytest.mark.parametrize("limit", [1, 2, 5, 1000])
    def test_steps_of_any_size_miss_nothing_and_look_at_nothing_twice(self, inner: Store, limit: int) -> None:
        self.filled(inner, 12)
        store = EncryptedStore(inner, BOTH)
        seen, cursor = 0, None
        while True:
            step = store.stale(cursor, limit=limit)
            assert len(step.changes) <= max(limit, 1)
            seen += sum(step.seen.values())
            cursor = step.cursor
            if cursor is None:
                break
        assert seen == sum(n % 7 + 1 for n in range(12)) + 12

    def test_interrupted_it_goes_on_with_the_rest(self, inner: Store) -> None:
        self.filled(inner)
        store = EncryptedStore(inner, BOTH)
        step = store.stale(limit=20)
        assert all(store.reseal(step.changes))
        assert texts(store, name("0")) == ["0.0"]
        total = sum(n % 7 + 1 for n in range(30)) + 30
        assert rotate_store(store).resealed == total - len(step.changes)

    def test_what_does_not_open_is_named_and_stays(self, inner: Store) -> None:
        self.filled(inner, 3)
        mid = committed(EncryptedStore(inner, ring("lost", lost=OTHER)), add(M, 0, 0, "a"))
        before = raw(inner, mid)
        rotation = rotate_store(EncryptedStore(inner, BOTH))
        assert rotation.left == {"lost": 1}
        (each,) = rotation.unopened
        assert (each.name, each.version, each.key_id) == (M, 1, "lost")
        assert raw(inner, mid) == before

    async def test_commits_go_on_while_it_runs_and_nothing_is_lost(self, inner: Store) -> None:
        self.filled(inner)
        inner.close()
        async with turnkeeper.open_runtime(EncryptedStore(inner, BOTH)) as runtime:
            counts: list[int] = []

            async def write() -> None:
                for n in range(30):
                    await runtime.memory(str(n)).add(UserMessage("meanwhile"))
                    await runtime.memory(str(n)).set_metadata(title="meanwhile")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                rotation = await rotate(runtime, progress=lambda so_far: counts.append(so_far.resealed))
            assert rotation.left == {}
            assert counts == sorted(counts)
            for n in range(30):
                said = [message.text for message in await runtime.memory(str(n)).messages()]
                assert said == [*[f"{n}.{k}" for k in range(n % 7 + 1)], "meanwhile"]
        inner.open(durability="full")
        step = EncryptedStore(inner, ring("new", new=NEW)).stale(limit=10_000)
        assert set(step.seen) == {"new"}

    async def test_a_store_without_keys_says_so(self) -> None:
        async with turnkeeper.open_runtime(InMemoryStore()) as runtime:
            with pytest.raises(StoreError, match="not encrypted"):
                await rotate(runtime)


class TestKeyring:
    def test_it_never_shows_a_key(self) -> None:
        keys = Keyring({"a": b"q" * 32}, active="a")
        assert "q" * 4 not in repr(keys)
        with pytest.raises(TypeError):
            pickle.dumps(keys)

    @pytest.mark.parametrize(
        ("keys", "active"),
        [
            ({}, "a"),
            ({"a": b"short"}, "a"),
            ({"a": OLD}, "b"),
            ({"a b": OLD}, "a b"),
            ({"": OLD}, ""),
            ({'"': OLD}, '"'),
            ({"a": OLD, "b": OLD}, "a"),
        ],
    )
    def test_what_is_no_key_is_refused(self, keys: dict[str, bytes], active: str) -> None:
        with pytest.raises(InvalidArgumentError):
            Keyring(keys, active=active)

    def test_a_file_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text('{"active":"a","keys":{"a":"' + "b" * 43 + '="}}')
        file.chmod(0o640)
        with pytest.raises(InvalidArgumentError, match="chmod 600"):
            Keyring.from_file(file)
        file.chmod(0o600)
        assert Keyring.from_file(file).ids == ("a",)
        assert Keyring.from_environment({"TURNKEEPER_KEYS": str(file)}) is not None
        assert Keyring.from_environment({"TURNKEEPER_KEYS": file.read_text()}) is not None
        assert Keyring.from_environment({}) is None

    @pytest.mark.parametrize("text", ["", "hunter2", '{"active":"a","keys":{"a":"hunter2"}}', '{"active":1}', "[]"])
    def test_a_bad_file_is_not_repeated(self, text: str) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            Keyring.parse(text)
        assert "hunter2" not in str(raised.value)
        assert raised.value.__cause__ is raised.value.__context__ is None


def test_plain_payloads_are_never_taken_for_sealed_ones() -> None:
    for payload in (
        b'{"messages":[{"role":"user","content":"x","sealed":["a","b"]}]}',
        b'{"messages":[{"sealed":["a","b"]}]}',
        b'{"data":{"sealed":["a","b"]}}',
        b'{"parent":["a","b","1.1"]}',
        b'{"forks":[["a","b"]]}',
    ):
        assert sealed_of(payload) is None

"""What the Redis store has of its own: URLs, settings, formats, rights, notices, cursors."""

from __future__ import annotations

import logging
import multiprocessing
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")

from stores.building import add, commit, committed, entry, head_of, listed, load, log, name, pruning, texts
from support.valkey_server import ValkeyServer, drop_prefix, server_url
from turnkeeper import InvalidStoreURLError, StoreError, StoreFormatError, StoreUnavailableError
from turnkeeper.log import LoadQuery, StoredEntry, Version
from turnkeeper.stores import Transfer, store_from_url
from turnkeeper.stores.redis import RedisStore
from turnkeeper.stores.redis_links import Link
from turnkeeper.stores.redis_records import BUCKETS, bucket_of, member_of

M = name()


@pytest.fixture
def prefix() -> Iterator[str]:
    chosen = f"t{uuid.uuid4().hex[:12]}"
    yield chosen
    drop_prefix(server_url(), chosen)


@pytest.fixture
def client() -> Iterator[Any]:
    import redis

    with redis.Redis.from_url(server_url()) as made:
        yield made


@pytest.fixture(scope="module")
def own_server() -> Iterator[ValkeyServer]:
    """A server whose settings and users may be changed."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def fresh(own_server: ValkeyServer) -> Iterator[ValkeyServer]:
    """That server, empty and as it was."""
    client = own_server.client()
    client.flushall()
    yield own_server
    client.config_set("appendonly", "yes")
    client.config_set("appendfsync", "always")
    client.config_set("no-appendfsync-on-rewrite", "no")
    client.config_set("maxmemory", "0")
    client.config_set("maxmemory-policy", "noeviction")
    client.execute_command("ACL", "DELUSER", "tk")
    client.close()


def opened(url: str, **options: Any) -> RedisStore:
    store = RedisStore(url, **options)
    try:
        store.open(durability="full")
    except BaseException:
        store.close()
        raise
    return store


def of(prefix: str) -> str:
    return f"{server_url()}?prefix={prefix}"


# URLs


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://localhost/chats", "number of a database"),
        ("redis://localhost?prefix=a{b}", "prefix"),
        ("redis://localhost?prefix=", "prefix"),
        ("redis://localhost?cluster=perhaps", "cluster"),
        ("redis://localhost/1?cluster=true", "database 0"),
        ("redis://localhost?appendfsync=sometimes", "appendfsync"),
        ("redis://localhost?socket_timeout=long", "wrong kind"),
        ("redis://localhost?socket_timeout=0", "socket_timeout"),
        ("redis://localhost?socket_timeout=600", "socket_timeout"),
        ("redis://localhost?ssl_ca_certs=/ca.pem", "rediss://"),
        ("redis://localhost?decode_responses=true", "decode_responses"),
        ("redis://localhost?password=s3cret", "password"),
        ("redis://localhost:port", "no URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_named(url: str, message: str) -> None:
    with pytest.raises(InvalidStoreURLError, match=message) as raised:
        RedisStore(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_neither_user_nor_password_is_shown(scheme: str) -> None:
    store = store_from_url(f"{scheme}://anna:s3cret@db.internal:7000/3?prefix=chats")
    assert store.describe() == "Redis db.internal:7000/3 (prefix 'chats')"
    shown = f"{store!r}{vars(store)!r}"
    assert "s3cret" not in shown
    assert "anna" not in shown


def test_the_defaults_are_those_of_the_page() -> None:
    place = RedisStore("redis://")._place
    assert (place.prefix, place.host, place.port, place.db, place.cluster) == (
        "turnkeeper",
        "localhost",
        6379,
        0,
        False,
    )
    assert (place.options["socket_connect_timeout"], place.options["socket_timeout"]) == (3.0, 5.0)


def test_a_wrong_password_is_told_at_once_and_never_repeated(fresh: ValkeyServer) -> None:
    store = RedisStore(f"redis://tk:s3cret@127.0.0.1:{fresh.port}")
    with pytest.raises(StoreUnavailableError, match="refuses the user or password") as raised:
        store.open(durability="full")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        RedisStore("redis://127.0.0.1:1").open(durability="full")


# Settings


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("appendfsync", "everysec", "appendfsync everysec.*appendfsync always.*relaxed"),
        ("appendonly", "no", "no append-only file.*relaxed"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite no.*relaxed"),
        ("maxmemory-policy", "allkeys-lru", "allkeys-lru.*noeviction"),
        ("maxmemory-policy", "volatile-ttl", "volatile-ttl.*noeviction"),
    ],
)
def test_a_server_that_keeps_less_than_it_acknowledges_is_refused_unless_relaxed(
    fresh: ValkeyServer, setting: str, value: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    fresh.client().config_set(setting, value)
    store = RedisStore(fresh.url)
    with pytest.raises(StoreUnavailableError, match=message):
        store.open(durability="full")
    with caplog.at_level(logging.WARNING, "turnkeeper"):
        store.open(durability="relaxed")
    committed(store, add(M, 0, 0, "a"))
    store.close()
    assert (value in caplog.text) == (setting == "maxmemory-policy")


def test_the_users_word_counts_only_where_the_server_does_not_tell(fresh: ValkeyServer) -> None:
    fresh.client().config_set("appendfsync", "everysec")
    with pytest.raises(StoreUnavailableError, match="everysec"):
        opened(f"{fresh.url}?appendfsync=always")


# Formats


def test_a_newer_schema_is_refused_with_both_numbers(prefix: str, client: Any) -> None:
    client.hset(f"{prefix}:meta", mapping={"format": "turnkeeper", "schema": 7, "buckets": BUCKETS})
    with pytest.raises(StoreFormatError, match=r"schema 7.*up to 1"):
        opened(of(prefix))
    assert client.hgetall(f"{prefix}:meta")[b"schema"] == b"7"


def test_another_number_of_buckets_is_refused(prefix: str, client: Any) -> None:
    client.hset(f"{prefix}:meta", mapping={"format": "turnkeeper", "schema": 1, "buckets": 16})
    with pytest.raises(StoreFormatError, match="16 parts"):
        opened(of(prefix))


@pytest.mark.parametrize("kind", ["text", "hash"])
def test_another_programs_data_are_left_alone(prefix: str, client: Any, kind: str) -> None:
    if kind == "text":
        client.set(f"{prefix}:meta", "theirs")
    else:
        client.hset(f"{prefix}:meta", "their", "field")
    with pytest.raises(StoreFormatError, match="another program"):
        opened(of(prefix))
    assert client.exists(f"{prefix}:meta") == 1


def test_looking_only_makes_nothing(prefix: str, client: Any) -> None:
    with pytest.raises(StoreFormatError, match="is empty"):
        opened(of(prefix), read_only=True)
    assert client.exists(f"{prefix}:meta") == 0


def test_many_may_open_a_fresh_prefix_at_once(prefix: str) -> None:
    url, start = of(prefix), threading.Barrier(8)

    def open_and_write(number: int) -> int:
        start.wait(10)
        store = opened(url)
        try:
            return committed(store, add(name(str(number)), 0, 0, "a"))
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        mids = list(pool.map(open_and_write, range(8)))
    assert len(set(mids)) == 8


def _open_and_write(url: str, number: int, start: Any) -> None:
    start.wait(60)
    store = opened(url)
    committed(store, add(name(str(number)), 0, 0, "a"))
    store.close()


def test_two_processes_may_open_a_fresh_prefix_at_once(prefix: str) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    children = [context.Process(target=_open_and_write, args=(of(prefix), n, start), daemon=True) for n in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    store = opened(of(prefix), read_only=True)
    assert listed(store) == [name("0"), name("1")]
    store.close()


def test_prefixes_know_nothing_of_each_other(prefix: str) -> None:
    one, other = opened(of(prefix)), opened(of(f"{prefix}-2"))
    try:
        committed(one, add(M, 0, 0, "a"))
        assert load(other, M).head is None
        assert listed(other) == []
    finally:
        one.close()
        other.close()
        drop_prefix(server_url(), f"{prefix}-2")


# Rights: what docs/redis.md lists

WRITER = (
    "~{tk:* ~tk:meta &tk:changes -@all +evalsha +evalsha_ro +script|load +client|id +client|kill +client|setinfo "
    "+info +config|get +time +get +set +mget +hget +hmget +hgetall +hset +hdel +exists +unlink +zadd +zrem "
    "+hexists +zrangebylex +zrangebyscore +pttl +pexpire +publish +subscribe"
)
READER = (
    "%R~{tk:* %R~tk:meta &tk:changes -@all +evalsha_ro +script|load +client|setinfo +info +time +get +mget +hget "
    "+hmget +hgetall +hexists +zrangebylex +zrangebyscore +subscribe +select"
)


def test_the_page_lists_these_rights() -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    lists = [set(found.split()) for found in re.findall(r"^ACL SETUSER \w+ on >secret (.*?)^```", page, re.M | re.S)]
    assert lists == [set(WRITER.split()), set(READER.split())]


def allow(server: ValkeyServer, rules: str) -> str:
    server.client().execute_command("ACL", "SETUSER", "tk", "reset", "on", ">s3cret", *rules.split())
    return f"redis://tk:s3cret@127.0.0.1:{server.port}/0?prefix=tk"


def use_everything(store: RedisStore) -> None:
    mid = committed(store, add(M, 0, 0, entry("a", key="k"), "b", "c"))
    committed(store, pruning(M, mid, 3, 3, base=3))
    committed(store, add(name("gone"), 0, 0, "a"))
    assert store.settle([add(M, mid, 3, "not sent")]) == [None]
    store.announce()
    store.listen(0.0)
    look_at_everything(store)


def look_at_everything(store: RedisStore) -> None:
    assert texts(store, M) == ["c"]
    assert store.receipts([(M, "k")]) != [None]
    assert len(store.receipts_of(M, after="", limit=9)) == 1
    assert M in listed(store)
    assert log(store, M) == [(3, "add")]
    cursor = store.changes(None, 1).cursor
    assert store.changes(cursor, 9).changed == ()
    assert store.changes(".".join(["0"] * BUCKETS), 9).changed != ()
    assert store.expired(9) == []
    assert store.now() > 0


def test_the_rights_of_the_page_are_enough_to_write(fresh: ValkeyServer) -> None:
    store = opened(allow(fresh, WRITER))
    use_everything(store)
    mid = head_of(store, M).mid
    writer = store._writer
    assert writer is not None
    fresh.client().client_kill_filter(_id=writer._living[0].client)
    committed(store, add(M, mid, 3, "d", base=3))
    assert texts(store, M) == ["c", "d"]
    store.close()


def test_the_rights_of_the_page_are_enough_to_look(fresh: ValkeyServer) -> None:
    writer = opened(f"{fresh.url}?prefix=tk")
    use_everything(writer)
    store = opened(allow(fresh, READER), read_only=True)
    look_at_everything(store)
    with pytest.raises(StoreUnavailableError, match="read-only"):
        commit(store, add(M, 0, 0, "x"))
    store.close()
    writer.close()


def test_a_right_that_is_missing_is_told_and_nothing_is_written(fresh: ValkeyServer) -> None:
    """A script that meets it half-way would have written half."""
    whole = opened(f"{fresh.url}?prefix=tk")
    for right in ("+hset", "+zadd", "+unlink", "+pexpire", "+time", "+hexists", "+evalsha"):
        rules = " ".join(rule for rule in WRITER.split() if rule != right)
        with pytest.raises(StoreUnavailableError, match="lacks a right"):
            opened(allow(fresh, rules))
    assert listed(whole) == []
    whole.close()


def test_where_settings_are_secret_the_url_has_to_tell(fresh: ValkeyServer) -> None:
    url = allow(fresh, WRITER.replace("+config|get ", ""))
    with pytest.raises(StoreUnavailableError, match=r"\?appendfsync=always"):
        opened(url)
    opened(f"{url}&appendfsync=always").close()


# Cursors, logs, numbers


def test_a_foreign_cursor_is_refused(prefix: str) -> None:
    store = opened(of(prefix))
    for cursor in (17, "1.2.3", "x" * 9):
        with pytest.raises(StoreError, match="cursor"):
            store.changes(cursor, 9)
    store.close()


def test_changes_of_many_buckets_come_part_by_part_in_the_servers_order(prefix: str) -> None:
    store = opened(of(prefix))
    cursor = store.changes(None, 1).cursor
    names = [name(str(n)) for n in range(100)]
    for memory in names:
        committed(store, add(memory, 0, 0, "a"))
    assert len({bucket_of(member_of(memory)) for memory in names}) > 20
    told = []
    while (part := store.changes(cursor, 7)).cursor != cursor:
        cursor = part.cursor
        told += [memory for memory, _ in part.changed]
    assert told == names
    store.close()


def test_an_idle_look_for_changes_is_one_command(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(of(prefix))
    committed(store, add(M, 0, 0, "a"))
    cursor = store.changes(None, 1).cursor
    sent: list[int] = []
    run = Link.run

    def counted(self: Link, commands: Any) -> Any:
        sent.append(len(commands))
        return run(self, commands)

    monkeypatch.setattr(Link, "run", counted)
    assert store.changes(cursor, 9).changed == ()
    assert sent == [1]
    store.close()


def test_a_known_memory_costs_only_its_row(prefix: str) -> None:
    store = opened(of(prefix))
    mid = committed(store, add(M, 0, 0, *map(str, range(50))))
    (loaded,) = store.load([LoadQuery(M, Version(mid, 50))])
    assert loaded.continues
    assert loaded.entries == ()
    store.close()


def test_a_log_longer_than_luas_stack_is_read_pruned_and_listed(prefix: str) -> None:
    """`unpack` takes no more than some thousand values."""
    store = opened(of(prefix))
    mid = committed(store, add(M, 0, 0, *map(str, range(9_000))))
    assert texts(store, M) == [str(n) for n in range(9_000)]
    assert [stored.version for stored in store.entries(mid, after=0, limit=9_000)] == list(range(1, 9_001))
    committed(store, pruning(M, mid, 9_000, 8_999, base=8_999))
    assert log(store, M) == [(8_999, "add"), (9_000, "add")]
    store.close()


def test_a_log_that_was_pruned_in_many_places_elsewhere_is_taken_in_as_it_is(prefix: str) -> None:
    store = opened(of(prefix))
    mid = committed(store, add(name("from"), 0, 0, *map(str, range(12))))
    source = {stored.version: stored for stored in store.entries(mid, after=0, limit=99)}
    head = head_of(store, name("from"))
    some = tuple(source[n] for n in (2, 3, 5, 9, 12))
    (outcome,) = store.adopt([Transfer(M, 0, 0, head, some)])
    found = store.entries(outcome.mid, after=0, limit=99)  # type: ignore[union-attr]
    assert tuple(found) == some
    assert [e.version for e in store.entries(outcome.mid, after=2, limit=2)] == [3, 5]  # type: ignore[union-attr]
    assert [e.version for e in store.entries(outcome.mid, after=0, limit=2, newest=True)] == [9, 12]  # type: ignore[union-attr]
    assert [e.version for e in store.entries(outcome.mid, after=0, before=9, limit=9)] == [2, 3, 5]  # type: ignore[union-attr]
    store.close()


def test_what_is_no_text_comes_back_byte_for_byte(prefix: str) -> None:
    store = opened(of(prefix))
    head = head_of_new(store)
    payload = bytes(range(256)) + b"\r\n$-1\r\n"
    stored = StoredEntry(1, "add", b"\n \x00" + b"i" * 13, payload, 1_764_547_200_123_457)
    (outcome,) = store.adopt([Transfer(M, 0, 0, head, (stored,))])
    assert store.entries(outcome.mid, after=0, limit=1) == [stored]  # type: ignore[union-attr]
    store.close()


def head_of_new(store: RedisStore) -> Any:
    committed(store, add(name("other"), 0, 0, "x"))
    return head_of(store, name("other"))


def test_two_batches_within_one_millisecond_keep_each_other(prefix: str) -> None:
    """C9: keys made of the time let the second batch overwrite the first."""
    store = opened(of(prefix), clock=lambda: 1_700_000_000.0)
    mid = committed(store, add(M, 0, 0, "a", "b"))
    committed(store, add(M, mid, 2, "c", "d"))
    assert texts(store, M) == ["a", "b", "c", "d"]
    assert len({stored.at for stored in store.entries(mid, after=0, limit=9)}) == 1
    store.close()


def test_numbers_stay_exact_and_are_never_given_again_though_all_was_lost(prefix: str) -> None:
    """A server that comes back without its last writes must not give a stale writer's number to another memory."""
    store = opened(of(prefix))
    first = committed(store, add(M, 0, 0, "a"))
    drop_prefix(server_url(), prefix)
    again = committed(store, add(M, 0, 0, "b"))
    assert again > first
    assert again < 2**53
    assert again % BUCKETS == bucket_of(member_of(M))
    store.close()

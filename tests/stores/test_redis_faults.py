"""The Redis store loses its connection or its server, at any moment, and tells the truth."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("redis")

from redis.exceptions import ResponseError

from stores.building import add, commit, committed, describing, entry, load, log, name, pruning, texts
from support.proxy import WHERE, Proxy, Where
from support.valkey_server import ValkeyServer
from turnkeeper import StoreError, StoreFormatError, StoreUnavailableError
from turnkeeper.log import Committed, Held, Lease, NotCommitted, Outcome, Slice
from turnkeeper.names import MemoryName
from turnkeeper.stores import Reseal, Store, Transfer
from turnkeeper.stores.redis import RedisStore
from turnkeeper.stores.redis_errors import explained
from turnkeeper.stores.redis_scripts import LOAD

M = name()
PATIENCE = 60.0


@pytest.fixture(scope="module")
def module_server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def server(module_server: ValkeyServer) -> Iterator[ValkeyServer]:
    module_server.client().flushall()
    yield module_server
    client = module_server.client()
    client.config_set("maxmemory", "0")
    client.config_set("appendfsync", "always")
    client.execute_command("REPLICAOF", "NO", "ONE")
    client.execute_command("ACL", "DELUSER", "tk")
    client.close()


@pytest.fixture
def proxy(server: ValkeyServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", server.port)) as proxy:
        yield proxy


def opened(port: int, options: str = "", login: str = "", **more: Any) -> RedisStore:
    store = RedisStore(f"redis://{login}127.0.0.1:{port}/0{options}", **more)
    store.open(durability="full")
    return store


@pytest.fixture
def store(proxy: Proxy) -> Iterator[RedisStore]:
    """A store whose connections go through the proxy."""
    made = opened(proxy.port)
    yield made
    proxy.flow()
    proxy.admit()
    made.close()


# A connection that is lost at every place of a commit


def slices_of(store: Store, mids: dict[MemoryName, int]) -> list[Slice]:
    """Every kind of slice, each of a memory of its own that was made for it."""
    at = {memory.id: (memory, mid, 2) for memory, mid in mids.items()}
    return [
        add(*at["add"], "c", entry("d", key="k")),
        add(name("new"), 0, 0, "a"),
        Slice(*at["delete"], (), delete=True),
        describing(*at["describe"], 0, b'{"a":1}'),
        pruning(*at["prune"], 2, base=2),
        Slice(*at["lease"], (), lease=Lease(b"t" * 16, 60.0)),
    ]


def made_for(store: Store) -> dict[MemoryName, int]:
    names = [name(kind) for kind in ("add", "delete", "describe", "prune", "lease")]
    return {memory: committed(store, add(memory, 0, 0, "a", "b")) for memory in names}


def check_all_done(store: Store, outcomes: Sequence[Outcome], mids: dict[MemoryName, int]) -> None:
    assert [type(outcome) for outcome in outcomes] == [Committed] * len(outcomes)
    assert texts(store, name("add")) == ["a", "b", "c", "d"]
    assert texts(store, name("new")) == ["a"]
    assert load(store, name("delete")).head is None
    head = load(store, name("describe")).head
    assert head is not None
    assert (head.meta, head.meta_version) == (b'{"a":1}', 1)
    assert log(store, name("prune")) == [(2, "add")]
    lease = name("lease")
    assert commit(store, add(lease, mids[lease], 2, "x")) == [Held()]


def admit_when_refused(proxy: Proxy) -> None:
    proxy.refused.wait(PATIENCE)
    proxy.admit()


@pytest.mark.parametrize("everything", [False, True], ids=["one connection", "all"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transfer", range(2))
def test_wherever_the_connection_is_cut_each_slice_is_committed_once(
    store: RedisStore, server: ValkeyServer, proxy: Proxy, transfer: int, where: Where, everything: bool
) -> None:
    mids = made_for(store)
    slices = slices_of(store, mids)
    proxy.cut_at(transfer, where, everything=everything)
    if everything:  # new connections are refused until somebody has come
        comeback = threading.Thread(target=admit_when_refused, args=(proxy,))
        comeback.start()
    outcomes = commit(store, *slices)
    assert proxy.struck.wait(PATIENCE)
    if everything:
        proxy.admit()
        proxy.refused.set()
        comeback.join(PATIENCE)
    direct = opened(server.port)
    check_all_done(direct, outcomes, mids)
    direct.close()


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transfer", range(2))
def test_what_is_taken_in_or_sealed_anew_is_done_once_as_well(
    store: RedisStore, server: ValkeyServer, proxy: Proxy, transfer: int, where: Where
) -> None:
    mid = committed(store, add(name("from"), 0, 0, "a", "b"))
    stored = store.entries(mid, after=0, limit=9)
    head = load(store, name("from")).head
    assert head is not None
    proxy.cut_at(transfer, where)
    (outcome,) = store.adopt([Transfer(M, 0, 0, head, tuple(stored))])
    assert isinstance(outcome, Committed)
    assert proxy.struck.wait(PATIENCE)
    proxy.cut_at(transfer, where)
    change = Reseal(M, outcome.mid, 2, stored[1].payload, b"sealed")
    assert store.reseal([change]) == [True]
    assert proxy.struck.wait(PATIENCE)
    assert [kept.payload for kept in store.entries(outcome.mid, after=0, limit=9)] == [stored[0].payload, b"sealed"]


READS: list[Callable[[RedisStore, int], object]] = [
    lambda store, mid: texts(store, M),
    lambda store, mid: store.entries(mid, after=0, limit=9),
    lambda store, mid: store.receipts([(M, "k")]),
    lambda store, mid: store.receipts_of(M, after="", limit=9),
    lambda store, mid: store.names(namespace=None, after=None, limit=9),
    lambda store, mid: store.changes(".".join(["0"] * 64), 9),
    lambda store, mid: store.expired(9),
    lambda store, mid: store.settle([add(M, mid, 1, "x")]),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transfer", range(2))
def test_a_read_is_repeated(
    store: RedisStore, proxy: Proxy, read: Callable[[RedisStore, int], object], transfer: int, where: Where
) -> None:
    mid = committed(store, add(M, 0, 0, entry("a", key="k")))
    expected = read(store, mid)
    proxy.cut_at(transfer, where)
    assert read(store, mid) == expected
    assert proxy.struck.wait(PATIENCE)


def test_a_server_out_of_reach_is_told_in_a_few_seconds(store: RedisStore, proxy: Proxy) -> None:
    committed(store, add(M, 0, 0, "a"))
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        texts(store, M)
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        commit(store, add(name("other"), 0, 0, "x"))
    with pytest.raises(StoreUnavailableError):
        store.announce()
    proxy.admit()
    assert texts(store, M) == ["a"]
    store.announce()


# What is settled is final


def test_what_settle_calls_not_committed_does_not_land_any_more(server: ValkeyServer, proxy: Proxy) -> None:
    """The commit hangs on the way while it is settled; then the way is free again."""
    store = opened(proxy.port, "?socket_timeout=20")
    mid = committed(store, add(M, 0, 0, "a"))
    texts(store, M)
    late = add(M, mid, 1, "late")
    failures: list[BaseException] = []

    def send() -> None:
        try:
            commit(store, late)
        except BaseException as error:
            failures.append(error)

    proxy.hold(present=True)
    sender = threading.Thread(target=send)
    sender.start()
    assert proxy.held.wait(PATIENCE)
    reader = store._reader
    assert reader is not None
    reader.link.close()  # the reading connection is held as well; a new one is not
    assert store.settle([late]) == [None]
    proxy.flow()
    sender.join(PATIENCE)
    assert [type(error) for error in failures] == [StoreUnavailableError]
    assert texts(store, M) == ["a"]
    committed(store, add(M, mid, 1, "b"))
    assert texts(store, M) == ["a", "b"]
    store.close()


def test_where_connections_may_not_be_ended_the_outcome_is_left_open(server: ValkeyServer, proxy: Proxy) -> None:
    admin = server.client()
    admin.execute_command("ACL", "SETUSER", "tk", "reset", "on", ">pw", "~*", "&*", "+@all", "-client|kill")
    store = opened(proxy.port, login="tk:pw@")
    mid = committed(store, add(M, 0, 0, "a"))
    slice_ = add(M, mid, 1, "b")
    proxy.cut_at(1, "before")
    with pytest.raises(StoreUnavailableError, match="CLIENT KILL"):
        commit(store, slice_)
    with pytest.raises(StoreUnavailableError, match="CLIENT KILL"):
        store.settle([slice_])
    admin.execute_command("ACL", "SETUSER", "tk", "+client|kill")
    assert isinstance(store.settle([slice_])[0], Committed)
    store.close()


def test_settling_what_went_well_ends_nobodys_connection(store: RedisStore, proxy: Proxy) -> None:
    slice_ = add(M, 0, 0, "a")
    committed(store, slice_)
    assert isinstance(store.settle([slice_])[0], Committed)
    before = proxy.connections
    committed(store, add(name("other"), 0, 0, "a"))
    assert proxy.connections == before


# What a server says no to


def test_a_server_whose_memory_is_full_writes_nothing_and_says_so(server: ValkeyServer) -> None:
    store = opened(server.port)
    mid = committed(store, add(M, 0, 0, "a"))
    server.client().config_set("maxmemory", "1mb")
    with pytest.raises(StoreUnavailableError, match="maxmemory"):
        commit(store, add(M, mid, 1, "b", "c"), add(name("new"), 0, 0, "d"))
    assert texts(store, M) == ["a"]
    assert load(store, name("new")).head is None
    assert store.names(namespace=None, after=None, limit=9)[0].name == M
    server.client().config_set("maxmemory", "0")
    committed(store, add(M, mid, 1, "b"))
    store.close()


def test_a_full_server_lets_memories_be_deleted(server: ValkeyServer) -> None:
    store = opened(server.port)
    mid = committed(store, add(M, 0, 0, "a"))
    server.client().config_set("maxmemory", "1mb")
    committed(store, Slice(M, mid, 1, (), delete=True))
    store.close()


def test_a_server_that_became_a_replica_is_waited_for_and_then_told(server: ValkeyServer) -> None:
    store = opened(server.port)
    mid = committed(store, add(M, 0, 0, "a"))
    server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailableError, match="replica"):
        commit(store, add(M, mid, 1, "b"))
    server.client().execute_command("REPLICAOF", "NO", "ONE")
    committed(store, add(M, mid, 1, "b"))
    store.close()


def test_scripts_that_the_server_forgot_are_sent_again(store: RedisStore, server: ValkeyServer) -> None:
    mid = committed(store, add(M, 0, 0, "a"))
    server.client().script_flush()
    outcomes = commit(store, add(M, mid, 1, "b"), add(name("other"), 0, 0, "x"))
    assert [type(outcome) for outcome in outcomes] == [Committed, Committed]
    server.client().script_flush()
    assert texts(store, M) == ["a", "b"]


def test_what_is_too_large_is_refused_alone(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.stores.redis_records.LARGEST", 1000)
    outcomes = commit(store, add(name("small"), 0, 0, "a"), add(M, 0, 0, "a" * 2000))
    assert [type(outcome).__name__ for outcome in outcomes] == ["Committed", "Rejected"]
    assert load(store, M).head is None


def test_a_frozen_server_is_told_and_goes_on_when_it_thaws(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reading", "writing"):
        monkeypatch.setattr(f"turnkeeper.stores.redis_{module}.PATIENCE_SECONDS", 0.5)
    with ValkeyServer() as server:
        store = opened(server.port, "?socket_timeout=0.3&socket_connect_timeout=0.3")
        mid = committed(store, add(M, 0, 0, "a"))
        server.freeze()
        try:
            slice_ = add(M, mid, 1, "b")
            with pytest.raises(StoreUnavailableError):
                commit(store, slice_)
            with pytest.raises(StoreUnavailableError):
                texts(store, M)
        finally:
            server.thaw()
        settled = store.settle([slice_])
        assert texts(store, M) == (["a"] if settled == [None] else ["a", "b"])
        store.close()


def test_closing_frees_a_call_that_waits(proxy: Proxy) -> None:
    store = opened(proxy.port, "?socket_timeout=20")
    committed(store, add(M, 0, 0, "a"))
    failures: list[BaseException] = []

    def send() -> None:
        try:
            commit(store, add(name("other"), 0, 0, "b"))
        except BaseException as error:
            failures.append(error)

    proxy.hold()
    sender = threading.Thread(target=send)
    sender.start()
    assert proxy.held.wait(PATIENCE)
    store.close()
    sender.join(15.0)
    assert not sender.is_alive()
    assert [type(error) for error in failures] == [StoreUnavailableError]
    proxy.flow()


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("MISCONF Redis is configured to save RDB snapshots, but it can't", StoreUnavailableError, "disk"),
        ("BUSY Redis is busy running a script", StoreUnavailableError, "script"),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailableError, "replicas"),
        ("CLUSTERDOWN Hash slot not served", StoreUnavailableError, "slots"),
        ("LOADING is what somebody wrote", StoreUnavailableError, "loading"),
        (
            "ERR Error running script (call to f_5): @user_script:9: @user_script: 9: -OOM command not allowed",
            StoreUnavailableError,
            "maxmemory",
        ),
        ("WRONGTYPE Operation against a key", StoreFormatError, "another program"),
        ("ERR secret content of somebody", StoreError, "failed with ERR$"),
    ],
)
def test_what_a_server_says_becomes_a_cause_and_a_way_out(said: str, error: type[StoreError], message: str) -> None:
    """Also where Redis 6.2 wraps what its script met; never in the server's own words."""
    found = explained(ResponseError(said), "Redis x", "commit")
    assert type(found) is error
    with pytest.raises(error, match=message):
        raise found
    assert "secret" not in str(found)


def test_a_server_that_knows_no_reading_scripts_is_asked_in_the_old_way(store: RedisStore) -> None:
    """Redis 6.2 has no EVALSHA_RO."""
    mid = committed(store, add(M, 0, 0, "a"))
    reader = store._reader
    assert reader is not None
    assert reader.pure
    reader.pure = False
    assert texts(store, M) == ["a"]
    assert len(store.entries(mid, after=0, limit=9)) == 1
    assert store.changes(".".join(["0"] * 64), 9).changed != ()
    assert [command.words[0] for command in [store._script(LOAD, M)]] == ["EVALSHA"]


# A server that dies


def test_a_server_killed_in_the_middle_of_a_load_of_commits_loses_and_doubles_nothing() -> None:
    """P83: every acknowledged entry is there once, nothing half, and the store goes on by itself."""
    with ValkeyServer() as server:
        store = opened(server.port)
        memories = [name(str(n)) for n in range(20)]
        heads = dict.fromkeys(memories, (0, 0))
        acknowledged: dict[MemoryName, list[bytes]] = {memory: [] for memory in memories}
        going, stop, failures = threading.Semaphore(0), threading.Event(), []

        def write() -> None:
            try:
                for n in itertools.count():
                    if stop.is_set():
                        return
                    group = [add(memory, *heads[memory], f"{n}", entry(f"{n}!", key=f"k{n}")) for memory in memories]
                    for slice_, outcome in zip(group, decided(store, group), strict=True):
                        if isinstance(outcome, Committed):
                            heads[slice_.name] = outcome.mid, slice_.expected + 2
                            acknowledged[slice_.name] += [each.entry_id for each in slice_.entries]
                    going.release()
            except BaseException as error:
                failures.append(error)
                going.release()

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(4):
            for _ in range(12):
                assert going.acquire(timeout=PATIENCE)
            server.kill()
            server.start()
        for _ in range(12):
            assert going.acquire(timeout=PATIENCE)
        stop.set()
        writer.join(PATIENCE)
        assert failures == []
        for memory in memories:
            mid, version = heads[memory]
            stored = store.entries(mid, after=0, limit=100_000)
            assert [each.version for each in stored] == list(range(1, version + 1))
            assert [each.entry_id for each in stored] == acknowledged[memory]
            assert len(store.receipts_of(memory, after="", limit=100_000)) == version // 2
        store.close()


def decided(store: Store, group: list[Slice]) -> list[Outcome]:
    """Commit a group as the runtime does: what failed is settled."""
    try:
        return commit(store, *group)
    except StoreUnavailableError as error:
        for _ in range(20):
            try:
                return [outcome or NotCommitted(error) for outcome in store.settle(group)]
            except StoreUnavailableError:
                continue
        raise

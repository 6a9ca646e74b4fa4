"""The Redis store on a cluster: all of its promises, while slots move and nodes are replaced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot

from stores.building import add, commit, committed, head_of, listed, load, name, texts
from support.valkey_server import ValkeyServer, free_port
from turnkeeper import StoreUnavailableError
from turnkeeper.log import Committed
from turnkeeper.stores import Store
from turnkeeper.stores.redis import RedisStore
from turnkeeper.stores.redis_records import bucket_of, member_of, tag_of
from turnkeeper.testing import StoreClock
from turnkeeper.testing.suite.changes import Announcing, Changes
from turnkeeper.testing.suite.committing import CompareAndSet, Deleting, Lifetime
from turnkeeper.testing.suite.copying import Copying, ReceiptsOf
from turnkeeper.testing.suite.describing import Expiry
from turnkeeper.testing.suite.leases import LivingLeases, StolenLeases
from turnkeeper.testing.suite.listing import Names, Prefixes, UpdatedAfter
from turnkeeper.testing.suite.pruning import Pruning
from turnkeeper.testing.suite.reading import Entries, Loading, Settling
from turnkeeper.testing.suite.receipts import Receipts
from turnkeeper.testing.suite.sharing import Sharing

PATIENCE = 30.0
SLOTS = 16384


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if true():
            return
        pause.wait(0.02)
    raise AssertionError("the cluster does not come to that")


class Cluster:
    """Two primaries with half of the slots each, and a replica of the first."""

    def __init__(self, stack: ExitStack) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-replica-no-failover", "yes")
        bus = [free_port() for _ in range(3)]
        self.nodes = [stack.enter_context(ValkeyServer(*options, "--cluster-port", str(port))) for port in bus]
        self.clients: list[Any] = [node.client() for node in self.nodes]
        for client in self.clients:
            stack.callback(client.close)
        for client, (first, last) in zip(self.clients, ((0, 8191), (8192, SLOTS - 1)), strict=False):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, port in list(zip(self.nodes, bus, strict=True))[1:]:
            self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, port)
        wait_until(lambda: all(len(self.known(client)) == 3 for client in self.clients))
        self.ids = [client.execute_command("CLUSTER", "MYID") for client in self.clients]
        wait_until(self._replicates)
        wait_until(lambda: all(self.is_up(client) for client in self.clients))

    def _replicates(self) -> bool:
        try:
            self.clients[2].execute_command("CLUSTER", "REPLICATE", self.ids[0])
        except Exception:
            return False
        return True

    def known(self, client: Any) -> list[str]:
        return self.text(client.execute_command("CLUSTER", "NODES")).strip().splitlines()

    def is_up(self, client: Any) -> bool:
        return "cluster_state:ok" in self.text(client.execute_command("CLUSTER", "INFO"))

    @staticmethod
    def text(reply: Any) -> str:
        return reply.decode() if isinstance(reply, bytes) else str(reply)

    def url(self, prefix: str, node: int = 0) -> str:
        return f"redis://127.0.0.1:{self.nodes[node].port}?cluster=true&prefix={prefix}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


class TestRedisClusterStore(
    CompareAndSet,
    Deleting,
    Lifetime,
    Receipts,
    Loading,
    Entries,
    Settling,
    Names,
    Prefixes,
    UpdatedAfter,
    Expiry,
    Pruning,
    Copying,
    ReceiptsOf,
    Changes,
    Announcing,
    LivingLeases,
    StolenLeases,
    Sharing,
):
    made_on: ClassVar[Cluster]

    @pytest.fixture(autouse=True)
    def running(self, cluster: Cluster) -> None:
        type(self).made_on = cluster

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        prefix = "t" + hashlib.sha256(bytes(place)).hexdigest()[:16]
        return RedisStore(self.made_on.url(prefix), clock=clock)


def opened(url: str) -> RedisStore:
    store = RedisStore(url)
    store.open(durability="full")
    return store


def test_a_group_goes_to_all_nodes_from_whichever_is_named(cluster: Cluster) -> None:
    for node in range(3):
        store = opened(cluster.url(f"n{node}", node))
        names = [name(str(n)) for n in range(60)]
        outcomes = commit(store, *[add(memory, 0, 0, memory.id) for memory in names])
        assert [type(outcome) for outcome in outcomes] == [Committed] * 60
        assert listed(store) == sorted(names)
        assert [texts(store, memory) for memory in names] == [[memory.id] for memory in names]
        store.close()
    held = [client.dbsize() for client in cluster.clients[:2]]
    assert min(held) > 0, "both primaries hold something"


def test_without_the_option_the_way_out_is_named(cluster: Cluster) -> None:
    with pytest.raises(StoreUnavailableError, match=r"\?cluster=true"):
        opened(f"redis://127.0.0.1:{cluster.nodes[0].port}")


def test_while_a_buckets_slot_moves_key_by_key_nothing_is_written_beside_it(cluster: Cluster) -> None:
    """A script on the old node misses keys that have gone, on the new one those that have not come."""
    prefix = "moving"
    store = opened(cluster.url(prefix))
    memory = next(name(str(n)) for n in range(999) if slot_of(prefix, str(n)) < 8192)
    slot = slot_of(prefix, memory.id)
    mid = committed(store, add(memory, 0, 0, "a"))
    old, new = cluster.clients[0], cluster.clients[1]
    new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.ids[0])
    old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.ids[1])
    keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    head = next(key for key in keys if b":h:" in key)
    port = cluster.nodes[1].port
    for moved in ([head], [key for key in keys if key != head]):
        old.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *moved)
        with pytest.raises(StoreUnavailableError, match="slots move"):
            commit(store, add(memory, mid, 1, "b"))
        with pytest.raises(StoreUnavailableError, match="slots move"):
            load(store, memory)
    for client in (new, old):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.ids[1])
    assert texts(store, memory) == ["a"]
    committed(store, add(memory, mid, 1, "b"))
    assert texts(store, memory) == ["a", "b"]
    store.close()


def slot_of(prefix: str, memory_id: str) -> int:
    return key_slot(tag_of(prefix, bucket_of(member_of(name(memory_id)))).encode())


def test_when_a_replica_takes_over_the_store_follows() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        prefix = "over"
        store = opened(cluster.url(prefix, 1))
        names = [name(str(n)) for n in range(60)]
        commit(store, *[add(memory, 0, 0, "a") for memory in names])
        mids = {memory: head_of(store, memory).mid for memory in names}
        wait_until(lambda: replicated(cluster))  # what was not, would be lost: replication is asynchronous
        group = [add(memory, mids[memory], 1, "b") for memory in names]
        cluster.nodes[0].kill()
        cluster.clients[2].execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: cluster.is_up(cluster.clients[1]) and cluster.is_up(cluster.clients[2]))
        outcomes = commit(store, *group)
        assert [type(outcome) for outcome in outcomes] == [Committed] * 60
        assert [texts(store, memory) for memory in names] == [["a", "b"]] * 60
        assert store.settle(group) != [None] * 60
        store.close()


def replicated(cluster: Cluster) -> bool:
    primary, replica = (cluster.clients[n].info("replication") for n in (0, 2))
    same = replica["slave_repl_offset"] == primary["master_repl_offset"]
    return bool(replica["master_link_status"] == "up" and same)

"""Connections to a Redis server, or to each node of a cluster, that carry many commands at once.

The driver's connections are used directly: a group of commands goes out in one write, the answers are read one by one,
and what was sent on a connection that is lost can be told from what was answered. The driver's own pipelines repeat or
hide just that, and those for clusters carry no scripts.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias

from redis import exceptions as driver
from redis.crc import key_slot

from turnkeeper.stores.redis_errors import LostError, code_of
from turnkeeper.stores.redis_scripts import Script
from turnkeeper.stores.redis_urls import Place

__all__ = ["Command", "Identity", "Link", "Reply", "call", "command", "hang_up"]

Reply: TypeAlias = Any
"""What the server answered, or the exception that stands for it."""

Address: TypeAlias = tuple[str, int]

_REDIRECTIONS: Final = 5


class Command(NamedTuple):
    """A command for the server that holds a key.

    Attributes:
        key: tells the node; empty: any.
        words: name and arguments.
        script: what it calls, if it calls a script.
    """

    key: str
    words: tuple[Any, ...]
    script: Script | None = None


def command(key: str, *words: Any) -> Command:
    """Make a command."""
    return Command(key, words)


def call(script: Script, tag: str, *arguments: Any, pure: bool = True) -> Command:
    """Make the call of a script with the keys behind a tag; `pure`: the server knows of scripts that only read."""
    name = "EVALSHA" if script.writes or not pure else "EVALSHA_RO"
    return Command(tag, (name, script.sha, 2, tag, tag + ":n", *arguments), script)


class Identity(NamedTuple):
    """A connection as its server knows it: what it takes to have it ended.

    Attributes:
        address: of the server.
        run: names the server's process.
        client: number of the connection there; 0: nobody knows.
    """

    address: Address
    run: str
    client: int


class Link:
    """One connection to each server that is needed, made when it is. One thread at a time, but for `shut`.

    Args:
        place: where the server is.
        joined: called with each new connection's identity before anything is sent; what it raises is passed on. None:
            nobody wants to know.
    """

    def __init__(self, place: Place, joined: Callable[[Identity], None] | None = None) -> None:
        self._place = place
        self._joined = joined
        self._home: Address = place.host, place.port
        self._open: dict[Address, Any] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._seeds: list[Address] = [self._home]
        self._lock = Lock()
        self._shut = False

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all at once and return the answers in order; errors and lost connections stand in their places."""
        replies: list[Reply] = [None] * len(commands)
        left = list(range(len(commands)))
        for _ in range(_REDIRECTIONS):
            asked = self._round(commands, left, replies)
            moved = [n for n in left if _is(replies[n], "MOVED")] if self._place.cluster else []
            unknown = [n for n in left if _is(replies[n], "NOSCRIPT")]
            if moved:
                self._slots = []
            self._teach(commands, unknown, asked)
            left = sorted({*moved, *unknown})
            if not left:
                break
        return replies

    def one(self, wanted: Command) -> Reply:
        """Send one command; raise what is no answer."""
        reply = self.run([wanted])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Close all connections; they are made again when needed."""
        connections, self._open = self._open, {}
        for connection in connections.values():
            connection.disconnect()

    def shut(self) -> None:
        """Close all connections for good, from any thread: who waits for an answer has lost it."""
        with self._lock:
            self._shut = True
            connections = list(self._open.values())
        for connection in connections:
            hang_up(connection)

    def addresses(self) -> list[Address]:
        """Return the servers that hold something: each primary of a cluster."""
        if not self._place.cluster:
            return [self._home]
        self._learn()
        return sorted({address for _, _, address in self._slots})

    def run_at(self, address: Address, wanted: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Send commands to a certain server."""
        return self._exchange(address, list(wanted))

    # Sending and reading

    def _round(self, commands: Sequence[Command], left: list[int], replies: list[Reply]) -> dict[int, Address]:
        """Send those of the commands that are left, to each node its own; return who was asked for what."""
        asked: dict[int, Address] = {}
        try:
            for n in left:
                asked[n] = self._address_of(commands[n].key)
        except LostError as error:
            for n in left:
                replies[n] = error
            return {}
        groups: dict[Address, list[int]] = {}
        for n, address in asked.items():
            groups.setdefault(address, []).append(n)
        for address, numbers in groups.items():
            found = self._exchange(address, [commands[n].words for n in numbers])
            for n, reply in zip(numbers, found, strict=True):
                replies[n] = reply
        if self._place.cluster:
            for n in left:
                if _is(replies[n], "ASK"):
                    there = replies[n].node_addr if replies[n].node_addr[0] else (asked[n][0], replies[n].port)
                    replies[n] = self._exchange(there, [("ASKING",), commands[n].words])[1]
        return asked

    def _exchange(self, address: Address, wanted: list[tuple[Any, ...]]) -> list[Reply]:
        replies: list[Reply] = []
        sent = False
        try:
            connection = self._connection(address)
            packed = b"".join([_wire(words) for words in wanted])
            sent = True
            connection.send_packed_command([packed], check_health=False)
            for _ in wanted:
                try:
                    replies.append(connection.read_response())
                except driver.ResponseError as error:
                    replies.append(error)
        except LostError as error:
            replies += [error] * (len(wanted) - len(replies))
        except Exception as error:  # whatever the driver makes of a connection that was closed under its hands
            self._forget(address)
            replies += [LostError.of(error, sent=sent)] * (len(wanted) - len(replies))
        except BaseException:
            self._forget(address)
            raise
        return replies

    def _teach(self, commands: Sequence[Command], unknown: list[int], asked: dict[int, Address]) -> None:
        """Load the scripts that a server said it does not know; it did nothing then."""
        wanted = {(asked[n], script.sha): script for n in unknown if (script := commands[n].script) is not None}
        for (address, _), script in wanted.items():
            self._exchange(address, [("SCRIPT", "LOAD", script.text)])

    def _connection(self, address: Address) -> Any:
        found = self._open.get(address)
        if found is not None:
            return found
        with self._lock:
            if self._shut:
                raise LostError("LOST", sent=False)
        connection = self._place.connection(*address)
        try:
            connection.connect()
            if self._joined is not None:
                self._joined(_identity(connection, address))
            with self._lock:
                if self._shut:
                    raise LostError("LOST", sent=False)
                self._open[address] = connection
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _forget(self, address: Address) -> None:
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.disconnect()
        if self._place.cluster:
            self._slots = []  # perhaps another node holds them by now

    # Clusters

    def _address_of(self, key: str) -> Address:
        if not self._place.cluster:
            return self._home
        self._learn()
        slot = key_slot(key.encode())
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        self._slots = []
        raise LostError("CLUSTERDOWN", sent=False)

    def _learn(self) -> None:
        if self._slots:
            return
        lost = LostError("LOST", sent=False)
        for seed in [self._home, *self._seeds]:
            reply = self._exchange(seed, [("CLUSTER", "SLOTS")])[0]
            if isinstance(reply, LostError):
                lost = reply
                continue
            if isinstance(reply, Exception):
                raise LostError(code_of(reply), sent=False)
            self._slots = list(_slots(reply, seed[0]))
            self._seeds = sorted({address for _, _, address in self._slots})
            return
        raise LostError(lost.reason, sent=False)


def hang_up(connection: Any) -> None:
    """Close a connection that another thread may be reading from, which is woken by it."""
    with contextlib.suppress(Exception):
        connection._sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(Exception):
        connection.disconnect()


def _wire(words: tuple[Any, ...]) -> bytes:
    """Return a command as the server reads it; several times as fast as the driver, which looks at each type anew."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _slots(reply: list[Any], host: str) -> Iterator[tuple[int, int, Address]]:
    for first, last, primary, *_ in reply:
        named = primary[0].decode() if primary[0] else ""
        yield first, last, (named if named not in ("", "?") else host, primary[1])


def _identity(connection: Any, address: Address) -> Identity:
    connection.send_packed_command([_wire(("CLIENT", "ID")) + _wire(("INFO", "server"))], check_health=False)
    found: list[Any] = []
    for _ in range(2):
        try:
            found.append(connection.read_response())
        except driver.ResponseError:
            found.append(None)
    client, info = found
    lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else []
    run = next((line.partition(":")[2] for line in lines if line.startswith("run_id:")), "")
    return Identity(address, run, client if isinstance(client, int) else 0)


def _is(reply: Reply, code: str) -> bool:
    return isinstance(reply, driver.ResponseError) and code_of(reply) == code

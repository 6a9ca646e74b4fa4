"""The proxy does to connections what it is told to, and only that."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.proxy import WHERE, Proxy, Upstream, Where

PATIENCE = 20.0


def echo(listener: socket.socket, received: bytearray) -> None:
    """Answer each connection with what it says, in capitals."""

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(4096):
                received.extend(data)
                client.sendall(data.upper())

    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client,), daemon=True).start()


@pytest.fixture
def received() -> bytearray:
    """What the server has got from everybody."""
    return bytearray()


@pytest.fixture(params=["tcp", "unix"])
def upstream(request: pytest.FixtureRequest, tmp_path: Path, received: bytearray) -> Iterator[Upstream]:
    if request.param == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        address: Upstream = listener.getsockname()
    else:
        listener = socket.socket(socket.AF_UNIX)
        address = str(tmp_path / "s")
        listener.bind(address)
        listener.listen()
    threading.Thread(target=echo, args=(listener, received), daemon=True).start()
    yield address
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    with Proxy(upstream) as proxy:
        yield proxy


@contextlib.contextmanager
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE) as connection:
        yield connection


def ask(connection: socket.socket, text: bytes) -> bytes:
    """Send, and return all that comes until there is as much, or the end."""
    connection.sendall(text)
    answer = b""
    with contextlib.suppress(ConnectionError):
        while len(answer) < len(text) and (more := connection.recv(4096)):
            answer += more
    return answer


def test_everything_passes_and_is_counted(proxy: Proxy) -> None:
    with client(proxy) as first, client(proxy) as second:
        assert ask(first, b"hello") == b"HELLO"
        assert ask(second, b"you") == b"YOU"
        assert (proxy.transfers, proxy.volume, proxy.connections) == (4, 16, 2)
        proxy.count_anew()
        large = b"x" * 3_000_000
        sender = threading.Thread(target=first.sendall, args=(large,))
        sender.start()
        got = 0
        while got < len(large):
            got += len(first.recv(2**20))
        sender.join()
        assert proxy.transfers >= 2


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transfer", range(4))
def test_a_cut_is_made_at_the_place_that_was_said(
    proxy: Proxy, received: bytearray, transfer: int, where: Where
) -> None:
    with client(proxy) as connection:
        assert ask(connection, b"before") == b"BEFORE"
        del received[:]
        proxy.cut_at(transfer, where)
        answers = [ask(connection, b"abcd"), ask(connection, b"efgh")] if transfer > 1 else [ask(connection, b"abcd")]
        assert proxy.struck.wait(PATIENCE)
        asked, part = divmod(transfer, 2)
        whole = {"before": 0, "in the middle": 2, "after": 4}[where]
        assert b"".join(answers) == b"ABCDEFGH"[: 4 * asked + (whole if part else 0)]
    if part or where == "before":
        assert bytes(received) == b"abcdefgh"[: 4 * asked + 4 * part]
    else:  # what was passed on just before the cut may still be on its way
        assert b"abcdefgh"[: 4 * asked + whole].startswith(received)
    with client(proxy) as connection:
        assert ask(connection, b"again") == b"AGAIN", "it was to be cut once"


def test_a_cut_of_everything_lasts_until_it_is_lifted(proxy: Proxy) -> None:
    with client(proxy) as first, client(proxy) as second:
        assert ask(second, b"x") == b"X"
        proxy.cut_at(0, "before", everything=True)
        assert ask(first, b"x") == b""
        assert second.recv(1) == b""
        with contextlib.suppress(ConnectionError), client(proxy) as third:
            assert ask(third, b"x") == b""
        assert proxy.refused.wait(PATIENCE)
        proxy.admit()
        with client(proxy) as third:
            assert ask(third, b"x") == b"X"


def test_what_is_held_up_arrives_when_it_flows_again(proxy: Proxy) -> None:
    with client(proxy) as connection:
        proxy.hold()
        connection.sendall(b"late")
        assert proxy.held.wait(PATIENCE)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(PATIENCE)
        proxy.flow()
        assert connection.recv(4) == b"LATE"


def test_only_the_connections_of_now_are_held_up_when_told_so(proxy: Proxy) -> None:
    with client(proxy) as old:
        assert ask(old, b"x") == b"X"
        proxy.hold(present=True)
        old.sendall(b"late")
        assert proxy.held.wait(PATIENCE)
        with client(proxy) as new:
            assert ask(new, b"x") == b"X"
        proxy.flow()
        assert old.recv(4) == b"LATE"


def test_it_closes_while_something_is_held_up(upstream: Upstream) -> None:
    with Proxy(upstream) as proxy, client(proxy) as connection:
        proxy.hold()
        connection.sendall(b"never answered")
        assert proxy.held.wait(PATIENCE)


def test_an_end_passes_too(proxy: Proxy) -> None:
    with client(proxy) as connection:
        assert ask(connection, b"x") == b"X"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_server_that_is_not_there_is_a_refused_connection(tmp_path: Path) -> None:
    for nowhere in (str(tmp_path / "nothing"), ("127.0.0.1", 1)):
        with Proxy(nowhere) as proxy:
            with contextlib.suppress(ConnectionError), client(proxy) as connection:
                assert ask(connection, b"x") == b""
            assert proxy.refused.wait(PATIENCE)


def test_a_delay_delays(proxy: Proxy) -> None:
    with client(proxy) as connection:
        proxy.slow_down(0.1)
        connection.sendall(b"x")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(PATIENCE)
        assert connection.recv(1) == b"X"


def test_it_tells_when_all_have_left(proxy: Proxy) -> None:
    with client(proxy) as connection:
        assert ask(connection, b"x") == b"X"
        assert not proxy.left(0.01)
    assert proxy.left(PATIENCE)

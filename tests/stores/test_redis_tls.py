"""The Redis store over TLS: certificates come from the URL, and what is wrong with them is told."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("redis")
pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stores.building import add, committed, name, texts
from support.valkey_server import ValkeyServer
from turnkeeper import StoreUnavailableError
from turnkeeper.stores.redis import RedisStore

M = name()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a certificate that signs itself for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    place = tmp_path_factory.mktemp("tls")
    (place / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (place / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return place / "cert.pem"


@pytest.fixture(scope="module")
def port(certificate: Path) -> Iterator[int]:
    """Put TLS before a server that has none."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    ready, found = threading.Event(), list[int]()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    with ValkeyServer() as server:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back, out = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(pump(reader, out), pump(back, writer))

        async def listen() -> None:
            relay = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
            found.append(relay.sockets[0].getsockname()[1])
            ready.set()
            await ended.wait()
            relay.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(listen(),))
        thread.start()
        assert ready.wait(20)
        yield found[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        loop.close()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_certificate_of_the_urls_authority_is_trusted(port: int, certificate: Path, scheme: str) -> None:
    store = RedisStore(f"{scheme}://127.0.0.1:{port}?prefix={scheme}&ssl_ca_certs={certificate}")
    store.open(durability="full")
    committed(store, add(M, 0, 0, "a"))
    assert texts(store, M) == ["a"]
    assert store.listen(0.0)
    store.announce()
    store.close()


@pytest.mark.parametrize("options", ["", "?ssl_ca_certs=/nowhere/ca.pem"], ids=["unknown authority", "no such file"])
def test_a_certificate_that_nobody_vouches_for_is_refused(port: int, options: str) -> None:
    with pytest.raises(StoreUnavailableError, match="ssl_ options"):
        RedisStore(f"rediss://127.0.0.1:{port}{options}").open(durability="full")

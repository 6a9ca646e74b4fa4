"""`turnkeeper doctor` on the server stores: it looks through every memory, and names what does not open."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.server_places import KINDS, server_place
from turnkeeper import open_sync_runtime
from turnkeeper.stores import EncryptedStore, Keyring, store_from_url

Invoke = Callable[..., Any]
PLACE = "looked_at"
KEY = b"k" * 32


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a place on a server that nobody has used."""
    with server_place(request.param, PLACE) as url:
        yield url


def test_a_store_of_plain_memories_is_healthy(invoke: Invoke, url: str) -> None:
    with open_sync_runtime(url) as runtime:
        runtime.memory("m").add({"role": "user", "content": "hello"})
    ran = invoke("doctor", url)
    assert ran.status == 0
    assert "healthy" in ran.out


def test_what_does_not_open_is_named_and_with_its_key_all_is_well(invoke: Invoke, url: str, tmp_path: Path) -> None:
    with open_sync_runtime(EncryptedStore(store_from_url(url), Keyring({"of-may": KEY}, active="of-may"))) as runtime:
        runtime.memory("sealed-one").add({"role": "user", "content": "hello"})
        runtime.memory("sealed-one").set([{"role": "user", "content": "hello again"}])
    ran = invoke("doctor", url)
    assert ran.status == 1
    assert {1, 2} == {
        n for n in range(5) for line in ran.out.splitlines() if f"'sealed-one' (namespace ''), entry {n}" in line
    }
    assert "of-may" in ran.out
    assert "hello" not in ran.out
    keys = tmp_path / "keys"
    keys.write_text(json.dumps({"active": "of-may", "keys": {"of-may": b64encode(KEY).decode()}}), encoding="utf-8")
    keys.chmod(0o600)
    ran = invoke("doctor", url, "--keys", str(keys))
    assert (ran.status, ran.err) == (0, "")

"""The stores that a promise is tested on."""

from __future__ import annotations

from pathlib import Path

import pytest

STORES = ("memory", "sqlite", "sqlite-shared")


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a fresh store of each kind."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=STORES[1:])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a fresh store of each durable kind."""
    return url_of(request.param, tmp_path)


def url_of(kind: str, folder: Path) -> str:
    """Return the URL of a fresh store."""
    return {
        "memory": "memory:",
        "sqlite": f"sqlite:///{folder}/chats.db",
        "sqlite-shared": f"sqlite:///{folder}/chats.db?shared=true",
    }[kind]

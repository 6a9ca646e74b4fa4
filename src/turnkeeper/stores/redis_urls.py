"""What a Redis URL says: where the server is, how to get in, and what this store takes of it for itself."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import connection as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from turnkeeper.errors import InvalidStoreURLError

__all__ = ["Place", "place_of"]

_SCHEMES: Final = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_OWN: Final = ("appendfsync", "cluster", "prefix")
_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
_NOT_FROM_URLS: Final = frozenset({"connection_class", "db", "decode_responses", "host", "password", "path", "port"})
"""Said elsewhere in the URL, or not for it to say."""


_parse_url: Any = driver.parse_url


class Place(NamedTuple):
    """Where a store's data are and how they are reached.

    Attributes:
        prefix: of all keys.
        cluster: the server is a node of a cluster.
        appendfsync: the server's setting in the user's word; empty: it has to be asked.
        host: of the server, or of one node.
        port: of the server, or of one node.
        db: number of the database.
        tls: the connection is encrypted.
        options: arguments for a connection but host and port.
    """

    prefix: str
    cluster: bool
    appendfsync: str
    host: str
    port: int
    db: int
    tls: bool
    options: dict[str, Any]

    def __repr__(self) -> str:
        """Name the server, never who logs in, nor how."""
        return f"<Place {self.host}:{self.port}/{self.db} prefix={self.prefix!r}>"

    def connection(self, host: str, port: int) -> Any:
        """Make a connection to a server, not connected yet."""
        kind = driver.SSLConnection if self.tls else driver.Connection
        return kind(host=host, port=port, **self.options)


def place_of(url: str) -> Place:
    """Read a URL.

    Raises:
        InvalidStoreURLError: it says something that is unknown, or of the wrong kind. Its password is never repeated.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidStoreURLError("this is no URL of a Redis server: redis://user:password@host:6379/0") from None
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        raise InvalidStoreURLError("a Redis URL begins with redis://, rediss://, valkey:// or valkeys://")
    if not re.fullmatch(r"/?|/[0-9]+", parts.path):
        raise InvalidStoreURLError("a Redis URL's path is the number of a database: redis://host:6379/0")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: given.pop(name) for name in _OWN if name in given}
    _check_options(given, tls=scheme == "rediss")
    try:
        options = _parse_url(f"{scheme}://{parts.netloc}{parts.path}?{urlencode(given)}")
    except ValueError:
        raise InvalidStoreURLError("an option of this Redis URL has a value of the wrong kind") from None
    options.pop("connection_class", None)
    prefix = own.get("prefix", "turnkeeper")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidStoreURLError("Redis option 'prefix' is 1-64 of letters, digits and '_', '.', ':', '-'")
    cluster = _flag("cluster", own.get("cluster", "false"))
    appendfsync = own.get("appendfsync", "")
    if appendfsync not in ("", "always", "everysec", "no"):
        raise InvalidStoreURLError("Redis option 'appendfsync' is 'always', 'everysec' or 'no'")
    if cluster and options.get("db", 0):
        raise InvalidStoreURLError("a cluster has database 0 alone; tell stores apart by '?prefix='")
    for name, seconds in (("socket_connect_timeout", _CONNECT_SECONDS), ("socket_timeout", _ANSWER_SECONDS)):
        if not 0 < (value := options.setdefault(name, seconds)) <= 20:
            raise InvalidStoreURLError(f"Redis option {name!r} is {value}; it is more than 0 and at most 20 seconds")
    options.setdefault("socket_keepalive", True)
    # Each connection is tried once: the store itself knows what may be tried again.
    options |= {"protocol": 2, "decode_responses": False, "retry": Retry(NoBackoff(), 0)}
    host = options.pop("host", "localhost")
    options.pop("port", None)
    place = Place(prefix, cluster, appendfsync, host, port or 6379, options.get("db", 0), scheme == "rediss", options)
    try:
        place.connection(host, place.port)
    except Exception:  # whose text may repeat a value, such as a password that is no text
        raise InvalidStoreURLError("the options of this Redis URL don't go together") from None
    return place


def _check_options(given: dict[str, str], *, tls: bool) -> None:
    known: set[str] = set()
    for kind in (driver.AbstractConnection, driver.Connection, *([driver.SSLConnection] if tls else [])):
        known |= set(inspect.signature(kind).parameters)
    known = {name for name in known if name.startswith(("socket_", "ssl_")) or name in ("client_name", "username")}
    for name in given:
        if name not in known - _NOT_FROM_URLS:
            hint = "; it needs rediss:// or valkeys://" if name.startswith("ssl_") and not tls else ""
            raise InvalidStoreURLError(f"unknown Redis option {name!r}{hint}; docs/redis.md lists what there is")


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidStoreURLError(f"Redis option {name!r} is 'true' or 'false'")
    return value.lower() == "true"

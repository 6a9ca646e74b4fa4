"""What a Redis server's refusals mean: which may pass, which speak of the server, and the way out of each."""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from turnkeeper.errors import StoreError, StoreFormatError, StoreUnavailableError

__all__ = ["LostError", "code_of", "explained", "may_pass", "was_not_run"]

_PASSES: Final = frozenset(
    {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK", "NOSCRIPT", "NOREPLICAS"}
)
"""While a server starts, fails over, or its slots move."""

_KINDS: Final = (
    (driver.AuthenticationError, "AUTH"),
    (driver.MasterDownError, "MASTERDOWN"),
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.MovedError, "MOVED"),
    (driver.AskError, "ASK"),
    (driver.TryAgainError, "TRYAGAIN"),
    (driver.ClusterCrossSlotError, "CROSSSLOT"),
    (driver.NoPermissionError, "NOPERM"),
    (driver.NoScriptError, "NOSCRIPT"),
    (driver.OutOfMemoryError, "OOM"),
    (driver.ReadOnlyError, "READONLY"),
)
"""The driver takes the word off the texts of these; a kind comes before those that it is one of."""

_WAYS_OUT: Final = {
    "ASK": "the cluster's slots move",
    "AUTH": "the server refuses the user or password of the URL",
    "BUSY": "the server is busy with somebody's script",
    "CLIENTS": "the server has as many clients as it takes (maxclients)",
    "CLUSTERDOWN": "the cluster has no node for some of its slots",
    "CROSSSLOT": "the server is a node of a cluster; append '?cluster=true'",
    "LOADING": "the server is still loading its data",
    "LOST": "the server can't be reached",
    "MASTERDOWN": "the server is a replica without its primary",
    "MISCONF": "the server can't write to its disk, and so takes no writes; its log says why",
    "MOVED": "the server is a node of a cluster; append '?cluster=true'",
    "NOPERM": "the server's user lacks a right; docs/redis.md lists what is needed",
    "NOREPLICAS": "too few replicas are up to date (min-replicas-to-write)",
    "NOSCRIPT": "the server forgets its scripts",
    "OOM": "the server's memory is full; remove something, or raise maxmemory",
    "READONLY": "the server is a replica; the URL has to name the primary",
    "TLS": "no encrypted connection comes about; see the URL's ssl_ options and the server's certificate",
    "TRYAGAIN": "the cluster's slots move",
}


class LostError(Exception):
    """A connection was lost before the answer came.

    Attributes:
        sent: something may have reached the server.
        reason: a key of what can be told about it.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason: str = reason
        self.sent: bool = sent

    @classmethod
    def of(cls, error: Exception, *, sent: bool) -> LostError:
        """Make one of the driver's error."""
        text = str(error).lower()
        reason = "LOST"
        if isinstance(error, (driver.AuthenticationError, driver.AuthenticationWrongNumberOfArgsError)):
            reason = "AUTH"
        elif isinstance(error, driver.BusyLoadingError):
            reason = "LOADING"
        elif isinstance(error, driver.NoPermissionError):
            reason = "NOPERM"
        elif "max number of clients" in text:
            reason = "CLIENTS"
        elif "ssl" in text or "certificate" in text or "no such file" in text:
            reason = "TLS"
        return cls(reason, sent=sent)

    @property
    def passes(self) -> bool:
        """Whether it may be otherwise in a moment."""
        return self.reason not in ("AUTH", "NOPERM", "TLS")


def code_of(error: Exception) -> str:
    """Return the word that a server's error begins with; where a script met it, the word of what it met."""
    for kind, code in _KINDS:
        if isinstance(error, kind):
            return code
    if "ACL failure in script" in str(error):  # said with the word ERR
        return "NOPERM"
    words = str(error).replace("-", " ").split()
    if words and words[0] in _WAYS_OUT:
        return words[0]
    # Redis 6.2 wraps what a script met: "ERR Error running script (call to f_…): @user_script:10: -OOM command not …"
    if words and words[0] != "WRONGTYPE":
        return next((word for word in words if word in _WAYS_OUT and word not in ("ASK", "BUSY", "LOST", "TLS")), "ERR")
    return "WRONGTYPE"


def may_pass(error: Exception) -> bool:
    """Tell whether the same may be answered otherwise in a moment."""
    if isinstance(error, LostError):
        return error.passes
    return isinstance(error, driver.ResponseError) and code_of(error) in _PASSES


def was_not_run(error: Exception) -> bool:
    """Tell whether what got this answer did nothing, and may be sent again."""
    return isinstance(error, driver.ResponseError) and code_of(error) in _PASSES


def explained(error: Exception, described: str, action: str) -> StoreError:
    """Say what happened and the way out; never the driver's text."""
    code = error.reason if isinstance(error, LostError) else code_of(error)
    if code == "WRONGTYPE":
        return StoreFormatError(f"{described}: this prefix holds another program's data; choose one with '?prefix='")
    if code in _WAYS_OUT:
        return StoreUnavailableError(f"{described}: {action} failed: {_WAYS_OUT[code]}")
    return StoreError(f"{described}: {action} failed with {code if code.isalpha() else 'ERR'}")

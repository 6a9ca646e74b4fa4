"""Every option of a runtime: its default, its unit, and the reason for the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypedDict

from turnkeeper.durations import Duration, seconds
from turnkeeper.errors import InvalidArgumentError
from turnkeeper.policies import CompactionPolicy, RetentionPolicy
from turnkeeper.windows import HISTORIES, Unbounded, Window

__all__ = ["RuntimeOptions", "Settings"]


class RuntimeOptions(TypedDict, total=False):
    """The keyword arguments of `open_runtime`, described in `Settings`."""

    close_timeout: Duration
    commit_timeout: Duration
    compaction: CompactionPolicy | None
    conflict_attempts: int
    consistency: Literal["strong", "local"] | None
    durability: Literal["full", "relaxed"]
    expires_after: Duration | None
    group_bytes: int
    group_entries: int
    history: Literal["keep", "window"] | RetentionPolicy
    idempotency_ttl: Duration
    idle_timeout: Duration | None
    linger: Duration
    load_timeout: Duration
    mailbox_size: int
    max_compactions: int
    max_pending: int
    max_pending_bytes: int
    max_resident: int | None
    max_resident_bytes: int | None
    on_overload: Literal["wait", "reject"]
    sweep_interval: Duration
    turn_lease: Duration
    watch_interval: Duration
    window: Window


def _option(
    default: Any,
    unit: str,
    reason: str,
    *,
    least: float | None = None,
    choices: tuple[Any, ...] = (),
    policy: type | None = None,
) -> Any:
    metadata = {"unit": unit, "reason": reason, "least": least, "choices": choices, "policy": policy}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options of one runtime, checked; durations in seconds."""

    window: Window = _option(
        Unbounded(), "window", "What the model is shown unless a handle has its own; showing all hides nothing."
    )
    history: str | RetentionPolicy = _option(
        "keep",
        "",
        "What a window evicts stays in the store, where other windows and the history find it. 'window' removes it: "
        "then the window of each handle that writes prunes, and needs a limit. A RetentionPolicy removes what is old.",
        choices=HISTORIES,
        policy=RetentionPolicy,
    )
    expires_after: float | None = _option(
        None,
        "seconds",
        "Without a change for so long, a memory is deleted. None: never, but for memories with a time of their own.",
    )
    sweep_interval: float = _option(
        60.0,
        "seconds",
        "Between looks at what has expired or is to be pruned: what is late by a minute harms nobody.",
    )
    compaction: CompactionPolicy | None = _option(
        None, "policy", "When conversations are compacted by themselves. None: only by memory.compact()."
    )
    max_compactions: int = _option(
        4, "compactions", "At once: summarisers are models, and models have limits.", least=1
    )
    durability: str = _option(
        "full",
        "",
        "Acknowledged means it survives a power cut; grouped commits make that cheap. 'relaxed' lowers the store's "
        "sync setting: a power cut may then take the last commits, a crash of the process none.",
        choices=("full", "relaxed"),
    )
    consistency: str | None = _option(
        None,
        "",
        "None is 'strong' where other processes may write (a shared store) and 'local' where they can't; 'strong' "
        "checks the head before a read, 'local' suits conversations that are routed to one process.",
        choices=(None, "strong", "local"),
    )
    mailbox_size: int = _option(
        256, "requests", "A memory with more requests waiting than this slows its own senders down first.", least=1
    )
    max_pending: int = _option(
        20_000, "requests", "Bounds RAM and queueing time of the whole runtime under overload.", least=1
    )
    max_pending_bytes: int = _option(
        256 * 2**20,
        "bytes",
        "The same for large messages; one request alone is always let in, whatever its size.",
        least=1,
    )
    on_overload: str = _option(
        "wait",
        "",
        "Waiting in line pushes back on the senders; 'reject' raises OverloadedError at once.",
        choices=("wait", "reject"),
    )
    max_resident: int | None = _option(
        50_000, "memories", "At one or two KB each besides its messages, about 100 MB. None: no bound.", least=1
    )
    max_resident_bytes: int | None = _option(
        512 * 2**20, "bytes", "Encoded messages held in RAM by idle memories. None: no bound.", least=0
    )
    linger: float = _option(
        1.0, "seconds", "A parked task costs about 10 KB, starting one about 0.1 ms: keep it while a user types on."
    )
    idle_timeout: float | None = _option(
        300.0, "seconds", "How long an idle memory stays in RAM: a conversation's pause. None: until RAM is needed."
    )
    group_entries: int = _option(
        512, "entries", "Larger groups gain nothing over the cost of a sync and hold the first caller up.", least=1
    )
    group_bytes: int = _option(
        8 * 2**20, "bytes", "Bounds the time one group takes; a single larger slice still goes alone.", least=1
    )
    commit_timeout: float = _option(
        30.0, "seconds", "A store that answers later than this is down for the caller's purposes."
    )
    load_timeout: float = _option(30.0, "seconds", "The same for reading.")
    close_timeout: float = _option(
        10.0, "seconds", "How long closing waits for pending requests, and for a store that stalls."
    )
    turn_lease: float = _option(
        30.0,
        "seconds",
        "On a shared store: how long a turn keeps others out after its process died. It is renewed after a third.",
        least=0.01,
    )
    watch_interval: float = _option(
        0.5,
        "seconds",
        "On a shared store: how long a watcher may not see what another process committed. One look for all watchers, "
        "and none without them; at least 10 ms pass between two.",
    )
    conflict_attempts: int = _option(
        100,
        "attempts",
        "How often a request is applied anew after another process won the race for the head; four processes with 50 "
        "tasks each on one memory need more than 20 now and then.",
        least=1,
    )
    idempotency_ttl: float = _option(
        86_400.0, "seconds", "A day outlives every client's retries; receipts cost about 150 bytes each."
    )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Check options given by the user.

        Raises:
            InvalidArgumentError: an unknown name, a wrong type, or a value out of range.
        """
        known = {option.name: option for option in fields(cls)}
        values = {}
        for name, value in options.items():
            if name not in known:
                raise InvalidArgumentError(f"unknown option {name!r}; known are {', '.join(sorted(known))}")
            values[name] = _checked(name, value, str(known[name].type), known[name].metadata)
        return cls(**values)


_KINDS: Final[dict[str, type]] = {"int": int, "str": str, "Window": Window, "CompactionPolicy": CompactionPolicy}


def _checked(name: str, value: Any, annotation: str, metadata: Mapping[str, Any]) -> Any:
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return None
    if metadata["policy"] is not None and isinstance(value, metadata["policy"]):
        return value
    if metadata["choices"]:
        if value not in metadata["choices"]:
            raise InvalidArgumentError(f"{name} must be one of {', '.join(map(repr, metadata['choices']))}")
        return value
    if kind == "float":
        value = seconds(name, value)
    elif not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be a {kind}, not {type(value).__name__}")
    if metadata["least"] is not None and value < metadata["least"]:
        raise InvalidArgumentError(f"{name} must be at least {metadata['least']}")
    return value

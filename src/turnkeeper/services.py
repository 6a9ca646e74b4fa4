"""What every actor of a runtime shares, held once so that an actor stays small."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from turnkeeper.admission import Admission
from turnkeeper.committer import Committer
from turnkeeper.config import Settings
from turnkeeper.names import MemoryName
from turnkeeper.reader import Reader
from turnkeeper.requests import Request
from turnkeeper.state import Log

if TYPE_CHECKING:
    from turnkeeper.actor import Actor
    from turnkeeper.notices import Notices
    from turnkeeper.residency import Residency

__all__ = ["Inbox", "Services"]

Inbox = MemoryObjectReceiveStream[Request]


class Services:
    """The runtime's parts, as an actor uses them.

    Attributes:
        residency: set once it is made, since it needs the actors' maker.
        strong: reads check the head first.
        shared: other processes may write, so a turn needs a lease.
        expect_policies: told when a memory was given a time of its own to be kept.
        policy: told of each commit, to compact what has become long; None without a policy.
        stopping: the runtime ends: a cancelled task is meant to be.
        doubtful: memories with a commit of unknown outcome, which may still land: until one of theirs succeeds, and
            so fences the old one off, their reads check the store.
        conflicts: commits that another writer forestalled.
        unknown_outcomes: requests answered with `OutcomeUnknownError`.
        acknowledged_lost: memories found behind what the store had acknowledged.
        notices: what is heard of other processes; None where the store has no notices.
    """

    __slots__ = (
        "acknowledged_lost",
        "admission",
        "committer",
        "conflicts",
        "doubtful",
        "expect_policies",
        "make_event",
        "notices",
        "now",
        "policy",
        "random_bytes",
        "reader",
        "residency",
        "settings",
        "shared",
        "spawn",
        "stopping",
        "strong",
        "unknown_outcomes",
    )

    def __init__(
        self,
        settings: Settings,
        committer: Committer,
        reader: Reader,
        admission: Admission,
        spawn: Callable[[Actor, Inbox], None],
        make_event: Callable[[], anyio.Event],
        *,
        strong: bool,
        shared: bool,
    ) -> None:
        self.make_event: Callable[[], anyio.Event] = make_event
        self.now: Callable[[], float] = anyio.current_time
        self.settings: Settings = settings
        self.committer: Committer = committer
        self.reader: Reader = reader
        self.admission: Admission = admission
        self.spawn: Callable[[Actor, Inbox], None] = spawn
        self.strong: bool = strong
        self.shared: bool = shared
        # Entry ids must be unique, not secret: a generator seeded by the system costs a third of asking it each time.
        # One for each runtime, because processes forked from one parent would share its numbers.
        self.random_bytes: Callable[[int], bytes] = Random(os.urandom(32)).randbytes
        self.residency: Residency
        self.policy: Callable[[MemoryName, Log], None] | None = None
        self.expect_policies: Callable[[], None]
        self.stopping: bool = False
        self.doubtful: set[MemoryName] = set()
        self.conflicts: int = 0
        self.unknown_outcomes: int = 0
        self.acknowledged_lost: int = 0
        self.notices: Notices | None = None

"""What one run is to do, as the process that does it is told, and what it answers."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Checked", "Result", "Spec"]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one workload on one subject, in a process of its own.

    Attributes:
        subject: a built-in subject's name, or the path of an adapter file.
        workload: the workload's name.
        backend: "asyncio", "uvloop" or "trio".
        clients: tasks (or threads, where the workload is about threads) that send at the same time.
        conversations: how many there are.
        seconds: how long is measured; workloads that do a fixed amount ignore it.
        warm_up: seconds of the same before that, not measured.
        messages: how many each conversation has before, where the workload wants some; or a window's size.
        size: bytes of a message's text.
        rate: operations a second of all clients together, where the workload is an open loop.
        seed: of everything that is drawn at random.
        place: an empty directory for the subject's files.
        transcript: a file to replay, where the workload does.
    """

    subject: str
    workload: str
    backend: str
    clients: int
    conversations: int
    seconds: float
    warm_up: float
    messages: int
    size: int
    rate: float
    seed: int
    place: str
    transcript: str = ""


class Checked(msgspec.Struct, kw_only=True):
    """What an independent look at the store found, against what was sent and acknowledged.

    Attributes:
        kept: acknowledged messages that are there.
        lost: acknowledged messages that are not.
        doubled: messages that are there more than once.
        misordered: pairs of one sender's messages that stand the wrong way round.
        torn: turns with something of somebody else's between their messages.
        foreign: texts that nobody sent.
        unacknowledged: messages that are there although their sender was told of a failure, or cancelled.
        invalid: prompts that a provider would refuse.
    """

    kept: int = 0
    lost: int = 0
    doubled: int = 0
    misordered: int = 0
    torn: int = 0
    foreign: int = 0
    unacknowledged: int = 0
    invalid: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing acknowledged was lost, doubled or put out of order, and every prompt could be used."""
        return not (self.lost or self.doubled or self.misordered or self.foreign or self.invalid)


class Result(msgspec.Struct, kw_only=True):
    """What a run answers.

    Attributes:
        spec: what it was.
        title: the subject's.
        durability: what the subject's acknowledgement promises: "memory", "process" (survives this process's death)
            or "power cut".
        consistency: "strong" or "local" where the subject has the choice; else empty.
        versions: of the packages that matter.
        operations: done within the measured time.
        seconds: the measured time.
        cpu: seconds of this process's CPU in that time.
        latencies: percent → seconds, many enough for a curve.
        longest: seconds of the longest operation.
        errors: type of error → operations that ended with it.
        cancelled: operations that the workload cancelled.
        bytes_per_conversation: resident memory each conversation takes above its encoded messages, where measured.
        pause: seconds of a full garbage collection at the end, where measured.
        checked: what was found in the store.
        independent: the store was looked at by another process than the one that wrote.
        failure: why there is no result; empty: there is one.
    """

    spec: Spec
    title: str = ""
    durability: str = ""
    consistency: str = ""
    versions: dict[str, str] = {}
    operations: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    latencies: dict[str, float] = {}
    longest: float = 0.0
    errors: dict[str, int] = {}
    cancelled: int = 0
    bytes_per_conversation: float | None = None
    pause: float | None = None
    checked: Checked | None = None
    independent: bool = False
    failure: str = ""

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds if self.seconds else 0.0

    def key(self) -> tuple[Any, ...]:
        """Return what makes two runs comparable, but for the subject."""
        spec = self.spec
        return spec.workload, spec.backend, spec.clients, spec.conversations, spec.messages, spec.rate

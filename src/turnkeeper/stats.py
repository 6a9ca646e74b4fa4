"""Statistics: frozen snapshots, every field documented."""

from __future__ import annotations

import msgspec

from turnkeeper.log import Version

__all__ = ["MemoryStats", "RuntimeStats"]


class MemoryStats(msgspec.Struct, frozen=True, gc=False):
    """One memory at one instant.

    Attributes:
        version: its version.
        message_count: messages since it was last set or cleared.
        encoded_bytes: their size as JSON.
        created_at: microseconds since the epoch by the store's clock; 0 while there is no such memory.
        updated_at: the same of the last change.
    """

    version: Version
    message_count: int
    encoded_bytes: int
    created_at: int
    updated_at: int


class RuntimeStats(msgspec.Struct, frozen=True, gc=False):
    """One runtime at one instant; counters run from its opening.

    Attributes:
        running: memories with a task.
        resident: memories with state in RAM, running ones included.
        resident_bytes: encoded messages in RAM.
        peak_resident: most memories in RAM at once.
        pending: requests admitted and not answered.
        pending_bytes: bytes of messages in them.
        peak_pending: most requests pending at once.
        peak_pending_bytes: most bytes pending at once.
        waiting: callers in line because the runtime is full.
        overloaded: requests refused with OverloadedError.
        commits: slices sent to the store.
        commit_groups: groups they went in.
        peak_commit_group: slices in the largest group.
        reads: loads, head checks and key look-ups sent to the store.
        read_groups: groups they went in.
        conflicts: commits that another writer forestalled, each applied anew.
        unknown_outcomes: requests answered with OutcomeUnknownError.
        unloads: memories dropped from RAM.
        compactions: summaries committed in the place of older messages.
        compaction_failures: attempts of a `CompactionPolicy` that came to nothing.
        acknowledged_lost: how often a memory was found behind what the store had acknowledged.
        failed_at_close: requests failed with RuntimeClosedError, or OutcomeUnknownError, because closing took too long.
    """

    running: int
    resident: int
    resident_bytes: int
    peak_resident: int
    pending: int
    pending_bytes: int
    peak_pending: int
    peak_pending_bytes: int
    waiting: int
    overloaded: int
    commits: int
    commit_groups: int
    peak_commit_group: int
    reads: int
    read_groups: int
    conflicts: int
    unknown_outcomes: int
    unloads: int
    failed_at_close: int
    compactions: int = 0
    compaction_failures: int = 0
    acknowledged_lost: int = 0

"""Finding out that a store has less than it had acknowledged, as a server may that took another one's place."""

from __future__ import annotations

import logging
import os
from typing import Final

from msgspec.structs import replace

from turnkeeper.errors import (
    AcknowledgedDataLostError,
    StoreError,
)
from turnkeeper.log import (
    Committed,
    Head,
    Lease,
    Slice,
    Version,
)
from turnkeeper.names import MemoryName
from turnkeeper.services import Services
from turnkeeper.stores import Store

__all__ = ["NOTHING", "find_loss"]

logger: Final[logging.Logger] = logging.getLogger("turnkeeper")

NOTHING: Final = Version(0, 0)
"""The version of a memory that is not there."""

_PROBE_LEASE: Final = 1.0
"""Seconds that a row made to see its number may keep others out, should it not be given back."""


async def find_loss(
    services: Services, name: MemoryName, known: Version, head: Head | None
) -> AcknowledgedDataLostError | None:
    """Return the error when the store has less than a version that it had acknowledged.

    Rows only get higher numbers. Where there is none, another process may have deleted it: then the next row's is
    higher. Cancelled, it leaves at most a row for a moment, which a lease of a second keeps.

    Args:
        services: the runtime's parts.
        name: the memory.
        known: the version that was acknowledged.
        head: the memory's row in the store now.
    """
    if head is not None and head.version:
        if head.mid > known.mid or (head.mid == known.mid and head.version >= known.n):
            return None
        found = Version(head.mid, head.version)
    else:
        if name in services.doubtful:
            return None  # a delete of our own may have come through of which nobody knows
        if services.shared and not await _is_older(services, known):
            number = head.mid if head is not None and head.mid != known.mid else await _next_row(services, name)
            if number == 0 or number > known.mid:
                return None
        found = NOTHING
    services.acknowledged_lost += 1
    logger.error("the store has less of a memory than it had acknowledged: %s, not %s", found, known)
    return AcknowledgedDataLostError(name.id, name.namespace, known, found)


async def _is_older(services: Services, known: Version) -> bool:
    """Tell whether a row is older than all that the store has: it was another server's, or the data were made anew."""
    try:
        return known.mid < await services.reader.run(_first_row)
    except StoreError:
        return False


def _first_row(store: Store) -> int:
    return store.first_row()


async def _next_row(services: Services, name: MemoryName) -> int:
    """Return the number that a new row of this name gets, by making one for a moment; 0: it can't be told."""
    mark, commit = os.urandom(16), services.committer.commit
    probe = Slice(name, 0, 0, (), lease=Lease(mark, _PROBE_LEASE))
    outcome = await commit(probe)
    if not isinstance(outcome, Committed):
        return 0
    await commit(replace(probe, mid=outcome.mid, turn_id=mark, lease=Lease(mark, 0.0)))
    return outcome.mid

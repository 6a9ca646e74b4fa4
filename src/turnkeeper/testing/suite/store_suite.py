"""All parts of the suite as one class."""

from __future__ import annotations

from turnkeeper.testing.suite.changes import Announcing, Changes
from turnkeeper.testing.suite.committing import CompareAndSet, Deleting, Lifetime
from turnkeeper.testing.suite.copying import Copying, ReceiptsOf
from turnkeeper.testing.suite.describing import Expiry, Metadata, MetadataFirst, SettlingChanges
from turnkeeper.testing.suite.faulty import Faults
from turnkeeper.testing.suite.histories import Histories
from turnkeeper.testing.suite.leases import LeasesThatAreOver, LivingLeases, SettlingLeases, StolenLeases
from turnkeeper.testing.suite.listing import Names, Prefixes, UpdatedAfter
from turnkeeper.testing.suite.processes import Processes
from turnkeeper.testing.suite.pruning import Pruning
from turnkeeper.testing.suite.reading import Entries, Loading, Settling, Times
from turnkeeper.testing.suite.real_time import RealTime
from turnkeeper.testing.suite.receipts import Receipts
from turnkeeper.testing.suite.runtimes import RuntimeOnTheStore, TwoRuntimes
from turnkeeper.testing.suite.sharing import Sharing

__all__ = ["StoreSuite"]


class StoreSuite(
    CompareAndSet,
    Deleting,
    Lifetime,
    Receipts,
    Loading,
    Entries,
    Settling,
    Times,
    Names,
    Prefixes,
    UpdatedAfter,
    Metadata,
    MetadataFirst,
    SettlingChanges,
    Expiry,
    Pruning,
    Copying,
    ReceiptsOf,
    Changes,
    Announcing,
    LivingLeases,
    LeasesThatAreOver,
    StolenLeases,
    SettlingLeases,
    RealTime,
    Sharing,
    RuntimeOnTheStore,
    TwoRuntimes,
    Histories,
    Faults,
    Processes,
):
    """Subclass it, say how your store is made, and run pytest: each promise of a store is a test.

    The tests with a runtime run on the event loops of your `anyio_backend` fixture. What your store does not have (it
    is not `shared`, announces nothing, has no `expired`, `changes` or `adopt`) is skipped, and the reason says so.

    For tests with a second process, `make_store` is pickled with the attributes of `self`: your class has to be at the
    top level of a module that can be imported by its name.

    Class attributes:
        durable: a new store object on the same place finds what an earlier one committed (True).
        settable_clock: the store asks `clock` for the time (True). Otherwise what depends on time is tested with short
            lifetimes only.
        spawns: `make_store` can be called in another process (True).
    """

"""Every promise of a store as a test: who writes a store subclasses `StoreSuite` in pytest.

For example:

    class TestMyStore(StoreSuite):
        def make_store(self, place, clock):
            return MyStore(place / "chats", clock=clock or time.time)
"""

import pytest

_PARTS = (
    "changes",
    "committing",
    "copying",
    "describing",
    "faulty",
    "histories",
    "leases",
    "listing",
    "processes",
    "pruning",
    "reading",
    "real_time",
    "receipts",
    "runtimes",
    "sharing",
    "words",
)
# Before they are imported: so that what they assert is shown when it fails.
pytest.register_assert_rewrite(*[f"{__name__}.{part}" for part in _PARTS])

from turnkeeper.testing.suite.base import StoreClock  # noqa: E402
from turnkeeper.testing.suite.store_suite import StoreSuite  # noqa: E402

__all__ = ["StoreClock", "StoreSuite"]

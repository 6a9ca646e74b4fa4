"""The errors that only these names have; all others are those of `turnkeeper.errors`."""

from __future__ import annotations

from turnkeeper.errors import InvalidArgumentError, TurnkeeperError

__all__ = ["AsyncNotSupportedError", "UnsupportedByStoreError"]


class AsyncNotSupportedError(TurnkeeperError, NotImplementedError):
    """A memory or its store has no async twin of what was awaited; nothing was changed.

    A blocking store is not moved to a thread silently: say `offload_blocking_store=True`, or define the twins.
    """


class UnsupportedByStoreError(InvalidArgumentError):
    """A store of the user's own can't do this: it has neither versions, receipts nor a history; nothing was changed."""

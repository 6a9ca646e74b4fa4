"""What every part of the suite is built on: the store under test, its place and its clock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from turnkeeper.stores import Store

__all__ = ["OpenStore", "StoreClock", "SuitePart", "needs", "needs_changes"]

OpenStore = Callable[[], Store]
"""Opens one more store object on the data of this test; closed when the test is over."""


class StoreClock:
    """Seconds since the epoch, as the test says: what a store asks instead of the system.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def needs(store: Store, *methods: str) -> None:
    """Skip the test where the store has not one of these methods of its own."""
    keeping = getattr(store, "inner", store)  # a store around another one can do what that one can
    for method in methods:
        if getattr(type(keeping), method) is getattr(Store, method):
            pytest.skip(f"{type(store).__name__} has no '{method}'")


def needs_changes(store: Store) -> None:
    """Skip the test where the store tells nothing of changes, and need not: nobody else writes to it."""
    if not store.shared:
        needs(store, "changes")
        try:
            store.changes(None, 1)
        except NotImplementedError:  # a store around another one passes on what that one says
            pytest.skip(f"{type(store).__name__} has no 'changes' here")


@contextmanager
def _naming(promise: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"What a store promises: {promise}")
        raise


def _promising(test: Callable[..., Any], promise: str) -> Callable[..., Any]:
    """Return a test that says which promise is broken when it fails; an async one runs on the user's event loops."""
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def awaiting(*args: Any, **options: Any) -> None:
            __tracebackhide__ = True
            with _naming(promise):
                await test(*args, **options)

        marked: Callable[..., Any] = pytest.mark.anyio(awaiting)
        return marked

    @functools.wraps(test)
    def calling(*args: Any, **options: Any) -> None:
        __tracebackhide__ = True
        with _naming(promise):
            test(*args, **options)

    return calling


class SuitePart:
    """A part of the suite; the first line of a part's docstring is the promise that its tests name when they fail."""

    durable: ClassVar[bool] = True
    """A new store object on the same place finds what an earlier one committed."""

    settable_clock: ClassVar[bool] = True
    """The store can be told the time: `make_store` does something with its `clock`."""

    def make_store(self, place: Path, clock: StoreClock | None) -> Store:
        """Return a new store object, not opened yet, on the data that belong to `place`: same place, same data.

        Args:
            place: an empty directory of this test. A store that keeps its data elsewhere takes it as a name.
            clock: what the store has to ask for the time; None: the real time.
        """
        raise NotImplementedError(f"{type(self).__name__} has to say how its store is made: override make_store")

    def receipts_held(self, store: Store) -> int | None:
        """Return how many receipts take up room in the store, expired or not; None: that can't be told."""
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(f"{__package__}."):
            promise = (cls.__doc__ or "").partition("\n")[0]
            for attribute, value in list(vars(cls).items()):
                if attribute.startswith("test_"):
                    setattr(cls, attribute, _promising(value, promise))

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Return the place of this test's data."""
        return tmp_path

    @pytest.fixture
    def set_clock(self) -> StoreClock | None:
        """Return the store's clock, None where it can't be set."""
        return StoreClock() if self.settable_clock else None

    @pytest.fixture
    def clock(self, set_clock: StoreClock | None) -> StoreClock:
        """Return the store's clock, for tests that set it."""
        if set_clock is None:
            pytest.skip("the store's clock can't be set (settable_clock)")
        return set_clock

    @pytest.fixture
    def open_store(self, place: Path, set_clock: StoreClock | None) -> Iterator[OpenStore]:
        """Return what opens one more store object, by the test's clock."""
        with ExitStack() as stack:

            def opened() -> Store:
                made = self.make_store(place, set_clock)
                stack.callback(made.close)
                made.open(durability="full")
                return made

            yield opened

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        """Return an open store."""
        return open_store()

    @pytest.fixture
    def shared(self, store: Store) -> Store:
        """Return an open store that several processes may write to."""
        if not store.shared:
            pytest.skip(f"{type(store).__name__} is not shared here: one runtime owns it")
        return store

"""Options: checked, pinned, and known under one name in both places."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from turnkeeper import InvalidArgumentError, RuntimeOptions, Settings, Unbounded, open_runtime, open_sync_runtime


def test_the_typed_options_are_the_settings() -> None:
    assert set(RuntimeOptions.__annotations__) == {field.name for field in fields(Settings)}


@pytest.mark.parametrize(
    "options",
    [
        {"nonsense": 1},
        {"mailbox_size": 0},
        {"mailbox_size": 1.5},
        {"mailbox_size": True},
        {"mailbox_size": None},
        {"max_resident": 0},
        {"linger": -1},
        {"linger": "1"},
        {"linger": float("nan")},
        {"linger": None},
        {"linger": timedelta(seconds=-1)},
        {"turn_lease": 0},
        {"durability": "none"},
        {"consistency": "eventual"},
        {"on_overload": "explode"},
        {"window": "all"},
        {"window": Unbounded},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        open_runtime("memory:", **options)
    with pytest.raises(InvalidArgumentError, match=next(iter(options))), open_sync_runtime("memory:", **options):
        pass


def test_durations_are_seconds_or_timedeltas() -> None:
    settings = Settings.of({"linger": 2, "idle_timeout": timedelta(minutes=1), "close_timeout": 0.5})
    assert (settings.linger, settings.idle_timeout, settings.close_timeout) == (2.0, 60.0, 0.5)
    assert Settings.of({"idle_timeout": None, "max_resident": None, "max_resident_bytes": None}).idle_timeout is None


@pytest.mark.parametrize("store", [5, b"memory:", object()])
def test_a_store_is_a_url_or_a_store(store: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="store"):
        open_runtime(store)

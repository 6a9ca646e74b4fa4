"""Each test marked `anyio` runs on every event loop; see `support` for the tools."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

from support.backends import BACKENDS

pytest_plugins = ("pytester", "support.loop_guard", "support.stores", "support.time_limit")

# No deadlines: a busy machine is not a bug. CI repeats the same examples, so a red run means a change.
settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=os.environ.get("CI") == "true", print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse the modes in which a test runs on another loop than its id says."""
    if config.getini("trio_mode"):
        raise pytest.UsageError("trio_mode runs every async test on trio, whatever its id says: mark tests instead")
    if "auto" in (config.getini("anyio_mode"), config.getoption("anyio_mode")):
        raise pytest.UsageError("anyio_mode=auto runs @pytest.mark.trio tests once for each anyio backend: mark tests")
    if config.pluginmanager.has_plugin("asyncio") and "auto" in (
        config.getini("asyncio_mode"),
        config.getoption("asyncio_mode"),
    ):
        raise pytest.UsageError("asyncio_mode=auto takes tests away from anyio's plugin: mark tests instead")


@pytest.fixture(scope="module", params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Return the backend, as name and options, that a test marked `anyio` runs on."""
    return request.param

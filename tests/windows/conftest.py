"""A window must never take an actor down: whoever asked next would be answered all the same, so only the log tells."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def _no_actor_fails() -> Iterator[None]:
    """Fail a test in which turnkeeper logged an error."""
    errors, logger = _Errors(), logging.getLogger("turnkeeper")
    logger.addHandler(errors)
    yield
    logger.removeHandler(errors)
    assert errors.messages == []

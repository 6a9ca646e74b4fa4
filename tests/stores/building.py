"""The suite's words, for the tests of what each store has of its own."""

from __future__ import annotations

from turnkeeper.testing import StoreClock as Clock
from turnkeeper.testing.suite.words import (
    TTL,
    add,
    clearing,
    commit,
    committed,
    delete,
    describing,
    entry,
    head_of,
    listed,
    load,
    log,
    name,
    outcome_of,
    pruning,
    setting,
    texts,
)

__all__ = [
    "TTL",
    "Clock",
    "add",
    "clearing",
    "commit",
    "committed",
    "delete",
    "describing",
    "entry",
    "head_of",
    "listed",
    "load",
    "log",
    "name",
    "outcome_of",
    "pruning",
    "setting",
    "texts",
]

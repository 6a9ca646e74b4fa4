"""Each vector about compaction, through `memory.compact`, actor and store, on every loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.classes import is_compacted, of_class
from conformance.compacting import INSTEAD, Compacting
from conformance.vectors import Vector
from turnkeeper import open_runtime

pytestmark = pytest.mark.anyio

VECTORS = [vector for vector in of_class("holds", "differs", "inverted") if is_compacted(vector)]
WAYS = [("memory", False), ("sqlite", False), ("sqlite", True)]


@pytest.mark.parametrize(("kind", "unloading"), WAYS, ids=["memory", "sqlite", "sqlite-unloading"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
async def test_a_compaction_leaves_what_was_promised(
    vector: Vector, kind: str, unloading: bool, tmp_path: Path
) -> None:
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/chats.db"
    async with open_runtime(url) as runtime:
        await Compacting(vector, runtime, unloading=unloading)()


def test_what_differs_says_how() -> None:
    assert {vector.id for vector in of_class("differs") if is_compacted(vector)} == set(INSTEAD)

"""Where the texts that begin with a prefix end, and what a load that doesn't add up turns into."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stores.building import add, committed, load, name
from turnkeeper.errors import MemoryCorruptError
from turnkeeper.folding import fold
from turnkeeper.stores import Store
from turnkeeper.stores.ranges import end_of_prefix

M = name()
LAST = "\U0010ffff"


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
@example("\ud7ff", "\ue000")
@example(LAST, LAST)
@example("a" + LAST, "b")
def test_the_end_of_a_prefix_is_the_first_text_behind(prefix: str, text: str) -> None:
    end = end_of_prefix(prefix)
    inside = prefix.encode() <= text.encode() and (end is None or text.encode() < end.encode())
    assert inside == text.startswith(prefix)
    assert end is None or not end.startswith(prefix)


def test_a_log_with_a_hole_is_corrupt(store: Store) -> None:
    committed(store, add(M, 0, 0, "a", "b", "c"))
    loaded = load(store, M)
    with pytest.raises(MemoryCorruptError, match="missing") as raised:
        fold(type(loaded)(loaded.head, 0, (loaded.entries[0], loaded.entries[2])), M)
    assert raised.value.version == 2

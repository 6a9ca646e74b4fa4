"""What there is to choose from."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from statemachine.driver import ALL
from statemachine.operations import NONE, Disturbance
from statemachine.states import Batch
from turnkeeper import MessageWindow, TurnWindow, Unbounded, Window
from windows.histories import MESSAGES
from windows.saying import answer, calls, result, system, user

READING: Final[list[Window]] = [
    ALL,
    Unbounded(on_unanswered="drop"),
    MessageWindow(2, on_overflow="evict"),
    MessageWindow(5, on_overflow="evict", system_first=True),
    MessageWindow(3, on_overflow="keep"),
    TurnWindow(max_messages=4),
    TurnWindow(max_turns=1),
]
WRITING: Final[list[Window]] = [
    ALL,
    ALL,
    ALL,
    TurnWindow(max_messages=4),
    MessageWindow(4),
    MessageWindow(3, on_overflow="evict"),
]

windows_to_read = st.sampled_from(READING)
windows_to_write = st.sampled_from(WRITING)
batches: st.SearchStrategy[Batch] = st.one_of(
    st.lists(MESSAGES, min_size=1, max_size=3).map(tuple),
    st.lists(MESSAGES, min_size=1, max_size=3).map(tuple),
    st.just((user(), calls("1"), result("1"))),
)
summaries: st.SearchStrategy[Batch] = st.lists(
    st.sampled_from([system("summary"), system("s"), user("so far"), answer("yes")]), min_size=1, max_size=2
).map(tuple)
keys = st.one_of(st.none(), st.none(), st.sampled_from(["k1", "k2"]))

_faults = st.sampled_from(
    [
        (("commit", "before", 1),),
        (("commit", "before", 2),),
        (("commit", "after", 1),),
        (("commit", "before", 1), ("settle", "before", 9)),
        (("commit", "after", 1), ("settle", "before", 9)),
        (("commit", "after", 1), ("settle", "before", 9), ("load", "before", 1)),
        (("load", "before", 1),),
        (("receipts", "before", 1),),
    ]
)
_passes = st.integers(0, 8)
disturbances: st.SearchStrategy[Disturbance] = st.one_of(
    st.just(NONE),
    st.just(NONE),
    st.builds(Disturbance, faults=_faults),
    st.builds(Disturbance, passes=_passes, natively=st.booleans()),
    st.builds(Disturbance, stalled=st.sampled_from(["commit", "load"]), natively=st.booleans()),
    st.builds(Disturbance, faults=_faults, passes=_passes, natively=st.booleans()),
)

"""The log in RAM: tentative entries and their rollback, against a model."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper import MemoryCorruptError, Messages, MessageWindow, Unbounded
from turnkeeper.folding import extend, fold
from turnkeeper.log import Entry, Head, Loaded, StoredEntry, Version, encode_payload
from turnkeeper.messages import encode_messages
from turnkeeper.names import MemoryName
from turnkeeper.state import Log

NAME = MemoryName("", "m")
Change = tuple[str, list[str]]
changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "set", "clear"]), st.lists(st.sampled_from(["a", "bb", "s"]), min_size=1, max_size=3)
    )
)


def encoded(texts: list[str]):  # type: ignore[no-untyped-def]
    return encode_messages([{"role": "system" if text == "s" else "user", "content": text} for text in texts])


def change(log: Log, op: str, texts: list[str]) -> None:
    if op == "add":
        log.append(encoded(texts))
    else:
        log.replace(encoded(texts) if op == "set" else ())


def view_of(log: Log) -> Messages:
    view = log.view(Unbounded(), None)
    assert view is not None
    return view


def picture(log: Log) -> tuple[object, ...]:
    view = view_of(log)
    return log.n, log.base, log.system, log.size, log.count, [m.text for m in view], [m.id for m in view], view.version


@given(changes, changes)
def test_a_rollback_leaves_no_trace(before: list[Change], tentative: list[Change]) -> None:
    log = Log(Head(3, 0, 0, 0, 1, 1))
    for op, texts in before:
        change(log, op, texts)
    then, mark = picture(log), log.begin()
    for op, texts in tentative:
        change(log, op, texts)
        view_of(log)
    log.rollback(mark)
    assert picture(log) == then


@given(changes)
def test_loading_gives_the_same_state_whole_or_from_a_known_version_on(history: list[Change]) -> None:
    log, stored, logs = Log(Head(3, 0, 0, 0, 1, 1)), [], [fold(Loaded(Head(3, 0, 0, 0, 1, 1), 0, ()), NAME)]
    for n, (op, texts) in enumerate(history, start=1):
        change(log, op, texts)
        payload = encode_payload(Entry(op, b"", () if op == "clear" else encoded(texts)))
        stored.append(StoredEntry(n, op, b"i" * 16, payload, 5))
    head = Head(3, log.n, log.base, log.system, 1, 5)
    whole = fold(Loaded(head, 0, tuple(stored[max(log.base, 1) - 1 :])), NAME)
    assert picture(whole) == picture(log)
    for known in range(log.base or 1, log.n + 1):
        partial = fold(Loaded(Head(3, known, log.base, 0, 1, 5), 0, tuple(stored[max(log.base, 1) - 1 : known])), NAME)
        assert picture(extend(partial, Loaded(head, known, tuple(stored[known:]), continues=True), NAME)) == picture(
            log
        )
    assert logs[0].messages == ()


@pytest.mark.parametrize(
    ("entries", "version", "reason"),
    [
        ([(2, "add", b'{"messages":[]}')], 1, "missing"),
        ([(1, "add", b'{"messages":[]}')], 2, "does not end"),
        ([(1, "add", b'{"messages":[]}'), (2, "sing", b"{}")], 2, "unknown kind"),
        ([(1, "add", b'{"messages":[]}'), (2, "add", b"{")], 2, "can't be decoded"),
        ([(1, "add", b'{"messages":[{"role":"robot"}]}'), (2, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b'{"messages":[5]}'), (2, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b'{"messages":[{"role":"user","content":"\xff"}]}'), (2, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b"[]"), (2, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b'{"messages":7}'), (2, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b"{}")], 1, "can't be decoded"),
        ([(1, "add", b'{"messages":[]}'), (2, "set", b'{"messages":[]}')], 3, "does not end"),
    ],
)
def test_what_can_not_be_decoded_is_named(entries: list[tuple[int, str, bytes]], version: int, reason: str) -> None:
    stored = tuple(StoredEntry(n, op, b"i" * 16, payload, 5) for n, op, payload in entries)
    with pytest.raises(MemoryCorruptError) as caught:
        fold(Loaded(Head(3, 2, 0, 0, 1, 1), 0, stored), NAME)
    assert caught.value.version == version
    assert reason in caught.value.reason


def test_an_undecodable_tail_leaves_the_log_as_it_was() -> None:
    log = Log(Head(3, 0, 0, 0, 1, 1))
    change(log, "add", ["a"])
    then = picture(log)
    tail = (StoredEntry(2, "add", b"", b'{"messages":[{"role":"user"}]}', 5), StoredEntry(3, "add", b"", b"{", 5))
    with pytest.raises(MemoryCorruptError):
        extend(log, Loaded(Head(3, 3, 0, 0, 1, 1), 1, tail, continues=True), NAME)
    assert picture(log) == then


def test_the_view_is_one_object_until_something_changes() -> None:
    log = Log(Head(3, 0, 0, 0, 1, 1))
    assert view_of(log) is view_of(log)
    change(log, "add", ["a"])
    first = view_of(log)
    assert first is view_of(log)
    change(log, "add", ["bb"])
    assert view_of(log) is not first
    assert [m.text for m in first] == ["a"]
    assert first.version == Version(3, 1)


def test_a_log_that_leaves_ram_does_not_wait_for_the_collector() -> None:
    log = Log(Head(3, 0, 0, 0, 1, 1))
    change(log, "add", ["a"])
    window = MessageWindow(lambda _: 1)
    assert log.view(window, 1) is not None
    assert log.view(Unbounded(), None) is not None
    gone = weakref.ref(window)
    collecting = gc.isenabled()
    gc.disable()
    try:
        del log, window
        assert gone() is None
    finally:
        if collecting:
            gc.enable()

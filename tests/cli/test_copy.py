"""`turnkeeper copy`: what is in the target is what was in the source, whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import importlib.util
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.whole_stores import contents, scribble, whole
from turnkeeper import MessageWindow, open_sync_runtime
from turnkeeper.cli import copy_reading, copy_running, copy_writing
from turnkeeper.cli.copy_judging import NOTE_KEY
from turnkeeper.errors import StoreError, StoreUnavailableError
from turnkeeper.folding import fold
from turnkeeper.log import Lease, LoadQuery, Outcome, Slice, Version
from turnkeeper.names import MemoryName
from turnkeeper.plan import EVERYTHING
from turnkeeper.stores import Loaded, SQLiteStore, Transfer, store_from_url

SERVERS = [
    url
    for url, module in [
        ("nosuch://me:hunter2@localhost/x", "urls"),
        ("postgresql://me:hunter2@localhost:1/x?connect_timeout=1", "postgres"),
        ("redis://:hunter2@localhost:1/0", "redis"),
    ]
    if importlib.util.find_spec(f"turnkeeper.stores.{module}")
]

Invoke = Callable[..., Any]
Fill = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]
Adopting = Callable[[Callable[[int], None]], None]

TALK = [{"role": "user", "content": f"message {number}"} for number in range(10)]


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": str(text)}


def told(ran: Any) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)


def done(ran: Any) -> dict[str, int]:
    """Return how many memories had which end, but for those that none had."""
    counts = {title: int(found.split()[0]) for title, found in told(ran).items() if found.endswith(" memories")}
    return {title: count for title, count in counts.items() if count}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Return a store in which everything has happened."""
    url = f"sqlite:///{tmp_path}/source.db"
    with open_sync_runtime(url) as runtime:
        scribble(runtime, 7, 400, "abcdAB")
    return url


@pytest.fixture(params=["sqlite", "sqlite-shared"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/target.db" + ("?shared=true" if request.param == "sqlite-shared" else "")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything go in small pieces."""
    monkeypatch.setattr(copy_reading, "PART_ENTRIES", 3)
    monkeypatch.setattr(copy_running, "_GROUP", 4)
    monkeypatch.setattr(copy_running, "_FIRST_PAGE", 5)
    monkeypatch.setattr(copy_running, "_LARGEST_PAGE", 5)
    monkeypatch.setattr(copy_writing, "_RECEIPTS", 2)


@pytest.fixture
def after_adopting(monkeypatch: pytest.MonkeyPatch) -> Adopting:
    """Have something done after each group that is written; it is told how many there were."""
    adopt = SQLiteStore.adopt
    count = 0

    def install(act: Callable[[int], None]) -> None:
        def adopting(self: SQLiteStore, transfers: Sequence[Transfer]) -> list[Outcome]:
            nonlocal count
            outcomes = adopt(self, transfers)
            count += 1
            act(count)
            return outcomes

        monkeypatch.setattr(SQLiteStore, "adopt", adopting)

    return install


def name(memory_id: str, namespace: str = "") -> MemoryName:
    return MemoryName(namespace, memory_id)


class TestACopy:
    def test_is_the_same_down_to_the_last_byte(self, invoke: Invoke, source: str, target: str) -> None:
        ran = invoke("copy", source, target)
        found = whole(source)
        assert (ran.status, ran.err) == (0, "")
        assert whole(target) == found
        assert told(ran)["copied"] == f"{len(found)} memories"
        assert told(ran)["entries"] == str(sum([len(each.entries) for each in found.values()]))
        assert "what was written was read back" in ran.out
        assert any(each.receipts for each in found.values())
        assert any(each.head.meta for each in found.values())
        assert any(each.head.base > 1 and each.entries[0].version > 1 for each in found.values())

    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("seed", range(4))
    def test_is_the_same_in_small_parts(self, invoke: Invoke, tmp_path: Path, target: str, seed: int) -> None:
        source = f"sqlite:///{tmp_path}/source.db"
        with open_sync_runtime(source) as runtime:
            scribble(runtime, seed, 300, "abcAB")
        assert invoke("copy", source, target).status == 0
        assert whole(target) == whole(source)

    def test_goes_on_as_the_original_would(self, invoke: Invoke, source: str, target: str) -> None:
        assert invoke("copy", source, target).status == 0
        for url in (source, target):
            with open_sync_runtime(url) as runtime:
                scribble(runtime, 8, 60, "abcdAB")
                runtime.memory("a").add(user("last"), idempotency_key="the end")
        with open_sync_runtime(source) as one, open_sync_runtime(target) as other:
            for memory_id in "abcdAB":
                for namespace in ("", "team"):
                    messages = one.memory(memory_id, namespace).messages()
                    assert list(other.memory(memory_id, namespace).messages()) == list(messages)

    def test_answers_a_repeated_request_with_its_first_receipt(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill()
        with open_sync_runtime(source) as runtime:
            runtime.memory("a").add(user("of an earlier one"), idempotency_key="early")
            runtime.memory("a").delete()
            runtime.memory("a").add(user(1))
            runtime.memory("a").add(user(2), idempotency_key="k")
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(target) as runtime:
            memory = runtime.memory("a")
            receipt = memory.add(user(2), idempotency_key="k")
            assert receipt.version == memory.messages().version
            assert memory.add(user("of an earlier one"), idempotency_key="early").version == Version(0, 1)
            assert len(memory.messages()) == 2

    def test_may_be_of_one_namespace_and_prefix(self, invoke: Invoke, fill: Fill, target: str) -> None:
        fill(namespace="team", ab=TALK[:1], b=TALK[:1])
        source = fill(aa=TALK[:1], ab=TALK[:1], b=TALK[:1])
        for options, names in [
            (["--namespace", "team", "--prefix", "a"], [name("ab", "team")]),
            (["--namespace", ""], [name("aa"), name("ab"), name("b"), name("ab", "team")]),
            (["--prefix", "b"], [name("aa"), name("ab"), name("b"), name("ab", "team"), name("b", "team")]),
        ]:
            assert invoke("copy", source, target, *options).status == 0
            assert list(whole(target)) == names

    def test_of_metadata_alone(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill()
        with open_sync_runtime(source) as runtime:
            runtime.memory("a").set_metadata(title="T")
        for what in ("copied", "there already"):
            assert done(invoke("copy", source, target)) == {what: 1}
            assert whole(target) == whole(source)

    def test_has_the_receipts_before_it_looks_whole(
        self, invoke: Invoke, fill: Fill, target: str, small: None, after_adopting: Adopting
    ) -> None:
        source = fill()
        with open_sync_runtime(source) as runtime:
            for number in range(9):
                runtime.memory("a").add(user(number), idempotency_key=f"k{number}")
        wanted = whole(source)
        looked_whole: list[bool] = []

        def look(_: int) -> None:
            found = whole(target)
            if found[name("a")].head == wanted[name("a")].head:
                looked_whole.append(found == wanted)

        after_adopting(look)
        assert invoke("copy", source, target).status == 0
        assert looked_whole == [True]


class TestASecondTime:
    def test_costs_one_look(self, invoke: Invoke, source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert invoke("copy", source, target).status == 0
        calls: list[str] = []
        for method in ("entries", "load", "receipts", "receipts_of", "adopt", "commit"):
            real = getattr(SQLiteStore, method)

            def noted(self: SQLiteStore, *args: Any, _real: Any = real, _method: str = method, **options: Any) -> Any:
                calls.append(_method)
                return _real(self, *args, **options)

            monkeypatch.setattr(SQLiteStore, method, noted)
        monkeypatch.setattr(copy_running, "_FIRST_PAGE", 100)
        ran = invoke("copy", source, target)
        assert done(ran) == {"there already": len(whole(source))}
        assert calls[:2] == ["load", "load"]
        assert set(calls[2:]) <= {"entries", "receipts_of"}  # of `whole`

    def test_brings_what_has_come_since(self, invoke: Invoke, source: str, target: str, small: None) -> None:
        assert invoke("copy", source, target).status == 0
        for seed in range(20, 26):
            with open_sync_runtime(source) as runtime:
                scribble(runtime, seed, 40, "abcdAB")
            assert invoke("copy", source, target).status == 0, seed
            found = whole(target)
            for memory, wanted in whole(source).items():
                assert found[memory] == wanted, (seed, memory)

    def test_takes_over_metadata_and_times(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill(a=TALK, b=TALK)
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(source, expires_after=1000) as runtime:
            runtime.memory("a").set_metadata(title="T")
        assert done(invoke("copy", source, target)) == {"brought up to date": 1, "there already": 1}
        assert whole(target) == whole(source)

    def test_leaves_alone_what_has_gone_on_in_the_target(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill(a=TALK, b=TALK)
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(target) as runtime:
            runtime.memory("a").add(user("of the target"))
            runtime.memory("b").set_metadata(title="of the target")
        there = whole(target)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (0, {"there with more": 1, "there already": 1})
        assert whole(target) == there

    def test_keeps_metadata_of_the_target_and_brings_entries(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill(a=TALK)
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(target) as runtime:
            runtime.memory("a").set_metadata(title="of the target")
        with open_sync_runtime(source) as runtime:
            runtime.memory("a").add(user("more"))
        assert done(invoke("copy", source, target)) == {"extended": 1}
        with open_sync_runtime(target) as runtime:
            assert runtime.memory("a").metadata().title == "of the target"
            assert len(runtime.memory("a").messages()) == len(TALK) + 1

    def test_may_compare_every_entry(
        self, invoke: Invoke, fill: Fill, target: str, tmp_path: Path, canary: str
    ) -> None:
        source = fill(a=TALK, b=[user(canary)] * 3, c=TALK, d=TALK)
        with open_sync_runtime(source) as runtime:
            runtime.memory("d").add(user("more"), idempotency_key="k")
        assert invoke("copy", source, target).status == 0
        connection = sqlite3.connect(tmp_path / "target.db")
        of = "(SELECT mid FROM head WHERE id = '{}')"
        connection.execute(f"UPDATE entry SET at = at + 1 WHERE version = 2 AND mid = {of.format('b')}")
        connection.execute(f"DELETE FROM entry WHERE version = 3 AND mid = {of.format('c')}")
        connection.execute("DELETE FROM receipt WHERE key = 'k'")
        connection.commit()
        connection.close()
        assert done(invoke("copy", source, target)) == {"there already": 4}
        ran = invoke("copy", source, target, "--check")
        assert (ran.status, done(ran)) == (1, {"there already": 1, "not copied": 3})
        assert "memory 'b' (namespace '') is not the same in the target: entry 2 differs" in ran.err
        assert "memory 'c' (namespace '') is not the same in the target: entry 3 is missing" in ran.err
        assert "memory 'd' (namespace '') is not the same in the target: a receipt of entry 11" in ran.err
        assert canary not in ran.out + ran.err

    def test_lets_go_what_the_source_has_pruned_since_when_it_compares(
        self, invoke: Invoke, fill: Fill, target: str, tmp_path: Path
    ) -> None:
        source = fill(a=TALK, b=TALK)
        with open_sync_runtime(source) as runtime:
            runtime.memory("a").set([user("anew")])
        assert invoke("copy", source, target).status == 0
        connection = sqlite3.connect(tmp_path / "chats.db")
        connection.execute("DELETE FROM entry WHERE version < 11 AND mid = (SELECT mid FROM head WHERE id = 'a')")
        connection.commit()
        connection.close()
        assert done(invoke("copy", source, target)) == {"there already": 2}
        assert done(invoke("copy", source, target, "--check")) == {"brought up to date": 1, "there already": 1}
        assert whole(target) == whole(source)
        assert done(invoke("copy", source, target, "--check")) == {"there already": 2}

    def test_may_delete_the_copies_of_what_is_gone(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill(a=TALK, b=TALK, c=TALK, d=TALK)
        with open_sync_runtime(target) as runtime:
            runtime.memory("own").add(user("of the target"))
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(target) as runtime:
            runtime.memory("b").add(user("of the target"))
            runtime.memory("c").set_metadata(title="of the target")
        with open_sync_runtime(source) as runtime:
            for memory_id in "abc":
                runtime.memory(memory_id).delete()
        assert done(invoke("copy", source, target)) == {"there already": 1}
        assert [each.id for each in whole(target)] == ["a", "b", "c", "d", "own"]
        ran = invoke("copy", source, target, "--delete-gone")
        assert done(ran) == {"there already": 1, "deleted in the target": 1}
        assert [each.id for each in whole(target)] == ["b", "c", "d", "own"]


class TestSomethingElse:
    @pytest.fixture
    def both(self, fill: Fill, tmp_path: Path) -> tuple[str, str]:
        source, target = fill(a=TALK, b=TALK[:2], c=TALK), fill("target.db", b=TALK[2:4])
        return source, target

    def test_is_refused_and_told_and_the_others_go_on(self, invoke: Invoke, both: tuple[str, str]) -> None:
        source, target = both
        there = whole(target)[name("b")]
        ran = invoke("copy", *both)
        assert (ran.status, done(ran)) == (1, {"copied": 2, "not copied": 1})
        assert "not copied: memory 'b' (namespace '') is there already, and is another memory" in ran.err
        assert "1 of 3 memories were not copied" in ran.err
        assert "message" not in ran.err.replace("messages", "")
        assert whole(target) == {**whole(source), name("b"): there}

    def test_is_replaced_when_asked(self, invoke: Invoke, both: tuple[str, str]) -> None:
        ran = invoke("copy", *both, "--replace")
        assert (ran.status, done(ran)) == (0, {"copied": 2, "replaced": 1})
        assert whole(both[1]) == whole(both[0])

    def test_is_a_copy_that_went_another_way(self, invoke: Invoke, fill: Fill, target: str) -> None:
        source = fill(a=TALK, b=TALK)
        assert invoke("copy", source, target).status == 0
        for url, text in ((source, "here"), (target, "there")):
            with open_sync_runtime(url) as runtime:
                runtime.memory("a").add(user(text))
                runtime.memory("b").set_metadata(title=text)
        there = whole(target)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"not copied": 2})
        assert "another history, at entry 11" in ran.err
        assert "metadata were changed in both stores" in ran.err
        assert whole(target) == there
        assert invoke("copy", source, target, "--replace").status == 0
        assert whole(target) == whole(source)

    def test_is_a_memory_of_another_store_though_it_was_copied_as_well(
        self, invoke: Invoke, fill: Fill, target: str
    ) -> None:
        first, second = fill("first.db", a=TALK), fill("second.db", a=TALK)
        assert invoke("copy", first, target).status == 0
        assert invoke("copy", second, target).status == 1
        assert whole(target) == whole(first)

    def test_made_anew_in_the_source_takes_the_place_of_its_untouched_copy(
        self, invoke: Invoke, fill: Fill, target: str
    ) -> None:
        source = fill(a=TALK, b=TALK)
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(target) as runtime:
            runtime.memory("b").add(user("of the target"))
        with open_sync_runtime(source) as runtime:
            for memory_id in "ab":
                runtime.memory(memory_id).delete()
                runtime.memory(memory_id).add(user("anew"))
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"replaced": 1, "not copied": 1})
        assert whole(target)[name("a")] == whole(source)[name("a")]

    def test_is_a_turn_that_is_open_in_the_target(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        source, target = fill(a=TALK, b=TALK), f"sqlite:///{tmp_path}/target.db?shared=true"
        assert invoke("copy", source, target, "--prefix", "a").status == 0
        with open_sync_runtime(source) as runtime:
            runtime.memory("a").add(user("more"))
        store = store_from_url(target)
        store.open(durability="full")
        (loaded,) = store.load([LoadQuery(name("a"))])
        assert loaded.head is not None
        lease = Slice(name("a"), loaded.head.mid, loaded.head.version, (), lease=Lease(b"t" * 16, 1000))
        store.commit([lease], receipt_ttl=1)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 1, "not copied": 1})
        assert "held by a turn in the target" in ran.err
        assert invoke("copy", source, target, "--replace").status == 1
        store.commit([replace(lease, turn_id=b"t" * 16, lease=Lease(b"t" * 16, 0))], receipt_ttl=1)
        store.close()
        assert done(invoke("copy", source, target)) == {"extended": 1, "there already": 1}
        assert whole(target) == whole(source)


class TestBetweenTwoParts:
    """What is done to a memory in the source, or in the target, while it is copied."""

    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("seed", range(3))
    def test_whoever_looks_finds_a_state_that_it_had(
        self, invoke: Invoke, tmp_path: Path, target: str, after_adopting: Adopting, seed: int
    ) -> None:
        source = f"sqlite:///{tmp_path}/source.db"
        said: dict[tuple[MemoryName, int], Any] = {}
        with open_sync_runtime(source) as runtime:

            def note() -> None:
                for memory_id in "ab":
                    messages = runtime.memory(memory_id).messages()
                    said[name(memory_id), messages.version.n] = list(messages)

            scribble(runtime, seed, 250, "ab", note)
        looks = 0
        reader = store_from_url(target, read_only=True)

        def look(number: int) -> None:
            nonlocal looks
            if number == 1:
                reader.open(durability="full")
            for memory_id in "ab":
                (loaded,) = reader.load([LoadQuery(name(memory_id))])
                if loaded.head is not None and (name(memory_id), loaded.head.version) in said:
                    log = fold(loaded, name(memory_id))
                    wanted = said[name(memory_id), loaded.head.version]
                    assert [message.to_dict() for message in _shown(log)] == [each.to_dict() for each in wanted]
                    looks += 1

        after_adopting(look)
        assert invoke("copy", source, target, "--namespace", "").status == 0
        reader.close()
        assert looks > 20

    @pytest.fixture
    def changing(self, invoke: Invoke, fill: Fill, target: str, small: None, after_adopting: Adopting) -> Any:
        """Copy a memory that is changed in the source after its first part; return what came of it."""

        def changing(change: Callable[[Any], None], *, window: bool = False) -> tuple[Any, str, str]:
            source = fill(a=[{"role": "system", "content": "Be kind."}, *TALK], b=TALK[:1])
            options: Any = {"window": MessageWindow(3), "history": "window"} if window else {}

            def act(count: int) -> None:
                if count == 1:
                    with open_sync_runtime(source) as runtime:
                        change(runtime.memory("a", **options))

            after_adopting(act)
            return invoke("copy", source, target), source, target

        return changing

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda memory: memory.clear(), id="cleared"),
            pytest.param(lambda memory: memory.set([user("anew")]), id="set"),
            pytest.param(lambda memory: memory.edit(memory.messages()[1].id, user("edited")), id="edited"),
            pytest.param(lambda memory: memory.undo(4), id="undone"),
            pytest.param(lambda memory: memory.add(user("more")), id="added to"),
            pytest.param(lambda memory: memory.compact(lambda *_: "short", keep=1), id="compacted"),
            pytest.param(lambda memory: memory.set_metadata(title="T"), id="described"),
        ],
    )
    def test_it_ends_as_the_source_has_it_then(self, changing: Any, change: Any) -> None:
        ran, source, target = changing(change)
        assert (ran.status, done(ran)) == (0, {"copied": 2})
        assert whole(target) == whole(source)

    def test_a_pruned_one_ends_as_the_source_has_it_then(self, changing: Any) -> None:
        ran, source, target = changing(lambda memory: memory.add(user("more")), window=True)
        assert whole(source)[name("a")].entries[1].version > 5
        assert (ran.status, done(ran)) == (0, {"copied": 2})
        assert whole(target) == whole(source)

    def test_a_deleted_one_is_not_there(self, changing: Any) -> None:
        ran, source, target = changing(lambda memory: memory.delete())
        assert (ran.status, done(ran)) == (0, {"copied": 1, "gone meanwhile": 1})
        assert list(whole(target)) == list(whole(source)) == [name("b")]

    def test_one_that_was_made_anew_is_the_new_one(self, changing: Any) -> None:
        ran, source, target = changing(lambda memory: (memory.delete(), memory.add(user("anew"))))
        assert (ran.status, done(ran)) == (0, {"copied": 1, "replaced": 1})
        assert whole(target) == whole(source)

    @pytest.mark.parametrize("times", [2, 4])
    def test_cut_off_and_pruned_the_second_run_ends_right(
        self, invoke: Invoke, fill: Fill, target: str, small: None, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        source = fill(a=[{"role": "system", "content": "Be kind."}, *TALK], b=TALK)
        with monkeypatch.context() as patch:
            _interrupt_at(patch, times, "after")
            assert invoke("copy", source, target).status == 130
        with open_sync_runtime(source) as runtime:
            memory = runtime.memory("a", window=MessageWindow(3), history="window")
            for number in range(3):
                memory.add(user(number))
        assert invoke("copy", source, target).status == 0
        assert whole(target) == whole(source)

    def test_somebody_who_writes_to_it_in_the_target_loses_nothing(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, small: None, after_adopting: Adopting
    ) -> None:
        source, target = fill(a=TALK, b=TALK), f"sqlite:///{tmp_path}/target.db?shared=true"

        def act(count: int) -> None:
            if count == 2:
                with open_sync_runtime(target) as runtime:
                    runtime.memory("a").add(user("of the target"))

        after_adopting(act)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 1, "not copied": 1})
        assert "with another history, at entry 7" in ran.err
        with open_sync_runtime(target) as runtime:
            assert [message.content for message in runtime.memory("a").messages()][-1] == "of the target"

    def test_one_that_is_deleted_in_the_target_is_copied_again(
        self, invoke: Invoke, fill: Fill, tmp_path: Path, small: None, after_adopting: Adopting
    ) -> None:
        source, target = fill(a=TALK), f"sqlite:///{tmp_path}/target.db?shared=true"

        def act(count: int) -> None:
            if count == 2:
                with open_sync_runtime(target) as runtime:
                    runtime.memory("a").delete()

        after_adopting(act)
        first = invoke("copy", source, target)
        assert first.status in (0, 1)
        assert invoke("copy", source, target).status == 0
        assert whole(target) == whole(source)


def _shown(log: Any) -> list[Any]:
    return list(log.view(EVERYTHING, None))


def _interrupt_at(
    patch: pytest.MonkeyPatch, times: int, when: str, error: type[BaseException] = KeyboardInterrupt
) -> None:
    adopt = SQLiteStore.adopt
    count = 0

    def adopting(self: SQLiteStore, transfers: Sequence[Transfer]) -> list[Outcome]:
        nonlocal count
        count += 1
        if count == times and when == "before":
            raise error
        outcomes = adopt(self, transfers)
        if count == times:
            raise error
        return outcomes

    patch.setattr(SQLiteStore, "adopt", adopting)


class TestAnythingAtAnyTime:
    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("seed", range(6))
    def test_both_end_the_same_when_it_is_over(
        self, invoke: Invoke, tmp_path: Path, target: str, after_adopting: Adopting, seed: int
    ) -> None:
        """Random things in the source, also between two parts, and a target that fails now and then."""
        source, chance = f"sqlite:///{tmp_path}/source.db", random.Random(seed)
        live = True

        def scribbles(steps: int) -> None:
            with open_sync_runtime(source) as runtime:
                scribble(runtime, chance.randrange(10**9), chance.randrange(1, steps), "abAB")

        def act(_: int) -> None:
            if live and chance.random() < 0.3:
                scribbles(12)
            if live and chance.random() < 0.05:
                raise StoreUnavailableError("told to fail")

        after_adopting(act)
        scribbles(200)
        for _ in range(4):
            assert invoke("copy", source, target).status in (0, 2)
            scribbles(40)
        live = False
        ran = invoke("copy", source, target, "--delete-gone")
        assert (ran.status, ran.err) == (0, "")
        assert whole(target) == whole(source)
        assert done(invoke("copy", source, target, "--check")) == {"there already": len(whole(source))}


class TestInterrupted:
    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, StoreUnavailableError])
    def test_anywhere_it_goes_on_to_the_same_end(
        self, invoke: Invoke, source: str, target: str, monkeypatch: pytest.MonkeyPatch, when: str, error: Any
    ) -> None:
        wanted = whole(source)
        cuts = 0
        for times in (1, 2, 3, 5, 8, 13, 21):
            with monkeypatch.context() as patch:
                _interrupt_at(patch, times, when, error)
                ran = invoke("copy", source, target)
            if ran.status == 0:
                break
            cuts += 1
            assert ran.status == (130 if error is KeyboardInterrupt else 2)
            assert times == 1 or "the same command goes on from here" in ran.err
            for memory, found in whole(target).items():
                last = found.head.version
                assert found.entries == tuple([each for each in wanted[memory].entries if each.version <= last])
        assert invoke("copy", source, target).status == 0
        assert cuts > 3
        assert whole(target) == wanted

    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_before_what_the_source_has_pruned_is_gone_the_next_run_lets_it_go(
        self, invoke: Invoke, fill: Fill, target: str, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        source = fill(a=TALK)
        assert invoke("copy", source, target).status == 0
        with open_sync_runtime(source) as runtime:
            memory = runtime.memory("a", window=MessageWindow(3), history="window")
            memory.set([user("anew")])
            memory.add(user("more"))
        assert whole(source)[name("a")].entries[0].version > 10
        for times in (1, 2, 3):
            with monkeypatch.context() as patch:
                _interrupt_at(patch, times, when)
                invoke("copy", source, target)
        assert invoke("copy", source, target).status == 0
        assert whole(target) == whole(source)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_by_a_signal_it_says_how_to_go_on(
        self, start: Start, fill: Fill, tmp_path: Path, number: signal.Signals
    ) -> None:
        source, target = fill(**{f"m{n}": TALK for n in range(30)}), f"sqlite:///{tmp_path}/target.db?shared=true"
        with open_sync_runtime(target):
            pass
        held = sqlite3.connect(tmp_path / "target.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")  # so that it is in the middle of a write
        process = start("copy", source, target)
        try:
            _wait_for_lock(tmp_path / "target.db.commit-lock")
            process.send_signal(number)
            held.execute("ROLLBACK")
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
            held.close()
        assert process.returncode == 128 + number
        assert "interrupted; " in err
        assert "the same command goes on from here" in err
        assert "Traceback" not in err

    def test_by_a_kill_at_any_time_it_goes_on_to_the_same_end(
        self, start: Start, invoke: Invoke, source: str, target: str, tmp_path: Path
    ) -> None:
        wanted = whole(source)
        chance = random.Random(1)
        kills = 0
        script = (
            "import os, sys\n"
            "from turnkeeper.cli import copy_reading, copy_running, copy_writing\n"
            "from turnkeeper.cli.commands import cli\n"
            "from turnkeeper.stores import SQLiteStore\n"
            "copy_reading.PART_ENTRIES, copy_running._GROUP, copy_writing._RECEIPTS = 3, 4, 2\n"
            "left = int(sys.argv.pop(1))\n"
            "def trace(frame, event, arg):\n"
            "    global left\n"
            "    left -= 1\n"
            "    if left == 0:\n"
            "        os.kill(os.getpid(), 9)\n"
            "    return trace\n"
            "sys.settrace(trace)\n"
            "cli.main(sys.argv[1:], prog_name='turnkeeper')\n"
        )
        path = tmp_path / "killed.py"
        path.write_text(script)
        for _ in range(12):
            lines = chance.randrange(500, 20_000)
            ran = subprocess.run(
                [sys.executable, str(path), str(lines), "copy", source, target],
                capture_output=True,
                cwd=tmp_path,
                timeout=60,
                check=False,
            )
            kills += ran.returncode == -9
            if (tmp_path / "target.db").exists() and (tmp_path / "target.db").stat().st_size:
                for memory, found in whole(target).items():
                    last = found.head.version
                    assert found.entries == tuple([each for each in wanted[memory].entries if each.version <= last])
        assert kills > 5
        assert invoke("copy", source, target).status == 0
        assert whole(target) == wanted


def _wait_for_lock(path: Path) -> None:
    """Return when another process holds a lock that this one would take."""
    waiting = threading.Event()
    with path.open("r+b") as file:
        while not waiting.wait(0.02):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_UN)
            except BlockingIOError:
                return


class TestOneOfMany:
    """What is wrong with one memory is told of that one."""

    def test_the_group_is_refused_by_the_store_and_the_others_go_on(
        self, invoke: Invoke, fill: Fill, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, adopt = fill(a=TALK, b=TALK, c=TALK), SQLiteStore.adopt

        def refusing(self: SQLiteStore, transfers: Sequence[Transfer]) -> list[Outcome]:
            if any(transfer.name == name("b") for transfer in transfers):
                raise StoreError("too large")
            return adopt(self, transfers)

        monkeypatch.setattr(SQLiteStore, "adopt", refusing)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 2, "not copied": 1})
        assert "memory 'b' (namespace '') can't be copied: too large" in ran.err

    @pytest.mark.parametrize("where", ["source", "target"])
    def test_it_can_not_be_read_and_the_others_go_on(
        self, invoke: Invoke, fill: Fill, target: str, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        source, load = fill(a=TALK, b=TALK, c=TALK), SQLiteStore.load

        def failing(self: SQLiteStore, queries: Sequence[LoadQuery]) -> list[Loaded]:
            here = (self.path.name == "target.db") == (where == "target")
            if here and any(query.name == name("b") for query in queries):
                raise StoreError("damaged")
            return load(self, queries)

        monkeypatch.setattr(SQLiteStore, "load", failing)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 2, "not copied": 1})
        assert f"memory 'b' (namespace '') can't be read in the {where}" in ran.err

    def test_a_row_that_is_there_for_a_lease_alone_is_no_memory(
        self, invoke: Invoke, fill: Fill, target: str, tmp_path: Path
    ) -> None:
        source = fill(a=TALK)
        store = SQLiteStore(tmp_path / "chats.db")
        store.open(durability="full")
        store.commit([Slice(name("b"), 0, 0, (), lease=Lease(b"t" * 16, 1000))], receipt_ttl=1)
        store.close()
        assert done(invoke("copy", source, target)) == {"copied": 1}
        assert list(whole(target)) == [name("a")]


class TestWhatItTells:
    def test_it_refuses_what_can_not_be_a_copy(self, invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
        source = fill(a=TALK)
        for one, other, text in [
            (source, source, "source and target are the same"),
            (source, f"{source}?shared=true", "source and target are the same"),
            ("memory:", source, "belongs to its process alone"),
            (source, "memory:", "gone with this process"),
            (f"sqlite:///{tmp_path}/none.db", source, "does not exist"),
        ]:
            ran = invoke("copy", one, other)
            assert ran.status == 2
            assert text in ran.err
        with open_sync_runtime(f"sqlite:///{tmp_path}/used.db"):
            assert "in use" in invoke("copy", source, f"sqlite:///{tmp_path}/used.db").err

    def test_a_password_is_never_told(self, invoke: Invoke, fill: Fill) -> None:
        source = fill(a=TALK)
        for url in SERVERS:
            for pair in ((source, url), (url, source)):
                ran = invoke("copy", *pair)
                assert ran.status == 2
                assert "hunter2" not in ran.out + ran.err

    def test_a_memory_that_is_damaged_in_the_source_is_named_and_the_others_go_on(
        self, invoke: Invoke, fill: Fill, target: str, tmp_path: Path, canary: str
    ) -> None:
        source = fill(a=TALK, b=[user(canary)] * 9, c=TALK)
        connection = sqlite3.connect(tmp_path / "chats.db")
        connection.execute("DELETE FROM entry WHERE version = 5 AND mid = (SELECT mid FROM head WHERE id = 'b')")
        connection.commit()
        connection.close()
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 2, "not copied": 1})
        assert "memory 'b' (namespace '') has no entry 5 in the source, which is damaged there" in ran.err
        assert canary not in ran.out + ran.err

    def test_what_does_not_come_back_as_it_was_written_is_told(
        self, invoke: Invoke, fill: Fill, target: str, monkeypatch: pytest.MonkeyPatch, canary: str
    ) -> None:
        source = fill(a=[user(canary)] * 3, b=TALK)
        adopt = SQLiteStore.adopt

        def spoiling(self: SQLiteStore, transfers: Sequence[Transfer]) -> list[Outcome]:
            outcomes = adopt(self, transfers)
            connection = sqlite3.connect(self.path)
            connection.execute(
                "UPDATE entry SET at = at + 1 WHERE version = 2 AND CAST(payload AS TEXT) LIKE ?", [f"%{canary}%"]
            )
            connection.commit()
            connection.close()
            return outcomes

        monkeypatch.setattr(SQLiteStore, "adopt", spoiling)
        ran = invoke("copy", source, target)
        assert (ran.status, done(ran)) == (1, {"copied": 1, "not copied": 1})
        assert "memory 'a' (namespace '') is not in the target as it was written, at entry 2" in ran.err
        assert canary not in ran.out + ran.err


def test_a_long_memory_takes_little_ram(invoke: Invoke, fill: Fill, target: str, tmp_path: Path) -> None:
    source = fill(a=TALK[:1])
    connection = sqlite3.connect(tmp_path / "chats.db")
    payload = b'{"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 2000)
    connection.executemany(
        "INSERT INTO entry (mid, version, op, entry_id, payload, at) VALUES (1, ?, 'add', randomblob(16), ?, ?)",
        [(number, payload, number) for number in range(2, 20_001)],
    )
    connection.execute("UPDATE head SET version = 20000, updated_at = 20000")
    connection.commit()
    connection.close()
    tracemalloc.start()
    try:
        ran = invoke("copy", source, target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (ran.status, told(ran)["entries"]) == (0, "20000")
    assert peak < 16 * 2**20
    assert whole(target)[name("a")].head == whole(source)[name("a")].head


def test_the_note_of_a_copy_is_not_copied_itself(invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
    urls = [fill(a=TALK), f"sqlite:///{tmp_path}/b.db", f"sqlite:///{tmp_path}/c.db"]
    for one, other in pairwise(urls):
        assert told(invoke("copy", one, other))["receipts"] == "0"
    assert whole(urls[2]) == whole(urls[0])
    store = store_from_url(urls[2], read_only=True)
    store.open(durability="full")
    (note,) = store.receipts_of(name("a"), after="", limit=9)
    assert (note.key, note.version.n) == (NOTE_KEY, len(TALK))
    assert note.expires_at > store.now() + 29 * 86_400e6
    assert contents(store).keys() == {name("a")}
    store.close()


def test_what_is_encrypted_is_copied_without_the_key_and_opens_in_the_target(
    invoke: Invoke, tmp_path: Path, small: None
) -> None:
    pytest.importorskip("cryptography")
    from turnkeeper.stores import EncryptedStore
    from turnkeeper.stores.keyring import Keyring

    keys = Keyring({"k": b"1" * 32}, active="k")
    with open_sync_runtime(EncryptedStore(SQLiteStore(tmp_path / "source.db"), keys)) as runtime:
        scribble(runtime, 3, 200, "abA")
        said = {each: list(runtime.memory(each).messages()) for each in "abA"}
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/target.db"
    assert invoke("copy", source, target).status == 0
    assert whole(target) == whole(source)
    with open_sync_runtime(EncryptedStore(SQLiteStore(tmp_path / "target.db"), keys)) as runtime:
        assert {each: list(runtime.memory(each).messages()) for each in "abA"} == said

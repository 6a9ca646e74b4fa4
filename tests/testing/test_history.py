"""The checker accepts every history that an atomic memory can have, and refuses each kind of fault planted in one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turnkeeper.testing.history import (
    Call,
    HistoryUndecidedError,
    HistoryViolation,
    Op,
    Outcome,
    check_history,
    count_steps,
)
from turnkeeper.testing.recorder import History, Recorder, SyncRecorder

EVERYTHING = {"add": 6, "messages": 4, "set": 1, "clear": 1, "delete": 1}
MOSTLY_ADDS = {"add": 20, "messages": 10, "set": 1, "clear": 1, "delete": 1}
ABSENT = (0, 0)


def write(op: Op, *tokens: str, at: tuple[int, int], who: str = "a", version: Any = None, **more: Any) -> Call:
    return Call(who, op, tokens, *at, version=version, **more)


def read(*tokens: str, at: tuple[int, int], who: str = "r", version: Any = None) -> Call:
    return Call(who, "messages", (), *at, result=tokens, version=version)


def lost(op: Op, *tokens: str, since: int, who: str = "u", if_version: Any = None) -> Call:
    return Call(who, op, tokens, since, outcome="unknown", if_version=if_version)


class Atomic:
    """A memory on which every operation is one step."""

    def __init__(self) -> None:
        self.tokens: tuple[Hashable, ...] = ()
        self.version = ABSENT
        self.mid = 0

    def apply(self, op: Op, argument: tuple[Hashable, ...] = (), if_version: Any = None) -> dict[str, Any]:
        """Carry a call out and return its answer, as fields of a `Call`."""
        if if_version is not None and if_version != self.version:
            return {"outcome": "conflict"}
        if op == "messages":
            return {"outcome": "ok", "result": self.tokens, "version": self.version}
        if op == "delete":
            self.tokens, self.version = (), ABSENT
            return {"outcome": "ok"}
        if op != "clear" or self.tokens:
            if self.version == ABSENT:
                self.mid += 1
                self.version = (self.mid, 0)
            self.version = (self.version[0], self.version[1] + 1)
            self.tokens = (self.tokens if op == "add" else ()) + argument
        return {"outcome": "ok", "version": self.version}


def execute(chance: Random, count: int, senders: int, weights: dict[Any, int], *, unknown: float = 0.1) -> list[Call]:
    """Run `count` calls of `senders` at once on an atomic memory, ending with a read of everything.

    A sender's call starts, takes effect and returns in different ticks, with any number of others' between. Some calls
    fail without effect; of some the sender never learns the outcome, and they may take effect much later.
    """
    memory = Atomic()
    calls: list[Call] = []
    running: dict[int, tuple[Call, dict[str, Any] | None]] = {}
    stray: list[Call] = []
    seen: dict[int, dict[str, Any]] = {}
    tick = names = 0
    while count or running:
        tick += 1
        if stray and chance.random() < 0.2:
            late = stray.pop(chance.randrange(len(stray)))
            memory.apply(late.op, late.argument, late.if_version)
        sender = chance.randrange(senders) if count else chance.choice(list(running))
        if sender not in running:
            count -= 1
            op = chance.choices(list(weights), list(weights.values()))[0]
            size = chance.choice([1, 1, 1, 2, 3]) if op in ("add", "set") else 0
            argument: tuple[Hashable, ...] = tuple(f"t{names + number}" for number in range(size))
            names += size
            if_version = None
            if op == "set" and sender in seen and chance.random() < 0.5:
                # Like a compaction: something new, then the end of what was read.
                argument = argument[:1] + seen[sender]["result"][-3:]
                if_version = seen[sender]["version"]
            running[sender] = (Call(sender, op, argument, tick, outcome="unknown", if_version=if_version), None)
            continue
        call, answer = running[sender]
        if answer is not None:
            del running[sender]
            back = answer["outcome"] != "unknown" or chance.random() < 0.7
            calls.append(replace(call, returned=tick if back else None, **answer))
            continue
        fate = chance.random()
        if fate < unknown:
            answer = {"outcome": "unknown"}
            if chance.random() < 0.4:
                stray.append(call)
            elif chance.random() < 0.6:
                memory.apply(call.op, call.argument, call.if_version)
        elif fate < unknown + 0.05:
            answer = {"outcome": "failed"}
        else:
            answer = memory.apply(call.op, call.argument, call.if_version)
            if call.op == "messages":
                seen[sender] = answer
        running[sender] = (call, answer)
    return [*calls, Call("last", "messages", (), tick + 1, tick + 2, **memory.apply("messages"))]


def without_versions(calls: Sequence[Call]) -> list[Call]:
    """Forget the versions, and the conflicts, which only they explain."""
    return [replace(call, version=None, if_version=None) for call in calls if call.outcome != "conflict"]


def refused(calls: Sequence[Call], **options: Any) -> HistoryViolation:
    with pytest.raises(HistoryViolation) as caught:
        check_history(calls, **options)
    return caught.value


# What is accepted


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [read(at=(0, 1))],
        [write("add", "1", at=(0, 1)), write("add", "2", "3", at=(2, 3)), read("1", "2", "3", at=(4, 5))],
        [write("add", "1", at=(0, 1)), write("set", "2", at=(2, 3)), read("2", at=(4, 5))],
        [write("add", "1", at=(0, 1)), write("clear", at=(2, 3)), write("add", "2", at=(4, 5)), read("2", at=(6, 7))],
        [write("add", "1", at=(0, 9)), write("add", "2", at=(1, 8), who="b"), read("2", at=(2, 7)),
         read("2", "1", at=(10, 11))],
        [write("add", "1", at=(0, 9)), read(at=(1, 2)), read("1", at=(3, 4))],
        [write("add", "1", at=(0, 1)), write("set", "1", at=(2, 3)), write("add", "1", at=(4, 5)),
         read("1", "1", at=(6, 7))],
        [lost("add", "1", since=0), read(at=(1, 2)), read("1", at=(3, 4))],
        [lost("add", "1", since=0, who="r"), read(at=(1, 2)), write("add", "2", at=(3, 4)), read("2", "1", at=(5, 6))],
        [lost("clear", since=0), write("add", "1", at=(1, 2)), read("1", at=(3, 4)), read(at=(5, 6))],
        [write("add", "1", at=(0, 1), outcome="failed"), read(at=(2, 3))],
        [write("clear", at=(0, 1), version=1), write("clear", at=(2, 3), version=1), read(at=(4, 5), version=1)],
        [read(at=(0, 1), version=ABSENT), write("add", "1", at=(2, 3), version=(1, 1)), write("delete", at=(4, 5)),
         read(at=(6, 7), version=ABSENT), write("add", "2", at=(8, 9), version=(2, 1)), read("2", at=(10, 11))],
        [write("add", "1", at=(0, 1), version=1), lost("add", "2", since=2), read("1", "2", at=(3, 4), version=2)],
        [write("add", "1", at=(0, 1), version=1), write("set", "2", at=(2, 3), version=2, if_version=1)],
        [write("add", "1", at=(0, 1), version=1), lost("add", "2", since=2),
         write("set", "3", at=(4, 5), outcome="conflict", if_version=1), lost("clear", since=6), read(at=(7, 8))],
        [write("add", "1", at=(0, 1), version=1), write("clear", at=(2, 3), version=2), write("clear", at=(4, 5)),
         read(at=(6, 7), version=2)],
        # These look best with a first step that turns out to be wrong.
        [lost("add", "1", since=0), lost("set", "1", since=1), read("1", at=(2, 3)), read("1", "1", at=(4, 5))],
        [read(at=(0, 9), version=(1, 1)), write("clear", at=(2, 7), version=(1, 1)),
         read(at=(3, 5), version=ABSENT, who="b")],
        [write("add", "1", at=(0, 5)), read(at=(6, 11), version=2), lost("clear", since=3),
         write("add", "2", at=(8, 16), version=3)],
        [write("clear", at=(0, 20)), write("add", "1", at=(1, 10)), write("clear", at=(0, 5), who="b"),
         read("1", at=(2, 4)), read(at=(6, 7))],
    ],
)  # fmt: skip
def test_legal_histories_are_accepted(calls: list[Call]) -> None:
    check_history(calls)


def test_what_the_memory_held_before_is_given_as_initial() -> None:
    calls = [read("0", at=(0, 1)), write("add", "1", at=(2, 3)), read("0", "1", at=(4, 5))]
    check_history(calls, initial=["0"])
    refused(calls)


def test_calls_of_one_sender_in_flight_together_take_effect_in_its_order() -> None:
    calls = [write("add", "1", at=(0, 8)), write("add", "2", at=(1, 9))]
    check_history([*calls, read("1", "2", at=(10, 11))])
    refused([*calls, read("2", "1", at=(10, 11))])


@given(st.integers(), st.integers(1, 120), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.4]))
def test_every_execution_of_an_atomic_memory_is_accepted(seed: int, count: int, senders: int, unknown: float) -> None:
    calls = execute(Random(seed), count, senders, EVERYTHING, unknown=unknown)
    check_history(calls)
    check_history(without_versions(calls))


# What is refused

ADDS = [write("add", "1", at=(0, 1), version=1), write("add", "2", at=(2, 3), version=2)]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([*ADDS, read("1", at=(4, 5))], id="lost"),
        pytest.param([*ADDS, write("add", "3", at=(4, 5)), read("1", "3", at=(6, 7))], id="lost in the middle"),
        pytest.param([*ADDS, read("1", "2", "2", at=(4, 5))], id="doubled"),
        pytest.param([*ADDS, read("2", "1", at=(4, 5))], id="reordered against time"),
        pytest.param([*ADDS, read("1", "2", at=(4, 5)), read("1", at=(6, 7))], id="read goes back"),
        pytest.param([*ADDS, read("1", at=(4, 5), version=1)], id="stale read"),
        pytest.param([write("add", "1", "2", at=(0, 9)), read("1", at=(1, 2))], id="half a batch"),
        pytest.param(
            [
                write("add", "1", "2", at=(0, 9)),
                write("add", "3", at=(0, 9), who="b"),
                read("1", "3", "2", at=(10, 11)),
            ],
            id="batch interleaved",
        ),
        pytest.param([write("add", "1", "2", at=(0, 1)), read("2", "1", at=(2, 3))], id="batch turned round"),
        pytest.param([*ADDS, write("clear", at=(4, 5)), read("1", "2", at=(6, 7))], id="resurrected after clear"),
        pytest.param([*ADDS, write("delete", at=(4, 5)), read("1", "2", at=(6, 7))], id="resurrected after delete"),
        pytest.param([*ADDS, write("set", "3", at=(4, 5)), read("1", "2", "3", at=(6, 7))], id="set that appends"),
        pytest.param([*ADDS, write("set", "3", "4", at=(4, 8)), read(at=(5, 6))], id="set seen half way"),
        pytest.param([*ADDS, read("1", "2", "x", at=(4, 5))], id="never written"),
        pytest.param([write("add", "1", at=(0, 1), outcome="failed"), read("1", at=(2, 3))], id="failed write shows"),
        pytest.param([lost("add", "1", since=0), read("1", "1", at=(2, 3))], id="cancelled write twice"),
        pytest.param(
            [lost("add", "1", since=0), read("1", at=(1, 2)), write("clear", at=(3, 4)), read("1", at=(5, 6))],
            id="cancelled write again after clear",
        ),
        pytest.param([lost("add", "1", "2", since=0), read("2", at=(2, 3))], id="cancelled batch in half"),
        pytest.param([read("1", at=(0, 1)), lost("add", "1", since=2)], id="seen before it was written"),
        pytest.param(
            [*ADDS, write("set", "3", at=(4, 5), outcome="conflict", if_version=2)], id="conflict without a reason"
        ),
        pytest.param(
            [read(at=(0, 1), version=ABSENT), write("set", "3", at=(4, 5), outcome="conflict", if_version=ABSENT)],
            id="conflict on a memory that doesn't exist",
        ),
        pytest.param([*ADDS, write("set", "3", at=(4, 5), version=3, if_version=1)], id="set in spite of a conflict"),
        pytest.param(
            [*ADDS, write("set", "3", at=(4, 5), outcome="conflict", if_version=1), read("3", at=(6, 7))],
            id="conflicting set shows",
        ),
        pytest.param([*ADDS, read("1", "2", at=(4, 5), version=1)], id="version of another state"),
        pytest.param([*ADDS, read("1", "2", at=(4, 5), version=3)], id="version nobody made"),
        pytest.param([*ADDS, write("add", "3", at=(4, 5), version=2)], id="version made twice"),
        pytest.param([*ADDS, write("add", "3", at=(4, 5), version=1.5)], id="version falls"),
        pytest.param([*ADDS, write("clear", at=(4, 5), version=2)], id="clear without a new version"),
        pytest.param(
            [*ADDS, write("delete", at=(4, 5)), read(at=(6, 7), version=2)], id="version of before the delete"
        ),
        pytest.param(
            [ADDS[0], write("delete", at=(4, 5)), read(at=(6, 7), version=1)], id="first version, after the delete"
        ),
        pytest.param(
            [*ADDS, write("delete", at=(4, 5)), write("set", "3", at=(6, 7), version=3, if_version=2)],
            id="set for a version of before the delete",
        ),
    ],
)
def test_each_planted_fault_is_refused(calls: list[Call]) -> None:
    refused(calls)


def test_a_violation_names_the_call_and_what_the_memory_could_hold() -> None:
    text = str(refused([*ADDS, read("1", at=(4, 5), who="reader")]))
    assert "add('2') at 2, ok, [2, 3]" in text
    assert "can hold ('1'), after 1 calls" in text
    assert "reader: messages() -> ('x')" in str(refused([read("x", at=(0, 1), who="reader")]))


FAULTS: dict[str, Callable[[list[Hashable], int, int], None]] = {
    "lost": lambda tokens, first, second: tokens.__delitem__(second),
    "doubled": lambda tokens, first, second: tokens.append(tokens[second]),
    "reordered": lambda tokens, first, second: tokens.insert(first, tokens.pop(second)),
    "invented": lambda tokens, first, second: tokens.insert(second, "x"),
}


def plant(calls: Sequence[Call], fault: str, chance: Random) -> list[Call] | None:
    """Spoil what the longest read shows, in a way that no order can explain; None when there is no place for that."""
    spoilt = max((call for call in calls if call.op == "messages"), key=lambda call: len(call.result or ()))
    result = list(spoilt.result or ())
    writers = [[call for call in calls if token in call.argument and call.outcome != "failed"] for token in result]
    sole = [at for at, found in enumerate(writers) if len(found) == 1 and found[0].outcome == "ok"]
    # Two tokens that were written once, by calls of which one returned before the other began, and that before the
    # read. The first token stays, so that no clear can excuse what happens to the second.
    places = [
        (first, second)
        for first in sole
        for second in sole
        if (writers[first][0].returned or 0) < writers[second][0].invoked
        and (writers[second][0].returned or 0) < spoilt.invoked
    ]
    if not places:
        return None
    FAULTS[fault](result, *chance.choice(places))
    return [replace(call, result=tuple(result)) if call is spoilt else call for call in calls]


@given(st.integers(), st.integers(5, 120), st.integers(1, 12), st.booleans(), st.sampled_from(sorted(FAULTS)))
def test_a_fault_planted_in_a_legal_history_is_refused(
    seed: int, count: int, senders: int, versions: bool, fault: str
) -> None:
    chance = Random(seed)
    calls = execute(chance, count, senders, EVERYTHING)
    if not versions:
        calls = without_versions(calls)
    check_history(calls)
    spoilt = plant(calls, fault, chance)
    assume(spoilt)
    refused(spoilt or [])


# Both, against the definition


def explained(calls: Sequence[Call]) -> bool:
    """Try every order: the definition, for calls without versions."""

    def search(left: tuple[Call, ...], contents: tuple[Hashable, ...]) -> bool:
        answered = [call for call in left if call.outcome == "ok"]
        return not answered or any(
            search(tuple(other for other in left if other is not call), after)
            for call in left
            if not any(
                other is not call
                and (
                    (other.returned or 0) < call.invoked
                    or (other.sender == call.sender and other.invoked < call.invoked)
                )
                for other in answered
            )
            if (after := outcome(call, contents)) is not None
        )

    def outcome(call: Call, contents: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
        if call.op == "messages":
            return contents if call.result == contents else None
        return (contents if call.op == "add" else ()) + call.argument

    return search(
        tuple(call for call in calls if call.outcome == "ok" or (call.outcome == "unknown" and call.op != "messages")),
        (),
    )


@settings(max_examples=400)
@given(st.randoms(use_true_random=False), st.integers(2, 6), st.integers(1, 4), st.integers(0, 3))
def test_the_verdict_is_that_of_trying_every_order(chance: Random, count: int, senders: int, faults: int) -> None:
    calls = without_versions(execute(chance, count, senders, EVERYTHING, unknown=0.3))
    tokens = [token for call in calls for token in call.argument] or ["x"]
    for _ in range(faults):
        index = chance.randrange(len(calls))
        call = calls[index]
        if call.outcome == "ok" and call.op == "messages":
            result = list(call.result or ())
            if result and chance.random() < 0.5:
                result.pop(chance.randrange(len(result)))
            else:
                result.insert(chance.randint(0, len(result)), chance.choice(tokens))
            calls[index] = replace(call, result=tuple(result))
        elif call.argument and chance.random() < 0.5:
            calls[index] = replace(call, argument=tuple(chance.choice(tokens) for _ in call.argument))
        elif call.outcome == "ok":
            other: Outcome = "failed" if chance.random() < 0.5 else "unknown"
            calls[index] = replace(call, outcome=other)
    try:
        check_history(calls)
    except HistoryViolation:
        assert not explained(calls)
    else:
        assert explained(calls)


# The price


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "weights", [EVERYTHING, MOSTLY_ADDS, {"add": 6, "messages": 4}], ids=["everything", "mostly adds", "adds"]
)
def test_400_calls_of_50_senders_take_a_few_steps_a_call(seed: int, weights: dict[str, int]) -> None:
    calls = execute(Random(seed), 400, 50, weights)
    assert count_steps(calls) < 2_000


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_400_calls_of_50_senders_with_a_fault_are_refused_in_some_thousand_steps(fault: str) -> None:
    planted = 0
    for seed in range(40):
        chance = Random(seed)
        spoilt = plant(execute(chance, 400, 50, MOSTLY_ADDS), fault, chance)
        if spoilt:
            planted += 1
            assert refused(spoilt).steps < 8_000
    assert planted > 10


def test_the_order_of_50_adds_at_once_is_read_off_the_last_read() -> None:
    adds = [write("add", f"{number}", at=(0, 1), who=f"s{number}") for number in range(50)]
    tokens = [f"{number * 7 % 50}" for number in range(50)]
    assert count_steps([*adds, read(*tokens, at=(2, 3))]) < 60
    assert refused([*adds, read(*tokens[:-1], at=(2, 3))]).steps < 60


def test_a_search_that_gives_up_is_no_pass() -> None:
    with pytest.raises(HistoryUndecidedError, match="2 steps did not decide a history of 3 calls"):
        check_history([*ADDS, read("1", "2", at=(4, 5))], max_steps=2)


@pytest.mark.parametrize(
    "fields", [{"returned": None}, {"invoked": 2, "returned": 1}, {"returned": 1, "op": "messages"}]
)
def test_a_call_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"call|read"):
        Call(**{"sender": "a", "op": "add", **fields})


# Recorders


class OutcomeUnknownError(Exception):
    """Known to the recorder by its name."""


class ConflictError(Exception):
    """The same."""


class Handle:
    """A blocking handle of an atomic memory; `error` is raised instead of doing anything."""

    def __init__(self) -> None:
        self.state = Atomic()
        self.lock = threading.Lock()
        self.error: Exception | None = None

    def _call(self, op: Op, messages: Any = (), if_version: Any = None) -> Any:
        if self.error:
            raise self.error
        with self.lock:
            answer = self.state.apply(op, tuple(message["content"] for message in messages), if_version)
        if answer["outcome"] == "conflict":
            raise ConflictError
        return SimpleNamespace(**answer)

    def add(self, messages: Any) -> Any:
        return self._call("add", messages)

    def set(self, messages: Any, *, if_version: Any = None) -> Any:
        return self._call("set", messages, if_version)

    def clear(self) -> Any:
        return self._call("clear")

    def delete(self) -> bool:
        self._call("delete")
        return True

    def messages(self) -> Any:
        answer = self._call("messages")
        shown = type("Messages", (tuple,), {"version": answer.version})
        return shown(SimpleNamespace(text=token) for token in answer.result)


class AsyncHandle:
    """The same for async callers; each call lets others go first."""

    def __init__(self) -> None:
        self.blocking = Handle()
        self.stalled = False

    async def _pause(self) -> None:
        if self.stalled:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()

    async def add(self, messages: Any) -> Any:
        await self._pause()
        return self.blocking.add(messages)

    async def set(self, messages: Any, *, if_version: Any = None) -> Any:
        await self._pause()
        return self.blocking.set(messages, if_version=if_version)

    async def clear(self) -> Any:
        await self._pause()
        return self.blocking.clear()

    async def delete(self) -> bool:
        await self._pause()
        return self.blocking.delete()

    async def messages(self) -> Any:
        await self._pause()
        return self.blocking.messages()


EXPECTED = [
    Call("a", "add", ("1", "2"), 0, 1, version=(1, 1)),
    Call("b", "messages", (), 2, 3, result=("1", "2"), version=(1, 1)),
    Call("a", "set", ("3",), 4, 5, version=(1, 2), if_version=(1, 1)),
    Call("b", "set", ("4",), 6, 7, "conflict", if_version=(1, 1)),
    Call("a", "clear", (), 8, 9, version=(1, 3)),
    Call("a", "delete", (), 10, 11),
    Call("a", "add", ("5",), 12, 13, "unknown"),
    Call("a", "add", ("6",), 14, 15, "failed"),
]


def test_a_blocking_recorder_notes_calls_and_answers() -> None:
    handle = Handle()
    recorder = SyncRecorder(handle)
    recorder.add("a", ["1", "2"])
    seen = recorder.messages("b")
    assert [message.text for message in seen] == ["1", "2"]
    recorder.set("a", ["3"], if_version=seen.version)
    with pytest.raises(ConflictError):
        recorder.set("b", ["4"], if_version=seen.version)
    recorder.clear("a")
    assert recorder.delete("a") is True
    for handle.error in (OutcomeUnknownError(), OSError()):
        with pytest.raises(type(handle.error)):
            recorder.add("a", ["5" if isinstance(handle.error, OutcomeUnknownError) else "6"])
    assert list(recorder.history.calls) == EXPECTED
    recorder.history.check()


@pytest.mark.anyio
async def test_an_async_recorder_notes_calls_and_answers() -> None:
    handle = AsyncHandle()
    recorder = Recorder(handle)
    await recorder.add("a", ["1", "2"])
    seen = await recorder.messages("b")
    assert [message.text for message in seen] == ["1", "2"]
    await recorder.set("a", ["3"], if_version=seen.version)
    with pytest.raises(ConflictError):
        await recorder.set("b", ["4"], if_version=seen.version)
    await recorder.clear("a")
    assert await recorder.delete("a") is True
    for handle.blocking.error in (OutcomeUnknownError(), OSError()):
        with pytest.raises(type(handle.blocking.error)):
            await recorder.add("a", ["5" if isinstance(handle.blocking.error, OutcomeUnknownError) else "6"])
    assert list(recorder.history.calls) == EXPECTED
    recorder.history.check()


@pytest.mark.anyio
async def test_a_call_is_unknown_while_it_runs_and_after_its_cancellation() -> None:
    handle = AsyncHandle()
    handle.stalled = True
    recorder = Recorder(handle)
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.add, "a", ["1"])
        await anyio.wait_all_tasks_blocked()
        assert list(recorder.history.calls) == [Call("a", "add", ("1",), 0, None, "unknown")]
        group.cancel_scope.cancel()
    assert list(recorder.history.calls) == [Call("a", "add", ("1",), 0, 1, "unknown")]


@pytest.mark.anyio
async def test_tasks_and_threads_share_one_history() -> None:
    handle, history = AsyncHandle(), History()

    async def task(sender: str) -> None:
        recorder = Recorder(handle, history)
        for number in range(20):
            await recorder.add(sender, [f"{sender}.{number}"])
            await recorder.messages(sender)

    def thread(sender: str) -> None:
        recorder = SyncRecorder(handle.blocking, history)
        for number in range(20):
            recorder.add(sender, [f"{sender}.{number}"])
            recorder.messages(sender)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(task, f"task{number}")
            group.start_soon(anyio.to_thread.run_sync, thread, f"thread{number}")
    assert len(history.calls) == 320
    history.check()


@pytest.mark.anyio
async def test_a_memory_that_reads_and_writes_in_two_steps_is_caught() -> None:
    class Racy(AsyncHandle):
        async def add(self, messages: Any) -> Any:
            before = self.blocking.state.tokens
            await self._pause()
            self.blocking.state.tokens = (*before, *(message["content"] for message in messages))

    recorder = Recorder(Racy())
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(recorder.add, f"s{number}", [f"{number}"])
    await recorder.messages("last")
    with pytest.raises(HistoryViolation):
        recorder.history.check()

"""What we show where that is not what the other system shows, or where a layer above shows it: tables, with reasons.

A table here holds what a vector needs of its own; what follows from its kind and tags is in `classes`. Expected views
are written as labels (see `translating.label`): `u1 call:1 ~1` is a user message, a call and a result that we made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from conformance.vectors import Given, Step
from turnkeeper import InvalidArgumentError, InvalidMemoryIdError, InvalidMessageError, WindowOverflowError

Profile: TypeAlias = Literal["evict", "error", "turns", "turns or error", "system first", "drop", "keep", "unbounded"]
"""Which of our windows stands for the system's, at the vector's limit: Message- or TokenWindow with `on_overflow`
"evict" or "error"; TurnWindow, or that with "error"; MessageWindow with `system_first`; MessageWindow with
`on_unanswered` "drop" or "keep"; Unbounded."""

Commit: TypeAlias = Literal["turn", "each"]
"""When a turn commits what is said in it."""


@dataclass(frozen=True)
class Shown:
    """What a read right after a step returns.

    Attributes:
        view: the messages' labels.
        over: whether the view exceeds the limit and says so.
    """

    view: str
    over: bool = False


@dataclass(frozen=True)
class From:
    """A read returns what was given from this index on, whole; `over` as for `Shown`."""

    index: int
    over: bool = False


@dataclass(frozen=True)
class Refused:
    """The step raises this, and a read returns what it returned before."""

    error: type[Exception]


@dataclass(frozen=True)
class Exactly:
    """A read returns these messages, field by field."""

    messages: tuple[dict[str, Any], ...]


Expected: TypeAlias = Shown | From | Refused | Exactly | None
"""After one step; None: whatever it is, a valid view."""

OVERFLOW: Final = Refused(WindowOverflowError)
INVALID: Final = Refused(InvalidArgumentError)


class Run:
    """The vector's steps on one of our windows, and what we show after each.

    Args:
        profile: the window.
        expected: one for each step; labels for short.
        steps: instead of the vector's, where it drives a layer above: what that does to the memory.
        turn: the service above keeps what is said in a turn that commits so; None: each message by itself.
    """

    def __init__(
        self,
        profile: Profile,
        *expected: Expected | str,
        steps: tuple[Step, ...] | None = None,
        turn: Commit | None = None,
    ) -> None:
        self.profile = profile
        self.turn = turn
        self.expected = tuple(Shown(each) if isinstance(each, str) else each for each in expected)
        self.steps = steps


class Ours:
    """What we do with a vector.

    Args:
        why: a sentence or two for the page.
        runs: the proofs.
    """

    def __init__(self, why: str, *runs: Run) -> None:
        self.why = why
        self.runs = runs


def user(text: str) -> Given:
    return {"role": "user", "text": text}


def answer(text: str) -> Given:
    return {"role": "assistant", "text": text}


def system(text: str) -> Given:
    return {"role": "system", "text": text}


def calls(*ids: str) -> Given:
    made = [{"id": call_id, "name": "calc", "arguments": "{}"} for call_id in ids]
    return {"role": "assistant", "text": None, "tool_calls": made}


def result(call_id: str, text: str) -> Given:
    return {"role": "tool", "text": text, "tool_call_id": call_id, "name": "calc"}


def adds(*messages: Given, **more: Any) -> tuple[Step, ...]:
    """Return a step for each message."""
    return tuple({"op": "add", "message": message, **more} for message in messages)


EVICTION = "Eviction is a view: nothing is ever taken out of the log, so a raised limit shows older messages again."
OVERSIZE = (
    "An add whose message would not be visible is refused; `TurnWindow` keeps the current turn and says overflow."
)
SAME_RULES = "A `set` follows the same rules as an `add`."
CLOSED = "In the view the call is closed by a result that says it has none; nothing is written."
RETRY = "The request carries an idempotency key, so its retry adds nothing; or it is a turn, and leaves no trace."
KEPT = "Nothing is dropped silently: what was given is in the log."
WHOLE = "A turn is there whole or not at all: without an answer nothing of it is kept."
ACCEPTED = "A turn commits the answer that was accepted; nobody sees another one, and without one nothing is kept."
TAKEN_BACK = "In a turn an answer is kept once it has passed; one that was kept before is taken back by one `set`."

CRASH = (*adds(user("u1"), calls("1")), *adds(user("u2"), logged=3))
FAILED_THEN_TRIED_AGAIN: Final[tuple[Step, ...]] = (
    {"op": "chat", "user": "u1", "replies": ["FAIL"], "expect": {"error": "model"}},
    {"op": "chat", "user": "u1", "replies": [answer("a1")], "expect": {"requests": [[user("u1")]], "answer": "a1"}},
)

INVERTED: Final[dict[str, Ours]] = {
    "lc4j.mw.x.window_opens_on_assistant": Ours(
        "`TurnWindow` opens on a user message; `MessageWindow` stays as it is.",
        Run("error", "a1 u2 a2"),
        Run("turns", "u2 a2"),
    ),
    "lc4j.mw.x.window_opens_on_tool_call": Ours(
        "`TurnWindow` opens on a user message and keeps the current turn; `MessageWindow` stays as it is.",
        Run("error", "call:1 r1 call:2"),
        Run("turns", Shown("u1 call:1 r1 call:2", over=True)),
    ),
    "lc4j.mw.x.parallel_bigger_than_window": Ours(
        OVERSIZE,
        Run("evict", "u1", "u1 call:1,2", "call:1,2 r1", ""),
        Run("error", "u1", "u1 call:1,2", "call:1,2 r1", OVERFLOW),
        Run("turns", "u1", "u1 call:1,2", Shown("u1 call:1,2 r1", over=True), Shown("u1 call:1,2 r1 r2", over=True)),
        Run("turns or error", "u1", "u1 call:1,2", OVERFLOW, OVERFLOW),
    ),
    "lc4j.mw.x.set_keeps_two_systems": Ours(SAME_RULES, Run("error", "u1 s2 a1"), Run("turns", "s2 u1 a1")),
    "lc4j.mw.x.set_ignores_system_first": Ours(SAME_RULES, Run("error", "s1 u1 a1")),
    "lc4j.mw.x.set_empty_list": Ours(
        "An empty `set` is an invalid argument, whatever its form.", Run("error", "u1", INVALID)
    ),
    "lc4j.mw.x.shrunk_view_not_persisted": Ours(
        EVICTION,
        Run(
            "error",
            "u1 u2 u3 u4",
            *2 * ["u3 u4"],
            *2 * ["u1 u2 u3 u4"],
            "u3 u4",
            "u4 u5",
            *2 * ["u2 u3 u4 u5"],
        ),
    ),
    "lc4j.mw.x.unanswered_call_kept": Ours(
        CLOSED,
        Run("error", "u1 call:1 ~1 u2"),
        Run("turns", "u1 call:1 ~1 u2"),
        Run("drop", "u1 u2"),
        Run("keep", "u1 call:1 u2"),
    ),
    "lc4j.mw.x.lost_update": Ours(
        "Requests take their turn: both messages are there, in the order of their arrival.",
        Run("error", "u1", "u1 u2 u3"),
        Run("turns", "u1", "u1 u2 u3"),
    ),
    "lc4j.mw.x.compaction_race": Ours(
        "`set(if_version=…)` is refused with `ConflictError` and computed again from what is there.",
        Run("error", "u1 a1 u2 a2", "s4 u2 a2 u3"),
        Run("turns", "u1 a1 u2 a2", "s4 u2 a2 u3"),
    ),
    "lc4j.tw.x.current_user_message_lost": Ours(
        OVERSIZE,
        Run("evict", "u1 a1", ""),
        Run("error", "u1 a1", OVERFLOW),
        Run("turns", "u1 a1", Shown("big", over=True)),
        Run("turns or error", "u1 a1", OVERFLOW),
    ),
    "lc4j.tw.x.system_and_too_big_message": Ours(
        OVERSIZE,
        Run("evict", "s1", "s1"),
        Run("error", "s1", OVERFLOW),
        Run("turns", "s1", Shown("s1 big", over=True)),
        Run("turns or error", "s1", OVERFLOW),
    ),
    "lc4j.est.unsupported_content": Ours("What can't be counted has a cost that can be set; reading never fails."),
    "lc4j.est.bad_parallel_arguments": Ours("Arguments that are no JSON are counted as text; reading never fails."),
    "lc4j.svc.x.failed_model_call": Ours(
        RETRY,
        Run(
            "error",
            "u1",
            "u1",
            "u1 a1",
            steps=(*adds(user("u1"), user("u1"), idempotency_key="turn 1"), *adds(answer("a1"))),
        ),
        Run("error", "", "u1 a1", steps=FAILED_THEN_TRIED_AGAIN, turn="turn"),
    ),
    "lc4j.svc.x.tool_crash_leaves_call": Ours(
        CLOSED,
        Run("error", "u1", "u1 call:1", "u1 call:1 ~1 u2", steps=CRASH),
        Run("turns", "u1", "u1 call:1", "u1 call:1 ~1 u2", steps=CRASH),
    ),
    "lc4j.guard.second_call_clean": Ours(
        RETRY,
        Run("error", "u1", "u1", steps=adds(user("u1"), user("u1"), idempotency_key="turn 1")),
        Run("error", "", "", turn="turn"),
    ),
    "lc4j.guard.rejected_stays": Ours(ACCEPTED, Run("error", "", turn="turn"), Run("error", "u1", turn="each")),
    **{
        f"lc4j.guard.reprompt_{name}": Ours(
            ACCEPTED, Run("error", "s1 u1 good", turn="turn"), Run("error", "s1 u1 good", turn="each")
        )
        for name in ("once", "twice")
    },
    "lc4j.guard.reprompt_exhausted": Ours(ACCEPTED, Run("error", "", turn="turn"), Run("error", "s1 u1", turn="each")),
    "lc4j.svc.failure.user_message_stays": Ours(WHOLE, Run("error", "", "", turn="turn")),
    "lc4j.tool.unknown_fails_streaming": Ours(
        CLOSED,
        Run("error", "u1", "u1 call:1", "u1 call:1 ~1 u2", steps=CRASH),
    ),
    "spring.mw.x.same_system_duplicated": Ours(
        "There is one system message; an equal one changes nothing.", Run("turns", "s1", "s1")
    ),
    "spring.adv.windowed_history": Ours(
        OVERSIZE,
        Run(
            "turns",
            Shown("u1 call:1 r1 call:2", over=True),
            Shown("u1 call:1 r1 call:2 r2", over=True),
            steps=(
                {"op": "add_many", "messages": [user("u1"), calls("1"), result("1", "r1"), calls("2")]},
                *adds(result("2", "r2")),
            ),
        ),
    ),
    "spring.agg.x.calls_across_rounds": Ours(
        "A memory keeps one message for each round of the model and never merges two.",
        Run(
            "unbounded",
            "u1",
            "u1 call:1",
            "u1 call:1 r1",
            "u1 call:1 r1 fin",
            steps=adds(user("u1"), calls("1"), result("1", "r1"), answer("fin")),
        ),
    ),
    "spring.agg.x.error_stores_nothing": Ours(WHOLE, Run("unbounded", "", turn="turn")),
    "spring.repo.neo4j.unstorable_metadata": Ours(
        "What can't be stored is refused with a typed error, memory unchanged; all that JSON can carry is kept.",
        Run(
            "unbounded",
            "u1",
            Refused(InvalidMessageError),
            "u1 m",
            steps=(
                *adds(user("u1")),
                *adds({**answer("m"), "metadata": {"k1": object(), "k2": "v2"}}),
                *adds({**answer("m"), "metadata": {"k1": None, "k2": "v2"}}),
            ),
        ),
    ),
    "spring.repo.redis.limit_returns_oldest": Ours(
        "A limit shows the newest messages, in order.",
        Run(
            "unbounded",
            "m1",
            "m1 m2",
            "m1 m2 m3",
            "m1 m2 m3 m4",
            "m1 m2 m3 m4 m5",
            *2 * ["m1 m2 m3 m4 m5 m6"],
            "m4 m5 m6",
        ),
    ),
    **{
        f"spring.repo.{store}.tool_calls_dropped": Ours(KEPT, Run("unbounded", *2 * ["u1 call:1 ~1 a1"]))
        for store in ("cassandra", "mongo")
    },
    **{
        f"spring.repo.{store}.tool_results_dropped": Ours(
            f"{KEPT[:-1]}; a result is shown once its call is there.",
            Run(
                "unbounded",
                "u1",
                "u1",
                "u1 call:1 r1",
                steps=(
                    {"op": "set", "messages": [user("u1"), result("1", "r1")], "logged": 2},
                    {"op": "messages"},
                    {"op": "set", "messages": [user("u1"), calls("1"), result("1", "r1")], "logged": 3},
                ),
            ),
        )
        for store in ("jdbc", "mongo")
    },
}
"""Vectors that show what a user does not want: the outcome that README.md, section 6, asks for instead."""

ONE_SYSTEM = "There is one system message, the newest; it counts, and the current turn stays beside it."
FORWARD = (
    "Semantic Kernel moves its cut back, or to any message; `TurnWindow` moves it on to the next turn, so that the "
    "limit holds."
)
LIMIT_IS_A_LIMIT = (
    "Semantic Kernel's threshold lets the history grow and then reduces it to the target; a view costs nothing to "
    "compute, so `TurnWindow` shows as many whole turns as the limit holds, always."
)
NO_TURN = "`TurnWindow` opens on a user message: what came before the first one belongs to no turn and is not shown."
AS_KOOG = "`MessageWindow` shows what Koog shows."
BLANK = "A blank id is an id; an empty one is refused. The store disagrees with LangChain4j's others here."
CURRENT_TURN = "`TurnWindow` never evicts the current turn: it shows it whole and says overflow."

NEVER_CURRENT = "The current turn is never summed up, whatever it costs."

DIFFERS: Final[dict[str, Ours]] = {
    "spring.mw.two_systems_preserved": Ours(ONE_SYSTEM, Run("turns", "s2 u1 a1", "s2 u2 a2")),
    "spring.mw.systems_fill_window": Ours(ONE_SYSTEM, Run("turns", "s2", "s2 u2")),
    "spring.mw.system_replaced": Ours(ONE_SYSTEM, Run("turns", "s2", "s3")),
    "spring.mw.limit_equals_systems": Ours(ONE_SYSTEM, Run("turns", "s2", Shown("s2 u1 a1", over=True))),
    "spring.mw.batch": Ours(NO_TURN, Run("turns", "u1", "")),
    "spring.mw.x.system_replaced_goes_last": Ours(
        "`TurnWindow` shows the system message first.", Run("turns", "s1 u1 a1", "s2 u1 a1")
    ),
    "spring.mw.x.read_not_windowed": Ours(
        "A window is applied at each read, so its limit holds whatever was stored.", Run("turns", "u2 a2", "u3")
    ),
    "session.snap.size": Ours(CURRENT_TURN, Run("turns", From(0, over=True))),
    "koog.window.pair_outside": Ours(f"{CURRENT_TURN} {AS_KOOG}", Run("turns", From(0, over=True)), Run("evict", "a")),
    "koog.window.parallel_outside": Ours(f"{NO_TURN} {AS_KOOG}", Run("turns", ""), Run("evict", "a")),
    "koog.window.by_name": Ours(
        "A result names its call by id: a call without one is refused.",
        Run("turns", *2 * [Refused(InvalidMessageError)]),
    ),
    "sk.reduce.functions_4_None": Ours(FORWARD, Run("turns", From(12))),
    "sk.reduce.functions_7_None": Ours(FORWARD, Run("turns", From(8))),
    "sk.reduce.functions_8_None": Ours(FORWARD, Run("turns", From(8))),
    "sk.reduce.user_3_2_None": Ours(FORWARD, Run("turns", From(2))),
    "sk.reduce.user_6_5_None": Ours(FORWARD, Run("turns", From(2))),
    "sk.reduce.functions_5_8": Ours(LIMIT_IS_A_LIMIT, Run("turns", From(2))),
    "sk.reduce.functions_6_7": Ours(LIMIT_IS_A_LIMIT, Run("turns", From(2))),
    "sk.reduce.user_2_1_None": Ours(CURRENT_TURN, Run("turns", From(0, over=True))),
    "lc4j.svc.cfg.empty_id": Ours("An id has at least one byte.", Run("evict", Refused(InvalidMemoryIdError))),
    **{f"lc4j.store.tablestore.{step}_empty_id": Ours(BLANK) for step in ("get", "update", "delete")},
    "lc4j.store.tablestore.empty_list": Ours("An empty list empties the memory, as an evicting window may make one."),
    "session.turn.preamble": Ours("What stands before the first user message is summed up with the turn behind it."),
    **{f"session.tok.{name}": Ours(NEVER_CURRENT) for name in ("no_partial_turn", "starts_at_user", "synthetic")},
    "session.log.cas_ok": Ours(
        "The log has things in the order of their writing: the summary is behind what it sums up."
    ),
    "session.registry.repo.append_unknown": Ours(
        "A memory needs no creating: the first add makes it.", Run("unbounded", "m1", steps=adds(user("m1")))
    ),
}
"""Vectors that say something else than our promises."""

ABOVE: Final[dict[str, Ours]] = {
    "spring.adv.id_required": Ours(
        "Every memory has an id.", Run("turns", INVALID, steps=adds(user("u1"), memory_id=None))
    ),
    **{
        f"lc4j.guard.{name}": Ours(TAKEN_BACK, Run("evict", "u1"), Run("error", "u1", turn="each"))
        for name in ("rejected_removed", "error_tells_removal", "fatal_removed")
    },
}
"""Vectors of layers above a memory that hold at the memory below."""

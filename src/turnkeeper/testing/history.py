"""Could what the callers of one memory saw have happened, each call taking effect at one instant? Pure: no I/O.

A depth-first search over orders of the calls, as Wing and Gong describe it, that remembers its states as Lowe's does.
What the reads show keeps it short: contents are nodes of a prefix tree of all results, so whatever no read can grow
from is one dead state; and versions, senders and the tokens seen tell which calls come before which.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "Call",
    "HistoryUndecidedError",
    "HistoryViolation",
    "Op",
    "Outcome",
    "check_history",
    "count_steps",
]

Op: TypeAlias = Literal["add", "set", "clear", "delete", "messages"]
Outcome: TypeAlias = Literal["ok", "failed", "unknown", "conflict"]

_DEAD: Final = 0  # the node of all contents that no read begins with
_ROOT: Final = 1  # the node of no contents
# What is known of the present version: it is `low`, the last one known; it is above `low`; it is `low` or above; the
# memory doesn't exist; it does not, or is above `low`. All that follows is above `low`.
_EXACT, _ABOVE, _LEAST, _NONE, _EITHER = range(5)


class HistoryViolation(AssertionError):  # noqa: N818 (a verdict, like the class it extends)
    """No order of the calls explains what they returned.

    Attributes:
        steps: how many states the search visited.
    """

    def __init__(self, explanation: str, steps: int = 0) -> None:
        super().__init__(explanation)
        self.steps = steps


class HistoryUndecidedError(RuntimeError):
    """The search visited as many states as it may, and found neither an order nor that there is none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call on one memory.

    Attributes:
        sender: who called.
        op: the operation's name.
        argument: the tokens written; those of one `add` are one atomic batch.
        invoked: position on the logical clock that all calls share.
        returned: the same, None when the call never came back.
        outcome: "ok"; "failed": certainly without effect; "unknown": takes effect once, at any time after `invoked`
            and even after `returned`, or never; "conflict": refused because the version was not `if_version`.
        result: the tokens a read showed.
        version: what a write made or a read showed, None when not known. Versions are ordered, rise with every write
            and are not used again after a delete; a memory that doesn't exist shows one below all others, or None.
        if_version: the version a conditional `set` was made for.
    """

    sender: Hashable
    op: Op
    argument: tuple[Hashable, ...] = ()
    invoked: int = 0
    returned: int | None = None
    outcome: Outcome = "ok"
    result: tuple[Hashable, ...] | None = None
    version: Any = None
    if_version: Any = None

    def __post_init__(self) -> None:
        if self.outcome in ("ok", "conflict") and (self.returned is None or self.returned < self.invoked):
            raise ValueError(f"{self}: an answered call returns, and not before it was invoked")
        if self.outcome == "ok" and self.op == "messages" and self.result is None:
            raise ValueError(f"{self}: a successful read has a result")

    def __str__(self) -> str:
        line = f"{self.sender}: {self.op}{_brief(self.argument)}"
        line += "" if self.if_version is None else f" if {self.if_version}"
        line += "" if self.result is None else f" -> {_brief(self.result)}"
        line += "" if self.version is None else f" at {self.version}"
        return f"{line}, {self.outcome}, [{self.invoked}, {'...' if self.returned is None else self.returned}]"


def check_history(calls: Iterable[Call], *, initial: Sequence[Hashable] = (), max_steps: int = 200_000) -> None:
    """Check that `calls` are linearizable against a memory that held `initial`.

    `add` appends its batch whole, `set` replaces all, `clear` and `delete` empty, a read shows exactly what is there.
    A call that returned before another was invoked precedes it; so do a sender's earlier answered calls its later ones.
    Every write raises the version, except a `clear` of what is empty, which may; a read shows the last write's.

    Raises:
        HistoryViolation: no order of the calls explains what they returned.
        HistoryUndecidedError: `max_steps` states did not decide it; the problem is NP-hard, and giving up is no pass.
    """
    count_steps(calls, initial=initial, max_steps=max_steps)


def count_steps(calls: Iterable[Call], *, initial: Sequence[Hashable] = (), max_steps: int = 200_000) -> int:
    """Check as `check_history` does, with the same errors, and return how many states the search visited."""
    return _Search(calls, tuple(initial)).run(max_steps)


def _brief(tokens: Sequence[Hashable]) -> str:
    return f"({'..., ' if len(tokens) > 8 else ''}{', '.join([repr(token) for token in tokens[-8:]])})"


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


class _State(NamedTuple):
    node: int
    relation: int = _EITHER
    low: int = -1


_Path: TypeAlias = "tuple[_Path, int] | None"
_Move: TypeAlias = tuple[int, _State, _Path]


class _Search:
    """The calls that matter, by deadline. Sets of calls are bit masks: the lowest bit has to be placed first."""

    def __init__(self, calls: Iterable[Call], initial: tuple[Hashable, ...]) -> None:
        kept = [
            call
            if call.outcome == "ok"
            else replace(call, version=None, returned=None if call.outcome == "unknown" else call.returned)
            for call in calls
            if call.outcome == "ok"
            or (call.outcome == "conflict" and call.if_version is not None)
            or (call.outcome == "unknown" and call.op != "messages")
        ]
        kept.sort(key=lambda call: (math.inf if call.returned is None else call.returned, call.invoked))
        self.calls, self.initial = kept, initial
        self.before = [0] * len(kept)  # by call: those that precede it for another reason than time
        self.reads = self.required = self.barren = 0
        self._grow_tree()
        self.start = _State(self._walk(_ROOT, initial))
        self.conditional = any(call.if_version is not None for call in kept)
        shown = {token for children in self.children for token in children}
        for index, call in enumerate(kept):
            if call.op == "messages":
                self.reads |= 1 << index
            elif call.outcome != "conflict" and (
                not shown.issuperset(call.argument) or (call.op == "set" and self._walk(_ROOT, call.argument) == _DEAD)
            ):
                self.barren |= 1 << index  # no read shows it: all it can do is to lead to the dead state
            if call.outcome != "unknown":
                self.required |= 1 << index
        # A barren call that may not have happened can explain what a conditional call met, and nothing else.
        needless = 0 if self.conditional else self.barren & ~self.required
        self.everything = ((1 << len(kept)) - 1) & ~needless
        self._order_by_version()
        self._order_by_time()

    def _grow_tree(self) -> None:
        """Build the prefix tree of all results. A token written in one place only tells which call wrote it."""
        places: dict[Hashable, list[int]] = {token: [-1] for token in self.initial}
        for index, call in enumerate(self.calls):
            for token in call.argument if call.outcome != "conflict" else ():
                places.setdefault(token, []).append(index)
        self.children: list[dict[Hashable, int]] = [{}, {}]
        self.live = [0, 0]  # by node: the calls whose tokens its contents are, as far as tokens tell
        self.at: dict[int, int] = {}  # by read: its node
        for index, call in enumerate(self.calls):
            if call.result is None or call.op != "messages":
                continue
            node = _ROOT
            for token in call.result:
                if token not in self.children[node]:
                    if token not in places:
                        raise HistoryViolation(f"{call}: no call that can have had an effect wrote {token!r}")
                    live, writers = self.live[node], places[token]
                    if len(writers) == 1 and writers[0] >= 0:
                        self.before[writers[0]] |= live & ~(1 << writers[0])
                        live |= 1 << writers[0]
                    self.children[node][token] = len(self.children)
                    self.children.append({})
                    self.live.append(live)
                node = self.children[node][token]
            self.at[index] = node
            self.before[index] |= self.live[node]
            self.required |= self.live[node]

    def _walk(self, node: int, tokens: Iterable[Hashable]) -> int:
        for token in tokens:
            node = self.children[node].get(token, _DEAD)
        return node

    def _order_by_version(self) -> None:
        calls = self.calls
        given = [version for call in calls for version in (call.version, call.if_version) if version is not None]
        given.sort()
        self.rank = [None if call.version is None else bisect_left(given, call.version) for call in calls]
        self.wanted = [None if call.if_version is None else bisect_left(given, call.if_version) for call in calls]
        # Conflicts, and versions asked for that no recorded call made or showed.
        self.asking = [
            i
            for i, wanted in enumerate(self.wanted)
            if wanted is not None and (calls[i].outcome == "conflict" or wanted not in self.rank)
        ]
        ranked = sorted((rank, i) for i, rank in enumerate(self.rank) if rank is not None and calls[i].op != "delete")
        makers = {i for _, i in ranked if calls[i].op == "set" or (calls[i].op == "add" and calls[i].argument)}
        # The lowest version may be what a memory shows that doesn't exist: then it can come back, after a delete.
        self.absent = -1 if any(rank == 0 and (i in makers or calls[i].result) for rank, i in ranked) else 0
        self.anchored = lower = 0
        for rank, pairs in itertools.groupby(ranked, key=lambda pair: pair[0]):
            group = [i for _, i in pairs]
            made = sum(1 << i for i in group if i in makers)
            for i in group:
                self.before[i] |= lower | (0 if i in makers else made)
                self.anchored |= 1 << i if rank != self.absent else 0
            lower = self.anchored
        self.unclear = sum(1 << i for rank, i in ranked if rank == self.absent)

    def _order_by_time(self) -> None:
        by_start = sorted(range(len(self.calls)), key=lambda index: self.calls[index].invoked)
        started = [0]
        answered: dict[Hashable, int] = {}
        busy_until: dict[Hashable, int] = {}
        self.pipelined = False
        for index in by_start:
            call = self.calls[index]
            started.append(started[-1] | 1 << index)
            self.before[index] |= answered.get(call.sender, 0)
            self.pipelined |= call.invoked <= busy_until.get(call.sender, -1)
            if call.outcome != "unknown":
                answered[call.sender] = answered.get(call.sender, 0) | 1 << index
                busy_until[call.sender] = call.returned or 0
        times = [self.calls[index].invoked for index in by_start]
        # By call: those invoked before it returned.
        self.started = [
            started[-1 if call.returned is None else bisect_right(times, call.returned)] for call in self.calls
        ]

    def run(self, max_steps: int) -> int:
        steps = 0
        visited: dict[tuple[int, _State], list[int]] = {}
        stack: list[_Move] = [(self.everything, self.start, None)]
        fewest = len(self.calls) + 1
        stuck: list[tuple[int, _Path]] = []
        while stack:
            left, state, path = stack.pop()
            needed = left & self.required
            if not needed:
                return steps
            # What can't be done with some optional calls left can't be done with fewer.
            spares = visited.setdefault((needed, state), [])
            if any(spare & left == left for spare in spares):
                continue
            spares.append(left)
            if steps == max_steps:
                raise HistoryUndecidedError(f"{max_steps} steps did not decide a history of {len(self.calls)} calls")
            steps += 1
            stack.extend(reversed(self._moves(left, state, path)))
            if needed.bit_count() < fewest:
                fewest, stuck = needed.bit_count(), []
            if needed.bit_count() == fewest:
                stuck.append((needed, path))
        raise HistoryViolation(self._explain(stuck), steps)

    def _moves(self, left: int, state: _State, path: _Path) -> list[_Move]:
        """Return what may follow, most urgent first; one move only where no other could do better."""
        found: list[_Move] = []
        tried: set[object] = set()
        needed = left & self.required
        # Short cuts move a call to the front. That is safe unless others depend on the version it finds or leaves.
        vague = state.low < 0 or state.relation == _EITHER
        certain = not self.conditional and not (vague and left & self.unclear)
        for index in _bits(left & self.started[(needed & -needed).bit_length() - 1]):
            after = None if self.before[index] & left else self._apply(index, state)
            if after is None:
                continue
            call, bit = self.calls[index], 1 << index
            move = (left ^ bit, after, (path, index))
            if call.op == "messages" or call.outcome == "conflict":
                # It changes nothing, so now is as good as later.
                if after == state or (self.anchored & bit and certain):
                    return [move]
                found.append(move)
                continue
            # Of equals the one with the earliest deadline does for all, unless a sender's next call waits for another.
            kind: object = (call.op, call.argument, self.wanted[index])
            if self.pipelined or self.rank[index] is not None:
                kind = index
            if self.barren & bit and certain:
                # Any barren call leads to the dead state, and there all others cost nothing.
                if state.node == _DEAD:
                    return [move]
                kind = None
            elif self.barren & bit and not self.required & bit:
                if not any(left >> i & 1 and self._apply(i, state) is None for i in self.asking):
                    continue
                kind = (None, self.wanted[index])
            if kind not in tried and not self._loses(left, state.node, bit, after.node):
                found.append(move)
            tried.add(kind)
        return found

    def _apply(self, index: int, state: _State) -> _State | None:
        """Return the state after a call, None when it can't take effect here."""
        call, wanted, rank = self.calls[index], self.wanted[index], self.rank[index]
        if wanted is not None:
            pinned = self._showing(state, wanted)
            if call.outcome == "conflict":
                return None if pinned == state else state
            if pinned is None:
                return None
            state = pinned
        node, relation, low = state
        if call.op == "messages":
            return None if node != self.at[index] else state if rank is None else self._showing(state, rank)
        if call.op == "delete":
            return _State(_ROOT, _EITHER, low)
        target = self._walk(node if call.op == "add" else _ROOT, call.argument)
        idle = target == node and not call.argument
        if rank is not None:
            same = self._showing(state, rank) if idle else None
            return same or (_State(target, _EXACT, rank) if rank > low else None)
        # An idle clear may make an entry or none.
        may = {_EXACT: _LEAST, _NONE: _EITHER}.get(relation, relation) if idle else _ABOVE
        return _State(target, may, low)

    def _showing(self, state: _State, rank: int) -> _State | None:
        """Return the state with its version known to be `rank`, None when it can't be."""
        node, relation, low = state
        if relation == _EXACT:
            return state if rank == low else None
        if rank == self.absent and relation in (_NONE, _EITHER):
            return _State(node, _NONE, low)
        if relation != _NONE and (rank > low or (rank == low and relation == _LEAST)):
            return _State(node, _EXACT, rank)
        return None

    def _loses(self, left: int, node: int, bit: int, target: int) -> bool:
        """Tell whether going to `target` loses for good what a read that is left shows."""
        lost = (self.live[node] | bit) & ~self.live[target]
        return lost != 0 and any(self.live[self.at[read]] & lost for read in _bits(left & self.reads))

    def _explain(self, stuck: Sequence[tuple[int, _Path]]) -> str:
        needed = stuck[0][0]
        lines = [f"no order of the calls explains this one: {self.calls[(needed & -needed).bit_length() - 1]}"]
        for _, path in stuck[:3]:
            order: list[Call] = []
            while path is not None:
                path, index = path
                order.append(self.calls[index])
            contents = self.initial
            for call in reversed(order):
                if call.op != "messages" and call.outcome != "conflict":
                    contents = (contents if call.op == "add" else ()) + call.argument
            last = f", the last of them {order[0]}" if order else ""
            lines.append(f"  before it the memory can hold {_brief(contents)}, after {len(order)} calls{last}")
        return "\n".join(lines)

"""Could what the callers of one memory saw have happened, each call taking effect at one instant? Pure: no I/O.

A depth-first search over orders of the calls, as Wing and Gong describe it, that remembers its states as Lowe's does.
What the reads show keeps it short: contents are nodes of a prefix tree of all results, so whatever no read can grow
from is one dead state; and versions, senders and the tokens seen tell which calls come before which.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

__all__ = [
    "AsyncMemory",
    "BlockingMemory",
    "Call",
    "History",
    "HistoryUndecidedError",
    "HistoryViolation",
    "Recorder",
    "SyncRecorder",
    "check_history",
    "count_steps",
]

Op: TypeAlias = Literal["add", "set", "clear", "delete", "messages"]
Outcome: TypeAlias = Literal["ok", "failed", "unknown", "conflict"]

_DEAD: Final = 0  # contents that no read begins with
_ROOT: Final = 1  # no contents
# What is known of the present version: it is `low`, above it, at least it, or any that no recorded write made.
_EXACT, _ABOVE, _LEAST, _ANY = range(4)


class HistoryViolation(AssertionError):  # noqa: N818 (a verdict, like the class it extends)
    """No order of the calls explains what they returned.

    Attributes:
        steps: how many states the search visited.
    """

    def __init__(self, explanation: str, steps: int = 0) -> None:
        """Say what could not be placed, after how many steps."""
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
        invoked: position on the logical clock all calls share.
        returned: the same, None when the call never came back.
        outcome: "ok"; "failed": certainly without effect; "unknown": takes effect once, at any time after `invoked`
            and even after `returned`, or never; "conflict": refused because the version was not `if_version`.
        result: the tokens a read showed.
        version: what a write made or a read showed, None when not known. Versions are ordered, rise with every write
            and are not used again after a delete; a memory that doesn't exist may show one below all others.
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
        """Refuse an answer without a return, or a successful read without a result."""
        if self.outcome in ("ok", "conflict") and (self.returned is None or self.returned < self.invoked):
            raise ValueError(f"{self}: an answered call returns, and not before it was invoked")
        if self.outcome == "ok" and self.op == "messages" and self.result is None:
            raise ValueError(f"{self}: a successful read has a result")

    def __str__(self) -> str:
        """Return one line with all that is known."""
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


class _Tree:
    """The prefix tree of all results. Sets of calls are bit masks over their positions in `calls`."""

    def __init__(self, calls: Sequence[Call], initial: Sequence[Hashable]) -> None:
        self.calls = calls
        places: dict[Hashable, list[tuple[int, int]]] = {token: [(-1, 0)] for token in initial}
        for index, call in enumerate(calls):
            for position, token in enumerate(call.argument if call.outcome != "conflict" else ()):
                places.setdefault(token, []).append((index, position))
        self.places = places
        # A token with one place tells who wrote it; a call with only such tokens can be seen only whole, and once.
        self.sole = {token: found[0] for token, found in places.items() if len(found) == 1 and found[0][0] >= 0}
        self.whole = {i for i, call in enumerate(calls) if all(token in self.sole for token in call.argument)}
        self.children: list[dict[Hashable, int]] = [{}, {}]
        self.live = [0, 0]  # by node: the sole writers of its contents
        self.below = [0, 0]  # by node: the reads that begin with its contents
        self.last: list[tuple[int, int]] = [(-1, 0), (-1, 0)]
        self.before = [0] * len(calls)
        self.at: dict[int, int] = {}
        parents = [_DEAD, _DEAD]
        for index, call in enumerate(calls):
            if call.result is None or call.op != "messages":
                continue
            node = _ROOT
            for token in call.result:
                child = self.children[node].get(token)
                if child is None:
                    child = self._grow(node, token, call)
                    parents.append(node)
                node = child
            self._end_batch(node, (-1, 0), call)
            self.at[index] = node
            self.below[node] |= 1 << index
            self.before[index] |= self.live[node]
        for node in range(len(parents) - 1, _ROOT, -1):
            self.below[parents[node]] |= self.below[node]

    def _grow(self, node: int, token: Hashable, read: Call) -> int:
        if token not in self.places:
            raise HistoryViolation(f"{read} shows {token!r}, which no call wrote that can have had an effect")
        writer, position = place = self.sole.get(token, (-1, 0))
        self._end_batch(node, place, read)
        if writer in self.whole:
            again = self.live[node] >> writer & 1
            begins = not again and (node == _ROOT or self.calls[writer].op == "add")
            if self.last[node] != (writer, position - 1) if position else not begins:
                raise HistoryViolation(f"{read} shows {token!r} where it can't be: {self.calls[writer]} wrote it, once")
        if writer >= 0:
            self.before[writer] |= self.live[node] & ~(1 << writer)
        self.children[node][token] = len(self.children)
        self.children.append({})
        self.live.append(self.live[node] | (1 << writer if writer >= 0 else 0))
        self.below.append(0)
        self.last.append(place)
        return len(self.children) - 1

    def _end_batch(self, node: int, follows: tuple[int, int], read: Call) -> None:
        writer, position = self.last[node]
        if (
            writer in self.whole
            and position + 1 < len(self.calls[writer].argument)
            and follows != (writer, position + 1)
        ):
            raise HistoryViolation(f"{read} shows only a part of {self.calls[writer]}")

    def walk(self, node: int, tokens: Iterable[Hashable]) -> int:
        for token in tokens:
            node = self.children[node].get(token, _DEAD)
        return node


class _State(NamedTuple):
    node: int
    relation: int = _ANY
    low: int = 0


_Path: TypeAlias = "tuple[_Path, int] | None"
_Move: TypeAlias = tuple[int, _State, _Path]


class _Search:
    """The calls that matter, by deadline: the lowest bit of a mask is what has to be placed first."""

    def __init__(self, calls: Iterable[Call], initial: tuple[Hashable, ...]) -> None:
        kept = [
            replace(call, version=None, returned=None) if call.outcome == "unknown" else call
            for call in calls
            if call.outcome == "ok"
            or (call.outcome == "conflict" and call.if_version is not None)
            or (call.outcome == "unknown" and call.op != "messages")
        ]
        kept.sort(key=lambda call: (math.inf if call.returned is None else call.returned, call.invoked))
        self.calls, self.initial, self.tree = kept, initial, _Tree(kept, initial)
        self.before = self.tree.before
        self.start = _State(self.tree.walk(_ROOT, initial))
        self.conditional = any(call.if_version is not None for call in kept)
        self.reads = self.barren = self.required = 0
        shown = {token for children in self.tree.children for token in children}
        for index, call in enumerate(kept):
            bit = 1 << index
            if call.op == "messages":
                self.reads |= bit
            elif call.outcome != "conflict" and (
                not shown.issuperset(call.argument)
                or (call.op == "set" and self.tree.walk(_ROOT, call.argument) == _DEAD)
            ):
                self.barren |= bit  # no read ever shows it: all it can do is to lead to the dead state
            if call.outcome != "unknown":
                self.required |= bit
        for node in self.tree.at.values():
            self.required |= self.tree.live[node]
        # A barren call that may not have happened explains nothing but a conflict.
        self.everything = ((1 << len(kept)) - 1) & ~(0 if self.conditional else self.barren & ~self.required)
        self._order_by_version()
        by_start = sorted(range(len(kept)), key=lambda index: kept[index].invoked)
        senders: dict[Hashable, int] = {}
        free: dict[Hashable, int] = {}
        self.pipelined = False
        prefixes = [0]
        for index in by_start:
            call = kept[index]
            prefixes.append(prefixes[-1] | 1 << index)
            self.before[index] |= senders.get(call.sender, 0)
            self.pipelined |= call.invoked <= free.get(call.sender, -1)
            if call.outcome != "unknown":
                senders[call.sender] = senders.get(call.sender, 0) | 1 << index
                free[call.sender] = call.returned or 0
        starts = [kept[index].invoked for index in by_start]
        self.started = [prefixes[-1 if call.returned is None else bisect_right(starts, call.returned)] for call in kept]
        self.wipers: dict[int, int] = {}
        self.doomed: set[int] = set()

    def _order_by_version(self) -> None:
        calls = self.calls
        given = [version for call in calls for version in (call.version, call.if_version) if version is not None]
        given.sort()
        self.rank = [None if call.version is None else bisect_left(given, call.version) for call in calls]
        self.wanted = [None if call.if_version is None else bisect_left(given, call.if_version) for call in calls]
        ranked = sorted((rank, i) for i, rank in enumerate(self.rank) if rank is not None and calls[i].op != "delete")
        makers = {i for _, i in ranked if calls[i].op == "set" or (calls[i].op == "add" and calls[i].argument)}
        self.made = {rank for rank, i in ranked if i in makers}
        lowest = min(self.made, default=math.inf)
        self.anchored = lower = 0
        self.shows: dict[int, int] = {}
        self.clashes: dict[int, int] = {}
        for i, call in enumerate(calls):
            wanted = self.wanted[i]
            if wanted is not None and call.outcome == "conflict":
                self.clashes[wanted] = self.clashes.get(wanted, 0) | 1 << i
        for _, group in itertools.groupby(ranked, key=lambda pair: pair[0]):
            same = 0
            pairs = list(group)
            for _, i in pairs:
                same |= 1 << i if i in makers else 0
            for rank, i in pairs:
                if rank >= lowest and calls[i].op == "messages":
                    self.shows[rank] = self.shows.get(rank, 0) | 1 << i
                self.before[i] |= lower | (0 if i in makers else same)
                # Below all writes is what a memory shows that doesn't exist: that may come again, after a delete.
                if rank >= lowest or calls[i].result:
                    self.anchored |= 1 << i
            for _, i in pairs:
                lower |= self.anchored & 1 << i

    def run(self, max_steps: int) -> int:
        visited: dict[tuple[int, _State], list[int]] = {}
        steps = 0
        stack: list[_Move] = [(self.everything, self.start, None)]
        fewest = len(self.calls) + 1
        stuck: list[tuple[int, _Path, set[int]]] = []
        while stack:
            left, state, path = stack.pop()
            needed = left & self.required
            if not needed:
                return steps
            # Whatever may happen with fewer optional calls left, may with more.
            spares = visited.setdefault((needed, state), [])
            if any(spare & left == left for spare in spares):
                continue
            spares.append(left)
            if steps == max_steps:
                raise HistoryUndecidedError(f"{max_steps} steps did not decide a history of {len(self.calls)} calls")
            steps += 1
            self.doomed = set()
            moves = self._moves(left, state, path, (needed & -needed).bit_length() - 1)
            if needed.bit_count() < fewest:
                fewest, stuck = needed.bit_count(), []
            if needed.bit_count() == fewest:
                stuck.append((needed, path, self.doomed))
            stack.extend(reversed(moves))
        raise HistoryViolation(self._explain(stuck), steps)

    def _moves(self, left: int, state: _State, path: _Path, first: int) -> list[_Move]:
        """Return what may follow, likeliest first; a single move where no other could do better."""
        found: list[tuple[int, _Move]] = []
        tried: set[Any] = set()
        for index in _bits(left & self.started[first]):
            if self.before[index] & left:
                continue
            after = self._apply(index, state)
            if after is None:
                continue
            call, bit = self.calls[index], 1 << index
            move = (left ^ bit, after, (path, index))
            if call.op == "messages" or call.outcome == "conflict":
                # It changes nothing, so now is as good as later.
                if after == state or (self.anchored & bit and not self.conditional):
                    return [move]
                found.append((0, move))
                continue
            required = self.required & bit
            wipes = call.op in ("clear", "delete")
            kind: Any = index
            if self.barren & bit and not required:
                # A barren call that may not have happened explains nothing but a conflict.
                if state.relation != _EXACT or not self.clashes.get(state.low, 0) & left:
                    continue
                kind = (call.if_version,)
            elif self.barren & bit and not self.conditional:
                # All barren calls do the same: any of them will do to get to the dead state, and there they are free.
                if state.node == _DEAD:
                    return [move]
                kind = None
            elif not required and after == state:
                continue
            elif wipes and self.rank[index] is None and not self.pipelined:
                # Among equals the one with the earliest deadline can stand in for the others.
                kind = call.op
            elif not required:
                kind = (call.op, call.argument, call.if_version)
            if kind in tried:
                continue
            tried.add(kind)
            if self._misses_version(left, state, after):
                continue
            if self._hopeful(left ^ bit, bit, state.node, after.node):
                found.append(((0 if required else 10) + (3 if after.node == _DEAD else 2 if wipes else 1), move))
        found.sort(key=lambda pair: pair[0])
        return [move for _, move in found]

    def _apply(self, index: int, state: _State) -> _State | None:
        """Return the state after a call, None when it can't take effect here."""
        call, (node, relation, low) = self.calls[index], state
        wanted, rank = self.wanted[index], self.rank[index]
        if call.outcome == "conflict":
            return None if relation == _EXACT and wanted == low else state
        if wanted is not None and not self._may_be(state, wanted):
            return None
        if call.op == "messages":
            if node != self.tree.at[index] or (rank is not None and not self._may_be(state, rank)):
                return None
            return state if rank is None else _State(node, _EXACT, rank)
        if call.op == "delete":
            return _State(_ROOT)
        target = self.tree.walk(node if call.op == "add" else _ROOT, call.argument)
        idle = target == node and not call.argument
        if rank is not None:
            rises = relation == _ANY or rank > low or (idle and rank == low and relation != _ABOVE)
            return _State(target, _EXACT, rank) if rises else None
        if relation == _ANY:
            return _State(target)
        return _State(target, _LEAST if idle and relation != _ABOVE else _ABOVE, low)

    def _may_be(self, state: _State, rank: int) -> bool:
        _, relation, low = state
        if relation == _ANY:
            return rank not in self.made
        return rank == low if relation == _EXACT else rank > low or (rank == low and relation == _LEAST)

    def _misses_version(self, left: int, state: _State, after: _State) -> bool:
        """Tell whether a read that is left showed a version that is over after the step, or that begins otherwise."""
        leaves = state.relation == _EXACT and (after.relation != _EXACT or after.low != state.low)
        if leaves and self.shows.get(state.low, 0) & left and (after.relation, after.low) != (_LEAST, state.low):
            return True
        return after.relation == _EXACT and any(
            self.tree.at[read] != after.node for read in _bits(self.shows.get(after.low, 0) & left)
        )

    def _hopeful(self, left: int, bit: int, node: int, target: int) -> bool:
        """Tell whether the reads that are left can still be had, as far as a glance can tell."""
        tree = self.tree
        reads = left & self.reads
        missed = reads & ~tree.below[target]
        if missed:
            read = (missed & -missed).bit_length() - 1
            if not self._wipers(read) & left:
                self.doomed.add(read)
                return False
        lost = (tree.live[node] | bit) & ~tree.live[target]
        for read in _bits(reads if lost else 0):
            if tree.live[tree.at[read]] & lost:
                self.doomed.add(read)
                return False
        return True

    def _wipers(self, read: int) -> int:
        """Return the calls that may replace the contents before `read`."""
        if read not in self.wipers:
            self.wipers[read] = sum(
                1 << i
                for i in _bits(self.started[read] & self.everything & ~self.barren)
                if self.calls[i].op in ("set", "clear", "delete")
                and self.calls[i].outcome != "conflict"
                and not self.before[i] >> read & 1
            )
        return self.wipers[read]

    def _explain(self, stuck: Sequence[tuple[int, _Path, set[int]]]) -> str:
        needed = stuck[0][0]
        lines = [f"no order of the calls explains this one: {self.calls[(needed & -needed).bit_length() - 1]}"]
        for _, path, doomed in stuck[:3]:
            order: list[Call] = []
            while path is not None:
                path, index = path
                order.append(self.calls[index])
            contents = self.initial
            for call in reversed(order):
                if call.op != "messages" and call.outcome != "conflict":
                    contents = (contents if call.op == "add" else ()) + call.argument
            lines.append(f"  reached: {_brief(contents)} after {len(order)} calls; last {order[0] if order else None}")
            lines += [f"    going on, this read can't be had: {self.calls[read]}" for read in sorted(doomed)[:2]]
        return "\n".join(lines)


class AsyncMemory(Protocol):
    """What `Recorder` needs of a handle: messages are dicts in, objects with `.text` out."""

    def add(self, messages: Any, /) -> Awaitable[Any]:
        """Append one batch."""
        ...

    def set(self, messages: Any, /, *, if_version: Any = None) -> Awaitable[Any]:
        """Replace everything."""
        ...

    def clear(self) -> Awaitable[Any]:
        """Empty the memory."""
        ...

    def delete(self) -> Awaitable[Any]:
        """Remove the memory."""
        ...

    def messages(self) -> Awaitable[Any]:
        """Read everything."""
        ...


class BlockingMemory(Protocol):
    """What `SyncRecorder` needs of a handle: the same, blocking."""

    def add(self, messages: Any, /) -> Any:
        """Append one batch."""
        ...

    def set(self, messages: Any, /, *, if_version: Any = None) -> Any:
        """Replace everything."""
        ...

    def clear(self) -> Any:
        """Empty the memory."""
        ...

    def delete(self) -> Any:
        """Remove the memory."""
        ...

    def messages(self) -> Any:
        """Read everything."""
        ...


class History:
    """The calls on one memory and their logical clock; recorders of several handles and threads may share it."""

    def __init__(self) -> None:
        """Start empty, at zero."""
        # Thread safe without a lock: under the GIL `next` on a count, and storing under an int key, are one step each.
        # A tick is taken before a call starts and after it ended, so what is recorded never is shorter than the call.
        self._clock = itertools.count()
        self._calls: dict[int, Call] = {}

    @property
    def calls(self) -> tuple[Call, ...]:
        """What was called so far; a call still on its way is there as "unknown"."""
        return tuple(self._calls.copy().values())

    def check(self, *, initial: Sequence[Hashable] = ()) -> None:
        """Check the calls so far, as `check_history` does, with the same errors."""
        check_history(self.calls, initial=initial)

    @contextmanager
    def record(
        self, sender: Hashable, op: Op, argument: Sequence[Hashable] = (), if_version: Any = None
    ) -> Iterator[list[Any]]:
        """Record the call made inside; append what it returned to the list given.

        An error named OutcomeUnknownError leaves "unknown", so does a cancellation or any other `BaseException`;
        ConflictError leaves "conflict", every other `Exception` "failed". All are raised on.
        """
        invoked = next(self._clock)
        call = Call(sender, op, tuple(argument), invoked, outcome="unknown", if_version=if_version)
        self._calls[invoked] = call
        answer: list[Any] = []
        outcome: Outcome = "unknown"
        try:
            yield answer
            outcome = "ok"
        except Exception as error:
            # By name: this module imports nothing of the library it judges.
            names = {kind.__name__ for kind in type(error).__mro__}
            if "OutcomeUnknownError" not in names:
                outcome = "conflict" if "ConflictError" in names else "failed"
            raise
        finally:
            read = outcome == "ok" and op == "messages"
            self._calls[invoked] = replace(
                call,
                returned=next(self._clock),
                outcome=outcome,
                result=tuple([message.text for message in answer[0]]) if read else None,
                version=getattr(answer[0], "version", None) if answer else None,
            )


def _dicts(tokens: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": token} for token in tokens]


class Recorder:
    """Calls an async handle and records it; every method returns and raises what the handle's does."""

    def __init__(self, memory: AsyncMemory, history: History | None = None) -> None:
        """Record into `history`, or a new one."""
        self.memory = memory
        self.history = history or History()

    async def add(self, sender: Hashable, tokens: Sequence[str]) -> Any:
        """Append one batch with a message for each token."""
        with self.history.record(sender, "add", tokens) as answer:
            answer.append(await self.memory.add(_dicts(tokens)))
        return answer[0]

    async def set(self, sender: Hashable, tokens: Sequence[str], *, if_version: Any = None) -> Any:
        """Replace everything by a message for each token."""
        with self.history.record(sender, "set", tokens, if_version) as answer:
            answer.append(await self.memory.set(_dicts(tokens), if_version=if_version))
        return answer[0]

    async def clear(self, sender: Hashable) -> Any:
        """Empty the memory."""
        with self.history.record(sender, "clear") as answer:
            answer.append(await self.memory.clear())
        return answer[0]

    async def delete(self, sender: Hashable) -> Any:
        """Remove the memory."""
        with self.history.record(sender, "delete") as answer:
            answer.append(await self.memory.delete())
        return answer[0]

    async def messages(self, sender: Hashable) -> Any:
        """Read everything."""
        with self.history.record(sender, "messages") as answer:
            answer.append(await self.memory.messages())
        return answer[0]


class SyncRecorder:
    """Calls a blocking handle and records it, from any thread; returns and raises what the handle's methods do."""

    def __init__(self, memory: BlockingMemory, history: History | None = None) -> None:
        """Record into `history`, or a new one."""
        self.memory = memory
        self.history = history or History()

    def add(self, sender: Hashable, tokens: Sequence[str]) -> Any:
        """Append one batch with a message for each token."""
        with self.history.record(sender, "add", tokens) as answer:
            answer.append(self.memory.add(_dicts(tokens)))
        return answer[0]

    def set(self, sender: Hashable, tokens: Sequence[str], *, if_version: Any = None) -> Any:
        """Replace everything by a message for each token."""
        with self.history.record(sender, "set", tokens, if_version) as answer:
            answer.append(self.memory.set(_dicts(tokens), if_version=if_version))
        return answer[0]

    def clear(self, sender: Hashable) -> Any:
        """Empty the memory."""
        with self.history.record(sender, "clear") as answer:
            answer.append(self.memory.clear())
        return answer[0]

    def delete(self, sender: Hashable) -> Any:
        """Remove the memory."""
        with self.history.record(sender, "delete") as answer:
            answer.append(self.memory.delete())
        return answer[0]

    def messages(self, sender: Hashable) -> Any:
        """Read everything."""
        with self.history.record(sender, "messages") as answer:
            answer.append(self.memory.messages())
        return answer[0]

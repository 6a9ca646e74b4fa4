"""Random logs and cuts against a definition: a view is the system message, the summary, and the view of the rest.

What a window shows of the rest is computed by `windows.model`, from scratch; of the compaction itself everything is
said here once more. Two memories go through the same: one is never unloaded, the other before each read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import turnkeeper
from turnkeeper import ChatMemory, Message, TurnWindow, Window, reader
from turnkeeper import state as state_module
from turnkeeper.log import UNDO
from turnkeeper.names import memory_name
from turnkeeper.plan import EVERYTHING
from turnkeeper.requests import Request
from turnkeeper.stores import InMemoryStore, SQLiteStore, Store
from turnkeeper.testing import unload
from turnkeeper.windows import Messages
from windows.histories import BATCHES, COUNTER, MESSAGES, Step, histories, weighted, windows
from windows.model import Rules, Said, current_system, pair, show
from windows.saying import Fields, answer, labels, rules_of, system, user

pytestmark = pytest.mark.anyio

_LIMIT = 6
_several = st.lists(windows(_LIMIT), min_size=1, max_size=3)
_keep = st.one_of(
    st.builds(TurnWindow, max_turns=st.integers(1, 3)),
    st.builds(TurnWindow, max_messages=st.integers(1, 8)),
    st.builds(TurnWindow, max_tokens=st.integers(1, 12), counter=st.just(COUNTER)),
)
_summaries: st.SearchStrategy[list[Fields]] = st.sampled_from([[system("S")], [user("q"), answer("SS")], [system("s")]])
_steps = histories(
    weighted(
        (6, st.tuples(st.just("add"), st.lists(MESSAGES, min_size=1, max_size=1))),
        (5, st.tuples(st.just("add"), st.just([user("u")]))),
        (3, st.tuples(st.just("add"), BATCHES)),
        (4, st.tuples(st.just("compact"), _keep, _summaries, st.none())),
        (2, st.tuples(st.just("compact"), _keep, _summaries, BATCHES)),
        (3, st.tuples(st.just("undo"), st.integers(0, 4))),
        (5, st.tuples(st.just("look"))),
        (1, st.tuples(st.just("set"), BATCHES)),
    )
)


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """Load as few entries as can be, and let messages leave RAM at once: histories in here are short."""
    with patch.object(state_module, "_SLACK", 0), patch.object(reader, "_FEWEST", 1):
        yield


def version(said: Said) -> int:
    return int(said.id.split(".")[0])


class State:
    """The memory by its definition: a system message from before, a summary, and the rest."""

    def __init__(self) -> None:
        self.before: Said | None = None
        self.summary: list[Said] = []
        self.rest: list[Said] = []
        self.n = 0
        self.base = 0

    def write(self, batch: Sequence[Fields]) -> None:
        self.n += 1
        self.rest += [Said(f"{self.n}.{index}", fields) for index, fields in enumerate(batch)]

    def replace(self, batch: Sequence[Fields]) -> None:
        self.before, self.summary, self.rest = None, [], []
        self.base = self.n + 1
        self.write(batch)

    def undo(self, to: int) -> None:
        self.n += 1
        self.rest = [said for said in self.rest if version(said) <= to]

    def compact(self, to: int, summary: Sequence[Fields]) -> None:
        older = [] if self.before is None else [self.before]
        older += [said for said in self.rest if version(said) <= to]
        index = current_system(older)
        self.before = None if index is None else older[index]
        self.n += 1
        self.base = self.n
        self.summary = [Said(f"{self.n}.{index}", fields) for index, fields in enumerate(summary)]
        self.rest = [said for said in self.rest if version(said) > to]

    @property
    def system(self) -> Said | None:
        said = self.rest if self.before is None else [self.before, *self.rest]
        index = current_system(said)
        return None if index is None else said[index]

    def show(self, rules: Rules) -> tuple[list[str], bool]:
        """Return the labels of what a window shows, and whether that is more than its limit."""
        system = self.system
        older = system is not None and system is self.before
        said = [system, *self.rest] if older and system is not None else self.rest
        room = None
        if rules.cost is not None:
            room = _LIMIT - (0 if _counts_turns(rules) else sum(rules.cost(each.fields) for each in self.summary))
        shown = show(said, rules, room)
        found = shown.labels
        in_place = not rules.system_first and system is not None and not older and said.index(system) >= shown.start
        first = found[:1] if system is not None and not in_place and found[:1] == [system.id] else []
        view = [*first, *(each.id for each in self.summary), *found[len(first) :]]
        return view, room is not None and shown.total > room and view != []

    # Where a log may be cut

    def cut(self, first_kept: str | None) -> int:
        """Return number of the last entry that is summed up when everything from a user message on is kept; 0: none.

        The latest user message up to that one whose entry has nothing of an earlier turn.
        """
        users = [index for index, said in enumerate(self.rest) if said.role == "user"]
        for index in reversed(users[1:]):
            if first_kept is not None and index > [said.id for said in self.rest].index(first_kept):
                continue
            number = version(self.rest[index])
            if all(said.role in ("system", "tool") for said in self.rest[:index] if version(said) == number):
                return number - 1
        return 0

    def seen(self, to: int) -> list[str]:
        """Return the labels of what a summariser is shown."""
        calls = pair(self.rest)
        prefix = [
            said
            for index, said in enumerate(self.rest)
            if version(said) <= to or (index in calls and version(self.rest[calls[index]]) <= to)
        ]
        end = Said("end", {"role": "user", "content": ""})
        shown = show([*prefix, end], Rules(), None).labels[:-1]
        current = self.system
        return [label for label in shown if current is None or label != current.id]


def _counts_turns(rules: Rules) -> bool:
    return rules.cost is not None and rules.cost({"role": "assistant", "content": "x"}) == 0


class Twins:
    """A memory that is unloaded before each step, one that is not, and the definition of both."""

    def __init__(self, runtime: turnkeeper.Runtime, several: Sequence[Window]) -> None:
        self.runtime = runtime
        self.windows = several
        self.memories = [runtime.memory(name) for name in ("unloaded", "held")]
        self.state = State()

    async def run(self, step: Step) -> None:
        op, *rest = step
        unload(self.runtime, "unloaded")
        await getattr(self, op)(*rest)

    async def add(self, batch: list[Fields]) -> None:
        for memory in self.memories:
            await memory.add(batch)
        self.state.write(batch)

    async def set(self, batch: list[Fields]) -> None:
        for memory in self.memories:
            await memory.set(batch)
        self.state.replace(batch)

    async def undo(self, back: int) -> None:
        to = max(self.state.base, self.state.n - back)
        if to == self.state.n:
            return
        for memory in self.memories:
            request = Request(UNDO, window=EVERYTHING, about=(to, -1))
            await self.runtime._core.submit(memory_name(memory.id, ""), request)
        self.state.undo(to)

    async def compact(self, keep: TurnWindow, summary: list[Fields], meanwhile: list[Fields] | None) -> None:
        known = {said.id for said in self.state.rest}
        outcomes = []
        for memory in self.memories:
            kept = [each.id for each in await memory.messages(window=keep) if each.role == "user" and each.id in known]
            outcomes.append(await self._compact(memory, keep, summary, meanwhile, kept[0] if kept else None))
        assert outcomes[0] == outcomes[1]

    async def _compact(
        self,
        memory: ChatMemory,
        keep: TurnWindow,
        summary: list[Fields],
        meanwhile: list[Fields] | None,
        first_kept: str | None,
    ) -> object:
        seen: list[list[str]] = []

        async def summarise(messages: tuple[Message, ...], before: tuple[Message, ...]) -> list[Fields]:
            seen.extend([labels(messages), labels(before)])
            if meanwhile is not None:
                await memory.add(meanwhile)
                unload(self.runtime, "unloaded")
            return summary

        state = self.state
        to = state.cut(first_kept)
        wanted = state.seen(to) if to else []
        try:
            receipt = await memory.compact(summarise, keep=keep)
        except turnkeeper.CompactionAbandonedError:
            receipt = None
            assert meanwhile is not None
            assert any(each["role"] in ("tool", "function") for each in meanwhile), "only a late result changes it"
        if seen:
            assert seen == [wanted, [said.id for said in state.summary]]
        else:
            assert (wanted, receipt) == ([], None)
        if memory is self.memories[-1]:
            if seen and meanwhile is not None:
                state.write(meanwhile)
                assert _answered(state, to, wanted) == (receipt is None)
            if receipt is not None:
                state.compact(to, summary)
                assert receipt.version.n == state.n
        return receipt is not None

    async def look(self) -> None:
        for window in self.windows:
            wanted, overflow = self.state.show(rules_of(window))
            for memory in self.memories:
                view: Messages = await memory.messages(window=window)
                assert (labels(view), view.overflow, view.version.n) == (wanted, overflow, self.state.n)
        counts = [(await memory.stats()).message_count for memory in self.memories]
        assert counts[0] == counts[1]


def _answered(state: State, to: int, seen: list[str]) -> bool:
    """Tell whether a result came to a call that was summed up."""
    calls = pair(state.rest)
    late = [state.rest[result].id for result, call in calls.items() if version(state.rest[call]) <= to]
    return any(label not in seen for label in late)


async def compare(store: Store, several: Sequence[Window], steps: Sequence[Step]) -> None:
    """Run an example."""
    async with turnkeeper.open_runtime(store, durability="relaxed") as runtime:
        twins = Twins(runtime, several)
        for step in [*steps, ("look",), ("compact", TurnWindow(max_turns=1), [system("S")], None), ("look",)]:
            await twins.run(step)


@given(_several, _steps)
@settings(max_examples=50, phases=[Phase.explicit, Phase.reuse, Phase.generate])
async def test_a_view_is_the_system_message_the_summary_and_the_view_of_the_rest(
    several: Sequence[Window], steps: Sequence[Step]
) -> None:
    await compare(InMemoryStore(), several, steps)


@given(_several, _steps)
@settings(max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate])
async def test_and_so_it_is_from_sqlite(several: Sequence[Window], steps: Sequence[Step]) -> None:
    with TemporaryDirectory() as folder:
        await compare(SQLiteStore(Path(folder) / "chats.db"), several, steps)

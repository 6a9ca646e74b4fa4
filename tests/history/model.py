"""A memory by the docstrings of what changes it, written for being read: lists of what was said, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from windows.model import Rules, Said, called, current_system, pair, show
from windows.saying import Fields


def version_of(said: Said) -> int:
    return int(said.id.split(".")[0])


class RefusedError(Exception):
    """What a request is answered that changes nothing; its text is the error's name."""


@dataclass(frozen=True)
class Story:
    """A state, at a version.

    Attributes:
        before: the system message from before a compaction.
        summary: what a compaction left.
        rest: all else, in order.
        n: number of the last entry.
        base: number of the entry that starts the state.
        first: number of the first entry that the state needs besides that one.
    """

    before: Said | None = None
    summary: tuple[Said, ...] = ()
    rest: tuple[Said, ...] = ()
    n: int = 0
    base: int = 0
    first: int = 1

    @property
    def everything(self) -> list[Said]:
        return [*([self.before] if self.before else []), *self.summary, *self.rest]

    @property
    def system(self) -> Said | None:
        """The last system message that said something new; a summary has none."""
        said = [*([self.before] if self.before else []), *self.rest]
        index = current_system(said)
        return None if index is None else said[index]

    def _next(self, **changes: object) -> Story:
        return replace(self, n=self.n + 1, **changes)  # type: ignore[arg-type]

    # What changes it

    def add(self, batch: Sequence[Fields]) -> Story:
        said = tuple(Said(f"{self.n + 1}.{index}", fields) for index, fields in enumerate(batch))
        return self._next(rest=(*self.rest, *said))

    def set(self, batch: Sequence[Fields]) -> Story:
        return Story(n=self.n, base=self.n + 1, first=self.n + 1).add(batch)

    def clear(self) -> Story:
        return self if not self.everything else self.set([])

    def undo(self, turns: int) -> tuple[Story, list[Said]]:
        """Take back the user messages that began the last turns, and all that came since."""
        users = [index for index, said in enumerate(self.rest) if said.role == "user"]
        if not users:
            return self, []
        cut = users[-min(turns, len(users))]
        return self._next(rest=self.rest[:cut]), list(self.rest[cut:])

    def pop(self) -> tuple[Story, list[Said]]:
        if not self.rest:
            return self, []
        return self._next(rest=self.rest[:-1]), [self.rest[-1]]

    def find(self, label: str) -> Said:
        known = [*([self.before] if self.before else []), *self.rest]  # a summary's messages are none of the log's
        found = next((said for said in known if said.id == label), None)
        if found is None:
            raise RefusedError("MessageNotFoundError")
        return found

    def edit(self, label: str, fields: Fields) -> Story:
        old = self.find(label)
        if old.fields["role"] != fields["role"] or links(old.fields) != links(fields):
            raise RefusedError("InvalidMessageError")
        if old.fields == fields:
            return self
        new = Said(label, fields)

        def swap(said: Said) -> Said:
            return new if said is old else said

        return self._next(
            before=swap(self.before) if self.before else None,
            rest=tuple(map(swap, self.rest)),
        )

    def remove(self, label: str) -> tuple[Story, list[Said]]:
        """Take out a message; a call with its results, a result with its call and that one's other results."""
        found = self.find(label)
        answers = pair(self.rest)
        places = [index for index, said in enumerate(self.rest) if said is found]
        if places:
            call = answers.get(places[0], places[0])
            places = [call, *(result for result, its in answers.items() if its == call)]
        gone = {id(self.rest[place]) for place in places} or {id(found)}
        return self._next(
            before=None if self.before is None or id(self.before) in gone else self.before,
            rest=tuple(said for said in self.rest if id(said) not in gone),
        ), [self.rest[place] for place in places] or [found]

    def compact(self, to: int, summary: Sequence[Fields]) -> Story:
        older = [*([self.before] if self.before else []), *(said for said in self.rest if version_of(said) <= to)]
        index = current_system(older)
        return self._next(
            before=None if index is None else older[index],
            summary=tuple(Said(f"{self.n + 1}.{place}", fields) for place, fields in enumerate(summary)),
            rest=tuple(said for said in self.rest if version_of(said) > to),
            base=self.n + 1,
            first=to + 1,
        )

    def fork(self) -> Story:
        """The first entry of a new memory."""
        said = [Said(f"1.{index}", each.fields) for index, each in enumerate(self.everything)]
        leads = self.before is not None
        rest = leads + len(self.summary)
        return Story(said[0] if leads else None, tuple(said[leads:rest]), tuple(said[rest:]), 1, 1, 1)

    def prune(self, first: int) -> Story:
        """What is left when the entries before `first` are gone, but for that of the current system message."""
        system = self.system
        rest = tuple(said for said in self.rest if version_of(said) >= first)
        return replace(self, before=None if system in rest else system, summary=(), rest=rest, base=first, first=first)

    def system_before(self, first: int) -> Said | None:
        """The system message that was current among those older than an entry."""
        older = [*([self.before] if self.before else []), *(said for said in self.rest if version_of(said) < first)]
        index = current_system(older)
        return None if index is None else older[index]

    # What is seen

    def show(self, rules: Rules, limit: int | None) -> tuple[list[str], bool]:
        """Return the labels of what a window shows, and whether that is more than its limit.

        The system message, the summary, and the view of the rest.
        """
        system = self.system
        older = system is not None and system is self.before
        said = [system, *self.rest] if older and system is not None else list(self.rest)
        room = limit
        if rules.cost is not None and limit is not None:
            counts_turns = rules.cost({"role": "assistant", "content": "x"}) == 0
            room = limit - (0 if counts_turns else sum(rules.cost(each.fields) for each in self.summary))
        shown = show(said, rules, room)
        found = shown.labels
        in_place = not rules.system_first and system is not None and not older and said.index(system) >= shown.start
        first = found[:1] if system is not None and not in_place and found[:1] == [system.id] else []
        view = [*first, *(each.id for each in self.summary), *found[len(first) :]]
        return view, rules.cost is not None and room is not None and shown.total > room and view != []


def links(fields: Fields) -> list[str]:
    """Return what pairs a message with others: its calls, or the call that it answers."""
    if fields["role"] == "tool":
        return [str(fields["tool_call_id"])]
    if fields["role"] == "function":
        return [str(fields["name"])]
    return called(Said("", fields))

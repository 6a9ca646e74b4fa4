"""The rules about the log: what was said is taken back and changed, looked back at, watched, forked and pruned."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule

from statemachine import revisions
from statemachine.choices import batches, disturbances, windows_to_read
from statemachine.machine import Machine
from statemachine.operations import Disturbance
from statemachine.states import Batch
from turnkeeper import ChatMemory, Message, Window
from windows.saying import answer, label, user

places = st.sampled_from(range(31))


class LogMachine(Machine):
    """A machine that knows the log too."""

    # Taking back and changing

    @rule(count=st.integers(1, 3), disturbance=disturbances)
    def undo(self, count: int, disturbance: Disturbance) -> None:
        self._write(
            f"undo {count}", lambda memory: memory.undo(count), partial(revisions.undo, count=count), disturbance
        )

    @rule(disturbance=disturbances)
    def pop(self, disturbance: Disturbance) -> None:
        async def pop(memory: ChatMemory) -> list[str]:
            popped: Message | None = await memory.pop()
            return [] if popped is None else [label(popped)]

        self._write("pop", pop, revisions.pop, disturbance)

    @rule(place=places, text=st.sampled_from(["", "changed", "s", "u"]), disturbance=disturbances)
    def edit(self, place: int, text: str, disturbance: Disturbance) -> None:
        name, fields = self._pick(place)
        new = user(text) if place == 30 else {**fields, "content": text}
        self._write(
            f"edit {name} {new}",
            lambda memory: memory.edit(name, new),
            partial(revisions.edit, label=name, fields=new),
            disturbance,
        )

    @rule(place=places, disturbance=disturbances)
    def remove(self, place: int, disturbance: Disturbance) -> None:
        name, _ = self._pick(place)
        self._write(
            f"remove {name}", lambda memory: memory.remove(name), partial(revisions.remove, label=name), disturbance
        )

    def _pick(self, place: int) -> tuple[str, dict[str, object]]:
        """Pick a message, mostly one of the newest."""
        if not self._it.state.everything:
            self.talk((user(), answer()))
        everything = self._it.state.everything
        if not everything or place == 29:
            return "9999.0", user()
        said = everything[-1 - place % len(everything)]
        return said.id, said.fields

    # Looking back

    @rule(place=places, window=windows_to_read, limit=st.integers(1, 4), reverse=st.booleans())
    def look_back(self, place: int, window: Window, limit: int, reverse: bool) -> None:
        self._run(self._it.look_at, place, window)
        self._run(self._it.page, place, limit, reverse=reverse)

    @rule(after=st.one_of(st.none(), places), dozes=st.booleans())
    def watch(self, after: int | None, dozes: bool) -> None:
        self._run(self._it.watch, after, dozes=dozes)

    # Beside the log

    @rule(title=st.sampled_from(["a", "b"]), back=st.sampled_from([None, None, 0, 0, 1]), disturbance=disturbances)
    def set_metadata(self, title: str, back: int | None, disturbance: Disturbance) -> None:
        revision = None if back is None else max(0, self._it.state.revision - back)
        self._run(self._it.set_metadata, title, revision, disturbance)

    @rule(place=st.one_of(st.none(), places), history=st.booleans(), disturbance=disturbances)
    def fork(self, place: int | None, history: bool, disturbance: Disturbance) -> None:
        self._run(self._it.fork, place, history, disturbance)

    @rule(batch=batches, often=st.integers(0, 2), dozes=st.booleans(), disturbance=disturbances)
    def sweep(self, batch: Batch, often: int, dozes: bool, disturbance: Disturbance) -> None:
        if not self.prunes:
            return
        if (turn := self._it.state.turn) is not None:
            self._run(self._it.leave_turn, turn.turn)
        if dozes:
            self._run(self._it.watch, None, dozes=True)
        for _ in range(often):
            self.talk(batch)
        self._run(self._it.sweep, disturbance)
        if dozes:
            self._run(self._it.wake)

"""Who sends: tasks or threads with a generator of their own, and a note of everything they sent."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from turnkeeper.bench.checking import ACKNOWLEDGED, OPEN, REFUSED, Sent, text_of

__all__ = ["Client", "Ledger"]

Dict: TypeAlias = dict[str, Any]

_TURNS_OF_ONE: Final = 1_000_000


class Ledger:
    """What was sent in one run.

    Attributes:
        sent: by conversation.
        errors: how often an operation ended with which type of error.
        cancelled: operations that were cancelled on purpose.
        invalid: prompts that a provider would refuse.
    """

    def __init__(self) -> None:
        self.sent: defaultdict[str, list[Sent]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.cancelled: int = 0
        self.invalid: int = 0


class Client:
    """One sender.

    Attributes:
        number: among all clients, from 0.
        subject: what it sends to.
        random: its own generator, the same in every run of one seed.
    """

    def __init__(self, number: int, subject: Any, ledger: Ledger, *, seed: int, size: int) -> None:
        self.number: int = number
        self.subject: Any = subject
        self.random: random.Random = random.Random(f"{seed}-{number}")
        self._ledger = ledger
        self._size = size
        self._count = 0
        self._turns = 0

    def begin_turn(self) -> int:
        """Return a number for a turn that is unique in the run."""
        self._turns += 1
        return (self.number + 1) * _TURNS_OF_ONE + self._turns

    def messages(self, *roles: str) -> list[Dict]:
        """Make new messages, each with a text that can be found again."""
        made: list[Dict] = []
        for role in roles:
            self._count += 1
            made.append({"role": role, "content": text_of(f"c{self.number}.{self._count}", self._size)})
        return made

    def begin(self, conversation: str, messages: Sequence[Dict], turn: int = 0) -> list[Sent]:
        """Note what is about to be sent, as of unknown outcome."""
        notes = [Sent(str(message["content"]).partition("¦")[0], OPEN, turn) for message in messages]
        self._ledger.sent[conversation].extend(notes)
        return notes

    def end(self, notes: Sequence[Sent], *, acknowledged: bool) -> None:
        """Note what the sender learnt."""
        for note in notes:
            note.outcome = ACKNOWLEDGED if acknowledged else REFUSED

    async def add(self, conversation: str, messages: Sequence[Dict], turn: int = 0) -> None:
        """Send messages and note what became of them; raises what the subject raises."""
        notes = self.begin(conversation, messages, turn)
        try:
            await self.subject.add(conversation, messages)
        except Exception:
            self.end(notes, acknowledged=False)
            raise
        self.end(notes, acknowledged=True)

    def add_blocking(self, conversation: str, messages: Sequence[Dict], turn: int = 0) -> None:
        """Do the same from a thread."""
        notes = self.begin(conversation, messages, turn)
        try:
            self.subject.add(conversation, messages)
        except Exception:
            self.end(notes, acknowledged=False)
            raise
        self.end(notes, acknowledged=True)

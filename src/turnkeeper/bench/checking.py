"""Comparing what is stored with what was sent and acknowledged. Pure: no I/O, no event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from turnkeeper.bench.spec import Checked

__all__ = ["ACKNOWLEDGED", "OPEN", "REFUSED", "Sent", "check_conversation", "tag_of", "text_of"]

ACKNOWLEDGED: Final = "acknowledged"
REFUSED: Final = "refused"
"""The sender was told of an error."""
OPEN: Final = "open"
"""The sender was cancelled, or the run ended: it may be there or not."""

_MARK: Final = "¦"


class Sent(msgspec.Struct, array_like=True):
    """A message that was sent.

    Attributes:
        tag: "sender.number", unique in the run.
        outcome: what the sender learnt.
        turn: the turn it belongs to, unique in the run; 0: none.
    """

    tag: str
    outcome: str
    turn: int = 0


def text_of(tag: str, size: int) -> str:
    """Return a text of about `size` bytes that begins with its tag, so that it can be found again."""
    filler = "lorem ipsum dolor sit amet consectetur "
    head = f"{tag}{_MARK}"
    missing = max(size - len(head), 0)
    return head + (filler * (missing // len(filler) + 1))[:missing]


def tag_of(text: str) -> str | None:
    """Return the tag that a text begins with; None when it has none."""
    tag, mark, _ = text.partition(_MARK)
    return tag if mark else None


def check_conversation(sent: Sequence[Sent], stored: Iterable[str], known_before: int = 0) -> Checked:
    """Compare one conversation.

    Args:
        sent: all messages that were sent to it, each sender's in its order.
        stored: the texts that are stored, in order.
        known_before: how many texts at the beginning, without a tag, were there before the run.
    """
    outcomes: Mapping[str, Sent] = {message.tag: message for message in sent}
    tags = [tag_of(text) for text in stored]
    untagged = sum(tag is None for tag in tags)
    counts = Counter(tag for tag in tags if tag is not None)
    found = Checked(foreign=max(untagged - known_before, 0))
    for message in sent:
        there = counts.get(message.tag, 0)
        if message.outcome == ACKNOWLEDGED:
            found.kept += there > 0
            found.lost += there == 0
        else:
            found.unacknowledged += there > 0
        found.doubled += there > 1
    found.foreign += sum(count for tag, count in counts.items() if tag not in outcomes)
    found.misordered = _inversions(tags)
    found.torn = _torn(tags, outcomes)
    return found


def _inversions(tags: Iterable[str | None]) -> int:
    """Count a sender's messages that stand before an earlier one of the same sender."""
    last: dict[str, int] = {}
    found = 0
    for tag in tags:
        if tag is None:
            continue
        sender, _, number = tag.rpartition(".")
        if number.isdigit():
            found += int(number) < last.get(sender, -1)
            last[sender] = max(int(number), last.get(sender, -1))
    return found


def _torn(tags: Iterable[str | None], outcomes: Mapping[str, Sent]) -> int:
    """Count turns that are not one run of neighbours."""
    runs: Counter[int] = Counter()
    before = 0
    for tag in tags:
        turn = outcomes[tag].turn if tag is not None and tag in outcomes else 0
        if turn and turn != before:
            runs[turn] += 1
        before = turn
    return sum(count > 1 for count in runs.values())

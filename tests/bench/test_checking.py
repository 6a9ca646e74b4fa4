"""What a look at a store finds, against what was sent: each kind of damage, and nothing where there is none."""

from __future__ import annotations

import pytest

from turnkeeper.bench.checking import ACKNOWLEDGED, OPEN, REFUSED, Sent, check_conversation, tag_of, text_of

ALL = [Sent(f"c{client}.{n}", ACKNOWLEDGED) for client in (0, 1) for n in (1, 2, 3)]
TEXTS = [text_of(message.tag, 50) for message in ALL]


def test_a_text_has_its_size_and_tells_its_tag() -> None:
    assert len(text_of("c0.1", 490)) == 490
    assert tag_of(text_of("c0.1", 490)) == "c0.1"
    assert text_of("c0.1", 0).startswith("c0.1")
    assert tag_of("said by somebody else") is None


def test_where_all_is_well_nothing_is_found() -> None:
    found = check_conversation(ALL, TEXTS)
    assert found.clean
    assert (found.kept, found.unacknowledged) == (6, 0)


def test_senders_may_take_turns_as_they_like() -> None:
    assert check_conversation(ALL, [TEXTS[n] for n in (0, 3, 1, 4, 2, 5)]).clean


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    found = check_conversation(ALL, TEXTS[1:])
    assert (found.kept, found.lost, found.clean) == (5, 1, False)


def test_what_is_there_twice_is_doubled() -> None:
    found = check_conversation(ALL, [*TEXTS, TEXTS[0]])
    assert (found.doubled, found.clean) == (1, False)


def test_one_senders_messages_the_wrong_way_round_are_misordered() -> None:
    found = check_conversation(ALL, [TEXTS[n] for n in (1, 0, 2, 3, 4, 5)])
    assert (found.misordered, found.lost, found.clean) == (1, 0, False)


@pytest.mark.parametrize("outcome", [REFUSED, OPEN])
def test_what_was_not_acknowledged_may_be_there_or_not(outcome: str) -> None:
    sent = [*ALL, Sent("c2.1", outcome)]
    assert check_conversation(sent, TEXTS).clean
    found = check_conversation(sent, [*TEXTS, text_of("c2.1", 50)])
    assert (found.unacknowledged, found.clean) == (1, True)


def test_what_nobody_sent_is_foreign() -> None:
    assert check_conversation(ALL, [*TEXTS, text_of("c9.1", 50)]).foreign == 1
    assert check_conversation(ALL, ["said before", *TEXTS]).foreign == 1
    assert check_conversation(ALL, ["said before", *TEXTS], known_before=1).foreign == 0


def test_a_turn_with_somebody_elses_message_in_it_is_torn() -> None:
    sent = [Sent("c0.1", ACKNOWLEDGED, 1), Sent("c0.2", ACKNOWLEDGED, 1), Sent("c1.1", ACKNOWLEDGED, 2)]
    whole = [text_of(tag, 20) for tag in ("c0.1", "c0.2", "c1.1")]
    assert check_conversation(sent, whole).torn == 0
    found = check_conversation(sent, [whole[0], whole[2], whole[1]])
    assert (found.torn, found.clean) == (1, True)

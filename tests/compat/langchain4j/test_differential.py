"""Random conversations: a store of the user's own shows what turnkeeper's shows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compat.langchain4j.own_stores import InlineStore, answer, call, result, system, texts, user
from conformance.translating import assert_valid
from turnkeeper.compat.langchain4j import MessageWindowChatMemory

MESSAGES = [system("s1"), system("s2"), user("u"), answer("a")]
CALLS = [call("1"), call("2"), result("1", "r1"), result("2", "r2"), result("3", "r3")]

Said = tuple[str, list[Any]]

# A list has no room for an equal system message, nor for the place of one that is shown first: an open call before it
# is the last there, and so still current. Sets with one behind a call, and system messages first, are left out.
several = st.lists(st.sampled_from(MESSAGES + CALLS), min_size=1, max_size=4)
replacing = st.lists(st.sampled_from(MESSAGES[2:] + CALLS), min_size=1, max_size=6)
steps: st.SearchStrategy[Said] = st.one_of(
    st.tuples(st.just("add"), several),
    st.tuples(st.just("add"), several.map(lambda given: given[:1])),
    st.tuples(st.just("set"), replacing | replacing.map(lambda given: [MESSAGES[0], *given])),
    st.tuples(st.just("clear"), st.just([])),
)


@settings(max_examples=100)
@given(st.lists(steps, max_size=12), st.integers(1, 6))
def test_both_show_the_same(said: list[Said], limit: int) -> None:
    store = InlineStore()
    theirs = MessageWindowChatMemory(limit, id="m", chat_memory_store=store)
    ours = MessageWindowChatMemory(limit, id="m")
    for step, messages in said:
        for memory in (theirs, ours):
            getattr(memory, step)(*messages)
        shown = ours.messages()
        assert theirs.messages() == shown, texts(shown)
        assert [message.synthetic for message in theirs.messages()] == [message.synthetic for message in shown]
        assert_valid(shown)
        assert len(shown) <= limit
        assert len(store.lists.get("m", ())) <= limit

"""`ChatMemory` as an interface: what a class gets that defines `id`, `add` for one message, `messages` and `clear`."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from typing import Any

import anyio
import pytest

from compat.langchain4j.own_stores import system, user
from turnkeeper import InvalidArgumentError, TurnkeeperError, UserMessage
from turnkeeper.compat.langchain4j import AsyncNotSupportedError, ChatMemory
from turnkeeper.messages import MessageLike


class Plain(ChatMemory):
    """Defines what it has to, and notes what it is asked."""

    def __init__(self) -> None:
        self.held: list[MessageLike] = []
        self.asked: list[str] = []

    def id(self) -> Hashable:
        return ("plain", 1)

    def add(self, message: MessageLike) -> None:
        """Keep one message."""
        self.asked.append("add")
        if message == "bad":
            raise ValueError(message)
        self.held.append(message)

    def messages(self) -> Sequence[MessageLike]:
        self.asked.append("messages")
        return list(self.held)

    def clear(self) -> None:
        self.asked.append("clear")
        self.held.clear()


@pytest.mark.parametrize("missing", ["id", "add", "messages", "clear"])
def test_four_methods_have_to_be_defined(missing: str) -> None:
    defined = {name: vars(Plain)[name] for name in ("id", "add", "messages", "clear") if name != missing}
    kind: Any = type("Incomplete", (ChatMemory,), defined)
    with pytest.raises(TypeError, match=missing):
        kind()


def test_the_id_is_any_object() -> None:
    assert Plain().id() == ("plain", 1)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        pytest.param((), [], id="nothing"),
        pytest.param((None,), [], id="None"),
        pytest.param(([],), [], id="an empty list"),
        pytest.param((user("u1"),), [user("u1")], id="a mapping"),
        pytest.param((UserMessage("u1"),), [UserMessage("u1")], id="a message"),
        pytest.param((user("u1"), user("u2")), [user("u1"), user("u2")], id="several"),
        pytest.param(([user("u1"), user("u2")],), [user("u1"), user("u2")], id="a list"),
        pytest.param((iter([user("u1"), user("u2")]),), [user("u1"), user("u2")], id="an iterator"),
        pytest.param(((user(name) for name in ("u1", "u2")),), [user("u1"), user("u2")], id="a generator"),
    ],
)
def test_an_add_for_one_takes_several_an_iterable_none_or_nothing(given: tuple[Any, ...], added: list[Any]) -> None:
    memory = Plain()
    memory.add(*given)
    assert memory.messages() == added
    assert memory.asked.count("add") == len(added), "one message a call"


def test_the_default_add_stops_at_the_first_error() -> None:
    memory: ChatMemory = Plain()
    with pytest.raises(ValueError, match="bad"):
        memory.add(user("u1"), "bad", user("u2"))
    assert memory.messages() == [user("u1")]


def test_a_subclass_of_a_subclass_may_go_on_to_its_parents_add() -> None:
    class Upper(Plain):
        def add(self, message: MessageLike) -> None:
            assert isinstance(message, dict)
            super().add({**message, "upper": True})

    memory: ChatMemory = Upper()
    memory.add([user("u1"), user("u2")])
    assert memory.messages() == [{**user("u1"), "upper": True}, {**user("u2"), "upper": True}]


def test_a_class_that_inherits_add_has_it_as_it_is() -> None:
    class Same(Plain):
        pass

    assert Same.add is Plain.add
    assert Same.add.__doc__ == "Keep one message."


def test_an_add_for_several_gets_them_as_they_come() -> None:
    class Batches(Plain):
        def add(self, *messages: Any) -> None:
            self.held.append({"batch": messages})

    memory = Batches()
    memory.add(user("u1"), user("u2"))
    memory.add([user("u3")])
    assert memory.messages() == [{"batch": (user("u1"), user("u2"))}, {"batch": ([user("u3")],)}]


def test_further_arguments_reach_the_add_for_one() -> None:
    class Tagged(Plain):
        def add(self, message: MessageLike, *, tag: str = "none") -> None:
            assert isinstance(message, dict)
            self.held.append({**message, "tag": tag})

    memory: ChatMemory = Tagged()
    memory.add([user("u1")], tag="t")
    assert memory.messages() == [{**user("u1"), "tag": "t"}]


@pytest.mark.parametrize("form", ["several", "iterable", "iterator"])
def test_the_default_set_replaces_by_clear_and_add(form: str) -> None:
    memory = Plain()
    memory.add(user("old"))
    memory.asked.clear()
    given = [system("s1"), user("u1")]
    forms: dict[str, list[Any]] = {"several": given, "iterable": [given], "iterator": [iter(given)]}
    memory.set(*forms[form])
    assert memory.held == given
    assert memory.asked == ["clear", "add", "add"]


@pytest.mark.parametrize("given", [(), (None,), ([],), (iter([]),)], ids=["nothing", "None", "empty", "empty iterator"])
def test_set_refuses_none_and_nothing_and_changes_nothing(given: tuple[Any, ...]) -> None:
    memory = Plain()
    memory.add(user("u1"))
    with pytest.raises(InvalidArgumentError, match="at least one message"):
        memory.set(*given)
    assert memory.held == [user("u1")]
    assert "clear" not in memory.asked


def test_the_default_set_is_not_atomic_and_says_so() -> None:
    memory: ChatMemory = Plain()
    memory.add(user("old"))
    with pytest.raises(ValueError, match="bad"):
        memory.set(user("u1"), "bad")
    assert memory.messages() == [user("u1")], "what it says: cleared, and half of it added"
    assert "not atomic" in (inspect.getdoc(ChatMemory.set) or "")


@pytest.mark.anyio
async def test_the_default_async_methods_fail_when_awaited_and_not_when_called() -> None:
    memory = Plain()
    for method, given in (("add_async", ([user("u1")],)), ("set_async", ([user("u1")],)), ("messages_async", ())):
        promised = getattr(memory, method)(*given)
        with pytest.raises(AsyncNotSupportedError, match=f"Plain does not define {method}"):
            await promised
    assert memory.asked == []


def test_the_error_is_one_of_ours_and_a_not_implemented_error() -> None:
    async def ask() -> None:
        await Plain().messages_async()

    for kind in (TurnkeeperError, NotImplementedError):
        with pytest.raises(kind):
            anyio.run(ask)

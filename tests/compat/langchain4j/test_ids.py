"""Ids of any type, as text and back."""

from __future__ import annotations

from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper import InvalidMemoryIdError
from turnkeeper.compat.langchain4j import IdCodec, decode_id, encode_id
from turnkeeper.compat.langchain4j.ids import key_of
from turnkeeper.names import memory_name

SOME = UUID("12345678-1234-5678-1234-567812345678")

plain = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20),
    st.integers(),
    st.uuids(),
)
ids = st.recursive(plain | st.just(()), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


def same(one: Any, other: Any) -> bool:
    """Compare with types, which `==` does not: 1 is True."""
    if type(one) is not type(other):
        return False
    return all(map(same, one, other)) and len(one) == len(other) if type(one) is tuple else bool(one == other)


def refused(memory_id: Any) -> bool:
    try:
        encode_id(memory_id)
    except InvalidMemoryIdError:
        return True
    return False


@given(ids)
@example("int:1")
@example("str:int:1")
@example("tuple:[1]")
@example("id:x")
@example(((), ("", 0, SOME)))
@example((1, "1", ("1", (1,))))
@example(-(10**400))
def test_an_id_comes_back_with_its_type(memory_id: Any) -> None:
    if len(repr(memory_id).encode()) > 100 and refused(memory_id):
        return  # too long
    text = encode_id(memory_id)
    assert same(decode_id(text), memory_id)
    assert memory_name(text).id == text, "turnkeeper takes it"


@given(ids, ids)
def test_no_two_ids_have_one_text(one: Any, other: Any) -> None:
    if refused(one) or refused(other):
        return
    assert (encode_id(one) == encode_id(other)) == same(one, other)
    assert (key_of(one) == key_of(other)) == same(one, other)


@pytest.mark.parametrize(
    ("memory_id", "text"),
    [
        ("user-42", "user-42"),
        ("int:1", "str:int:1"),
        (1, "int:1"),
        (-7, "int:-7"),
        (SOME, f"uuid:{SOME}"),
        (("tenant", 7), 'tuple:["tenant",7]'),
        (("é", ("1", 1), SOME), f'tuple:["é",["1",1],{{"uuid":"{SOME}"}}]'),
        ((), "tuple:[]"),
    ],
)
def test_what_an_id_is_as_text(memory_id: Any, text: str) -> None:
    """Stored data hangs on it: whoever changes this breaks what was stored."""
    assert encode_id(memory_id) == text
    assert same(decode_id(text), memory_id)


class Color(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("other", [True, 1.0, b"x", Color.RED, Text("x"), frozenset(), (1, True), ((1.5,),), object()])
def test_other_types_need_a_codec(other: Any) -> None:
    with pytest.raises(InvalidMemoryIdError, match="id_codec"):
        encode_id(other)


class Floats:
    """An `IdCodec` for numbers with a fraction."""

    def encode(self, memory_id: Any) -> str:
        return repr(memory_id)

    def decode(self, text: str) -> Any:
        return float(text)


def test_a_codec_is_asked_for_other_types_alone() -> None:
    codec: IdCodec = Floats()
    assert encode_id(1.5, codec) == "id:1.5"
    assert same(decode_id("id:1.5", codec), 1.5)
    assert encode_id("1.5", codec) == "1.5"
    assert encode_id("id:1.5", codec) == "str:id:1.5"
    assert encode_id(1, codec) == "int:1"
    with pytest.raises(InvalidMemoryIdError, match="id_codec"):
        decode_id("id:1.5")


def test_a_codec_has_to_return_text() -> None:
    class Wrong(Floats):
        def encode(self, memory_id: Any) -> str:
            return 3  # type: ignore[return-value]

    with pytest.raises(InvalidMemoryIdError, match="int"):
        encode_id(1.5, Wrong())


@pytest.mark.parametrize("memory_id", [None])
def test_none_is_no_id(memory_id: Any) -> None:
    """FIELD C3, C13."""
    for request in (encode_id, key_of, lambda given: encode_id(given, Floats())):
        with pytest.raises(InvalidMemoryIdError, match="an id is required"):
            request(memory_id)


@pytest.mark.parametrize(
    "memory_id",
    [
        "",
        "x" * 513,
        "é" * 257,
        "a\nb",
        "\ud800",
        10**509,
        -(10**4_000),
        ("x" * 510,),
        (10**600,),
        ("\ud800",),
        ("\x7f",),
    ],
)
def test_what_turnkeeper_does_not_take_is_refused_by_a_typed_error(memory_id: Any) -> None:
    with pytest.raises(InvalidMemoryIdError):
        encode_id(memory_id)


def test_a_number_that_python_refuses_to_print_is_refused() -> None:
    with pytest.raises(InvalidMemoryIdError, match="longer"):
        encode_id(-(10**5_000))
    with pytest.raises(InvalidMemoryIdError, match="longer"):
        encode_id((10**5_000,))


def test_a_deep_tuple_is_refused_as_well() -> None:
    deep: Any = ()
    for _ in range(5_000):
        deep = (deep,)
    with pytest.raises(InvalidMemoryIdError):
        encode_id(deep)


@pytest.mark.parametrize("memory_id", ["x" * 512, "é" * 256, 10**507, ("x" * 502,), "   "])
def test_the_longest_are_taken(memory_id: Any) -> None:
    assert same(decode_id(encode_id(memory_id)), memory_id)


@pytest.mark.parametrize(
    "text",
    ["int:", "int:01", "int:x", "int: 1", "int:\uff11", "uuid:x", "tuple:1", "tuple:[1.5]", "tuple:[true]", "tuple:["],
)
def test_a_text_that_no_id_has_is_refused(text: str) -> None:
    with pytest.raises(InvalidMemoryIdError) as refusal:
        decode_id(text)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None, "a chained error would repeat the id"


@pytest.mark.parametrize("unhashable", [[], {}, ([],)])
def test_what_cannot_be_hashed_is_no_id(unhashable: Any) -> None:
    with pytest.raises(InvalidMemoryIdError):
        key_of(unhashable)
    with pytest.raises(InvalidMemoryIdError):
        encode_id(unhashable)

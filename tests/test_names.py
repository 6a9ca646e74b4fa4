"""Names and versions."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper import InvalidArgumentError, InvalidMemoryIdError, Receipt, Version
from turnkeeper.names import MAX_NAME_BYTES, MemoryName, memory_name


@pytest.mark.parametrize(
    "good", ["a", " ", "user-42", "x" * 512, "ü" * 256, "日本", "🙂" * 128, "a/b#1", "%_'\"\\", "\u200e"]
)
def test_ids_of_1_to_512_bytes_are_accepted(good: str) -> None:
    assert memory_name(good, good) == MemoryName(good, good)
    assert memory_name(good) == MemoryName("", good)


@pytest.mark.parametrize(
    "bad", ["", "x" * 513, "ü" * 257, "🙂" * 129, "a\nb", "\x00", "\x7f", "\x9f", "\ud83d", 5, None, b"a"]
)
def test_other_ids_are_refused_with_the_rule(bad: object) -> None:
    with pytest.raises(InvalidMemoryIdError, match="memory id"):
        memory_name(bad)  # type: ignore[arg-type]
    if bad != "":
        with pytest.raises(InvalidMemoryIdError, match="namespace"):
            memory_name("a", bad)  # type: ignore[arg-type]


@given(st.text(max_size=600))
def test_a_name_is_valid_exactly_when_the_rule_says_so(text: str) -> None:
    valid = 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES and not any(
        ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in text
    )
    try:
        memory_name(text)
    except InvalidMemoryIdError:
        assert not valid
    else:
        assert valid


def test_digests_keep_names_apart() -> None:
    names = [MemoryName("", "abc"), MemoryName("a", "bc"), MemoryName("ab", "c"), MemoryName("", "Abc")]
    assert len({name.digest() for name in names}) == 4
    assert {len(name.digest()) for name in names} == {32}


def test_versions_are_ordered_frozen_and_text() -> None:
    assert Version(1, 9) < Version(1, 10) < Version(2, 0)
    assert Version.parse(str(Version(12, 345))) == Version(12, 345)
    assert pickle.loads(pickle.dumps(Receipt(Version(1, 2), 3))) == Receipt(Version(1, 2), 3)
    assert len({Version(1, 2), Version(1, 2)}) == 1
    with pytest.raises(AttributeError):
        Version(1, 2).n = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "a.b", "1.2.3", "-1.2", "1. 2", "\u0661.\u0662"])
def test_other_text_is_no_version(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Version.parse(text)

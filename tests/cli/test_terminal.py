"""Nothing that is shown can steer the terminal, and nothing harmless is lost on the way to it."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.cli.terminal import clean, clean_line, without_passwords

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
FORBIDDEN = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *BIDI} - {"\n", "\t"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b[?1049h\x1b[>4;2m\x1b[ qa", "a"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07a", "a"),
        ("\x1b]0;title\x1b\\a", "a"),
        ("\x9d0;title\x9ca", "a"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07a", "a"),
        ("\x1bPq#0;2;0;0;0\x1b\\a", "a"),
        ("\x90q#0\x9ca", "a"),
        ("\x1b_Gf=100;AAAA\x1b\\a", "a"),
        ("\x1b^private\x1b\\a", "a"),
        ("\x1bXstring\x1b\\a", "a"),
        ("\x1bca", "a"),
        ("\x1b(0a", "a"),
        ("\x1b#8a", "a"),
        ("\x1b", ""),
        ("a\x1b", "a"),
        ("\x1b[31", "31"),
        ("\x1b]0;never ends", "0;never ends"),
        ("\x1b\x1b[31m[32mx", "[32mx"),
        ("\x1b]0;a\x1b]0;b\x07c", "0;ac"),
        ("\x1b[3\x071mx", "31mx"),
        ("a\rb", "ab"),
        ("a\x08b", "ab"),
        ("a\x07\x0b\x0c\x00\x7fb", "ab"),
        ("a\x84\x85\x8d\x9bb", "a"),
        (f"a{BIDI}b", "ab"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("a\u2028b\u2029c", "a\nb\nc"),
        ("\ud83d alone", "\ufffd alone"),
        ("a\n\tb", "a\n\tb"),
        ("天気 é 👩‍👩‍👧 रेल‌", "天気 é 👩‍👩‍👧 रेल‌"),
    ],
)
def test_controls_are_stripped(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_line_stays_a_line() -> None:
    assert clean_line("a\nb\tc\u2028d\x1b[31m") == "a b c d"


@given(st.text(st.characters()))
def test_no_text_gets_a_control_through(text: str) -> None:
    shown = clean(text)
    assert not FORBIDDEN & set(shown)
    shown.encode()


ATOMS = ["\x1b", "\x9b", "\x9d", "\x90", "\x9c", "[", "]", "P", "\\", "\x07", "0", ";", "m", "?", " ", "x", "\u202e"]


@given(st.lists(st.sampled_from(ATOMS)).map("".join))
def test_no_nesting_of_sequences_makes_a_new_one(text: str) -> None:
    assert not FORBIDDEN & set(clean(text))
    assert clean(clean(text)) == clean(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_what_is_harmless_stays(text: str) -> None:
    assert clean(text) == text


def test_joiners_stay_because_scripts_need_them() -> None:
    for joiner in "\u200c\u200d":
        assert unicodedata.category(joiner) == "Cf"
        assert clean(f"a{joiner}b") == f"a{joiner}b"


@pytest.mark.parametrize("unit", ["\x1b]", "\x1b[", "\x1b[0", "\x9d", "\x1bP0", "\x1b ", "\x1b]0;a "])
def test_a_hostile_text_takes_no_longer_than_its_length(unit: str) -> None:
    started = time.process_time()
    clean(unit * 300_000)
    clean(unit + "0" * 1_000_000)
    assert time.process_time() - started < 5  # a tenth of a second here; what grows with the square takes hours


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("open postgres://user:secret@host/db failed", "open postgres://***@host/db failed"),
        ("('redis://:secret@host')", "('redis://***@host')"),
        ("sqlite:///chats.db of a@b", "sqlite:///chats.db of a@b"),
    ],
)
def test_passwords_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown

"""docs/conformance.md says what the tests do."""

from __future__ import annotations

import re

from conformance.classes import CLASSES, VERDICTS, of_class
from conformance.report import COMMAND, PAGE, render
from conformance.vectors import VECTORS


def test_the_page_is_what_would_be_written() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), f"run: {COMMAND}"


def test_every_vector_is_in_the_section_of_its_class_and_in_no_other() -> None:
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", render(), re.MULTILINE))
    for name in CLASSES:
        named = re.findall(r"`([\w.]+)`", sections[name.capitalize()])
        assert sorted(vector_id for vector_id in named if vector_id in VECTORS) == sorted(
            vector.id for vector in of_class(name)
        )


def test_the_numbers_add_up() -> None:
    rows = re.findall(r"^\| (?:\[.*\]\(.*\)|all)((?: \| \d+)+) \|$", render(), re.MULTILINE)
    *systems, total = [[int(number) for number in row.split(" | ")[1:]] for row in rows]
    assert [sum(column) for column in zip(*systems, strict=True)] == total
    assert all(row[0] == sum(row[1:]) for row in [*systems, total])
    assert total[0] == len(VECTORS) == len(VERDICTS)

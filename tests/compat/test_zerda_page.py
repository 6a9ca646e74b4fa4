"""docs/zerda.md names a test for each line of its tables, and the tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "zerda.md"
REFERENCE = re.compile(r"`(?P<path>tests/[\w/]+\.py)?::(?P<name>[\w:]+)`")


def rows() -> list[list[str]]:
    """Return the rows of the tables whose last column is a test."""
    found: list[list[str]] = []
    for table in re.findall(r"^\|.*\| Test \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.M):
        found += [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
    return found


def defined_in(path: str) -> set[str]:
    """Return `test_name` and `TestClass::test_name` of a file."""
    found: set[str] = set()
    for node in ast.parse((REPOSITORY / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{item.name}" for item in node.body if hasattr(item, "name"))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_each_line_names_tests_that_exist(row: list[str]) -> None:
    path = ""
    named = list(REFERENCE.finditer(row[-1]))
    assert named, row
    for reference in named:
        path = reference["path"] or path
        assert reference["name"] in defined_in(path), reference[0]


def test_both_tables_were_found() -> None:
    lengths = [len(row) for row in rows()]
    assert lengths.count(2) >= 9
    assert lengths.count(5) >= 20

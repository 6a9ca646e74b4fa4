"""Adapters: read without running them, loaded where they are run, refused when they are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnkeeper.bench.environments import python_for
from turnkeeper.bench.subjects import BUILT_IN, describe_adapter, load_adapter
from turnkeeper.errors import InvalidArgumentError

PEERS = sorted((Path(__file__).parents[2] / "benchmarks" / "peers").glob("*.py"))

ADAPTER = """
import nosuchpackage
TITLE = "mine"
PACKAGES = DISTRIBUTIONS = ("nosuchpackage",)
DURABILITY = "memory"
def opened(place, *, window): ...
"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_subject_says_what_it_is_and_can_be_loaded(name: str) -> None:
    about = describe_adapter(name)
    assert about.title
    assert about.durability in ("memory", "process", "power cut")
    assert load_adapter(name).about == about


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.stem)
def test_a_peers_adapter_is_short_and_names_what_it_needs(path: Path) -> None:
    about = describe_adapter(str(path))
    assert about.packages
    assert set(about.backends) <= {"asyncio", "uvloop", "trio"}
    assert len(path.read_text(encoding="utf-8").splitlines()) < 45


def test_an_adapter_is_described_without_its_packages(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ADAPTER, encoding="utf-8")
    about = describe_adapter(str(path))
    assert (about.name, about.title, about.packages, about.shared) == ("mine", "mine", ("nosuchpackage",), False)


@pytest.mark.parametrize("text", ["", "TITLE = 'x'", "def opened(): ...", "this is not Python"])
def test_what_is_no_adapter_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="is no adapter"):
        describe_adapter(str(path))


def test_a_name_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match="turnkeeper-sqlite"):
        describe_adapter("nosuch")


def test_a_subject_without_packages_runs_on_this_python() -> None:
    import sys

    assert python_for(describe_adapter("floor-list")) == sys.executable

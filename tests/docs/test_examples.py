"""The pages keep their word: examples run as they are printed, commands parse, links and references lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md"))]
LINKING_PAGES = [*PAGES, *(path for name in ("CHANGELOG.md", "SECURITY.md") if (path := REPOSITORY / name).exists())]

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)
REFERENCE = re.compile(r"`(?P<path>[\w./-]+\.py)::(?P<name>[\w.]+)`")


class Block(NamedTuple):
    """A fenced block of a page, and the number of its first line."""

    page: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks(language: str) -> Iterator[Block]:
    """Find all blocks of a language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if found["language"] == language:
                yield Block(page, text.count("\n", 0, found.start("text")) + 1, found["text"])


def commands(block: Block) -> Iterator[list[str]]:
    """Find the calls of `turnkeeper` in a shell block, as words behind the program's name."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words and Path(words[0]).name == "turnkeeper":
                yield words[1:]


def prose(text: str) -> str:
    """Return a page without its blocks."""
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return what a link to a heading of this page may name, as GitHub makes it."""
    titles = (found["title"] for found in HEADING.finditer(prose(page.read_text(encoding="utf-8"))))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def names(path: Path) -> set[str]:
    """Return what a file defines at its top level and in its classes: `name`, `Class.name`."""

    def defined(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    yield prefix + name
                    yield from defined(node.body, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield prefix + name
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    yield prefix + name

    return set(defined(ast.parse(path.read_text(encoding="utf-8")).body, ""))


PYTHON = list(blocks("python"))
SHELL = [(block, words) for block in blocks("sh") for words in commands(block)]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_python_example_runs_as_printed(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    # Empty lines before it, so that a traceback names the page's own line.
    file.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
    as_test = re.search(r"^(async )?def test_", block.text, re.MULTILINE)
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if as_test else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE_"))}
    ran = subprocess.run(
        [sys.executable, "-W", "error", *runner, file.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, f"{block.place}:\n{ran.stdout}{ran.stderr}"
    assert not ran.stderr, f"{block.place} has something to say:\n{ran.stderr}"


@pytest.mark.parametrize(("block", "words"), SHELL, ids=[f"{block.place}-{' '.join(words)}" for block, words in SHELL])
def test_a_command_parses(block: Block, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("turnkeeper.cli.commands") is None:
        pytest.skip("the command line is not there yet")
    testing = pytest.importorskip("click.testing")
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith((".jsonl", ".jsonl.gz")):
            (tmp_path / word).touch()
    group: Any = importlib.import_module("turnkeeper.cli.commands").cli
    parsed = []
    for name, command in group.commands.items():
        monkeypatch.setattr(command, "callback", lambda *, name=name, **_: parsed.append(name))
    result = testing.CliRunner().invoke(group, words)
    assert (result.exit_code, parsed) == (0, words[:1]), f"{block.place}: {result.output}"


@pytest.mark.parametrize("page", LINKING_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_each_link_leads_somewhere(page: Path) -> None:
    for found in LINK.finditer(prose(page.read_text(encoding="utf-8"))):
        address, _, anchor = found["target"].partition("#")
        if address.startswith(("http://", "https://", "mailto:")):
            continue
        target = (page.parent / address).resolve() if address else page
        assert target.is_file(), f"{page.name} links to {found['target']}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {found['target']}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_each_name_in_the_code_exists(page: Path) -> None:
    """A page may say `actor.py::Actor.run`, from the package or from the repository."""
    for found in REFERENCE.finditer(page.read_text(encoding="utf-8")):
        if found["path"].startswith("tests/"):
            continue  # proofs, see test_generated.py
        places = [root / found["path"] for root in (REPOSITORY / "src" / "turnkeeper", REPOSITORY)]
        file = next((place for place in places if place.is_file()), None)
        assert file is not None, f"{page.name}: there is no {found['path']}"
        assert found["name"] in names(file), f"{page.name}: {found['path']} has no {found['name']}"


def test_the_pages_have_examples_commands_and_references() -> None:
    """What finds nothing proves nothing."""
    assert {block.page.name for block in PYTHON} >= {"README.md", "quickstart.md", "configuration.md"}
    assert {words[0] for _, words in SHELL} == {
        "bench",
        "copy",
        "demo",
        "doctor",
        "export",
        "import",
        "inspect",
        "replay",
    }
    design = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    assert len(REFERENCE.findall(design)) > 20


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {found["target"].partition("#")[0] for found in LINK.finditer(index)}
    assert {page.name for page in PAGES if page.name != "README.md"} <= linked

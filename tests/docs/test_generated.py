"""What the pages list is what the code has: options, errors, promises and their proofs."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnkeeper import RuntimeOptions, Settings, Unbounded, errors
from turnkeeper.stores import SQLiteStore, urls

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"

DEFAULTS: dict[str, object] = {
    "window": Unbounded,
    "history": "keep",
    "compaction": None,
    "max_compactions": 4,
    "turn_lease": 30.0,
    "watch_interval": 0.5,
    "durability": "full",
    "expires_after": None,
    "sweep_interval": 60.0,
    "consistency": None,
    "mailbox_size": 256,
    "max_pending": 20_000,
    "max_pending_bytes": 256 * 2**20,
    "on_overload": "wait",
    "max_resident": 50_000,
    "max_resident_bytes": 512 * 2**20,
    "linger": 1.0,
    "idle_timeout": 300.0,
    "group_entries": 512,
    "group_bytes": 8 * 2**20,
    "commit_timeout": 30.0,
    "load_timeout": 30.0,
    "close_timeout": 10.0,
    "conflict_attempts": 100,
    "idempotency_ttl": 86_400.0,
}

SQLITE_DEFAULTS: dict[str, object] = {
    "shared": False,
    "read_only": False,
    "search": False,
    "network_filesystem": False,
    "busy_timeout": 10.0,
}

PROMISES = 13
SUITE = "src/turnkeeper/testing/suite/"
"""The store suite: its parts are run by the classes in tests/stores/test_suite_*.py."""
PROOF = re.compile(rf"^- `((?:tests/|{SUITE})[\w/]+\.py)::([\w:]+)`$", re.MULTILINE)


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return the second-level sections of a page by title."""
    parts = re.split(r"^## +(.+?) *\n", text, flags=re.MULTILINE)[1:]
    assert len(set(parts[::2])) == len(parts[::2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


@cache
def defined_tests(path: str) -> frozenset[str]:
    """Return the tests that a file defines, as `test_name` or `TestClass::test_name`."""
    found = set()
    for node in ast.parse((REPOSITORY / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or path.startswith(SUITE)):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestConfiguration:
    def test_the_tables_are_those_of_the_code(self) -> None:
        rendered = generator().render(page("configuration.md"))
        assert rendered == page("configuration.md"), "run: python docs/generate.py"
        assert rendered.count("\n| `") > len(DEFAULTS) + len(SQLITE_DEFAULTS)

    def test_a_page_without_the_generated_parts_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no generated part 'options'"):
            generator().render("# Configuration\n")

    def test_the_options_are_the_keyword_arguments(self) -> None:
        known = [option.name for option in dataclasses.fields(Settings)]
        assert sorted(known) == sorted(RuntimeOptions.__annotations__)
        assert sorted(known) == sorted(DEFAULTS)

    @pytest.mark.parametrize("option", dataclasses.fields(Settings), ids=lambda option: option.name)
    def test_each_default_is_pinned_and_has_unit_and_reason(self, option: dataclasses.Field[Any]) -> None:
        default = getattr(Settings(), option.name)
        expected = DEFAULTS[option.name]
        if isinstance(expected, type):
            assert type(default) is expected
        else:
            assert (default, type(default)) == (expected, type(expected))
        assert bool(option.metadata["unit"]) != bool(option.metadata["choices"])
        assert option.metadata["reason"].endswith(".")

    def test_each_default_is_accepted(self) -> None:
        default = Settings()
        assert Settings.of({option.name: getattr(default, option.name) for option in dataclasses.fields(Settings)}) == (
            default
        )

    def test_the_defaults_of_the_sqlite_store_are_pinned(self) -> None:
        parameters = inspect.signature(SQLiteStore).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items() if name not in ("path", "clock")}
        assert defaults == SQLITE_DEFAULTS

    def test_the_options_of_a_sqlite_url_are_listed(self) -> None:
        table = sections(page("configuration.md"))["Store URLs"].partition("| Option |")[2]
        assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(urls._FLAGS)


class TestErrors:
    def test_each_error_has_a_section_and_each_section_an_error(self) -> None:
        assert list(sections(page("errors.md"))) == sorted(errors.__all__)

    @pytest.mark.parametrize("name", errors.__all__)
    def test_a_section_says_base_cause_state_and_way_out(self, name: str) -> None:
        bases = ", ".join(f"`{base.__name__}`" for base in getattr(errors, name).__bases__)
        pattern = rf"\nBase: {re.escape(bases)}\n\n- \*\*Cause\*\*: .+\n- \*\*State left\*\*: .+\n- \*\*Way out\*\*: .+"
        assert re.match(pattern, sections(page("errors.md"))[name], re.DOTALL)


class TestGuarantees:
    def test_the_promises_are_those_of_the_readme(self) -> None:
        readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
        promised = re.findall(r"^(\d+\. )\*\*(.+?)\*\*", readme, re.MULTILINE)
        assert list(sections(page("guarantees.md"))) == [f"{number}{title}" for number, title in promised]
        assert len(promised) == PROMISES

    @pytest.mark.parametrize("title", sections(page("guarantees.md")))
    def test_each_promise_has_its_limits_and_proofs(self, title: str) -> None:
        said, _, proofs = sections(page("guarantees.md"))[title].partition("\nProof:\n\n")
        assert "\nLimits: " in said
        assert PROOF.findall(proofs), f"no test proves promise {title}"
        assert not PROOF.sub("", proofs).strip(), "a proof is a line such as: - `tests/test_runtime.py::test_name`"

    @pytest.mark.parametrize(("path", "name"), PROOF.findall(page("guarantees.md")))
    def test_each_proof_exists(self, path: str, name: str) -> None:
        assert (REPOSITORY / path).is_file(), f"there is no {path}"
        assert name in defined_tests(path), f"{path} has no {name}"

    def test_a_proof_that_is_not_there_would_be_found(self) -> None:
        own = "tests/docs/test_generated.py"
        assert "TestGuarantees::test_each_proof_exists" in defined_tests(own)
        assert not {"defined_tests", "TestGuarantees", "test_each_proof_exists"} & defined_tests(own)

"""Promises of the layout: imports go one way, loops and threads stay where they belong, names are public on purpose.

Everything is read from the source, except the public names. The tables below are the architecture; a new module gets
its place in `LAYERS` or fails here.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import json
import os
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from support.imports import Module, imports_of, read_package

REPOSITORY = Path(__file__).parents[1]
PACKAGE = "turnkeeper"
SOURCE = REPOSITORY / "src" / PACKAGE

# Low to high. A module imports only from its own layer and lower ones; a package is one entry.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "errors",
            "names",
            "wire",
            "messages",
            "log",
            "stats",
            "state",
            "folding",
            "sealed",
            "metadata",
            "compactable",
            "windows",
            "tokens",
            "durations",
            "policies",
            "config",
        }
    ),
    frozenset({"stores"}),
    frozenset({"earlier", "lane", "committer", "gathering", "history", "reader", "events", "notices", "storage"}),
    frozenset(
        {
            "turnstile",
            "compaction",
            "retention",
            "requests",
            "admission",
            "applying",
            "looking",
            "losses",
            "plan",
            "revising",
            "forking",
            "services",
            "watching",
            "ledger",
            "turning",
            "actor",
            "residency",
        }
    ),
    frozenset({"runtime"}),
    frozenset({"memory", "loghandle", "past", "registry", "searching", "turns", "watches", "writes"}),
    frozenset({"sync"}),
    frozenset({"opening", "rotating"}),
    frozenset({"testing"}),
    frozenset({"bench", "cli", "integrations", "compat", "__main__"}),
)

# Public tools for the user's tests: nothing that runs in production may depend on them.
IMPORTED_ONLY_BY: dict[str, frozenset[str]] = {"testing": frozenset({"bench", "cli"})}

# Module of another distribution or the standard library: the entries of LAYERS that may import it.
ONLY_IN: dict[str, frozenset[str]] = {
    "asyncio": frozenset(),
    "trio": frozenset(),
    "uvloop": frozenset(),
    "threading": frozenset({"sync", "lane", "testing", "compat", "bench"}),  # a store that stalls, a loop of its own
    "_thread": frozenset(),
}

# The first only asks who is calling, the second starts no thread: it guards what a store's writing and reading threads
# both know of a lost connection. `from threading import get_ident, Lock` is free for all.
FREE_FOR_ALL = frozenset({"threading.get_ident", "threading.Lock"})

# All the root does besides re-exporting: a library must not print log records nobody asked for.
ROOT_STATEMENTS = frozenset({"import logging", f"logging.getLogger('{PACKAGE}').addHandler(logging.NullHandler())"})

# Modules whose `__all__` is a promise.
PUBLIC = ("turnkeeper", "turnkeeper.stores", "turnkeeper.testing", "turnkeeper.windows")

RANKS = {entry: rank for rank, layer in enumerate(LAYERS) for entry in layer}
TOP = len(LAYERS) - 1

MODULES = read_package(SOURCE)
INNER_MODULES = [module for module in MODULES if module.name != PACKAGE]
PUBLIC_MODULES = [name for name in PUBLIC if name in {module.name for module in MODULES}]


def entry_of(name: str) -> str | None:
    """Return the entry of LAYERS that a dotted name belongs to; None for foreign names and names of the root."""
    root, _, rest = name.partition(".")
    entry = rest.partition(".")[0]
    return entry if root == PACKAGE and entry in RANKS else None


def wrong_imports(name: str, imports: frozenset[str]) -> list[str]:
    """Return why each wrong import of the module `name`, which is listed, is wrong."""
    own = entry_of(name)
    assert own is not None
    problems = []
    for imported in sorted(imports):
        origin = imported.partition(".")[0]
        entry = entry_of(imported)
        if origin != PACKAGE:
            if imported not in FREE_FOR_ALL and own not in ONLY_IN.get(origin, {own}):
                problems.append(f"{origin} is for {sorted(ONLY_IN[origin]) or 'nobody'}")
        elif entry is None:
            if RANKS[own] < TOP:
                problems.append(f"{imported} is a name of the root, which is for the top layer")
        elif RANKS[entry] > RANKS[own]:
            problems.append(f"{entry} is in a higher layer")
        elif entry != own and own not in IMPORTED_ONLY_BY.get(entry, {own}):
            problems.append(f"{entry} is for {sorted(IMPORTED_ONLY_BY[entry])}")
    return list(dict.fromkeys(problems))


def public_names(module: ModuleType) -> set[str]:
    """Return the names a module offers without underscore, submodules and `from __future__` left out."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType | __future__._Feature)
    }


class TestLayout:
    def test_each_module_has_one_place_in_the_layers(self) -> None:
        assert sum(len(layer) for layer in LAYERS) == len(RANKS)
        unlisted = [module.name for module in INNER_MODULES if entry_of(module.name) is None]
        assert not unlisted, "give it a place in LAYERS"

    @pytest.mark.parametrize("module", INNER_MODULES, ids=lambda module: module.name)
    def test_a_module_imports_only_what_it_may(self, module: Module) -> None:
        if entry_of(module.name) is not None:
            assert wrong_imports(module.name, module.imports) == []

    @pytest.mark.skipif(not MODULES, reason="no source yet")
    def test_the_root_only_re_exports(self) -> None:
        tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    pass
                case ast.ImportFrom(module=origin, level=level):
                    assert level == 1 or origin == "__future__" or (origin or "").startswith(f"{PACKAGE}.")
                case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                    pass
                case _ if ast.unparse(node) not in ROOT_STATEMENTS:
                    pytest.fail(f"line {node.lineno} of {PACKAGE}/__init__.py does more than re-export")


class TestPublicNames:
    @pytest.mark.parametrize("name", PUBLIC_MODULES)
    def test_all_is_what_is_there(self, name: str) -> None:
        module = importlib.import_module(name)
        listed = set(module.__all__) - {"__version__"}
        assert public_names(module) <= listed, "public, but not in __all__"
        assert [entry for entry in sorted(listed) if not hasattr(module, entry)] == [], "in __all__, but not there"
        assert [entry for entry in sorted(listed) if entry.startswith("_")] == []

    @pytest.mark.parametrize("name", PUBLIC_MODULES)
    def test_all_is_sorted_and_without_repetition(self, name: str) -> None:
        listed = list(importlib.import_module(name).__all__)
        assert listed == sorted(set(listed))

    @pytest.mark.skipif(not MODULES, reason="no source yet")
    def test_the_version_is_that_of_the_project(self) -> None:
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert importlib.import_module(PACKAGE).__version__ == project["version"]


class TestTheRulesThemselves:
    """Each rule is seen to fail."""

    @pytest.mark.parametrize(
        ("name", "source", "problem"),
        [
            ("turnkeeper.log", "from turnkeeper.actor import Actor", "actor is in a higher layer"),
            ("turnkeeper.log", "from .actor import Actor", "actor is in a higher layer"),
            ("turnkeeper.log", "from . import actor", "actor is in a higher layer"),
            ("turnkeeper.log", "import turnkeeper.actor", "actor is in a higher layer"),
            ("turnkeeper.log", "def late():\n    from .actor import Actor", "actor is in a higher layer"),
            (
                "turnkeeper.log",
                "try:\n    import turnkeeper.actor\nexcept ImportError: ...",
                "actor is in a higher layer",
            ),
            ("turnkeeper.log", "import_module('turnkeeper.actor')", "actor is in a higher layer"),
            (
                "turnkeeper.stores.sqlite",
                "importlib.import_module('..actor', __package__)",
                "actor is in a higher layer",
            ),
            ("turnkeeper.stores.sqlite", "from ..runtime import Runtime", "runtime is in a higher layer"),
            ("turnkeeper.testing.suite", "from turnkeeper.cli.demo import run", "cli is in a higher layer"),
            ("turnkeeper.memory", "from turnkeeper.testing import check", "testing is in a higher layer"),
            ("turnkeeper.compat.zerda", "from turnkeeper.testing import check", "testing is for ['bench', 'cli']"),
            ("turnkeeper.log", "from turnkeeper import open_runtime", "turnkeeper.open_runtime is a name of the root"),
            ("turnkeeper.log", "from turnkeeper import *", "turnkeeper is a name of the root"),
            ("turnkeeper.actor", "import asyncio", "asyncio is for nobody"),
            ("turnkeeper.actor", "def late():\n    from trio.lowlevel import checkpoint", "trio is for nobody"),
            (
                "turnkeeper.actor",
                "import threading as t",
                "threading is for ['bench', 'compat', 'lane', 'sync', 'testing']",
            ),
        ],
    )
    def test_a_wrong_import_is_found(self, name: str, source: str, problem: str) -> None:
        problems = wrong_imports(name, imports_of(source, name))
        assert len(problems) == 1
        assert problems[0].startswith(problem)

    @pytest.mark.parametrize(
        ("name", "source"),
        [
            ("turnkeeper.actor", "from turnkeeper.stores.base import Store\nfrom .log import Slice\nimport anyio"),
            ("turnkeeper.actor", "from turnkeeper import errors, log"),
            ("turnkeeper.actor", "from .admission import Admission"),
            ("turnkeeper.stores.sqlite", "from . import base\nfrom .base import Store\nfrom ..log import Entry"),
            ("turnkeeper.testing.suite", "from turnkeeper.opening import Runtime"),
            ("turnkeeper.cli.demo", "from turnkeeper import open_runtime\nfrom turnkeeper.testing import check"),
            ("turnkeeper.sync", "import threading"),
            ("turnkeeper.runtime", "from threading import get_ident"),
            ("turnkeeper.log", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .actor import Actor"),
            ("turnkeeper.log", "import typing\nif typing.TYPE_CHECKING:\n    import asyncio\nelse:\n    import json"),
            ("turnkeeper.log", "import asyncio_helpers"),
        ],
    )
    def test_a_right_import_is_none(self, name: str, source: str) -> None:
        assert wrong_imports(name, imports_of(source, name)) == []

    def test_a_package_resolves_its_relative_imports_from_itself(self) -> None:
        found = imports_of("from .base import Store\nfrom .. import log", "turnkeeper.stores", is_package=True)
        assert found == {"turnkeeper.stores.base.Store", "turnkeeper.log"}

    def test_an_unlisted_module_has_no_place(self) -> None:
        assert entry_of("turnkeeper.utils") is None
        assert entry_of("turnkeeper.stores.sqlite") == "stores"

    def test_what_counts_as_a_public_name(self) -> None:
        module = ModuleType("example")
        vars(module).update(annotations=__future__.annotations, os=os, dumps=json.dumps, _own=1, VALUE=2)
        assert public_names(module) == {"dumps", "VALUE"}

    def test_a_package_is_read_from_its_files(self, tmp_path: Path) -> None:
        root = tmp_path / "package"
        (root / "inner").mkdir(parents=True)
        (root / "__init__.py").write_text("from .inner import name")
        (root / "inner" / "__init__.py").write_text("from .leaf import name")
        (root / "inner" / "leaf.py").write_text("import json")
        assert {module.name: set(module.imports) for module in read_package(root)} == {
            "package": {"package.inner.name"},
            "package.inner": {"package.inner.leaf.name"},
            "package.inner.leaf": {"json"},
        }
        assert read_package(tmp_path / "nothing") == []

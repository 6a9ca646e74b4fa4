"""Who imports whom in a package, read from the source: nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a package.

    Attributes:
        name: dotted and absolute, such as "turnkeeper.stores.sqlite".
        path: its file.
        imports: the dotted names it imports when it runs, at top level, in functions or by `import_module("...")`; of
            `from a import b` it is "a.b". What only the type checker sees (`if TYPE_CHECKING:`) is left out.
    """

    name: str
    path: Path
    imports: frozenset[str]


def read_package(root: Path) -> list[Module]:
    """Read each module of the package in the directory `root`, sorted by name; none if there is no such directory."""
    modules = []
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        source = path.read_text(encoding="utf-8")
        modules.append(Module(name, path, imports_of(source, name, is_package=is_package)))
    return sorted(modules, key=lambda module: module.name)


def imports_of(source: str, name: str, *, is_package: bool = False) -> frozenset[str]:
    """Return what the module `name` with this `source` imports; see `Module.imports`."""
    package = name if is_package else name.rpartition(".")[0]
    found: set[str] = set()
    for node in _running(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                found.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                origin = _absolute(module or "", level, package)
                found.update(origin if alias.name == "*" else f"{origin}.{alias.name}" for alias in aliases)
            case ast.Call(func=function, args=[ast.Constant(value=str(target)), *_]) if _called(function) in (
                "import_module",
                "__import__",
            ):
                level = len(target) - len(target.lstrip("."))
                found.add(_absolute(target.lstrip("."), level, package))
    return frozenset(found)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk all code that can run, not that under `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _called(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _running(other)
        else:
            yield from _running(child)


def _called(expression: ast.expr) -> str | None:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _absolute(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    parts = package.split(".")
    base = parts[: len(parts) - (level - 1)]
    return ".".join([*base, name] if name else base)

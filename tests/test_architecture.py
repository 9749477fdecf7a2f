"""The import graph of the package: no cycle between its rooms, and no import against the order in which data walks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import circle

SOURCE = Path(circle.__file__).parent

# The rooms, lowest first: each may import those before it and none after it. Parts that plug in (extractors, heads,
# methods, data sets) are found by name through `registry`, which imports none of them.
ORDER = (
    *("errors", "config", "registry", "labels", "machine", "linalg"),
    *("data", "extractors", "statistics", "heads", "presets"),
    *("model", "learning", "method", "distributed"),
    *("baselines", "benchmark", "paper", "report"),
    *("compression", "export", "serve", "doctor", "cli", "__main__"),
)
# Modules that are one room: the learning and the predicting model, and the file that both are kept in.
MODEL = {"learner", "predictor", "ensemble", "files"}
MAX_TOP_LEVEL_MODULES = 12


def room(module: str) -> str:
    """The room of a module, by the part of its name after "circle": "circle.heads.slda" is in "heads"."""
    part = module.split(".")[1]
    return "model" if part in MODEL else part


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it; what only type checkers see does not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imported(other)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("circle."))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import: expected the whole name"
            if node.module == "circle":
                # The package itself has the version and, for users, the names of many rooms: only rooms count.
                yield from (f"circle.{alias.name}" for alias in node.names if _is_module(alias.name))
            elif (node.module or "").startswith("circle."):
                yield str(node.module)
        yield from imported(node)


def _is_module(name: str) -> bool:
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def edges() -> dict[tuple[str, str], list[str]]:
    """(importing room, imported room) -> the imports, as "file: module"."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path == SOURCE / "__init__.py":
            continue  # the façade of the whole package
        inside = path.relative_to(SOURCE)
        own = room(".".join(("circle", *inside.with_suffix("").parts)))
        for module in imported(ast.parse(path.read_text())):
            if room(module) != own:
                found.setdefault((own, room(module)), []).append(f"{inside}: {module}")
    return found


def test_every_room_has_its_place() -> None:
    rooms = {room(f"circle.{path.stem}") for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    rooms |= {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(ORDER), "a new room: name it in ORDER, after all that it imports"


def test_imports_follow_the_order() -> None:
    place = {name: number for number, name in enumerate(ORDER)}
    against = [text for (own, other), texts in edges().items() if place[own] < place[other] for text in texts]
    assert not against, "imports against the order of the rooms"


def test_there_is_no_cycle() -> None:
    """Follows from the order; kept for the day that somebody gives two rooms one place."""
    graph: dict[str, set[str]] = {}
    for own, other in edges():
        graph.setdefault(own, set()).add(other)
    list(TopologicalSorter(graph).static_order())


def test_the_entrance_is_small() -> None:
    modules = [path.stem for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "__main__")]
    assert len(modules) <= MAX_TOP_LEVEL_MODULES, sorted(modules)


def test_no_module_uses_the_private_names_of_another() -> None:
    """A name with an underscore is used by its own file, or by a subclass on itself."""
    foreign: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node)}
        for node in ast.walk(tree):
            private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            if private and node.attr not in own and node.attr not in ("_replace", "_exit", "_fields"):
                foreign.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    assert len(foreign) < 10, foreign


def _is_own(node: ast.Attribute) -> bool:
    owner = ast.unparse(node.value)
    return owner in ("self", "cls", "super()")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from circle.heads.slda import SLDA", ["circle.heads.slda"]),
        ("import circle.heads", ["circle.heads"]),
        ("from circle import __version__, linalg", ["circle.linalg"]),
        ("def late():\n    from circle.cli import app", ["circle.cli"]),
        ("if TYPE_CHECKING:\n    from circle.cli import app", []),
        ("import circlet, circle", []),
    ],
)
def test_what_counts_as_an_import(text: str, expected: list[str]) -> None:
    assert list(imported(ast.parse(text))) == expected

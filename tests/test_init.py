"""The package itself: quick to import, with every public name in reach."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import circle

HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "numpy", "PIL")
HOMES = {name: module for module, names in circle.HOMES.items() for name in names.split()}
SILENTLY = "import circle.cli, contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): "


def fresh(program: str) -> str:
    """What a program prints in a process of its own, where nothing has been imported yet."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_heavy_is_imported() -> None:
    """One process for all: what an earlier statement has not brought, a later one has to bring itself."""
    statements = [
        "import circle; circle.__version__; dir(circle)",
        "from circle import CircleError, list_presets; list_presets()",
        SILENTLY + "circle.cli.run(['--help'])",
        SILENTLY + "circle.cli.run(['--version'])",
    ]
    for_each = f"print([name for name in {HEAVY} if name in sys.modules])"
    program = "\n".join(f"{statement}\n{for_each}" for statement in statements)
    brought = fresh(f"import sys\n{program}").splitlines()
    assert dict(zip(statements, brought, strict=True)) == dict.fromkeys(statements, "[]")


def test_star_import_brings_every_name_and_what_it_needs() -> None:
    star = fresh(
        "import sys; from circle import *\n"
        "print(*[name for name in dir() if not name.startswith('_') and name != 'sys'])\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules])\n"
        "print(*[len(f()) > 5 for f in (list_methods, list_extractors, list_heads, list_datasets)])"
    )
    names, brought, filled = star.splitlines()
    assert names.split() == sorted(circle.__all__)
    assert {"torch", "sklearn", "numpy"} <= set(brought.split()), "the other half of the test above"
    assert filled == "True True True True", "registries fill themselves"


def test_dir() -> None:
    assert set(circle.__all__) <= set(dir(circle))
    assert len(dir(circle)) == len(set(dir(circle)))


@pytest.mark.parametrize("name", circle.__all__)
def test_every_name_is_the_one_at_its_home(name: str) -> None:
    value = getattr(circle, name)
    assert value.__name__ == name
    assert value.__module__.startswith(HOMES[name])
    assert getattr(circle, name) is value


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'circle' has no attribute 'Circle'"):
        _ = circle.Circle  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        from circle import Circle  # pyright: ignore[reportAttributeAccessIssue] # noqa: F401


def test_type_checkers_see_the_same_names() -> None:
    """The imports under TYPE_CHECKING, the table of homes and ``__all__`` say the same."""
    tree = ast.parse(Path(circle.__file__).read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == HOMES
    assert sorted(HOMES) == sorted(circle.__all__)

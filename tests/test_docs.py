"""The pages: whole, from the code as it is, and asking nobody for anything."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from circle.cli import app

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, built as strictly as `make docs` does."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"no {package} here: pip install 'circle-cil[docs]'")
    from click.testing import CliRunner
    from mkdocs.__main__ import cli

    folder = tmp_path_factory.mktemp("site")
    with contextlib.chdir(ROOT), warnings.catch_warnings():  # the command sets filters of its own
        done = CliRunner().invoke(cli, ["build", "--strict", "--site-dir", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_names_and_commands_are_there(site: Path) -> None:
    python = (site / "reference" / "python.html").read_text()
    assert 'id="circle.learner.CircleClassifier.partial_fit"' in python
    assert "bit for bit the one that never saw the class" in python
    assert 'id="circle.heads.base.Head.materialise"' in (site / "reference" / "heads.html").read_text()
    commands = (site / "reference" / "command_line.html").read_text()
    for word in ("circle learn", "circle bench ablation", "circle doctor", "--extractor.width", "--rival.epochs"):
        assert word in commands, word
    assert "def camera" in re.sub("<[^>]+>", "", (site / "examples.html").read_text()), "examples are in the page"


def python_code(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["docs/index.md", "docs/python.md", "docs/my_images.md", "docs/benchmark.md"])
def test_code_for_users_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of a page's code in one go, as a reader would copy it."""
    monkeypatch.chdir(tmp_path)
    code = python_code(page)
    assert code
    exec(compile("\n".join(code), page, "exec"), {})
    if "score(" in "".join(code):
        assert max(map(float, re.findall(r"0\.\d+", capsys.readouterr().out))) > 0.9


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results" / "README.md"]


def commands(page: Path) -> list[str]:
    """What follows ``circle`` in the blocks of a page, and in the last column of its tables."""
    text = page.read_text()
    blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL))
    lines = re.sub(r"\\\n\s*", " ", blocks).splitlines() + re.findall(
        r"\| `(circle [^`]*)`[^|]*\|$", text, re.MULTILINE
    )
    found = [re.match(r"(?:[A-Z_]+=\S+ )*circle (.*)", line.strip()) for line in lines]
    return [match[1] for match in found if match and "$" not in match[1]]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_are_accepted(page: Path) -> None:
    """Every command that a page shows exists with these flags; it is parsed, not run."""
    for command in commands(page):
        try:
            app.parse_args(shlex.split(command, comments=True), exit_on_error=False, print_error=False)
        except CycloptsError as error:
            pytest.fail(f"{page.name}: circle {command}: {error}")


def test_there_are_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 80


RECIPES = """
from sklearn.datasets import load_digits
from circle import CircleClassifier, list_datasets
from circle.data.datasets import load_dataset

images, labels = load_digits(return_X_y=True)
model = CircleClassifier(extractor="colour_cells", head="standardised_ncm").fit(images[:1000] / 16, labels[:1000])
print(round(model.score(images[1000:] / 16, labels[1000:]), 2))
stripes = load_dataset("stripes")
print(stripes.classes, len(stripes.train), len(stripes.test))
"""


def test_recipes_for_contributors_run(tmp_path: Path) -> None:
    """The head, the extractor and the data set of CONTRIBUTING.md, as plug-ins, in a process of their own."""
    paths = [tmp_path / f"part{number}.py" for number in range(3)]
    for path, code in zip(paths, python_code("CONTRIBUTING.md"), strict=True):
        path.write_text(code)
    environment = {**os.environ, "CIRCLE_PLUGINS": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", RECIPES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    accuracy, data = done.stdout.splitlines()
    assert float(accuracy) > 0.5, "five times chance, from the brightness of cells"
    assert data == "['columns', 'rows'] 80 20"


def test_pages_point_nowhere_outside() -> None:
    """Papers of the house name nothing outside of the repository, and the files that they name exist."""
    assert len(PAGES) > 20
    for page in PAGES:
        text = page.read_text()
        assert "../shared" not in text and "shared/DESIGN" not in text, page
        for name in re.findall(r"`((?:tests|examples|benchmarks|docs|results|src)/[\w./-]*\w)`", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_tests_that_pages_name_exist() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    known = {path.stem for path in files}
    for path in files:
        known |= set(re.findall(r"def (test_\w+)", path.read_text()))
    named = {name for page in PAGES for name in re.findall(r"\b(test_\w+)", page.read_text())}
    assert len(named) > 50
    assert sorted(named - known) == []


def test_files_of_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py|[a-z_]+/)`", text))
    assert len(names) > 25
    for name in names:
        assert any((base / name).exists() for base in (ROOT, ROOT / "src" / "circle")), name


def test_nothing_is_asked_of_another_server(site: Path) -> None:
    asking = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        assert not asking.findall(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet

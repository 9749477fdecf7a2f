"""The pages: whole, from the code as it is, and asking nobody for anything."""

from __future__ import annotations

import contextlib
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from circle.extractors import base

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


def test_the_extractor_that_the_page_shows() -> None:
    """It runs as it stands there, without being registered for the other tests of this process."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "extractors.md").read_text(), re.DOTALL)
    names = {**vars(base), "ClassVar": ClassVar, "register": lambda kind, config: lambda part: part}
    exec(compile(code, "extractors.md", "exec", dont_inherit=True), names)
    extractor = names["MeanColour"](names["MeanColourConfig"](), base.ImageShape(3, 4, 4), 0)
    assert torch.allclose(extractor.features(torch.full((5, 3, 4, 4), 0.25)), torch.full((5, 3), 0.25))
    assert extractor.parameter_count() == base.ParameterCount()


def test_nothing_is_asked_of_another_server(site: Path) -> None:
    asking = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        assert not asking.findall(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet
